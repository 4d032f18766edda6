//! Exact results of the analyzer for handmade traces.
#![cfg(feature = "analyze")]

mod common;

use azekura_trace::WaitKind::{Device, Idle, Latch, Lock, Log};
use azekura_trace::analyze::{
    Analysis, AnalyzeError, AnalyzeOptions, OperationRow, Preemption, Verdict, WaitRow,
};
use azekura_trace::event::{EventKind, UNWOKEN};
use azekura_trace::file::{Ending, OffCpu, Switches, Trace};
use common::simulator::Duration::Exponential;
use common::simulator::Machine;
use common::simulator::Mode::Exclusive;
use common::simulator::Step::{self, Compute, Enter, Exit, Unlock};
use common::{Script, label, name, trace};

fn analyze(trace: &Trace) -> Analysis {
    Analysis::new(trace, &AnalyzeOptions::default()).expect("no operation was asked for")
}

fn operation<'a>(analysis: &'a Analysis, name: &str) -> &'a OperationRow {
    analysis.operations.iter().find(|o| o.name == name).expect("recorded")
}

fn wait<'a>(analysis: &'a Analysis, operation: &str, site: &str) -> &'a WaitRow {
    analysis.waits.iter().find(|w| w.operation == operation && w.site == site).expect("recorded")
}

/// Returns elapsed = CPU + lock + I/O + idle + other - CPU in wait.
fn parts(row: &OperationRow) -> u64 {
    let known = |ns: Option<u64>| ns.expect("CPU time is known");
    known(row.cpu_ns) + row.lock_wait_ns + row.io_wait_ns + row.idle_wait_ns + known(row.other_ns)
        - known(row.cpu_while_waiting_ns)
}

#[test]
fn the_time_of_an_operation_is_attributed_to_its_parts() {
    // 0-100 computing, 100-300 blocked at a latch, 300-350 computing, 350-750 device, 750-800 computing,
    // 800-900 preempted, 900-1000 computing.
    let script = Script::default()
        .enter(0, 1)
        .switched()
        .anchor(0, 5000)
        .begin(100, 1, 0xa0, Latch)
        .end(300, 1, 0xa0)
        .switched()
        .anchor(300, 5100)
        .begin(350, 2, 0, Device)
        .end(750, 2, 0)
        .switched()
        .anchor(750, 5150)
        .begin(800, 3, 0, Idle)
        .end(800, 3, 0)
        .anchor(900, 5200)
        .switched()
        .exit(1000);
    let analysis = analyze(&trace(2000, &["get"], &["cache", "disk", "queue"], vec![script]));
    let row = operation(&analysis, "get");
    assert_eq!((row.executions, row.elapsed_ns, row.cpu_ns), (1, 1000, Some(300)));
    assert_eq!((row.lock_wait_ns, row.io_wait_ns, row.idle_wait_ns), (200, 400, 0));
    assert_eq!((row.other_ns, row.cpu_while_waiting_ns), (Some(100), Some(0)));
    assert_eq!(parts(row), 1000);
    assert_eq!(analysis.total.elapsed_ns, 1000);
    let cache = wait(&analysis, "get", &label("cache", 1));
    assert_eq!((cache.count, cache.net_ns, cache.longest_ns), (1, 200, 200));
    assert_eq!(cache.per_execution_ns, 200.0);
}

#[test]
fn t4_a_mutex_inside_a_rw_lock_counts_once() {
    // The thread waits for the rw_lock from 100 to 600, and inside that wait for its mutex from 200 to 500.
    let script = Script::default()
        .enter(0, 1)
        .anchor(0, 0)
        .begin(100, 1, 0xa0, Latch)
        .begin(200, 2, 0xa8, Latch)
        .end(500, 2, 0xa8)
        .end(600, 1, 0xa0)
        .exit(700);
    let analysis = analyze(&trace(1000, &["get"], &["rw_lock", "mutex"], vec![script]));
    let (outer, inner) =
        (wait(&analysis, "get", &label("rw_lock", 1)), wait(&analysis, "get", &label("mutex", 2)));
    assert_eq!((outer.net_ns, outer.gross_ns), (200, 500));
    assert_eq!((inner.net_ns, inner.gross_ns), (300, 300));
    assert_eq!(operation(&analysis, "get").lock_wait_ns, 500);
    // The waits spin all the time, and their CPU time also counts once.
    assert_eq!((outer.cpu_ns, inner.cpu_ns), (Some(200), Some(300)));
}

