//! Bytes of a page as relaxed atomic words, and the header that every page carries.
//!
//! Optimistic readers read a page while its latch holder changes it, and drop the result when the latch's
//! version has changed. A plain read there would be a data race; a relaxed atomic load is not, and is a plain
//! move on all relevant machines. So *all* access to a page in the pool goes through this module: readers by
//! [`PageWords`], the exclusive holder by [`PageMut`], both without `unsafe`.
//!
//! Header of every page, little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | CRC-32C over bytes 4.. of the page, set when the page is written to disk |
//! | 4 | page type ([`PageType`]) |
//! | 5..8 | owned by the page type |
//! | 8..16 | page id |
//! | 16..24 | page LSN: the last log record applied to this page |
//! | 24.. | owned by the page type |
//!
//! A torn optimistic read can return any bytes: every offset is bounds-checked here (an invalid one reads as
//! zero bytes), so that torn reads cost a retry and never a panic.

mod buf;
mod change;
pub mod image;
pub mod spare;
#[cfg(test)]
mod tests;
mod words;

// std's atomics even under loom: a page is thousands of words, and the protocol around them (version, read,
// validate) is modeled in `azekura-latch` with two words.
use std::sync::atomic::AtomicU64;

pub use self::buf::PageBuf;
pub use self::change::PageMut;
pub use self::words::PageWords;

/// Bytes of the common page header; the rest belongs to the page type.
pub const HEADER_BYTES: usize = 24;
/// Smallest page.
pub const MIN_PAGE_SIZE: usize = 4096;
/// Largest page: offsets inside a page fit 16 bits.
pub const MAX_PAGE_SIZE: usize = 65536;

const TYPE_AT: usize = 4;
/// Longer copies are reported to a simulated machine by the copying code, as work.
const TOLD_BYTES: usize = 1024;

/// Type of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PageType {
    /// Never written, or freed.
    Free = 0,
    /// One bit for each page of its group.
    SpaceMap = 1,
    /// Inner B+tree node.
    Inner = 2,
    /// B+tree leaf.
    Leaf = 3,
    /// Part of a value too large for a leaf.
    Overflow = 4,
}

impl PageType {
    /// The type with this number on disk.
    #[must_use]
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Free,
            1 => Self::SpaceMap,
            2 => Self::Inner,
            3 => Self::Leaf,
            4 => Self::Overflow,
            _ => return None,
        })
    }
}

/// Returns `true` if `size` can be a page size: a power of two from 4 KiB to 64 KiB.
#[must_use]
pub const fn is_page_size(size: usize) -> bool {
    size.is_power_of_two() && size >= MIN_PAGE_SIZE && size <= MAX_PAGE_SIZE
}

/// A word of a page. std's own, in models too; see above.
pub type PageWord = AtomicU64;
