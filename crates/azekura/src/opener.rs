//! The process that opened a store, for checks in its forked children (LIFE-3).

use azekura_base::fork::Generation;

use crate::Error;

/// The process that opened a store or created an object of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opener {
    generation: Generation,
    process: u32,
}

impl Opener {
    pub(crate) fn this_process() -> Self {
        Self { generation: Generation::current(), process: std::process::id() }
    }

    /// Returns an error in a process that was forked from this one.
    pub(crate) fn check(self) -> Result<(), Error> {
        if self.generation.is_current() { Ok(()) } else { Err(Error::Forked { opened_by: self.process }) }
    }
}
