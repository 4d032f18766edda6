//! The durable horizon: the LSN up to which every stream is complete on disk (paper section 3.1.3, Algorithm
//! 4; hazards W1, W4).
//!
//! The paper's rule is `commitLSN <= min(flushedLSN)` over the log buffers. A log buffer with nothing to log
//! would stop that minimum forever (W1), so each log buffer has a **mark**: its least LSN that may not be
//! durable yet.
//!
//! | mark | state of the log buffer | left by |
//! |---|---|---|
//! | `u64::MAX` | idle: all its records are durable | an append: stores the counter as read, then draws |
//! | `n` | has records from `n` on, in its buffer or in flight | a flush leader, once these are durable |
//!
//! All stores to a mark are made under that log buffer's latch.
//!
//! - **HORIZON-1** A log buffer's mark is at most its least LSN that is not durable, from before that LSN is
//!   drawn. LSNs that the buffer has drawn ahead are above a record that is not durable. They become durable
//!   with that record, as records or in gaps (RANGE-1, RANGE-6 in `lsn_range`).
//! - **HORIZON-2** A reader loads the counter first, then the marks. An LSN below the loaded counter was
//!   drawn before, so the reader sees the mark that was stored before the draw, or a later one. The reader
//!   claims nothing about LSNs from the counter on.
//!
//! | appender (idle log buffer, draws 7) | reader |
//! |---|---|
//! | `mark = 5` (counter as read now) | |
//! | `counter.fetch_add` gives 7 | |
//! | `mark = 7` | `counter` is 8 |
//! | | `mark` is 5 or 7, never idle: claims at most 6 |
//!
//! Model: `tests/loom_horizon.rs`.

use azekura_base::sync::atomic::{AtomicU64, Ordering::*};
use azekura_base::{CachePadded, Lsn};

/// The mark of an idle log buffer.
const IDLE: u64 = u64::MAX;

/// The LSN counter, each log buffer's mark, and the horizon that follows from them.
#[derive(Debug)]
pub struct DurableHorizon {
    /// The next LSN. Written by every appender.
    next: CachePadded<AtomicU64>,
    /// One mark per log buffer. Written under the log buffer's latch, read by every thread.
    marks: Box<[CachePadded<AtomicU64>]>,
    /// The largest horizon computed so far; only increases.
    reached: CachePadded<AtomicU64>,
    /// For a log that is synced at intervals: the LSN up to which it is synced; only increases. In such a log
    /// the marks and the horizon state what is written to the operating system.
    synced: Option<CachePadded<AtomicU64>>,
}

impl DurableHorizon {
    /// Returns a horizon just below `first_lsn`, with idle log buffers.
    #[must_use]
    pub fn new(log_buffers: usize, first_lsn: Lsn) -> Self {
        Self {
            next: CachePadded::new(AtomicU64::new(first_lsn.0)),
            marks: (0..log_buffers).map(|_| CachePadded::new(AtomicU64::new(IDLE))).collect(),
            reached: CachePadded::new(AtomicU64::new(first_lsn.0.saturating_sub(1))),
            synced: None,
        }
    }

    /// Converts the horizon to one of a log that is synced at intervals.
    #[must_use]
    pub fn synced_at_intervals(self) -> Self {
        let synced = CachePadded::new(AtomicU64::new(self.reached().0));
        Self { synced: Some(synced), ..self }
    }

    /// Returns `true` if the log is synced at intervals instead of with each write.
    pub(crate) const fn is_synced_at_intervals(&self) -> bool {
        self.synced.is_some()
    }

    /// Returns the LSN up to which everything survives a power loss: the horizon, or, in a log that is synced
    /// at intervals, its synced part.
    pub(crate) fn survives_power_loss(&self) -> Lsn {
        // Acquire: pairs with the Release in `note_synced`.
        self.synced.as_ref().map_or_else(|| self.compute(), |synced| Lsn(synced.load(Acquire)))
    }

    /// Records that everything up to `lsn` is synced: it was written before a sync of all files.
    pub(crate) fn note_synced(&self, lsn: Lsn) {
        if let Some(synced) = &self.synced {
            // Release: pairs with the Acquire in `survives_power_loss`.
            synced.fetch_max(lsn.0, AcqRel);
        }
    }

    /// Returns the LSN that will be drawn next, above all drawn so far. A record that is appended after this
    /// call may have a smaller LSN, which its log buffer drew before (RANGE-5).
    #[must_use]
    pub fn next_lsn(&self) -> Lsn {
        // Acquire: pairs with the draws below this value; see `compute`.
        Lsn(self.next.load(Acquire))
    }

    /// Draws an LSN for `log_buffer`. The caller holds the buffer's latch and has checked its space. The flag
    /// is `true` if the log buffer was idle.
    pub fn draw(&self, log_buffer: usize) -> (u64, bool) {
        self.draw_range(log_buffer, 1)
    }

