//! `kv`: runs key-value workloads.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use azekura::LogProtocol;
use azekura_lab::adapter::azekura::AzekuraEngine;
use azekura_lab::adapter::resp::RespEngine;
use azekura_lab::{Engine, Plan, Progress, compare, table};
use azekura_workload::{Family, Workload};
use clap::Args;

use azekura_cli::Outcome;
use azekura_cli::shared::{Scratch, seconds, size};

use super::recorded::Recorded;
use super::{CACHE_BYTES, StoreArguments, write_line};

const EXAMPLES: &str = "\
Examples:
  azekura-lab kv --workload u1 --threads 8 --seconds 5
  azekura-lab kv --workload u1 --threads 2 --in-flight 512 --json
  azekura-lab kv --workload u1 --threads 8 --log p-wal,serial,epoch:10
  azekura-lab kv --workload u10 --threads 1,2,4,8,16,64 --log p-wal,serial --blocking --in-flight 512
  azekura-lab kv --workload u1,read,ycsb-a --threads 1,2,8 --dir /data/x
  azekura-lab kv --workload load --bulk --runs 5
  azekura-lab kv --workload u1,rl --encrypted --runs 5
  azekura-lab kv --workload ycsb-a,ycsb-f --threads 50 --records 100000 --resp 127.0.0.1:6379,127.0.0.1:6380
  azekura-lab kv --workload ycsb-a,ycsb-f --resp 127.0.0.1:7001+127.0.0.1:7002    a cluster, by two nodes

Workloads:
  u1, u10     durable transactions of one and of ten random updates
  read, scan  random point reads; whole-table scans; a million records
  load        filling an empty table in key order, a million records
  ycsb-a … f  the YCSB mixes, one operation a transaction
  rl          random reads of data four times the size of the cache

Every answer is checked. --json prints one object per run, with the settings
and a hash of them: equal hashes may be compared. The cache is 1G here unless
--cache is given.";

/// Run key-value workloads
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Kv {
    /// Workloads: u1, u10, read, scan, load, ycsb-a to ycsb-f, rl
    #[arg(long = "workload", value_name = "NAME", required = true, value_delimiter = ',')]
    workloads: Vec<Workload>,

    /// Numbers of client threads, each at most 4096 [default: number of cores]
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..=4096)
    )]
    threads: Vec<u16>,

    /// Measured seconds of each run; loads and scans always run to their end
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    seconds: Duration,

    /// Warm-up seconds of each run, not measured
    #[arg(long, value_name = "S", default_value = "0.2", value_parser = seconds)]
    warm_up: Duration,

    /// Keep this number of commits in flight over all threads, instead of waiting for each commit
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    in_flight: Vec<u32>,

    /// Besides the runs with --in-flight, measure runs that wait for each commit
    #[arg(long, requires = "in_flight")]
    blocking: bool,

    /// Number of runs of each combination; the report shows the median
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,

    /// Number of records [default: depends on the workload]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    records: Option<u64>,

    /// Bytes of each value
    #[arg(long, value_name = "SIZE", default_value = "100", value_parser = size)]
    value_bytes: u64,

    /// Cache size for the rl workload, which has four times as much data
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    small_cache: u64,

    /// Log protocols to compare: p-wal, serial (after Aether), epoch:MS (after Silo; default 40 ms)
    #[arg(long, value_name = "LOG", value_delimiter = ',', default_value = "p-wal")]
    log: Vec<LogProtocol>,

    /// Number of log streams [default: one per 16 processors, at least one]
    #[arg(long, value_name = "N")]
    wal_streams: Option<usize>,

    /// Besides ordinary transactions, measure loading with the bulk loader, in one thread
    #[arg(long, conflicts_with_all = ["threads", "resp", "in_flight"])]
    bulk: bool,

    /// Besides the plain store, measure an encrypted one
    #[arg(long, conflicts_with_all = ["resp", "log", "bulk"])]
    encrypted: bool,

    /// Seed of the random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Instead of a store in this process, measure servers that speak RESP: `azekura serve`, redis-server.
    /// Name several nodes of a cluster as ADDRESS+ADDRESS. The servers must be empty, and are emptied
    /// afterward. YCSB-E and scans from the middle need `AZ.RANGE`
    #[arg(
        long,
        value_name = "ADDRESS",
        value_delimiter = ',', value_parser = gateways,
        conflicts_with = "in_flight"
    )]
    resp: Vec<Gateways>,

    /// Directory for the stores, which are removed afterward [default: a temporary one]. Its disk determines
    /// the speed of durable commits
    #[arg(long)]
    dir: Option<PathBuf>,

    /// Keep the stores in --dir
    #[arg(long, requires = "dir")]
    keep: bool,

    /// Print one JSON object per run instead of a table
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    recorded: Recorded,
}

