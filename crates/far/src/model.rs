//! The fault table and the resume table by themselves, for the models in `tests/loom_*.rs`.

use crate::fault::requests::Requests;
use crate::replace::Access;
use crate::server::resume::{OwnResumePoint, ResumeTable, Visitor};
use azekura_base::sync::Arc;
use azekura_base::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// A table of requests for one region.
#[derive(Debug)]
pub struct ModelRequests<const N: usize>(Requests<N>);

impl<const N: usize> Default for ModelRequests<N> {
    fn default() -> Self {
        Self(Requests::new())
    }
}

impl<const N: usize> ModelRequests<N> {
    /// A handler's side.
    pub fn post(&self, address: usize, ring: impl FnOnce()) {
        self.0.post(1, address, Access::Write, ring);
    }

    /// The pager's side: a posted fault's address.
    #[must_use]
    pub fn take(&self) -> Option<usize> {
        self.0.take(1).map(|(address, _)| address)
    }

    /// The pager's side: these are answered.
    pub fn finish(&self, address: usize) {
        self.0.finish(1, |other| other == address);
    }
}

/// A stream, which is closed when it is dropped; that is counted.
#[derive(Debug)]
pub struct ModelStream {
    /// Of its connection.
    pub number: u64,
    /// Streams that were closed.
    pub closed: Arc<AtomicU32>,
}

impl Visitor for ModelStream {
    fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for ModelStream {
    fn drop(&mut self) {
        // SeqCst: for assertions, which must see all of it.
        self.closed.fetch_add(1, SeqCst);
    }
}

/// The resume table of a server.
#[derive(Debug, Default)]
pub struct ModelResumeTable(ResumeTable<ModelStream>);

impl ModelResumeTable {
    /// For the session of this name.
    pub fn open(&self, name: u128, connection: u64) -> ModelResumePoint<'_> {
        ModelResumePoint(self.0.open(name, connection))
    }

    /// A connection that presents this name.
    ///
    /// # Errors
    ///
    /// There is no such session: the newcomer.
    pub fn leave(&self, name: u128, newcomer: ModelStream) -> Result<Option<u64>, ModelStream> {
        self.0.leave(|other| other == name, newcomer)
    }

    /// Another session needs the memory of a waiting one.
    #[must_use]
    pub fn make_way(&self) -> bool {
        self.0.make_way()
    }

    /// The server ends.
    pub fn close(&self) {
        self.0.close();
    }

    /// Sessions.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.count()
    }
}

/// The resume point as its session has it.
#[derive(Debug)]
pub struct ModelResumePoint<'a>(OwnResumePoint<'a, ModelStream>);

impl ModelResumePoint<'_> {
    /// The next stream.
    #[must_use]
    pub fn wait(&self, linger: Duration) -> Option<ModelStream> {
        self.0.wait(linger)
    }
}
