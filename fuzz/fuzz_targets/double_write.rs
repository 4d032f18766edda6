#![no_main]

#[path = "../../crates/buffer/tests/fuzz/double_write.rs"]
#[allow(dead_code, reason = "only examples/corpus.rs uses the seeds")]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::double_write(data));
