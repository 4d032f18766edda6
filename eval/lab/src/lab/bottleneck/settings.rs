//! Settings of the study.

use super::front::Probes;
use super::front::search::Latch;
use super::measure::Setup;
use super::simulate::{Simulated, WINDOWS};
use super::users::Crowd;
use crate::lab::steady::Rule;
use azekura_workload::bookstore::{Conformance, Mix, Scale, Think};
use serde::Serialize;
use std::time::Duration;

/// Sizes, times and repetitions of a study.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Size of the shop.
    pub scale: Scale,
    /// Mix of pages that the visitors request.
    pub mix: Mix,
    /// Rules of the visitors: DBT-1's or TPC-W's.
    pub conformance: Conformance,
    /// Think time.
    pub think: Think,
    /// Number of connections; each is a thread.
    pub connections: usize,
    /// Numbers of emulated users: the points of each line of Figs 3, 4, 10 and 11. Recordings are made with
    /// the largest number.
    pub users: Vec<usize>,
    /// Limits on threads in the engine: the lines of the figures. `None`, no limit, must be the last.
    pub limits: Vec<Option<usize>>,
    /// Numbers of processors; findings use the largest one.
    pub processors: Vec<usize>,
    /// Warm-up time before each measured run on this machine.
    pub warm_up: Duration,
    /// Measured time of each point on this machine.
    pub measured: Duration,
    /// Measured time of each recording.
    pub recorded: Duration,
    /// Number of recordings of each latch.
    pub recordings: usize,
    /// Number of pairs of runs with and without a recording.
    pub pairs: usize,
    /// Number of blocks of four intervals with and without a recording, if the cost of recording is measured
    /// by intervals.
    pub blocks: usize,
    /// Seed of rows and users.
    pub seed: u64,
    /// Kinds of latches, in the order of measurement.
    pub latches: Vec<Latch>,
    /// Kind of latch that counts as the one before the paper's change.
    pub before: Latch,
    /// Simulated machine; `None` runs on this machine.
    pub machine: Option<Simulated>,
}

impl Settings {
    /// Returns the settings of the whole study, which takes some minutes.
    #[must_use]
    pub fn full() -> Self {
        Self {
            scale: Scale::new(1_000, 1),
            mix: Mix::Shopping,
            conformance: Conformance::Kit,
            think: Think::Constant(Duration::from_millis(12)),
            connections: 32,
            users: vec![400, 800, 1_600, 3_200],
            limits: vec![Some(1), Some(2), Some(4), Some(8), Some(16), None],
            processors: processors(),
            warm_up: Duration::from_millis(150),
            measured: Duration::from_millis(600),
            recorded: Duration::from_millis(500),
            recordings: 5,
            pairs: 20,
            blocks: 150,
            seed: 1,
            latches: Latch::ALL.into(),
            before: Latch::Account,
            machine: None,
        }
    }

    /// Returns the settings of a study on a simulated machine like the paper's, with `processors` processors
    /// and with half of them (16 and 8 in the paper). It uses the paper's limits, its number of connections,
    /// and the plain mutex before the change.
    #[must_use]
    pub fn simulated(processors: usize) -> Self {
        let mut numbers = vec![(processors / 2).max(1), processors];
        numbers.dedup();
        Self {
            connections: 100,
            limits: vec![Some(6), Some(8), Some(12), Some(20), Some(30), Some(50), None],
            processors: numbers,
            recorded: Duration::from_millis(12),
            recordings: 3,
            pairs: 0,
            latches: vec![Latch::Mutex, Latch::Word],
            before: Latch::Mutex,
            machine: Some(Simulated::paper()),
            ..Self::full()
        }
    }

    /// Returns the settings of [`simulated`](Self::simulated) with few points, one seed and shorter windows.
    #[must_use]
    pub fn simulated_quick(processors: usize) -> Self {
        Self {
            machine: Some(Simulated { rule: QUICK, ..Simulated::paper() }),
            users: vec![3_200],
            limits: vec![Some(8), None],
            recorded: Duration::from_millis(8),
            recordings: 1,
            ..Self::simulated(processors)
        }
    }

    /// Returns the settings of all parts with few points, which takes a few seconds.
    #[must_use]
    pub fn quick() -> Self {
        let all = processors();
        Self {
            users: vec![800, 3_200],
            limits: vec![Some(4), None],
            processors: all[all.len() - 1..].to_vec(),
            warm_up: Duration::from_millis(50),
            measured: Duration::from_millis(120),
            recorded: Duration::from_millis(120),
            recordings: 5,
            pairs: 2,
            blocks: 10,
            ..Self::full()
        }
    }

    /// Returns the settings of one run.
    #[must_use]
    pub fn setup(&self, point: Point, measured: Duration) -> Setup {
        Setup {
            latch: point.latch,
            processors: point.processors,
            limit: point.limit,
            probes: Probes::Rows,
            crowd: Crowd {
                users: point.users,
                connections: self.connections,
                think: self.think,
                mix: self.mix,
                conformance: self.conformance,
                scale: self.scale,
                seed: self.seed,
                strolled: if self.machine.is_some() { STROLLED } else { 0 },
            },
            warm_up: self.warm_up,
            windows: self.machine.as_ref().map(|_| self.rule().span(WINDOWS, point.processors)),
            measured,
        }
    }

    /// Returns the rule of the points. On this machine a point has one run without windows.
    pub(super) fn rule(&self) -> Rule {
        let here = Rule { seeds: 1, ..Rule::default() };
        Rule { seed: self.seed, ..self.machine.as_ref().map_or(here, |machine| machine.rule) }
    }

    /// Returns the largest number of users.
    #[must_use]
    pub fn heaviest(&self) -> usize {
        self.users.iter().copied().max().unwrap_or(1)
    }

    /// Returns the largest number of processors.
    #[must_use]
    pub fn all_processors(&self) -> usize {
        self.processors.iter().copied().max().unwrap_or(1)
    }
}

/// Rule of [`Settings::simulated_quick`]: one seed, windows of a third of a think time, and a warm-up of at
/// most four think times.
const QUICK: Rule = Rule { window: Some(Duration::from_millis(4)), most: 12, seed: 1, seeds: 1 };

/// Pages that a user of a simulated run has visited beforehand: enough that the mix of pages is the
/// stationary one.
const STROLLED: usize = 60;

/// Returns 1, 2, 4, … up to the number of processors, at most 16.
fn processors() -> Vec<usize> {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    [1, 2, 4, 8, 16].into_iter().filter(|&n| n <= all).collect()
}

/// A measured combination of the study.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Point {
    /// Kind of the latch over the hash index.
    pub latch: Latch,
    /// Number of processors.
    pub processors: usize,
    /// Largest number of threads in the engine; `None` is no limit.
    pub limit: Option<usize>,
    /// Number of emulated users.
    pub users: usize,
}

impl Point {
    /// Returns the limit as text for tables.
    #[must_use]
    pub fn limit_name(&self) -> String {
        self.limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string())
    }
}
