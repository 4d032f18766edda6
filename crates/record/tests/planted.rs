//! Programs with a planted bottleneck, recorded unmodified. Each test compares the verdict with the known
//! answer.
//!
//! Each program is a file in `tests/planted`, compiled here. The programs sleep while they hold their locks,
//! so that the answers do not depend on the number of processors or on other programs, except `processors`,
//! which computes. On a machine with busy processors the programs have other bottlenecks: lock holders lose
//! their processors, and all threads wait for these. So an ordinary test passes if one run is right, and
//! fails after three wrong runs in which other programs left the processors free. It does not judge if there
//! are fewer of these in six runs. This command counts the share of single runs that are right:
//!
//! ```sh
//! AZEKURA_PLANTED_RUNS=100 cargo test --release -p azekura-record --test planted -- --ignored --nocapture
//! ```

use azekura_record::{Launch, RecordError, attach_until, launch};
use azekura_trace::analyze::{Analysis, AnalyzeOptions, SiteRow, Verdict};
use azekura_trace::file::{Ending, Switches, Trace};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[path = "planted/allocators.rs"]
mod allocators;
#[path = "planted/blocked.rs"]
mod blocked;
#[path = "planted/calls.rs"]
mod calls;
#[path = "planted/collection.rs"]
mod collection;
#[path = "planted/harm.rs"]
mod harm;
#[path = "planted/paths.rs"]
mod paths;
#[path = "planted/signals.rs"]
mod signals;

/// Expected verdict about a program.
struct Case {
    program: &'static str,
    arguments: &'static [&'static str],
    operation: &'static str,
    right: fn(&Analysis) -> bool,
}

fn accuses(analysis: &Analysis, lock: &str) -> bool {
    matches!(&analysis.verdict, Verdict::Lock { site, .. } if site.starts_with(lock))
}

fn accuses_no_lock(analysis: &Analysis) -> bool {
    !matches!(analysis.verdict, Verdict::Lock { .. })
}

fn site<'a>(analysis: &'a Analysis, name: &str) -> Option<&'a SiteRow> {
    analysis.sites.iter().find(|site| site.name.starts_with(name))
}

fn idle_is_no_contention(analysis: &Analysis) -> bool {
    let consumer = analysis.chosen().expect("consumers ended");
    let lock = consumer.lock_wait_ns as f64 / consumer.elapsed_ns as f64;
    accuses_no_lock(analysis)
        && consumer.idle_wait_ns * 10 > consumer.elapsed_ns * 8
        && lock < 0.1
        && site(analysis, "queue_filled, condition, waited for in consumer").is_some()
}

/// Hazard T4: a wait inside another wait must not be counted twice.
fn counts_nothing_twice(analysis: &Analysis) -> bool {
    let waits: u64 = analysis.waits.iter().filter(|w| w.operation == "both").map(|w| w.net_ns).sum();
    analysis.chosen().is_some_and(|both| waits <= both.elapsed_ns)
}

fn next_is(analysis: &Analysis, lock: &str, next: &str) -> bool {
    let row = analysis.what_if.locks.iter().find(|row| row.site.starts_with(lock));
    row.is_some_and(|row| row.then_limited_by.starts_with(next))
}

