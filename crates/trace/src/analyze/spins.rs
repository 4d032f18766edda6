//! CPU time in spin loops, by samples of the program counter.

use super::Work;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Smallest number of samples of a program that allows a conclusion.
const LEAST_SAMPLES: u64 = 20;

/// A spin loop, in which a thread waits for another one and uses a processor meanwhile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpinRow {
    /// The site's label.
    pub site: String,
    /// Number of samples in the loop.
    pub samples: u64,
    /// Fraction of all samples of the program's threads, and so of their CPU time.
    pub share: f64,
}

impl Work<'_> {
    /// Returns the spin loops in descending order of CPU time; none if there are too few samples.
    pub(super) fn spin_rows(&self) -> Vec<SpinRow> {
        let samples = &self.trace.samples;
        let all: u64 = samples.iter().map(|sample| sample.count).sum();
        let mut by_site: BTreeMap<String, u64> = BTreeMap::new();
        for sample in samples.iter().filter(|sample| sample.site != 0 && all >= LEAST_SAMPLES) {
            *by_site.entry(self.names.site(sample.site)).or_default() += sample.count;
        }
        let row = |(site, samples)| SpinRow { site, samples, share: samples as f64 / all as f64 };
        let mut rows: Vec<SpinRow> = by_site.into_iter().map(row).collect();
        rows.sort_by_key(|row| Reverse(row.samples));
        rows
    }
}
