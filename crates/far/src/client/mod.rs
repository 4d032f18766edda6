//! Replicas of pages that are paged out: memory servers and a spill file, behind one trait.
//!
//! | module | content |
//! |---|---|
//! | `connection` | one memory server: a writer and a watcher thread, many requests in flight |
//! | `spill` | a local file as an additional replica |
//!
//! Orders are submitted and returned in *runs*. A run consists of orders of one kind for adjacent pages;
//! their frames may be anywhere.
//!
//! - **KEEPER-1** From `submit` until the order is returned (`finished` or `lost`), the replica owns the
//!   frame. No other thread writes the frame, and during a `Get` no other thread reads it.
//! - **KEEPER-2** Every order is returned exactly once. `lost` is called at most once. After that call no
//!   order of the replica is accessed.
//! - **KEEPER-3** After a successful `Get` the bytes of the frame have the order's digest.

mod connection;
mod spill;

use crate::digest::Digest;
pub use connection::ConnectError;
pub(crate) use connection::{Connection, ConnectionOptions};
pub(crate) use spill::Spill;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

/// Kind of a request to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Reads a page from the replica.
    Get,
    /// Stores a page in the replica.
    Put,
}

/// A request for one page, in flight.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) verb: Verb,
    pub(crate) page: u32,
    /// Address of the frame.
    pub(crate) at: *mut u8,
    pub(crate) bytes: usize,
    /// Digest of the page's bytes.
    pub(crate) digest: Digest,
}

// SAFETY: the address is used by one thread at a time, the owner of the order (KEEPER-1).
unsafe impl Send for Order {}

impl Order {
    pub(crate) fn source(&self) -> &[u8] {
        // SAFETY: KEEPER-1: the frame belongs to this order, and no thread writes it.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes) }
    }

    pub(crate) fn target(&mut self) -> &mut [u8] {
        // SAFETY: KEEPER-1: the frame belongs to this order, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

/// Receiver of the results of replicas. It is called by a thread that holds no lock except the one with which
/// a replica receives, and `receive` is not called under the locks of the receiver.
pub(crate) trait Sink: Send + Sync {
    /// Returns a run, or a part of one. `refused` is the reason if the replica refused the pages but is still
    /// usable.
    fn finished(&self, replica: usize, run: Vec<Order>, refused: Option<String>);
    /// Reports that the replica was reached over a new connection, without loss of pages.
    fn resumed(&self, _replica: usize) {}
    /// Reports that the replica is lost and accepts no more orders. Returns the orders that were not
    /// executed.
    fn lost(&self, replica: usize, why: String, orders: Vec<Order>);
}

/// A store of pages that are paged out.
pub(crate) trait Replica: Send + Sync {
    /// Submits a run without blocking. Returns the run as the error if the replica is lost or closed.
    fn submit(&self, run: Vec<Order>) -> Result<(), Vec<Order>>;
    /// Tells the replica that the page is not needed any more.
    fn forget(&self, page: u32);
    /// Waits until the replica has reserved memory for `bytes` bytes in total. The error is the replica's
    /// reason for refusing.
    fn reserve(&self, _bytes: u64) -> Result<(), String> {
        Ok(())
    }
    /// Returns the descriptor of the stream on which replies arrive now. From the first call on, the caller
    /// waits for the descriptor, and calls `receive` when it is ready. `None` if the replica has no stream
    /// now, or returns its orders without the caller. When a new stream is usable, `resumed` is called.
    fn stream(&self) -> Option<RawFd> {
        None
    }
    /// Receives replies without blocking, and returns their orders. Called without holding a lock.
    fn receive(&self) {}
    /// Returns `true` if the replica is lost or closed and accepts no more orders. The state changes before
    /// `lost` is called.
    fn is_closed(&self) -> bool;
    /// Returns the name of the replica for messages.
    fn name(&self) -> &str;
    /// Returns a replica for a child process made by `fork`, with the same pages. Called in the child while
    /// the parent waits. Later writes in one process are not visible in the other.
    fn for_child(&self, _sink: Weak<dyn Sink>) -> Result<Arc<dyn Replica>, String> {
        Err("it has no children".into())
    }
    /// In a child: closes inherited descriptors.
    fn abandon(&self) {}
    /// Closes the replica and waits for its threads. No order is open.
    fn close(&self);
}

/// A replica that is lost from the start. In a child process it takes the place of a replica that the parent
/// had lost.
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
