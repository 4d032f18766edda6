//! Errors of tree operations.

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

/// The reason that an operation on a tree failed. The failing step changed nothing. A statement of several
/// steps (a large value) may have pushed undo entries; the caller rolls them back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// A page could not be brought into the pool.
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
    /// The tree to be loaded has records.
    #[error("the tree of root {root} is not empty")]
    NotEmpty {
        /// The tree's root page.
        root: PageId,
    },
    /// The log did not take the record.
    #[error(transparent)]
    Append(#[from] azekura_wal::AppendError),
    /// The key is longer than a page of this size allows; use a shorter one.
    #[error("key of {len} bytes is longer than {max}")]
    KeyTooLong {
        /// Its length.
        len: usize,
        /// The longest.
        max: usize,
    },
    /// The value is longer than the longest chain; use a shorter one.
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
    /// A page contradicts its place in the structure.
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
    /// For `map_err`: adds the page on which a contradiction was found.
    pub(crate) const fn on_page(page_id: PageId) -> impl Fn(CorruptNode) -> Self {
        move |CorruptNode(reason)| Self::Corrupt { page_id, reason }
    }

    pub(crate) const fn corrupt(page_id: PageId, reason: &'static str) -> Self {
        Self::Corrupt { page_id, reason }
    }
}
