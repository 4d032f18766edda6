//! Steady state of a simulated run: the rule that ends the warm-up, and the spread over seeds. All simulated
//! labs use this rule.
//!
//! A run is divided into consecutive windows of virtual time, in which the operations of all threads are
//! counted. The warm-up ends after `AGREEING` consecutive windows with counts that agree within
//! `TOLERANCE`, but at the latest after [`Rule::most`] windows; the run is then marked as not steady. The
//! next `MEASURED` windows are measured. The transient at the beginning, in which each thread touches its
//! cache lines for the first time, is thus not part of a result.
//!
//! Each point is the median of such runs with different seeds. The spread is the difference between the
//! highest and the lowest rate, as a part of the median.

use azekura_base::sync::machine;
use azekura_base::sync::time::Instant;
use azekura_sim::measure;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Number of consecutive windows that must agree.
const AGREEING: usize = 3;
/// Largest difference between the counts of agreeing windows, as a part of the highest count.
const TOLERANCE: f64 = 0.05;
/// Default of [`Rule::most`].
const MOST: usize = 40;
/// Number of measured windows.
const MEASURED: usize = 4;
/// Default number of seeds of a point.
const SEEDS: u64 = 3;
/// Mark of the spread of a point with a run that did not reach a steady state.
const UNSTEADY: &str = "*";

/// Settings of the rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Virtual time of a window; `None` is the default of the lab.
    pub window: Option<Duration>,
    /// Largest number of windows of the warm-up.
    pub most: usize,
    /// Seed of all random choices in the first run of each point; the next runs have the next seeds.
    pub seed: u64,
    /// Number of runs of each point, at least one.
    pub seeds: u64,
}

impl Default for Rule {
    fn default() -> Self {
        Self { window: None, most: MOST, seed: 1, seeds: SEEDS }
    }
}

/// Default length of the windows of a lab, so that a window has at least several hundred operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Virtual time of a window, to be divided by the number of processors.
    pub(crate) of_all: Duration,
    /// Least virtual time of a window.
    pub(crate) least: Duration,
}

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

impl Rule {
    /// Returns the windows of a run: of the given length, or of the default for this number of processors.
    pub(crate) fn span(&self, windows: Windows, processors: usize) -> Span {
        let default = (windows.of_all / processors.max(1) as u32).max(windows.least);
        Span::Windows { length: self.window.unwrap_or(default), most: self.most }
    }

    /// Returns the rule as text for reports.
    pub(crate) fn describe(&self, Windows { of_all, least }: Windows) -> String {
        let window = match self.window {
            Some(window) => format!("{window:?}"),
            None if of_all == least => format!("{least:?}"),
            None => format!("{of_all:?} divided by the processors, at least {least:?}"),
        };
        format!(
            "windows of {window}; warm-up until {AGREEING} consecutive windows agree within {:.0} %, at most \
             {} windows; then {MEASURED} windows are measured; median of {} seeds from {}, spread \
             = (highest - lowest) / median, {UNSTEADY} = a run with no steady state at the end of its \
             warm-up",
            TOLERANCE * 100.0,
            self.most,
            self.seeds,
            self.seed
        )
    }

    /// Runs a point once for each seed. Returns the result of the run with the median rate, and all runs. Of
    /// an even number of runs, the lower one of the middle counts.
    pub(crate) fn point<P, E>(
        &self,
        mut run: impl FnMut(u64) -> Result<(Run, P), E>,
    ) -> Result<(P, Vec<Run>), E> {
        let seeds = (0..self.seeds.max(1)).map(|at| self.seed.wrapping_add(at));
        let (runs, mut results): (Vec<Run>, Vec<P>) =
            seeds.map(&mut run).collect::<Result<Vec<_>, E>>()?.into_iter().unzip();
        let mut order: Vec<usize> = (0..runs.len()).collect();
        order.sort_by(|&a, &b| runs[a].rate.total_cmp(&runs[b].rate)); // a stable sort
        Ok((results.swap_remove(order[(order.len() - 1) / 2]), runs))
    }
}

/// Returns the spread of the runs as text for a cell of a table; one run has no spread.
pub(crate) fn spread(runs: &[Run]) -> String {
    let mut rates: Vec<f64> = runs.iter().map(|run| run.rate).collect();
    rates.sort_by(f64::total_cmp);
    let (Some(lowest), Some(highest)) = (rates.first(), rates.last()) else { return String::new() };
    let middle = rates[(rates.len() - 1) / 2].max(f64::MIN_POSITIVE);
    let mark = if runs.iter().all(|run| run.is_steady) { "" } else { UNSTEADY };
    if runs.len() < 2 {
        return mark.to_owned();
    }
    format!("{:.1}%{mark}", (highest - lowest) / middle * 100.0)
}