const CASES: [Case; 15] = [
    Case {
        program: "hot_mutex",
        arguments: &[],
        operation: "teller",
        right: |a| accuses(a, "accounts_mutex, mutex, waited for in teller"),
    },
    Case {
        program: "processors",
        arguments: &[],
        operation: "solver",
        right: |a| matches!(a.verdict, Verdict::Cpu { .. }),
    },
    Case {
        program: "disk",
        arguments: &[],
        operation: "writer",
        right: |a| matches!(&a.verdict, Verdict::Io { site, .. } if site.starts_with("fdatasync in writer")),
    },
    Case { program: "idle_queue", arguments: &[], operation: "consumer", right: idle_is_no_contention },
    Case {
        program: "starved_writer",
        arguments: &[],
        operation: "writer",
        right: |a| accuses(a, "table_lock, rwlock, waited for in writer"),
    },
    Case {
        program: "nested",
        arguments: &[],
        operation: "both",
        right: |a| accuses(a, "inner_mutex, mutex") && counts_nothing_twice(a),
    },
    Case {
        program: "two_locks",
        arguments: &[],
        operation: "worker",
        right: |a| accuses(a, "first_mutex, mutex") && next_is(a, "first_mutex", "second_mutex"),
    },
    Case {
        program: "two_locks",
        arguments: &["without the first"],
        operation: "worker",
        right: |a| accuses(a, "second_mutex, mutex") && site(a, "first_mutex").is_none(),
    },
    Case {
        program: "spin_lock",
        arguments: &[],
        operation: "sender",
        right: |a| {
            let burnt = site(a, "ring_lock").and_then(|s| Some(s.cpu_ns? as f64 / s.net_ns as f64));
            accuses(a, "ring_lock, spin lock") && burnt.is_some_and(|part| part > 0.1)
        },
    },
    Case {
        program: "hot_shard",
        arguments: &[],
        operation: "visitor",
        right: |a| accuses(a, "shards+0x208, mutex"),
    },
    Case {
        program: "made_somewhere",
        arguments: &[],
        operation: "clerk",
        right: |a| accuses(a, "mutex of make_account"),
    },
    Case {
        program: "off_the_way",
        arguments: &[],
        operation: "worker",
        right: |a| accuses_no_lock(a) && a.sites.iter().any(|s| s.name.starts_with("cleaning_mutex")),
    },
    Case { program: "decoy", arguments: &[], operation: "server", right: |a| accuses(a, "log_mutex, mutex") },
    Case {
        program: "lock_over_disk",
        arguments: &[],
        operation: "committer",
        right: |a| {
            let via = a.blame.iter().filter_map(|b| b.via.as_ref()).any(|via| via.starts_with("fdatasync"));
            accuses(a, "journal_mutex, mutex") && via
        },
    },
    Case {
        program: "seldom",
        arguments: &[],
        operation: "thinker",
        right: |a| match &a.verdict {
            Verdict::Waits { idle, lock, largest, .. } => {
                *idle > 0.5 && *lock < 0.1 && largest[0].0.starts_with("sleep in ")
            }
            _ => false,
        },
    },
];

type Programs = HashMap<&'static str, PathBuf>;

/// Returns the programs built so far, with the lock that lets only one program run at a time.
fn turn() -> MutexGuard<'static, Programs> {
    static PROGRAMS: LazyLock<Mutex<Programs>> = LazyLock::new(Mutex::default);
    PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn build(name: &'static str, programs: &mut Programs) -> PathBuf {
    let make = || {
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/planted").join(name).with_extension("c");
        let program = scratch().join(name);
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let done = Command::new(compiler)
            .args(["-g", "-O1", "-pthread", "-o"])
            .args([&program, &source])
            .status()
            .expect("a C compiler, as CONTRIBUTING says");
        assert!(done.success(), "{name} does not compile");
        program
    };
    programs.entry(name).or_insert_with(make).clone()
}

/// Runs the program under the recorder. A shell changes the directory first, because some programs write
/// files.
fn record(program: &Path, arguments: &[&str], output: &Path) -> Result<i32, String> {
    let script = r#"cd "$0" && exec "$@""#;
    let mut command = vec!["sh".into(), "-c".into(), script.into(), scratch().into()];
    command.push(program.into());
    command.extend(arguments.iter().map(Into::into));
    let launched = launch(&Launch { command, output: output.into(), ..Launch::default() });
    let launched = launched.map_err(|error| error.to_string())?;
    Ok(launched.status.code().unwrap_or(-1))
}

fn analyze(case: &Case, programs: &mut Programs) -> Analysis {
    let program = build(case.program, programs);
    let output = scratch().join(case.program).with_extension("trace");
    assert_eq!(record(&program, case.arguments, &output), Ok(0), "{}", case.program);
    let trace = Trace::read(&output).expect("a trace");
    assert_eq!((trace.ending, trace.lost()), (Ending::Complete, 0), "{}", case.program);
    let options = AnalyzeOptions { operation: Some(case.operation.into()), ..AnalyzeOptions::default() };
    Analysis::new(&trace, &options).expect("the operation was recorded")
}

/// Returns the part of the machine that other programs used; `None` if the recording is too short.
fn others(analysis: &Analysis) -> Option<f64> {
    Some(analysis.machine_utilisation? - analysis.cpu_utilisation?)
}

