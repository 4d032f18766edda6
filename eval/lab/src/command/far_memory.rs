//! `lab far-memory`: compares replacement policies for far memory.

use std::io::Write;
use std::num::NonZeroUsize;

use anyhow::Result;
use azekura_lab::lab::far_memory::live::Live;
use azekura_lab::lab::far_memory::{Kernel, Lab, Mechanism, Policy};
use azekura_lab::{Json, Progress};
use clap::Args;

use super::{Forms, Output};
use azekura_cli::Outcome;

const EXAMPLES: &str = "\
Examples:
  azekura-lab far-memory --quick
  azekura-lab far-memory --html far-memory.html
  azekura-lab far-memory --kernel cg.w,mg.w --local 50 --policy simple,u-nru-s:100,adaptive
  azekura-lab far-memory --kernel mg.a --page 1048576 --touches 100000000
  azekura-lab far-memory --real --kernel mg.w --local 50 --mechanism sigsegv
  azekura-lab far-memory --json > far-memory.json

Programs run once on a memory that notes which pages they touch; every policy
then sees the same touches. Counts are exact: the same at each run. Times are
virtual, by the paper's costs. With --real everything is measured, and each
program's own verification must pass.";

/// Compare replacement policies for far memory: the far-memory paper's evaluation
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct FarMemory {
    /// Use small programs, which take seconds instead of minutes
    #[arg(long)]
    quick: bool,

    #[command(flatten)]
    output: Output,

    /// Programs with their size, such as cg.w [default: all, in size w, or s with --quick]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    kernel: Vec<Kernel>,

    /// Policies, such as u-nru-s:50; the others are compared with Simple [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    policy: Vec<Policy>,

    /// Local memory in percent of the program's memory [default: 100,75,50,25]
    #[arg(
        long,
        value_name = "PERCENT",
        value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100)
    )]
    local: Vec<u32>,

    /// Run the programs on real far memory, with a memory server on this machine, instead of a replay
    #[arg(long)]
    real: bool,

    /// With --real: mechanism that detects accesses to pages [default: the best one that this machine and
    /// user allow]
    #[arg(long, value_name = "NAME", requires = "real")]
    mechanism: Option<Mechanism>,

    /// With --real: prefetch pages, which the paper's system does not do
    #[arg(long, requires = "real")]
    prefetch: bool,

    /// Bytes of a page, a power of two [default: 4096; with --real 65536, with --quick --real 16384]
    #[arg(long, value_name = "BYTES", value_parser = page_bytes)]
    page: Option<usize>,

    /// Largest number of page accesses recorded of each program, at 8 bytes each; later ones are dropped and
    /// reported as dropped [default: 16777216]
    #[arg(long, value_name = "N", conflicts_with = "real")]
    touches: Option<NonZeroUsize>,

    /// Seed of the policies that make random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl FarMemory {
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        let progress = Progress::stderr();
        let report = self.lab().run(&progress)?;
        progress.finish();
        self.output.deliver(
            out,
            &Forms {
                text: &|| report.to_text(),
                json: &|| Ok(report.to_json()),
                html: Some(&|| report.to_html()),
            },
        )?;
        Ok(Outcome::Well)
    }

    fn lab(&self) -> Lab {
        let mut lab = if self.quick { Lab::quick() } else { Lab::full() };
        if !self.kernel.is_empty() {
            lab.kernels.clone_from(&self.kernel);
        }
        if !self.policy.is_empty() {
            lab.policies.clone_from(&self.policy);
        }
        if !self.local.is_empty() {
            lab.local.clone_from(&self.local);
        }
        if self.real {
            lab.live = Some(Live { mechanism: self.mechanism.unwrap_or_default(), prefetch: self.prefetch });
            lab.page_bytes = if self.quick { 16 << 10 } else { 64 << 10 };
        }
        lab.page_bytes = self.page.unwrap_or(lab.page_bytes);
        lab.most_touches = self.touches.map_or(lab.most_touches, NonZeroUsize::get);
        lab.seed = self.seed;
        lab
    }
}

/// Parses a page size that is valid for far memory and for the recorder.
fn page_bytes(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(bytes) if bytes.is_power_of_two() && (4096..=2 << 20).contains(&bytes) => Ok(bytes),
        _ => Err(format!("{text:?} is no power of two from 4096 to 2097152")),
    }
}
