//! The paper's machine, simulated: the half of the study that needs 8 and 16 cores.
//!
//! All of the lab's code runs on it unchanged: the store, the latches, the connections, the recorder; only time is the machine's. What lies
//! between two accesses takes a constant time there, so what a row costs a processor besides (MySQL's own work above the engine, the copying and
//! decoding of rows) is told by one number, [`Simulated::row_ns`].

use super::settings::Settings;
use crate::error::BenchError;
use crate::machine::Machine;
use azekura_sim::profile::{Constant, Protocol, Source, Topology};
use azekura_sim::{Profile, Simulation};
use std::cell::Cell;
use std::rc::Rc;

/// A machine to run the study on.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// Its processors and what things cost.
    pub profile: Profile,
    /// Plain work of each operation on a row.
    pub row_ns: u64,
}

fn reasoned(value: f64, text: &str) -> Constant {
    Constant { value, source: Source::Reasoned(text.into()) }
}

impl Simulated {
    /// Four Xeon E7310: 4 x 4 cores at 1.6 GHz, each two with a cache of their own, all others behind a front-side bus.
    #[must_use]
    pub fn paper() -> Self {
        const CYCLE: f64 = 1.0 / 1.6;
        let like = Profile::two_sockets();
        let bus = "a line that another core has changed comes over the front-side bus, and the memory controller sees it pass: as memory";
        let costs = azekura_sim::profile::Costs {
            load_hit: reasoned(CYCLE, "several independent loads are under way at once"),
            store: reasoned(CYCLE, "a store a cycle"),
            swap: reasoned(24.0 * CYCLE, "a locked instruction on an owned line, Core microarchitecture"),
            shared_hit: reasoned(14.0 * CYCLE, "the second-level cache of two cores"),
            memory: reasoned(150.0, "fully buffered memory behind a front-side bus"),
            other_socket: reasoned(40.0, "the chipset asks the other buses"),
            transfer_in_cluster: reasoned(40.0 * CYCLE, "through the cache that two cores share"),
            transfer_in_socket: reasoned(150.0, bus),
            pause: reasoned(10.0 * CYCLE, "Core microarchitecture"),
            system_call: reasoned(200.0, "1.6 GHz, without mitigations"),
            context_switch: reasoned(3_000.0, "Linux 2.6.18 at 1.6 GHz, with cold caches"),
            wake: reasoned(
                8_000.0,
                "Linux 2.6.18: an interrupt of another processor, and out of its idle loop",
            ),
            slice: reasoned(
                1e6,
                "Linux 2.6.18 gives 100 ms, but lets a thread that wakes go before one that computes, which the simulation does not",
            ),
            copy_byte: reasoned(0.4, "2.5 GB/s by one core"),
            between_accesses: reasoned(6.0 * CYCLE, "six to eight instructions"),
            ..like.costs
        };
        let profile = Profile {
            name: "e7310".into(),
            describes: "four sockets x two pairs of cores, 1.6 GHz, a last cache per pair, front-side buses (Xeon E7310)".into(),
            topology: Topology {
                sockets: 4,
                clusters_per_socket: 2,
                cores_per_cluster: 2,
                threads_per_core: 1,
                pipes_per_core: 1,
                private_lines: (512, 8),
                shared_lines: (32_768, 8),
            },
            protocol: Protocol::Owned,
            adds_in_one_step: true,
            costs,
        };
        Self { profile, row_ns: ROW_NS }
    }

    /// Runs `body` as the first thread of a machine with so many processors, until all threads have ended.
    ///
    /// # Errors
    ///
    /// [`BenchError::Simulation`]: the program was built without the feature `sim`, the machine has fewer processors, or nobody could go on.
    pub fn run<T: 'static>(
        &self,
        processors: usize,
        seed: u64,
        body: impl FnOnce() -> T + 'static,
    ) -> Result<T, BenchError> {
        let result = Rc::new(Cell::new(None));
        let theirs = Rc::clone(&result);
        let mut simulation = Simulation::new(Rc::new(self.profile.clone()), processors, seed);
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

/// Fitted, the only number that is: so that eight processors without a limit do about nine tenths of what they do with the best one (Table 4:
/// 406 of 473). What sixteen do, and which lock is to blame, follows.
const ROW_NS: u64 = 10_000;