/// Records up to six runs until one is right. `run` returns the analysis of a wrong run, with a text. Fails
/// after three wrong runs that no other program disturbed.
fn judge_runs(name: &str, mut run: impl FnMut() -> Option<(Analysis, String)>) {
    let (mut said, mut undisturbed) = (String::new(), 0);
    for _ in 0..6 {
        let Some((analysis, message)) = run() else { return };
        undisturbed += u32::from(others(&analysis).is_some_and(|part| part <= 0.2));
        assert!(undisturbed < 3, "{name}: three times wrong, the last time: {message}");
        said = message;
    }
    println!("{name}: not judged, others used the machine: {said}");
}

fn judge(index: usize) {
    let mut programs = turn();
    let case = &CASES[index];
    judge_runs(case.program, || {
        let analysis = analyze(case, &mut programs);
        let message = format!("{}\n{:#?}", analysis.verdict.sentence(), analysis.what_if);
        (!(case.right)(&analysis)).then_some((analysis, message))
    });
}

#[test]
fn a_mutex_that_all_need_is_named() {
    judge(0);
}

#[test]
fn processors_that_are_busy_are_named_and_no_lock() {
    judge(1);
}

#[test]
fn a_disk_that_all_wait_for_is_named_and_no_lock() {
    judge(2);
}

#[test]
fn t1_consumers_without_work_are_no_contention() {
    judge(3);
}

#[test]
fn a_lock_whose_writer_starves_is_named() {
    judge(4);
}

#[test]
fn t4_of_two_nested_locks_the_inner_one_is_named_and_nothing_counts_twice() {
    judge(5);
}

#[test]
fn of_two_locks_the_slower_is_named_and_the_other_comes_next() {
    judge(6);
}

#[test]
fn without_the_slower_lock_the_next_one_is_named() {
    judge(7);
}

#[test]
fn t5_a_spin_lock_is_named_with_the_cpu_time_that_it_burns() {
    judge(8);
}

#[test]
fn one_hot_lock_of_an_array_is_named_by_its_place_in_it() {
    judge(9);
}

#[test]
fn locks_without_names_are_named_by_the_line_that_made_them() {
    judge(10);
}

#[test]
fn a_lock_that_the_work_does_not_need_is_not_named() {
    judge(11);
}

#[test]
fn a_lock_that_is_taken_often_and_held_briefly_is_not_named() {
    judge(12);
}

#[test]
fn a_lock_held_over_the_disk_is_named_with_what_its_holder_waits_for() {
    judge(13);
}

#[test]
fn threads_that_meet_seldom_have_no_bottleneck() {
    judge(14);
}

#[test]
fn threads_that_exit_are_canceled_or_forked_leave_whole_recordings() {
    let mut programs = turn();
    let program = build("ends", &mut programs);
    let output = scratch().join("ends.trace");
    for file in std::fs::read_dir(scratch()).unwrap().flatten() {
        if file.file_name().to_string_lossy().starts_with("ends.trace") {
            std::fs::remove_file(file.path()).unwrap();
        }
    }
    assert_eq!(record(&program, &[], &output), Ok(0), "the program sees nothing of it");
    let trace = Trace::read(&output).unwrap();
    let analysis = Analysis::new(&trace, &AnalyzeOptions::default()).unwrap();
    let executions = |name: &str| analysis.operations.iter().find(|o| o.name == name).map(|o| o.executions);
    assert_eq!(
        (executions("leaver"), executions("sleeper"), executions("main")),
        (Some(4), Some(1), Some(1))
    );
    assert_eq!(trace.ending, Ending::Complete);
    assert!(analysis.open.is_empty());
    let beside = std::fs::read_dir(scratch()).unwrap().flatten().map(|file| file.path());
    let child = beside.into_iter().find(|p| p.to_string_lossy().contains("ends.trace.")).expect("the fork's");
    let child = Analysis::new(&Trace::read(child).unwrap(), &AnalyzeOptions::default()).unwrap();
    assert_eq!(child.operations.iter().find(|o| o.name == "leaver").map(|o| o.executions), Some(4));
}

