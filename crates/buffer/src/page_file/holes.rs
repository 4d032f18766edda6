//! Gives the disk space of free pages back to the file system, and allocates space again before such pages
//! are used.
//!
//! A released page is a hole of the file: it reads as zeroes, like a page that was never written. A write to
//! a hole may run out of space, so [`PageFile::fill_holes`] allocates the space of a page before the log
//! accepts the first change of the page. Earlier openings may have made holes as well, so the file is asked
//! where its holes are.

use std::io::ErrorKind;

use azekura_base::PageId;
use azekura_base::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::PageFile;
use crate::store::StoreError;

impl PageFile {
    /// Makes these pages a hole, up to the end of the file. Returns `false` if the file system has no holes.
    pub(super) fn make_hole(&self, first: PageId, count: u32) -> Result<bool, StoreError> {
        self.ledger.check()?;
        let (from, to) = self.byte_range(first, count);
        let to = to.min(self.len.load(Acquire)); // Acquire: as in `read_unverified`
        let error = self.pages.error("release the space of pages in", Some(first), from);
        if from >= to || self.pages.file.next_data(from).map_err(&error)? >= to {
            return Ok(true); // a hole already, or beyond the end
        }
        // Relaxed: the caller and all threads that allocate these pages latch their space map.
        self.hole_end.fetch_max(first.0 + u64::from(count), Relaxed);
        match self.pages.file.discard(from, to - from) {
            Ok(()) => Ok(true),
            Err(source) if source.kind() == ErrorKind::Unsupported => Ok(false),
            Err(source) => Err(error(source)),
        }
    }

    /// Truncates the file before page `end`.
    pub(super) fn truncate(&self, end: PageId) -> Result<(), StoreError> {
        self.ledger.check()?;
        let _growing = self.growing.lock();
        let len = self.byte_range(end, 0).0;
        if len >= self.len.load(Relaxed) {
            return Ok(()); // Relaxed, also above: changed only under the lock
        }
        self.len.store(len, Release); // Release: as in `grow`
        self.pages.file.set_len(len).map_err(self.pages.error("truncate", Some(end), len))
    }

    /// Allocates the space of those of these pages that are in holes. Their content is not needed. The pages
    /// are in the file.
    pub(super) fn fill_holes(&self, first: PageId, count: u32) -> Result<(), StoreError> {
        // Relaxed: see `make_hole`.
        if first.0 >= self.hole_end.load(Relaxed) {
            return Ok(());
        }
        let size = self.area.page_size as u64;
        let (mut at, end) = self.byte_range(first, count);
        let error = self.pages.error("make room for", Some(first), at);
        while at < end {
            let data = self.pages.file.next_data(at).map_err(&error)?.min(end);
            let hole = (data - at) / size * size;
            if hole > 0 {
                let allocated = self.pages.file.allocate(at, hole);
                allocated.map_err(|source| self.unless_full(error(source)))?;
            }
            at += hole.max(size);
        }
        Ok(())
    }

    /// Returns the offsets of the first byte of these pages, and of the first byte after them.
    fn byte_range(&self, first: PageId, count: u32) -> (u64, u64) {
        let from = self.offset(first).unwrap_or(u64::MAX);
        (from, from.saturating_add(u64::from(count) * self.area.page_size as u64))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use azekura_base::PageBuf;
    use azekura_io::OsFs;

    use super::*;
    use crate::store::PageStore;

    fn page(id: u64) -> (PageId, PageBuf) {
        let mut page = PageBuf::zeroed(4096);
        page[8..16].copy_from_slice(&id.to_le_bytes());
        page[100] = 7;
        (PageId(id), page)
    }

    fn blocks(dir: &Path) -> u64 {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(dir.join(PageFile::NAME)).expect("exists").blocks() * 512
    }

    /// Skipped on a file system without holes.
    #[test]
    fn a_released_page_has_no_space_until_room_is_made_for_it() {
        let dir = tempfile::tempdir().expect("creates");
        PageFile::create(Arc::new(OsFs::new()), dir.path(), 4096).expect("creates");
        let open = || PageFile::open(Arc::new(OsFs::new()), dir.path(), 4096).expect("opens");
        let file = open();
        file.write_pages(&mut (0..256).map(page).collect::<Vec<_>>()).expect("writes");
        file.sync().expect("syncs");
        let full = blocks(dir.path());
        if !file.release(PageId(64), 128).expect("releases") {
            return;
        }
        let released = blocks(dir.path());
        assert!(released + 120 * 4096 < full, "{released} of {full} bytes");
        let mut out = PageBuf::zeroed(4096);
        for id in 0..256 {
            match file.read_page(PageId(id), &mut out) {
                Ok(()) => assert!(out[100] == 7 && !(64..192).contains(&id), "page {id}"),
                Err(error) => {
                    assert!(matches!(error, StoreError::Unwritten { .. }), "page {id}: {error}");
                    assert!((64..192).contains(&id), "page {id}");
                }
            }
        }
        assert!(file.release(PageId(64), 1 << 20).expect("releases"), "beyond the end");
        drop(file);
        let file = open(); // does not know the holes
        file.make_room(PageId(80), 16).expect("allocates");
        let filled = blocks(dir.path());
        file.make_room(PageId(80), 16).expect("has room");
        assert_eq!(blocks(dir.path()), filled, "allocated twice");
        let grown = filled.saturating_sub(blocks_after_release(&file, dir.path()));
        assert!(grown >= 16 * 4096, "{grown} bytes for 16 pages");
        file.write_pages(&mut [page(80), page(95)]).expect("writes");
        file.read_page(PageId(95), &mut out).expect("reads");
        assert_eq!(out[100], 7);
    }

    /// Releases pages 80 to 95 again and returns the space that the file then has.
    fn blocks_after_release(file: &PageFile, dir: &Path) -> u64 {
        file.pages.file.discard(81 * 4096, 16 * 4096).expect("discards");
        let blocks = blocks(dir);
        file.make_room(PageId(80), 16).expect("allocates");
        blocks
    }
}
