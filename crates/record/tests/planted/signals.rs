//! Locks that are built of semaphores, condition variables and futexes are distinguished from queues: a
//! thread that waited for such a lock signals it itself when it releases the lock.

use super::{accuses, accuses_no_lock, build, judge_runs, record, scratch, turn};
use azekura_trace::analyze::{Analysis, AnalyzeOptions, Verdict};
use azekura_trace::file::Trace;
use std::path::Path;

fn analysis(program: &Path, arguments: &[&str], operation: Option<&str>) -> Analysis {
    let output = scratch().join("signals.trace");
    assert_eq!(record(program, arguments, &output), Ok(0), "{arguments:?}");
    let options = AnalyzeOptions { operation: operation.map(Into::into), ..AnalyzeOptions::default() };
    let trace = Trace::read(&output).expect("a recording");
    Analysis::new(&trace, &options).expect("the operation was recorded")
}

fn judge(kind: &'static str, operation: &str, right: fn(&Analysis) -> bool) {
    judge_program("signals", kind, operation, right);
}

fn judge_program(name: &'static str, kind: &'static str, operation: &str, right: fn(&Analysis) -> bool) {
    let mut programs = turn();
    let program = build(name, &mut programs);
    judge_runs(kind, || {
        let analysis = analysis(&program, &[kind], Some(operation));
        let report =
            format!("{}\n{:#?}\n{:#?}", analysis.verdict.sentence(), analysis.sites, analysis.what_if);
        (!right(&analysis)).then_some((analysis, report))
    });
}

#[test]
fn a_semaphore_that_its_waiters_post_is_a_lock() {
    judge("semaphore", "by_semaphore", |a| accuses(a, "gate_semaphore, semaphore"));
}

#[test]
fn a_pool_on_a_condition_variable_is_a_lock() {
    judge("condition", "by_condition", |a| accuses(a, "pool_returned, condition"));
}

#[test]
fn a_futex_word_that_its_waiters_wake_is_a_lock_whatever_its_value() {
    judge("futex", "by_futex", |a| accuses(a, "gate_word, futex"));
}

/// Returns `true` if the verdict is this lock, without a thundering herd.
fn is_plain_lock(analysis: &Analysis, lock: &str) -> bool {
    let is_herd = matches!(analysis.verdict, Verdict::Lock { vain, .. } if vain > 0.5);
    accuses(analysis, lock) && !is_herd
}

/// A waiter that was woken alone and came second to another thread is no herd.
#[test]
fn a_pool_that_wakes_one_waiter_for_each_resource_is_no_thundering_herd() {
    judge_program("timed", "pool", "user", |a| is_plain_lock(a, "pool_returned, condition"));
}

/// A wait that ended by its time limit was not woken in vain.
#[test]
fn a_lock_that_is_retried_after_time_limits_is_no_thundering_herd() {
    judge_program("timed", "mutex", "retrier", |a| is_plain_lock(a, "timed_mutex, mutex"));
    judge_program("timed", "rwlock", "retrier", |a| is_plain_lock(a, "timed_rwlock, rwlock"));
}

#[test]
fn a_queue_that_others_fill_is_no_lock_and_its_waits_are_reported() {
    judge("queue", "taker", |a| {
        let report = match &a.verdict {
            Verdict::Waits { idle, largest, .. } => {
                *idle > 0.5 && largest[0].0.starts_with("filled_semaphore, semaphore")
            }
            _ => false,
        };
        accuses_no_lock(a) && report
    });
}

#[test]
fn a_mutex_of_iso_c_is_named() {
    judge_program("iso", "", "clerk", |a| accuses(a, "ledger_mutex, mutex, waited for in clerk"));
}

/// All threads begin in the same function of std. The mutex of std is a futex.
#[test]
fn a_thread_that_jumps_out_of_signal_handlers_is_recorded_afterward() {
    let mut programs = turn();
    let program = build("jumps", &mut programs);
    let analysis = analysis(&program, &[], Some("main"));
    let row = |wait: &&azekura_trace::analyze::WaitRow| {
        wait.operation == "main" && wait.site.starts_with("late_mutex")
    };
    let waits = analysis.waits.iter().find(row).map_or(0, |wait| wait.count);
    assert!(waits >= 10, "{:#?}", analysis.waits);
}

#[test]
fn threads_of_rust_are_operations_by_their_names() {
    let _turn = turn();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/planted/rust_threads.rs");
    let program = scratch().join("rust_threads");
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let compiled = std::process::Command::new(compiler)
        .args(["--edition", "2024", "-g", "-O", "-o"])
        .args([&program, &source])
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        return println!("not tried: there is no rustc to call");
    }
    judge_runs("rust_threads", || {
        let analysis = analysis(&program, &[], Some("clerk"));
        let clerk = analysis.chosen().expect("the clerks");
        assert_eq!((clerk.executions, clerk.threads), (4, 4), "{:#?}", analysis.operations);
        assert!(analysis.operations.iter().any(|row| row.name == "guard"), "{:#?}", analysis.operations);
        let is_lock = |name: &str| name.contains("LEDGER") && name.contains("futex");
        let has_lock = analysis.sites.iter().any(|site| is_lock(&site.name));
        let is_right = has_lock && clerk.lock_wait_ns * 2 > clerk.elapsed_ns;
        let report = format!("{:#?}", analysis.sites);
        (!is_right).then_some((analysis, report))
    });
}

/// Four threads of CPython share one `threading.Lock` and sleep while they hold it.
#[test]
fn a_lock_of_python_is_named_where_python_is_installed() {
    let _turn = turn();
    let python =
        ["/usr/bin/python3", "/usr/local/bin/python3"].into_iter().find(|path| Path::new(path).exists());
    let Some(python) = python else { return println!("not tried: python3 is not installed") };
    let script = "
import threading, time
lock = threading.Lock()
def work():
    for i in range(50):
        with lock:
            time.sleep(0.001)
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
";
    judge_runs("python3", || {
        let analysis = analysis(Path::new(python), &["-c", script], None);
        let report = format!("{}\n{:#?}", analysis.verdict.sentence(), analysis.sites);
        let is_lock = matches!(&analysis.verdict, Verdict::Lock { site, .. } if site.contains("semaphore"));
        (!is_lock).then_some((analysis, report))
    });
}
