//! The paper's machine, simulated: the half of the study that needs 8 and 16 cores.
//!
//! All of the lab's code runs on it unchanged: the store, the latches, the connections, the recorder; only
//! time is the machine's. The code between two accesses takes a constant time there, so one number,
//! [`Simulated::row_ns`], stands for the other costs of a row (MySQL's own work above the engine, the copying
//! and decoding of rows).

use super::settings::Settings;
use crate::error::BenchError;
use crate::machine::Machine;
use azekura_sim::{Profile, Simulation};
use std::cell::Cell;
use std::rc::Rc;

/// A machine to run the study on.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// Its processors and costs.
    pub profile: Profile,
    /// Plain work of each operation on a row.
    pub row_ns: u64,
}

impl Simulated {
    /// [`Profile::e7310`]: 4 x 4 cores at 1.6 GHz behind front-side buses.
    #[must_use]
    pub fn paper() -> Self {
        Self { profile: Profile::e7310(), row_ns: ROW_NS }
    }

    /// Runs `body` as the first thread of a machine with this number of processors, until all threads have
    /// ended.
    ///
    /// # Errors
    ///
    /// [`BenchError::Simulation`]: the program was built without the feature `sim`, the machine has fewer
    /// processors, or no thread could go on.
    pub fn run<T: 'static>(
        &self,
        processors: usize,
        seed: u64,
        body: impl FnOnce() -> T + 'static,
    ) -> Result<T, BenchError> {
        let result = Rc::new(Cell::new(None));
        let theirs = Rc::clone(&result);
        let mut simulation =
            Simulation::new(Rc::new(self.profile.clone()), processors, seed).stack_bytes(STACK_BYTES);
        simulation.thread(move || theirs.set(Some(body())));
        simulation.run().map_err(BenchError::Simulation)?;
        result.take().ok_or(BenchError::Panicked)
    }

    /// The machine, for reports.
    #[must_use]
    pub fn describe(&self, settings: &Settings) -> Machine {
        Machine {
            cpu: Some(format!("simulated: {}", self.profile.describes)),
            cores: settings.all_processors(),
            memory_bytes: None,
            system: format!("virtual time, {} ns of plain work for each row", self.row_ns),
            file_system: None,
        }
    }
}

/// Of a thread: the store's stacks are deep when it is opened and walked through.
const STACK_BYTES: usize = 1 << 20;
/// Fitted, the only such number: so that eight processors without a limit do about nine tenths of their work
/// with the best limit (Table 4: 406 of 473). The results of sixteen, and the lock to blame, follow.
const ROW_NS: u64 = 10_000;
