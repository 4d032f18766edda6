//! Errors of the pool.

use azekura_base::{LogFailed, Lsn, PageId};

use crate::store::StoreError;

/// Why a page could not be fixed. Nothing stays behind: a later call tries anew.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FixError {
    /// No frame could be had in `MAX_ROUNDS` sweeps: all pinned, or being filled by others.
    /// Retry with less at once, or make the cache larger.
    #[error("page cache exhausted: no frame for page {page_id}; {pinned} of {frames} frames are pinned")]
    PoolExhausted {
        /// The page wanted.
        page_id: PageId,
        /// Frames pinned when last looked at.
        pinned: usize,
        /// Frames of the pool.
        frames: usize,
    },
    /// The page id is larger than any store can have: a reference to it is damaged.
    #[error("page {page_id} is beyond the largest page id, {max}")]
    NoSuchPage {
        /// The page wanted.
        page_id: PageId,
        /// The largest id.
        max: u64,
    },
    /// The page could not be read, or is damaged.
    #[error(transparent)]
    Read(StoreError),
    /// The page has an LSN that the log never gave to a durable record: the page file is of a later time than
    /// the log. Restore all files from one moment.
    #[error(
        "page {page_id} is of another time than the log: its LSN is {lsn}, and the log has no such record; \
         restore all files from one moment"
    )]
    Foreign {
        /// The page wanted.
        page_id: PageId,
        /// Its LSN.
        lsn: Lsn,
    },
    /// A dirty page that had to leave could not be written; it is still in the pool.
    #[error("write back page {page_id} to make room: {source}")]
    WriteBack {
        /// The page that was to leave.
        page_id: PageId,
        /// Why it could not.
        source: WriteError,
    },
}

/// Why changed pages could not be written. They are still dirty in the pool.
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

/// Why a pool could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Not a power of two from 4 KiB to 64 KiB.
    #[error("a page size of {page_size} bytes; powers of two from 4096 to 65536 are possible")]
    PageSize {
        /// The size asked for.
        page_size: usize,
    },
    /// Too few or too many frames.
    #[error("a page cache of {capacity_bytes} bytes has {frames} frames; {min} to {max} are possible")]
    Capacity {
        /// The capacity asked for.
        capacity_bytes: usize,
        /// The frames it makes.
        frames: usize,
        /// Fewest.
        min: usize,
        /// Most.
        max: usize,
    },
    /// The system has no memory for so many pages; make the cache smaller.
    #[error("the system has no memory for a page cache of {capacity_bytes} bytes; make it smaller")]
    Memory {
        /// The capacity asked for.
        capacity_bytes: usize,
    },
}
