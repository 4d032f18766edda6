//! One measurement: threads that visit pages, each with its own sequence of references.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::cache::{PageCache, Tally};
use super::zipf::{References, Skew};

/// Results of measured visits.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    /// Number of page visits.
    pub visits: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Processor seconds of the whole process.
    pub cpu_seconds: f64,
    /// Counts of the cache.
    pub tally: Tally,
}

impl Stretch {
    /// Returns the visits per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.visits as f64 / self.seconds
    }

    /// Returns the processor time of the process as a part of the time that `threads` processors have.
    #[must_use]
    pub fn processor_share(&self, threads: usize) -> f64 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.cpu_seconds / self.seconds / threads.min(cores) as f64
    }

    /// Returns the part of the visits that were hits.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        1.0 - self.tally.misses.saturating_sub(self.tally.duplicate_reads) as f64 / self.visits.max(1) as f64
    }
}

/// References that each thread draws before the measured time, so that drawing is not measured. They are
/// repeated cyclically.
const DRAWN: usize = 1 << 17;
/// Visits between two checks for the end.
const BETWEEN_LOOKS: usize = 64;

/// Lets `threads` threads visit pages for about `time`.
///
/// # Panics
///
/// If the cache returns another page than the requested one.
#[must_use]
pub fn run(
    cache: &dyn PageCache,
    threads: usize,
    pages: u64,
    skew: Skew,
    seed: u64,
    time: Duration,
) -> Stretch {
    let is_over = AtomicBool::new(false);
    let start = Barrier::new(threads + 1);
    std::thread::scope(|s| {
        let all: Vec<_> = (0..threads as u64)
            .map(|thread| {
                let (start, is_over) = (&start, &is_over);
                s.spawn(move || {
                    let seed = seed.wrapping_mul(1_000).wrapping_add(thread);
                    let drawn: Vec<u64> = References::new(pages, skew, seed).take(DRAWN).collect();
                    start.wait();
                    visit_until(cache, &drawn, is_over)
                })
            })
            .collect();
        start.wait();
        let (began, cpu, before) = (Instant::now(), cpu_seconds(), cache.tally());
        std::thread::sleep(time);
        is_over.store(true, Relaxed); // Relaxed: no other data depends on the flag
        let visits = all.into_iter().map(|thread| thread.join().expect("a visitor ends")).sum();
        let (seconds, after) = (began.elapsed().as_secs_f64(), cache.tally());
        Stretch {
            visits,
            seconds,
            cpu_seconds: cpu_seconds() - cpu,
            tally: Tally {
                misses: after.misses - before.misses,
                duplicate_reads: after.duplicate_reads - before.duplicate_reads,
            },
        }
    })
}

fn visit_until(cache: &dyn PageCache, drawn: &[u64], is_over: &AtomicBool) -> u64 {
    let mut visits = 0;
    for few in drawn.chunks_exact(BETWEEN_LOOKS).cycle() {
        for &page in few {
            assert_eq!(cache.visit(page), page, "the cache gave another page");
        }
        visits += few.len() as u64;
        if is_over.load(Relaxed) {
            break;
        }
    }
    visits
}

/// Visits a trace in one thread. Returns the hit ratio of the references from `measured_from` on, which is
/// exact and reproducible.
#[must_use]
pub fn exact_hit_ratio(cache: &dyn PageCache, trace: &[u64], measured_from: usize) -> f64 {
    let mut before = 0;
    for (at, &page) in trace.iter().enumerate() {
        if at == measured_from {
            before = cache.tally().misses;
        }
        cache.visit(page);
    }
    1.0 - (cache.tally().misses - before) as f64 / (trace.len() - measured_from) as f64
}

/// Visits each trace in its own thread. The first third of each trace warms the cache; returns the hit ratio
/// of the rest.
///
/// # Panics
///
/// If a thread panics.
#[must_use]
pub fn hit_ratio_of_threads(cache: &dyn PageCache, traces: &[Vec<u64>]) -> f64 {
    let warmed = Barrier::new(traces.len() + 1);
    let before = std::thread::scope(|s| {
        for trace in traces {
            let warmed = &warmed;
            s.spawn(move || {
                let (warm, measured) = trace.split_at(trace.len() / 3);
                warm.iter().for_each(|&page| assert_eq!(cache.visit(page), page));
                warmed.wait(); // all threads have warmed the cache
                warmed.wait(); // the main thread has read the counts
                measured.iter().for_each(|&page| assert_eq!(cache.visit(page), page));
            });
        }
        warmed.wait();
        let before = cache.tally();
        warmed.wait();
        before
    });
    let after = cache.tally();
    let visits: usize = traces.iter().map(|trace| trace.len() - trace.len() / 3).sum();
    let read = (after.misses - after.duplicate_reads) - (before.misses - before.duplicate_reads);
    1.0 - read as f64 / visits as f64
}

/// Returns the user and system time of this process; 0 if the system does not report it.
fn cpu_seconds() -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0; // USER_HZ, 100 on every Linux
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is a name in parentheses with arbitrary characters; fields 14 and 15 are the times.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = |at: usize| fields.split_whitespace().nth(at).and_then(|f| f.parse::<f64>().ok());
    (ticks(11).unwrap_or(0.0) + ticks(12).unwrap_or(0.0)) / TICKS_PER_SECOND
}
