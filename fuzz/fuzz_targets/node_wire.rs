#![no_main]

#[path = "../../crates/fatbtree/tests/fuzz/node_wire.rs"]
#[allow(dead_code, reason = "the seeds are for examples/corpus.rs")]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::node_wire(data));
