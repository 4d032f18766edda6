//! The whole store on a simulated machine: the growth of its throughput with the number of processors, and
//! the shared cache lines that limit it.
//!
//! The shipped store is opened on a simulated machine (`azekura-sim`) with a modeled device. The store's own
//! threads and the clients are threads of that machine. The store is filled on a simulated machine, too, once
//! for all numbers of processors. Before the clients begin, it is read from a device without cost, so that
//! every page has a frame.
//!
//! | module | noun |
//! |---|---|
//! | `work` | work of the clients, and their store |
//! | `run` | a run with one number of processors |
//! | [`report`] | rates, and the cache lines that limit them |

pub mod report;
pub(crate) mod run;
pub(crate) mod work;

pub use report::Report;
pub use run::{Point, SharedLine};
pub use work::Work;

use azekura_io::DeviceModel;
use azekura_sim::{LineName, Profile, Simulation};
use std::cell::Cell;
use std::rc::Rc;

use crate::busy::Watch;
use crate::error::BenchError;
use crate::lab::p_wal::variant::Variant;
use crate::lab::simulated;
use crate::lab::steady::Rule;
use crate::progress::Progress;
use work::Filled;

/// Number of processors of the machine that fills a store: for the filling thread, and for the store's own
/// threads.
const FILLING: usize = 4;

/// Settings of the simulation.
#[derive(Clone, Debug)]
pub struct Scale {
    /// The simulated machine.
    pub profile: Profile,
    /// Work of the clients.
    pub work: Work,
    /// Numbers of processors; each processor has a client.
    pub processors: Vec<usize>,
    /// Modeled device of the store.
    pub device: DeviceModel,
    /// Log of the store.
    pub log: Variant,
    /// Number of commits that each client may have in flight.
    pub window: usize,
    /// Cache lines with accesses that cost nothing extra.
    pub without: Vec<LineName>,
    /// Warm-up, windows and seeds of each point; the first seed is that of the filled store, too.
    pub rule: Rule,
}

impl Scale {
    /// Returns the default settings, with a data-center drive as the device.
    #[must_use]
    pub fn new(profile: Profile, work: Work, processors: Vec<usize>) -> Self {
        let device = DeviceModel::plp();
        let (without, rule) = (Vec::new(), Rule::default());
        let log = Variant::Ours;
        Self { profile, work, processors, device, log, window: 64, without, rule }
    }

    /// Runs the simulations. Also returns, for each point, the number of simulated operations per minute of
    /// real processor time.
    ///
    /// # Errors
    ///
    /// [`BenchError::Simulation`], and errors of the store.
    pub fn run(&self, progress: &Progress) -> Result<(Report, Vec<f64>), BenchError> {
        progress.begin(&format!("Filling the store for {}", self.work.name()), 1);
        let filled = self.fill()?;
        progress.begin(
            &format!("Simulating {} on {}", self.work.name(), self.profile.name),
            self.processors.len() as u64,
        );
        let (mut points, mut speeds) = (Vec::new(), Vec::new());
        for &processors in &self.processors {
            let watch = Watch::begin();
            let point = run::point(self, &filled, processors)?;
            let (time, busy) = watch.end();
            speeds.push(point.all_ops as f64 / (busy.own * time.as_secs_f64()) * 60.0);
            points.push(point);
            progress.at(points.len() as u64);
        }
        let report = Report { profile: self.profile.clone(), settings: self.describe(), points };
        Ok((report, speeds))
    }

    /// Fills a store on a simulated machine. The background threads of a store on a real machine run at
    /// random times, so each such store would be different.
    pub(crate) fn fill(&self) -> Result<Filled, BenchError> {
        let (work, seed) = (self.work, self.rule.seed);
        let filled = Rc::new(Cell::new(None));
        let result = Rc::clone(&filled);
        let profile = Rc::new(Profile::two_sockets());
        let mut simulation = Simulation::new(profile, FILLING, seed).stack_bytes(run::STACK_BYTES);
        simulation.thread(move || result.set(Some(work.fill(seed))));
        simulation.run().map_err(BenchError::Simulation)?;
        filled.take().ok_or(BenchError::Panicked)?
    }

    fn describe(&self) -> String {
        format!(
            "{}; device {}; {} commits in flight for each client; {}{}",
            self.work.describe(),
            self.device.name,
            self.window,
            self.rule.describe(self.work.windows()),
            simulated::without(&self.without)
        )
    }
}
