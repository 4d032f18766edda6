//! Measures the time of reading and analyzing a recording, per event.
//!
//! `cargo bench -p azekura-trace --bench analyze`.

use azekura_trace::WaitKind;
use azekura_trace::analyze::{Analysis, AnalyzeOptions};
use azekura_trace::event::{Event, EventKind};
use azekura_trace::file::{
    ClockSample, CpuSource, Ending, Name, SessionInfo, Switches, ThreadTrace, TimeSource, Trace,
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;

/// Number of executions on each of four threads; an execution with its wait has four events.
const EXECUTIONS: u64 = 250_000;

fn trace() -> Trace {
    let name = |n: &str| Name { name: n.into(), file: "src/x.rs".into(), line: 1 };
    let events = |tag: u64| {
        let event = move |i: u64, at: u64, kind| Event {
            operation: (1 + i % 6) as u16,
            site: if kind == EventKind::Enter || kind == EventKind::Exit { 0 } else { 1 + (i % 20) as u32 },
            object: if kind == EventKind::Enter || kind == EventKind::Exit { 0 } else { i % 100 },
            argument: if kind == EventKind::WaitBegin { WaitKind::Latch as u64 } else { 0 },
            ..Event::new(tag * 7 + i * 1000 + at, kind)
        };
        let kinds = [EventKind::Enter, EventKind::WaitBegin, EventKind::WaitEnd, EventKind::Exit];
        (0..EXECUTIONS)
            .flat_map(move |i| kinds.into_iter().zip([0, 100, 300, 900]).map(move |(k, at)| event(i, at, k)))
            .collect()
    };
    let thread = |tag: u32| ThreadTrace {
        tag,
        os_id: tag,
        name: String::new(),
        cpu: CpuSource::None,
        lost: 0,
        off: Vec::new(),
        events: events(tag.into()),
    };
    let end = EXECUTIONS * 1000 + 1000;
    Trace {
        session: SessionInfo {
            time: TimeSource::Monotonic,
            cpu: CpuSource::None,
            hold_sampling: 64,
            event_cost_ps: 9_000,
            ticks_per_second: 1_000_000_000,
            process_id: 1,
            processors: 4,
            started_wall_ns: 0,
            label: String::new(),
        },
        begin: ClockSample { ticks: 0, monotonic_ns: 0, process_cpu_ns: 0 },
        end: ClockSample { ticks: end, monotonic_ns: end, process_cpu_ns: 1 },
        sites: (1..21).map(|i| (i, Name { line: i, ..name("site") })).collect(),
        operations: (1..7).map(|i| (i, Name { line: i.into(), ..name("operation") })).collect(),
        threads: (1..5).map(thread).collect(),
        modules: Vec::new(),
        machine_cpu_ns: None,
        quota: None,
        switches: Switches::NotAsked,
        samples: Vec::new(),
        blocked: Vec::new(),
        faults: Vec::new(),
        unrecorded_threads: 0,
        frames: std::collections::BTreeMap::new(),
        stacks: std::collections::BTreeMap::new(),
        ending: Ending::Complete,
        damage: None,
    }
}

fn all(c: &mut Criterion) {
    let trace = trace();
    let bytes = trace.to_bytes();
    println!("{:.1} bytes an event in the file", bytes.len() as f64 / trace.event_count() as f64);
    let mut group = c.benchmark_group("per event");
    group.throughput(Throughput::Elements(trace.event_count()));
    group.bench_function("read", |b| b.iter(|| Trace::from_bytes(black_box(&bytes)).map(|t| t.lost())));
    group.bench_function("analyze", |b| {
        b.iter(|| Analysis::new(black_box(&trace), &AnalyzeOptions::default()).map(|a| a.sites.len()));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(3));
    targets = all
}
criterion_main!(benches);