/// Addresses of a server, or of several nodes of a cluster.
#[derive(Clone, Debug)]
struct Gateways(Vec<SocketAddr>);

/// Parses addresses that are separated by `+`.
fn gateways(text: &str) -> Result<Gateways, String> {
    let address =
        |text: &str| text.parse().map_err(|_| format!("{text:?} is no address such as 127.0.0.1:6379"));
    text.split('+').map(address).collect::<Result<_, _>>().map(Gateways)
}

impl Kv {
    fn label(&self) -> String {
        self.workloads.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    pub(super) fn run(&self, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        self.recorded.run(self.label(), || self.run_somewhere(store, out))
    }

    fn run_somewhere(&self, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        if let Some(dir) = &self.dir {
            return self.run_in(dir, store, out);
        }
        let scratch = Scratch::new("azekura-lab-")?;
        self.run_in(scratch.path(), store, out)
    }

    fn run_in(&self, dir: &Path, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        let engines = self.engines(store)?;
        let progress = Progress::stderr();
        let mut written = Ok(());
        let outcome = compare(&engines, &self.plan(dir, store), &progress, &mut |report| {
            // Each report is written at once, so that an interrupted run keeps its results.
            if self.json && written.is_ok() {
                written = write_line(out, &report.to_json());
            }
        })?;
        progress.finish();
        written?;
        if !self.json {
            out.write_all(table::render(&outcome.reports).as_bytes())?;
        }
        Ok(if outcome.failures.is_empty() { Outcome::Well } else { Outcome::Failed })
    }

    fn engines(&self, store: &StoreArguments) -> Result<Vec<Box<dyn Engine>>> {
        if self.resp.is_empty() {
            let ours = self.log.iter().flat_map(|&log| {
                let engine = self.engine(store, log);
                let bulk = self.bulk.then(|| Box::new(engine.clone().bulk()) as Box<dyn Engine>);
                let encrypted =
                    self.encrypted.then(|| Box::new(engine.clone().encrypted()) as Box<dyn Engine>);
                [Some(Box::new(engine) as Box<dyn Engine>), bulk, encrypted]
            });
            return Ok(ours.flatten().collect());
        }
        let mut engines: Vec<Box<dyn Engine>> = Vec::new();
        for Gateways(gateways) in &self.resp {
            let address = gateways[0];
            let connect = |tag: &str| {
                RespEngine::connect_by(gateways, tag).with_context(|| format!("no server at {address}"))
            };
            let engine = connect("")?;
            let is_namesake = engines.iter().any(|other| other.name() == engine.name());
            // The port distinguishes several servers of one kind.
            engines.push(Box::new(if is_namesake {
                connect(&format!("-{}", address.port()))?
            } else {
                engine
            }));
        }
        Ok(engines)
    }

    fn engine(&self, store: &StoreArguments, log: LogProtocol) -> AzekuraEngine {
        let mut engine = AzekuraEngine::default().log(log);
        if let Some(bytes) = store.page_size {
            engine = engine.page_bytes(bytes);
        }
        if let Some(streams) = self.wal_streams {
            engine = engine.wal_streams(streams);
        }
        engine
    }

    fn plan(&self, dir: &Path, store: &StoreArguments) -> Plan {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<usize> = self.threads.iter().map(|&threads| threads.into()).collect();
        Plan {
            workloads: self.workloads.iter().map(|workload| self.sized(workload)).collect(),
            threads: match (self.bulk, threads.is_empty()) {
                (true, _) => vec![1],
                (false, true) => vec![cores()],
                (false, false) => threads,
            },
            in_flight: self.in_flight.iter().map(|&in_flight| in_flight as usize).collect(),
            blocking: self.blocking || self.in_flight.is_empty(),
            measured: self.seconds,
            warm_up: self.warm_up,
            runs: self.runs.into(),
            cache_bytes: store.cache.map_or(CACHE_BYTES, |bytes| bytes as u64),
            small_cache_bytes: self.small_cache,
            seed: self.seed,
            keep: self.keep,
            ..Plan::in_dir(dir)
        }
    }

    fn sized(&self, workload: &Workload) -> Workload {
        let value_bytes = usize::try_from(self.value_bytes).unwrap_or(usize::MAX);
        let workload = workload.clone().with_value_bytes(value_bytes);
        match (self.records, workload.family()) {
            (Some(records), _) => workload.with_records(records),
            (None, Family::LargerThanCache) => workload.four_times_the_cache(self.small_cache),
            (None, _) => workload,
        }
    }
}
