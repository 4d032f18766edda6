//! Runs the function of the fuzz target (directory `fuzz` of the repository) on seeded changes of valid
//! inputs.

#![allow(unreachable_pub, dead_code, reason = "the functions are shared with the fuzz targets")]
#![cfg(not(loom))]

#[path = "fuzz/log_scan.rs"]
mod log_scan;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

#[test]
fn a_changed_log_replays_what_was_written_or_says_what_is_wrong() {
    mutate::run_mutated(200, &log_scan::seeds(), log_scan::log_scan);
}
