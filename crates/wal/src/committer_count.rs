//! The number of committing threads, and the rule that follows from it: which thread leads a flush.
//!
//! | committers | a flush is led by | reason |
//! |---|---|---|
//! | 0 to 2 | a committer | it writes its own record without a thread switch |
//! | 3 or more | the stream's flusher, if there is one | the device works while released committers run |
//!
//! The size of a flush's group does not give the number of committers: a small group may be all of them, or
//! only those that missed the previous flush. Therefore the threads of the last commits are counted. If
//! commits are rare, the count is 0: rare committers do not wait for each other.
//!
//! Measurements: `docs/decisions/030-fixed-log-rules.md`.

use std::time::Duration;

use azekura_base::sync::time::Instant;

/// Number of committers from which on the flusher leads.
const FLUSHER_LEADS_FROM: u32 = 3;
/// Commits per count: 64 allow a count of up to 64 committers, and take a few milliseconds.
const COMMITS_PER_COUNT: u32 = 64;
/// Commits are dense if their mean distance is at most this many flush times.
const DENSE_FLUSHES: u32 = 2;
/// Sparse counts in a row after which the number of committers is taken as 0. One sparse count is no proof:
/// on a busy machine all committers may be without a processor for a while.
const SPARSE_COUNTS: u32 = 3;

/// The role of the thread that leads a stream's flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushLeader {
    /// A committer that waits for the flush.
    Committer,
    /// The stream's flusher thread.
    Flusher,
}

/// Counts the threads that commit through one gate.
#[derive(Debug, Default)]
pub(crate) struct CommitterCount {
    last_count: u32,
    /// Number of commits in the current count.
    commits: u32,
    /// One bit for each of 64 classes of threads that committed in the current count.
    threads: u64,
    /// Start of the current count.
    since: Option<Instant>,
    sparse_counts: u32,
}

impl CommitterCount {
    /// Returns the last count, at most 64; 0 if commits are sparse.
    #[cfg(all(test, not(loom)))]
    const fn get(&self) -> u32 {
        self.last_count
    }

    /// Returns the role of the thread that leads flushes now.
    pub(crate) const fn flush_leader(&self) -> FlushLeader {
        if self.last_count < FLUSHER_LEADS_FROM { FlushLeader::Committer } else { FlushLeader::Flusher }
    }

    /// Counts a commit of the thread with this stripe number; `flush_time` is the mean time of a flush.
    pub(crate) fn note(&mut self, thread: usize, flush_time: Duration, now: Instant) {
        let since = *self.since.get_or_insert(now);
        self.threads |= 1 << (thread % 64);
        self.commits += 1;
        if self.commits == COMMITS_PER_COUNT {
            let is_dense =
                now.saturating_duration_since(since) <= flush_time * (COMMITS_PER_COUNT * DENSE_FLUSHES);
            let sparse_counts = if is_dense { 0 } else { self.sparse_counts + 1 };
            let last_count = match sparse_counts {
                0 => self.threads.count_ones(),
                1..SPARSE_COUNTS => self.last_count,
                _ => 0,
            };
            *self = Self { last_count, sparse_counts, since: Some(now), ..Self::default() };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FLUSH: Duration = Duration::from_micros(100);

    /// Returns the count after `threads` threads have committed in turn, one commit per `distance`.
    fn after(threads: usize, distance: Duration) -> CommitterCount {
        let (mut count, mut now) = (CommitterCount::default(), Instant::now());
        for n in 0..1000 {
            count.note(n % threads, FLUSH, now);
            now += distance;
        }
        count
    }

    #[test]
    fn threads_that_commit_in_turn_are_counted() {
        assert_eq!([1, 2, 3, 8, 64].map(|threads| after(threads, FLUSH).get()), [1, 2, 3, 8, 64]);
    }

    #[test]
    fn sparse_commits_count_as_none() {
        assert_eq!([1, 3, 64].map(|threads| after(threads, 5 * FLUSH).get()), [0; 3]);
    }

    #[test]
    fn up_to_two_committers_lead_their_flushes_and_from_three_on_the_flusher_leads() {
        use FlushLeader::{Committer, Flusher};
        assert_eq!(CommitterCount::default().flush_leader(), Committer);
        let leaders = [1, 2, 3, 8, 64].map(|threads| after(threads, FLUSH).flush_leader());
        assert_eq!(leaders, [Committer, Committer, Flusher, Flusher, Flusher]);
        assert_eq!(after(64, 5 * FLUSH).flush_leader(), Committer, "sparse commits");
    }

    /// Makes one whole count with this number of threads.
    fn count_once(count: &mut CommitterCount, now: &mut Instant, threads: usize, distance: Duration) -> u32 {
        for n in 0..COMMITS_PER_COUNT as usize {
            count.note(n % threads, FLUSH, *now);
            *now += distance;
        }
        count.get()
    }

    #[test]
    fn three_sparse_counts_in_a_row_end_a_count() {
        let (mut count, mut now) = (CommitterCount::default(), Instant::now());
        let (dense, sparse) = (FLUSH, 5 * FLUSH);
        let distances = [dense, dense, sparse, sparse, dense, dense, sparse, sparse, sparse, sparse];
        let counts = distances.map(|distance| count_once(&mut count, &mut now, 8, distance));
        // The pause before the first commit of a count belongs to the previous count.
        assert_eq!(counts, [8, 8, 8, 8, 8, 8, 8, 8, 0, 0]);
    }

    #[test]
    fn threads_that_stopped_committing_are_not_counted() {
        let (mut count, mut now) = (CommitterCount::default(), Instant::now());
        assert_eq!(count_once(&mut count, &mut now, 64, FLUSH), 64);
        assert_eq!(count_once(&mut count, &mut now, 3, FLUSH), 3);
    }
}
