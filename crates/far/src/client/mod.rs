//! Replicas of pages that are paged out: memory servers and a spill file, behind one trait.
//!
//! | module | content |
//! |---|---|
//! | `connection` | one memory server: a writer and a reader thread, many requests in flight |
//! | `spill` | a local file as one more replica |
//!
//! Orders are submitted and returned in *runs*: orders of one kind for adjacent pages; their frames may be
//! anywhere.
//!
//! - **KEEPER-1** From `submit` until the order is returned (`finished` or `lost`), the replica owns the
//!   frame: no other thread writes it, and for a `Get` none reads it.
//! - **KEEPER-2** Every order is returned exactly once. `lost` is called at most once, and after it no order
//!   of this replica is accessed.
//! - **KEEPER-3** After a successful `Get` the frame has bytes with the order's digest.

mod connection;
mod spill;

use crate::digest::Digest;
pub use connection::ConnectError;
pub(crate) use connection::{Connection, ConnectionOptions};
pub(crate) use spill::Spill;
use std::sync::{Arc, Weak};

/// A request to a replica about a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Bring it.
    Get,
    /// Keep it.
    Put,
}

/// One page in flight.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) verb: Verb,
    pub(crate) page: u32,
    /// The frame.
    pub(crate) at: *mut u8,
    pub(crate) bytes: usize,
    /// Of the page.
    pub(crate) digest: Digest,
}

// SAFETY: the address is used by one thread at a time: the order's owner (KEEPER-1).
unsafe impl Send for Order {}

impl Order {
    pub(crate) fn source(&self) -> &[u8] {
        // SAFETY: KEEPER-1: the frame belongs to this order, and no thread writes it.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes) }
    }

    pub(crate) fn target(&mut self) -> &mut [u8] {
        // SAFETY: KEEPER-1: the frame is this order's, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

/// Receives the results of replicas. Their threads call it without holding a lock.
pub(crate) trait Sink: Send + Sync {
    /// A run came back, or a part of one; with a text if its pages were refused and the replica is otherwise
    /// well.
    fn finished(&self, replica: usize, run: Vec<Order>, refused: Option<String>);
    /// The replica is reached by a new connection; nothing was lost.
    fn resumed(&self, _replica: usize) {}
    /// The replica is lost and gets no more orders; these orders were not done.
    fn lost(&self, replica: usize, why: String, orders: Vec<Order>);
}

/// Keeps pages.
pub(crate) trait Replica: Send + Sync {
    /// Takes a run; does not block. Gives it back if the replica is lost or closed.
    fn submit(&self, run: Vec<Order>) -> Result<(), Vec<Order>>;
    /// The page need not be kept any longer.
    fn forget(&self, page: u32);
    /// Waits until the replica has reserved memory for so many bytes in all. The error is its reason for
    /// refusing.
    fn reserve(&self, _bytes: u64) -> Result<(), String> {
        Ok(())
    }
    /// Returns `true` if it is lost or closed: it takes no orders. It becomes so before `lost` is called.
    fn is_closed(&self) -> bool;
    /// For messages.
    fn name(&self) -> &str;
    /// Returns a replica for a child process made by `fork`, with the same pages. Called in the child, while
    /// the parent waits. Later writes of either are not visible to the other.
    fn for_child(&self, _sink: Weak<dyn Sink>) -> Result<Arc<dyn Replica>, String> {
        Err("it has no children".into())
    }
    /// In a child: closes inherited descriptors.
    fn abandon(&self) {}
    /// Ends it and waits for its threads; no order is open.
    fn close(&self);
}

/// A replica that is lost from the start: stands in a child process for one that its parent had lost.
pub(crate) struct Gone(pub(crate) String);

impl Replica for Gone {
    fn submit(&self, run: Vec<Order>) -> Result<(), Vec<Order>> {
        Err(run)
    }

    fn forget(&self, _page: u32) {}

    fn is_closed(&self) -> bool {
        true
    }

    fn name(&self) -> &str {
        &self.0
    }

    fn close(&self) {}
}
