//! Numbers of PEs and pages, and the pointers of index pages.
//!
//! A [`LogicalPageId`] is the paper's id (section 3.1, figure 3) with wider fields (hazard B1). One bit
//! distinguishes a page from an entry of a *pointer page*, which lists the copies of a page.
//!
//! | | flag | then | then | the paper's widths |
//! |---|---|---|---|---|
//! | direct | 0 | PE, 15 bits | page, 48 bits | 1 + 11 + 20 |
//! | pointer | 1 | page, 48 bits | offset, 15 bits | 1 + 20 + 11 |

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of a PE (processing element): one node with its own store. The number is logical, so a pointer
/// stays valid when another machine takes over the PE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PeId(pub u16);

impl PeId {
    /// The largest number that fits into a logical page id.
    pub const MAX: Self = Self((1 << PE_BITS) - 1);
}

impl fmt::Display for PeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PE {}", self.0)
    }
}

/// Number of a page at one PE. Numbers of leaves are never reused, so an old pointer never leads to a
/// different leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PageNo(pub u64);

const PE_BITS: u32 = 15;
const PAGE_BITS: u32 = 48;
const OFFSET_BITS: u32 = 15;
const PAGE_MASK: u64 = (1 << PAGE_BITS) - 1;
const POINTER: u64 = 1 << 63;
/// Bit that is set in the numbers of index pages and clear in the numbers of leaves.
const INDEX: u64 = 1 << (PAGE_BITS - 1);

impl PageNo {
    /// The root of a PE's index. The root never changes its number.
    pub const ROOT: Self = Self(INDEX);

    /// Returns the index page with this number, or `None` if the number does not fit.
    #[must_use]
    pub const fn index(number: u64) -> Option<Self> {
        if number < INDEX { Some(Self(number | INDEX)) } else { None }
    }

    /// Returns the leaf with this number, or `None` if the number does not fit.
    #[must_use]
    pub const fn leaf(number: u64) -> Option<Self> {
        if number < INDEX { Some(Self(number)) } else { None }
    }

    /// Returns `true` for an index page and `false` for a leaf.
    #[must_use]
    pub const fn is_index(self) -> bool {
        self.0 & INDEX != 0
    }
}

impl fmt::Display for PageNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_index() { "index page" } else { "leaf" };
        write!(f, "{kind} {}", self.0 & !INDEX)
    }
}

/// A pointer inside an index page: 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogicalPageId(u64);

/// The decoded form of a [`LogicalPageId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pointer {
    /// A page at a PE.
    Page(PeId, PageNo),
    /// An entry of one of this PE's pointer pages, because the page has copies.
    Copies {
        /// Number of the pointer page.
        page: u64,
        /// Index of the entry in that page.
        offset: u16,
    },
}

impl LogicalPageId {
    /// Returns the pointer to a page.
    ///
    /// # Panics
    ///
    /// If a number does not fit. Both numbers come from counters that stop before the limit ([`PeId::MAX`],
    /// [`PageNo::leaf`]).
    #[must_use]
    pub const fn page(pe: PeId, page: PageNo) -> Self {
        assert!(pe.0 <= PeId::MAX.0 && page.0 <= PAGE_MASK, "a PE or page number beyond its field");
        Self((pe.0 as u64) << PAGE_BITS | page.0)
    }

    /// Returns the pointer to an entry of a pointer page.
    ///
    /// # Panics
    ///
    /// If a number does not fit.
    #[must_use]
    pub const fn copies(page: u64, offset: u16) -> Self {
        assert!(page <= PAGE_MASK && offset < 1 << OFFSET_BITS, "a pointer page or offset beyond its field");
        Self(POINTER | page << OFFSET_BITS | offset as u64)
    }

    /// Returns the decoded form.
    #[must_use]
    pub const fn pointer(self) -> Pointer {
        if self.0 & POINTER == 0 {
            Pointer::Page(PeId((self.0 >> PAGE_BITS) as u16), PageNo(self.0 & PAGE_MASK))
        } else {
            Pointer::Copies {
                page: self.0 >> OFFSET_BITS & PAGE_MASK,
                offset: (self.0 & ((1 << OFFSET_BITS) - 1)) as u16,
            }
        }
    }
}

impl fmt::Debug for LogicalPageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pointer() {
            Pointer::Page(pe, page) => write!(f, "{pe} {page}"),
            Pointer::Copies { page, offset } => write!(f, "pointer page {page}, entry {offset}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b1_a_pointer_holds_the_largest_numbers_and_gives_them_back() {
        let page = PageNo::index(INDEX - 1).expect("fits");
        assert_eq!(LogicalPageId::page(PeId::MAX, page).pointer(), Pointer::Page(PeId::MAX, page));
        let (page, offset) = (PAGE_MASK, (1 << OFFSET_BITS) - 1);
        assert_eq!(LogicalPageId::copies(page, offset).pointer(), Pointer::Copies { page, offset });
        assert_eq!(PageNo::leaf(INDEX), None);
        assert_eq!(PageNo::index(INDEX), None);
    }

    #[test]
    fn a_leaf_is_never_taken_for_an_index_page() {
        assert!(PageNo::ROOT.is_index());
        assert!(!PageNo::leaf(0).expect("fits").is_index());
    }
}
