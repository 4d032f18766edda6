//! `lab far-goals`: measures far memory against its goals.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use azekura_lab::lab::far_goals::{Lab, work};
use azekura_lab::lab::far_memory::Policy;
use azekura_lab::{Json, Progress};
use clap::Args;

use azekura_cli::Outcome;

const EXAMPLES: &str = "\
Examples:
  azekura-lab far-goals --quick
  azekura-lab far-goals
  azekura-lab far-goals --policy swap-in-history --json > far-goals.json
  azekura-lab far-goals --markdown                # as in docs/figures.md

Each goal is measured in one run beside its rival; a line on standard error
tells each part that is done, and how long it took. Swap on zram, in a memory
cgroup with the same limit, needs root and an unused /dev/zram0; it is turned
off again, and where it cannot be had the rows say why.";

/// Measure far memory against its goals, with swap on zram and bare TCP as references
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct FarGoals {
    /// Take tens of seconds instead of minutes; the results are too rough to be quoted
    #[arg(long)]
    quick: bool,

    /// Replacement policy of far memory
    #[arg(long, value_name = "NAME", default_value_t)]
    policy: Policy,

    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Print one JSON object instead
    #[arg(long)]
    json: bool,

    /// Print a table in Markdown instead
    #[arg(long, conflicts_with = "json")]
    markdown: bool,

    /// Task of the process that runs on swap; set by the lab
    #[arg(long, value_name = "TASK", hide = true, requires = "group")]
    worker: Option<String>,

    /// File of the memory cgroup that the process joins; set by the lab
    #[arg(long, value_name = "FILE", hide = true)]
    group: Option<PathBuf>,
}

impl FarGoals {
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        if let (Some(task), Some(group)) = (&self.worker, &self.group) {
            writeln!(out, "{}", work(task, group)?)?;
            return Ok(Outcome::Well);
        }
        let program = std::env::current_exe().context("find this program")?;
        let progress = Progress::stderr();
        let report =
            Lab { program, quick: self.quick, policy: self.policy, seed: self.seed }.run(&progress)?;
        progress.finish();
        let text = match () {
            () if self.json => report.to_json() + "\n",
            () if self.markdown => report.to_markdown(),
            () => report.to_text(),
        };
        out.write_all(text.as_bytes())?;
        Ok(Outcome::Well)
    }
}
