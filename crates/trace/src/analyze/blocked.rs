//! Waits outside of probes, by samples of the threads at equal intervals of time.

use super::Work;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Smallest number of samples that allows a conclusion.
const LEAST_SAMPLES: u64 = 20;

/// A place where threads wait outside of probes, such as a lock inside the C library.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BlockedRow {
    /// The site's label.
    pub site: String,
    /// Number of samples in the wait.
    pub samples: u64,
    /// Fraction of all samples of the threads, and so of their time.
    pub share: f64,
}

impl Work<'_> {
    /// Returns the waits outside of probes of the threads that executed the chosen operation, in descending
    /// order of samples; none if there are too few samples.
    pub(super) fn blocked_rows(&self) -> Vec<BlockedRow> {
        let threads = (0..).zip(&self.trace.threads);
        let tags: BTreeSet<u32> = threads
            .filter(|(at, _)| self.totals.has_executed(*at, self.chosen))
            .map(|(_, thread)| thread.tag)
            .collect();
        let (mut all, mut by_site) = (0, BTreeMap::<String, u64>::new());
        for sample in self.trace.blocked.iter().filter(|sample| tags.contains(&sample.tag)) {
            all += sample.count;
            if sample.site != 0 {
                *by_site.entry(self.names.site(sample.site)).or_default() += sample.count;
            }
        }
        if all < LEAST_SAMPLES {
            return Vec::new();
        }
        let row = |(site, samples)| BlockedRow { site, samples, share: samples as f64 / all as f64 };
        let mut rows: Vec<BlockedRow> = by_site.into_iter().map(row).collect();
        rows.sort_by_key(|row| Reverse(row.samples));
        rows
    }
}
