//! Page operations: the smallest changes of a page, and the only way in which pages change.
//!
//! [`check`] returns whether an operation can be applied and changes nothing; [`apply`] applies it. A
//! mini-transaction checks its operations before it appends them to the log, and applies them afterward.
//! Redo does both with the operations that it reads. So *do* and *redo* are one function, and a page is the
//! result of its operations, byte for byte (except for the checksum). The effect of an operation depends only
//! on the page's bytes and on the operation.

mod codec;

use azekura_base::page::{HEADER_BYTES, PageMut, PageType};
use azekura_base::{PageId, PageWords};

pub use codec::Ops;
pub(crate) use codec::{put_cell, put_op, take_cell, take_u16};

use crate::node::{self, Cell, CorruptNode, Node, Scratch};
use crate::space;

/// One change of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageOp<'a> {
    /// Rewrites the whole page: bytes 4..8, the bytes from 24 on, and the last bytes. The bytes between are
    /// zeroed.
    Image {
        /// Bytes 4..8 of the page: the page type, and three bytes that depend on the type.
        kind: [u8; 4],
        /// Bytes from byte 24 on.
        front: &'a [u8],
        /// The page's last bytes.
        back: &'a [u8],
    },
    /// Adds an entry to a node.
    Insert {
        /// The slot of the new entry.
        slot: u16,
        /// The key without the node's prefix.
        suffix: &'a [u8],
        /// The value.
        cell: Cell<'a>,
    },
    /// Removes an entry.
    Remove {
        /// The slot of the entry.
        slot: u16,
    },
    /// Replaces an entry's value.
    Replace {
        /// The slot of the entry.
        slot: u16,
        /// The new value.
        cell: Cell<'a>,
    },
    /// Flips bits of an entry's value; the length stays. Applying the operation twice restores the value.
    Flip {
        /// The slot of the entry.
        slot: u16,
        /// Offset of the first changed byte of the value.
        at: u16,
        /// Old bytes XOR new bytes.
        diff: &'a [u8],
    },
    /// Keeps a node's first entries and sets another upper fence.
    Truncate {
        /// Number of entries that stay.
        keep: u16,
        /// The new upper fence; empty for none.
        upper: &'a [u8],
    },
    /// Makes the page a space map.
    SpaceMake {
        /// Number of pages after the map that are in use.
        used: u32,
    },
    /// Marks in a space map that the map of the next group exists.
    SpaceNext,
    /// Sets another lower fence of a leaf and keeps its entries.
    LowerFence {
        /// The new lower fence.
        lower: &'a [u8],
    },
    /// Marks pages of a group as used.
    SpaceSet {
        /// Bit of the first page: the page's distance from the map.
        first: u32,
        /// Number of pages.
        count: u32,
    },
    /// Marks pages of a group as free.
    SpaceClear {
        /// Bit of the first page: the page's distance from the map.
        first: u32,
        /// Number of pages.
        count: u32,
    },
    /// Makes the page a free page.
    Release,
}

/// The reason that an operation contradicts its page: one of the two is corrupt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op} does not fit page {page_id}: {reason}")]
pub struct ApplyError {
    /// The page.
    pub page_id: PageId,
    /// The operation's name.
    pub op: &'static str,
    /// The contradiction.
    pub reason: &'static str,
}

impl<'a> PageOp<'a> {
    /// Returns the operation that makes any page a copy of `page`, except for page id and LSN. Only the bytes
    /// outside of the page's unused area are stored. In a node this is the area between slots and heap; in
    /// other pages it is the zeroes at the end.
    #[must_use]
    pub fn image_of(page: PageWords<'_>, buffer: &'a mut Vec<u8>) -> Self {
        let node = Node::new(page);
        let (front_end, back_start) = if node.level().is_some() {
            let slots_end = node::SLOTS_AT + node::SLOT_BYTES * node.count();
            (slots_end, (slots_end + node.contiguous_free()).min(page.len()))
        } else {
            let words = (0..page.len() / 8).rev().find(|&i| page.word(i) != 0).map_or(0, |i| i + 1);
            ((8 * words).max(HEADER_BYTES), page.len())
        };
        buffer.clear();
        page.read_into(HEADER_BYTES, front_end - HEADER_BYTES, buffer);
        page.read_into(back_start, page.len() - back_start, buffer);
        let mut kind = [0; 4];
        page.read(4, &mut kind);
        let (front, back) = buffer.split_at(front_end - HEADER_BYTES);
        PageOp::Image { kind, front, back }
    }

    /// Returns `true` if the result does not depend on the page's earlier content.
    #[must_use]
    pub const fn is_whole_page(&self) -> bool {
        matches!(self, Self::Image { .. } | Self::SpaceMake { .. })
    }

