//! Wrappers of the fault table and the resume table for the models in `tests/loom_*.rs`.

use crate::fault::requests::Requests;
use crate::replace::Access;
use crate::server::resume::{OwnResumePoint, ResumeTable, Visitor};
use azekura_base::sync::Arc;
use azekura_base::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// A fault table for one region.
#[derive(Debug)]
pub struct ModelRequests<const N: usize>(Requests<N>);

impl<const N: usize> Default for ModelRequests<N> {
    fn default() -> Self {
        Self(Requests::new())
    }
}

impl<const N: usize> ModelRequests<N> {
    /// Handler: posts a fault.
    pub fn post(&self, address: usize, ring: impl FnOnce()) {
        self.0.post(1, address, Access::Write, ring);
    }

    /// Pager: takes a posted fault and returns its address.
    #[must_use]
    pub fn take(&self) -> Option<usize> {
        self.0.take(1).map(|(address, _)| address)
    }

    /// Pager: completes the taken faults at this address.
    pub fn finish(&self, address: usize) {
        self.0.finish(1, |other| other == address);
    }
}

/// A stream that counts its drop as a close.
#[derive(Debug)]
pub struct ModelStream {
    /// Number of the stream's connection.
    pub number: u64,
    /// Number of streams that were closed.
    pub closed: Arc<AtomicU32>,
}

impl Visitor for ModelStream {
    fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for ModelStream {
    fn drop(&mut self) {
        // SeqCst: assertions read the count and must see all earlier events.
        self.closed.fetch_add(1, SeqCst);
    }
}

/// The resume table of a server.
#[derive(Debug, Default)]
pub struct ModelResumeTable(ResumeTable<ModelStream>);

impl ModelResumeTable {
    /// Opens the resume point of the session with this name.
    pub fn open(&self, name: u128, connection: u64) -> ModelResumePoint<'_> {
        ModelResumePoint(self.0.open(name, connection))
    }

    /// Leaves a new stream for the session with this name.
    ///
    /// # Errors
    ///
    /// The new stream, if there is no such session.
    pub fn leave(&self, name: u128, newcomer: ModelStream) -> Result<Option<u64>, ModelStream> {
        self.0.leave(|other| other == name, newcomer)
    }

    /// Ends a waiting session because another session needs memory.
    #[must_use]
    pub fn make_way(&self) -> bool {
        self.0.make_way()
    }

    /// Ends all waits, as when the server shuts down.
    pub fn close(&self) {
        self.0.close();
    }

    /// Returns the number of sessions.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.count()
    }
}

/// A session's handle of its resume point.
#[derive(Debug)]
pub struct ModelResumePoint<'a>(OwnResumePoint<'a, ModelStream>);

impl ModelResumePoint<'_> {
    /// Waits for the next stream.
    #[must_use]
    pub fn wait(&self, linger: Duration) -> Option<ModelStream> {
        self.0.wait(linger)
    }
}
