//! The fault table by itself, for the model in `tests/loom_requests.rs`.

use crate::fault::requests::Requests;
use crate::replace::Access;

/// A table of so many requests, for one region.
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
