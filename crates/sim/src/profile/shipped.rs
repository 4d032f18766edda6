//! The profiles that come with the program.

use super::{Constant, Costs, Profile, Protocol, Source, Topology};

fn document(value: f64, text: &str) -> Constant {
    Constant { value, source: Source::Document(text.into()) }
}

fn reasoned(value: f64, text: &str) -> Constant {
    Constant { value, source: Source::Reasoned(text.into()) }
}

impl Profile {
    /// All of them.
    #[must_use]
    pub fn shipped() -> Vec<Self> {
        vec![Self::t2()]
    }

    /// The paper's: Sun SPARC Enterprise T5120, 8 cores of 8 threads at 1.2 GHz, one second-level cache.
    #[must_use]
    pub fn t2() -> Self {
        const CYCLE: f64 = 1.0 / 1.2;
        let manual = "OpenSPARC T2 core microarchitecture specification";
        let l2 = document(26.0 * CYCLE, manual);
        Self {
            name: "t2".into(),
            describes: "UltraSPARC T2: 8 cores x 8 threads, 1.2 GHz, 4 MiB of shared L2, atomics done there"
                .into(),
            topology: Topology {
                sockets: 1,
                clusters_per_socket: 1,
                cores_per_cluster: 8,
                threads_per_core: 8,
                pipes_per_core: 2,
                private_lines: (128, 4),
                shared_lines: (65_536, 16),
            },
            protocol: Protocol::Shared,
            adds_in_one_step: false,
            costs: Costs {
                load_hit: document(3.0 * CYCLE, manual),
                store: document(CYCLE, manual),
                swap: l2.clone(),
                shared_hit: l2.clone(),
                memory: reasoned(
                    185.0 * CYCLE,
                    "FB-DIMM behind the L2, as measured on the T1 and T2: some 150 ns",
                ),
                other_socket: reasoned(0.0, "there is one socket"),
                transfer_in_cluster: l2.clone(),
                transfer_in_socket: l2,
                read_occupancy: reasoned(2.0 * CYCLE, "a bank answers every second cycle"),
                write_occupancy: reasoned(
                    12.0 * CYCLE,
                    "an atomic passes the bank's pipeline twice: once to read, once to write",
                ),
                pipe_share: reasoned(0.3, "a thread in order waits for caches for two thirds of its time"),
                pause: reasoned(
                    3.0 * CYCLE,
                    "no pause instruction: reads of the condition codes, as HotSpot has them",
                ),
                system_call: reasoned(400.0, "a trap and back at 1.2 GHz in order"),
                context_switch: reasoned(5_000.0, "Solaris 10 at 1.2 GHz in order"),
                wake: reasoned(10_000.0, "Solaris 10 at 1.2 GHz in order"),
                slice: reasoned(20e6, "Solaris' time-sharing class: 20 ms at the least"),
                copy_byte: reasoned(0.5, "2 GB/s by one thread"),
                between_accesses: reasoned(12.0 * CYCLE, "a dozen instructions of one in-order thread"),
            },
        }
    }
}
