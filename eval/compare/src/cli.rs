//! The command line, and the plan of the run.

use anyhow::{Result, bail};
use azekura_lab::{Engine, Plan};
use azekura_workload::{Family, Workload};
use clap::builder::RangedU64ValueParser;
use std::path::PathBuf;
use std::time::Duration;

/// Runs Azekura's benchmark workloads over other embedded stores, interleaved, and compares the rates.
#[derive(Debug, clap::Parser)]
#[command(version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Workloads: u1, u10, read, scan, scan-back, short-scan, load, load-random, ycsb-a to ycsb-f, rl
    #[arg(long, value_delimiter = ',', default_value = "u1,u10,read,scan,load,ycsb-a,rl")]
    workloads: Vec<Workload>,
    /// Numbers of client threads, each at most 4096
    #[arg(long, value_delimiter = ',', value_parser = threads::<usize>(), default_value = "1,2,8,64")]
    threads: Vec<usize>,
    /// Engines, or `all`
    #[arg(long, value_delimiter = ',', default_value = "all")]
    pub(crate) engines: Vec<String>,
    /// Commits in flight over all threads, for engines that can commit asynchronously; in addition to the
    /// blocking runs
    #[arg(long, value_delimiter = ',')]
    in_flight: Vec<usize>,
    /// Measured seconds of each run
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Seconds of warm-up before each run
    #[arg(long, default_value_t = 0.2)]
    warm_up: f64,
    /// Runs of each cell; the median is reported
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Directory for the stores; they are removed afterward
    #[arg(long, default_value = "azekura-lab-data")]
    dir: PathBuf,
    /// Keep the stores
    #[arg(long)]
    keep: bool,
    /// Number of records, instead of each workload's default
    #[arg(long)]
    records: Option<u64>,
    /// Bytes of each value
    #[arg(long, default_value_t = 100)]
    value_bytes: usize,
    /// Cache of each engine, in MiB
    #[arg(long, default_value_t = 1024)]
    cache_mib: u64,
    /// Cache for the rl workload, in MiB; the data is four times as large
    #[arg(long, default_value_t = 64)]
    small_cache_mib: u64,
    /// Seed of the first run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The measured commit, for the reports
    #[arg(long)]
    revision: Option<String>,
    /// Write one JSON object per cell and engine to this file
    #[arg(long)]
    pub(crate) json: Option<PathBuf>,
    /// Write charts and tables to this HTML page
    #[arg(long)]
    pub(crate) html: Option<PathBuf>,
    /// Measure nothing: show the reports in this JSON file
    #[arg(long)]
    pub(crate) from: Option<PathBuf>,
    /// Measure nothing: list the engines
    #[arg(long)]
    pub(crate) list: bool,
}

/// Largest number of client threads. Each thread has four memory maps, and Linux permits a process 65,530
/// (`vm.max_map_count`). A thread that cannot map its signal stack aborts the process.
const MAX_THREADS: u64 = 4096;

/// Returns a parser of a number of client threads.
pub(crate) fn threads<T: TryFrom<u64>>() -> RangedU64ValueParser<T> {
    RangedU64ValueParser::new().range(1..=MAX_THREADS)
}

/// Other comparisons.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Compare page caches and general caches: Azekura's with moka, quick_cache and foyer
    #[cfg(feature = "caches")]
    Cache(crate::cache::Cache),
    /// Compare engines at their defaults with data larger than the memory, limited by a control group
    BeyondCache(crate::beyond::BeyondCache),
    /// Compare many small stores in one process: time, memory, disk, descriptors, threads, idle costs
    Many(crate::many::Many),
    /// Measure the published table: all rows and engines; rows in which Azekura is slower come first
    Table(crate::table::Table),
    /// Compare TPC-C: its tables are in one ordered keyspace of each engine; its conditions are checked at
    /// the end
    Tpcc(crate::tpcc::Tpcc),
}

impl Arguments {
    /// Returns the plan of the run.
    pub(crate) fn plan(&self) -> Result<Plan> {
        let seconds = |name, value: f64| match Duration::try_from_secs_f64(value) {
            Ok(time) => Ok(time),
            Err(error) => bail!("--{name} {value}: {error}"),
        };
        Ok(Plan {
            workloads: self.workloads.iter().map(|workload| self.sized(workload)).collect(),
            threads: self.threads.clone(),
            in_flight: self.in_flight.clone(),
            blocking: true,
            measured: seconds("seconds", self.seconds)?,
            warm_up: seconds("warm-up", self.warm_up)?,
            runs: self.runs,
            cache_bytes: self.cache_mib << 20,
            small_cache_bytes: self.small_cache_mib << 20,
            seed: self.seed,
            dir: self.dir.clone(),
            keep: self.keep,
            revision: self.revision.clone(),
        })
    }

    fn sized(&self, workload: &Workload) -> Workload {
        let workload = workload.clone().with_value_bytes(self.value_bytes);
        match (self.records, workload.family()) {
            (Some(records), _) => workload.with_records(records),
            (None, Family::LargerThanCache) => workload.four_times_the_cache(self.small_cache_mib << 20),
            (None, _) => workload,
        }
    }
}

/// Returns the engines with these names, in the order of `all`.
pub(crate) fn choose(mut all: Vec<Box<dyn Engine>>, names: &[String]) -> Result<Vec<Box<dyn Engine>>> {
    if names.iter().any(|name| name == "all") {
        return Ok(all);
    }
    let known: Vec<String> = all.iter().map(|engine| engine.name().to_owned()).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
        bail!("unknown engine {unknown:?}; built in are {}", known.join(", "));
    }
    all.retain(|engine| names.iter().any(|name| name == engine.name()));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn a_number_of_threads_that_no_process_can_have_is_refused() {
        let parsed = |words: &str| Arguments::try_parse_from(words.split_whitespace());
        for command in ["", "tpcc", "beyond-cache"] {
            assert!(parsed(&format!("azekura-compare {command} --threads 4096")).is_ok(), "{command}");
            for wrong in ["0", "4097", "100000", "99999999999999999999"] {
                let error = parsed(&format!("azekura-compare {command} --threads {wrong}")).unwrap_err();
                assert_eq!(error.kind(), clap::error::ErrorKind::ValueValidation, "{command}: {error}");
            }
        }
        assert!(parsed("azekura-compare --threads 1,100000").is_err());
    }
}
