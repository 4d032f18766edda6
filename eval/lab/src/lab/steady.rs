//! Steady state of a simulated run: the rule that ends the warm-up, and the spread over seeds.
//!
//! A run is divided into consecutive windows of virtual time, in which the operations of all threads are
//! counted. The warm-up ends after [`AGREEING`] consecutive windows with counts that agree within
//! [`TOLERANCE`], but at the latest after [`MOST_WARM_UP`] windows; the run is then marked as not steady. The
//! next [`MEASURED`] windows are measured. The transient at the beginning, in which each thread touches its
//! cache lines for the first time, is thus not part of a result.
//!
//! Each point is the median of such runs with different seeds. The spread is the difference between the
//! highest and the lowest rate, as a part of the median.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Number of consecutive windows that must agree.
const AGREEING: usize = 3;
/// Largest difference between the counts of agreeing windows, as a part of the highest count.
const TOLERANCE: f64 = 0.05;
/// Largest number of windows of the warm-up.
const MOST_WARM_UP: usize = 40;
/// Number of measured windows.
const MEASURED: usize = 4;
/// Virtual time of a window for all processors together, and the least time of a window, unless the window
/// is given. So a window has at least about a thousand page visits of the paper's machine.
const OF_ALL: Duration = Duration::from_micros(3_200);
const LEAST: Duration = Duration::from_micros(100);

/// Default number of seeds of a point.
pub(crate) const SEEDS: u64 = 3;
/// Mark of the spread of a point with a run that did not reach a steady state.
const UNSTEADY: &str = "*";

/// Result of a run with one seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Seed of the run.
    pub seed: u64,
    /// Operations per second of virtual time, in the measured windows.
    pub rate: f64,
    /// Virtual time of the warm-up, in microseconds.
    pub warm_up_us: f64,
    /// The warm-up ended because its last windows agreed, not because it reached its largest length.
    pub is_steady: bool,
}

/// Returns the length of a window: the given one, or the default for this number of processors.
pub(crate) fn window(given: Option<Duration>, processors: usize) -> Duration {
    given.unwrap_or_else(|| (OF_ALL / processors.max(1) as u32).max(LEAST))
}

/// Returns the rule as text for reports.
pub(crate) fn describe(given: Option<Duration>, seeds: u64) -> String {
    let window = match given {
        Some(window) => format!("{window:?}"),
        None => format!("{OF_ALL:?} divided by the processors, at least {LEAST:?}"),
    };
    format!(
        "windows of {window}; warm-up until {AGREEING} consecutive windows agree within {:.0} %, at most \
         {MOST_WARM_UP} windows; then {MEASURED} windows are measured; median of {seeds} seeds, spread = \
         (highest - lowest) / median, {UNSTEADY} = a run with no steady state at the end of its warm-up",
        TOLERANCE * 100.0
    )
}

/// Returns the run with the median rate; of an even number of runs, the lower one of the middle.
pub(crate) fn median(runs: &[Run]) -> Option<&Run> {
    let mut sorted: Vec<&Run> = runs.iter().collect();
    sorted.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}

/// Returns the spread of the runs as text for a cell of a table.
pub(crate) fn spread(runs: &[Run]) -> String {
    let highest = runs.iter().map(|run| run.rate).fold(0.0, f64::max);
    let lowest = runs.iter().map(|run| run.rate).fold(highest, f64::min);
    let middle = median(runs).map_or(0.0, |run| run.rate).max(f64::MIN_POSITIVE);
    let mark = if runs.iter().all(|run| run.is_steady) { "" } else { UNSTEADY };
    format!("{:.1}%{mark}", (highest - lowest) / middle * 100.0)
}

/// State of a run, as [`Meter::count`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    WarmUp,
    /// The first operation after the warm-up. The measured windows end at this time.
    Begins(Duration),
    Measured,
    Ended,
}

/// Counts the operations of all threads of a run in windows, and applies the rule.
#[derive(Debug)]
pub(crate) struct Meter {
    window: Duration,
    /// End of the current window.
    end: Duration,
    /// Operations in the current window.
    count: u64,
    /// Operations in the windows before it.
    counts: Vec<u64>,
    /// Number of windows of the warm-up, after its end.
    warm_up: Option<usize>,
    is_steady: bool,
}

impl Meter {
    pub(crate) fn new(window: Duration) -> Self {
        let counts = Vec::with_capacity(MOST_WARM_UP + MEASURED);
        Self { window, end: window, count: 0, counts, warm_up: None, is_steady: false }
    }

