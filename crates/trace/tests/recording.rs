//! Recordings of real threads have every event once, on the right thread and in the right operation.
#![cfg(not(any(loom, feature = "off")))]

use azekura_trace::event::EventKind::{
    self, Anchor, Enter, Exit, Hold, Lost, Mark, Release, WaitBegin, WaitEnd,
};
use azekura_trace::event::WAITED;
use azekura_trace::file::{CpuSource, Ending, ThreadTrace, Trace};
use azekura_trace::{
    CpuTime, HoldMode, Operation, Options, Site, StartError, StopError, WaitKind, hold, is_enabled, mark,
    operation, released, start, stop, suspend, thread_tag, wait, wait_for,
};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

static GET: Operation = Operation::new("get");
static PUT: Operation = Operation::new("put");
static CACHE: Site = Site::new("cache");
static LOG: Site = Site::new("log");

/// Returns a lock that lets one test of this file run at a time, because a process has one recording at a
/// time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let _ = stop(); // ends the recording of a failed test
    turn
}

fn record(options: Options, work: impl FnOnce()) -> Trace {
    start(options).expect("it is our turn");
    work();
    stop().expect("started").trace().expect("just written")
}

fn mine(trace: &Trace) -> &ThreadTrace {
    trace.threads.iter().find(|t| t.tag == thread_tag().0).expect("this thread recorded")
}

fn kinds(thread: &ThreadTrace) -> Vec<EventKind> {
    thread.events.iter().map(|e| e.kind).filter(|k| *k != Anchor).collect()
}

#[test]
fn operations_and_waits_are_recorded_in_order_and_named() {
    let _turn = turn();
    let trace = record(Options { label: "x".into(), ..Options::default() }, || {
        let _put = operation(&PUT);
        drop(operation(&GET));
        let outer = wait(&LOG, 0x1000, WaitKind::Log);
        drop(wait_for(&CACHE, 0x2000, WaitKind::Latch, thread_tag()));
        drop(outer);
        released(&CACHE, 0x2000);
        mark(&CACHE, 42);
    });
    let thread = mine(&trace);
    let expected =
        [Enter, Enter, Exit, WaitBegin, WaitBegin, WaitEnd, WaitEnd, Release, Mark, Exit].as_slice();
    assert_eq!(kinds(thread), expected);
    let event = |i: usize| thread.events.iter().filter(|e| e.kind != Anchor).nth(i).expect("recorded");
    let name = |i: usize| trace.operations[&event(i).operation].name.as_str();
    assert_eq!([name(0), name(1), name(2), name(3), name(9)], ["put", "get", "get", "put", "put"]);
    let site = &trace.sites[&event(4).site];
    assert_eq!((site.name.as_str(), site.line), ("cache", CACHE.line()));
    assert!(site.file.ends_with("recording.rs"));
    let put = u64::from(event(0).operation);
    assert_eq!(event(4).argument, WaitKind::Latch as u64 | put << 8 | u64::from(thread_tag().0) << 32);
    assert_eq!(event(8).object, 42);
    assert_eq!((trace.session.label.as_str(), trace.ending), ("x", Ending::Complete));
    assert!(thread.events.is_sorted_by_key(|e| e.ticks), "one thread's clock never runs back");
}

#[test]
fn off_records_nothing_and_a_guard_across_the_border_is_no_event() {
    let _turn = turn();
    assert!(!is_enabled());
    let before = operation(&GET);
    let mut inside = None;
    let trace = record(Options::default(), || {
        assert!(is_enabled());
        drop(before);
        inside = Some(operation(&PUT));
    });
    drop(inside);
    assert_eq!(kinds(mine(&trace)), [Enter]);
    let trace = record(Options::default(), || drop(operation(&GET)));
    assert_eq!(kinds(mine(&trace)), [Enter, Exit], "a second recording starts afresh");
}

#[test]
fn a_suspension_records_ends_of_open_operations_and_no_new_ones() {
    let _turn = turn();
    let options = Options { hold_sampling: 1, operation_sampling: 1, ..Options::default() };
    let trace = record(options, || {
        let put = operation(&PUT);
        let waiting = wait(&CACHE, 0x1000, WaitKind::Latch);
        let suspended = suspend().expect("it is under way");
        assert!(!is_enabled() && suspend().is_none(), "once is enough");
        drop(waiting);
        drop(hold(&CACHE, 0x1000, HoldMode::Exclusive));
        let inside = operation(&GET);
        mark(&CACHE, 1);
        drop(suspended);
        assert!(is_enabled());
        drop(inside);
        mark(&CACHE, 2);
        drop(hold(&CACHE, 0x1000, HoldMode::Exclusive));
        drop(suspend());
        drop(put);
        drop(operation(&GET));
    });
    let thread = mine(&trace);
    let expected = [Enter, WaitBegin, WaitEnd, Mark, Hold, Exit, Enter, Exit].as_slice();
    assert_eq!(kinds(thread), expected);
    let of = |kind| thread.events.iter().find(|e| e.kind == kind).expect("recorded");
    assert_eq!(of(Mark).object, 2);
    assert_eq!(trace.operations[&of(Mark).operation].name, "put", "the inner one was not recorded");
    assert_eq!(of(Hold).flags & WAITED, 0, "the hold that followed the wait was another");
}