#[test]
fn a_program_that_ends_by_quick_exit_or_by_the_system_call_leaves_a_whole_recording() {
    let mut programs = turn();
    let program = build("ends", &mut programs);
    let output = scratch().join("quick.trace");
    for (how, code) in [("quick_exit", 5), ("exit_group", 6)] {
        assert_eq!(record(&program, &[how], &output), Ok(code), "{how}");
        assert_eq!(Trace::read(&output).unwrap().ending, Ending::Complete, "{how}");
    }
}

#[test]
fn the_recording_of_an_aborted_program_is_marked_as_cut_short() {
    let mut programs = turn();
    let program = build("ends", &mut programs);
    let output = scratch().join("aborted.trace");
    assert_ne!(record(&program, &["abort"], &output), Ok(0));
    let trace = Trace::read(&output).unwrap();
    assert!(matches!(trace.ending, Ending::CutShort { .. }));
    let analysis = Analysis::new(&trace, &AnalyzeOptions::default()).unwrap();
    assert!(analysis.recorded.cut_short_at.is_some());
    assert!(site(&analysis, "busy_mutex").is_some(), "what was written before is there");
}

#[test]
fn t2_events_lost_by_small_rings_are_reported() {
    let mut programs = turn();
    let program = build("decoy", &mut programs);
    let output = scratch().join("lost.trace");
    let command = vec![program.into()];
    let tiny = Launch { command, output: output.clone(), ring_events: Some(2), ..Launch::default() };
    let launched = launch(&tiny).unwrap();
    let trace = Trace::read(&output).unwrap();
    assert!(launched.recorded[0].lost > 0 && trace.lost() == launched.recorded[0].lost);
    let analysis = Analysis::new(&trace, &AnalyzeOptions::default()).unwrap();
    assert!(analysis.recorded.lost > 0 && analysis.total.elapsed_ns > 0);
}

/// Depends on the kernel's permissions: as root, functions are operations; otherwise, the report has the
/// reason.
#[test]
fn functions_are_operations_where_the_kernel_permits_and_threads_where_it_does_not() {
    let mut programs = turn();
    let program = build("functions", &mut programs);
    let output = scratch().join("functions.trace");
    let functions = vec!["post_entry".into(), "add_up".into()];
    let command = vec![program.into()];
    let launched =
        launch(&Launch { command, output: output.clone(), functions, ..Launch::default() }).unwrap();
    let trace = Trace::read(&output).unwrap();
    let analysis = Analysis::new(&trace, &AnalyzeOptions::default()).unwrap();
    let row = |name: &str| analysis.operations.iter().find(|o| o.name == name);
    let clerk = row("clerk").expect("a thread's first function");
    if let Some(refusal) = launched.refusals.first() {
        assert!(
            refusal.starts_with("each thread is recorded as one operation: the kernel does not"),
            "{refusal}"
        );
        assert!(row("post_entry").is_none());
        return println!("not judged: {refusal}");
    }
    let (post, add) = (row("post_entry").expect("probed"), row("add_up").expect("probed"));
    assert_eq!((post.executions, add.executions), (200, 200));
    // The waits for the lock are in one of the two functions, most of the computing in the other.
    let message = format!("{post:?}\n{add:?}\n{clerk:?}");
    assert!(post.lock_wait_ns > 0 && post.lock_wait_ns * 100 >= clerk.lock_wait_ns * 98, "{message}");
    assert!(add.lock_wait_ns * 100 <= clerk.lock_wait_ns * 2, "{message}");
    let cpu = |row: &azekura_trace::analyze::OperationRow| row.cpu_ns.expect("known");
    assert!(cpu(add) > cpu(post) && cpu(add) * 98 <= cpu(clerk) * 100, "{message}");
    assert!(matches!(trace.switches, Switches::Recorded { lost: 0 }), "{:?}", trace.switches);
    assert!(trace.threads.iter().filter(|t| !t.off.is_empty()).count() >= 4);
    // Intervals off a processor are ordered and do not overlap.
    for thread in &trace.threads {
        assert!(thread.off.windows(2).all(|w| w[0].begin_ns <= w[0].end_ns && w[0].end_ns <= w[1].begin_ns));
    }
}