/// Time in which a run is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Span {
    /// On a simulated machine: by the rule, with windows of this length, and at most so many of them in the
    /// warm-up.
    Windows { length: Duration, most: usize },
    /// On real threads, which a calibration compares with simulated ones: warm-up and measured time.
    Fixed(Duration, Duration),
}

/// Counts the operations of all threads of a run, and ends the run.
#[derive(Clone, Debug)]
pub(crate) enum Counter {
    /// Windows that begin at the first time of the machine's clock. The mutex is never contended: simulated
    /// threads do not switch while one of them holds it. It costs no virtual time.
    Windows(Duration, Arc<Mutex<Meter>>),
    /// Begin and end of the measured time.
    Fixed(Instant, Instant),
}

impl Counter {
    /// Begins to count now.
    pub(crate) fn begin(span: Span) -> Self {
        match span {
            Span::Windows { length, most } => {
                let begin = machine::current().map_or(Duration::ZERO, |machine| machine.now());
                Self::Windows(begin, Arc::new(Mutex::new(Meter::new(length, most))))
            }
            Span::Fixed(warm_up, measured) => {
                let begin = Instant::now() + warm_up;
                Self::Fixed(begin, begin + measured)
            }
        }
    }

    /// Counts an operation of the calling thread. A real thread counts its operations within the measured
    /// time in `counted`. Returns whether the run goes on.
    pub(crate) fn count(&self, counted: &mut u64) -> bool {
        match self {
            Self::Windows(begin, _) => match self.with_meter(Meter::count) {
                Some(Phase::Begins(from, until)) => {
                    measure::between(*begin + from, *begin + until);
                    true
                }
                phase => phase != Some(Phase::Ended),
            },
            Self::Fixed(begin, end) => {
                let now = Instant::now();
                *counted += u64::from(*begin <= now && now < *end);
                now < *end
            }
        }
    }

    /// Returns whether the warm-up has ended, even if no operation has been counted since then.
    pub(crate) fn is_warm(&self) -> bool {
        match self {
            Self::Windows(..) => self.with_meter(|meter| meter.warm_up.is_some()).unwrap_or(true),
            Self::Fixed(begin, _) => Instant::now() >= *begin,
        }
    }

    /// Returns whether the measured time has ended.
    pub(crate) fn has_ended(&self) -> bool {
        match self {
            Self::Windows(..) => self.with_meter(|meter| meter.has_ended()).unwrap_or(true),
            Self::Fixed(_, end) => Instant::now() >= *end,
        }
    }

    /// Returns the result of an ended run, in which real threads have counted `counted` operations.
    pub(crate) fn run(&self, seed: u64, counted: u64) -> Run {
        match self {
            Self::Windows(..) => self.with_meter(|meter| meter.run(seed)),
            Self::Fixed(..) => None,
        }
        .unwrap_or_else(|| Run {
            seed,
            rate: counted as f64 / self.measured_time().as_secs_f64(),
            warm_up_us: 0.0,
            is_steady: true,
        })
    }

    /// Returns the length of the measured time.
    pub(crate) fn measured_time(&self) -> Duration {
        match self {
            Self::Windows(..) => {
                self.with_meter(|meter| meter.window * MEASURED as u32).unwrap_or(Duration::ZERO)
            }
            Self::Fixed(begin, end) => *end - *begin,
        }
    }

    /// Calls `with` with the meter, in which the windows before the machine's current time are closed.
    fn with_meter<T>(&self, with: impl FnOnce(&mut Meter) -> T) -> Option<T> {
        let Self::Windows(begin, meter) = self else { return None };
        let now = machine::current().map(|machine| machine.now().saturating_sub(*begin));
        let mut meter = meter.lock().unwrap_or_else(PoisonError::into_inner);
        meter.advance(now.unwrap_or(Duration::ZERO));
        Some(with(&mut meter))
    }
}

/// State of a run, as [`Meter::count`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    WarmUp,
    /// The first operation after the warm-up: now, and the end of the measured windows.
    Begins(Duration, Duration),
    Measured,
    Ended,
}

