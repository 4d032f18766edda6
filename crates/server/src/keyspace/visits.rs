//! The number of rows that a request has visited.

use std::cell::Cell;

use azekura_base::blocking;

/// Number of rows after which another thread may serve the other connections of the visiting thread.
pub(super) const LONG_VISIT: usize = 1024;

/// Counts visited rows, and announces a wait after each [`LONG_VISIT`] rows. A request for rows in memory
/// waits for nothing, and would otherwise stop its reactor until it ends.
#[derive(Debug, Default)]
pub(super) struct Visits(Cell<usize>);

impl Visits {
    pub(super) fn note(&self) {
        self.0.set(self.0.get() + 1);
        if self.0.get().is_multiple_of(LONG_VISIT) {
            blocking::announce();
        }
    }
}
