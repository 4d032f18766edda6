//! Entries of the fuzz targets (directory `fuzz` of the repository), run on seeded changes of valid inputs.

#![allow(unreachable_pub, dead_code, reason = "the entries are shared with the fuzz targets")]

#[path = "../../../fuzz/mutate.rs"]
mod mutate;
#[path = "fuzz/page_decode.rs"]
mod page_decode;
#[path = "fuzz/record_decode.rs"]
mod record_decode;

#[test]
fn any_page_is_read_and_changed_without_a_panic() {
    mutate::run_mutated(1_500, &page_decode::seeds(), page_decode::page_decode);
}

#[test]
fn any_log_record_is_decoded_and_done_or_refused() {
    mutate::run_mutated(10_000, &record_decode::seeds(), record_decode::record_decode);
}
