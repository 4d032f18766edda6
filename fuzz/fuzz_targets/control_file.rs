#![no_main]

#[path = "../../crates/azekura/tests/fuzz/control_file.rs"]
#[allow(dead_code, reason = "only examples/corpus.rs uses the seeds")]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::control_file(data));
