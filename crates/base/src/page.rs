//! Bytes of a page as relaxed atomic words, and the header of every page.
//!
//! Optimistic readers read a page while its latch holder changes it, and discard the result if the latch's
//! version has changed. Plain reads would be data races; relaxed atomic loads are not, and compile to plain
//! moves on all relevant machines. So *all* access to a page in the pool goes through this module. Readers
//! use [`PageWords`] and the exclusive holder uses [`PageMut`], both without `unsafe`.
//!
//! Header of every page, little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | CRC-32C over bytes 4.. of the page, set when the page is written to disk |
//! | 4 | page type ([`PageType`]) |
//! | 5..8 | used by the page type |
//! | 8..16 | page id |
//! | 16..24 | page LSN: the last log record applied to this page |
//! | 24.. | used by the page type |
//!
//! A torn optimistic read can return any bytes. So every offset is bounds-checked here, and an invalid offset
//! reads as zero bytes. A torn read then costs a retry and never a panic.

mod buf;
mod bulk;
mod change;
pub mod image;
pub mod spare;
#[cfg(test)]
mod tests;
mod words;

// std's atomics even under loom: a page has thousands of words. The protocol around them (version, read,
// validate) is modeled in `azekura-latch` with two words.
use std::sync::atomic::AtomicU64;

pub use self::buf::PageBuf;
pub use self::bulk::{store_words, zero_words};
pub use self::change::PageMut;
pub use self::words::PageWords;

/// Size of the common page header in bytes. The other bytes are used by the page type.
pub const HEADER_BYTES: usize = 24;
/// Smallest page size in bytes.
pub const MIN_PAGE_SIZE: usize = 4096;
/// Largest page size in bytes: offsets inside a page fit into 16 bits.
pub const MAX_PAGE_SIZE: usize = 65536;

const TYPE_AT: usize = 4;
/// Size in bytes above which the copying code reports a copy to a simulated machine as work.
const REPORTED_BYTES: usize = 1024;

/// Type of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PageType {
    /// A page that was never written, or was freed.
    Free = 0,
    /// A space map, with one bit for each page of its group.
    SpaceMap = 1,
    /// An inner node of a B+tree.
    Inner = 2,
    /// A leaf of a B+tree.
    Leaf = 3,
    /// A part of a value that is too large for a leaf.
    Overflow = 4,
}

impl PageType {
    /// Returns the page type with this number on disk.
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

/// A word of a page: std's atomic, in models too (see above).
pub type PageWord = AtomicU64;
