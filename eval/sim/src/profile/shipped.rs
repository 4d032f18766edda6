//! The profiles that are part of the program.

use super::{Constant, Costs, Profile, Protocol, Source, Topology};

fn reasoned(value: f64, text: &str) -> Constant {
    Constant { value, source: Source::Reasoned(text.into()) }
}

fn document(value: f64, text: &str) -> Constant {
    Constant { value, source: Source::Document(text.into()) }
}

impl Profile {
    /// Returns all shipped profiles.
    #[must_use]
    pub fn shipped() -> Vec<Self> {
        vec![Self::t2(), Self::e7310(), Self::two_sockets(), Self::one_socket()]
    }

    /// Returns the machine of the papers: a Sun SPARC Enterprise T5120 with 8 cores of 8 threads at 1.2 GHz,
    /// and one second-level cache.
    #[must_use]
    pub fn t2() -> Self {
        const CYCLE: f64 = 1.0 / 1.2;
        // Of the order that David, Guerraoui and Trigonakis (SOSP 2013) report for this machine, called
        // Niagara there.
        let niagara = "of the order of David et al., SOSP 2013, for this machine";
        let l2 = reasoned(24.0 * CYCLE, niagara);
        Self {
            name: "t2".into(),
            describes: "UltraSPARC T2: 8 cores x 8 threads, 1.2 GHz, 4 MiB of shared L2, atomics done there"
                .into(),
            topology: topology([1, 1, 8, 8, 2], (128, 4), (65_536, 16)),
            protocol: Protocol::Shared,
            adds_in_one_step: false,
            costs: Costs {
                load_hit: reasoned(3.0 * CYCLE, niagara),
                store: reasoned(CYCLE, "a store a cycle, into the store buffer"),
                swap: reasoned(66.0 * CYCLE, niagara),
                shared_hit: l2.clone(),
                memory: reasoned(176.0 * CYCLE, niagara),
                other_socket: reasoned(0.0, "there is one socket"),
                transfer_in_cluster: l2.clone(),
                transfer_in_socket: l2,
                transfer_occupancy: reasoned(1.0, "lines do not move"),
                read_occupancy: reasoned(2.0 * CYCLE, "a bank answers every second cycle"),
                write_occupancy: reasoned(2.0 * CYCLE, "a bank takes in a request every second cycle"),
                swap_occupancy: document(
                    18.0 * CYCLE,
                    "OpenSPARC T1, L2 miss buffer (sctag_mbctl.v): of the two packets of a CAS the second is \
                     made ready in cycle 9 of the first, whether it will write or not, and who waits for the \
                     line in cycle 4 of the second; 3 cycles each from there to the pipeline are assumed, \
                     and one for the stage more that the T2 has",
                ),
                queued_occupancy: document(
                    6.0 * CYCLE,
                    "the same: who waits for the line is made ready in cycle 4 of who was before it; 3 \
                     cycles to the pipeline are assumed",
                ),
                pipe_share: reasoned(0.3, "a thread in order waits for caches for two thirds of its time"),
                pause: reasoned(
                    3.0 * CYCLE,
                    "no pause instruction: reads of the condition codes, as HotSpot has them",
                ),
                system_call: reasoned(400.0, "a trap and back at 1.2 GHz in order"),
                context_switch: reasoned(5_000.0, "Solaris 10 at 1.2 GHz in order"),
                wake_call: reasoned(400.0, "a system call"),
                wake: reasoned(10_000.0, "Solaris 10 at 1.2 GHz in order"),
                alarm: reasoned(10_000.0, "as another thread's wake"),
                alarm_set: reasoned(0.0, "a register is written"),
                alarm_missed: reasoned(0.0, "an interrupt, counted with the call"),
                wake_busy: reasoned(0.0, "an interrupt, counted with the switch"),
                alarm_busy: reasoned(0.0, "an interrupt, counted with the switch"),
                interrupt: reasoned(0.0, "counted with the switch"),
                undisturbed: reasoned(
                    0.0,
                    "Solaris' time-sharing class: who has slept has the higher priority",
                ),
                slice: reasoned(20e6, "Solaris' time-sharing class: 20 ms at the least"),
                copy_byte: reasoned(0.5, "2 GB/s by one thread"),
                between_accesses: reasoned(12.0 * CYCLE, "a dozen instructions of one in-order thread"),
            },
        }
    }

    /// Returns a server with two sockets of 32 cores of two threads, like Intel's Xeons from 2021 on.
    #[must_use]
    pub fn two_sockets() -> Self {
        let order = "of the order that microbenchmarks of such processors show";
        Self {
            name: "x86-2s".into(),
            describes: "two sockets x 32 cores x 2 threads, x86, one last cache per socket".into(),
            topology: topology([2, 1, 32, 2, 1], (20_480, 20), (786_432, 12)),
            protocol: Protocol::Owned,
            adds_in_one_step: true,
            costs: Costs {
                load_hit: reasoned(0.5, "several independent loads are under way at once"),
                shared_hit: reasoned(22.0, order),
                memory: reasoned(85.0, order),
                other_socket: reasoned(65.0, order),
                transfer_in_cluster: reasoned(50.0, order),
                transfer_in_socket: reasoned(50.0, order),
                ..x86_costs()
            },
        }
    }

