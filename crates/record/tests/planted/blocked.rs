//! Waits in calls that the library cannot intercept: they are named by samples of the threads.

use super::{build, others, record, scratch, turn};
use azekura_trace::analyze::{Analysis, AnalyzeOptions, BlockedRow, Verdict};
use azekura_trace::file::Trace;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the analysis of a run, or the exit code of a failed one.
fn analysis(program: &Path, arguments: &[&str], operation: Option<&str>) -> Result<Analysis, i32> {
    let output = scratch().join("blocked.trace");
    match record(program, arguments, &output) {
        Ok(0) => {}
        other => return Err(other.expect("a run")),
    }
    let operation = operation.map(str::to_owned);
    let options = AnalyzeOptions { operation, ..AnalyzeOptions::default() };
    Ok(Analysis::new(&Trace::read(&output).expect("a recording"), &options).expect("an analysis"))
}

/// Returns the part of the sampled waits that are at these sites; 0 if there are fewer than ten. On a busy
/// machine, threads also wait for processors, so the part of their time is not a criterion.
fn part(rows: &[BlockedRow], is_it: impl Fn(&str) -> bool) -> f64 {
    let all: u64 = rows.iter().map(|row| row.samples).sum();
    let these: u64 = rows.iter().filter(|row| is_it(&row.site)).map(|row| row.samples).sum();
    if these < 10 { 0.0 } else { these as f64 / all as f64 }
}

/// Records a program until nearly all samples of waits are at these sites, and returns that analysis. On a
/// busy machine a recording can have few samples, so it is repeated; a wrong name fails each time.
fn reaches(
    program: &Path,
    arguments: &[&str],
    operation: Option<&str>,
    is_it: impl Fn(&str) -> bool,
) -> Result<Analysis, i32> {
    let mut failures = Vec::new();
    for _ in 0..5 {
        let analysis = analysis(program, arguments, operation)?;
        if part(&analysis.blocked, &is_it) > 0.7 {
            return Ok(analysis);
        }
        failures.push(analysis.blocked);
    }
    panic!("{failures:#?}");
}

#[test]
fn the_lock_of_a_stream_is_named_with_its_library_function_and_caller() {
    let mut programs = turn();
    // Three of four threads wait for the fourth one, which is in a recorded wait.
    let is_stream = |site: &str| {
        site.starts_with("futex in ")
            && site.contains(" of libc.so.6, called from log_line (planted/streams.c")
    };
    let analysis = reaches(&build("streams", &mut programs), &[], Some("logger"), is_stream).unwrap();
    let sentence = analysis.verdict.sentence();
    if others(&analysis).is_none_or(|part| part > 0.2) {
        println!("verdict not judged, others used the machine: {sentence}");
        return;
    }
    assert!(matches!(analysis.verdict, Verdict::OffCpu { .. }), "{sentence}");
    assert!(
        sentence.contains("by samples in futex in ") && !sentence.contains("without a probe"),
        "{sentence}"
    );
}

#[test]
fn the_lock_of_an_arena_is_named_by_the_function_of_the_allocator() {
    let mut programs = turn();
    let is_arena = |site: &str| {
        ["malloc", "free"]
            .iter()
            .any(|function| site.starts_with(&format!("futex in {function} of libc.so.6")))
    };
    reaches(&build("arena", &mut programs), &["30000"], Some("worker"), is_arena).unwrap();
}

#[test]
#[cfg(target_arch = "x86_64")]
fn waits_for_completions_of_io_uring_without_a_call_of_the_c_library_are_named() {
    let mut programs = turn();
    let is_ring = |site: &str| site.starts_with("io_uring_enter in enter_inline (planted/io_ring.c");
    match reaches(&build("io_ring", &mut programs), &["inline"], Some("looper"), is_ring) {
        Err(3) => println!("not judged: the system has no io_uring"),
        analysis => drop(analysis.unwrap()),
    }
}

#[test]
fn waits_at_barriers_of_openmp_are_named_by_its_library() {
    let _turn = turn();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/planted/omp.c");
    let program: PathBuf = scratch().join("omp");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let built =
        Command::new(compiler).args(["-g", "-O1", "-fopenmp", "-o"]).args([&program, &source]).status();
    if !built.is_ok_and(|status| status.success()) {
        println!("not judged: the compiler has no OpenMP");
        return;
    }
    let is_barrier = |site: &str| site.starts_with("futex in ") && site.contains("libgomp.so");
    reaches(&program, &[], None, is_barrier).unwrap();
}

#[test]
fn recorded_waits_are_not_sampled_as_waits_without_a_probe() {
    let mut programs = turn();
    let analysis = analysis(&build("hot_mutex", &mut programs), &[], Some("teller")).unwrap();
    assert!(analysis.blocked.iter().map(|row| row.share).sum::<f64>() < 0.1, "{:#?}", analysis.blocked);
}
