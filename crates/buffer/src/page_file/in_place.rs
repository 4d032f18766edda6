//! Writes pages without a copy in the double-write area: new pages and fresh pages.

use azekura_base::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use azekura_base::{PageBuf, PageId, page};

use super::{MOST_ZEROES, PageFile, page_lsn};
use crate::store::StoreError;

impl PageFile {
    /// Writes pages of a batch that has begun, without a slot; `part` are their indices, in the order of
    /// their ids.
    pub(super) fn write_without_slot(
        &self,
        sequence: u64,
        batch: &[(PageId, PageBuf)],
        part: &[usize],
    ) -> Result<(), StoreError> {
        let written = self.write_fresh_runs(batch, part);
        self.ledger.finish_without_slot(sequence);
        written?;
        self.lsn_map.written(part.iter().map(|&i| page_lsn(&batch[i])));
        Ok(())
    }

    /// Writes the pages of a batch in the order of their ids, adjacent pages in one write.
    fn write_fresh_runs(&self, batch: &[(PageId, PageBuf)], order: &[usize]) -> Result<(), StoreError> {
        for run in order.chunk_by(|&a, &b| batch[a].0.0 + 1 == batch[b].0.0) {
            let (first, image) = &batch[run[0]];
            if run.len() == 1 {
                self.write_fresh_run(*first, image)?;
                continue;
            }
            let bytes = run.len() * self.area.page_size;
            let mut buffer = page::spare::take(bytes);
            for (place, &index) in buffer.chunks_exact_mut(self.area.page_size).zip(run) {
                place.copy_from_slice(&batch[index].1);
            }
            let written = self.write_fresh_run(*first, &buffer[..bytes]);
            page::spare::give([buffer]);
            written?;
        }
        Ok(())
    }

    /// Writes adjacent fresh pages. Pages beyond the end extend the file: no zeroes are written there first.
    /// If there is no space, the state of all writes is known, as when the file grows.
    fn write_fresh_run(&self, first: PageId, bytes: &[u8]) -> Result<(), StoreError> {
        let offset = self.offset(first).unwrap_or(u64::MAX);
        let end = offset.saturating_add(bytes.len() as u64);
        // Acquire: as in `grow_to_hold`.
        if end <= self.len.load(Acquire) {
            return self.write_place(first, bytes);
        }
        // Another thread that grows the file may write zeroes from its end on; the lock protects these pages.
        let _growing = self.growing.lock();
        let len = self.len.load(Relaxed); // Relaxed: changed only under the lock
        let from = len.max(offset.saturating_sub(MOST_ZEROES));
        let written = self
            .pages
            .file
            .allocate(from, offset.saturating_sub(from))
            .and_then(|()| self.pages.file.write_at(offset, bytes));
        if let Err(error) = written {
            return Err(self.unless_full(self.pages.error("write", Some(first), offset)(error)));
        }
        // Release: as in `grow`.
        self.len.store(end.max(len), Release);
        Ok(())
    }
}
