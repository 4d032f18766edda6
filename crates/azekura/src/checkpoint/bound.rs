//! How long a restart may take, in what it would have to do: read the log, and the pages that the log changes.
//!
//! A restart reads every page that a record from its redo LSN on changes. Such a page is in the cache when the store is killed, or
//! it left the cache after that LSN, so it was written on its way out. The pages of the cache are as many as it has frames; those
//! that leave are counted here, and the redo LSN follows them as it follows the bytes of the log.

use std::collections::VecDeque;
use std::time::Duration;

use azekura_base::Lsn;

/// Log that a restart reads and redoes in a second, in bytes, if the pages are there. Measured: 200 to 400 MB for small records, on
/// two cores of 2023.
const REPLAY_BYTES_PER_S: f64 = (64 << 20) as f64;
/// Pages that it reads in a second. Measured: 50,000 by eight threads from a cloud volume of the same year.
const PAGE_READS_PER_S: f64 = 20_000.0;

/// Work of a restart, or a bound on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) log_bytes: u64,
    pub(super) page_reads: u64,
}

impl Work {
    /// What is done in this time.
    pub(super) fn within(time: Duration) -> Self {
        let times = |rate: f64| (time.as_secs_f64() * rate) as u64; // saturates
        Self { log_bytes: times(REPLAY_BYTES_PER_S), page_reads: times(PAGE_READS_PER_S) }
    }
}

/// What happened when, as far back as a restart may go.
#[derive(Debug, Default)]
pub(super) struct Past {
    log_bytes: History,
    pages_out: History,
}

impl Past {
    /// Notes that so much was done in the store's life before `next_lsn` was next.
    pub(super) fn note(&mut self, next_lsn: Lsn, log_bytes: u64, pages_out: u64) {
        self.log_bytes.note(next_lsn, log_bytes);
        self.pages_out.note(next_lsn, pages_out);
    }

    /// The LSN that a restart may begin with, so that it has half of `bound` to do: the other half is for what happens while the
    /// pages are written that are in its way. `None` if it may begin anywhere.
    pub(super) fn target(&mut self, bound: Work) -> Option<Lsn> {
        self.log_bytes.target(bound.log_bytes / 2).max(self.pages_out.target(bound.page_reads / 2))
    }
}

/// How far a count was when.
#[derive(Debug, Default)]
struct History(VecDeque<(u64, Lsn)>);

impl History {
    /// Most points kept; when full, every other one goes.
    const MAX: usize = 1024;

    fn note(&mut self, next_lsn: Lsn, count: u64) {
        if self.0.back().is_some_and(|&(last, _)| last == count) {
            return;
        }
        if self.0.len() >= Self::MAX {
            let mut keep = false;
            self.0.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.0.push_back((count, next_lsn));
    }

    /// An LSN from which on no more than about `most` were counted, if more were counted in all.
    fn target(&mut self, most: u64) -> Option<Lsn> {
        let (now, _) = *self.0.back()?;
        self.lsn_at(now.saturating_sub(most))
    }

    /// An LSN that was next when no more than `count` had been counted; older points are forgotten.
    fn lsn_at(&mut self, count: u64) -> Option<Lsn> {
        while self.0.get(1).is_some_and(|&(at, _)| at <= count) {
            self.0.pop_front();
        }
        self.0.front().filter(|&&(at, _)| at <= count).map(|&(_, lsn)| lsn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_tells_which_lsn_was_next_at_a_count() {
        let mut history = History::default();
        assert_eq!(history.lsn_at(10), None);
        for i in 1..=10 {
            history.note(Lsn(i), i * 100);
        }
        assert_eq!(history.lsn_at(50), None);
        assert_eq!(history.lsn_at(399), Some(Lsn(3)));
        assert_eq!(history.lsn_at(400), Some(Lsn(4)));
        assert_eq!(history.lsn_at(5000), Some(Lsn(10)));
        for i in 11..5000 {
            history.note(Lsn(i), i * 100);
        }
        assert!(history.0.len() <= History::MAX);
    }

    #[test]
    fn the_restart_moves_with_the_log_or_with_the_pages_whichever_is_more() {
        let bound = Work { log_bytes: 1000, page_reads: 20 };
        let mut past = Past::default();
        past.note(Lsn(1), 0, 0);
        past.note(Lsn(10), 400, 2);
        assert_eq!(past.target(bound), Some(Lsn(1)), "little was done so far: all of it may stay");
        past.note(Lsn(20), 600, 3);
        assert_eq!(past.target(bound), Some(Lsn(1)), "500 bytes of 600 may stay");
        past.note(Lsn(30), 700, 15);
        assert_eq!(past.target(bound), Some(Lsn(20)), "12 pages left since; 200 bytes would allow more");
    }

    #[test]
    fn a_time_of_any_length_is_a_bound() {
        assert_eq!(Work::within(Duration::from_secs(2)), Work { log_bytes: 128 << 20, page_reads: 40_000 });
        assert_eq!(Work::within(Duration::MAX).page_reads, u64::MAX);
        assert_eq!(Work::within(Duration::ZERO), Work { log_bytes: 0, page_reads: 0 });
    }
}
