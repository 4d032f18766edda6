//! The analysis of a recording window by window gives the same result as the analysis of the whole.
#![cfg(all(not(loom), feature = "analyze"))]

mod common;

use azekura_trace::WaitKind;
use azekura_trace::analyze::{Analysis, AnalyzeOptions, OperationRow, Verdict};
use azekura_trace::event::{Event, EventKind};
use azekura_trace::file::{ClockSample, CpuSource, Encoder, Outline, ThreadInfo, Trace};
use azekura_trace::report::{ReportOptions, report};
use common::simulator::Duration::Exponential;
use common::simulator::Step::{Compute, Device, Enter, Exit, Lock, Unlock, WaitBegin, WaitEnd};
use common::simulator::{Machine, Mode};

const US: u64 = 1_000;

/// Returns the trace file that a recorder with a drain every `drain` ns writes.
fn drained(trace: &Trace, drain: u64) -> Vec<u8> {
    let mut encoder = Encoder::new();
    encoder.session(&trace.session);
    encoder.clock(&trace.begin);
    encoder.sites(trace.sites.iter().map(|(id, n)| (*id, n.name.as_str(), n.file.as_str(), n.line)));
    encoder.operations(
        trace.operations.iter().map(|(id, n)| (u32::from(*id), n.name.as_str(), n.file.as_str(), n.line)),
    );
    for t in &trace.threads {
        encoder.thread(&ThreadInfo { tag: t.tag, os_id: t.os_id, cpu: t.cpu, name: t.name.clone() });
    }
    let mut rest: Vec<&[Event]> = trace.threads.iter().map(|t| t.events.as_slice()).collect();
    let mut until = drain;
    while rest.iter().any(|events| !events.is_empty()) {
        for (thread, rest) in trace.threads.iter().zip(&mut rest) {
            let (now, later) = rest.split_at(rest.partition_point(|e| e.ticks < until));
            encoder.events(thread.tag, thread.lost, now);
            *rest = later;
        }
        let now = until.min(trace.end.ticks);
        encoder.clock(&ClockSample { ticks: now, monotonic_ns: now, process_cpu_ns: 0 });
        until += drain;
    }
    encoder.clock(&trace.end);
    encoder.end(trace.lost());
    encoder.into_bytes()
}

/// Returns a trace of threads that wait for a lock inside another wait, and for a device, in nested
/// operations.
fn recorded() -> Trace {
    let lock = Lock { site: 1, object: 7, mode: Mode::Exclusive, kind: WaitKind::Latch, spin: false };
    let part = [Enter(2), Compute(Exponential(10 * US)), WaitBegin(3), lock, Compute(Exponential(8 * US))];
    let rest = [Unlock { site: 1 }, WaitEnd(3), Exit, Device { site: 2, time: Exponential(20 * US) }];
    let steps = [[Enter(1)].as_slice(), &part, &rest, &part, &rest, &[Exit]].concat();
    let machine = Machine { processors: 3, quantum: 30 * US, ..Machine::default() };
    let programs = vec![steps; 5];
    machine.run(60_000 * US, &["page", "get"], &["cache", "disk", "rw lock"], programs).trace
}

fn exact(row: &OperationRow) -> [u64; 9] {
    [
        row.executions,
        row.timed,
        row.threads,
        row.elapsed_ns,
        row.lock_wait_ns,
        row.io_wait_ns,
        row.p50_ns,
        row.p99_ns,
        row.max_ns,
    ]
}

