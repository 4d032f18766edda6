//! Thrash report: the part of its time for which the program waits for pages, and how much additional local
//! memory would avoid it. Reported at the end, and while the program runs (`--progress`).
//!
//! The time of the program is the time for which its threads ran or waited for pages, without the threads of
//! this library. Time for which threads wait for other events does not count.

use super::{heap, say};
use azekura_far::MoreMemory;
use std::fmt;
use std::time::Duration;

/// Part of the time, in hundredths, from which on the report at the end warns.
const THRASHES: u64 = 50;

/// Misses and times since the process began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waiting {
    misses: u64,
    waited_ns: u64,
    ran_ns: u64,
}

impl Waiting {
    /// Returns the times up to now, for this number of misses and this time of waiting for them.
    pub(super) fn until_now(misses: u64, waited_ns: u64) -> Self {
        // SAFETY: all zeros is a valid result, which the call fills. The call does not fail for the own
        // process.
        let used = unsafe {
            let mut used: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &raw mut used);
            used
        };
        let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
        let all = ns(used.ru_utime) + ns(used.ru_stime);
        Self { misses, waited_ns, ran_ns: all.saturating_sub(crate::hooks::processor_ns()) }
    }

    fn since(self, before: Self) -> Self {
        Self {
            misses: self.misses - before.misses,
            waited_ns: self.waited_ns - before.waited_ns,
            ran_ns: self.ran_ns.saturating_sub(before.ran_ns),
        }
    }

    /// Returns the part of its time for which the program waited, in hundredths.
    pub(super) fn share(self) -> u64 {
        self.waited_ns.saturating_mul(100) / (self.waited_ns + self.ran_ns).max(1)
    }

    pub(super) fn thrashes(self) -> bool {
        self.misses > 0 && self.share() >= THRASHES
    }
}

/// The additional memory that would avoid misses, as text.
pub(super) struct Remedy(pub(super) MoreMemory);

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        match (self.0.half, self.0.most) {
            (Some(half), Some(most)) if half == most => {
                write!(f, "--local larger by {} MiB would avoid 90 % of the misses", mib(most))
            }
            (Some(half), Some(most)) => write!(
                f,
                "--local larger by {} MiB would avoid half of the misses, by {} MiB 90 % of them",
                mib(half),
                mib(most)
            ),
            (Some(half), None) => {
                write!(f, "--local larger by {} MiB would avoid half of the misses", mib(half))
            }
            (None, _) => f.write_str("even eight times --local more would not avoid half of the misses"),
        }
    }
}

/// Starts to report at an interval; 0 for never.
pub(super) fn report_every(milliseconds: u64) -> std::io::Result<()> {
    if milliseconds > 0 {
        std::thread::Builder::new()
            .name("far-progress".into())
            .spawn(move || report(Duration::from_millis(milliseconds)))?;
    }
    Ok(())
}

fn report(interval: Duration) {
    let mut before = Waiting::default();
    loop {
        std::thread::sleep(interval);
        let Some(heap) = heap() else { return };
        let stats = heap.memory().stats();
        let now = Waiting::until_now(stats.swap_ins, stats.swap_ns);
        let latest = now.since(before);
        before = now;
        if latest.misses > 0 {
            say(format_args!(
                "azekura far: {} misses, {} % of the time waited for pages; {}\n",
                latest.misses,
                latest.share(),
                Remedy(heap.memory().more_memory())
            ));
        }
    }
}
