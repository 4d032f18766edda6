//! Runs the entry of the fuzz target (directory `fuzz` of the repository) on seeded mutations of valid
//! inputs.

#![allow(unreachable_pub, dead_code, reason = "the entries are shared with the fuzz targets")]

#[path = "../../../fuzz/mutate.rs"]
mod mutate;
#[path = "fuzz/requests.rs"]
mod requests;

#[test]
fn any_bytes_are_requests_or_refused_and_the_same_in_any_pieces() {
    mutate::run_mutated(50_000, &requests::seeds(), requests::requests);
}
