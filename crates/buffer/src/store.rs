//! `PageStore`, the storage below the pool, and its errors. The pool uses only this trait.
//! [`PageFile`](crate::page_file::PageFile) is the store that survives a power loss. [`MemStore`] is in
//! memory, with injected failures and stalls for tests.

mod memory;
mod seal;

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use azekura_base::page::store_words;
use azekura_base::sync::machine::{self, Work};
use azekura_base::{Lsn, PageBuf, PageId, PageWords};

pub use self::memory::{Access, MemStore};
pub(crate) use self::seal::{open_page, seal_batch, seal_page, stored_checksum, verify};

/// Storage of pages by number. All calls block and may come from any thread. The caller guarantees that no
/// thread reads or writes a page while another thread writes it.
pub trait PageStore: Send + Sync + fmt::Debug {
    /// Reads a page into `out`, which is one page long. The content of `out` is unspecified after an error.
    ///
    /// # Errors
    ///
    /// - [`StoreError::Io`]: the device failed; a later call tries again.
    /// - [`StoreError::Corrupt`]: the bytes are not this page's.
    /// - [`StoreError::Outdated`]: the bytes are an older image of the page.
    /// - [`StoreError::Unwritten`]: the page holds only zeroes, or is beyond the end of the store. A written
    ///   page never does, so for a page in use this is damage. [`MemStore`] returns zeroes instead.
    ///
    /// # Panics
    ///
    /// If `out` is not exactly one page.
    fn read_page(&self, id: PageId, out: &mut [u8]) -> Result<(), StoreError>;

    /// Reads consecutive pages from `first` on into `out`, in one call if the store can. The content of
    /// `out` is unspecified after an error.
    ///
    /// # Errors
    ///
    /// As [`PageStore::read_page`], for any of the pages.
    ///
    /// # Panics
    ///
    /// If `page_size` is not the store's, or `out` not a multiple of it.
    fn read_pages(&self, first: PageId, page_size: usize, out: &mut [u8]) -> Result<(), StoreError> {
        assert!(out.len().is_multiple_of(page_size), "pages are read whole");
        (first.0..)
            .zip(out.chunks_exact_mut(page_size))
            .try_for_each(|(id, out)| self.read_page(PageId(id), out))
    }

