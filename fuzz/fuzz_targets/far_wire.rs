#![no_main]

#[path = "../../crates/far/tests/fuzz/far_wire.rs"]
#[allow(dead_code, reason = "only examples/corpus.rs uses the seeds")]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::far_wire(data));
