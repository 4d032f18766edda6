//! `MemStore`: pages in memory, with injected failures and stalls for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use azekura_base::sync::Mutex;
use azekura_base::{PageBuf, PageId};

use super::seal::{seal_batch, verify};
use super::{PageStore, StoreError};

/// A call that a [`MemStore`] is about to execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A page is read.
    Read(PageId),
    /// A page of a batch is written.
    Write(PageId),
    /// All writes are synced.
    Sync,
}

type Hook = Arc<dyn Fn(Access) + Send + Sync>;

/// Pages in memory, which are lost with the process. Writes and reads verify what [`PageStore`] requires.
///
/// ```
/// use azekura_base::{PageBuf, PageId};
/// use azekura_buffer::store::{MemStore, PageStore};
/// let store = MemStore::new(4096);
/// store.fail_next_read(PageId(7));
/// let mut page = PageBuf::zeroed(4096);
/// assert!(store.read_page(PageId(7), &mut page).is_err());
/// assert!(store.read_page(PageId(7), &mut page).is_ok()); // once
/// assert_eq!(store.reads(), 2);
/// ```
#[derive(Default)]
pub struct MemStore {
    page_size: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pages: BTreeMap<PageId, PageBuf>,
    failing_reads: BTreeSet<PageId>,
    failing_writes: BTreeSet<PageId>,
    failing_sync: bool,
    hook: Option<Hook>,
    reads: u64,
    writes: u64,
    syncs: u64,
}

impl fmt::Debug for MemStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pages = self.state.lock().pages.len();
        write!(f, "MemStore({pages} pages of {} bytes)", self.page_size)
    }
}

impl MemStore {
    /// Returns an empty store: every page reads as zeroes.
    #[must_use]
    pub fn new(page_size: usize) -> Self {
        Self { page_size, ..Self::default() }
    }

    /// Makes the next read of this page fail with EIO.
    pub fn fail_next_read(&self, id: PageId) {
        self.state.lock().failing_reads.insert(id);
    }

    /// Makes the next batch with this page fail with EIO at this page, after the pages before it were
    /// written.
    pub fn fail_next_write(&self, id: PageId) {
        self.state.lock().failing_writes.insert(id);
    }

    /// Makes the next sync fail with EIO.
    pub fn fail_next_sync(&self) {
        self.state.lock().failing_sync = true;
    }

    /// Calls `hook` at the start of every access from now on, with no lock held. The hook may block, and so
    /// stall the access.
    pub fn set_hook(&self, hook: impl Fn(Access) + Send + Sync + 'static) {
        self.state.lock().hook = Some(Arc::new(hook));
    }

    /// Removes the hook; running calls of it continue.
    pub fn clear_hook(&self) {
        self.state.lock().hook = None;
    }

    /// Flips the lowest bit of one byte of a stored page. A page that was never written becomes a stored
    /// page.
    ///
    /// # Panics
    ///
    /// If `at` is beyond the page.
    pub fn corrupt(&self, id: PageId, at: usize) {
        let mut state = self.state.lock();
        state.pages.entry(id).or_insert_with(|| PageBuf::zeroed(self.page_size))[at] ^= 1;
    }

    /// Returns the stored image of a page, unverified; `None` if it was never written.
    #[must_use]
    pub fn image(&self, id: PageId) -> Option<PageBuf> {
        self.state.lock().pages.get(&id).cloned()
    }

    /// Returns the number of reads so far, including failed ones.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.state.lock().reads
    }

    /// Returns the number of pages written so far.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.state.lock().writes
    }

    /// Returns the number of syncs so far, including failed ones.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }

    fn enter(&self, access: Access) {
        let hook = self.state.lock().hook.clone();
        if let Some(hook) = hook {
            hook(access);
        }
    }

    fn error(&self, action: &'static str, page: Option<PageId>) -> StoreError {
        StoreError::Io {
            action,
            path: Path::new("memory").into(),
            page,
            offset: self.offset(page.unwrap_or_default()),
            source: Arc::new(io::Error::other("injected failure")),
        }
    }

    const fn offset(&self, id: PageId) -> u64 {
        id.0.saturating_mul(self.page_size as u64)
    }
}