    /// Draws `count` consecutive LSNs for `log_buffer`, as [`draw`](Self::draw) does, by one write to the
    /// counter. Returns the first LSN, which the caller must use for a record at once. An idle log buffer's
    /// mark becomes the counter as read before the draw, which is below the range.
    pub fn draw_range(&self, log_buffer: usize, count: u64) -> (u64, bool) {
        let mark = &self.marks[log_buffer];
        // Relaxed: marks are stored under the latch that the caller holds.
        let was_idle = mark.load(Relaxed) == IDLE;
        if was_idle {
            // HORIZON-1: before the draw. Relaxed load: any older value of the counter is a lower bound too.
            // Relaxed store: published by the Release half of the draw.
            mark.store(self.next.load(Relaxed), Relaxed);
        }
        // AcqRel: Release publishes this mark to a thread that reads this or a later draw from the counter
        // (one release sequence, as all writers are read-modify-writes); pairs with the Acquire in `compute`.
        // Acquire orders the next draw, by a thread that read this one, after the writes before this draw.
        let lsn = self.next.fetch_add(count, AcqRel);
        if was_idle {
            // The exact bound: LSNs that other buffers drew between the read and the draw need not wait for
            // this one.
            mark.store(lsn, Relaxed);
        }
        (lsn, was_idle)
    }

    /// Records that all batches that flushes took from `log_buffer` are durable. The caller holds the
    /// buffer's latch and passes the first LSN that is still in the buffer.
    pub fn mark_durable(&self, log_buffer: usize, first_buffered: Option<u64>) {
        // Release: pairs with the Acquire of the marks in `compute`.
        self.marks[log_buffer].store(first_buffered.unwrap_or(IDLE), Release);
    }

    /// Returns the least mark among these log buffers, `None` if all are idle.
    pub fn pending(&self, log_buffers: impl Iterator<Item = usize>) -> Option<u64> {
        // Acquire: as in `compute`.
        log_buffers.map(|w| self.marks[w].load(Acquire)).min().filter(|&mark| mark != IDLE)
    }

    /// Returns `true` if all of a log buffer's records are durable.
    #[must_use]
    pub fn is_idle(&self, log_buffer: usize) -> bool {
        self.marks[log_buffer].load(Acquire) == IDLE
    }

    /// Returns the horizon as last computed: one load.
    #[must_use]
    pub fn reached(&self) -> Lsn {
        // Acquire: pairs with the Release in `compute`; the marks that the computing thread saw are visible.
        Lsn(self.reached.load(Acquire))
    }

    /// Computes the horizon: a load per log buffer.
    pub fn compute(&self) -> Lsn {
        // HORIZON-2. Acquire: pairs with the draws below `next`.
        let next = self.next.load(Acquire);
        let bound = self.pending(0..self.marks.len()).map_or(next, |mark| mark.min(next));
        let now = bound - 1;
        // Relaxed: the load only avoids a needless write.
        if self.reached.load(Relaxed) < now {
            // Release: pairs with the Acquire in `reached`.
            self.reached.fetch_max(now, AcqRel);
        }
        self.reached()
    }

    /// Returns `true` if everything up to `lsn` is durable.
    #[must_use]
    pub fn has_reached(&self, lsn: Lsn) -> bool {
        self.reached() >= lsn || self.compute() >= lsn
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn w1_idle_log_buffer_does_not_hold_the_horizon() {
        let horizon = DurableHorizon::new(3, Lsn(1));
        assert_eq!(horizon.draw(0), (1, true));
        assert_eq!(horizon.draw(0), (2, false));
        assert_eq!(horizon.compute(), Lsn(0));
        horizon.mark_durable(0, None);
        assert_eq!(horizon.compute(), Lsn(2), "log buffers 1 and 2 never logged anything");
    }

    #[test]
    fn w4_the_horizon_is_the_least_over_all_logs() {
        let horizon = DurableHorizon::new(2, Lsn(10));
        horizon.draw(0);
        horizon.draw(1);
        horizon.draw(0);
        horizon.mark_durable(0, None);
        assert_eq!(horizon.compute(), Lsn(10), "11 is in log buffer 1's buffer");
        assert_eq!(horizon.pending(0..2), Some(11));
        horizon.mark_durable(1, None);
        assert_eq!(horizon.compute(), Lsn(12));
    }

    #[test]
    fn the_horizon_never_goes_back() {
        let horizon = DurableHorizon::new(2, Lsn(1));
        horizon.draw(0);
        horizon.mark_durable(0, None);
        assert_eq!(horizon.compute(), Lsn(1));
        horizon.draw(1);
        assert_eq!(horizon.compute(), Lsn(1));
        assert!(!horizon.has_reached(Lsn(2)));
    }
}
