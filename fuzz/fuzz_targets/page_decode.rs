#![no_main]

#[path = "../../crates/btree/tests/fuzz/page_decode.rs"]
#[allow(dead_code, reason = "only examples/corpus.rs uses the seeds")]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::page_decode(data));
