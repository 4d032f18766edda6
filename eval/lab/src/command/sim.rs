//! `sim`: runs the shipped code on simulated machines.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use azekura_lab::calibrate::{Calibrate, Calibration};
use azekura_lab::lab::steady::Rule;
use azekura_lab::lab::{nb_gclock, p_wal};
use azekura_lab::scale;
use azekura_lab::{Json, Progress};
use azekura_sim::{LineName, Profile};
use clap::{Args, Subcommand, ValueEnum};

use azekura_cli::Outcome;

const EXAMPLES: &str = "\
Examples:
  azekura-lab sim profiles
  azekura-lab sim scale --workload cache --cores 1,2,4,8,16,32,64,128
  azekura-lab sim scale --workload log --profile x86-128 --cores 1,4,16 --json
  azekura-lab sim scale --workload tpcc --profile x86-128 --cores 1,8,64
  azekura-lab sim scale --workload u1 --cores 8,64 --without-line next@wal::durable_lsn
  azekura-lab sim calibrate --output here.json && azekura-lab sim scale --profile here.json --cores 1,2
  azekura-lab sim calibrate --judge

One seed gives one answer, to the last byte. The program must have been built with
the feature: cargo run --release --features sim -- sim scale ...";

/// Run the shipped code on a simulated machine to find the limits of its scaling
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Sim {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Scale(Scale),
    Calibrate(CalibrateArgs),
    /// Print the available machines, and the source of each of their constants
    Profiles,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// Visits of pages in the page cache
    Cache,
    /// U-1 on the log only, over a modeled device
    Log,
    /// Point reads of the whole store
    Reads,
    /// Point reads of the whole store, each in its own snapshot
    SnapshotReads,
    /// YCSB-A on the whole store, each read in its own snapshot
    SnapshotMix,
    /// U-1 on the whole store: transactions of one update
    U1,
    /// TPC-C on the whole store
    Tpcc,
    /// New-Order of TPC-C alone, on the whole store with eight warehouses
    NewOrder,
}

/// Print the throughput for each number of processors, and the contended cache lines at the largest one
#[derive(Args, Debug)]
struct Scale {
    /// Work of the threads
    #[arg(long, value_enum, default_value = "cache")]
    workload: Workload,

    /// Machine: a name that `sim profiles` prints, or a file that `sim calibrate` wrote
    #[arg(long, value_name = "NAME|FILE", default_value = "x86-2s", value_parser = machine)]
    profile: Machine,

    /// Numbers of processors
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',', default_value = "1,2,4,8,16,32,64",
        value_parser = clap::value_parser!(u16).range(1..=256)
    )]
    cores: Vec<u16>,

    /// Predict the result without the cost of this cache line, to find the next limit; may be repeated
    ///
    /// Use the name that a report prints, such as next@wal::durable_lsn for "next of wal::durable_lsn".
    /// Without a module, the name means the field of this name in every module. Accesses to the line cost as
    /// much as if only one thread used it.
    #[arg(long, value_name = "FIELD[@MODULE]")]
    without_line: Vec<LineName>,

    /// Seed of all random choices in the first run of each point; the next runs have the next seeds
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,

    /// Virtual time of a window, in microseconds: the warm-up lasts until the rates of consecutive windows
    /// agree [default: depends on the workload and the number of processors; the output says it]
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    window_us: Option<u32>,

    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// Measure this machine, and the deviation of simulations from it
///
/// Alternates small measurements with runs of the page cache, the log and the B+tree on one thread and on
/// two. Then simulates these runs and prints both results. Runs disturbed by other processes are not counted.
/// Measuring ends when the counted runs are close together, after at most 90 seconds. The whole command takes
/// at most three minutes.
#[derive(Args, Debug)]
struct CalibrateArgs {
    /// Write the results to this file, for `sim scale --profile FILE`
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Measure nothing: simulate the profile of this file again, and compare with the real runs in the file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dir", "quick"])]
    measured: Option<PathBuf>,

    /// Measure the device under this directory
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,

    /// Make fewer and shorter runs, whatever their deviation
    #[arg(long)]
    quick: bool,

