//! Fig. 10 of Nb-GCLOCK on a simulated UltraSPARC T2: `cargo run --release -p azekura-bench --features sim --example simulate -- 64`.

use azekura_bench::Progress;
use azekura_bench::lab::nb_gclock::simulate::Simulated;

#[global_allocator]
static ALLOCATOR: azekura_sim::LineAllocator = azekura_sim::LineAllocator;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let most = std::env::args().nth(1).map_or(Ok(64), |n| n.parse())?;
    println!("{}", Simulated::new(most).run(&Progress::hidden())?.to_text());
    Ok(())
}
