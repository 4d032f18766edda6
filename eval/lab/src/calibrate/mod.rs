//! The machine at hand as a profile, and the deviation of simulations from it.
//!
//! 1. Small measurements give the cost of a load, an atomic instruction, a transfer between cores and a
//!    wake-up (`constants`), and the scheduling of threads (`scheduling`).
//! 2. Three workloads run really, on one thread and on two: the page cache, the log, the B+tree under the
//!    store's door.
//! 3. 1 and 2 take turns, round after round, because others use the machine too and its speed comes and goes:
//!    runs in which others had processors do not count, medians do, and rounds go on until the middle halves
//!    of all workloads' runs lie close together, or the time is up.
//! 4. The code between two accesses is computation of unknown length to the simulation. Its length follows
//!    from the run on one thread: the gap with which the thread has a processor for as long for each
//!    operation (`fit`). If a thread never waits, one thread agrees by construction, and two are the test.
//!    The log waits, for the device and for the wake-up: there the rate of one thread is a test, too. (Its
//!    rate does not determine the gap. With a shorter gap the thread meets the awaited flush at another
//!    moment, and may do less: two gaps, 0 and 20 ns, had the same rate, with half and all of the processor's
//!    time.)
//!
//! All of it runs in this program, in which each access asks whether it is simulated; so what is calibrated
//! is this program, somewhat slower than one without the feature.
//!
//! | module | noun |
//! |---|---|
//! | `constants` | small measurements: memory, instructions, calls, the device |
//! | `transfers` | the same of lines that move between processors |
//! | `caches` | their sizes |
//! | `scheduling` | the same of the scheduler: wakes, alarms, slices, priority of woken threads |
//! | `bound` | threads that are bound to processors |
//! | `costs` | a profile of their medians |
//! | [`runs`] | runs of one thing, some of them disturbed |
//! | `workload` | a workload, real and simulated |
//! | `fit` | the gap between accesses |
//! | [`report`] | both beside each other |

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
    /// Rounds of real runs, at least.
    pub rounds: usize,
    /// Longest time of the rounds, unless the runs lie close together before.
    pub longest: Duration,
    /// Measured time of each run.
    pub time: Duration,
    /// Of all that is drawn.
    pub seed: u64,
}

/// Numbers of threads on which real and simulated runs are compared.
const THREADS: [usize; 2] = [1, 2];

/// Real runs of a trial on one number of threads.
#[derive(Clone, Debug, Default)]
struct Cell {
    /// Operations per second.
    rate: Runs,
    /// Nanoseconds of a processor for an operation.
    busy_ns: Runs,
}

/// By number of the trial and of threads.
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
    /// Five rounds of a fifth of a second for each workload, or more of them for a minute and a half.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        let (longest, time) = (Duration::from_secs(90), Duration::from_millis(200));
        Self { dir, rounds: 5, longest, time, seed: 1 }
    }

    /// Measures, runs, compares.
    ///
    /// # Errors
    ///
    /// [`BenchError::Simulation`] without the feature `sim`; errors of the system, the store and the log.
    pub fn run(&self, progress: &Progress) -> Result<Calibration, BenchError> {
        let trials = self.trials()?;
        let (costs, cells) = self.measure(&trials, progress)?;
        let (write_ns, flush_ns, read_ns) =
            constants::device(&self.dir).map_err(BenchError::io("measure the device under", &self.dir))?;
        let device = Device { write_ns, flush_ns, read_ns };
        simulate(&trials, &cells, costs.profile(), device, progress)
    }

    /// Simulates again what was measured before, and compares: what a change of the simulator changes. Real
    /// runs are not made again.
    ///
    /// # Errors
    ///
    /// As those of [`run`](Self::run).
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
        // Fails at once if the feature is missing.
        Simulation::new(Rc::new(Profile::t2()), 1, 1).run().map_err(BenchError::Simulation)?;
        Subject::ALL.iter().map(|&subject| Trial::new(subject, self.time, self.seed)).collect()
    }

    /// Rounds of small measurements and real runs.
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

/// Finds the gaps, by workload, simulates, and puts real and simulated rates beside each other.
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
    fn what_was_measured_is_simulated_again_and_the_real_runs_stay() {
        // Slower than any simulation without a gap, and not so slow that none is long enough.
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
            // The log's thread waits besides.
            assert!(one.threads == 2 || subject == Subject::Log || one.agrees(), "{one:?}");
        }
    }
}
