//! Settings of the study.

use super::front::Probes;
use super::front::search::Latch;
use super::measure::Setup;
use super::simulate::Simulated;
use super::users::Crowd;
use azekura_workload::bookstore::{Conformance, Mix, Scale, Think};
use serde::Serialize;
use std::time::Duration;

/// Sizes, times and repetitions of a study.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Size of the shop.
    pub scale: Scale,
    /// The visitors' mix of pages.
    pub mix: Mix,
    /// The rules that they keep.
    pub conformance: Conformance,
    /// Think time.
    pub think: Think,
    /// Connections, each a thread.
    pub connections: usize,
    /// Emulated users: the points of each line of Figs 3, 4, 10 and 11. The last is the heaviest load, at
    /// which recordings are made.
    pub users: Vec<usize>,
    /// Limits of threads in the engine: the lines. `None`, no limit, must be the last.
    pub limits: Vec<Option<usize>>,
    /// Numbers of processors; the last is the one of the findings.
    pub processors: Vec<usize>,
    /// Time before each measured run.
    pub warm_up: Duration,
    /// Measured time of each point.
    pub measured: Duration,
    /// Time of each recording.
    pub recorded: Duration,
    /// Recordings of each latch.
    pub recordings: usize,
    /// Pairs of runs without and with a recording.
    pub pairs: usize,
    /// Blocks of four slices without and with a recording, if its cost is measured by slices.
    pub blocks: usize,
    /// Seed of rows and users.
    pub seed: u64,
    /// Latches, in this order.
    pub latches: Vec<Latch>,
    /// The one before the cure.
    pub before: Latch,
    /// The machine to run on instead of this one.
    pub machine: Option<Simulated>,
}

impl Settings {
    /// The whole study: some minutes.
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

    /// The 8 → 16 core half of the paper, or that of another number and half of it, on a simulated machine
    /// like the paper's: its limits, its number of connections, and the plain latch before the cure.
    #[must_use]
    pub fn simulated(processors: usize) -> Self {
        let mut numbers = vec![(processors / 2).max(1), processors];
        numbers.dedup();
        Self {
            connections: 100,
            limits: vec![Some(6), Some(8), Some(12), Some(20), Some(30), Some(50), None],
            processors: numbers,
            warm_up: Duration::from_millis(13),
            measured: Duration::from_millis(25),
            recorded: Duration::from_millis(12),
            recordings: 3,
            pairs: 0,
            latches: vec![Latch::Mutex, Latch::Word],
            before: Latch::Mutex,
            machine: Some(Simulated::paper()),
            ..Self::full()
        }
    }

    /// The same with few points.
    #[must_use]
    pub fn simulated_quick(processors: usize) -> Self {
        Self {
            users: vec![3_200],
            limits: vec![Some(8), None],
            measured: Duration::from_millis(12),
            recorded: Duration::from_millis(8),
            recordings: 1,
            ..Self::simulated(processors)
        }
    }

    /// A few seconds: all parts, with few points.
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

    /// One run of the study.
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
            measured,
        }
    }

    /// The most users.
    #[must_use]
    pub fn heaviest(&self) -> usize {
        self.users.iter().copied().max().unwrap_or(1)
    }

    /// The most processors.
    #[must_use]
    pub fn all_processors(&self) -> usize {
        self.processors.iter().copied().max().unwrap_or(1)
    }
}

/// Long enough for the mix of pages to be that of the long run.
const STROLLED: usize = 60;

/// 1, 2, 4, … up to the number of processors, 16 at most.
fn processors() -> Vec<usize> {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    [1, 2, 4, 8, 16].into_iter().filter(|&n| n <= all).collect()
}

/// A point of the study.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Point {
    /// The latch over the hash index.
    pub latch: Latch,
    /// Processors.
    pub processors: usize,
    /// Threads let into the engine.
    pub limit: Option<usize>,
    /// Emulated users.
    pub users: usize,
}

impl Point {
    /// The limit, for people.
    #[must_use]
    pub fn limit_name(&self) -> String {
        self.limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string())
    }
}
