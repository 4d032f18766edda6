//! `sim`: the shipped code on simulated machines.

use std::io::Write;

use anyhow::{Context, Result};
use azekura_bench::Progress;
use azekura_bench::lab::{nb_gclock, p_wal};
use azekura_bench::scale;
use azekura_sim::Profile;
use clap::{Args, Subcommand, ValueEnum};

use crate::Outcome;

const EXAMPLES: &str = "\
Examples:
  azekura sim profiles
  azekura sim scale --workload cache --cores 1,2,4,8,16,32,64,128
  azekura sim scale --workload log --profile x86-128 --cores 1,4,16 --json

One seed gives one answer, to the last byte. The program must have been built with
the feature: cargo run --release --features sim -- sim scale ...";

/// Run the shipped code on a simulated machine: does it scale, and what stops it
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Sim {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Scale(Scale),
    /// Print the machines there are, and where each of their constants comes from
    Profiles,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// Visits of pages
    Cache,
    /// U-1 on the log alone, over a modelled device
    Log,
    /// Point reads of the whole store
    Reads,
    /// U-1 on the whole store: transactions of one update
    U1,
    /// TPC-C on the whole store
    Tpcc,
}

/// Print throughput by processors, and at the most of them the lines that threads waited for
#[derive(Args, Debug)]
struct Scale {
    /// What the threads do
    #[arg(long, value_enum, default_value = "cache")]
    workload: Workload,

    /// The machine
    #[arg(long, value_name = "NAME", default_value = "x86-2s", value_parser = profile)]
    profile: Box<Profile>,

    /// Numbers of processors
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8,16,32,64", value_parser = clap::value_parser!(u16).range(1..=256))]
    cores: Vec<u16>,

    /// Of all that is drawn
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,

    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

fn profile(name: &str) -> Result<Box<Profile>, String> {
    let all = Profile::shipped();
    let names: Vec<String> = all.iter().map(|profile| profile.name.clone()).collect();
    let found = all.into_iter().find(|profile| profile.name == name);
    found.map(Box::new).ok_or_else(|| format!("no machine is called {name}; there are {}", names.join(", ")))
}

impl Sim {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        match &self.what {
            What::Scale(scale) => scale.run(out)?,
            What::Profiles => writeln!(out, "{}", serde_json::to_string_pretty(&Profile::shipped())?)?,
        }
        Ok(Outcome::Well)
    }
}

impl Scale {
    fn run(&self, out: &mut dyn Write) -> Result<()> {
        let progress = Progress::stderr();
        let (profile, cores) =
            (self.profile.as_ref().clone(), self.cores.iter().map(|&n| n.into()).collect());
        let name = profile.name.clone();
        let failed = || format!("simulate {name}");
        let text = match self.workload {
            Workload::Cache => {
                let mut lab = nb_gclock::simulate::Simulated::on(profile, cores);
                lab.seed = self.seed;
                let report = lab.run(&progress).with_context(failed)?;
                if self.json { report.to_json() + "\n" } else { report.to_text() }
            }
            Workload::Log => {
                let lab = p_wal::simulate::Simulated::new(1);
                let lab = p_wal::simulate::Simulated { profile, workers: cores, seed: self.seed, ..lab };
                let report = lab.run(&progress).with_context(failed)?;
                if self.json { report.to_json() + "\n" } else { report.to_text() }
            }
            Workload::Reads => self.store(scale::Work::Reads, &progress)?,
            Workload::U1 => self.store(scale::Work::U1, &progress)?,
            Workload::Tpcc => self.store(scale::Work::Tpcc, &progress)?,
        };
        progress.finish();
        out.write_all(text.as_bytes())?;
        Ok(())
    }

    fn store(&self, work: scale::Work, progress: &Progress) -> Result<String> {
        let (profile, cores) =
            (self.profile.as_ref().clone(), self.cores.iter().map(|&n| n.into()).collect());
        let scale = scale::Scale { seed: self.seed, ..scale::Scale::new(profile, work, cores) };
        let (report, speeds) =
            scale.run(progress).with_context(|| format!("simulate {}", self.profile.name))?;
        // Real time: not part of the output, which is the same each time.
        for (point, speed) in report.points.iter().zip(speeds) {
            progress.line(&format!(
                "{} processors: {:.2} million operations simulated per minute",
                point.processors,
                speed / 1e6
            ));
        }
        Ok(if self.json { report.to_json() + "\n" } else { report.to_text() })
    }
}