#[test]
fn t4_an_io_wait_inside_a_lock_wait_is_io() {
    let script = Script::default()
        .enter(0, 1)
        .anchor(0, 0)
        .begin(0, 1, 1, Lock)
        .begin(10, 2, 2, Log)
        .end(60, 2, 2)
        .end(100, 1, 1)
        .exit(100);
    let analysis = analyze(&trace(100, &["put"], &["row", "log"], vec![script]));
    let row = operation(&analysis, "put");
    assert_eq!((row.lock_wait_ns, row.io_wait_ns), (50, 50));
}

#[test]
fn t5_spinning_is_waiting_and_cpu_time() {
    let script =
        Script::default().enter(0, 1).anchor(0, 70).begin(100, 1, 1, Latch).end(900, 1, 1).exit(1000);
    let analysis = analyze(&trace(1000, &["get"], &["cache"], vec![script]));
    let row = operation(&analysis, "get");
    assert_eq!((row.cpu_ns, row.lock_wait_ns, row.cpu_while_waiting_ns), (Some(1000), 800, Some(800)));
    assert!(row.cpu_ns.unwrap() + row.lock_wait_ns > row.elapsed_ns, "as in the paper's tables");
    assert_eq!((parts(row), row.other_ns), (1000, Some(0)));
}

#[test]
fn t5_the_cpu_time_at_a_waits_end_comes_from_the_anchor_behind_it() {
    // The wait ends at 500, after the thread blocked. Its anchor is taken at 600, after the critical section.
    let script = Script::default()
        .enter(0, 1)
        .switched()
        .anchor(0, 0)
        .begin(100, 1, 1, Latch)
        .end(500, 1, 1)
        .switched()
        .exit(600)
        .anchor(600, 220);
    let analysis = analyze(&trace(1000, &["get"], &["cache"], vec![script]));
    let row = operation(&analysis, "get");
    // CPU time is 220 at 600, without a switch since 500, so it was 120 at the wait's end: 20 ns were used
    // before sleeping.
    assert_eq!((row.cpu_ns, row.cpu_while_waiting_ns, row.other_ns), (Some(220), Some(20), Some(0)));
}

#[test]
fn inner_operations_are_part_of_outer_ones_and_the_total_counts_the_outermost() {
    let script = Script::default()
        .enter(0, 1)
        .anchor(0, 0)
        .enter(100, 2)
        .begin(150, 1, 1, Latch)
        .end(250, 1, 1)
        .enter(260, 2) // a recursive execution
        .begin(270, 1, 1, Latch)
        .end(280, 1, 1)
        .exit(290)
        .exit(300)
        .exit(400);
    let analysis = analyze(&trace(500, &["txn", "get"], &["cache"], vec![script]));
    let (txn, get) = (operation(&analysis, "txn"), operation(&analysis, "get"));
    assert_eq!((txn.executions, txn.elapsed_ns, txn.lock_wait_ns), (1, 400, 110));
    assert_eq!((get.executions, get.elapsed_ns, get.lock_wait_ns), (2, 200, 110));
    assert_eq!((analysis.total.executions, analysis.total.elapsed_ns), (1, 400));
    assert_eq!(wait(&analysis, "get", &label("cache", 1)).count, 2);
    assert_eq!(analysis.sites[0].count, 2, "a site counts each wait once");
    assert_eq!(analysis.operation, "txn", "the outermost with the most time");
}

