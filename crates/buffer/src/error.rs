//! Errors of the pool.

use azekura_base::{LogFailed, Lsn, PageId};

use crate::store::StoreError;

/// The reason that a page was not fixed. Nothing was changed; a later call tries again.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FixError {
    /// No frame was available in `MAX_ROUNDS` sweeps: all frames were pinned, or being filled by other
    /// threads. Retry with fewer concurrent operations, or make the cache larger.
    #[error(
        "page cache exhausted: no frame for page {page_id}; {pinned} of {frames} frames are pinned; use a \
         larger cache, or fewer operations at once"
    )]
    PoolExhausted {
        /// The requested page.
        page_id: PageId,
        /// Number of pinned frames in the last sweep.
        pinned: usize,
        /// Number of frames of the pool.
        frames: usize,
    },
    /// The page id is larger than any store can have: a reference to it is damaged.
    #[error("page {page_id} is beyond the largest page id, {max}")]
    NoSuchPage {
        /// The requested page.
        page_id: PageId,
        /// The largest id.
        max: u64,
    },
    /// The page could not be read, or is damaged.
    #[error(transparent)]
    Read(StoreError),
    /// The page has an LSN that no durable record of the log has: the page file is newer than the log.
    /// Restore all files from the same moment.
    #[error(
        "page {page_id} has LSN {lsn}, which the log does not have: the files are from different moments; \
         restore all files from one moment"
    )]
    Foreign {
        /// The requested page.
        page_id: PageId,
        /// The page's LSN.
        lsn: Lsn,
    },
    /// A dirty page to be evicted could not be written; it is still in the pool.
    #[error("cannot write page {page_id} to free its frame: {source}")]
    WriteBack {
        /// The page to be evicted.
        page_id: PageId,
        /// The reason.
        source: WriteError,
    },
}

/// The reason that changed pages were not written. They are still dirty in the pool.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The log could not be made durable up to the pages' LSNs (G4).
    #[error(transparent)]
    Log(#[from] LogFailed),
}

/// The reason that a pool was not created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The page size is not a power of two from 4 KiB to 64 KiB.
    #[error("page size {page_size} is not a power of two from 4096 to 65536")]
    PageSize {
        /// The requested size.
        page_size: usize,
    },
    /// The capacity gives too few or too many frames.
    #[error("a page cache of {capacity_bytes} bytes has {frames} frames; use {min} to {max}")]
    Capacity {
        /// The requested capacity in bytes.
        capacity_bytes: usize,
        /// The number of frames of that capacity.
        frames: usize,
        /// Smallest number of frames.
        min: usize,
        /// Largest number of frames.
        max: usize,
    },
    /// The system has not enough memory for the page cache; make it smaller.
    #[error(
        "the system has no memory for a page cache of {capacity_bytes} bytes; make it smaller \
         (`cache_bytes`, `--cache`)"
    )]
    Memory {
        /// The requested capacity in bytes.
        capacity_bytes: usize,
    },
}