#[test]
fn a_suspended_recording_can_be_stopped_and_its_suspension_is_not_the_next_ones() {
    let _turn = turn();
    assert!(suspend().is_none(), "nothing is under way");
    for drain_every in [None, Some(Duration::from_millis(1)), Some(Duration::from_secs(3600))] {
        let options = || Options { drain_every, ..Options::default() };
        start(options()).unwrap();
        mark(&CACHE, 1);
        let suspended = suspend();
        assert!(suspended.is_some());
        let trace = stop().unwrap().trace().unwrap();
        assert_eq!(kinds(mine(&trace)), [Mark]);
        drop(suspended);
        assert!(!is_enabled());

        start(options()).unwrap();
        let stale = suspend();
        stop().unwrap();
        start(options()).unwrap();
        let current = suspend();
        drop(stale);
        assert!(current.is_some() && !is_enabled(), "that was another recording's");
        drop(current);
        mark(&CACHE, 2);
        assert_eq!(kinds(mine(&stop().unwrap().trace().unwrap())), [Mark]);
    }
}

/// Every span that began before a suspension has its end, with more threads than processors.
#[test]
fn a_suspension_leaves_no_operation_open() {
    let _turn = turn();
    let options = Options { operation_sampling: 1, ring_events: 1 << 16, ..Options::default() };
    let trace = record(options, || {
        std::thread::scope(|s| {
            let work = |thread| {
                for _ in 0..2_000 {
                    let _put = operation(&PUT);
                    drop(wait(&CACHE, thread, WaitKind::Latch));
                    drop(operation(&GET));
                    std::thread::yield_now();
                }
            };
            let threads: Vec<_> = (0..4).map(|thread| s.spawn(move || work(thread))).collect();
            while threads.iter().any(|thread| !thread.is_finished()) {
                let suspended = suspend();
                std::thread::yield_now();
                drop(suspended);
                std::thread::yield_now();
            }
        });
    });
    assert_eq!(trace.threads.iter().map(|thread| thread.lost).sum::<u64>(), 0);
    for thread in &trace.threads {
        let (mut operations, mut waits) = (0, 0);
        for event in &thread.events {
            match event.kind {
                Enter => operations += 1,
                Exit => operations -= 1,
                WaitBegin => waits += 1,
                WaitEnd => waits -= 1,
                _ => {}
            }
            assert!((0..=2).contains(&operations) && (0..=1).contains(&waits), "{event:?}");
        }
        assert_eq!((operations, waits), (0, 0));
    }
}

#[test]
fn one_recording_at_a_time() {
    let _turn = turn();
    assert!(matches!(stop(), Err(StopError::NotStarted)));
    start(Options::default()).unwrap();
    assert!(matches!(start(Options::default()), Err(StartError::AlreadyStarted)));
    stop().unwrap();
    let nowhere = Options { file: Some("/nonexistent/trace".into()), ..Options::default() };
    assert!(matches!(start(nowhere), Err(StartError::Create { .. })));
    assert!(!is_enabled());
}

#[test]
fn t2_a_full_ring_without_a_collector_counts_every_lost_event() {
    let _turn = turn();
    let options = Options { ring_events: 64, drain_every: None, cpu: CpuTime::Off, ..Options::default() };
    let trace = record(options, || (0..1000).for_each(|i| mark(&CACHE, i)));
    let thread = mine(&trace);
    assert_eq!((thread.events.len(), thread.lost), (64, 936));
    assert_eq!(thread.events.last().unwrap().object, 63, "the first are kept");
}

#[test]
fn t2_delivered_and_lost_events_add_up_to_all_events() {
    let _turn = turn();
    let options = Options { ring_events: 256, cpu: CpuTime::Off, ..Options::default() };
    let trace = record(options, || {
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| (0..50_000).for_each(|i| mark(&LOG, i)));
            }
        });
    });
    assert_eq!(trace.threads.len(), 3);
    for thread in &trace.threads {
        let marks = thread.events.iter().filter(|e| e.kind == Mark).count() as u64;
        assert_eq!(marks + thread.lost, 50_000);
        let reported: u64 = thread.events.iter().filter(|e| e.kind == Lost).map(|e| e.object).sum();
        assert!(reported <= thread.lost);
    }
}

