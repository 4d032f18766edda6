//! Counts of a connection's work that another thread can read during the run.

use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_workload::bookstore::Interaction;
use std::array;
use std::time::Duration;

/// Number of kinds of pages.
pub const KINDS: usize = Interaction::ALL.len();

/// Counts of one connection, by kind of page. Only that connection writes them; the measuring thread reads
/// them. All accesses are Relaxed, because no other data depends on the counts.
#[derive(Debug, Default)]
pub struct Served {
    pages: [AtomicU64; KINDS],
    weighed: [AtomicU64; KINDS],
    spent_ns: [AtomicU64; KINDS],
}

impl Served {
    /// Counts one page; `spent` is its processor time, if that was measured.
    pub fn count(&self, page: Interaction, spent: Option<Duration>) {
        let at = page.index();
        add(&self.pages[at], 1);
        if let Some(spent) = spent {
            add(&self.weighed[at], 1);
            add(&self.spent_ns[at], u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// Returns the number of pages so far, by kind.
    #[must_use]
    pub fn pages(&self) -> [u64; KINDS] {
        array::from_fn(|at| self.pages[at].load(Relaxed))
    }
}

/// Adds to a counter that only one thread writes, so a load and a store (Relaxed) suffice.
fn add(to: &AtomicU64, number: u64) {
    to.store(to.load(Relaxed).wrapping_add(number), Relaxed);
}

/// Returns the number of pages that all connections have served so far, by kind.
#[must_use]
pub fn pages<'s>(all: impl IntoIterator<Item = &'s Served>) -> [u64; KINDS] {
    let mut sum = [0; KINDS];
    for served in all {
        sum.iter_mut().zip(served.pages()).for_each(|(sum, pages)| *sum += pages);
    }
    sum
}

/// Returns the processor seconds per page, by kind, from the pages with measured processor time. A kind
/// without measured pages gets the mean of all pages.
#[must_use]
pub fn weights<'s>(all: impl IntoIterator<Item = &'s Served> + Clone) -> [f64; KINDS] {
    let sum = |of: &dyn Fn(&Served) -> u64| all.clone().into_iter().map(of).sum::<u64>() as f64;
    let spent: [f64; KINDS] = array::from_fn(|at| sum(&|s| s.spent_ns[at].load(Relaxed)) * 1e-9);
    let pages: [f64; KINDS] = array::from_fn(|at| sum(&|s| s.weighed[at].load(Relaxed)));
    let mean = spent.iter().sum::<f64>() / pages.iter().sum::<f64>().max(1.0);
    // Without any measured page, each page has the weight 1.
    let mean = if mean > 0.0 { mean } else { 1.0 };
    array::from_fn(|at| if spent[at] > 0.0 { spent[at] / pages[at] } else { mean })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_weighs_the_cost_of_its_pages_or_the_mean() {
        let [a, b] = [Served::default(), Served::default()];
        let [first, second, third] = [Interaction::ALL[0], Interaction::ALL[1], Interaction::ALL[2]];
        assert_eq!(weights([&a, &b]), [1.0; KINDS]);
        a.count(first, Some(Duration::from_millis(1)));
        b.count(first, Some(Duration::from_millis(3)));
        b.count(second, Some(Duration::from_millis(8)));
        b.count(third, None);
        let weights = weights([&a, &b]);
        for (weight, ms) in weights.into_iter().zip([2.0, 8.0, 4.0, 4.0]) {
            assert!((weight * 1e3 - ms).abs() < 1e-9, "{weights:?}");
        }
        assert_eq!(pages([&a, &b])[..4], [2, 1, 1, 0]);
    }
}
