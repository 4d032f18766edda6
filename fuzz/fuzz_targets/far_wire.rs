#![no_main]

#[path = "../../crates/far/tests/fuzz/far_wire.rs"]
#[allow(dead_code, reason = "the seeds are for examples/corpus.rs")]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::far_wire(data));
