//! The bound on the time of a restart, computed from its work: reading the log, reading the pages that the
//! log changes (and writing them back), and undoing open transactions.
//!
//! A record from the redo LSN on changes a page that is either dirty now, or was written after that record,
//! and so after the redo LSN. So a restart reads at most the pages that are dirty now and the pages written
//! since the redo LSN. A page write moves a page from the first count to the second. The sum therefore grows
//! only with the changes of transactions, and limits the redo LSN in the same way as the bytes of the log do.
//!
//! Writing pages does not reduce the undo work of open transactions. The time for this work is subtracted
//! from the bound, but at most half of the bound.

use std::collections::VecDeque;
use std::time::Duration;

use azekura_base::Lsn;

/// Bytes of log that a restart reads and redoes per second, if the pages are in the cache. Measured: 200 to
/// 400 MB/s for small records, on two cores of 2023.
const REPLAY_BYTES_PER_S: f64 = (64 << 20) as f64;
/// Pages that a restart reads, and writes back, per second. Measured: 50,000 pages/s, read by eight threads
/// from a cloud volume of 2023.
const PAGES_PER_S: f64 = 20_000.0;
/// Changes that a restart undoes per second, until the store has measured another rate
/// ([`undo_pace`](super::undo_pace)). Measured: 3 million/s on a core of 2023 if the pages are in the cache
/// (`azekura-lab p-wal --part restart`); one thread reads 12,000 pages/s from a cloud volume. The value thus
/// assumes one page read with every ninth change.
pub(super) const UNDO_PER_S: f64 = 100_000.0;

/// Work of a restart, or an upper bound of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) log_bytes: u64,
    pub(crate) pages: u64,
    pub(crate) undo_entries: u64,
}

impl Work {
    /// Returns the seconds that this work is assumed to take.
    pub(crate) fn seconds(self) -> f64 {
        self.log_bytes as f64 / REPLAY_BYTES_PER_S
            + self.pages as f64 / PAGES_PER_S
            + self.undo_entries as f64 / UNDO_PER_S
    }
}

/// The work done so far, and the undo time of the open transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Present {
    pub(super) next_lsn: Lsn,
    pub(super) log_bytes: u64,
    pub(super) pages_written: u64,
    pub(super) dirty_pages: u64,
    /// Time to undo open transactions.
    pub(super) undo_time: Duration,
}

/// The work done at earlier times, back to the LSN at which a restart begins.
#[derive(Debug, Default)]
pub(crate) struct Past(VecDeque<Point>);

/// The work done before `next_lsn` was drawn.
#[derive(Clone, Copy, Debug)]
struct Point {
    next_lsn: Lsn,
    log_bytes: u64,
    pages_written: u64,
}

impl Past {
    /// Largest number of points. When the number is reached, every other point is dropped.
    const MAX: usize = 1024;

    /// Records `now`, and returns the lowest LSN at which a restart may begin redo so that the whole restart
    /// takes at most `time`.
    pub(super) fn target(&mut self, now: Present, time: Duration) -> Lsn {
        self.note(now);
        let left = (time - now.undo_time.min(time / 2)).as_secs_f64();
        let fits = |point: &Point| {
            let work = Work {
                log_bytes: now.log_bytes.saturating_sub(point.log_bytes),
                pages: now.pages_written.saturating_sub(point.pages_written).saturating_add(now.dirty_pages),
                undo_entries: 0,
            };
            work.seconds() <= left
        };
        let too_old = self.0.iter().take_while(|point| !fits(point)).count();
        self.0.drain(..too_old.min(self.0.len() - 1));
        self.0[0].next_lsn
    }

    fn note(&mut self, now: Present) {
        let Present { next_lsn, log_bytes, pages_written, .. } = now;
        if self
            .0
            .back()
            .is_some_and(|last| last.log_bytes == log_bytes && last.pages_written == pages_written)
        {
            return;
        }
        if self.0.len() >= Self::MAX {
            let mut keep = false;
            self.0.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.0.push_back(Point { next_lsn, log_bytes, pages_written });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LOG: u64 = REPLAY_BYTES_PER_S as u64;
    const PAGES: u64 = PAGES_PER_S as u64;

    fn at(lsn: u64, log_bytes: u64, pages_written: u64, dirty_pages: u64) -> Present {
        Present { next_lsn: Lsn(lsn), log_bytes, pages_written, dirty_pages, undo_time: Duration::ZERO }
    }

    #[test]
    fn the_restart_moves_with_log_and_pages_together() {
        let mut past = Past::default();
        assert_eq!(past.target(at(1, 0, 0, 0), SECOND), Lsn(1));
        assert_eq!(past.target(at(10, LOG / 4, 0, PAGES / 4), SECOND), Lsn(1), "half of it so far");
        assert_eq!(past.target(at(20, LOG / 2, PAGES / 8, PAGES / 4), SECOND), Lsn(1));
        assert_eq!(
            past.target(at(30, LOG / 2, PAGES / 8, PAGES / 2), SECOND),
            Lsn(10),
            "more pages are dirty"
        );
        assert_eq!(
            past.target(at(40, LOG / 2, PAGES / 2, PAGES / 4 * 3), SECOND),
            Lsn(40),
            "nothing older would do"
        );
    }

    #[test]
    fn pages_that_are_written_and_stay_in_the_cache_count_until_the_restart_begins_behind_them() {
        let mut past = Past::default();
        past.target(at(1, 0, 0, 0), SECOND);
        assert_eq!(past.target(at(5, 10, 0, PAGES / 2), SECOND), Lsn(1));
        // All dirty pages are written now, but a restart that begins earlier still reads as many.
        assert_eq!(past.target(at(6, 10, PAGES / 2, 0), SECOND), Lsn(1));
        assert_eq!(past.target(at(9, 20, PAGES / 2, PAGES / 4 * 3), SECOND), Lsn(6));
    }

    #[test]
    fn open_transactions_reduce_the_time_for_redo_to_at_least_half() {
        for (undo_time, from) in [(Duration::ZERO, 1), (SECOND / 4, 2), (SECOND / 2, 3), (100 * SECOND, 3)] {
            let mut past = Past::default();
            for n in 0..4 {
                past.target(at(n + 1, LOG * n / 4, 0, 0), SECOND * 100);
            }
            let now = Present { undo_time, ..at(5, LOG, 0, 0) };
            assert_eq!(past.target(now, SECOND), Lsn(from), "{undo_time:?}");
        }
    }

    #[test]
    fn the_number_of_past_points_is_limited() {
        let mut past = Past::default();
        for n in 1..5000 {
            assert_eq!(past.target(at(n, n * 100, 0, 0), Duration::MAX), Lsn(1).max(past.0[0].next_lsn));
            let least = (n as usize).min(Past::MAX / 2);
            assert!((least..=Past::MAX).contains(&past.0.len()), "{} after {n}", past.0.len());
        }
        assert!(past.target(at(9_000_000, u64::MAX, u64::MAX, u64::MAX), Duration::ZERO) == Lsn(9_000_000));
    }
}
