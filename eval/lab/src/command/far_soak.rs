//! `azekura-lab far-soak`: a long run on far memory while its servers are restarted.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use azekura_lab::lab::far_soak::Lab;
use clap::Args;

use super::judged::Judging;
use azekura_cli::Outcome;

const EXAMPLES: &str = "\
Examples:
  azekura-azekura-lab far-soak --minutes 30
  azekura-azekura-lab far-soak --minutes 0.2
  azekura-azekura-lab far-soak --minutes 1 --seed 17 --json

Programs read, write and give back far memory beside a plain copy of it, with
two copies of each page and with a spill file in turn, while memory servers are
killed and started anew, stopped for a moment, and cut off. Exit code 1 at a
wrong byte, or if a thread waits for ever.";

/// Use far memory for a long time while its servers are restarted at random
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct FarSoak {
    /// Duration in minutes
    #[arg(long, value_name = "N", default_value = "30", value_parser = minutes)]
    minutes: Duration,

    #[command(flatten)]
    judging: Judging,
}

impl FarSoak {
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        let seed = self.judging.seed;
        self.judging.run(out, |program, progress| Lab { program, time: self.minutes, seed }.run(progress))
    }
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of minutes"))?;
    if !(0.01..=10_000.0).contains(&minutes) {
        return Err(format!("{minutes} minutes: 0.01 to 10000 can be had"));
    }
    Ok(Duration::from_secs_f64(minutes * 60.0))
}
