//! Fig. 10 of Nb-GCLOCK on a simulated UltraSPARC T2: `cargo run --release -p azekura-bench --features sim --example simulate -- 64 [80/20]`.

use azekura_bench::Progress;
use azekura_bench::lab::nb_gclock::simulate::Simulated;
use azekura_bench::lab::nb_gclock::zipf::Skew;

#[global_allocator]
static ALLOCATOR: azekura_sim::LineAllocator = azekura_sim::LineAllocator;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let most = std::env::args().nth(1).map_or(Ok(64), |n| n.parse())?;
    let mut lab = Simulated::new(most);
    if std::env::args().any(|argument| argument == "80/20") {
        lab.skew = Skew::NAMED_80_20;
    }
    println!("{}", lab.run(&Progress::hidden())?.to_text());
    Ok(())
}
