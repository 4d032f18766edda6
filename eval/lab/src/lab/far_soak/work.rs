//! A program of the lab: random reads, writes and discards of far memory, compared with a plain copy of it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use azekura_far::{FarError, FarMemory, FarStats, Policy};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use crate::lab::far_kills::Guard;

/// Bytes of the region of far memory; a quarter of it is local.
const BYTES: usize = 8 << 20;

/// Settings of a program.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Seed of the random accesses.
    pub seed: u64,
    /// Protection of the pages.
    pub guard: Guard,
    /// Replacement policy.
    pub policy: Policy,
    /// Bytes of a page.
    pub page: usize,
    /// Time without an answer after which a server counts as lost.
    pub stall: Duration,
}

/// State of a running program, for other threads: its counts, and the end of its last access.
#[derive(Debug)]
pub struct LastState(Mutex<(FarStats, Instant)>);

impl Default for LastState {
    fn default() -> Self {
        Self(Mutex::new((FarStats::default(), Instant::now())))
    }
}

impl LastState {
    fn lock(&self) -> MutexGuard<'_, (FarStats, Instant)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of restored connections and lost servers that the program has noticed.
    #[must_use]
    pub fn disturbances(&self) -> u64 {
        let stats = self.lock().0;
        stats.replicas_resumed + stats.replicas_lost
    }

    /// Returns whether all servers are connected and all pages have the required number of copies. With a
    /// spill file, pages need no copy on a server.
    #[must_use]
    pub fn is_whole(&self, guard: Guard) -> bool {
        let stats = self.lock().0;
        stats.replicas_lost == stats.replicas_regained && (guard == Guard::Spill || stats.thin_pages == 0)
    }

    /// Returns the time since the program's last access ended.
    #[must_use]
    pub fn waits_for(&self) -> Duration {
        self.lock().1.elapsed()
    }
}

/// Results of a program.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Number of accesses.
    pub accesses: u64,
    /// Descriptions of wrong bytes.
    pub wrong: Vec<String>,
    /// Longest time of one access.
    pub longest: Duration,
    /// Statistics of the program's far memory.
    pub stats: FarStats,
}

/// A program with its region; see the [module](self).
#[derive(Debug)]
pub struct Program {
    memory: FarMemory,
    plain: Vec<u8>,
    page: usize,
    rng: Xoshiro256PlusPlus,
}

impl Program {
    /// Creates the program's region of far memory.
    ///
    /// # Errors
    ///
    /// The region could not be created.
    pub fn new(setting: &Setting, servers: &[String], spill_dir: &Path) -> Result<Self, FarError> {
        let mut builder = FarMemory::builder()
            .bytes(BYTES)
            .local(BYTES / 4)
            .page(setting.page)
            .servers(servers)
            .policy(setting.policy)
            .stall(setting.stall)
            .seed(setting.seed);
        builder = match setting.guard {
            Guard::Copies => builder.copies(2),
            Guard::Spill => {
                let name = format!("azekura-soak-{}-{}", std::process::id(), setting.seed);
                builder.spill(spill_dir.join(name))
            }
            Guard::None => builder,
        };
        let memory = builder.build()?;
        let plain = vec![0; memory.len()];
        let rng = Xoshiro256PlusPlus::seed_from_u64(setting.seed);
        Ok(Self { memory, plain, page: setting.page, rng })
    }

    /// Makes accesses until `ends` is set or a byte is wrong, then checks every byte.
    pub fn work(mut self, state: &LastState, ends: &AtomicBool) -> Done {
        let mut done = Done::default();
        // Relaxed: no other data depends on the flag.
        while !ends.load(Relaxed) && done.wrong.is_empty() {
            let since = Instant::now();
            if !self.access() {
                done.wrong.push(format!("access {}", done.accesses));
            }
            done.longest = done.longest.max(since.elapsed());
            done.accesses += 1;
            *state.lock() = (self.memory.stats(), Instant::now());
        }
        for (number, (found, expected)) in
            self.memory.chunks(self.page).zip(self.plain.chunks(self.page)).enumerate()
        {
            if found != expected {
                done.wrong.push(format!("page {number} at the end"));
            }
        }
        done.stats = self.memory.stats();
        done
    }

    /// Makes one access of a few bytes up to four pages. Returns whether it read the right bytes.
    fn access(&mut self) -> bool {
        let most = if self.rng.random_range(0..4) == 0 { 4 * self.page } else { 256 };
        let length = self.rng.random_range(1..=most);
        // Half of the accesses are to a sixteenth of the memory, so that some pages stay local and some are
        // prefetched.
        let reach = if self.rng.random() { self.plain.len() / 16 } else { self.plain.len() };
        let at = self.rng.random_range(0..=reach - length);
        let span = at..at + length;
        match self.rng.random_range(0..16) {
            0..8 => {
                let value = self.rng.random();
                let step = self.rng.random_range(0..3_u8);
                for (i, byte) in (0_u8..=255).cycle().zip(&mut self.plain[span.clone()]) {
                    *byte = i.wrapping_mul(step).wrapping_add(value);
                }
                self.memory[span.clone()].copy_from_slice(&self.plain[span]);
                true
            }
            8 => {
                // Only whole pages are discarded.
                let whole = at.next_multiple_of(self.page)..(at + length) / self.page * self.page;
                if whole.start < whole.end {
                    self.memory.discard(whole.clone());
                    self.plain[whole].fill(0);
                }
                true
            }
            _ => self.memory[span.clone()] == self.plain[span],
        }
    }
}
