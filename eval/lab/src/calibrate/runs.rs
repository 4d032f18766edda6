//! Repeated runs of one measurement, some of them disturbed: other processes on the processors make a run
//! slower, so disturbed runs are not counted.

use serde::{Deserialize, Serialize};

use crate::busy::{Busy, Watch};

/// Largest number of processors used by other processes during a quiet run. The system's processor times have
/// a resolution of 10 ms.
const QUIET: f64 = 0.1;
/// Smallest number of quiet runs for a result; with fewer, the result is reported as disturbed.
const LEAST: usize = 3;
/// Largest interquartile range of the quiet runs, relative to the median, with which no further run is
/// needed.
const CLOSE: f64 = 0.05;

/// Result of one run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The measured value: operations per second, or nanoseconds.
    pub value: f64,
    /// Average number of processors that other processes used during the run.
    pub others: f64,
}

/// Runs of one measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Runs(pub Vec<Run>);

impl Runs {
    /// Runs `measure` once and adds its result.
    pub(super) fn run<E>(&mut self, measure: impl FnOnce() -> Result<f64, E>) -> Result<(), E> {
        let watch = Watch::begin();
        let value = measure()?;
        let (_, Busy { others, .. }) = watch.end();
        self.0.push(Run { value, others });
        Ok(())
    }

    /// Adds a value that was measured during the last run of `other`, with that run's disturbance.
    pub(super) fn run_beside(&mut self, other: &Self, value: f64) {
        self.0.extend(other.0.last().map(|run| Run { value, ..*run }));
    }

    /// Returns the values of the quiet runs, sorted; with fewer than [`LEAST`] of them, those of the least
    /// disturbed runs.
    fn counted(&self) -> Vec<f64> {
        let mut runs = self.0.clone();
        runs.sort_by(|a, b| a.others.total_cmp(&b.others));
        let quiet = self.quiet().max(LEAST.min(runs.len()));
        let mut values: Vec<f64> = runs[..quiet].iter().map(|run| run.value).collect();
        values.sort_by(f64::total_cmp);
        values
    }

    /// Returns the number of quiet runs.
    #[must_use]
    pub fn quiet(&self) -> usize {
        self.0.iter().filter(|run| run.others <= QUIET).count()
    }

    /// Returns whether there are fewer than three quiet runs, the smallest number for a result.
    #[must_use]
    pub fn is_disturbed(&self) -> bool {
        self.quiet() < LEAST
    }

    /// Returns the median of the counted runs, or 0 without runs. With an even number of runs it is the mean
    /// of the two in the middle, so that medians of rates and of their inverse times come from the same runs.
    #[must_use]
    pub fn median(&self) -> f64 {
        let values = self.counted();
        let at = |place: usize| values.get(place).copied().unwrap_or(0.0);
        f64::midpoint(at(values.len().saturating_sub(1) / 2), at(values.len() / 2))
    }

    /// Returns the first and third quartile of the counted runs, or 0 without runs.
    #[must_use]
    pub fn quartiles(&self) -> (f64, f64) {
        let values = self.counted();
        let at = |quarter: usize| values.get((values.len().saturating_sub(1)) * quarter / 4).copied();
        (at(1).unwrap_or(0.0), at(3).unwrap_or(0.0))
    }

    /// Returns the interquartile range, relative to the median.
    #[must_use]
    pub fn spread(&self) -> f64 {
        let (low, high) = self.quartiles();
        (high - low) / self.median().max(f64::MIN_POSITIVE)
    }

    /// Returns whether the result is precise enough that no further run is needed.
    pub(super) fn is_settled(&self) -> bool {
        !self.is_disturbed() && self.spread() <= CLOSE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(all: &[(f64, f64)]) -> Runs {
        Runs(all.iter().map(|&(value, others)| Run { value, others }).collect())
    }

    #[test]
    fn disturbed_runs_do_not_count_where_there_are_enough_quiet_ones() {
        let runs = runs(&[(100.0, 0.0), (10.0, 1.5), (102.0, 0.02), (98.0, 0.1), (11.0, 0.9)]);
        assert_eq!((runs.median(), runs.quiet(), runs.is_disturbed()), (100.0, 3, false));
        assert_eq!(runs.quartiles(), (98.0, 100.0));
        assert!(runs.is_settled());
    }

    #[test]
    fn without_quiet_runs_the_least_disturbed_count_and_it_is_said() {
        let runs = runs(&[(50.0, 0.8), (90.0, 0.2), (95.0, 0.05), (80.0, 0.3), (10.0, 2.0)]);
        assert_eq!((runs.median(), runs.is_disturbed(), runs.is_settled()), (90.0, true, false));
        assert_eq!(Runs::default().median(), 0.0);
        assert_eq!(
            Runs(vec![Run { value: 90.0, others: 0.0 }, Run { value: 100.0, others: 0.0 }]).median(),
            95.0
        );
    }

    #[test]
    fn runs_far_apart_are_not_settled() {
        let runs = runs(&[(50.0, 0.0), (90.0, 0.0), (95.0, 0.0), (70.0, 0.0)]);
        assert!(!runs.is_disturbed() && !runs.is_settled());
    }
}
