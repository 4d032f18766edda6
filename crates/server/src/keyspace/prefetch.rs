//! Announces keys to the store before they are used, so that the device reads their pages at once.

use azekura::Error;

use super::Keyspace;
use crate::resp::Request;

/// Number of keys of a request that are announced to the store at once.
const PREFETCHED_KEYS: usize = 256;

impl Keyspace<'_> {
    /// Announces keys that the transaction will use soon to the store. Returns the number of announced pages.
    /// See [`azekura::Table::prefetch`].
    pub(crate) fn prefetch<'q>(&self, keys: impl IntoIterator<Item = &'q [u8]>) -> Result<usize, Error> {
        self.source.prefetch(keys)
    }

    /// Announces the keys of a request with many keys to the store, a part at a time. A command calls this
    /// with the position of each key before it uses the key; keys have the distance `step`.
    pub(crate) fn prefetch_from(&self, request: Request<'_>, at: usize, step: usize) -> Result<(), Error> {
        if !(at - 1).is_multiple_of(PREFETCHED_KEYS * step) || at + step >= request.len() {
            return Ok(());
        }
        let keys = (at..request.len()).step_by(step).take(PREFETCHED_KEYS);
        self.prefetch(keys.map(|at| request.arg(at))).map(drop)
    }
}
