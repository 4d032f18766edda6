//! The entry of the fuzz target (directory `fuzz` of the repository), run on seeded changes of valid inputs.

#![allow(unreachable_pub, dead_code, reason = "the entries are shared with the fuzz targets")]
#![cfg(not(loom))]

#[path = "fuzz/double_write.rs"]
mod double_write;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

#[test]
fn a_changed_page_file_shows_what_was_written_or_says_what_is_wrong() {
    mutate::run_mutated(3_000, &double_write::seeds(), double_write::double_write);
}
