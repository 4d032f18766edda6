//! A profile of this machine, and the deviation of simulations from it.
//!
//! 1. Small measurements determine the cost of a load, an atomic instruction, a transfer between cores and a
//!    wake-up (`constants`), and the scheduling of threads (`scheduling`).
//! 2. Three workloads run on real threads, on one and on two: the page cache, the log, and point reads of the
//!    whole store.
//! 3. Steps 1 and 2 alternate in rounds, because other processes use the machine too and its speed varies.
//!    Runs during which other processes used processors are not counted, and results are medians. Rounds are
//!    repeated until the interquartile range of each workload is small, or the time limit is reached.
//! 4. The simulator does not know how long the code between two memory accesses computes. That time, the
//!    *gap*, is fitted to the run on one thread, so that the simulated thread uses the same processor time
//!    per operation (`fit`). If a thread never waits, the rates on one thread agree by construction, and only
//!    two threads are a test. The log waits for the device and for the wake-up, so its rate on one thread is
//!    a test, too. (That rate does not determine the gap: gaps of 0 and 20 ns had the same rate, with half
//!    and with all of the processor's time.)
//!
//! All of this runs in a build in which each access tests whether it is simulated. The calibration therefore
//! describes that build, which is somewhat slower than one without the feature `sim`.
//!
//! | module | noun |
//! |---|---|
//! | `constants` | small measurements: memory, instructions, calls, the device |
//! | `transfers` | small measurements of cache lines that move between processors |
//! | `caches` | sizes of the caches |
//! | `scheduling` | small measurements of the scheduler: wakes, timers, time slices, preemption |
//! | `bound` | threads that are bound to processors |
//! | `costs` | a profile of the medians of all small measurements |
//! | [`runs`] | repeated runs of one measurement, some of them disturbed |
//! | `workload` | a workload, real and simulated |
//! | `fit` | the gap between accesses |
//! | [`report`] | real and simulated results side by side |

mod bound;
mod caches;
mod constants;
mod costs;
mod fit;
pub mod report;
pub mod runs;
mod scheduling;
mod transfers;
mod workload;

pub use report::{Calibration, Compared, Device};
pub use runs::Runs;

use azekura_sim::{Profile, Simulation};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::progress::{Progress, ms};
use costs::Costs;
use workload::{Ran, Subject, Trial};

/// Settings of the calibration.
#[derive(Clone, Debug)]
pub struct Calibrate {
    /// Directory on the measured device.
    pub dir: PathBuf,
    /// Smallest number of rounds.
    pub rounds: usize,
    /// Time limit of the rounds; they end earlier if the results have settled.
    pub longest: Duration,
    /// Measured time of each run.
    pub time: Duration,
    /// Seed of all random choices.
    pub seed: u64,
}

/// Numbers of threads on which real and simulated runs are compared.
const THREADS: [usize; 2] = [1, 2];

/// Real runs of one trial with one number of threads.
#[derive(Clone, Debug, Default)]
struct Cell {
    /// Operations per second.
    rate: Runs,
    /// Processor time per operation, in nanoseconds.
    busy_ns: Runs,
}

/// Cells by index of the trial and number of threads.
type Cells = BTreeMap<(usize, usize), Cell>;

impl Cell {
    fn run(&mut self, measure: impl FnOnce() -> Result<Ran, BenchError>) -> Result<(), BenchError> {
        let mut busy_ns = 0.0;
        self.rate.run(|| {
            let ran = measure()?;
            busy_ns = ran.busy_ns;
            Ok::<_, BenchError>(ran.rate)
        })?;
        self.busy_ns.run_beside(&self.rate, busy_ns);
        Ok(())
    }
}

