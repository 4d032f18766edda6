//! A workload, real and simulated.

use azekura_io::DeviceModel;
use azekura_sim::Profile;
use std::time::Duration;

use crate::error::BenchError;
use crate::lab::{nb_gclock, p_wal};
use crate::progress::Progress;
use crate::scale::work::Filled;
use crate::scale::{self, Scale, Work};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// Visits of the page cache, all pages resident.
    Cache,
    /// U-1 on the log, over a modelled device.
    Log,
    /// Point reads through the store's door: locks and a descent.
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

/// A subject, ready to run.
pub(super) struct Trial {
    pub(super) subject: Subject,
    filled: Option<Filled>,
    time: Duration,
    seed: u64,
}

/// Time before and while the log's commits are counted, for one worker alone: what it does has settled by then.
const BRIEFLY: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(20));

impl Trial {
    pub(super) fn new(subject: Subject, time: Duration, seed: u64) -> Result<Self, BenchError> {
        let filled = match subject {
            Subject::Tree => Some(Work::Reads.fill(seed)?),
            Subject::Cache | Subject::Log => None,
        };
        Ok(Self { subject, filled, time, seed })
    }

    /// Operations per second of so many real threads.
    pub(super) fn real(&self, threads: usize) -> Result<f64, BenchError> {
        let profile = Profile::two_sockets();
        match (self.subject, &self.filled) {
            (Subject::Cache, _) => Ok(self.cache(profile, threads).real(threads, self.time)),
            (Subject::Tree, Some(filled)) => {
                let mut scale = self.tree(profile, threads);
                scale.time = Some((self.time / 4, self.time));
                scale::run::real(&scale, filled, threads)
            }
            (Subject::Log | Subject::Tree, _) => self.log(profile, threads, self.log_time()).real(threads),
        }
    }

    /// The same on a machine, with so long a gap between accesses. The log runs for as long as really, for it tries how many streams serve it best, and who
    /// leads its flushes, all the time.
    pub(super) fn simulated(&self, profile: &Profile, gap: f64, threads: usize) -> Result<f64, BenchError> {
        self.simulated_for(profile, gap, threads, self.log_time())
    }

    /// The same for one thread, on which the log has nothing to choose from: sooner done.
    pub(super) fn simulated_briefly(&self, profile: &Profile, gap: f64) -> Result<f64, BenchError> {
        self.simulated_for(profile, gap, 1, BRIEFLY)
    }

    fn log_time(&self) -> (Duration, Duration) {
        (self.time / 4, self.time)
    }

    fn simulated_for(
        &self,
        profile: &Profile,
        gap: f64,
        threads: usize,
        log_time: (Duration, Duration),
    ) -> Result<f64, BenchError> {
        let mut profile = profile.clone();
        profile.costs.between_accesses.value = gap;
        let progress = Progress::hidden();
        match (self.subject, &self.filled) {
            (Subject::Cache, _) => {
                let report = self.cache(profile, threads).run(&progress).map_err(BenchError::Simulation)?;
                Ok(report.points.first().map_or(0.0, |point| point.rate))
            }
            (Subject::Tree, Some(filled)) => {
                Ok(scale::run::point(&self.tree(profile, threads), filled, threads)?.rate)
            }
            (Subject::Log | Subject::Tree, _) => {
                let report = self.log(profile, threads, log_time).run(&progress)?;
                Ok(report.points.first().map_or(0.0, |point| point.rate))
            }
        }
    }

    fn cache(&self, profile: Profile, threads: usize) -> nb_gclock::simulate::Simulated {
        nb_gclock::simulate::Simulated {
            kinds: vec![nb_gclock::cache::Kind::TwoRings],
            pages_per_frame: Vec::new(),
            time: (Duration::from_millis(1), Duration::from_millis(4)),
            seed: self.seed,
            ..nb_gclock::simulate::Simulated::on(profile, vec![threads])
        }
    }

    fn tree(&self, profile: Profile, threads: usize) -> Scale {
        Scale { seed: self.seed, ..Scale::new(profile, Work::Reads, vec![threads]) }
    }

    fn log(
        &self,
        profile: Profile,
        threads: usize,
        time: (Duration, Duration),
    ) -> p_wal::simulate::Simulated {
        p_wal::simulate::Simulated {
            profile,
            devices: vec![DeviceModel::plp()],
            logs: vec![(p_wal::variant::Variant::Ours, None)],
            workers: vec![threads],
            time,
            spins: true,
            seed: self.seed,
            ..p_wal::simulate::Simulated::new(1)
        }
    }
}
