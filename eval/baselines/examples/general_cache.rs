//! A cache for the results of a slow function, shared by threads. Each key is computed about once, and a scan
//! over all keys does not evict the keys in use.
//!
//! `cargo run --release -p azekura-baselines --example general_cache`

use azekura_baselines::general_cache::Cache;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A slow function: the length of the Collatz sequence of a number.
fn collatz(n: u64, computed: &AtomicU64) -> u32 {
    computed.fetch_add(1, Relaxed);
    let next = |n: &u64| (*n != 1).then(|| if n.is_multiple_of(2) { n / 2 } else { 3 * n + 1 });
    std::iter::successors(Some(n), next).map(|_| 1).sum()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cache: Cache<u64, u32> = Cache::new(10_000);
    let computed = AtomicU64::new(0);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                for n in (1..=5_000).cycle().take(50_000) {
                    // If all entries are borrowed, the value is computed without the cache.
                    let length = match cache.get_or_insert_with(n, || collatz(n, &computed)) {
                        Ok(length) => *length,
                        Err(full) => full.value,
                    };
                    assert!(length > 0);
                }
            });
        }
    });
    println!("100000 look-ups of 5000 numbers: {} computed", computed.swap(0, Relaxed));
    for n in 100_000..200_000 {
        drop(cache.get_or_insert_with(n, || collatz(n, &computed))?);
    }
    println!(
        "a scan of 100000 others: {} computed, {} evicted",
        computed.swap(0, Relaxed),
        cache.evictions()
    );
    let kept = (1..=5_000).filter(|n| cache.get(n).is_some()).count();
    println!("of the 5000 numbers, {kept} are still there");
    if kept < 4_000 {
        return Err("the scan pushed out what was used".into());
    }
    Ok(())
}
