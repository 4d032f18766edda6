//! A program: random reads, writes and discards of far memory beside a plain copy of it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use azekura_far::{FarError, FarMemory, FarStats, Policy};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use crate::lab::far_kills::Guard;

/// Bytes of the region; a quarter is local.
const BYTES: usize = 8 << 20;

/// Settings of a program.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Seed of its random accesses.
    pub seed: u64,
    /// Protection of its pages.
    pub guard: Guard,
    /// Replacement policy.
    pub policy: Policy,
    /// Bytes of a page.
    pub page: usize,
    /// Time without an answer after which a server counts as lost.
    pub stall: Duration,
}

/// State of a working program for other threads.
#[derive(Debug)]
pub struct Told(Mutex<(FarStats, Instant)>);

impl Default for Told {
    fn default() -> Self {
        Self(Mutex::new((FarStats::default(), Instant::now())))
    }
}

impl Told {
    fn lock(&self) -> MutexGuard<'_, (FarStats, Instant)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections that broke, and servers that were lost, as far as it has noticed.
    #[must_use]
    pub fn disturbances(&self) -> u64 {
        let stats = self.lock().0;
        stats.replicas_resumed + stats.replicas_lost
    }

    /// Returns whether all servers are there, and all pages have as many copies as they should (pages in the
    /// file need not be on a server).
    #[must_use]
    pub fn is_whole(&self, guard: Guard) -> bool {
        let stats = self.lock().0;
        stats.replicas_lost == stats.replicas_regained && (guard == Guard::Spill || stats.thin_pages == 0)
    }

    /// Returns the time that its last access has taken so far.
    #[must_use]
    pub fn waits_for(&self) -> Duration {
        self.lock().1.elapsed()
    }
}

/// Counts of a program's work.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Accesses.
    pub accesses: u64,
    /// Places with wrong bytes.
    pub wrong: Vec<String>,
    /// The longest of them.
    pub longest: Duration,
    /// Of its far memory.
    pub stats: FarStats,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Program {
    memory: FarMemory,
    plain: Vec<u8>,
    page: usize,
    rng: Xoshiro256PlusPlus,
}

impl Program {
    /// Sets its memory up.
    ///
    /// # Errors
    ///
    /// The region could not be made.
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

    /// Works until the end is wanted, then looks at every byte.
    pub fn work(mut self, told: &Told, ends: &AtomicBool) -> Done {
        let mut done = Done::default();
        // Relaxed: a flag for itself.
        while !ends.load(Relaxed) && done.wrong.is_empty() {
            let since = Instant::now();
            if !self.access() {
                done.wrong.push(format!("access {}", done.accesses));
            }
            done.longest = done.longest.max(since.elapsed());
            done.accesses += 1;
            *told.lock() = (self.memory.stats(), Instant::now());
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

    /// Makes one access, of a few bytes up to a few pages; returns whether it read the right bytes.
    fn access(&mut self) -> bool {
        let most = if self.rng.random_range(0..4) == 0 { 4 * self.page } else { 256 };
        let length = self.rng.random_range(1..=most);
        // Half of the accesses are to a sixteenth of the memory, so that some pages stay and some come ahead
        // of need.
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
                // Whole pages only are given back.
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
