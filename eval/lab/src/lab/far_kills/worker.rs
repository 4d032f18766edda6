//! The program of a trial: random reads and writes of far memory, compared with a plain copy of it, until
//! standard input ends.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use azekura_far::{FarError, FarMemory};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::{Guard, Wrong, tell};

const PAGE: usize = 16 << 10;
const PAGES: usize = 256;
const LOCAL: usize = 64;
/// Time without an answer after which a server counts as lost, if the lab may stop a server.
const STALL: Duration = Duration::from_millis(1500);
/// The same time for other faults: the connection tells of them at once. A busy machine may not run the other
/// server, which has the only copy then, for some seconds.
const PATIENT_STALL: Duration = Duration::from_secs(20);

/// Reads and writes until standard input ends, then checks every byte. Writes `begun` before the first access
/// to far memory. Writes `right` at the end, with the longest time of one access in milliseconds. `wrongs`
/// are the possible faults of the servers.
///
/// # Errors
///
/// The region could not be created.
///
/// # Panics
///
/// At the first wrong byte.
pub fn work(
    seed: u64,
    guard: Guard,
    wrongs: &[Wrong],
    servers: &[String],
    spill_dir: &Path,
) -> Result<(), FarError> {
    let mut setting = FarMemory::builder()
        .bytes(PAGES * PAGE)
        .local(LOCAL * PAGE)
        .page(PAGE)
        .servers(servers)
        .stall(if wrongs.contains(&Wrong::Stalled) { STALL } else { PATIENT_STALL })
        .seed(seed);
    match guard {
        Guard::Copies => setting = setting.copies(2),
        Guard::Spill => {
            setting = setting.spill(spill_dir.join(format!("azekura-spill-{}", std::process::id())))
        }
        Guard::None => {}
    }
    let mut memory = setting.build()?;
    tell("begun");
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut plain = vec![0_u8; memory.len()];
    rng.fill(&mut plain[..]);
    memory.copy_from_slice(&plain);
    let ends = when_input_ends();
    let mut longest = Duration::ZERO;
    // Relaxed: no other data depends on the flag.
    while !ends.load(Relaxed) {
        let at = rng.random_range(0..PAGES) * PAGE;
        let span = at..at + PAGE;
        let since = Instant::now();
        if rng.random() {
            let value: u8 = rng.random();
            memory[span.clone()].fill(value);
            plain[span].fill(value);
        } else {
            assert!(memory[span.clone()] == plain[span], "seed {seed}: a wrong byte in page {}", at / PAGE);
        }
        longest = longest.max(since.elapsed());
    }
    for page in 0..PAGES {
        let (span, since) = (page * PAGE..(page + 1) * PAGE, Instant::now());
        assert!(memory[span.clone()] == plain[span], "seed {seed}: a wrong byte in page {page} at the end");
        longest = longest.max(since.elapsed());
    }
    tell(&format!("right {:.1}", longest.as_secs_f64() * 1e3));
    Ok(())
}

fn when_input_ends() -> Arc<AtomicBool> {
    let ends = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&ends);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        is_over.store(true, Relaxed);
    });
    ends
}
