//! The time for which a thread waits for another's read of a page before it reads the page itself: usually
//! eight times the duration of a read.
//!
//! If the time is too short, a slow device reads pages twice. If it is too long, a thread that stalls during
//! a read, or waits for a processor there, delays the threads that want the page. So reads are timed: those
//! of one page in [`SAMPLED`], chosen by page id, because a clock read costs a tenth of a page copy in
//! memory.

use azekura_base::PageId;
use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_base::sync::time::Instant;

use super::NAP;

/// Reads of one page in so many are timed; a power of two.
const SAMPLED: u64 = 32;
/// The wait lasts this many times the usual time of a read.
const READS: u64 = 8;
/// Bounds of the wait: long enough that a read which is nearly done is seldom repeated, and limited for any
/// slow device.
const NAPS: (u64, u64) = (4, 4_000);
/// Assumed time of a read before one was measured.
const UNKNOWN_NS: u64 = 250_000;

/// The usual time of a read.
#[derive(Debug)]
pub(super) struct ReadWait {
    /// Relaxed: a guess; one that is lost between two threads makes no difference.
    read_ns: AtomicU64,
}

impl Default for ReadWait {
    fn default() -> Self {
        Self { read_ns: AtomicU64::new(UNKNOWN_NS) }
    }
}

impl ReadWait {
    /// Runs `read`, the page's; times it now and then.
    pub(super) fn reading<T>(&self, page_id: PageId, read: impl FnOnce() -> T) -> T {
        let is_sampled = page_id.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SAMPLED.ilog2()) == 0;
        if cfg!(loom) || !is_sampled {
            return read();
        }
        let began = Instant::now();
        let done = read();
        self.note(u64::try_from((Instant::now() - began).as_nanos()).unwrap_or(u64::MAX));
        done
    }

    /// A read took so long. One that took much longer than others, for whatever reason, counts as eight.
    fn note(&self, ns: u64) {
        let usual = self.read_ns.load(Relaxed);
        let ns = ns.min(8 * usual + 1);
        self.read_ns.store(usual - usual / 8 + ns / 8, Relaxed);
    }

    /// Naps before a waiter reads for itself; models do so after a yield.
    pub(super) fn naps(&self) -> u64 {
        if cfg!(loom) {
            return 0;
        }
        let wait = READS * self.read_ns.load(Relaxed);
        wait.div_ceil(NAP.as_nanos() as u64).clamp(NAPS.0, NAPS.1)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_waits_does_so_for_a_few_reads_of_the_device_at_hand() {
        let read_wait = ReadWait::default();
        assert_eq!(read_wait.naps(), 40, "2 ms, until a read was timed");
        for (read_us, naps) in [(1, NAPS.0), (100, 16), (10_000, 1_600), (3_600_000_000, NAPS.1), (100, 16)] {
            (0..300).for_each(|_| read_wait.note(read_us * 1_000));
            assert!(read_wait.naps().abs_diff(naps) <= 1, "{read_us} µs: {} naps", read_wait.naps());
        }
    }

    #[test]
    fn one_read_that_hangs_does_not_make_others_wait_for_long() {
        let read_wait = ReadWait::default();
        (0..300).for_each(|_| read_wait.note(100_000));
        read_wait.note(60_000_000_000);
        assert!((16..=32).contains(&read_wait.naps()), "{}", read_wait.naps());
    }

    #[test]
    fn some_reads_are_timed_and_all_are_done() {
        let read_wait = ReadWait::default();
        let sum: u64 = (0..1_000).map(|id| read_wait.reading(PageId(id), || id)).sum();
        assert_eq!(sum, 499_500);
        assert_ne!(read_wait.read_ns.load(Relaxed), UNKNOWN_NS); // Relaxed: one thread
    }
}
