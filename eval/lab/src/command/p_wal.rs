//! `lab p-wal`: the parallel log compared with other logs, on this machine's device and on modeled ones.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use azekura_lab::lab::p_wal::ground::Choice;
use azekura_lab::lab::p_wal::simulate::Simulated;
use azekura_lab::lab::p_wal::variant::Variant;
use azekura_lab::lab::p_wal::{Lab, Part};
use azekura_lab::{Json, Progress};
use clap::Args;

use super::Output;
use azekura_cli::Outcome;
use azekura_cli::shared::seconds;

const EXAMPLES: &str = "\
Examples:
  azekura-lab p-wal --quick
  azekura-lab p-wal --html p-wal.html
  azekura-lab p-wal --simulate 16
  azekura-lab p-wal --simulate 16 --quick --device iodrive,plp
  azekura-lab p-wal --device iodrive,plp --part log --workers 1,4,16 --json
  azekura-lab p-wal --device real --part device,long --dir /mnt/nvme

Devices: real (the one that --dir is on), or a model over memory: iodrive (the
paper's), iodrive-2x (with twice the bandwidth), cloud, ssd (a consumer's), plp
(with power-loss protection).
Parts: device (Fig. 3), lone (a committer alone), log (Figs 7 to 10, 13), clients
(that wait for each commit), store, tpcc (Figs 11, 12, 14), long (Fig. 15),
restart (section 4). At the end the goals that these parts tell about, and
whether each is reached.
Modeled devices take real time; what the processors do not manage in time
counts too. The real device is written: some GiB in all, removed at the end.";

/// Compare the parallel log with its variants: P-WAL's evaluation
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct PWal {
    /// Take seconds instead of minutes; the results are rough
    #[arg(long)]
    quick: bool,

    #[command(flatten)]
    output: Output,

    /// Devices to measure [default: real and iodrive]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    device: Vec<Choice>,

    /// Parts of the evaluation to run [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    part: Vec<Part>,

    /// Logs to compare: paper, ours, one-stream, stream-each, serial, epoch:MS [default: all but stream-each]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    log: Vec<Variant>,

    /// Numbers of workers, and of clients [default: 1, 2, 4, 8, 16 workers; 1, 2, 4, 8, 16, 64 clients]
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    workers: Vec<u16>,

    /// Transactions that each worker may have in flight [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    in_flight: Option<u16>,

    /// Measured seconds of each rate [default: 0.4]
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<Duration>,

    /// Measurements of each rate; the report shows the median [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,

    /// Simulate 1, 2, 4, … up to N workers on a two-socket machine with modeled devices instead (needs a
    /// build with the feature sim)
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=64),
        conflicts_with_all = ["part", "log", "workers", "in_flight", "seconds", "runs", "dir"]
    )]
    simulate: Option<u16>,

    /// Virtual time of a window of a simulation, in microseconds: the warm-up lasts until the rates of
    /// consecutive windows agree [default: 4000]
    #[arg(
        long,
        value_name = "US",
        requires = "simulate",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    window_us: Option<u32>,

    /// Directory on the real device [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl PWal {
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        let progress = Progress::stderr();
        if let Some(workers) = self.simulate {
            let report = self.simulated(workers.into())?.run(&progress)?;
            progress.finish();
            return self.output.deliver_all(
                out,
                || report.to_text(),
                || report.to_json(),
                || report.to_html(),
            );
        }
        let lab = self.lab();
        let report = lab.run(&progress).with_context(|| format!("measure logs in {}", lab.dir.display()))?;
        progress.finish();
        self.output.deliver_all(out, || report.to_text(), || report.to_json(), || report.to_html())
    }

    fn simulated(&self, workers: usize) -> Result<Simulated> {
        let model = |choice: &Choice| match choice {
            Choice::Model(model) => Ok(*model),
            Choice::Real => bail!("a simulated machine has modeled devices only: leave out --device real"),
        };
        let mut lab =
            if self.quick { Simulated::quick(workers) } else { Simulated::on_parallel_devices(workers) };
        lab.rule.window = self.window_us.map(|us| Duration::from_micros(us.into())).or(lab.rule.window);
        if self.device.is_empty() {
            return Ok(lab);
        }
        Ok(Simulated { devices: self.device.iter().map(model).collect::<Result<_>>()?, ..lab })
    }

    fn lab(&self) -> Lab {
        let dir = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        let mut lab = if self.quick { Lab::quick(dir) } else { Lab::full(dir) };
        if !self.device.is_empty() {
            lab.devices.clone_from(&self.device);
        }
        if !self.part.is_empty() {
            lab.parts.clone_from(&self.part);
        }
        if !self.log.is_empty() {
            lab.variants.clone_from(&self.log);
        }
        if !self.workers.is_empty() {
            lab.workers = self.workers.iter().map(|&workers| workers.into()).collect();
            lab.clients.clone_from(&lab.workers);
        }
        lab.window = self.in_flight.map_or(lab.window, usize::from);
        lab.time = self.seconds.unwrap_or(lab.time);
        lab.runs = self.runs.map_or(lab.runs, usize::from);
        lab
    }
}
