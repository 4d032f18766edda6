//! Errors of tree operations.

use azekura_base::PageId;

use crate::change::ApplyError;
use crate::node::CorruptNode;

/// The reason that a log record cannot be decoded as a record of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The record body is empty.
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

/// The reason that an operation on a tree failed. The failing step changed nothing. A write of a large value
/// takes several steps: the earlier ones may have pushed undo entries, which the caller rolls back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// A page could not be read into the pool.
    #[error(transparent)]
    Fix(#[from] azekura_buffer::FixError),
    /// Pages could not be written or made durable.
    #[error(transparent)]
    Write(#[from] azekura_buffer::WriteError),
    /// A loaded key is not above the previous one; the load must be rolled back.
    #[error("key {key:02x?} is not above the key before it")]
    NotAscending {
        /// The key.
        key: Vec<u8>,
    },
    /// The tree that was to be loaded has records.
    #[error("the tree of root {root} is not empty")]
    NotEmpty {
        /// The tree's root page.
        root: PageId,
    },
    /// The caller stopped a check.
    #[error("the check was interrupted")]
    Interrupted,
    /// The log rejected the record.
    #[error(transparent)]
    Append(#[from] azekura_wal::AppendError),
    /// The key is longer than a page of this size allows; use a shorter one.
    #[error("a key of {len} bytes; at most {max} fit with pages of this size, more with larger pages")]
    KeyTooLong {
        /// The key's length, in bytes.
        len: usize,
        /// The longest valid key, in bytes.
        max: usize,
    },
    /// The value is longer than the longest overflow chain; use a shorter one.
    #[error("a value of {len} bytes is too long; the limit is {max}")]
    ValueTooLong {
        /// The value's length, in bytes.
        len: u64,
        /// The longest valid value, in bytes.
        max: u64,
    },
    /// All pages that the file may have are in use.
    #[error("no free page: all {pages} pages of the largest store are in use; remove rows")]
    SpaceFull {
        /// The bound on the file, in pages.
        pages: u64,
    },
    /// A page contradicts its position in the structure.
    #[error("page {page_id} is corrupt: {reason}")]
    Corrupt {
        /// The page.
        page_id: PageId,
        /// Description of the damage.
        reason: &'static str,
    },
    /// A page operation contradicts its page.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// A log record cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
}

impl TreeError {
    /// Returns a function for `map_err` that adds the page on which a contradiction was found.
    pub(crate) const fn on_page(page_id: PageId) -> impl Fn(CorruptNode) -> Self {
        move |CorruptNode(reason)| Self::Corrupt { page_id, reason }
    }

    pub(crate) const fn corrupt(page_id: PageId, reason: &'static str) -> Self {
        Self::Corrupt { page_id, reason }
    }
}
