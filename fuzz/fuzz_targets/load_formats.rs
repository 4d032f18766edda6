#![no_main]

#[path = "../../crates/cli/tests/fuzz/load_formats.rs"]
#[allow(dead_code, reason = "only examples/corpus.rs uses the seeds")]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::load_formats(data));
