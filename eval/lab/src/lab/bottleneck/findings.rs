//! Comparison of the lock that the analyzer named with the right answer. The right answer is the mutex inside
//! `btr_search_latch` before the change, and the mutex of `buf_pool` after it, as in sections 4.2 and 5.2 of
//! the paper.
//!
//! The right answer is known by construction. With the simulated costs, the mutex of the latch has by far the
//! longest critical section that every read by key enters, and it is entered twice. Without that mutex, the
//! pool's is the longest. On a busy machine, one holder that lost its processor can dominate a short
//! recording, so most of several recordings must agree. Verdicts, which predict throughput, are counted too.

use super::front::pool::BUF_POOL;
use super::front::search::{Latch, SEARCH_MUTEX};
use super::settings::Settings;
use super::study::Recorded;
use azekura_trace::Site;
use azekura_workload::bookstore::Conformance;
use serde::Serialize;

/// The expected lock, and the recordings in which the analyzer named it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Version of the search latch in the recordings.
    pub latch: Latch,
    /// The lock that the analyzer must name.
    pub expected: &'static str,
    /// Number of recordings in which the lock is first among the waits of one `index_read`: the paper's
    /// criterion.
    pub first_in: usize,
    /// Number of recordings with a verdict that names the lock; a verdict predicts the throughput without a
    /// lock.
    pub verdict_in: usize,
    /// Number of recordings.
    pub of: usize,
    /// The lock was first in more than half of the recordings.
    pub holds: bool,
}

/// Returns the findings of the recordings without an admission limit, on all processors. Returns none under
/// TPC-W's rules: its *best sellers* scans touch thousands of pages for each `index_read` of the other pages,
/// so the pool is the bottleneck before and after the change.
#[must_use]
pub fn findings(recorded: &[Recorded], settings: &Settings) -> Vec<Finding> {
    if settings.conformance == Conformance::TpcW {
        return Vec::new();
    }
    let processors = settings.all_processors();
    let planted: [(Latch, &'static Site); 2] = [(settings.before, &SEARCH_MUTEX), (Latch::Word, &BUF_POOL)];
    planted
        .into_iter()
        .filter_map(|(latch, site)| {
            let is_it = |r: &&Recorded| {
                r.point.latch == latch && r.point.limit.is_none() && r.point.processors == processors
            };
            recorded.iter().find(is_it).map(|recorded| judge(latch, site.name(), recorded))
        })
        .collect()
}

fn judge(latch: Latch, expected: &'static str, recorded: &Recorded) -> Finding {
    let count = |labels: &[String]| labels.iter().filter(|label| is_site(label, expected)).count();
    let (first_in, verdict_in, of) =
        (count(&recorded.first), count(&recorded.verdicts), recorded.first.len());
    Finding { latch, expected, first_in, verdict_in, of, holds: 2 * first_in > of }
}

/// Returns whether a report's label, `name (file:line)`, is the label of this site.
fn is_site(label: &str, name: &str) -> bool {
    label.strip_prefix(name).is_some_and(|rest| rest.starts_with(" ("))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latch_and_its_mutex_are_not_taken_for_each_other() {
        assert!(is_site("mutex of btr_search_latch (front/search.rs:20)", SEARCH_MUTEX.name()));
        assert!(!is_site("btr_search_latch (front/search.rs:18)", SEARCH_MUTEX.name()));
        assert!(!is_site("No lock: the processors are busy (98 % used).", BUF_POOL.name()));
    }
}
