#![no_main]

#[path = "../../crates/wal/tests/fuzz/log_scan.rs"]
#[allow(dead_code, reason = "only examples/corpus.rs uses the seeds")]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::log_scan(data));
