//! How many threads commit at the same time.
//!
//! A group that is small may be all there is, or what is left of many who miss each other; its size does not
//! tell. So the threads of the last commits are counted, if they came one after the other and not once in a
//! while.

use std::time::Duration;

use azekura_base::sync::time::Instant;

/// Commits that are looked at to know the crowd.
const LOOKED_AT: u32 = 64;
/// They must come so densely that one flush lasts as long as from one of them to the next, or half as long.
const SPARSE: u32 = 2;
/// So many counts in a row must have been sparse for a crowd to be gone: on a busy machine all of it may be
/// without a processor for a while.
const GONE: u32 = 3;

/// How many threads commit.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    size: u32,
    /// Commits of the count going on, a bit for each of 64 classes of threads, and when the count began.
    commits: u32,
    threads: u64,
    since: Option<Instant>,
    /// Counts in a row that were sparse.
    sparse: u32,
}

impl Crowd {
    /// As last counted, up to 64; 0 if they come once in a while only.
    pub(crate) const fn size(&self) -> u32 {
        self.size
    }

    /// A thread comes with a commit, where a flush takes so long.
    pub(crate) fn note(&mut self, thread: usize, flush: Duration, now: Instant) {
        let since = *self.since.get_or_insert(now);
        self.threads |= 1 << (thread % 64);
        self.commits += 1;
        if self.commits == LOOKED_AT {
            let is_dense = now.saturating_duration_since(since) <= flush * (LOOKED_AT * SPARSE);
            let sparse = if is_dense { 0 } else { self.sparse + 1 };
            let size = match sparse {
                0 => self.threads.count_ones(),
                1..GONE => self.size,
                _ => 0,
            };
            *self = Self { size, sparse, since: Some(now), ..Self::default() };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FLUSH: Duration = Duration::from_micros(100);

    /// The crowd after so many threads have committed in turns, `every` so often.
    fn of(threads: usize, every: Duration) -> u32 {
        let (mut crowd, mut now) = (Crowd::default(), Instant::now());
        for n in 0..1000 {
            crowd.note(n % threads, FLUSH, now);
            now += every;
        }
        crowd.size()
    }

    #[test]
    fn threads_that_commit_in_turns_are_counted() {
        assert_eq!([1, 2, 3, 8, 64].map(|threads| of(threads, FLUSH)), [1, 2, 3, 8, 64]);
    }

    #[test]
    fn those_that_come_once_in_a_while_are_no_crowd() {
        assert_eq!([1, 3, 64].map(|threads| of(threads, 5 * FLUSH)), [0; 3]);
    }

    /// One whole count of so many threads.
    fn count(crowd: &mut Crowd, now: &mut Instant, threads: usize, every: Duration) -> u32 {
        for n in 0..LOOKED_AT as usize {
            crowd.note(n % threads, FLUSH, *now);
            *now += every;
        }
        crowd.size()
    }

    #[test]
    fn a_crowd_is_gone_after_three_sparse_counts_in_a_row() {
        let (mut crowd, mut now) = (Crowd::default(), Instant::now());
        let (dense, sparse) = (FLUSH, 5 * FLUSH);
        let counts = [dense, dense, sparse, sparse, dense, dense, sparse, sparse, sparse, sparse];
        let sizes = counts.map(|every| count(&mut crowd, &mut now, 8, every));
        // The pause before a count's first commit is the count's before.
        assert_eq!(sizes, [8, 8, 8, 8, 8, 8, 8, 8, 0, 0]);
    }

    #[test]
    fn those_who_have_left_are_not_counted_any_more() {
        let (mut crowd, mut now) = (Crowd::default(), Instant::now());
        assert_eq!(count(&mut crowd, &mut now, 64, FLUSH), 64);
        assert_eq!(count(&mut crowd, &mut now, 3, FLUSH), 3);
    }
}
