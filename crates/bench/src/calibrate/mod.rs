//! The machine at hand as a profile, and how far simulations of it are from the real thing.
//!
//! 1. Small measurements give what a load, an atomic instruction, a transfer between cores, a wake-up cost (`constants`).
//! 2. Three workloads run really, on one thread and on two: the page cache, the log, the B+tree under the store's door. Runs are interleaved,
//!    and medians taken, because others use the machine too.
//! 3. What lies between two accesses that a simulation sees is computation of which it knows nothing. It follows from the run on one thread: the
//!    gap with which the simulation takes as long. So one thread agrees by construction, and two are the test.
//!
//! All of it runs in this program, in which each access asks whether it is simulated; so what is calibrated is this program, somewhat slower than one
//! without the feature.
//!
//! | module | noun |
//! |---|---|
//! | `constants` | small measurements |
//! | `workload` | a workload, real and simulated |
//! | [`report`] | both beside each other |

mod constants;
pub mod report;
mod workload;

pub use report::{Calibration, Compared, Device};

use azekura_sim::profile::{Constant, Source};
use azekura_sim::{Profile, Simulation};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use crate::error::BenchError;
use crate::progress::Progress;
use workload::{Subject, Trial};

/// How to calibrate.
#[derive(Clone, Debug)]
pub struct Calibrate {
    /// Where the device is measured.
    pub dir: PathBuf,
    /// Real runs of each workload with each number of threads.
    pub rounds: usize,
    /// How long each of them counts.
    pub time: Duration,
    /// Of all that is drawn.
    pub seed: u64,
}

/// Real and simulated runs are compared on so many threads.
const THREADS: [usize; 2] = [1, 2];
/// No gap is longer, in nanoseconds; it is found in so many steps, to a sixteenth of a nanosecond.
const LONGEST_GAP: f64 = 256.0;
const BISECTIONS: usize = 12;

impl Calibrate {
    /// Five rounds of a fifth of a second.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, rounds: 5, time: Duration::from_millis(200), seed: 1 }
    }

    /// Measures, runs, compares.
    ///
    /// # Errors
    ///
    /// [`BenchError::Simulation`] without the feature `sim`; what the system, the store and the log say.
    pub fn run(&self, progress: &Progress) -> Result<Calibration, BenchError> {
        // Says at once that the feature is missing.
        Simulation::new(Rc::new(Profile::t2()), 1, 1).run().map_err(BenchError::Simulation)?;
        progress.begin("Measuring this machine", 1);
        let mut profile = self.measure()?;
        let (write_ns, flush_ns, read_ns) =
            constants::device(&self.dir).map_err(BenchError::io("measure the device under", &self.dir))?;
        let mut trials = Vec::new();
        for subject in Subject::ALL {
            trials.push(Trial::new(subject, self.time, self.seed)?);
        }
        progress.begin("Real runs", (self.rounds * trials.len() * THREADS.len()) as u64);
        let mut rates: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
        for _ in 0..self.rounds {
            for (number, trial) in trials.iter().enumerate() {
                for threads in THREADS {
                    rates.entry((number, threads)).or_default().push(trial.real(threads)?);
                    progress.at(rates.values().map(Vec::len).sum::<usize>() as u64);
                }
            }
        }
        progress.begin("Simulated runs", trials.len() as u64);
        let (mut gaps, mut compared) = (BTreeMap::new(), Vec::new());
        for (number, trial) in trials.iter().enumerate() {
            let alone = median(&rates[&(number, 1)]);
            let gap = gap(trial, &profile, alone)?;
            gaps.insert(trial.subject.name().to_owned(), gap);
            for threads in THREADS {
                compared.push(Compared {
                    workload: trial.subject.name().to_owned(),
                    threads,
                    real: rates[&(number, threads)].clone(),
                    real_median: median(&rates[&(number, threads)]),
                    simulated: trial.simulated(&profile, gap, threads)?,
                });
            }
            progress.at(number as u64 + 1);
        }
        profile.costs.between_accesses = measured(median(&gaps.values().copied().collect::<Vec<_>>()));
        Ok(Calibration { profile, gaps, device: Device { write_ns, flush_ns, read_ns }, compared })
    }

    fn measure(&self) -> Result<Profile, BenchError> {
        let threads = |source| BenchError::io("start threads for", &self.dir)(source);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut profile = Profile::two_sockets();
        profile.name = "here".into();
        profile.describes = format!("this machine, {cores} processors, as measured");
        let topology = &mut profile.topology;
        (topology.sockets, topology.clusters_per_socket, topology.cores_per_cluster) = (1, 1, cores);
        (topology.threads_per_core, topology.pipes_per_core) = (1, 1);
        let private = (topology.private_lines.0 * azekura_sim::lines::LINE_BYTES).max(1 << 20);
        let costs = &mut profile.costs;
        costs.load_hit = measured(constants::load_hit());
        costs.store = measured(constants::store());
        costs.swap = measured(constants::swap());
        costs.pause = measured(constants::pause());
        costs.copy_byte = measured(constants::copy_byte());
        costs.shared_hit = measured(constants::chase(4 * private));
        costs.memory = measured(constants::chase(256 << 20));
        costs.other_socket.value = 0.0;
        costs.transfer_in_cluster = measured(constants::transfer().map_err(threads)?);
        costs.transfer_in_socket = costs.transfer_in_cluster.clone();
        let system_call = constants::system_call();
        costs.system_call = measured(system_call);
        costs.wake = measured(constants::wake(system_call).map_err(threads)?);
        Ok(profile)
    }
}

const fn measured(value: f64) -> Constant {
    Constant { value, source: Source::Measured }
}

/// The gap with which the simulation of one thread is as fast as the real one: the longer the gap, the slower, so by bisection.
fn gap(trial: &Trial, profile: &Profile, real: f64) -> Result<f64, BenchError> {
    let (mut short, mut long) = (0.0, LONGEST_GAP);
    for _ in 0..BISECTIONS {
        let middle = (short + long) / 2.0;
        if trial.simulated(profile, middle, 1)? > real {
            short = middle;
        } else {
            long = middle;
        }
    }
    Ok((short + long) / 2.0)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