impl PageStore for MemStore {
    fn read_page(&self, id: PageId, out: &mut [u8]) -> Result<(), StoreError> {
        assert_eq!(out.len(), self.page_size, "a page is read whole");
        self.enter(Access::Read(id));
        let mut state = self.state.lock();
        state.reads += 1;
        if state.failing_reads.remove(&id) {
            return Err(self.error("read", Some(id)));
        }
        match state.pages.get(&id) {
            Some(page) => out.copy_from_slice(page),
            None => {
                out.fill(0);
                return Ok(());
            }
        }
        verify(id, out, &Path::new("memory").into(), self.offset(id))
    }

    fn is_cached(&self, page: PageId) -> bool {
        self.state.lock().pages.contains_key(&page)
    }

    fn write_pages(&self, batch: &mut [(PageId, PageBuf)]) -> Result<(), StoreError> {
        seal_batch(batch, self.page_size, None).expect("nothing is encrypted");
        for (id, page) in batch {
            self.enter(Access::Write(*id));
            let mut state = self.state.lock();
            if state.failing_writes.remove(id) {
                return Err(self.error("write", Some(*id)));
            }
            state.writes += 1;
            state.pages.insert(*id, page.clone());
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.enter(Access::Sync);
        let mut state = self.state.lock();
        state.syncs += 1;
        if std::mem::take(&mut state.failing_sync) { Err(self.error("sync", None)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use azekura_base::sync::atomic::{AtomicU64, Ordering::SeqCst};

    fn page(id: u64, fill: u8) -> (PageId, PageBuf) {
        let mut page = PageBuf::zeroed(4096);
        page[24..].fill(fill);
        page[8..16].copy_from_slice(&id.to_le_bytes());
        (PageId(id), page)
    }

    #[test]
    fn written_pages_read_back_sealed() {
        let store = MemStore::new(4096);
        store.write_pages(&mut [page(3, 7), page(1, 8)]).unwrap();
        let mut out = PageBuf::zeroed(4096);
        store.read_page(PageId(3), &mut out).unwrap();
        assert_eq!(out[4095], 7);
        store.corrupt(PageId(1), 100);
        let error = store.read_page(PageId(1), &mut out).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { page: PageId(1), offset: 4096, .. }), "{error}");
        assert_eq!((store.reads(), store.writes(), store.syncs()), (2, 2, 0));
    }

    #[test]
    fn injected_failures_happen_once() {
        let store = MemStore::new(4096);
        store.fail_next_write(PageId(2));
        store.fail_next_sync();
        assert!(store.write_pages(&mut [page(1, 1), page(2, 1)]).is_err());
        assert!(store.image(PageId(1)).is_some() && store.image(PageId(2)).is_none());
        assert!(store.write_pages(&mut [page(2, 1)]).is_ok());
        assert!(store.sync().is_err());
        assert!(store.sync().is_ok());
    }

    #[test]
    fn the_hook_sees_every_access() {
        let store = MemStore::new(4096);
        let seen = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&seen);
        store.set_hook(move |access| {
            if access == Access::Write(PageId(1)) {
                counter.fetch_add(1, SeqCst);
            }
        });
        store.write_pages(&mut [page(1, 1), page(2, 1)]).unwrap();
        store.clear_hook();
        store.write_pages(&mut [page(1, 1)]).unwrap();
        assert_eq!(seen.load(SeqCst), 1);
    }

    #[test]
    #[should_panic(expected = "a page comes once in a batch")]
    fn a_page_twice_in_a_batch_is_refused() {
        let _ = MemStore::new(4096).write_pages(&mut [page(1, 1), page(2, 1), page(1, 2)]);
    }
}