    /// Reads pages as [`PageStore::read_pages`] does, each page into the words of its final buffer. All pages
    /// have the same size. Other threads may read the words meanwhile and must discard them. By default the
    /// pages are read into a buffer of the thread, and copied.
    ///
    /// # Errors
    ///
    /// As [`PageStore::read_pages`].
    fn read_words(&self, first: PageId, out: &[PageWords<'_>]) -> Result<(), StoreError> {
        read_and_copy(self, first, out)
    }

    /// Reads pages as [`PageStore::read_words`] does. Each `None` in `out` is a page that is not requested.
    /// To save calls, the store may read these pages too, and drops their bytes unverified: other threads may
    /// write them meanwhile. By default each run of requested pages is read separately.
    ///
    /// # Errors
    ///
    /// As [`PageStore::read_pages`], for any of the requested pages.
    fn read_across(&self, first: PageId, out: &[Option<PageWords<'_>>]) -> Result<(), StoreError> {
        read_runs(self, first, out)
    }

    /// Announces that `pages` pages from `first` on will be read soon. The store may start device reads for
    /// them without waiting. By default the hint is ignored.
    fn will_read(&self, first: PageId, pages: usize) {
        let _ = (first, pages);
    }

    /// Returns `true` if a read of the page would not wait for a device, because the system's page cache has
    /// its bytes. May return `false` without a reason, as by default.
    fn is_cached(&self, page: PageId) -> bool {
        let _ = page;
        false
    }

    /// Seals the pages of a batch (sets their checksums) and writes them. Each image is whole, and its header
    /// already contains its id. The writes are not durable before [`PageStore::sync`]. After a crash in
    /// between, each page is one of the images written since the last sync, or the image before them, and
    /// never a mixture. Pages that were first written after the last [`PageStore::sync_for_checkpoint`] are
    /// an exception: such a page may be a mixture. The caller can restore it without reading it, or does not
    /// need it.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`], or [`StoreError::Failed`] if a write or a sync failed before. Any of the pages may
    /// have been written.
    ///
    /// # Panics
    ///
    /// If an image does not have the length of a page, or its header has another id, or an id occurs twice.
    fn write_pages(&self, batch: &mut [(PageId, PageBuf)]) -> Result<(), StoreError>;

    /// Writes pages as [`PageStore::write_pages`] does, for *fresh* pages: none of them has an older image
    /// that is still needed. After a crash before the next [`PageStore::sync`] a fresh page may have any
    /// content, including a mixture that no read accepts. So the store may write these pages once instead of
    /// twice.
    ///
    /// # Errors
    ///
    /// As [`PageStore::write_pages`].
    ///
    /// # Panics
    ///
    /// As [`PageStore::write_pages`].
    fn write_fresh(&self, batch: &mut [(PageId, PageBuf)]) -> Result<(), StoreError> {
        self.write_pages(batch)
    }

    /// Waits until every page write that returned before this call is durable.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`], or [`StoreError::Failed`] if a write or a sync failed before. A sync is never
    /// repeated: the state of the affected writes stays unknown (W10).
    fn sync(&self) -> Result<(), StoreError>;

    /// Guarantees that these pages can be written later even if the disk is full by then. The same holds for
    /// all pages before them, except pages that were released after their last write or the last call of this
    /// function for them.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`]: there is no space now; nothing was changed.
    fn make_room(&self, first: PageId, count: u32) -> Result<(), StoreError> {
        let _ = (first, count);
        Ok(())
    }

    /// Gives the disk space of these pages back; returns `false` if the store cannot do this (the default).
    /// The pages are in no use: their content is lost, and [`PageStore::make_room`] is called before they are
    /// used again. After a crash, each of them has its old content, zeroes, or a mixture.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`]: some of the space may not have been given back.
    fn release(&self, first: PageId, count: u32) -> Result<bool, StoreError> {
        let _ = (first, count);
        Ok(false)
    }

    /// Returns the disk space that the pages take, in bytes. `None` if the store cannot release pages (the
    /// default).
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`].
    fn disk_bytes(&self) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }

    /// Gives the disk space from page `end` on back, before the store is closed: these pages are in no use,
    /// and no page is written later.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`]: the space may not have been given back.
    fn release_end(&self, end: PageId) -> Result<(), StoreError> {
        let _ = end;
        Ok(())
    }

    /// Returns `true` if a write or a sync failed, after which the store writes no more pages. Costs one
    /// load.
    fn has_failed(&self) -> bool {
        false
    }

    /// Waits as [`PageStore::sync`] does, for a checkpoint: also for page writes in progress. Returns a
    /// number that the caller stores in the checkpoint and passes back when the store is opened again. Before
    /// this call the caller chooses the LSN from which redo starts.
    ///
    /// # Errors
    ///
    /// As [`PageStore::sync`].
    fn sync_for_checkpoint(&self) -> Result<u64, StoreError> {
        self.sync().map(|()| 0)
    }

    /// Returns a stamp of the page's image, which changes with each write of the page. `None`, at no cost, if
    /// the store does not use evicted pages; then [`PageStore::evicted`] is not called.
    fn stamp(&self, id: PageId) -> Option<u64> {
        let _ = id;
        None
    }

    /// Reports a clean page that was evicted from the pool, with its image. No thread had changed the page,
    /// or could have, when `stamp` was read. Since then other threads may have read the page again, changed
    /// it and written it; then its stamp has changed, and the image must not be used. Must not block for
    /// long: another page waits for the frame's memory.
    fn evicted(&self, id: PageId, stamp: u64, image: &[u8]) {
        let _ = (id, stamp, image);
    }
}

/// Reads pages as [`PageStore::read_words`] does by default, for a store that overrides that method for some
/// reads only.
///
/// # Errors
///
/// As [`PageStore::read_pages`].
pub fn read_and_copy<S: PageStore + ?Sized>(
    store: &S,
    first: PageId,
    out: &[PageWords<'_>],
) -> Result<(), StoreError> {
    azekura_base::per_thread! {
        static IMAGES: RefCell<Option<PageBuf>> = const { RefCell::new(None) };
    }
    let page_size = out.first().map_or(0, |words| words.len());
    let bytes = out.len() * page_size;
    // Taken and not borrowed: the store may run any code, even another fix.
    let kept = IMAGES.take().filter(|images| images.len() >= bytes);
    let mut images = kept.unwrap_or_else(|| PageBuf::zeroed(bytes));
    let read = match out.len() {
        0 => Ok(()),
        1 => store.read_page(first, &mut images[..bytes]),
        _ => store.read_pages(first, page_size, &mut images[..bytes]),
    };
    if read.is_ok() {
        for (words, image) in out.iter().zip(images.chunks_exact(page_size.max(1))) {
            // Optimistic readers may read the words at any time, and discard the result (FRAME-7).
            store_words(words.atomics(), image);
            machine::works(Work::Copy(page_size));
        }
    }
    IMAGES.set(Some(images));
    read
}

/// Reads pages as [`PageStore::read_across`] does by default.
///
/// # Errors
///
/// As [`PageStore::read_pages`], for any of the requested pages.
pub fn read_runs<S: PageStore + ?Sized>(
    store: &S,
    first: PageId,
    out: &[Option<PageWords<'_>>],
) -> Result<(), StoreError> {
    let mut id = first.0;
    for run in out.chunk_by(|a, b| a.is_some() == b.is_some()) {
        let words: Vec<PageWords<'_>> = run.iter().copied().flatten().collect();
        if !words.is_empty() {
            store.read_words(PageId(id), &words)?;
        }
        id += run.len() as u64;
    }
    Ok(())
}

/// The reason that a page was not read, not written, or not made durable. Cheap to clone: all threads that
/// waited for the same read get the same error.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The device failed.
    Io {
        /// The call that failed.
        action: &'static str,
        /// The file or directory.
        path: Arc<Path>,
        /// The page, or the first of several; `None` if the call was for no page.
        page: Option<PageId>,
        /// The offset in the file, in bytes.
        offset: u64,
        /// The operating system's reason.
        source: Arc<io::Error>,
    },
    /// The bytes at a page's offset are not that page: the device damaged it, and there is no copy. Restore a
    /// backup.
    Corrupt {
        /// The page.
        page: PageId,
        /// The file.
        path: Arc<Path>,
        /// The offset in the file, in bytes.
        offset: u64,
        /// The checksum in the page's header.
        found_checksum: u32,
        /// The checksum of the bytes.
        expected_checksum: u32,
        /// The page id in the header.
        found_page: PageId,
    },
    /// The page holds only zeroes, or lies beyond the end of the file: it was never written, or the device
    /// lost it, and there is no copy. Restore a backup.
    Unwritten {
        /// The page.
        page: PageId,
        /// The file.
        path: Arc<Path>,
        /// The offset in the file, in bytes.
        offset: u64,
    },
    /// The page has an older image than the last one written: the device lost a write, or the page was
    /// restored alone. There is no copy. Restore a backup.
    Outdated {
        /// The page.
        page: PageId,
        /// The file.
        path: Arc<Path>,
        /// The offset in the file, in bytes.
        offset: u64,
        /// The page LSN of the image.
        found_lsn: Lsn,
        /// A page LSN with which the page was written.
        written_lsn: Lsn,
    },
    /// The page's checksum is right, but the bytes are not those encrypted for this page: they were changed,
    /// moved or encrypted with another key. Restore a backup.
    Unauthentic {
        /// The page.
        page: PageId,
        /// The file.
        path: Arc<Path>,
        /// The offset in the file, in bytes.
        offset: u64,
    },
    /// The page file is older than the checkpoint: it lacks page writes that the checkpoint requires. Restore
    /// all files from the same moment.
    Stale {
        /// The file.
        path: Arc<Path>,
        /// The last batch of page writes that the file is known to contain.
        found: u64,
        /// The last batch that the checkpoint requires.
        expected: u64,
    },
    /// A file does not match this store; nothing was changed. Open it with the right settings.
    Refused {
        /// The file.
        path: Arc<Path>,
        /// The property that does not match.
        what: &'static str,
        /// The value in the file.
        found: u64,
        /// The required value.
        expected: u64,
    },
    /// A write or a sync failed before, and the store accepts no further writes or syncs. Reads continue.
    /// Reopen the store.
    Failed {
        /// The first failure.
        first: Arc<StoreError>,
    },
}

impl StoreError {
    /// Returns the first failure if the store had failed already; otherwise this error.
    #[must_use]
    pub fn root(&self) -> &Self {
        match self {
            Self::Failed { first } => first.root(),
            error => error,
        }
    }

    /// Returns the file, the page, its offset and a description if this error is damage of one page.
    #[must_use]
    pub fn damage(&self) -> Option<(&Path, PageId, u64, String)> {
        let (page, path, offset, damage) = match self {
            Self::Corrupt { page, path, offset, found_checksum, expected_checksum, found_page } => {
                let damage = format!(
                    "checksum {found_checksum:#010x} for bytes with checksum {expected_checksum:#010x}, \
                     page id {found_page}"
                );
                (page, path, offset, damage)
            }
            Self::Unwritten { page, path, offset } => {
                (page, path, offset, "it holds zeroes only, as if it had never been written".into())
            }
            Self::Outdated { page, path, offset, found_lsn, written_lsn } => {
                let damage = format!(
                    "it is an older image with page LSN {found_lsn}, and the page was written with page LSN \
                     {written_lsn}"
                );
                (page, path, offset, damage)
            }
            Self::Unauthentic { page, path, offset } => (
                page,
                path,
                offset,
                "it cannot be decrypted: its bytes are not those encrypted for this place".into(),
            ),
            Self::Io { .. } | Self::Stale { .. } | Self::Refused { .. } | Self::Failed { .. } => return None,
        };
        Some((path, *page, *offset, damage))
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { action, path, page: Some(page), offset, .. } => {
                write!(f, "{action} page {page} at offset {offset} of {}", path.display())
            }
            Self::Io { action, path, page: None, offset, .. } => {
                write!(f, "{action} {} at offset {offset}", path.display())
            }
            Self::Corrupt { .. }
            | Self::Unwritten { .. }
            | Self::Outdated { .. }
            | Self::Unauthentic { .. } => {
                let Some((path, page, offset, damage)) = self.damage() else { return Ok(()) };
                write!(f, "page {page} at offset {offset} of {} is damaged: {damage}", path.display())
            }
            Self::Stale { path, found, expected } => write!(
                f,
                "{} is older than the control file: it holds page writes up to batch {found}, and the \
                 control file relies on those up to batch {expected}; restore all files from one moment",
                path.display()
            ),
            Self::Refused { path, what, found, expected } => {
                write!(f, "{}: {what} is {found}, not {expected}", path.display())
            }
            Self::Failed { .. } => f.write_str("the page store failed before and takes no more writes"),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // The error itself and not its `Arc`, so that callers can downcast.
            Self::Io { source, .. } => Some(&**source),
            Self::Failed { first } => Some(&**first),
            Self::Corrupt { .. } | Self::Unwritten { .. } | Self::Outdated { .. } => None,
            Self::Unauthentic { .. } => None,
            Self::Stale { .. } | Self::Refused { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use azekura_io::{FaultFs, Fs, is_power_cut};

    #[test]
    fn a_power_cut_is_recognised_through_every_layer() {
        let fs = FaultFs::new();
        fs.cut_power();
        let source = Arc::new(fs.sync_dir(Path::new("/")).unwrap_err());
        let io =
            StoreError::Io { action: "sync", path: Path::new("pages").into(), page: None, offset: 0, source };
        let failed = StoreError::Failed { first: Arc::new(io.clone()) };
        assert!(is_power_cut(&io) && is_power_cut(&failed));
        assert!(matches!(failed.root(), StoreError::Io { action: "sync", .. }));
        assert_eq!(io.to_string(), "sync pages at offset 0");
    }
}
