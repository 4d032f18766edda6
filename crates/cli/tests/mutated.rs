//! The entry of the fuzz target (directory `fuzz` of the repository), run on seeded changes of valid inputs.

#![allow(unreachable_pub, dead_code, reason = "the entries are shared with the fuzz targets")]

#[path = "fuzz/load_formats.rs"]
mod load_formats;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

#[test]
fn any_file_loads_or_is_refused_and_dumps_back_the_same() {
    mutate::run_mutated(20_000, &load_formats::seeds(), load_formats::load_formats);
}
