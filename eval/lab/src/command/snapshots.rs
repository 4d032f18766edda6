//! `lab snapshots`: the costs of snapshots, each with a control measurement.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use azekura_lab::lab::snapshots::Lab;
use azekura_lab::{Json, Progress};
use clap::Args;

use azekura_cli::Outcome;
use azekura_cli::shared::{Scratch, seconds};

const EXAMPLES: &str = "\
Examples:
  azekura-lab snapshots --quick
  azekura-lab snapshots --runs 5 --json > snapshots.json

Each figure is measured in turn with its control: the same work without
snapshots, or the same readers on another store, which take as much of the
processors. Ratios are of medians. Other engines beside ours: azekura-compare
--workloads read,scan,ycsb-e --engines azekura,azekura-snapshot,lmdb.
Exit code 1 if a reader saw a wrong sum.";

/// Measure the cost of snapshots for writers and readers, with control measurements
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Snapshots {
    /// Take seconds instead of a quarter of an hour; the results are rough
    #[arg(long)]
    quick: bool,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,

    /// Measured seconds of each rate [default: 1]
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<Duration>,

    /// Measurements of each rate; the report shows the median [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,

    /// Total number of scans that add up balances, over all logs and numbers of readers [default: 1000000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    scans: Option<u64>,

    /// Directory for the stores [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Snapshots {
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        let parent = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        let scratch = Scratch::new_in("azekura-lab-", parent).context("make a directory for the stores")?;
        let mut lab = if self.quick { Lab::quick(scratch.path()) } else { Lab::full(scratch.path()) };
        lab.time = self.seconds.unwrap_or(lab.time);
        lab.runs = self.runs.map_or(lab.runs, usize::from);
        lab.sums = self.scans.unwrap_or(lab.sums);
        let progress = Progress::stderr();
        let report = lab.run(&progress)?;
        progress.finish();
        let text = if self.json { report.to_json() + "\n" } else { report.to_text() };
        out.write_all(text.as_bytes())?;
        Ok(if report.wrong_sums() == 0 { Outcome::Well } else { Outcome::Failed })
    }
}
