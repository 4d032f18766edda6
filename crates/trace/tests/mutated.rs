//! Runs the function of the fuzz target (directory `fuzz` of the repository) on seeded changes of valid
//! inputs.

#![allow(unreachable_pub, dead_code, reason = "the functions are shared with the fuzz targets")]
#![cfg(all(not(loom), feature = "analyze"))]

#[path = "../../../fuzz/mutate.rs"]
mod mutate;
#[path = "fuzz/trace_file.rs"]
mod trace_file;

#[test]
fn any_trace_file_is_reported_on_or_refused() {
    mutate::run_mutated(6_000, &trace_file::seeds(), trace_file::trace_file);
}
