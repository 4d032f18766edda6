//! Runs the entry of the fuzz target (directory `fuzz` of the repository) on seeded mutations of valid
//! inputs.

#![allow(unreachable_pub, dead_code, reason = "shared with the fuzz targets")]
#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

#[path = "fuzz/far_wire.rs"]
mod far_wire;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

#[test]
fn a_valid_sequence_of_requests_is_answered() {
    assert_eq!(
        far_wire::answers_to_a_talk(),
        7,
        "opened, stored, the page, pong, missing, a run stored and given"
    );
}

#[test]
fn f6_any_bytes_are_frames_or_refused_and_the_server_continues() {
    mutate::run_mutated(6_000, &far_wire::seeds(), far_wire::far_wire);
}
