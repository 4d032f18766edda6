#![no_main]

#[path = "../../crates/cli/tests/fuzz/load_formats.rs"]
#[allow(dead_code, reason = "the seeds are for examples/corpus.rs")]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::load_formats(data));