#[test]
fn windows_add_up_to_the_whole() {
    let trace = recorded();
    let whole = Analysis::new(&trace, &AnalyzeOptions::default()).expect("any operation will do");
    assert!(matches!(whole.verdict, Verdict::Lock { .. }), "something to find: {:?}", whole.verdict);
    let span = trace.end.ticks - trace.begin.ticks;
    for windows in [2, 7, 40] {
        let outline = Outline::from_bytes(drained(&trace, span / (4 * windows))).expect("just written");
        assert_eq!(outline.events(), trace.event_count());
        let most = usize::try_from(outline.events() / windows).expect("few");
        let parts = Analysis::of_windows(&outline, most, &AnalyzeOptions::default());
        let parts = parts.expect("just written").expect("any operation will do");
        assert_eq!(whole.operations.len(), parts.operations.len());
        for (a, b) in
            whole.operations.iter().chain([&whole.total]).zip(parts.operations.iter().chain([&parts.total]))
        {
            assert_eq!((&a.name, exact(a)), (&b.name, exact(b)), "{windows} windows");
            let (a, b) = (a.cpu_ns.expect("known"), b.cpu_ns.expect("known"));
            assert!(a.abs_diff(b) as f64 <= 0.01 * a as f64, "CPU time {a}, in {windows} windows {b}");
        }
        let waits = |a: &Analysis| -> Vec<_> {
            a.waits
                .iter()
                .map(|w| (w.operation.clone(), w.site.clone(), w.count, w.net_ns, w.gross_ns))
                .collect()
        };
        assert_eq!(waits(&whole), waits(&parts), "{windows} windows");
        assert_eq!(whole.timeline, parts.timeline, "{windows} windows");
        assert_eq!(whole.open, parts.open, "{windows} windows");
        assert!(matches!(&parts.verdict, Verdict::Lock { .. }), "{:?}", parts.verdict);
        let gain = |a: &Analysis| (a.what_if.locks[0].site.clone(), a.what_if.locks[0].gain);
        let ((site, gain_whole), (site_in_parts, gain_in_parts)) = (gain(&whole), gain(&parts));
        assert_eq!(site, site_in_parts);
        assert!(
            (gain_whole - gain_in_parts).abs() <= 0.02 * (1.0 + gain_whole),
            "{gain_whole}, {gain_in_parts}"
        );
        let known =
            |a: &Analysis| -> u64 { a.blame.iter().filter(|b| b.holder.is_some()).map(|b| b.wait_ns).sum() };
        let (a, b) = (known(&whole), known(&parts));
        assert!(
            a >= b && (a - b) as f64 <= 0.05 * a as f64,
            "{a} ns were waited for somebody, {b} in {windows} windows"
        );
    }
}

#[test]
fn a_short_file_is_one_window_and_the_same_to_the_byte() {
    let trace = recorded();
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.trace");
    std::fs::write(&path, trace.to_bytes()).expect("written");
    let options = AnalyzeOptions::default();
    let whole = Analysis::new(&trace, &options).expect("analyzed");
    let of_file = Analysis::of_file(&path, 1 << 20, &options).expect("read").expect("analyzed");
    assert_eq!(whole, of_file);
}

#[test]
fn rewritten_events_are_in_order_of_time() {
    let trace = recorded();
    let bytes = trace.to_bytes();
    assert_eq!(Trace::from_bytes(&bytes).expect("just written"), trace);
}

#[test]
fn an_operation_around_damaged_events_counts_before_and_after_them() {
    let mut encoder = Encoder::new();
    encoder.session(&recorded().session);
    encoder.clock(&ClockSample { ticks: 1, monotonic_ns: 1, process_cpu_ns: 0 });
    encoder.operations([(1, "thread", "", 0), (2, "step", "", 0)]);
    let (name, cpu) = ("worker".to_owned(), CpuSource::None);
    encoder.thread(&ThreadInfo { tag: 1, os_id: 1, name, cpu });
    let at = |ticks: u64, kind, operation| Event { operation, ..Event::new(ticks, kind) };
    let step = |from: u64| [at(from, EventKind::Enter, 2), at(from + 10_000_000, EventKind::Exit, 2)];
    encoder.events(1, 0, &[at(10_000_000, EventKind::Enter, 1)]);
    encoder.events(1, 0, &step(20_000_000));
    let damaged = encoder.as_bytes().len();
    encoder.events(1, 0, &step(40_000_000));
    encoder.events(1, 0, &step(60_000_000));
    encoder.events(1, 0, &[at(90_000_000, EventKind::Exit, 1)]);
    encoder.clock(&ClockSample { ticks: 100_000_000, monotonic_ns: 100_000_000, process_cpu_ns: 0 });
    encoder.end(0);
    let mut bytes = encoder.into_bytes();
    bytes[damaged + 20] ^= 1;
    let trace = Trace::from_bytes(&bytes).expect("read");
    let analysis = Analysis::new(&trace, &AnalyzeOptions::default()).expect("an operation");
    let row = |name: &str| analysis.operations.iter().find(|row| row.name == name).expect("a row").clone();
    assert_eq!((row("step").executions, row("step").elapsed_ns), (2, 20_000_000));
    // From 10 to 30 ms, and from 60 to 90 ms.
    assert_eq!((row("thread").executions, row("thread").elapsed_ns), (2, 50_000_000));
    let damage = analysis.recorded.damage.clone().expect("reported");
    assert_eq!((damage.events, damage.from_ns, damage.to_ns), (2, 19_999_999, 59_999_999));
    let mut text = Vec::new();
    report(&trace, &ReportOptions::default(), &mut text).expect("a report");
    let text = String::from_utf8(text).expect("text");
    assert!(text.contains("2 events are missing, recorded between 0.020 s and 0.060 s"), "{text}");
}
