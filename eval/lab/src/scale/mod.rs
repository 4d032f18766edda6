//! The whole store on a simulated machine: how its throughput grows with processors, and which shared lines
//! stop it.
//!
//! The store is the shipped one, opened on a machine (`azekura-sim`) with a modeled device under it; its own
//! threads, like the clients', are threads of the machine. It is filled on a machine, too, once for all
//! numbers of processors, and then read in from a device that costs nothing, so every page has a frame when
//! the clients begin.
//!
//! | module | noun |
//! |---|---|
//! | `work` | work of the clients, and their store |
//! | `run` | one number of processors |
//! | [`report`] | curves, and the lines that stop them |

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
use std::time::Duration;

use crate::busy::Watch;
use crate::error::BenchError;
use crate::lab::simulated;
use crate::progress::Progress;
use work::Filled;

/// Processors of the machine on which a store is filled: for the filling thread, and for the store's own
/// threads.
const FILLING: usize = 4;

/// Settings of the simulation.
#[derive(Clone, Debug)]
pub struct Scale {
    /// The machine.
    pub profile: Profile,
    /// Work of the clients.
    pub work: Work,
    /// Numbers of processors; each has a client.
    pub processors: Vec<usize>,
    /// The device under the store.
    pub device: DeviceModel,
    /// Commits that each client may have in flight.
    pub window: usize,
    /// Time on the machine before and while operations are counted, instead of what suits the work and the
    /// processors.
    pub time: Option<(Duration, Duration)>,
    /// Lines that cost nothing.
    pub without: Vec<LineName>,
    /// Of all that is drawn.
    pub seed: u64,
}

impl Scale {
    /// On a machine, with a data-center drive under the store.
    #[must_use]
    pub fn new(profile: Profile, work: Work, processors: Vec<usize>) -> Self {
        let device = DeviceModel::plp();
        Self { profile, work, processors, device, window: 64, time: None, without: Vec::new(), seed: 1 }
    }

    /// Runs all of it. The second list says, by point, how many operations were simulated per minute of a
    /// real processor's time.
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

    /// Fills a store by a thread of a machine: a real store's own threads do what they do when they like, and
    /// no two would be the same.
    fn fill(&self) -> Result<Filled, BenchError> {
        let (work, seed) = (self.work, self.seed);
        let filled = Rc::new(Cell::new(None));
        let result = Rc::clone(&filled);
        let profile = Rc::new(Profile::two_sockets());
        let mut simulation = Simulation::new(profile, FILLING, seed).stack_bytes(run::STACK_BYTES);
        simulation.thread(move || result.set(Some(work.fill(seed))));
        simulation.run().map_err(BenchError::Simulation)?;
        filled.take().ok_or(BenchError::Panicked)?
    }

    pub(crate) fn time(&self, processors: usize) -> (Duration, Duration) {
        self.time.unwrap_or_else(|| self.work.time(processors))
    }

    fn describe(&self) -> String {
        format!(
            "{}; device {}; {} commits in flight for each client; seed {}{}",
            self.work.describe(),
            self.device.name,
            self.window,
            self.seed,
            simulated::without(&self.without)
        )
    }
}