#[test]
fn threads_that_end_leave_their_events_their_names_and_their_numbers() {
    let _turn = turn();
    let trace = record(Options::default(), || {
        for i in 0..20 {
            let work = move || {
                let _op = operation(&GET);
                mark(&CACHE, i);
            };
            std::thread::Builder::new().name(format!("short {i}")).spawn(work).unwrap().join().unwrap();
        }
    });
    assert_eq!(trace.threads.len(), 20);
    for (i, thread) in trace.threads.iter().enumerate() {
        assert_eq!(thread.name, format!("short {i}"));
        assert_eq!(kinds(thread), [Enter, Mark, Exit]);
        assert!(thread.os_id > 0);
    }
}

#[test]
fn a_probe_in_a_thread_local_destructor_does_no_harm() {
    struct Late;
    impl Drop for Late {
        fn drop(&mut self) {
            drop(operation(&PUT));
            drop(wait(&CACHE, 1, WaitKind::Latch));
        }
    }
    thread_local!(static LATE: Late = const { Late });
    let _turn = turn();
    let trace = record(Options::default(), || {
        std::thread::spawn(|| {
            LATE.with(|_| ());
            drop(operation(&GET));
        })
        .join()
        .unwrap();
    });
    assert_eq!(kinds(&trace.threads[0])[..2], [Enter, Exit]);
}

#[test]
fn a_file_is_readable_while_it_is_written_and_complete_after() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.trace");
    let options = Options {
        file: Some(path.clone()),
        drain_every: Some(Duration::from_millis(1)),
        ..Options::default()
    };
    start(options).unwrap();
    mark(&CACHE, 7);
    let early = loop {
        let trace = Trace::read(&path).unwrap();
        if trace.event_count() > 0 {
            break trace;
        }
        std::thread::yield_now();
    };
    assert!(matches!(early.ending, Ending::CutShort { .. }));
    mark(&CACHE, 8);
    let recording = stop().unwrap();
    assert_eq!(recording.path(), Some(path.as_path()));
    let copy = dir.path().join("copy.trace");
    recording.save(&copy).unwrap();
    let trace = Trace::read(&copy).unwrap();
    assert_eq!(trace, recording.trace().unwrap());
    assert_eq!(trace.ending, Ending::Complete);
    assert_eq!(kinds(mine(&trace)), [Mark, Mark]);
    assert_eq!(recording.events(), trace.event_count());
}

#[test]
fn a_file_that_cannot_take_the_head_is_no_start() {
    let _turn = turn();
    let full = Options { file: Some("/dev/full".into()), ..Options::default() };
    assert!(matches!(start(full), Err(StartError::Create { .. })));
    assert!(!is_enabled());
}

#[test]
fn a_file_that_fails_later_ends_the_recording_and_stop_returns_the_error() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, mode, 0).unwrap();
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::io::Read::read(&mut std::fs::File::open(pipe).unwrap(), &mut [0; 16]).unwrap()
    });
    let quick = Some(Duration::from_millis(1));
    start(Options { file: Some(pipe), drain_every: quick, ..Options::default() }).unwrap();
    assert_eq!(reader.join().unwrap(), 16); // reads the head and closes the pipe, so that further writes fail
    while is_enabled() {
        mark(&CACHE, 1);
        std::thread::yield_now();
    }
    assert!(matches!(stop(), Err(StopError::Write { .. })));
}

#[test]
fn holds_are_sampled_or_recorded_after_a_wait() {
    let _turn = turn();
    let sampled = azekura_trace::event::SAMPLED;
    let options = Options { hold_sampling: 16, ..Options::default() };
    let trace = record(options, || {
        (0..10_000).for_each(|_| drop(hold(&CACHE, 1, HoldMode::Exclusive)));
        drop(wait(&LOG, 9, WaitKind::Lock));
        drop(hold(&LOG, 9, HoldMode::Shared));
    });
    let holds: Vec<_> = mine(&trace).events.iter().filter(|e| e.kind == Hold).collect();
    let drawn = holds.iter().filter(|e| e.flags & sampled != 0 && e.object == 1).count();
    assert!((540..810).contains(&drawn), "64 of the first 256, one in 16 of the rest: {drawn}");
    let stand_for: u32 = holds.iter().filter(|e| e.object == 1).map(|e| e.stands_for()).sum();
    assert!((8_000..12_000).contains(&stand_for), "for all ten thousand: {stand_for}");
    assert!(holds.iter().any(|e| e.object == 9), "the hold after the wait is there for certain");
}