#[test]
fn sampled_executions_are_scaled_and_waits_are_not() {
    let weight = |mut script: Script, flags| {
        script.events.last_mut().expect("an enter").flags = flags;
        script
    };
    // Two of eight executions were sampled, in strides of four. One more is recorded because of its wait.
    let drawn = azekura_trace::event::SAMPLED | 2 << 4;
    let script = weight(Script::default().anchor(0, 0).enter(100, 1), drawn).exit(200);
    let script = weight(script.enter(300, 1), drawn).begin(320, 1, 7, Latch).end(350, 1, 7).exit(400);
    let script = weight(script.enter(500, 1), azekura_trace::event::UNTIMED);
    let script = script.begin(510, 1, 7, Latch).end(590, 1, 7).exit(600);
    let analysis = analyze(&trace(1_000, &["get"], &["cache"], vec![script]));
    let row = operation(&analysis, "get");
    assert_eq!((row.executions, row.timed), (8, 2));
    assert_eq!(row.lock_wait_ns, 30 + 80);
    // Without waits the executions take 100 and 70, four times each. The waits are added once.
    assert_eq!(row.elapsed_ns, 4 * 100 + 4 * 70 + 110);
    assert_eq!(wait(&analysis, "get", &label("cache", 1)).count, 2);
    assert_eq!(parts(row), row.elapsed_ns);
    assert_eq!((row.p50_ns, row.max_ns), (100, 100));
    assert_eq!(analysis.what_if.throughput_per_second, 8e6);
}

#[test]
fn t2_executions_in_which_events_were_lost_are_left_out_and_counted() {
    let script = Script::default()
        .enter(0, 1)
        .anchor(0, 0)
        .exit(100)
        .enter(200, 1)
        .begin(210, 1, 1, Latch)
        .lost(400, 7)
        .exit(500)
        .enter(600, 1)
        .exit(650);
    let analysis = analyze(&trace(1000, &["get"], &["cache"], vec![script]));
    let row = operation(&analysis, "get");
    assert_eq!((row.executions, row.elapsed_ns, row.lock_wait_ns), (2, 150, 0));
    assert_eq!((analysis.recorded.lost, analysis.recorded.unmatched), (7, 3));
}

#[test]
fn operations_open_at_the_borders_are_no_executions() {
    let mut script = Script::default().anchor(10, 0);
    script = script.end(20, 1, 1).enter(100, 1).exit(200).enter(300, 1).begin(350, 1, 0xbeef, Lock);
    let analysis = analyze(&trace(1000, &["get"], &["row"], vec![script]));
    assert_eq!(operation(&analysis, "get").executions, 1);
    assert_eq!(analysis.recorded.unmatched, 0, "the borders lose nothing");
    let open: Vec<_> = analysis.open.iter().map(|o| (o.site.as_deref(), o.object, o.so_far_ns)).collect();
    let row = label("row", 1);
    assert_eq!(open, [(None, 0, 700), (Some(row.as_str()), 0xbeef, 650)]);
}

#[test]
fn sites_of_one_line_are_merged_and_their_instances_are_distinguished() {
    let script = Script::default()
        .enter(0, 1)
        .anchor(0, 0)
        .begin(0, 1, 0xa, Latch)
        .end(10, 1, 0xa)
        .begin(20, 2, 0xb, Latch)
        .end(90, 2, 0xb)
        .exit(100);
    let mut trace = trace(100, &["get"], &["stripe", "stripe"], vec![script]);
    trace.sites = [(1, name("stripe", 10)), (2, name("stripe", 10))].into();
    let analysis = analyze(&trace);
    assert_eq!(analysis.sites.len(), 1);
    let site = &analysis.sites[0];
    assert_eq!((site.count, site.net_ns, site.instances), (2, 80, 2));
    assert_eq!((site.worst[0].object, site.worst[0].net_ns), (0xb, 70));
}

#[test]
fn waits_outside_of_operations_have_a_row_of_their_own() {
    let script = Script::default().anchor(0, 0).begin(10, 1, 1, Log).end(30, 1, 1);
    let analysis = analyze(&trace(100, &["get"], &["log"], vec![script]));
    assert_eq!(wait(&analysis, "(outside)", &label("log", 1)).net_ns, 20);
    assert_eq!((analysis.operation.as_str(), &analysis.verdict), ("(outside)", &Verdict::Nothing));
}

