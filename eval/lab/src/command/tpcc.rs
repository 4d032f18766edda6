//! `tpcc`: runs TPC-C on the store.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use azekura::LogProtocol;
use azekura_lab::Progress;
use azekura_lab::tpcc::{Plan, run};
use azekura_workload::tpcc::{Mix, Scale};
use clap::{Args, ValueEnum};

use super::recorded::Recorded;
use super::{CACHE_BYTES, StoreArguments, write_line};
use azekura_cli::Outcome;
use azekura_cli::shared::{Scratch, seconds};

const EXAMPLES: &str = "\
Examples:
  azekura-lab tpcc --warehouses 8 --threads 8 --seconds 30
  azekura-lab tpcc --warehouses 8 --threads 2 --mix new-order --in-flight 512 --json
  azekura-lab tpcc --warehouses 8 --threads 8 --log serial
  azekura-lab tpcc --threads 8 --trace tpcc.trace    # then: azekura trace report tpcc.trace
  azekura-lab tpcc --warehouses 4 --dir /data/x --keep     # run again: it goes on

All five transactions, in the specification's mix and on its number of rows,
serializable and durable; threads do not think between transactions, so the
rate is no audited tpmC. new-order is the variant of the P-WAL paper: New-Order
alone, without rollbacks. After the run the twelve consistency conditions of the
specification are checked, and three of the indexes and stocks.

A warehouse is about 100 MB. A store that --keep, or a kill, left in --dir is
recovered, checked and gone on with.";

/// Run TPC-C and check its consistency conditions
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Tpcc {
    /// Number of warehouses
    #[arg(
        long,
        value_name = "W",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    warehouses: u32,

    /// Number of client threads, at most 4096 [default: number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    threads: Option<u16>,

    /// Measured seconds
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    seconds: Duration,

    /// Warm-up seconds, not measured
    #[arg(long, value_name = "S", default_value = "0.2", value_parser = seconds)]
    warm_up: Duration,

    /// Mix of transactions
    #[arg(long, value_name = "MIX", value_enum, default_value_t = MixArgument::Full)]
    mix: MixArgument,

    /// Keep this number of commits in flight over all threads, instead of waiting for each commit
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    in_flight: Option<u32>,

    /// Divide the specification's numbers of items, stocks, customers and orders by this, for a quick try
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=100)
    )]
    scale: u32,

    /// Log protocol: p-wal, serial (after Aether), or epoch:MS (after Silo; default 40 ms)
    #[arg(long, value_name = "LOG", default_value_t)]
    log: LogProtocol,

    /// Number of log streams [default: one per 16 processors, at least one]
    #[arg(long, value_name = "N")]
    wal_streams: Option<usize>,

    /// Seed of the rows and the inputs
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Directory for the store, which is removed afterward [default: a temporary one]
    #[arg(long)]
    dir: Option<PathBuf>,

    /// Keep the store in --dir
    #[arg(long, requires = "dir")]
    keep: bool,

    /// Skip the check of the consistency conditions
    #[arg(long)]
    no_check: bool,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    recorded: Recorded,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MixArgument {
    /// All five transactions: 45, 43, 4, 4 and 4 percent
    Full,
    /// New-Order only, never rolled back
    NewOrder,
}

impl Tpcc {
    pub(super) fn run(&self, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        self.recorded.run("tpcc".to_owned(), || self.run_somewhere(store, out))
    }

    fn run_somewhere(&self, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        if let Some(dir) = &self.dir {
            return self.run_in(dir, store, out);
        }
        let scratch = Scratch::new("azekura-lab-")?;
        self.run_in(scratch.path(), store, out)
    }

    fn run_in(&self, dir: &Path, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        let progress = Progress::stderr();
        let report = run(&self.plan(dir, store), &progress, &mut |line| progress.line(line));
        progress.finish();
        let report = report?;
        if self.json {
            write_line(out, &report.to_json())?;
        } else {
            out.write_all(report.render().as_bytes())?;
        }
        Ok(if report.is_consistent() { Outcome::Well } else { Outcome::Failed })
    }

    fn plan(&self, dir: &Path, store: &StoreArguments) -> Plan {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        Plan {
            scale: Scale::reduced(self.warehouses, self.scale),
            mix: match self.mix {
                MixArgument::Full => Mix::Full,
                MixArgument::NewOrder => Mix::NewOrder,
            },
            threads: self.threads.map_or_else(cores, usize::from),
            in_flight: self.in_flight.map(|in_flight| in_flight as usize),
            measured: self.seconds,
            warm_up: self.warm_up,
            seed: self.seed,
            cache_bytes: store.cache.unwrap_or(usize::try_from(CACHE_BYTES).unwrap_or(usize::MAX)),
            page_bytes: store.page_size,
            log: self.log,
            wal_streams: self.wal_streams,
            keep: self.keep,
            check: !self.no_check,
            ..Plan::in_dir(dir)
        }
    }
}