impl Calibrate {
    /// Returns the default settings: at least five rounds, at most 90 seconds, 200 ms for each run.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        let (longest, time) = (Duration::from_secs(90), Duration::from_millis(200));
        Self { dir, rounds: 5, longest, time, seed: 1 }
    }

    /// Measures this machine, runs the workloads on real threads and simulates them.
    ///
    /// # Errors
    ///
    /// [`BenchError::Simulation`] without the feature `sim`; errors of the operating system, the store and
    /// the log.
    pub fn run(&self, progress: &Progress) -> Result<Calibration, BenchError> {
        let trials = self.trials()?;
        let (costs, cells) = self.measure(&trials, progress)?;
        let (write_ns, flush_ns, read_ns) =
            constants::device(&self.dir).map_err(BenchError::io("measure the device under", &self.dir))?;
        let device = Device { write_ns, flush_ns, read_ns };
        simulate(&trials, &cells, costs.profile(), device, progress)
    }

    /// Simulates the workloads on the profile of an earlier calibration and compares the results with its
    /// real runs. This shows the effect of a change of the simulator.
    ///
    /// # Errors
    ///
    /// The same as those of [`run`](Self::run).
    pub fn again(&self, before: &Calibration, progress: &Progress) -> Result<Calibration, BenchError> {
        let trials = self.trials()?;
        let runs = |name: &str, threads| {
            let same = |one: &&Compared| one.workload == name && one.threads == threads;
            let cell = |one: &Compared| Cell { rate: one.real.clone(), busy_ns: one.busy_ns.clone() };
            before.compared.iter().find(same).map(cell).unwrap_or_default()
        };
        let numbered = || trials.iter().enumerate().flat_map(|(n, trial)| THREADS.map(|t| (n, t, trial)));
        let cells = numbered().map(|(n, t, trial)| ((n, t), runs(trial.subject.name(), t))).collect();
        simulate(&trials, &cells, before.profile.clone(), before.device, progress)
    }

    fn trials(&self) -> Result<Vec<Trial>, BenchError> {
        // A one-step simulation fails at once if the feature `sim` is missing.
        Simulation::new(Rc::new(Profile::t2()), 1, 1).run().map_err(BenchError::Simulation)?;
        Subject::ALL.iter().map(|&subject| Trial::new(subject, self.time, self.seed)).collect()
    }

    /// Repeats rounds of small measurements and real runs.
    fn measure(&self, trials: &[Trial], progress: &Progress) -> Result<(Costs, Cells), BenchError> {
        progress.begin("Measuring this machine", ms(self.longest));
        let (begin, mut costs, mut cells) = (Instant::now(), Costs::default(), Cells::new());
        for round in 0.. {
            let is_settled = !cells.is_empty() && cells.values().all(|cell| cell.rate.is_settled());
            if round >= self.rounds && (is_settled || begin.elapsed() >= self.longest) {
                break;
            }
            costs.measure().map_err(BenchError::io("start threads for", &self.dir))?;
            for (number, trial) in trials.iter().enumerate() {
                for threads in THREADS {
                    cells.entry((number, threads)).or_default().run(|| trial.real(threads))?;
                }
            }
            progress.at(ms(begin.elapsed()));
        }
        Ok((costs, cells))
    }
}

/// Fits the gap of each workload, simulates it, and pairs the simulated rates with the real ones.
fn simulate(
    trials: &[Trial],
    cells: &Cells,
    mut profile: Profile,
    device: Device,
    progress: &Progress,
) -> Result<Calibration, BenchError> {
    progress.begin("Simulated runs", trials.len() as u64);
    let (mut gaps, mut compared) = (BTreeMap::new(), Vec::new());
    for (number, trial) in trials.iter().enumerate() {
        let workload = trial.subject.name().to_owned();
        let alone = cells[&(number, 1)].busy_ns.median();
        let gap = fit::gap(alone, |gap| trial.simulated_briefly(&profile, gap).map(|ran| ran.busy_ns))?;
        gaps.insert(workload.clone(), gap);
        for threads in THREADS {
            let Cell { rate: real, busy_ns } = cells[&(number, threads)].clone();
            let simulated = trial.simulated(&profile, gap, threads)?.rate;
            compared.push(Compared { workload: workload.clone(), threads, real, busy_ns, simulated });
        }
        progress.at(number as u64 + 1);
    }
    profile.costs.between_accesses = costs::measured(median(gaps.values().copied().collect()));
    Ok(Calibration { profile, gaps, device, compared })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use runs::Run;

    #[test]
    fn measured_cells_are_simulated_again_and_real_runs_are_kept() {
        // These rates are slower than a simulation without a gap, and within the range of the fit.
        let real = |subject| {
            let value = if subject == Subject::Cache { 2e6 } else { 2e5 };
            Runs(vec![Run { value, others: 0.0 }; 3])
        };
        let busy_ns = |subject, threads| {
            let Runs(rates) = real(subject);
            let busy = |run: Run| Run { value: threads as f64 * 1e9 / run.value, ..run };
            Runs(rates.into_iter().map(busy).collect())
        };
        let compared = Subject::ALL.iter().flat_map(|&subject| {
            let workload = || subject.name().to_owned();
            THREADS.map(|threads| Compared {
                workload: workload(),
                threads,
                real: real(subject),
                busy_ns: busy_ns(subject, threads),
                simulated: 0.0,
            })
        });
        let device = Device { write_ns: 1.0, flush_ns: 2.0, read_ns: 3.0 };
        let before = Calibration {
            profile: Profile::two_sockets(),
            gaps: BTreeMap::new(),
            device,
            compared: compared.collect(),
        };
        let calibrate = Calibrate { time: Duration::from_millis(8), ..Calibrate::new(".".into()) };
        let after = calibrate.again(&before, &Progress::hidden()).expect("simulates");
        assert_eq!((after.gaps.len(), after.compared.len(), after.device), (3, 6, device));
        for (one, subject) in after.compared.iter().zip(Subject::ALL.iter().flat_map(|&subject| [subject; 2]))
        {
            assert_eq!((one.workload.as_str(), &one.real), (subject.name(), &real(subject)));
            assert!(one.simulated > 0.0, "{one:?}");
            // The log's thread waits, so its rate does not follow from its processor time.
            assert!(one.threads == 2 || subject == Subject::Log || one.agrees(), "{one:?}");
        }
    }
}
