//! A recording with all kinds of content that a file can have.

use azekura_trace::event::{Event, EventKind};
use azekura_trace::file::{
    ClockSample, CpuQuota, CpuSample, CpuSource, Ending, Module, Name, OffCpu, SessionInfo, Switches,
    ThreadTrace, TimeSource, Trace,
};

/// Returns a recording of three threads; each has `events` events times the thread's number.
pub(crate) fn trace(events: u64) -> Trace {
    let name = |n: &str| Name { name: n.into(), file: "src/x.rs".into(), line: 7 };
    let event = |i: u64| Event {
        operation: i as u16 % 3,
        site: i as u32 % 5,
        object: i % 3 * 64,
        argument: i % 4,
        ..Event::new(1000 + i * 10, EventKind::from_number(1 + i as u8 % 9).expect("1 to 9"))
    };
    let thread = |tag: u32| ThreadTrace {
        tag,
        os_id: tag + 100,
        name: format!("worker {tag}"),
        cpu: CpuSource::Rseq,
        lost: u64::from(tag),
        off: vec![
            OffCpu { begin_ns: 3, end_ns: 9, preempted: true },
            OffCpu { begin_ns: 10, end_ns: 10, preempted: false },
        ],
        events: (0..u64::from(tag) * events).map(event).collect(),
    };
    Trace {
        session: SessionInfo {
            time: TimeSource::Tsc,
            cpu: CpuSource::Rseq,
            hold_sampling: 64,
            event_cost_ps: 9_300,
            ticks_per_second: 2_600_000_000,
            process_id: 4711,
            processors: 2,
            started_wall_ns: 1_800_000_000_000_000_000,
            label: "before".into(),
        },
        begin: ClockSample { ticks: 1000, monotonic_ns: 5, process_cpu_ns: 1 },
        end: ClockSample { ticks: 5_200_001_000, monotonic_ns: 2_000_000_005, process_cpu_ns: 2 },
        sites: [(1, name("cache")), (2, name("log"))].into(),
        operations: [(1, name("get"))].into(),
        threads: (1..4).map(thread).collect(),
        modules: vec![Module { base: 0x5000, len: 4096, offset: 0, path: "/usr/bin/x".into() }],
        machine_cpu_ns: Some((7, 9)),
        quota: Some(CpuQuota { millis: 1500, throttled_ns: 11 }),
        switches: Switches::Recorded { lost: 7 },
        unrecorded_threads: 5,
        faults: vec![CpuSample { tag: 2, address: 0x6010, site: 1, count: 9 }],
        blocked: vec![CpuSample { tag: 3, address: 0, site: 1, count: 4 }],
        samples: vec![CpuSample { tag: 1, address: 0x5010, site: 2, count: 300 }],
        frames: [(1, name("lock")), (2, name("main"))].into(),
        stacks: [(1, vec![1, 2]), (2, vec![2])].into(),
        ending: Ending::Complete,
        damage: None,
    }
}
