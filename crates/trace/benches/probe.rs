//! Measures the cost of a probe without a recording, and during recordings with each source of CPU time.
//!
//! `cargo bench -p azekura-trace`. A recording measures its cost per event too, and its report prints that
//! cost.

use azekura_trace::{
    CpuTime, HoldMode, Operation, Options, Site, WaitKind, hold, operation, start, stop, wait,
};
use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;

static GET: Operation = Operation::new("get");
static CACHE: Site = Site::new("cache");

/// Measures a hundred probes per iteration, because a disabled probe costs less than an iteration of the
/// measuring loop. The cost is the difference between an iteration with a hundred probes and an empty one.
fn hundred_off(c: &mut Criterion) {
    c.bench_function("off: a hundred times nothing", |b| {
        b.iter(|| {
            (0..100).for_each(|i| {
                black_box(i);
            });
        });
    });
    c.bench_function("off: a hundred operations", |b| {
        b.iter(|| {
            (0..100).for_each(|i| {
                let _get = operation(&GET);
                black_box(i);
            })
        });
    });
}

fn probes(c: &mut Criterion, state: &str) {
    c.bench_function(&format!("{state}: operation, enter and exit"), |b| b.iter(|| drop(operation(&GET))));
    c.bench_function(&format!("{state}: wait, begin and end"), |b| {
        b.iter(|| drop(wait(&CACHE, black_box(64), WaitKind::Latch)));
    });
    c.bench_function(&format!("{state}: hold, 1 of 64 recorded"), |b| {
        b.iter(|| drop(hold(&CACHE, black_box(64), HoldMode::Exclusive)));
    });
}

fn recording(c: &mut Criterion, state: &str, cpu: CpuTime) {
    // There is no collector thread, which would be measured too on two processors. A full ring loses events,
    // at about the cost of recording them, so the ring is large enough for the whole measurement.
    let options = Options {
        cpu,
        drain_every: Some(Duration::from_millis(1)),
        ring_events: 1 << 20,
        ..Options::default()
    };
    if start(options).is_err() {
        return; // feature `off`
    }
    probes(c, state);
    if let Ok(recording) = stop() {
        println!("{state}: {} events, {} lost", recording.events(), recording.lost());
    }
}

fn all(c: &mut Criterion) {
    hundred_off(c);
    probes(c, "off");
    recording(c, "on, no CPU time", CpuTime::Off);
    recording(c, "on, rseq or thread clock", CpuTime::Auto);
    recording(c, "on, thread clock", CpuTime::ThreadClock);
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(300));
    targets = all
}
criterion_main!(benches);