#[test]
fn a_recording_that_was_cut_short_does_not_show_that_nothing_stands_out() {
    let script = Script::default().anchor(0, 0).begin(10, 1, 1, Log).end(30, 1, 1);
    let mut trace = trace(100, &["get"], &["log"], vec![script]);
    trace.ending = Ending::CutShort { offset: 99 };
    let verdict = analyze(&trace).verdict;
    assert_eq!(verdict, Verdict::CutShort { duration_ns: 100 });
    assert!(verdict.sentence().starts_with("Not known: the recording was cut short"));
}

#[test]
fn the_holder_is_the_one_the_lock_named() {
    let waiter =
        Script::default().anchor(0, 0).enter(0, 1).begin_for(100, 1, 1, Lock, 2).end(300, 1, 1).exit(400);
    // Thread 2 runs until 200 and is off its processor until 400.
    let holder = Script::default()
        .anchor(0, 0)
        .enter(50, 2)
        .exit(200)
        .anchor(400, 200)
        .switched()
        .enter(410, 1)
        .exit(420);
    let analysis = analyze(&trace(500, &["get", "scan"], &["row"], vec![waiter, holder]));
    let row = &analysis.blame[0];
    assert_eq!((row.operation.as_str(), row.holder.as_deref()), ("get", Some("scan")));
    assert_eq!((row.wait_ns, row.holder_ran_ns, row.holder_off_ns), (200, 100, 100));
}

#[test]
fn a_holder_in_no_operation_is_named_by_its_thread() {
    let waiter = Script::default().enter(0, 1).begin_for(100, 1, 5, Log, 2).end(200, 1, 5).exit(300);
    let server = Script::default().hold(150, 9, 9, 10);
    let analysis = analyze(&trace(500, &["get"], &["page being read by another"], vec![waiter, server]));
    let row = &analysis.blame[0];
    assert_eq!((row.holder.as_deref(), row.wait_ns), (Some("thread worker 2"), 100));
}

#[test]
fn a_wait_for_a_flush_is_a_wait_for_the_flushing_thread() {
    let committer =
        Script::default().anchor(0, 0).enter(0, 1).begin_for(100, 1, 1, Log, 2).end(300, 1, 1).exit(400);
    let leader = Script::default().anchor(0, 0).enter(50, 1).begin(60, 2, 0, Device).end(290, 2, 0).exit(310);
    let names = (&["commit"], &["flush", "disk"]);
    let analysis = analyze(&trace(500, names.0, names.1, vec![committer, leader]));
    // The leader's own wait for the device has no holder, and so no row.
    assert_eq!(analysis.blame.len(), 1);
    let row = &analysis.blame[0];
    assert_eq!((row.operation.as_str(), row.holder.as_deref()), ("commit", Some("commit")));
    assert_eq!((row.wait_ns, row.holder_waited_ns), (200, 190));
    assert_eq!(row.via.as_deref(), Some(label("disk", 2).as_str()));
}

#[test]
fn kernel_records_distinguish_preempted_from_blocked() {
    let off = |begin_ns, end_ns, preempted| OffCpu { begin_ns, end_ns, preempted };
    // Thread 1 waits from 100 to 300 and is off its processor from 400 to 700 and from 700 to 750.
    let waiter = Script::default()
        .anchor(0, 0)
        .enter(0, 1)
        .begin_for(100, 1, 1, Lock, 2)
        .end(300, 1, 1)
        .switched()
        .anchor(300, 100)
        .anchor(750, 200)
        .switched()
        .exit(800);
    // Thread 2, the holder, is off its processor from 150 to 250. Its CPU time between its events is assumed
    // to be evenly distributed, so 140 ns of it are in the wait.
    let holder = Script::default().anchor(0, 0).enter(0, 2).anchor(250, 150).switched().exit(600);
    let mut trace = trace(1000, &["get", "scan"], &["row"], vec![waiter, holder]);
    let not_asked = analyze(&trace);
    assert_eq!(
        (operation(&not_asked, "get").preempted_ns, not_asked.blame[0].holder_preempted_ns),
        (None, None)
    );
    trace.switches = Switches::Recorded { lost: 0 };
    trace.threads[0].off = vec![off(110, 290, true), off(400, 700, true), off(700, 750, false)];
    trace.threads[1].off = vec![off(150, 200, true), off(210, 250, false)];
    let analysis = analyze(&Trace::from_bytes(&trace.to_bytes()).unwrap());
    let row = operation(&analysis, "get");
    // Preempted time inside the wait counts as wait.
    assert_eq!((row.other_ns, row.preempted_ns), (Some(350), Some(300)));
    let row = &analysis.blame[0];
    assert_eq!((row.holder_off_ns, row.holder_preempted_ns), (60, Some(50)));
    assert_eq!(analysis.recorded.switches, Preemption::Kernel { stretches: 5, lost: 0 });
}

