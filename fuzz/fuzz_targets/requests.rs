#![no_main]

#[path = "../../crates/server/tests/fuzz/requests.rs"]
#[allow(dead_code, reason = "only examples/corpus.rs uses the seeds")]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::requests(data));
