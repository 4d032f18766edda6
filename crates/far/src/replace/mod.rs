//! Replacement policies of user-level remote memory paging: the choice of the page that is paged out.
//!
//! The far-memory paper (Saito, Midorikawa, Kai, §2) compares eight of them. Each is one file here, and each
//! file cites its section of the paper and names its cost and its weakness. Nothing in this module touches
//! memory, time or a network: a region with real paging and the [`replay`] of recorded traces drive the same
//! code.
//!
//! | module | policy | looks at |
//! |---|---|---|
//! | [`simple`] | Simple: the next resident page by address | nothing |
//! | [`swap_in_history`] | Simple, sparing the page that followed last time | the order of swaps |
//! | [`random`] | Random: any resident page | nothing |
//! | [`fifo`] | FIFO: the page that came in first | the order of swaps |
//! | [`clock`] | U-Clock: FIFO with a second chance | reference bits |
//! | [`nru`] | U-NRU: a random page of the lowest of four classes | reference and modified bits |
//! | [`plru`] | U-pLRU: an active and an inactive list | reference bits |
//! | [`adaptive`] | ours: the page with the farthest predicted next use | reference bits, times of uses |
//!
//! [`policy`] has them by name, [`replay`] runs recorded traces through them.
//!
//! # Contract of a region
//!
//! 1. A page that is away is touched: if no frame is free, `victim`, and `page_out` once that page has left;
//!    then `page_in`.
//! 2. The touch that brings a page in counts as its first: its reference bit is set in `page_in`, its
//!    modified bit too if it was a write.
//! 3. A policy may clear a resident page's reference bit. The next touch sets it again, and is reported by
//!    `referenced`. (It is also reported for a page that came in as one of several with a common bit, which
//!    was clear.)
//! 4. A resident page may leave without having been a victim (its memory was given back): `page_out` alone.
//! 5. A victim that cannot leave now (it is in flight, or pinned): `victim` is called again, and another
//!    page is offered as soon as there is one.
//!
//! # Contract of a policy
//!
//! - **REPLACE-1** `victim` returns a resident page: `page_in` was called for it, and `page_out` not since.
//! - **REPLACE-2** Nothing is allocated after the policy was made: it may run inside a program's fault on its
//!   own heap.
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

/// A page of a region, counted from the region's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNo(pub u32);

impl PageNo {
    /// As an index into one entry per page.
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
    /// Loaded from.
    Read,
    /// Stored to.
    Write,
}

/// The pseudo access bits of a region's resident pages (paper §2.2): the substitute of a user-level pager for
/// the processor's.
pub trait AccessBits {
    /// Returns `true` if the page was touched since it came in, or since the bit was cleared. Costs nothing:
    /// the region has the bit in memory.
    fn is_referenced(&self, page: PageNo) -> bool;

    /// Returns `true` if the page was written since it came in, or since its last write-back. Costs nothing.
    fn is_modified(&self, page: PageNo) -> bool;

    /// Makes the next touch of the page known. Costs a change of its protection now, and a fault at that
    /// touch.
    fn clear_referenced(&mut self, page: PageNo);

    /// Returns the cost of paging so far. The call itself costs almost nothing.
    fn spent(&self) -> Spent;
}

/// A replacement policy; the head of [the module](self) has the contract of both sides.
pub trait Replacement: Send {
    /// The page became resident, by a touch of this kind; its bits are set accordingly.
    fn page_in(&mut self, page: PageNo, access: Access, bits: &mut dyn AccessBits);

    /// A resident page was touched for the first time since its reference bit was cleared; the bit is set
    /// again.
    fn referenced(&mut self, page: PageNo, access: Access, bits: &mut dyn AccessBits);

    /// Returns the resident page that leaves now. `incoming` is the page for its frame, if there is one
    /// already (write-back ahead of need has none yet).
    ///
    /// # Panics
    ///
    /// If no page is resident.
    fn victim(&mut self, incoming: Option<PageNo>, bits: &mut dyn AccessBits) -> PageNo;

    /// The page is no longer resident.
    fn page_out(&mut self, page: PageNo);

    /// Returns `true` if it looks at modified bits now, so that a page's first write must be seen; that
    /// costs a fault.
    fn wants_modified(&self) -> bool {
        false
    }

    /// Returns the interval at which [`on_timer`](Self::on_timer) is to be called; `None`: never.
    fn timer(&self) -> Option<Duration> {
        None
    }

    /// That much time has passed.
    fn on_timer(&mut self, bits: &mut dyn AccessBits) {
        let _ = bits;
    }
}

/// Size of the region for which a policy is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Pages of the region.
    pub pages: u32,
    /// Pages that may be resident at once.
    pub frames: u32,
}
