#![no_main]

#[path = "../../crates/wal/tests/fuzz/log_scan.rs"]
#[allow(dead_code, reason = "the seeds are for examples/corpus.rs")]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::log_scan(data));