    /// Counts an operation that ended at `now`. An operation that is reported after the end of its window
    /// counts in the current one. The operation that ends the last measured window is not counted.
    pub(crate) fn count(&mut self, now: Duration) -> Phase {
        let was_warm = self.warm_up.is_some();
        while now >= self.end && !self.has_ended() {
            self.close();
        }
        if self.has_ended() {
            return Phase::Ended;
        }
        self.count += 1;
        match self.warm_up {
            None => Phase::WarmUp,
            Some(_) if was_warm => Phase::Measured,
            Some(windows) => Phase::Begins(self.window * (windows + MEASURED) as u32),
        }
    }

    /// Returns the result of an ended run.
    pub(crate) fn run(&self, seed: u64) -> Run {
        let windows = self.warm_up.unwrap_or(self.counts.len());
        let measured = self.counts.get(windows..).unwrap_or_default();
        let time = self.window.as_secs_f64() * measured.len().max(1) as f64;
        Run {
            seed,
            rate: measured.iter().sum::<u64>() as f64 / time,
            warm_up_us: self.window.as_secs_f64() * 1e6 * windows as f64,
            is_steady: self.is_steady,
        }
    }

    /// Returns the time of the measured windows.
    pub(crate) fn measured_time(&self) -> Duration {
        self.window * MEASURED as u32
    }

    fn has_ended(&self) -> bool {
        self.warm_up.is_some_and(|windows| self.counts.len() == windows + MEASURED)
    }

    fn close(&mut self) {
        self.counts.push(std::mem::take(&mut self.count));
        self.end += self.window;
        if self.warm_up.is_none() {
            self.is_steady = self.counts.last_chunk::<AGREEING>().is_some_and(agree);
            if self.is_steady || self.counts.len() == MOST_WARM_UP {
                self.warm_up = Some(self.counts.len());
            }
        }
    }
}

fn agree(counts: &[u64; AGREEING]) -> bool {
    let highest = counts.iter().max().copied().unwrap_or(0) as f64;
    let lowest = counts.iter().min().copied().unwrap_or(0) as f64;
    lowest > 0.0 && lowest >= (1.0 - TOLERANCE) * highest
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_millis(1);

    /// Runs a meter on a series of operations per window, equally distant. Returns the result, and the first
    /// and the end of the measured windows.
    fn run_of(per_window: impl Fn(u32) -> u32) -> (Run, Option<(Duration, Duration)>) {
        let (mut meter, mut begins) = (Meter::new(WINDOW), None);
        for window in 0..1_000 {
            let all = per_window(window);
            for operation in 0..all {
                let now = WINDOW * window + WINDOW * operation / all;
                match meter.count(now) {
                    Phase::Begins(end) => begins = Some((now, end)),
                    Phase::Ended => return (meter.run(7), begins),
                    Phase::WarmUp | Phase::Measured => {}
                }
            }
        }
        panic!("the run has no end: {meter:?}");
    }

    #[test]
    fn a_transient_is_not_part_of_the_rate() {
        // The rate falls from 1000 to 400 operations per window in ten windows.
        let (run, measured) = run_of(|window| if window < 10 { 1_000 - 60 * window } else { 400 });
        assert_eq!(run, Run { seed: 7, rate: 400e3, warm_up_us: 13e3, is_steady: true });
        assert_eq!(measured, Some((WINDOW * 13, WINDOW * 17)));
    }

    #[test]
    fn a_rate_that_is_never_constant_ends_the_warm_up_at_its_limit_and_is_marked() {
        let (run, _) = run_of(|window| if window % 2 == 0 { 100 } else { 200 });
        assert_eq!(run, Run { seed: 7, rate: 150e3, warm_up_us: 40e3, is_steady: false });
        assert_eq!(spread(&[run]), "0.0%*");
        // Windows without an operation do not agree.
        assert!(!run_of(|window| u32::from(window % 10 == 0)).0.is_steady);
    }

    #[test]
    fn a_point_has_the_median_and_the_spread_of_its_runs() {
        let run = |rate| Run { seed: 1, rate, warm_up_us: 1.0, is_steady: true };
        let runs = [run(110.0), run(95.0), run(100.0)];
        assert_eq!(median(&runs).map(|run| run.rate), Some(100.0));
        assert_eq!(spread(&runs), "15.0%");
        assert_eq!((window(None, 64), window(None, 1)), (LEAST, OF_ALL));
        assert_eq!(window(Some(WINDOW), 64), WINDOW);
    }
}