#[test]
fn the_holder_is_found_by_its_hold_or_its_release_and_may_be_waiting_itself() {
    let waiter = Script::default()
        .anchor(0, 0)
        .enter(0, 1)
        .begin(100, 1, 7, Latch)
        .end(300, 1, 7)
        .begin(400, 1, 8, Latch)
        .end(500, 1, 8)
        .begin(600, 1, 9, Latch)
        .end(700, 1, 9)
        .exit(800);
    let holder = Script::default()
        .anchor(0, 0)
        .enter(0, 2)
        .begin(120, 2, 0, Device)
        .end(270, 2, 0)
        .hold(299, 1, 7, 250) // ends just before the waiter got the object
        .release(520, 1, 8) // recorded a little late
        .exit(550);
    let analysis = analyze(&trace(1000, &["get", "write"], &["frame", "disk"], vec![waiter, holder]));
    let known = analysis.blame.iter().find(|b| b.holder.as_deref() == Some("write")).expect("found");
    assert_eq!((known.count, known.wait_ns, known.holder_waited_ns, known.handover_ns), (2, 300, 150, 1));
    assert_eq!(known.via.as_deref(), Some(label("disk", 2).as_str()));
    let unknown = analysis.blame.iter().find(|b| b.holder.is_none()).expect("object 9");
    assert_eq!((unknown.count, unknown.wait_ns), (1, 100));
}

#[test]
fn a_lock_in_use_all_the_time_sets_the_ceiling() {
    // Two threads take turns of 100 ns under one lock, so one of them always waits.
    let mut scripts = vec![Script::default().anchor(0, 0), Script::default().anchor(0, 0)];
    for i in 0..100u64 {
        let (at, who) = (i * 100, (i % 2) as usize);
        let script = std::mem::take(&mut scripts[who]);
        let (begin, acquired) = (at.saturating_sub(100), at);
        scripts[who] = script.enter(begin, 1).begin(begin, 1, 1, Latch).end(acquired, 1, 1).exit(at + 100);
    }
    let analysis = analyze(&trace(10_000, &["get"], &["big lock"], scripts));
    let lock = &analysis.what_if.locks[0];
    assert!((analysis.what_if.throughput_per_second - 1e7).abs() < 1.0);
    assert!(lock.utilisation > 0.97 && lock.ceiling_per_second.unwrap() < 1.03e7);
    // Without the lock both threads run in parallel, with twice the throughput.
    assert!((lock.gain - 1.0).abs() < 0.05, "{}", lock.gain);
    assert!(matches!(&analysis.verdict, Verdict::Lock { site, .. } if *site == label("big lock", 1)));
}

#[test]
fn an_operation_that_is_not_there_is_named_with_those_that_are() {
    let trace = trace(100, &["get"], &[], vec![Script::default().enter(0, 1).exit(10)]);
    let options = AnalyzeOptions { operation: Some("put".into()), ..AnalyzeOptions::default() };
    let error = Analysis::new(&trace, &options).unwrap_err();
    let AnalyzeError::UnknownOperation { known, .. } = &error else { panic!("{error}") };
    assert_eq!(*known, ["get"]);
}

