//! The lock that the analyzer named, and the right answer: before the cure the mutex inside
//! `btr_search_latch`, after it the mutex of `buf_pool`, as in sections 4.2 and 5.2 of the paper.
//!
//! The right answer is known by construction: the account makes the latch's mutex the longest section by far
//! that every read by key passes, and twice; without that mutex the next longest is the pool's. One holder
//! that lost its processor may dominate a single short recording on a busy machine, so most of several
//! recordings must agree. The verdicts, which predict throughput, are counted beside.

use super::front::pool::BUF_POOL;
use super::front::search::{Latch, SEARCH_MUTEX};
use super::settings::Settings;
use super::study::Recorded;
use azekura_trace::Site;
use azekura_workload::bookstore::Conformance;
use serde::Serialize;

/// The expected and the named lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The latch.
    pub latch: Latch,
    /// The lock to be named.
    pub expected: &'static str,
    /// Recordings in which the analyzer put it first among the waits of one `index_read`: the paper's
    /// criterion.
    pub first_in: usize,
    /// Recordings with a verdict that names it; the verdict predicts throughput without a lock.
    pub verdict_in: usize,
    /// Recordings.
    pub of: usize,
    /// The lock was first in more than half of them.
    pub holds: bool,
}

/// Judges the recordings without a limit on all processors. By TPC-W's rules nothing is judged: the scans of
/// its *best sellers* touch thousands of pages for each `index_read` of the other pages, so that the pool is
/// in the way before and after the cure.
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

/// Returns whether a report's label, `name (file:line)`, is that of the site.
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
