//! The C and Rust programs of a collection of small programs with known bottlenecks.
//! `scripts/trace-collection.py` runs the whole collection.
//!
//! The table `tests/collection/truth.txt` has the expected verdicts. One right verdict of up to six runs is
//! enough. Runs in which other programs used more than a fifth of the machine do not count as wrong. Only
//! shares of the time are judged, not absolute times.

use super::{judge_runs, record, scratch, turn};
use azekura_trace::WaitKind;
use azekura_trace::analyze::{Analysis, AnalyzeOptions, Verdict};
use azekura_trace::file::Trace;
use std::path::{Path, PathBuf};
use std::process::Command;

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/collection")
}

/// Compiles a source of the collection.
fn compiled(source: &str) -> PathBuf {
    let program = scratch().join(source.replace('.', "-"));
    let compiler = |variable: &str, otherwise: &str| std::env::var_os(variable).unwrap_or(otherwise.into());
    let mut command = if source.ends_with(".rs") {
        let mut command = Command::new(compiler("RUSTC", "rustc"));
        command.args(["--edition", "2024", "-g", "-O"]);
        command
    } else {
        let mut command = Command::new(compiler("CC", "cc"));
        command.args(["-std=gnu11", "-g", "-O1", "-pthread"]);
        command
    };
    let done = command.arg("-o").args([&program, &sources().join(source)]).status().expect("a compiler");
    assert!(done.success(), "{source} does not compile");
    program
}

/// Returns `true` if the verdict is the expected one: a word and, for a lock, a part of its site's name.
fn is_right(truth: &str, operation: &str, analysis: &Analysis) -> bool {
    if operation != "-" && !analysis.operation.contains(operation) {
        return false;
    }
    match (truth.split_once(':').unwrap_or((truth, "")), &analysis.verdict) {
        (("lock", site), Verdict::Lock { site: report, vain, .. }) => report.contains(site) && *vain <= 0.5,
        (("herd", site), Verdict::Lock { site: report, vain, .. }) => {
            report.contains(site) && *vain > 0.5 && analysis.verdict.sentence().contains("Thundering herd")
        }
        (("spin", site), Verdict::Spin { site: report, .. }) => report.contains(site),
        (("cpu", _), Verdict::Cpu { .. }) => true,
        (("idle", _), Verdict::Waits { idle, .. }) => *idle >= 0.5,
        (("network", _), Verdict::Io { site, kind, .. }) => {
            site.starts_with("recv in ") && *kind == Some(WaitKind::Network)
        }
        _ => false,
    }
}

/// Judges the programs of one source, which must be listed in the table in the order of `wanted`.
fn judge(source: &str, wanted: &[&str]) {
    let _turn = turn();
    let program = compiled(source);
    let table = std::fs::read_to_string(sources().join("truth.txt")).expect("the table");
    let mut judged = 0;
    for line in table.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [of, arguments @ .., truth, operation] = &words[..] else { continue };
        if *of == source && wanted.contains(&arguments.join(" ").as_str()) {
            judge_one(&program, arguments, truth, operation);
            judged += 1;
        }
    }
    assert_eq!(judged, wanted.len(), "each is in the table once");
}

fn judge_one(program: &Path, arguments: &[&str], truth: &str, operation: &str) {
    let name = arguments.join(" ");
    let output = scratch().join("collection.trace");
    judge_runs(&format!("{name}, which is {truth} of {operation}"), || {
        assert_eq!(record(program, arguments, &output), Ok(0), "{name}");
        let trace = Trace::read(&output).expect("a recording");
        let analysis = Analysis::new(&trace, &AnalyzeOptions::default()).expect("no operation is asked for");
        let report = format!("{}: {}", analysis.operation, analysis.verdict.sentence());
        (!is_right(truth, operation, &analysis)).then_some((analysis, report))
    });
}

#[test]
fn locks_of_c_are_named_by_variable_and_thread_and_idle_threads_are_reported() {
    let wanted = [
        "mutex contended",
        "semaphore contended",
        "futex contended",
        "condition contended",
        "herd contended",
        "condition pool",
        "rwlock uncontended",
        "network alone",
    ];
    judge("primitives.c", &wanted);
}

#[test]
fn locks_of_rust_are_named_by_the_programs_own_line_and_thread() {
    let wanted =
        ["mutex contended", "mutex uncontended", "rwlock contended", "condvar contended", "condvar pool"];
    judge("primitives.rs", &wanted);
}

#[test]
fn locks_with_one_object_per_waiter_are_distinguished_from_pools() {
    judge("queues.c", &["lock semaphore 5", "lock condition 3", "lock futex 8", "results semaphore 4"]);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn spin_loops_around_atomics_are_named_and_loops_that_compute_are_not() {
    judge(
        "spins.c",
        &["tas contended", "ttas contended", "ticket contended", "cas uncontended", "counter alone"],
    );
}