/// As root, the report has the program's locks; otherwise, the test accepts the error with the reason.
#[test]
fn a_process_that_runs_already_is_recorded_where_the_kernel_permits() {
    let mut programs = turn();
    let program = build("server", &mut programs);
    let mut server = Command::new(program).spawn().unwrap();
    // Waits until all threads have started.
    let tasks = format!("/proc/{}/task", server.id());
    while std::fs::read_dir(&tasks).expect("it runs").count() < 6 {
        std::thread::yield_now();
    }
    let output = scratch().join("attached.trace");
    let recorded = attach_until(server.id(), Some(Duration::from_secs(2)), &output);
    server.kill().unwrap();
    server.wait().unwrap();
    match recorded {
        Err(error @ (RecordError::NotPermitted { .. } | RecordError::Kernel { .. })) => {
            return println!("not judged: {error}");
        }
        recorded => assert_eq!(recorded.unwrap().threads, 6),
    }
    let analysis = Analysis::new(&Trace::read(&output).unwrap(), &AnalyzeOptions::default()).unwrap();
    let locks: Vec<&SiteRow> =
        analysis.sites.iter().filter(|s| s.kind == Some(azekura_trace::WaitKind::Other)).collect();
    assert!(locks[0].name.starts_with("busy_mutex, futex, waited for in worker"), "{locks:#?}");
    let others = analysis.sites.iter().filter(|s| s.name.contains("transfer"));
    assert!(others.into_iter().all(|s| s.net_ns < locks[0].net_ns), "{:#?}", analysis.sites);
    assert!(accuses(&analysis, "busy_mutex") || others_were_busy(&analysis), "{:?}", analysis.verdict);
    // Blame goes to the thread that released the lock: one of several workers.
    let of_lock = || analysis.blame.iter().filter(|b| b.site.starts_with("busy_mutex"));
    let waited: u64 = of_lock().map(|b| b.wait_ns).sum();
    let known: u64 = of_lock().filter(|b| b.holder.is_some()).map(|b| b.wait_ns).sum();
    assert!(known > 0, "of {waited} ns: {:#?}", analysis.blame);
    // A thread that waits for work all the time is no bottleneck. The CPU time of the threads does not exceed
    // that of the process.
    assert!(!analysis.sites[0].name.contains("queue_mutex"));
    let cpu = analysis.recorded.traced_cpu_ns;
    assert!(cpu > 0 && cpu <= analysis.recorded.process_cpu_ns + 1_000_000, "{cpu}");
    assert_eq!(analysis.recorded.cpu_by_switches, 6);
}

fn others_were_busy(analysis: &Analysis) -> bool {
    matches!(analysis.verdict, Verdict::Cpu { .. })
}

#[test]
fn a_process_that_is_not_there_is_a_typed_error() {
    let _turn = turn();
    let nobody = attach_until(u32::MAX >> 2, None, &scratch().join("nobody.trace"));
    assert!(matches!(nobody, Err(RecordError::NoProcess { .. })), "{nobody:?}");
}

#[test]
fn functions_that_are_not_there_are_a_typed_error_with_names_like_them() {
    let mut programs = turn();
    let program = build("functions", &mut programs);
    let find = |name: &str| azekura_record::kernel::Function::find(name, &program);
    assert!(find("post_entry").is_ok() && find(&format!("add_up@{}", program.display())).is_ok());
    match find("post") {
        Err(RecordError::NoFunction { alike, .. }) => assert_eq!(alike, ["post_entry"]),
        other => panic!("{other:?}"),
    }
    assert!(matches!(find("post@/nowhere/at-all"), Err(RecordError::Program { .. })));
    assert!(matches!(find("post@/proc/self/status"), Err(RecordError::Program { .. })));
}

#[test]
fn a_program_without_threads_or_with_another_name_is_a_typed_error() {
    let _turn = turn();
    let run = |name: &str| {
        let command = vec![name.into()];
        launch(&Launch { command, output: scratch().join("none.trace"), ..Launch::default() })
    };
    assert!(matches!(run("true").unwrap().nothing, Some(RecordError::NothingRecorded)));
    assert!(matches!(run("/nowhere/at-all"), Err(RecordError::Start { .. })));
}

