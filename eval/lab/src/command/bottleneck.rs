//! `lab bottleneck`: the lock that limits throughput, before the paper's change and after it.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use azekura_lab::Progress;
use azekura_lab::lab::bottleneck::{Settings, page, sliced, slowdowns, study, text};
use azekura_workload::bookstore::{Conformance, Mix, Scale, Think};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{Forms, Output};
use azekura_cli::Outcome;
use azekura_cli::shared::seconds;

const EXAMPLES: &str = "\
Examples:
  azekura-lab bottleneck --quick
  azekura-lab bottleneck --html bottleneck.html --json > bottleneck.json
  azekura-lab bottleneck --slowdown
  azekura-lab bottleneck --slowdown --pairs 20
  azekura-lab bottleneck --simulate 16 --html bottleneck.html
  azekura-lab bottleneck --traces . && azekura trace report before.trace

Exit code 1: the analyzer did not name the expected lock, before the cure or
after it. Runs in memory; some minutes unless --quick.";

/// Run the DBT-1 bookstore with the locks of InnoDB 5.0: find the bottleneck, remove it, find the next one
///
/// Follows T. Horikawa's study by event tracing (2010): tables 2 to 4, figures 3 to 6 and 10 to 13.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Bottleneck {
    /// Run all parts in a few seconds, with few points
    #[arg(long)]
    quick: bool,

    /// Measure Table 4 only: the cost of recording, in alternating intervals of 0.1 s with and without it
    #[arg(long, conflicts_with_all = ["html", "traces"])]
    slowdown: bool,

    /// Blocks of four intervals for each row of Table 4 [default: 150, about seven minutes; 10 with --quick]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..),
        requires = "slowdown",
        conflicts_with = "pairs"
    )]
    blocks: Option<u16>,

    /// Pairs of runs for Table 4, each with a new recording; with --slowdown, replaces the intervals
    /// [default: 20; 2 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pairs: Option<u16>,

    /// Run on a simulated machine like the paper's, with N processors and with N/2 (needs a build with the
    /// feature sim)
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=16),
        conflicts_with = "slowdown"
    )]
    simulate: Option<u16>,

    /// Virtual time of a window of a simulation, in microseconds: the warm-up lasts until the rates of
    /// consecutive windows agree [default: 6000; 4000 with --quick]
    #[arg(
        long,
        value_name = "US",
        requires = "simulate",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    window_us: Option<u32>,

    #[command(flatten)]
    output: Output,

    /// Keep one recording from before the change and one from after it in this directory, for `azekura trace`
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,

    /// The visitors' mix of pages
    #[arg(long, value_enum, default_value_t = MixName::Shopping)]
    mix: MixName,

    /// Follow TPC-W where DBT-1 deviates from it; no verdict then, because the scans of best sellers dominate
    /// the locks
    #[arg(long)]
    tpc_w: bool,

    /// Think time in seconds [default: 0.012, because a page takes microseconds here; the paper's 3.6 suits
    /// MySQL]
    #[arg(long, value_name = "S", value_parser = seconds)]
    think: Option<Duration>,

    /// Draw exponential think times, as DBT-1 does, instead of the paper's constant ones
    #[arg(long)]
    exponential: bool,

    /// Items in the shop
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1_000,
        value_parser = clap::value_parser!(u64).range(10..=10_000_000)
    )]
    items: u64,

    /// Connections; each is a thread of the engine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: Option<u16>,

    /// Seed of the rows and the visitors
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MixName {
    /// Browsing and buying
    Shopping,
    /// Mostly browsing
    Browsing,
    /// Mostly buying
    Ordering,
}

impl Bottleneck {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        let progress = Progress::stderr();
        if self.slowdown {
            return self.slowdown(&progress, out);
        }
        let study = study(&self.settings(), self.traces.as_deref(), &progress)?;
        self.output.deliver(
            out,
            &Forms {
                text: &|| text::render(&study),
                json: &|| Ok(serde_json::to_string_pretty(&study)?),
                html: Some(&|| page::html(&study)),
            },
        )?;
        Ok(if study.is_well() { Outcome::Well } else { Outcome::Failed })
    }

    fn slowdown(&self, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
        if self.pairs.is_some() {
            return self.table(out, &slowdowns(&self.settings(), progress)?, text::slowdowns);
        }
        self.table(out, &sliced(&self.settings(), progress)?, text::sliced)
    }

    fn table<R: Serialize>(
        &self,
        out: &mut dyn Write,
        rows: &[R],
        write: impl Fn(&mut String, &[R]),
    ) -> Result<Outcome> {
        let table = || {
            let mut table = String::new();
            write(&mut table, rows);
            table
        };
        let json = || Ok(serde_json::to_string_pretty(rows)?);
        self.output.deliver(out, &Forms { text: &table, json: &json, html: None })?;
        Ok(Outcome::Well)
    }

    fn settings(&self) -> Settings {
        let mut like = match (self.simulate.map(usize::from), self.quick) {
            (None, false) => Settings::full(),
            (None, true) => Settings::quick(),
            (Some(processors), false) => Settings::simulated(processors),
            (Some(processors), true) => Settings::simulated_quick(processors),
        };
        if let (Some(machine), Some(us)) = (&mut like.machine, self.window_us) {
            machine.rule.window = Some(Duration::from_micros(us.into()));
        }
        let (Think::Constant(usual) | Think::Exponential(usual)) = like.think;
        let think = self.think.unwrap_or(usual);
        Settings {
            scale: Scale::new(self.items, 1),
            mix: match self.mix {
                MixName::Shopping => Mix::Shopping,
                MixName::Browsing => Mix::Browsing,
                MixName::Ordering => Mix::Ordering,
            },
            conformance: if self.tpc_w { Conformance::TpcW } else { Conformance::Kit },
            think: if self.exponential { Think::Exponential(think) } else { Think::Constant(think) },
            connections: self.connections.map_or(like.connections, usize::from),
            seed: self.seed,
            pairs: self.pairs.map_or(like.pairs, usize::from),
            blocks: self.blocks.map_or(like.blocks, usize::from),
            ..like
        }
    }
}