#[test]
fn t1_a_baseline_gives_the_measured_slowdown() {
    let script = (0..8).fold(Script::default(), |s, i| s.enter(i * 100, 1).exit(i * 100 + 50));
    let trace = trace(1_000_000_000, &["get"], &[], vec![script]);
    let options = AnalyzeOptions { baseline_per_second: Some(10.0), ..AnalyzeOptions::default() };
    let slowdown = Analysis::new(&trace, &options).unwrap().slowdown.unwrap();
    assert_eq!((slowdown.recorded_per_second, slowdown.baseline_per_second), (8.0, 10.0));
    assert!((slowdown.slowdown - 0.2).abs() < 1e-12);
}

#[test]
fn without_cpu_time_the_columns_are_unknown_and_not_zero() {
    let mut trace = trace(100, &["get"], &[], vec![Script::default().enter(0, 1).exit(10)]);
    trace.threads[0].cpu = azekura_trace::file::CpuSource::None;
    let row = &analyze(&trace).operations[0];
    assert_eq!((row.cpu_ns, row.other_ns, row.elapsed_ns), (None, None, 10));
}

#[test]
fn a_truncated_trace_is_analyzed_and_marked() {
    let scripts = vec![Script::default().anchor(0, 0).enter(0, 1).exit(10).enter(20, 1)];
    let mut trace = trace(100, &["get"], &[], scripts);
    trace.ending = Ending::CutShort { offset: 99 };
    trace.end.ticks = 5; // events are newer than the last clock sample
    let analysis = analyze(&trace);
    assert_eq!((analysis.recorded.cut_short_at, analysis.recorded.duration_ns), (Some(99), 20));
}

#[test]
fn any_events_in_any_order_are_analyzed_without_a_panic() {
    let seed: u64 = 0xfee1_900d;
    println!("seed {seed:#x}");
    let mut state = seed;
    let mut random = |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) % n
    };
    for _ in 0..300 {
        let mut scripts = Vec::new();
        for _ in 0..3 {
            let mut script = Script::default();
            for _ in 0..random(60) {
                let kind = azekura_trace::event::EventKind::from_number(1 + random(9) as u8).unwrap();
                let event = azekura_trace::event::Event::new(random(2000), kind);
                script.events.push(azekura_trace::event::Event {
                    flags: random(8) as u8,
                    operation: random(4) as u16,
                    site: random(4) as u32,
                    object: random(3),
                    argument: random(20) | random(5) << 32,
                    ..event
                });
            }
            scripts.push(script);
        }
        let trace = trace(1000, &["a", "b"], &["x", "y"], scripts);
        let analysis = analyze(&trace);
        for row in &analysis.operations {
            assert!(row.lock_wait_ns + row.io_wait_ns + row.idle_wait_ns <= row.elapsed_ns, "{row:?}");
        }
    }
}

#[test]
fn in_a_convoy_a_wait_is_shared_out_among_those_who_held() {
    let waiter = Script::default().anchor(0, 0).enter(0, 1).begin(100, 1, 1, Latch).end(400, 1, 1).exit(500);
    let first = Script::default().anchor(0, 0).enter(0, 2).hold(200, 1, 1, 150).exit(210);
    let second = Script::default().anchor(0, 0).enter(0, 3).hold(400, 1, 1, 190).exit(410);
    let analysis = analyze(&trace(1000, &["get", "scan", "put"], &["frame"], vec![waiter, first, second]));
    let row = |holder: Option<&str>| {
        let row = analysis.blame.iter().find(|b| b.holder.as_deref() == holder).expect("a row");
        (row.count, row.wait_ns)
    };
    // There are 10 ns of handover between the two holds.
    assert_eq!((row(Some("scan")), row(Some("put"))), ((0, 100), (1, 200)));
}

