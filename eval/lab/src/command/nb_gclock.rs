//! `lab nb-gclock`: the page cache compared with other replacement policies.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use azekura_lab::lab::nb_gclock::Lab;
use azekura_lab::lab::nb_gclock::simulate::Simulated;
use azekura_lab::{Json, Progress};
use clap::Args;

use super::Output;
use azekura_cli::Outcome;
use azekura_cli::shared::seconds;

const EXAMPLES: &str = "\
Examples:
  azekura-lab nb-gclock --quick
  azekura-lab nb-gclock --html nb-gclock.html
  azekura-lab nb-gclock --simulate 64
  azekura-lab nb-gclock --json --threads 1,2 --seconds 1 > nb-gclock.json

Hit ratios and counted costs are exact: the same at each run. Rates are of this machine; beyond
its cores, more threads show waiting, not scaling. A file of 1 GiB of holes is
read from --dir, out of the system's cache; it is removed at once.";

/// Compare the page cache with LRU, 2Q, GCLOCK and S3-FIFO: Nb-GCLOCK's evaluation
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct NbGclock {
    /// Take seconds instead of up to ten minutes; the results are rough
    #[arg(long)]
    quick: bool,

    #[command(flatten)]
    output: Output,

    /// Numbers of threads [default: 1 to 64]
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    threads: Vec<u16>,

    /// Measured seconds of each rate [default: 0.3]
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<Duration>,

    /// Measurements of each rate; the report shows the median [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,

    /// Simulate 1, 2, 4, … up to N processors of the paper's machine instead (needs a build with the feature
    /// sim)
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=256),
        conflicts_with_all = ["quick", "threads", "seconds", "runs", "dir"]
    )]
    simulate: Option<u16>,

    /// Computation of a simulated thread between two page visits, in nanoseconds [default: an estimate of the
    /// time that the paper's threads need to draw a page number]
    #[arg(long, value_name = "NS", requires = "simulate")]
    draw_ns: Option<u64>,

    /// Virtual time of a window of a simulation, in microseconds: the warm-up lasts until the rates of
    /// consecutive windows agree [default: 3200 divided by the processors, at least 100]
    #[arg(
        long,
        value_name = "US",
        requires = "simulate",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    window_us: Option<u32>,

    /// Directory for the file with the pages [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl NbGclock {
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        let progress = Progress::stderr();
        if let Some(processors) = self.simulate {
            let mut lab = Simulated::new(processors.into());
            lab.draw_ns = self.draw_ns.unwrap_or(lab.draw_ns);
            lab.rule.window = self.window_us.map(|us| Duration::from_micros(us.into()));
            let report = lab.run(&progress)?;
            progress.finish();
            return self.output.deliver_all(
                out,
                || report.to_text(),
                || report.to_json(),
                || report.to_html(),
            );
        }
        let lab = self.lab();
        let report =
            lab.run(&progress).with_context(|| format!("make a file to read in {}", lab.dir.display()))?;
        progress.finish();
        self.output.deliver_all(out, || report.to_text(), || report.to_json(), || report.to_html())
    }

    fn lab(&self) -> Lab {
        let dir = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        let mut lab = if self.quick { Lab::quick(dir) } else { Lab::full(dir) };
        if !self.threads.is_empty() {
            lab.threads = self.threads.iter().map(|&threads| threads.into()).collect();
        }
        lab.time = self.seconds.unwrap_or(lab.time);
        lab.runs = self.runs.map_or(lab.runs, usize::from);
        lab
    }
}
