//! `demo`: kills a running store in rounds and audits it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::arguments::{StoreArguments, path, seconds};
use crate::demo::child::{self, Orders};
use crate::demo::{self, Settings};
use crate::scratch::Scratch;
use crate::{Outcome, stdout_error};

const EXAMPLES: &str = "\
Examples:
  azekura demo
  azekura demo --dir bank.db      keep the store, to look at it:
    azekura tables bank.db --count
    azekura scan bank.db transfers --reverse --limit 5
  azekura demo --seed 7           repeat the kills and transfers of seed 7

Exit code 1 if anything was lost or is wrong; the store is then kept.";

/// Run transfers of a bank on all cores, kill the process again and again, and audit the store
///
/// A child process transfers money between accounts in many threads. For each transfer that the store
/// acknowledged as durable it sends the number to its parent. The parent kills the child at random moments,
/// recovers the store, and verifies: every acknowledged transfer exists, every other transfer exists
/// completely or not at all, and the sum of all accounts is unchanged. Takes less than a minute.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Demo {
    /// Directory of the store, which is kept [default: a temporary directory, which is removed]
    #[arg(long, value_parser = path())]
    dir: Option<PathBuf>,

    /// Number of accounts
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u32).range(2..=10_000_000)
    )]
    accounts: u32,

    /// Number of kills
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u16).range(1..=10_000)
    )]
    rounds: u16,

    /// Longest time from the start of a child to its kill, in seconds
    #[arg(long, value_name = "S", default_value = "4", value_parser = seconds)]
    seconds_per_round: Duration,

    /// Threads of the child [default: four per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    threads: Option<u16>,

    /// Asynchronous commits in flight in every second thread
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    in_flight: u16,

    /// Seed of the random numbers [default: a new one]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Record operations and waits of the child into this file. Each round overwrites it; a recording that
    /// the kill cut short can be analyzed too
    #[arg(long, value_name = "FILE", value_parser = path())]
    trace: Option<PathBuf>,
}

impl Demo {
    pub(crate) fn run(&self, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        let settings = self.settings(store);
        if let Some(path) = &self.dir {
            refuse_unless_empty(path)?;
            let well = demo::run(&settings, path, out)?;
            let shown = path.display();
            let printed = writeln!(
                out,
                "\nThe store is in {shown}; look at it with `azekura scan {shown} transfers --limit 5`."
            );
            if well {
                printed?;
            }
            return Ok(outcome(well));
        }
        let scratch = Scratch::new("azekura-demo-").context("cannot make a directory for the store")?;
        let ended = demo::run(&settings, scratch.path(), out);
        let is_kept = match &ended {
            Ok(well) => !well,
            Err(error) => stdout_error(error).is_none(), // The name of the store cannot be printed.
        };
        if is_kept {
            // A failed write is not reported: the exit code shows the loss.
            let _ = writeln!(out, "\nThe store is kept in {}.", scratch.keep().display());
        }
        ended.map(outcome)
    }

    fn settings(&self, store: &StoreArguments) -> Settings {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Settings {
            store: store.clone(),
            accounts: self.accounts,
            rounds: self.rounds,
            round: self.seconds_per_round,
            threads: self.threads.unwrap_or_else(|| u16::try_from(cores * 4).unwrap_or(u16::MAX).min(256)),
            in_flight: self.in_flight.into(),
            trace: self.trace.clone(),
            seed: self.seed.unwrap_or_else(|| rand::random::<u32>().into()),
        }
    }
}

const fn outcome(well: bool) -> Outcome {
    if well { Outcome::Well } else { Outcome::Failed }
}

fn refuse_unless_empty(path: &Path) -> Result<()> {
    let entries = match path.read_dir() {
        Ok(mut entries) => entries.next(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    if entries.is_some() {
        bail!("{} is not empty; the demo starts with a new store", path.display());
    }
    Ok(())
}

/// The child process of the demo; not for users
#[derive(Args, Debug)]
pub(crate) struct DemoChild {
    path: PathBuf,
    #[arg(long)]
    run: u16,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    accounts: u32,
    #[arg(long)]
    threads: u16,
    #[arg(long)]
    in_flight: usize,
    #[arg(long)]
    trace: Option<PathBuf>,
}

impl DemoChild {
    pub(crate) fn run(&self, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        let &Self { run, seed, accounts, threads, in_flight, .. } = self;
        if let Some(file) = &self.trace {
            let options = azekura_trace::Options {
                file: Some(file.clone()),
                label: format!("demo, round {run}"),
                ..Default::default()
            };
            // Never stopped: the kill ends the recording, and the file is valid up to its last whole block.
            azekura_trace::start(options)
                .with_context(|| format!("cannot record into {}", file.display()))?;
        }
        child::run(store, &self.path, Orders { run, seed, accounts, threads, in_flight }, out)?;
        Ok(Outcome::Well)
    }
}