#[test]
fn a_lock_with_waiters_only_in_inner_operations_counts() {
    // In cycles of 300 ns, each thread executes a put (I/O, no lock), then a get (which waits for a lock that
    // the others hold).
    let mut scripts = Vec::new();
    for who in 0..3u64 {
        let mut script = Script::default().anchor(0, 0);
        for round in 0..50u64 {
            let at = round * 300 + who * 100;
            script = script.enter(at, 1).begin(at, 2, 0, Device).end(at + 90, 2, 0).exit(at + 95);
            script = script.enter(at + 100, 2).begin(at + 100, 1, 1, Latch).end(at + 200, 1, 1);
            script = script.hold(at + 300, 1, 1, 100).sampled().exit(at + 300);
        }
        scripts.push(script);
    }
    let trace = trace(15_300, &["put", "get"], &["tree", "disk"], scripts);
    let options = AnalyzeOptions { operation: Some("put".into()), ..AnalyzeOptions::default() };
    let analysis = Analysis::new(&trace, &options).unwrap();
    assert_eq!(analysis.chosen().unwrap().lock_wait_ns, 0);
    let lock = &analysis.what_if.locks[0];
    // A cycle of 300 ns without its wait of 100 ns: throughput rises by one half.
    assert!((lock.gain - 0.5).abs() < 0.05, "{lock:?}");
    assert!(matches!(&analysis.verdict, Verdict::Lock { site, .. } if *site == label("tree", 1)));
}

#[test]
fn waits_followed_by_a_wait_without_the_lock_are_in_vain() {
    let waits = |script: Script, from: u64| {
        let script = script.begin(from, 1, 7, Latch).end(from + 1000, 1, 7);
        script.begin(from + 1010, 1, 7, Latch).end(from + 2000, 1, 7)
    };
    // The first thread was woken twice and got the lock the second time. The second trace has a hold after
    // each wait.
    let herd = waits(Script::default().enter(0, 1), 0).hold(2100, 1, 7, 50).exit(3000);
    let script = Script::default().enter(0, 1).begin(0, 1, 7, Latch).end(1000, 1, 7).hold(1005, 1, 7, 4);
    let each = script.begin(1010, 1, 7, Latch).end(2000, 1, 7).hold(2100, 1, 7, 50).exit(3000);
    // The second wait comes after other work.
    let script = Script::default().enter(0, 1).begin(0, 1, 7, Latch).end(1000, 1, 7);
    let later = script.begin(200_000, 1, 7, Latch).end(300_000, 1, 7).exit(400_000);
    // The time limit of the first wait passed.
    let mut expired = waits(Script::default().enter(0, 1), 0).hold(2100, 1, 7, 50).exit(3000);
    expired.events[2].flags |= UNWOKEN;
    assert_eq!(expired.events[2].kind, EventKind::WaitEnd);
    for (script, vain) in [(herd, 1), (each, 0), (later, 0), (expired, 0)] {
        let analysis = analyze(&trace(500_000, &["get"], &["gate"], vec![script]));
        assert_eq!((analysis.sites[0].count, analysis.sites[0].vain), (2, vain));
    }
}

#[test]
fn a_thundering_herd_and_spinning_waiters_are_reported() {
    let report = |burnt, vain| {
        let site = "gate".to_owned();
        let (is_limit, holder_off_cpu) = (false, false);
        Verdict::Lock { site, gain: 1.0, is_limit, holder_off_cpu, burnt, vain }.sentence()
    };
    assert_eq!(report(Some(0.05), 0.3), "gate: without it throughput would rise by 100 %.");
    assert!(report(Some(0.6), 0.3).ends_with("Its waiters spin: 60 % of their wait is CPU time."));
    assert!(report(None, 0.8).contains("Thundering herd: after 80 % of the wake-ups"));
}

#[test]
fn nothing_stands_out_only_if_no_class_of_time_is_large_in_any_operation() {
    let busy = |cpu| Script::default().enter(0, 1).anchor(0, 0).anchor(1000, cpu).switched().exit(1000);
    let waits = |kind| {
        let script = Script::default().enter(0, 2).anchor(0, 0).begin(0, 1, 1, kind).end(900, 1, 1);
        script.switched().exit(900).anchor(900, 0)
    };
    let report = |scripts| {
        let options = AnalyzeOptions { operation: Some("get".into()), ..AnalyzeOptions::default() };
        let analysis = Analysis::new(&trace(1000, &["get", "take"], &["queue"], scripts), &options);
        let analysis = analysis.expect("get is there");
        let besides = Verdict::waits_sentence(&analysis).unwrap_or_default();
        (analysis.verdict, besides)
    };
    // One thread on 64 processors is limited by its own work.
    let (verdict, besides) = report(vec![busy(1000)]);
    assert!(matches!(verdict, Verdict::Cpu { .. }) && besides.is_empty(), "{verdict:?} {besides}");
    assert!(verdict.sentence().starts_with("Its threads compute nearly all of the time"), "{verdict:?}");
    // A fifth of the thread's time is off the processor, without a probe.
    let (verdict, _) = report(vec![busy(800)]);
    assert!(matches!(verdict, Verdict::OffCpu { share, .. } if (share - 0.2).abs() < 0.01));
    // The first thread waits for nothing; the other threads do.
    let (verdict, besides) = report(vec![busy(1000), waits(Idle), waits(Device)]);
    assert!(matches!(verdict, Verdict::Cpu { .. }), "{verdict:?}");
    assert!(besides.contains("32 % of the time of all operations"), "{besides}");
}