/// The anchors of a thread are consistent with the thread clock, and each sleep begins a segment.
#[test]
fn t5_anchors_tell_the_thread_clock_and_every_sleep_starts_a_segment() {
    let _turn = turn();
    for cpu in [CpuTime::Auto, CpuTime::ThreadClock] {
        let trace = record(Options { cpu, ..Options::default() }, || {
            for _ in 0..10 {
                let _op = operation(&GET);
                let _wait = wait(&LOG, 1, WaitKind::Log);
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        let thread = mine(&trace);
        assert_ne!(thread.cpu, CpuSource::None);
        let ends = thread.events.iter().filter(|e| e.kind == WaitEnd);
        assert!(ends.clone().all(azekura_trace::event::Event::is_switched), "{cpu:?}");
        assert_eq!(ends.count(), 10);
        let anchors: Vec<_> = thread.events.iter().filter(|e| e.kind == Anchor).map(|e| e.object).collect();
        assert!(anchors.len() >= 10 && anchors.is_sorted());
        let elapsed = trace.end.monotonic_ns - trace.begin.monotonic_ns;
        assert!(anchors.last().unwrap() - anchors[0] < elapsed, "it slept most of the time");
    }
}

/// The timed executions of short operations represent all executions, and every wait is recorded. (Tests in
/// `stride` check the number of timed executions.)
#[test]
fn unsampled_executions_are_represented_and_their_waits_are_recorded() {
    let _turn = turn();
    // On a slow machine more executions are timed, and the collector may be late: no event may be lost.
    let trace = record(Options { ring_events: 1 << 17, ..Options::default() }, || {
        for i in 0..20_000 {
            let _put = operation(&PUT);
            let _get = operation(&GET);
            if i % 100 == 0 {
                drop(wait(&CACHE, i, WaitKind::Latch));
            }
        }
    });
    let thread = mine(&trace);
    let mut inside = Vec::new();
    let (mut stand_for, mut waits) = ([0; 2], 0);
    for event in &thread.events {
        let name = || trace.operations[&event.operation].name.as_str();
        match event.kind {
            Enter => {
                stand_for[usize::from(name() == "get")] += event.executions();
                inside.push(event.operation);
            }
            Exit => assert_eq!(inside.pop(), Some(event.operation)),
            WaitBegin => {
                assert_eq!(
                    (inside.len(), name()),
                    (2, "get"),
                    "a wait in both, report or not when they began"
                );
                waits += 1;
            }
            _ => {}
        }
    }
    assert_eq!((waits, inside.len(), thread.lost), (200, 0, 0));
    let off = stand_for.map(|n: u32| n.abs_diff(20_000));
    assert!(
        off.iter().all(|off| *off <= Options::default().operation_sampling),
        "all but part of a stride: {stand_for:?}"
    );
    assert!(thread.events.is_sorted_by_key(|e| e.ticks));
}

/// A hold contains its operation, so it does not cause events of executions that are not timed.
#[test]
fn a_hold_records_its_operation_and_no_other_event() {
    const EXECUTIONS: u64 = 20_000;
    let _turn = turn();
    let options =
        Options { ring_events: 1 << 17, hold_sampling: 16, operation_sampling: 64, ..Options::default() };
    let trace = record(options, || {
        for _ in 0..EXECUTIONS {
            let _get = operation(&GET);
            let _hold = hold(&CACHE, 0x10, HoldMode::Exclusive);
        }
    });
    let thread = mine(&trace);
    let of = |kind| thread.events.iter().filter(move |e| e.kind == kind);
    let holds: u64 = of(Hold).map(|e| u64::from(e.stands_for())).sum();
    // The bound is eight standard deviations: each hold represents at most 16 holds.
    assert!(holds.abs_diff(EXECUTIONS) < EXECUTIONS / 4, "{holds} of {EXECUTIONS}");
    assert!(of(Hold).all(|e| trace.operations.get(&e.operation).is_some_and(|o| o.name == "get")));
    assert!(of(Enter).all(|e| e.executions() > 0), "an unsampled execution was recorded");
    let executions: u64 = of(Enter).map(|e| u64::from(e.executions())).sum();
    assert!(executions.abs_diff(EXECUTIONS) <= 64, "{executions} of {EXECUTIONS}");
    assert!(thread.events.is_sorted_by_key(|e| e.ticks), "in the order of time");
}

#[test]
fn asked_for_all_every_execution_is_there() {
    let _turn = turn();
    let options = Options { operation_sampling: 1, cpu: CpuTime::Off, ..Options::default() };
    let trace = record(options, || (0..5_000).for_each(|_| drop(operation(&GET))));
    assert_eq!(mine(&trace).events.len(), 10_000);
}

#[test]
fn without_cpu_time_there_are_no_anchors() {
    let _turn = turn();
    let trace = record(Options { cpu: CpuTime::Off, ..Options::default() }, || {
        std::thread::sleep(Duration::from_micros(100));
        drop(operation(&GET));
    });
    let thread = mine(&trace);
    assert_eq!(thread.cpu, CpuSource::None);
    assert_eq!(thread.events.iter().map(|e| (e.kind, e.flags)).collect::<Vec<_>>(), [(Enter, 0), (Exit, 0)]);
}
