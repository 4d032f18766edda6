//! Whether the analyzer named the lock that is to be named: before the cure the mutex inside `btr_search_latch`, after it
//! the mutex of `buf_pool`, as in sections 4.2 and 5.2 of the paper.
//!
//! What is to be named is known by construction: the account makes the latch's mutex the longest section by far that every read by key passes,
//! and twice; without that mutex the next longest is the pool's. A single short recording on a busy machine may be ruled by one
//! holder that lost its processor, so most of several recordings must agree.

use super::front::pool::BUF_POOL;
use super::front::search::{Latch, SEARCH_MUTEX};
use super::study::Recorded;
use azekura_trace::Site;
use serde::Serialize;

/// What was to be named, and what was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The latch.
    pub latch: Latch,
    /// The lock to be named.
    pub expected: &'static str,
    /// The recordings whose verdict named it.
    pub named_in: usize,
    /// Recordings.
    pub of: usize,
    /// The lock with the longest bar: most waited for per `index_read`.
    pub longest_bar: String,
    /// Whether more than half of the verdicts named it.
    pub holds: bool,
}

/// Judges the recordings without a limit on all processors.
#[must_use]
pub fn findings(recorded: &[Recorded], processors: usize) -> Vec<Finding> {
    let planted: [(Latch, &'static Site); 2] = [(Latch::Account, &SEARCH_MUTEX), (Latch::Word, &BUF_POOL)];
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
    let named_in = recorded.named.iter().filter(|label| is_site(label, expected)).count();
    let bars = recorded.analysis.waits.iter().filter(|w| w.operation == super::study::CHOSEN);
    let longest = bars.max_by_key(|w| w.net_ns).map_or_else(|| "none".to_owned(), |w| w.site.clone());
    let of = recorded.named.len();
    Finding { latch, expected, named_in, of, longest_bar: longest, holds: 2 * named_in > of }
}

/// Whether a report's label, `name (file:line)`, is that of the site.
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