/// Returns a trace of two threads that take turns under one lock, with the holders off their processors.
fn holders_off_cpu(machine_cpu: u64) -> Trace {
    let anchored = |script: Script, at| script.anchor(at, 0).switched();
    let mut scripts = vec![anchored(Script::default(), 0), anchored(Script::default(), 0)];
    for i in 0..200u64 {
        let (at, who) = (i * 1_000_000, (i % 2) as usize);
        let begin = at.saturating_sub(1_000_000);
        let script = std::mem::take(&mut scripts[who]).enter(begin, 1).begin(begin, 1, 1, Latch);
        let script = script.end(at, 1, 1).hold(at + 1_000_000, 1, 1, 1_000_000).exit(at + 1_000_000);
        scripts[who] = anchored(script, at + 1_000_000);
    }
    let mut trace = trace(200_000_000, &["get"], &["gate"], scripts);
    trace.machine_cpu_ns = Some((0, machine_cpu));
    trace
}

#[test]
fn too_few_processors_are_blamed_only_where_they_are_busy() {
    // There are 64 processors for 200 ms.
    let (idle, busy) = (analyze(&holders_off_cpu(1_000_000)), analyze(&holders_off_cpu(64 * 190_000_000)));
    assert!(idle.machine_utilisation.is_some_and(|part| part < 0.01));
    assert!(busy.machine_utilisation.is_some_and(|part| part > 0.9));
    assert!(matches!(idle.verdict, Verdict::Lock { holder_off_cpu: false, .. }), "{:?}", idle.verdict);
    assert!(matches!(busy.verdict, Verdict::Lock { holder_off_cpu: true, .. }), "{:?}", busy.verdict);
}

#[test]
fn rows_of_blame_add_up_to_the_waits() {
    for seed in 1..=6 {
        let lock = |site| Step::Lock { site, object: 1, mode: Exclusive, kind: Latch, spin: seed % 2 == 0 };
        let inner = [lock(2), Compute(Exponential(4_000)), Unlock { site: 2 }];
        let outer = [Enter(1), Compute(Exponential(9_000)), lock(1), Compute(Exponential(5_000))];
        let program = [&outer[..], &inner[..], &[Unlock { site: 1 }, Exit][..]].concat();
        let machine = Machine { seed: seed * 7919, processors: 2 + seed as usize, ..Machine::default() };
        let trace = machine.run(20_000_000, &["get"], &["outer", "inner"], vec![program; 6]).trace;
        let analysis = analyze(&trace);
        for row in analysis.blame.iter().filter(|row| row.holder.is_some()) {
            let parts = row.holder_ran_ns + row.holder_waited_ns + row.holder_off_ns + row.handover_ns;
            assert_eq!(parts, row.wait_ns, "{row:?}");
        }
        for wait in &analysis.waits {
            let rows =
                || analysis.blame.iter().filter(|r| (&r.operation, &r.site) == (&wait.operation, &wait.site));
            let sums = (rows().map(|r| r.count).sum::<u64>(), rows().map(|r| r.wait_ns).sum::<u64>());
            assert_eq!(sums, (wait.count, wait.gross_ns), "{wait:?}");
        }
        assert!(analysis.waits.iter().any(|wait| wait.count > 100), "{:?}", analysis.waits);
    }
}
