//! The bottleneck lab on a simulated machine: small, and the same each time.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use azekura_bench::Progress;
use azekura_bench::lab::bottleneck::{Settings, study, text};

#[global_allocator]
static ALLOCATOR: azekura_sim::LineAllocator = azekura_sim::LineAllocator;

#[test]
fn trial() {
    let settings = Settings::simulated_quick(16);
    let begin = std::time::Instant::now();
    let study = study(&settings, None, &Progress::hidden()).unwrap();
    println!("{}\n{:?}", text::render(&study), begin.elapsed());
}
