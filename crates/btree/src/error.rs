//! What can go wrong in a tree.

use azekura_base::PageId;

use crate::change::ApplyError;
use crate::node::CorruptNode;

/// Bytes of a log record that are not a record of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The body has no bytes at all.
    #[error("empty log record")]
    Empty,
    /// No record of this crate starts with this byte.
    #[error("unknown kind of log record: {kind}")]
    UnknownKind {
        /// The first byte.
        kind: u8,
    },
    /// The fields in front of the page operations are cut off or out of range.
    #[error("malformed head of a log record of kind {kind}")]
    BadHead {
        /// The first byte.
        kind: u8,
    },
    /// The undo part is cut off or out of range.
    #[error("malformed undo entry with tag {tag}")]
    BadUndo {
        /// The entry's first byte.
        tag: u8,
    },
    /// A page operation is cut off or out of range.
    #[error("malformed page operation with tag {tag}")]
    BadOperation {
        /// The operation's first byte.
        tag: u8,
    },
}

/// Why an operation on a tree failed. Nothing was changed by the failing step; a statement of several steps
/// (a large value) may have pushed undo entries, which the caller rolls back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// A page could not be brought into the pool.
    #[error(transparent)]
    Fix(#[from] azekura_buffer::FixError),
    /// Pages could not be written or made durable.
    #[error(transparent)]
    Write(#[from] azekura_buffer::WriteError),
    /// A key that is to be loaded is not above the one before it; what was loaded is to be rolled back.
    #[error("key {key:02x?} is not above the key before it")]
    NotAscending {
        /// The key.
        key: Vec<u8>,
    },
    /// The tree that is to be loaded has records.
    #[error("the tree of root {root} is not empty")]
    NotEmpty {
        /// The tree's root page.
        root: PageId,
    },
    /// The log did not take the record.
    #[error(transparent)]
    Append(#[from] azekura_wal::AppendError),
    /// The key is longer than a page of this size takes; use a shorter one.
    #[error("key of {len} bytes is longer than {max}")]
    KeyTooLong {
        /// Its length.
        len: usize,
        /// The longest.
        max: usize,
    },
    /// The value is longer than any chain; use a shorter one.
    #[error("value of {len} bytes is longer than {max}")]
    ValueTooLong {
        /// Its length.
        len: u64,
        /// The longest.
        max: u64,
    },
    /// Every page that the file may have is in use.
    #[error("no free page: all {pages} pages in use")]
    SpaceFull {
        /// The bound on the file, in pages.
        pages: u64,
    },
    /// A page contradicts what its place in the structure demands.
    #[error("page {page_id} is corrupt: {reason}")]
    Corrupt {
        /// The page.
        page_id: PageId,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A page operation contradicts the page that it is for.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// A log record cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl TreeError {
    /// For `map_err`: names the page that a contradiction was found on.
    pub(crate) const fn on_page(page_id: PageId) -> impl Fn(CorruptNode) -> Self {
        move |CorruptNode(reason)| Self::Corrupt { page_id, reason }
    }

    pub(crate) const fn corrupt(page_id: PageId, reason: &'static str) -> Self {
        Self::Corrupt { page_id, reason }
    }
}
