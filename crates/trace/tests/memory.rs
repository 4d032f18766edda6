//! The analysis of a file takes memory for one window, regardless of the length of the file. An allocator
//! counts the memory.
#![cfg(all(not(loom), feature = "analyze"))]

mod common;

use azekura_trace::WaitKind;
use azekura_trace::analyze::{Analysis, AnalyzeOptions};
use azekura_trace::event::{Event, EventKind};
use azekura_trace::file::{ClockSample, CpuSource, Encoder, ThreadInfo};
use azekura_trace::report::{Format, ReportOptions, report_file};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// An allocator that counts the bytes in use and their maximum.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls go to the system's allocator; this one only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        MOST.fetch_max(USED.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller fulfills the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller fulfills the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the maximum of bytes in use during `work`, less those in use before.
fn most_bytes(work: impl FnOnce()) -> usize {
    let before = USED.load(Relaxed);
    MOST.store(before, Relaxed);
    work();
    MOST.load(Relaxed) - before
}

/// Writes `rounds` rounds of 8,000 events, of four threads. Each operation waits for another lock instance.
fn write(path: &Path, rounds: u64) {
    const EXECUTIONS: u64 = 500;
    let mut file = std::fs::File::create(path).expect("created");
    let frame = common::trace(1, &["get"], &["row"], Vec::new());
    let mut encoder = Encoder::new();
    let clock = |ns: u64| ClockSample { ticks: ns, monotonic_ns: ns, process_cpu_ns: ns };
    encoder.session(&frame.session);
    encoder.clock(&clock(0));
    encoder.sites(frame.sites.iter().map(|(id, n)| (*id, n.name.as_str(), n.file.as_str(), n.line)));
    encoder.operations([(1, "get", "src/x.rs", 1)]);
    for tag in 1..=4 {
        encoder.thread(&ThreadInfo { tag, os_id: tag, cpu: CpuSource::Rseq, name: String::new() });
    }
    let mut now = 1_000;
    for round in 0..rounds {
        for tag in 1..=4_u32 {
            let mut events = Vec::new();
            for i in 0..EXECUTIONS {
                let at = now + i * 1_000;
                let object = (round * EXECUTIONS + i) * 4 + u64::from(tag);
                let event = |ticks, kind| Event { operation: 1, ..Event::new(ticks, kind) };
                let of_lock = |event| Event { site: 1, object, ..event };
                let argument = WaitKind::Lock as u64;
                events.push(event(at, EventKind::Enter));
                events.push(Event { argument, ..of_lock(event(at + 100, EventKind::WaitBegin)) });
                events.push(of_lock(event(at + 200 + object % 97, EventKind::WaitEnd)));
                events.push(event(at + 500 + object % 89, EventKind::Exit));
            }
            encoder.events(tag, 0, &events);
        }
        now += EXECUTIONS * 1_000;
        encoder.clock(&clock(now));
        file.write_all(encoder.as_bytes()).expect("written");
        encoder.clear();
    }
    encoder.end(0);
    file.write_all(encoder.as_bytes()).expect("written");
}

#[test]
fn a_file_four_times_as_long_takes_no_more_memory() {
    const WINDOW: usize = 40_000;
    let dir = tempfile::tempdir().expect("a directory");
    let analyzed = |rounds: u64| {
        let path = dir.path().join(format!("{rounds}.trace"));
        write(&path, rounds);
        let mut executions = 0;
        let analysis = most_bytes(|| {
            let analysis = Analysis::of_file(&path, WINDOW, &AnalyzeOptions::default());
            executions = analysis.expect("just written").expect("analyzed").total.executions;
        });
        assert_eq!(executions, rounds * 2_000, "all of it was looked at");
        let export = most_bytes(|| {
            let options = ReportOptions { format: Format::Perfetto, ..ReportOptions::default() };
            report_file(&path, &options, &mut std::io::sink()).expect("exported");
        });
        (analysis, export)
    };
    // Both files have more executions, and more instances, than the analysis keeps individually.
    let (short, long) = (analyzed(60), analyzed(240));
    assert!(long.0 as f64 <= 1.1 * short.0 as f64, "analysis: {} bytes, then {}", short.0, long.0);
    assert!(long.1 as f64 <= 1.1 * short.1 as f64, "export: {} bytes, then {}", short.1, long.1);
    // The memory is for a window's events and spans, and for the kept instances.
    assert!(long.0 < 48 << 20, "{} bytes", long.0);
}
