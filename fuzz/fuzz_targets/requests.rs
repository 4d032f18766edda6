#![no_main]

#[path = "../../crates/server/tests/fuzz/requests.rs"]
#[allow(dead_code, reason = "the seeds are for examples/corpus.rs")]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::requests(data));
