//! The paper's machine, simulated, for the half of the study that needs 8 and 16 cores.
//!
//! All code of the lab runs on it unchanged: the store, the latches, the connections and the recorder. Only
//! the time is simulated. The code between two memory accesses takes a constant time in the simulation.
//! Therefore one number, [`Simulated::row_ns`], represents all other costs of a row: MySQL's own work above
//! the engine, and the copying and decoding of rows.

use super::settings::Settings;
use crate::error::BenchError;
use crate::lab::steady::{Rule, Windows};
use crate::machine::Machine;
use azekura_sim::{Profile, Simulation};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// A simulated machine for the study.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// Processors of the machine and their costs.
    pub profile: Profile,
    /// Additional computation of each row operation, in nanoseconds.
    pub row_ns: u64,
    /// Warm-up, windows and seeds of each point; the first seed is that of the study.
    pub rule: Rule,
}

impl Simulated {
    /// Returns the paper's machine, [`Profile::e7310`]: 4 x 4 cores at 1.6 GHz behind front-side buses.
    #[must_use]
    pub fn paper() -> Self {
        Self { profile: Profile::e7310(), row_ns: ROW_NS, rule: Rule::default() }
    }

    /// Runs `body` as the first thread of a machine with this number of processors. Returns when all threads
    /// have ended.
    ///
    /// # Errors
    ///
    /// [`BenchError::Simulation`]: the program was built without the feature `sim`, the machine has fewer
    /// processors, or all threads are blocked.
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

    /// Returns the description of the machine for reports.
    #[must_use]
    pub fn describe(&self, settings: &Settings) -> Machine {
        Machine {
            cpu: Some(format!("simulated: {}", self.profile.describes)),
            cores: settings.all_processors(),
            memory_bytes: None,
            system: format!(
                "virtual time, {} ns of plain work for each row; {}",
                self.row_ns,
                settings.rule().describe(WINDOWS)
            ),
            file_system: None,
        }
    }
}

/// Stack of a simulated thread: opening and checking the store need deep stacks.
const STACK_BYTES: usize = 1 << 20;
/// A window is half a think time, so that the warm-up has at least one and a half.
const WINDOW: Duration = Duration::from_millis(6);
pub(super) const WINDOWS: Windows = Windows { of_all: WINDOW, least: WINDOW };
/// Default of [`Simulated::row_ns`], and the only fitted number. With it, eight processors without a limit
/// reach about nine tenths of their rate with the best limit (406 of 473 in Table 4). The results of sixteen
/// processors and the named lock are then predictions.
const ROW_NS: u64 = 10_000;