#[test]
fn a_program_of_one_thread_that_waits_for_events_is_recorded() {
    let mut programs = turn();
    let (program, output) = (build("event_loop", &mut programs), scratch().join("event_loop.trace"));
    assert_eq!(record(&program, &[], &output), Ok(0));
    let trace = Trace::read(&output).expect("a recording");
    assert!(trace.sites.values().any(|site| site.name == "epoll in main"), "{:?}", trace.sites);
    // Allocators start threads in this way.
    let mut operations: Vec<&str> = trace.operations.values().map(|name| &*name.name).collect();
    operations.sort_unstable();
    assert_eq!(operations, ["main", "thread"], "one thread is not started by the hooked function");
}

#[test]
#[ignore = "minutes: counts how often one run of each is judged right"]
fn verdicts_are_right_in_99_of_100_runs() {
    let runs: u32 = std::env::var("AZEKURA_PLANTED_RUNS").map_or(100, |n| n.parse().unwrap());
    let mut programs = turn();
    let mut worst = 1.0_f64;
    for case in &CASES {
        let mut right = 0;
        for run in 0..runs {
            let analysis = analyze(case, &mut programs);
            if (case.right)(&analysis) {
                right += 1;
            } else {
                let (sentence, others) = (analysis.verdict.sentence(), others(&analysis));
                println!("  {}, run {run}, others used {others:.2?}: {sentence}", case.program);
            }
        }
        println!("{} {:?}: right in {right} of {runs}", case.program, case.arguments);
        worst = worst.min(f64::from(right) / f64::from(runs));
    }
    assert!(worst >= 0.99, "worst: {worst}");
}

/// Compares the predicted throughput without a lock with the measured throughput of the same program without
/// this lock.
#[test]
#[ignore = "a minute and a half, and wants a quiet machine: real programs before and after"]
fn what_if_predicts_real_programs() {
    // Threads, us under the first lock, us under the second, us between, steps of computing.
    let pairs = [
        ["8", "500", "0", "300", "0"],
        ["4", "300", "0", "900", "0"],
        ["8", "500", "250", "0", "0"],
        ["12", "400", "200", "1500", "0"],
        ["6", "300", "300", "300", "0"],
        ["3", "600", "100", "100", "0"],
        ["6", "400", "0", "200", "60000"],
        ["10", "250", "400", "0", "0"],
        // The cases above were used to develop the model, those below were not.
        ["16", "200", "100", "0", "0"],
        ["8", "60", "30", "100", "0"],
        ["6", "300", "100", "0", "200000"],
        ["3", "0", "200", "100", "60000"],
        ["5", "150", "150", "600", "20000"],
        ["8", "300", "0", "0", "100000"],
        ["4", "250", "250", "250", "50000"],
        ["12", "100", "50", "2000", "0"],
    ];
    let mut programs = turn();
    let mut run = |pair: &[&'static str; 5], without: &'static str| {
        let arguments = Box::leak([pair.as_slice(), &[without]].concat().into_boxed_slice());
        let case = Case { program: "pairs", arguments, operation: "worker", right: |_| true };
        analyze(&case, &mut programs)
    };
    let mut errors = Vec::new();
    for pair in &pairs {
        // Medians of five runs each, alternating, so that one run that the machine delays has no effect.
        let (mut now, mut predicted, mut after) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..5 {
            let before = run(pair, "0");
            let lock = before.what_if.locks.iter().find(|lock| lock.site.starts_with("first_mutex"));
            predicted.push(lock.expect("it is waited for").if_free_per_second);
            now.push(before.what_if.throughput_per_second);
            after.push(run(pair, "1").what_if.throughput_per_second);
        }
        let [now, predicted, after] = [now, predicted, after].map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[2]
        });
        let error = predicted / after - 1.0;
        println!(
            "{pair:?}: {now:.2} -> {after:.2} per second, predicted {predicted:.2} ({:+.1} %)",
            error * 100.0
        );
        errors.push(error.abs());
    }
    errors.sort_by(f64::total_cmp);
    let (median, worst) = (errors[errors.len() / 2], errors[errors.len() - 1]);
    println!("median error {:.1} %, worst {:.1} %", median * 100.0, worst * 100.0);
    assert!(median <= 0.10 && worst <= 0.25);
}