    /// Returns `true` if the operation changes only a node's entries.
    pub(crate) const fn is_of_rows(&self) -> bool {
        match self {
            Self::Insert { .. } | Self::Remove { .. } | Self::Replace { .. } | Self::Flip { .. } => true,
            Self::Image { .. } | Self::Truncate { .. } | Self::LowerFence { .. } | Self::Release => false,
            Self::SpaceMake { .. } | Self::SpaceNext => false,
            Self::SpaceSet { .. } | Self::SpaceClear { .. } => false,
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Image { .. } => "image",
            Self::Insert { .. } => "insert",
            Self::Remove { .. } => "remove",
            Self::Replace { .. } => "replace",
            Self::Flip { .. } => "flip",
            Self::Truncate { .. } => "truncate",
            Self::SpaceMake { .. } => "space make",
            Self::SpaceNext => "space next",
            Self::LowerFence { .. } => "lower fence",
            Self::SpaceSet { .. } => "space set",
            Self::SpaceClear { .. } => "space clear",
            Self::Release => "release",
        }
    }
}

/// Checks that `op` can be applied to `page`, which is page `page_id`.
///
/// # Errors
///
/// [`ApplyError`] when the operation and the page contradict each other.
pub fn check(op: &PageOp<'_>, page: PageWords<'_>, page_id: PageId) -> Result<(), ApplyError> {
    let node = Node::new(page);
    let done = match *op {
        PageOp::Image { kind, front, back } => check_image(page, kind, front, back),
        PageOp::Insert { slot, suffix, cell } => {
            node::check_insert(node, slot.into(), suffix, cell).map_err(|e| e.0)
        }
        PageOp::Remove { slot } => node::check_remove(node, slot.into()).map_err(|e| e.0),
        PageOp::Replace { slot, cell } => node::check_replace(node, slot.into(), cell).map_err(|e| e.0),
        PageOp::Flip { slot, at, diff } => check_flip(node, slot, at, diff),
        PageOp::Truncate { keep, upper } => node::check_truncated(node, keep.into(), upper).map_err(|e| e.0),
        PageOp::SpaceMake { used } => space::check_make(page, used),
        PageOp::SpaceNext => space::check_next(page),
        PageOp::LowerFence { lower } => node::build_with_lower(node, lower).map(drop).map_err(|e| e.0),
        PageOp::SpaceSet { first, count } => space::check_set(page, first, count),
        PageOp::SpaceClear { first, count } => space::check_clear(page, first, count),
        PageOp::Release => Ok(()),
    };
    done.map_err(|reason| ApplyError { page_id, op: op.name(), reason })
}

fn check_image(page: PageWords<'_>, kind: [u8; 4], front: &[u8], back: &[u8]) -> Result<(), &'static str> {
    if HEADER_BYTES + front.len() + back.len() > page.len() {
        return Err("longer than a page");
    }
    PageType::from_u8(kind[0]).map(|_| ()).ok_or("no such page type")
}

fn check_flip(node: Node<'_>, slot: u16, at: u16, diff: &[u8]) -> Result<(), &'static str> {
    node::check_remove(node, slot.into()).map_err(|e| e.0)?;
    let value_len = usize::from(node.slot(slot.into()).value_len);
    if usize::from(at) + diff.len() > value_len { Err("beyond the value") } else { Ok(()) }
}

/// Applies `op` to `page`, which is page `page_id`. The caller sets the page LSN.
///
/// # Errors
///
/// [`ApplyError`], with the page unchanged, when the operation and the page contradict each other.
pub fn apply(op: &PageOp<'_>, page: &mut PageMut<'_>, page_id: PageId) -> Result<(), ApplyError> {
    check(op, page.words(), page_id)?;
    apply_checked(op, page, page_id);
    Ok(())
}

/// Applies an operation that [`check`] accepted on this page.
pub(crate) fn apply_checked(op: &PageOp<'_>, page: &mut PageMut<'_>, page_id: PageId) {
    match *op {
        PageOp::Image { kind, front, back } => {
            let lsn = page.lsn();
            page.format(PageType::Free, page_id);
            page.set_lsn(lsn);
            page.write(4, &kind);
            page.write(HEADER_BYTES, front);
            page.write(page.len() - back.len(), back);
        }
        PageOp::Insert { slot, suffix, cell } => node::insert(page, slot.into(), suffix, cell),
        PageOp::Remove { slot } => node::remove(page, slot.into()),
        PageOp::Replace { slot, cell } => node::replace(page, slot.into(), cell),
        PageOp::Flip { slot, at, diff } => node::flip(page, slot.into(), at.into(), diff),
        PageOp::Truncate { keep, upper } => {
            become_copy(page, node::build_truncated(Node::new(page.words()), keep.into(), upper));
        }
        PageOp::LowerFence { lower } => {
            become_copy(page, node::build_with_lower(Node::new(page.words()), lower));
        }
        PageOp::SpaceMake { used } => space::make(page, page_id, used),
        PageOp::SpaceNext => space::set_next(page),
        PageOp::SpaceSet { first, count } => space::set(page, first, count),
        PageOp::SpaceClear { first, count } => space::clear(page, first, count),
        PageOp::Release => page.set_page_type(PageType::Free),
    }
}

fn become_copy(page: &mut PageMut<'_>, rebuilt: Result<Scratch, CorruptNode>) {
    page.copy_content(rebuilt.expect("checked on this very page").page());
}
