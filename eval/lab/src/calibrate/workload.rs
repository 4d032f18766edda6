//! A workload, real and simulated.

use azekura_io::DeviceModel;
use azekura_sim::Profile;
use std::time::Duration;

use crate::error::BenchError;
use crate::lab::steady::Rule;
use crate::lab::{nb_gclock, p_wal};
use crate::progress::Progress;
use crate::scale::work::Filled;
use crate::scale::{self, Scale, Work};

/// The measured workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// Visits of pages in the page cache; all pages are resident.
    Cache,
    /// Workload U-1 on the log, over a modeled device.
    Log,
    /// Point reads through the store's interface: locks and a descent of the tree.
    Tree,
}

impl Subject {
    pub(super) const ALL: [Self; 3] = [Self::Cache, Self::Log, Self::Tree];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Log => "log",
            Self::Tree => "reads",
        }
    }
}

/// Result of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    /// Operations per second.
    pub(super) rate: f64,
    /// Processor time per operation, in nanoseconds.
    pub(super) busy_ns: f64,
}

impl Ran {
    /// Returns the result for threads that never wait: each uses its processor all the time.
    fn computing(rate: f64, threads: usize) -> Self {
        Self { rate, busy_ns: threads as f64 * 1e9 / rate.max(f64::MIN_POSITIVE) }
    }
}

/// A workload with its data, ready to run.
pub(super) struct Trial {
    pub(super) subject: Subject,
    filled: Option<Filled>,
    time: Duration,
    seed: u64,
}

/// Window of the log in short simulations of one thread.
const BRIEFLY: Duration = Duration::from_millis(4);

impl Trial {
    pub(super) fn new(subject: Subject, time: Duration, seed: u64) -> Result<Self, BenchError> {
        let filled = match subject {
            Subject::Tree => Some(Work::Reads.fill(seed)?),
            Subject::Cache | Subject::Log => None,
        };
        Ok(Self { subject, filled, time, seed })
    }

    /// Runs the workload on `threads` real threads.
    pub(super) fn real(&self, threads: usize) -> Result<Ran, BenchError> {
        let profile = Profile::two_sockets();
        match (self.subject, &self.filled) {
            (Subject::Cache, _) => {
                Ok(Ran::computing(self.cache(profile, threads).real(threads, self.time), threads))
            }
            (Subject::Tree, Some(filled)) => {
                let rate = scale::run::real(&self.tree(profile, threads), filled, threads, self.time)?;
                Ok(Ran::computing(rate, threads))
            }
            (Subject::Log | Subject::Tree, _) => {
                let (rate, busy_ns) = self.log(profile, threads, None).real(threads, self.time)?;
                Ok(Ran { rate, busy_ns })
            }
        }
    }

    /// Runs the workload on `threads` simulated threads with `gap` nanoseconds of computation between two
    /// accesses. The log is measured for the same time as in the real run.
    pub(super) fn simulated(&self, profile: &Profile, gap: f64, threads: usize) -> Result<Ran, BenchError> {
        self.simulated_for(profile, gap, threads, self.time / 4)
    }

    /// Runs the workload on one simulated thread; the log is simulated with the short windows of [`BRIEFLY`].
    pub(super) fn simulated_briefly(&self, profile: &Profile, gap: f64) -> Result<Ran, BenchError> {
        self.simulated_for(profile, gap, 1, BRIEFLY)
    }

    fn simulated_for(
        &self,
        profile: &Profile,
        gap: f64,
        threads: usize,
        log_window: Duration,
    ) -> Result<Ran, BenchError> {
        let mut profile = profile.clone();
        profile.costs.between_accesses.value = gap;
        let progress = Progress::hidden();
        match (self.subject, &self.filled) {
            (Subject::Cache, _) => {
                let report = self.cache(profile, threads).run(&progress).map_err(BenchError::Simulation)?;
                Ok(Ran::computing(report.points.first().map_or(0.0, |point| point.rate), threads))
            }
            (Subject::Tree, Some(filled)) => {
                let point = scale::run::point(&self.tree(profile, threads), filled, threads)?;
                Ok(Ran::computing(point.rate, threads))
            }
            (Subject::Log | Subject::Tree, _) => {
                let report = self.log(profile, threads, Some(log_window)).run(&progress)?;
                let ran =
                    report.points.first().map(|p| Ran { rate: p.rate, busy_ns: p.worker_ns.unwrap_or(0.0) });
                Ok(ran.unwrap_or(Ran { rate: 0.0, busy_ns: 0.0 }))
            }
        }
    }

    fn cache(&self, profile: Profile, threads: usize) -> nb_gclock::simulate::Simulated {
        nb_gclock::simulate::Simulated {
            kinds: vec![nb_gclock::cache::Kind::TwoRings],
            pages_per_frame: Vec::new(),
            rule: self.rule(Some(Duration::from_millis(1))),
            ..nb_gclock::simulate::Simulated::on(profile, vec![threads])
        }
    }

    fn tree(&self, profile: Profile, threads: usize) -> Scale {
        Scale { rule: self.rule(None), ..Scale::new(profile, Work::Reads, vec![threads]) }
    }

    /// Returns the rule with one seed: the fit repeats a run many times.
    fn rule(&self, window: Option<Duration>) -> Rule {
        Rule { window, seed: self.seed, seeds: 1, ..Rule::default() }
    }

    fn log(&self, profile: Profile, threads: usize, window: Option<Duration>) -> p_wal::simulate::Simulated {
        p_wal::simulate::Simulated {
            profile,
            devices: vec![DeviceModel::plp()],
            logs: vec![(p_wal::variant::Variant::Ours, None)],
            workers: vec![threads],
            spins: true,
            rule: self.rule(window),
            ..p_wal::simulate::Simulated::new(1)
        }
    }
}