/// Counts the operations of all threads of a run in windows, and applies the rule. The time is that since the
/// begin of the first window.
#[derive(Debug)]
pub(crate) struct Meter {
    window: Duration,
    /// Largest number of windows of the warm-up.
    most: usize,
    now: Duration,
    /// End of the current window.
    end: Duration,
    /// Operations in the current window.
    count: u64,
    /// Operations in the windows before it.
    counts: Vec<u64>,
    /// Number of windows of the warm-up, after its end.
    warm_up: Option<usize>,
    /// An operation has been counted after the warm-up.
    has_begun: bool,
    is_steady: bool,
}

impl Meter {
    fn new(window: Duration, most: usize) -> Self {
        let counts = Vec::with_capacity(most + MEASURED);
        let (now, end) = (Duration::ZERO, window);
        Self { window, most, now, end, count: 0, counts, warm_up: None, has_begun: false, is_steady: false }
    }

    /// Counts an operation that ended now. An operation that is reported after the end of its window counts
    /// in the current one. The operation that ends the last measured window is not counted.
    fn count(&mut self) -> Phase {
        if self.has_ended() {
            return Phase::Ended;
        }
        self.count += 1;
        match self.warm_up {
            None => Phase::WarmUp,
            Some(_) if self.has_begun => Phase::Measured,
            Some(windows) => {
                self.has_begun = true;
                Phase::Begins(self.now, self.window * (windows + MEASURED) as u32)
            }
        }
    }

    /// Sets the time, and closes the windows that have ended.
    fn advance(&mut self, now: Duration) {
        self.now = now;
        while now >= self.end && !self.has_ended() {
            self.close();
        }
    }

    fn run(&self, seed: u64) -> Run {
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

    fn has_ended(&self) -> bool {
        self.warm_up.is_some_and(|windows| self.counts.len() == windows + MEASURED)
    }

    fn close(&mut self) {
        self.counts.push(std::mem::take(&mut self.count));
        self.end += self.window;
        if self.warm_up.is_none() {
            self.is_steady = self.counts.last_chunk::<AGREEING>().is_some_and(agree);
            if self.is_steady || self.counts.len() == self.most {
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
        let (mut meter, mut begins) = (Meter::new(WINDOW, MOST), None);
        for window in 0..1_000 {
            let all = per_window(window);
            for operation in 0..all {
                let now = WINDOW * window + WINDOW * operation / all;
                meter.advance(now);
                match meter.count() {
                    Phase::Begins(from, until) => begins = Some((from, until)),
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
        assert_eq!(spread(&[run.clone(), run.clone()]), "0.0%*");
        assert_eq!(spread(&[run]), "*");
        // Windows without an operation do not agree.
        assert!(!run_of(|window| u32::from(window % 10 == 0)).0.is_steady);
    }

    #[test]
    fn a_point_has_the_median_and_the_spread_of_its_runs() {
        let rates = [110.0, 95.0, 100.0];
        let run = |seed: u64| {
            let rate = rates[(seed - 7) as usize];
            Ok::<_, ()>((Run { seed, rate, warm_up_us: 1.0, is_steady: true }, rate))
        };
        let (median, runs) = Rule { seed: 7, ..Rule::default() }.point(run).unwrap();
        assert_eq!((median, runs[2].seed), (100.0, 9));
        assert_eq!((spread(&runs).as_str(), spread(&[]).as_str()), ("15.0%", ""));
    }

    #[test]
    fn a_window_is_divided_by_the_processors_unless_it_is_given() {
        let windows = Windows { of_all: WINDOW * 32, least: WINDOW };
        let [default, given] = [None, Some(WINDOW * 5)].map(|window| Rule { window, ..Rule::default() });
        let length = |rule: &Rule, processors| match rule.span(windows, processors) {
            Span::Windows { length, most } if most == MOST => length,
            other => panic!("{other:?}"),
        };
        assert_eq!([1, 8, 64].map(|n| length(&default, n)), [WINDOW * 32, WINDOW * 4, WINDOW]);
        assert_eq!(length(&given, 64), WINDOW * 5);
        assert!(default.describe(windows).starts_with("windows of 32ms divided by the processors"));
        assert!(given.describe(windows).starts_with("windows of 5ms; warm-up"));
    }

    /// A run without operations ends, too.
    #[test]
    fn windows_end_without_an_operation() {
        let mut meter = Meter::new(WINDOW, MOST);
        meter.advance(WINDOW * 40);
        assert_eq!((meter.warm_up, meter.has_ended()), (Some(40), false));
        assert_eq!(meter.count(), Phase::Begins(WINDOW * 40, WINDOW * 44));
        meter.advance(WINDOW * 44);
        assert!(meter.has_ended() && !meter.is_steady);
    }
}
