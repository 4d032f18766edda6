//! `tpcc`: TPC-C over every engine with isolated transactions, interleaved in one run.

use crate::cli::{self, choose};
use crate::peers;
use anyhow::{Context, Result, bail};
use azekura_lab::Progress;
use azekura_lab::tpcc::standing::render;
use azekura_lab::tpcc::{Contest, contest};
use azekura_workload::tpcc::{Mix, Scale};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Options of the comparison.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    azekura-compare tpcc                                       a minute or two, a tenth of the rows\n  \
    azekura-compare tpcc --engines azekura,sqlite,wiredtiger\n  \
    azekura-compare tpcc --scale 1 --threads 1,2,4,8,16,64 --in-flight 64 --seconds 1 --json tpcc.jsonl\n\n\
    Prints a table for each number of threads, best engine first: transactions per second, New-Orders per\n\
    minute, median and 99th percentile of all latencies. Each store's consistency conditions are checked at\n\
    the end; an engine that violates one has no figures. Exit code 1: an engine was left out.")]
pub(crate) struct Tpcc {
    /// Warehouses
    #[arg(long, default_value_t = 1)]
    warehouses: u32,
    /// Divides the specification's numbers of rows: 1 is full scale
    #[arg(long, default_value_t = 10)]
    scale: u32,
    /// Run New-Order transactions only, as in the P-WAL paper
    #[arg(long)]
    new_order: bool,
    /// Numbers of client threads, each at most 4096
    #[arg(long, value_delimiter = ',', value_parser = cli::threads::<usize>(), default_value = "1,8")]
    threads: Vec<usize>,
    /// Commits in flight over all threads, for engines that can commit asynchronously; in addition to the
    /// blocking runs
    #[arg(long, value_delimiter = ',')]
    in_flight: Vec<usize>,
    /// Engines, or `all`; engines without isolated transactions are skipped
    #[arg(long, value_delimiter = ',', default_value = "all")]
    engines: Vec<String>,
    /// Measured seconds of each run
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Seconds of warm-up before each run
    #[arg(long, default_value_t = 0.2)]
    warm_up: f64,
    /// Runs of each cell; the median is reported
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Cache of each engine, in MiB
    #[arg(long, default_value_t = 1024)]
    cache_mib: u64,
    /// Seed of rows and inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for the stores; they are removed afterward
    #[arg(long, default_value = "azekura-lab-data")]
    dir: PathBuf,
    /// Keep the stores
    #[arg(long)]
    keep: bool,
    /// Write one JSON object per cell and engine to this file
    #[arg(long)]
    json: Option<PathBuf>,
}

impl Tpcc {
    /// Runs the comparison; returns `true` if all engines requested by name were measured and kept the
    /// conditions.
    pub(crate) fn run(&self) -> Result<bool> {
        let mut engines = choose(peers::with_logs(), &self.engines)?;
        if self.engines.iter().any(|name| name == "all") {
            engines.retain(|engine| engine.isolates());
        }
        let contested = self.contest()?;
        let outcome = contest(&engines, &contested, &Progress::stderr(), &mut |_| {})?;
        // A store that violates its conditions has no figures, so the results are written at the end.
        if let Some(path) = &self.json {
            let mut file = File::create(path).with_context(|| format!("create {}", path.display()))?;
            for line in outcome.standings.iter().map(serde_json::to_string) {
                writeln!(file, "{}", line?).with_context(|| format!("write {}", path.display()))?;
            }
        }
        print!("{}", render(&outcome.standings));
        if !outcome.standings.is_empty() {
            println!("\nAll consistency conditions hold on each store in these tables.");
        }
        for failure in &outcome.failures {
            println!("{failure}");
        }
        Ok(outcome.failures.is_empty())
    }

    fn contest(&self) -> Result<Contest> {
        let seconds = |name, value: f64| match Duration::try_from_secs_f64(value) {
            Ok(time) => Ok(time),
            Err(error) => bail!("--{name} {value}: {error}"),
        };
        if self.warehouses == 0 || !(1..=100).contains(&self.scale) {
            bail!("--warehouses is 1 at least, --scale is from 1 to 100");
        }
        Ok(Contest {
            scale: Scale::reduced(self.warehouses, self.scale),
            mix: if self.new_order { Mix::NewOrder } else { Mix::Full },
            threads: self.threads.clone(),
            in_flight: self.in_flight.clone(),
            measured: seconds("seconds", self.seconds)?,
            warm_up: seconds("warm-up", self.warm_up)?,
            runs: self.runs,
            seed: self.seed,
            cache_bytes: self.cache_mib << 20,
            dir: self.dir.clone(),
            keep: self.keep,
        })
    }
}