    /// Returns a server with one socket of 128 cores in groups of eight, like AMD's EPYC from 2023 on.
    #[must_use]
    pub fn one_socket() -> Self {
        let order = "of the order that microbenchmarks of such processors show";
        Self {
            name: "x86-128".into(),
            describes: "one socket x 16 groups x 8 cores x 2 threads, x86, a last cache per group".into(),
            topology: topology([1, 16, 8, 2, 1], (16_384, 8), (262_144, 16)),
            protocol: Protocol::Owned,
            adds_in_one_step: true,
            costs: Costs {
                load_hit: reasoned(0.4, "several independent loads are under way at once"),
                shared_hit: reasoned(14.0, order),
                memory: reasoned(110.0, order),
                other_socket: reasoned(0.0, "there is one socket"),
                transfer_in_cluster: reasoned(25.0, order),
                transfer_in_socket: reasoned(110.0, order),
                ..x86_costs()
            },
        }
    }

    /// Returns the machine of the event-tracing study: four Xeon E7310, 4 x 4 cores at 1.6 GHz. Each two
    /// cores share a cache; the caches are connected by front-side buses.
    #[must_use]
    pub fn e7310() -> Self {
        const CYCLE: f64 = 1.0 / 1.6;
        let bus = "a line that another core has changed comes over the front-side bus, and the memory \
            controller sees it pass: as memory";
        let costs = Costs {
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
            wake_call: reasoned(200.0, "a system call"),
            wake: reasoned(
                8_000.0,
                "Linux 2.6.18: an interrupt of another processor, and out of its idle loop",
            ),
            alarm: reasoned(8_000.0, "as another thread's wake"),
            slice: reasoned(
                1e6,
                "Linux 2.6.18 gives 100 ms, but a thread that waits gains priority over one that computes \
                 all the time",
            ),
            copy_byte: reasoned(0.4, "2.5 GB/s by one core"),
            between_accesses: reasoned(6.0 * CYCLE, "six to eight instructions"),
            ..x86_costs()
        };
        Self {
            name: "e7310".into(),
            describes: "four sockets x two pairs of cores, 1.6 GHz, a last cache per pair, front-side buses \
                (Xeon E7310)"
                .into(),
            topology: topology([4, 2, 2, 1, 1], (512, 8), (32_768, 8)),
            protocol: Protocol::Owned,
            adds_in_one_step: true,
            costs,
        }
    }
}

/// Returns a topology. The first array: sockets, clusters of a socket, cores of a cluster, threads and pipes
/// of a core. The others: lines and ways of a core's own cache, and of a cluster's last-level cache.
const fn topology(
    [sockets, clusters_per_socket, cores_per_cluster, threads_per_core, pipes_per_core]: [usize; 5],
    private_lines: (usize, usize),
    shared_lines: (usize, usize),
) -> Topology {
    Topology {
        sockets,
        clusters_per_socket,
        cores_per_cluster,
        threads_per_core,
        pipes_per_core,
        private_lines,
        shared_lines,
    }
}

/// Returns the costs that x86 servers have in common.
fn x86_costs() -> Costs {
    let t2 = Profile::t2().costs;
    let there_are_none = "lines move; they are not written where they are shared";
    Costs {
        store: reasoned(0.5, "one store a cycle or two"),
        swap: reasoned(
            6.0,
            "a locked instruction on an owned line: some 20 cycles; 5 ns were measured on the development \
             machine",
        ),
        transfer_occupancy: reasoned(
            1.0,
            "no request for a line is served before the one before it; less was measured on the development \
             machine, whose two cores share a cache",
        ),
        read_occupancy: reasoned(2.0, "a slice of the last cache answers a request every few cycles"),
        write_occupancy: reasoned(0.0, there_are_none),
        swap_occupancy: reasoned(0.0, there_are_none),
        queued_occupancy: reasoned(0.0, there_are_none),
        pipe_share: reasoned(0.5, "two threads of a core get some 1.3 times the work of one done"),
        pause: reasoned(30.0, "some 100 cycles since Skylake, fewer on AMD's"),
        system_call: reasoned(150.0, "a cheap call with mitigations"),
        context_switch: reasoned(1_500.0, "Linux, with cold caches"),
        wake_call: reasoned(150.0, "a cheap call; the interrupt for an idle processor is not counted"),
        wake: reasoned(
            5_000.0,
            "a futex's sleeper on an idle processor, as schedulers' wake-up benchmarks show",
        ),
        alarm: reasoned(5_000.0, "as another thread's wake"),
        alarm_set: reasoned(
            0.0,
            "a register is written; 8 us were measured on the development machine, a guest whose host is \
             asked to do it",
        ),
        alarm_missed: reasoned(0.0, "an interrupt, counted with the call; 18 us were measured there"),
        wake_busy: reasoned(
            0.0,
            "an interrupt, counted with the switch; 5 us were measured on the development machine, whose \
             host delivers it",
        ),
        alarm_busy: reasoned(0.0, "the same; 16 us were measured there"),
        interrupt: reasoned(0.0, "counted with the switch; some 11 us were measured there"),
        undisturbed: reasoned(
            0.0,
            "Linux: who has slept goes before who computes; so it was measured on 6.18, too, after sleeps of \
             30 us (`azekura-lab sim calibrate`)",
        ),
        slice: reasoned(3e6, "Linux: 3 ms"),
        copy_byte: reasoned(
            0.05,
            "20 GB/s; 0.26 to 0.40 us per page of 8 KiB were measured on the development machine",
        ),
        between_accesses: reasoned(2.0, "six to eight instructions; calibration says better"),
        ..t2
    }
}
