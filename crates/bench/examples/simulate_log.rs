//! Fig. 7 of P-WAL on a simulated machine: `cargo run --release -p azekura-bench --features sim --example simulate_log -- 16`.

use azekura_bench::Progress;
use azekura_bench::lab::p_wal::simulate::Simulated;

#[global_allocator]
static ALLOCATOR: azekura_sim::LineAllocator = azekura_sim::LineAllocator;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let most = std::env::args().nth(1).map_or(Ok(16), |n| n.parse())?;
    println!("{}", Simulated::new(most).run(&Progress::hidden())?.to_text());
    Ok(())
}