    /// Exit with 1 if a simulated rate differs by more than 25 % from the real one
    #[arg(long)]
    judge: bool,

    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// The simulated machine.
#[derive(Clone, Debug)]
enum Machine {
    Shipped(Box<Profile>),
    Measured(Box<Calibration>),
}

impl Machine {
    fn profile_for(&self, workload: &str) -> Profile {
        match self {
            Self::Shipped(profile) => profile.as_ref().clone(),
            Self::Measured(calibration) => calibration.profile_for(workload),
        }
    }
}

fn machine(name: &str) -> Result<Machine, String> {
    let all = Profile::shipped();
    let names: Vec<String> = all.iter().map(|profile| profile.name.clone()).collect();
    if let Some(found) = all.into_iter().find(|profile| profile.name == name) {
        return Ok(Machine::Shipped(Box::new(found)));
    }
    let text = std::fs::read_to_string(name).map_err(|error| {
        format!(
            "no machine has this name (there are {}), and it cannot be read as a file: {error}",
            names.join(", ")
        )
    })?;
    let calibration = Calibration::from_json(&text).map_err(|error| format!("no calibration: {error}"))?;
    Ok(Machine::Measured(Box::new(calibration)))
}

fn measured(path: &Path) -> Result<Calibration> {
    let named = || format!("read {}", path.display());
    let text = std::fs::read_to_string(path).with_context(named)?;
    Calibration::from_json(&text).with_context(named)
}

impl CalibrateArgs {
    fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        let progress = Progress::stderr();
        let mut calibrate = Calibrate::new(self.dir.clone());
        if self.quick {
            (calibrate.rounds, calibrate.time) = (3, Duration::from_millis(50));
            calibrate.longest = Duration::ZERO;
        }
        let calibration = match &self.measured {
            Some(path) => calibrate.again(&measured(path)?, &progress),
            None => calibrate.run(&progress),
        };
        let calibration = calibration.context("calibrate")?;
        progress.finish();
        if let Some(path) = &self.output {
            std::fs::write(path, calibration.to_json() + "\n")
                .with_context(|| format!("write {}", path.display()))?;
        }
        let text = if self.json { calibration.to_json() + "\n" } else { calibration.to_text() };
        out.write_all(text.as_bytes())?;
        Ok(if self.judge && !calibration.agrees() { Outcome::Failed } else { Outcome::Well })
    }
}

impl Sim {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        match &self.what {
            What::Scale(scale) => scale.run(out)?,
            What::Calibrate(args) => return args.run(out),
            What::Profiles => writeln!(out, "{}", serde_json::to_string_pretty(&Profile::shipped())?)?,
        }
        Ok(Outcome::Well)
    }
}

impl Scale {
    fn run(&self, out: &mut dyn Write) -> Result<()> {
        let progress = Progress::stderr();
        let workload = match self.workload {
            Workload::Cache => "cache",
            Workload::Log => "log",
            Workload::Reads
            | Workload::SnapshotReads
            | Workload::SnapshotMix
            | Workload::U1
            | Workload::Tpcc
            | Workload::NewOrder => "reads",
        };
        let (profile, cores) =
            (self.profile.profile_for(workload), self.cores.iter().map(|&n| n.into()).collect());
        let name = profile.name.clone();
        let failed = || format!("simulate {name}");
        let (without, rule) = (self.without_line.clone(), self.rule());
        let text = match self.workload {
            Workload::Cache => {
                let lab = nb_gclock::simulate::Simulated::on(profile, cores);
                let lab = nb_gclock::simulate::Simulated { without, rule, ..lab };
                let report = lab.run(&progress).with_context(failed)?;
                if self.json { report.to_json() + "\n" } else { report.to_text() }
            }
            Workload::Log => {
                let lab = p_wal::simulate::Simulated::new(1);
                let lab = p_wal::simulate::Simulated { profile, workers: cores, without, rule, ..lab };
                let report = lab.run(&progress).with_context(failed)?;
                if self.json { report.to_json() + "\n" } else { report.to_text() }
            }
            Workload::Reads => self.store(scale::Work::Reads, profile, cores, &progress)?,
            Workload::SnapshotReads => self.store(scale::Work::SnapshotReads, profile, cores, &progress)?,
            Workload::SnapshotMix => self.store(scale::Work::SnapshotMix, profile, cores, &progress)?,
            Workload::U1 => self.store(scale::Work::U1, profile, cores, &progress)?,
            Workload::Tpcc => self.store(scale::Work::Tpcc, profile, cores, &progress)?,
            Workload::NewOrder => self.store(scale::Work::NewOrder, profile, cores, &progress)?,
        };
        progress.finish();
        out.write_all(text.as_bytes())?;
        Ok(())
    }

    fn rule(&self) -> Rule {
        let window = self.window_us.map(|us| Duration::from_micros(us.into()));
        Rule { window, seed: self.seed, ..Rule::default() }
    }

    fn store(
        &self,
        work: scale::Work,
        profile: Profile,
        cores: Vec<usize>,
        progress: &Progress,
    ) -> Result<String> {
        let failed = format!("simulate {}", profile.name);
        let (without, rule) = (self.without_line.clone(), self.rule());
        let scale = scale::Scale { without, rule, ..scale::Scale::new(profile, work, cores) };
        let (report, speeds) = scale.run(progress).context(failed)?;
        // The real time differs between runs, so it is not part of the output, which is deterministic.
        for (point, speed) in report.points.iter().zip(speeds) {
            progress.line(&format!(
                "{} processors: {:.2} million operations simulated per minute of a processor's time",
                point.processors,
                speed / 1e6
            ));
        }
        Ok(if self.json { report.to_json() + "\n" } else { report.to_text() })
    }
}
