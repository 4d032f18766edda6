//! Plan of a comparison: workloads, numbers of threads, durations and repetitions.

use azekura_workload::{Family, Workload};
use std::path::PathBuf;
use std::time::Duration;

/// Method of waiting for commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// Each thread waits until its commit is durable before the next transaction.
    Blocking,
    /// Each thread continues while a limited number of its commits are not durable.
    Pipelined {
        /// Largest number of commits in flight over all threads together.
        in_flight: usize,
    },
}

impl Commit {
    /// Returns the name in reports.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Blocking => "blocking",
            Self::Pipelined { .. } => "pipelined",
        }
    }

    /// Returns the largest number of commits in flight over all of `threads` threads together.
    #[must_use]
    pub fn in_flight(self, threads: usize) -> usize {
        self.window(threads) * threads
    }

    /// Returns the largest number of commits in flight for each of `threads` threads; at least one.
    #[must_use]
    pub fn window(self, threads: usize) -> usize {
        match self {
            Self::Blocking => 1,
            Self::Pipelined { in_flight } => (in_flight / threads.max(1)).max(1),
        }
    }
}

/// A set of cells (workload × number of threads × method of waiting for commits), each run several times.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Workloads with their sizes.
    pub workloads: Vec<Workload>,
    /// Numbers of client threads.
    pub threads: Vec<usize>,
    /// Numbers of commits in flight for pipelined cells, on engines that can pipeline, for workloads that
    /// write.
    pub in_flight: Vec<usize>,
    /// Runs blocking cells.
    pub blocking: bool,
    /// Measured time of each run; loads run to their end.
    pub measured: Duration,
    /// Warm-up time before the measured time.
    pub warm_up: Duration,
    /// Number of runs per cell; the report shows the median.
    pub runs: usize,
    /// Cache size of every engine, in bytes.
    pub cache_bytes: u64,
    /// Cache size for the larger-than-cache workload, in bytes.
    pub small_cache_bytes: u64,
    /// Seed of the first run; each further run adds one.
    pub seed: u64,
    /// Directory of the stores, created if missing. Stores are removed at the end.
    pub dir: PathBuf,
    /// Keeps the stores at the end.
    pub keep: bool,
    /// Commit of the measured source code, for the report.
    pub revision: Option<String>,
}

impl Plan {
    /// Returns a plan for one short run without workloads, with stores in `dir`.
    #[must_use]
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self {
            workloads: Vec::new(),
            threads: vec![1],
            in_flight: Vec::new(),
            blocking: true,
            measured: Duration::from_secs(1),
            warm_up: Duration::ZERO,
            runs: 1,
            cache_bytes: 1 << 30,
            small_cache_bytes: 64 << 20,
            seed: 1,
            dir: dir.into(),
            keep: false,
            revision: None,
        }
    }

    /// Returns the cache size for a workload, in bytes.
    #[must_use]
    pub fn cache_for(&self, workload: &Workload) -> u64 {
        match workload.family() {
            Family::LargerThanCache => self.small_cache_bytes,
            _ => self.cache_bytes,
        }
    }

    /// Returns the numbers of threads for a workload. For scans and loads, numbers above the number of cores
    /// are left out, except the smallest requested one: the work of scans grows with the threads, and loads
    /// wait for nothing.
    pub(crate) fn threads_for(&self, workload: &Workload, cores: usize) -> Vec<usize> {
        let bounded = workload.scans_all() || workload.is_load();
        let most = self.threads.iter().copied().min().unwrap_or(1).max(cores);
        self.threads.iter().map(|&t| t.max(1)).filter(|&t| !bounded || t <= most).collect()
    }

    /// Returns the methods of waiting for commits for a workload.
    pub(crate) fn commits(&self, workload: &Workload) -> Vec<Commit> {
        let pipelined = self.in_flight.iter().filter(|_| workload.writes());
        // A workload without writes has nothing to pipeline, so it is always run once as blocking.
        let blocking = (self.blocking || !workload.writes()).then_some(Commit::Blocking);
        blocking.into_iter().chain(pipelined.map(|&in_flight| Commit::Pipelined { in_flight })).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commits_in_flight_are_divided_among_the_threads() {
        let pipelined = Commit::Pipelined { in_flight: 64 };
        assert_eq!((pipelined.window(2), pipelined.in_flight(2)), (32, 64));
        assert_eq!((pipelined.window(100), pipelined.in_flight(100)), (1, 100));
        assert_eq!((Commit::Blocking.window(8), Commit::Blocking.in_flight(8)), (1, 8));
    }

    #[test]
    fn scans_and_loads_are_not_run_by_more_threads_than_cores_unless_asked_for_nothing_less() {
        let threads = |name: &str, threads: &[usize]| {
            let plan = Plan { threads: threads.to_vec(), ..Plan::in_dir("x") };
            plan.threads_for(&name.parse().unwrap(), 2)
        };
        assert_eq!(threads("scan", &[1, 2, 8, 64]), [1, 2]);
        assert_eq!(threads("load", &[8, 64]), [8]);
        assert_eq!(threads("read", &[1, 2, 8, 64]), [1, 2, 8, 64]);
    }

    #[test]
    fn only_workloads_that_write_are_pipelined() {
        let plan = Plan { in_flight: vec![64, 512], ..Plan::in_dir("x") };
        assert_eq!(plan.commits(&"u1".parse().unwrap()).len(), 3);
        assert_eq!(plan.commits(&"read".parse().unwrap()), [Commit::Blocking]);
    }
}
