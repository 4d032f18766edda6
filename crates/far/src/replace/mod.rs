//! Replacement policies of user-level remote memory paging: the choice of the page that is paged out.
//!
//! The far-memory paper (Saito, Midorikawa, Kai, §2) compares eight policies. Each has one file here, which
//! cites its section of the paper and states its cost and its weakness. Nothing in this module accesses
//! memory, time or a network. A region with real paging and the [`replay`] of recorded traces use the same
//! code.
//!
//! | module | policy | uses |
//! |---|---|---|
//! | [`simple`] | Simple: the next resident page by address | nothing |
//! | [`swap_in_history`] | Simple, but not the page that followed last time | the order of swaps |
//! | [`random`] | Random: any resident page | nothing |
//! | [`fifo`] | FIFO: the page that was paged in first | the order of swaps |
//! | [`clock`] | U-Clock: FIFO with a second chance | reference bits |
//! | [`nru`] | U-NRU: a random page of the lowest of four classes | reference and modified bits |
//! | [`plru`] | U-pLRU: an active and an inactive list | reference bits |
//! | [`adaptive`] | our own: the page with the farthest predicted next use | reference bits, times of uses |
//!
//! [`policy`] selects a policy by name. [`replay`] runs recorded traces with a policy.
//!
//! # Contract of a region
//!
//! 1. When a paged-out page is touched and no frame is free, the region calls `victim`, pages that page out,
//!    and calls `page_out`. Then it calls `page_in`.
//! 2. The touch that pages a page in counts as its first touch: in `page_in` its reference bit is set, and
//!    its modified bit too if the touch was a write.
//! 3. A policy may clear a resident page's reference bit. The next touch sets the bit again, and is reported
//!    by `referenced`. (If several pages were paged in with a common bit, setting the common bit is reported,
//!    too.)
//! 4. A resident page may leave without having been a victim, because the program discards it: only
//!    `page_out` is called.
//! 5. If a victim cannot leave now (it is in flight, or pinned), `victim` is called again, and returns
//!    another page as soon as there is one.
//!
//! # Contract of a policy
//!
//! - **REPLACE-1** `victim` returns a resident page: a page for which `page_in` was called, and `page_out`
//!   was not called since.
//! - **REPLACE-2** A policy allocates nothing after it was created, because it may run inside a fault of a
//!   program on the program's own heap.
//! - **REPLACE-3** The same calls give the same victims (random policies are seeded).

pub mod adaptive;
pub mod clock;
pub mod fifo;
pub(crate) mod list;
pub mod nru;
pub mod plru;
pub mod policy;
pub mod random;
#[cfg(test)]
mod reference;
pub mod replay;
mod rng;
mod set;
pub mod simple;
pub mod spent;
pub mod swap_in_history;

use std::fmt;
use std::time::Duration;

pub use adaptive::Adaptive;
pub use clock::UClock;
pub use fifo::Fifo;
pub use nru::{Clearing, UNru};
pub use plru::UPlru;
pub use policy::{ParsePolicyError, Policy};
pub use random::Random;
pub use simple::Simple;
pub use spent::Spent;
pub use swap_in_history::SwapInHistory;

/// Number of a page, counted from the beginning of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNo(pub u32);

impl PageNo {
    /// Returns the number as an index into a table with one entry per page.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PageNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Kind of a touch of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
}

/// The pseudo access bits of a region's resident pages (paper §2.2): a user-level pager uses them in place of
/// the processor's access bits.
pub trait AccessBits {
    /// Returns `true` if the page was touched after it was paged in or the bit was cleared. Reads memory of
    /// the region, so it costs nothing.
    fn is_referenced(&self, page: PageNo) -> bool;

    /// Returns `true` if the page was written after it was paged in or written back. Costs nothing.
    fn is_modified(&self, page: PageNo) -> bool;

    /// Clears the page's bit, so that the next touch is reported. Costs a change of protection now, and a
    /// fault at that touch.
    fn clear_referenced(&mut self, page: PageNo);

    /// Returns the cost of paging so far. The call itself costs almost nothing.
    fn spent(&self) -> Spent;
}

/// A replacement policy. The [module](self) describes the contract of both sides.
pub trait Replacement: Send {
    /// Reports that the page became resident by a touch of this kind. The page's bits are set accordingly.
    fn page_in(&mut self, page: PageNo, access: Access, bits: &mut dyn AccessBits);

    /// Reports that a resident page was touched for the first time since its reference bit was cleared. The
    /// bit is set again.
    fn referenced(&mut self, page: PageNo, access: Access, bits: &mut dyn AccessBits);

    /// Returns the resident page that leaves now. `incoming` is the page for its frame; `None` if a page is
    /// paged out ahead of need.
    ///
    /// # Panics
    ///
    /// If no page is resident.
    fn victim(&mut self, incoming: Option<PageNo>, bits: &mut dyn AccessBits) -> PageNo;

    /// Reports that the page is no longer resident.
    fn page_out(&mut self, page: PageNo);

    /// Returns `true` if the policy uses modified bits now. Then a page's first write must be detected, which
    /// costs a fault.
    fn wants_modified(&self) -> bool {
        false
    }

    /// Returns the interval at which [`on_timer`](Self::on_timer) is called; `None` for never.
    fn timer(&self) -> Option<Duration> {
        None
    }

    /// Called once per interval of [`timer`](Self::timer).
    fn on_timer(&mut self, bits: &mut dyn AccessBits) {
        let _ = bits;
    }
}

/// Size of the region for which a policy is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of pages of the region.
    pub pages: u32,
    /// Largest number of resident pages.
    pub frames: u32,
}
