//! `lab far-kills`: programs on far memory while their memory servers fail.

use std::io::Write;

use anyhow::Result;
use azekura_lab::lab::far_kills::{Guard, Lab, Wrong, worker};
use clap::Args;

use super::judged::Judging;
use azekura_cli::Outcome;
use azekura_cli::shared::end_with;

const EXAMPLES: &str = "\
Examples:
  azekura-lab far-kills
  azekura-lab far-kills --trials 9
  azekura-lab far-kills --trials 600 --server killed
  azekura-lab far-kills --trials 400 --server killed --guard copies,spill
  azekura-lab far-kills --trials 1 --seed 137 --server stalled --guard spill
  azekura-lab far-kills --json > far-kills.json

A trial is a program on far memory whose server is killed, stopped or begins to
lie at a random moment. With a second copy or a spill file it must go on, and
every byte must be right; without, it must be stopped with a message. Exit
code 1 if one trial ends otherwise. For a soak see azekura-lab far-soak.";

/// Kill, stop and corrupt memory servers at random moments while programs use them
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct FarKills {
    /// Number of trials; they alternate between the protections and the server faults
    #[arg(long, value_name = "N", default_value_t = 200)]
    trials: u64,

    /// Protection of the pages against lost servers
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',', default_value = "copies,spill,none",
        value_parser = guard
    )]
    guard: Vec<Guard>,

    /// Fault of a memory server
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',', default_value = "killed,stalled,lies",
        value_parser = wrong
    )]
    server: Vec<Wrong>,

    #[command(flatten)]
    judging: Judging,

    /// Run the program of one trial; set by the lab
    #[arg(long, value_name = "GUARD", hide = true, value_parser = guard, requires = "servers")]
    worker: Option<Guard>,

    /// Memory servers of that program
    #[arg(long, value_name = "ADDR", hide = true, value_delimiter = ',')]
    servers: Vec<String>,

    /// Process of the lab that started that program
    #[arg(long, value_name = "PID", hide = true)]
    with_parent: Option<u32>,
}

impl FarKills {
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        if let Some(pid) = self.with_parent {
            end_with(pid)?;
        }
        if let Some(guard) = self.worker {
            let (seed, wrongs) = (self.judging.seed, &self.server);
            worker::work(seed, guard, wrongs, &self.servers, &std::env::temp_dir())?;
            return Ok(Outcome::Well);
        }
        let (guards, wrongs) = (self.guard.clone(), self.server.clone());
        let (trials, seed) = (self.trials, self.judging.seed);
        self.judging.run(out, |program, progress| Lab { program, trials, seed, guards, wrongs }.run(progress))
    }
}

fn guard(text: &str) -> Result<Guard, String> {
    let found = Guard::ALL.into_iter().find(|guard| guard.name() == text);
    found.ok_or_else(|| format!("{text:?} is none of copies, spill, none"))
}

fn wrong(text: &str) -> Result<Wrong, String> {
    let found = Wrong::ALL.into_iter().find(|wrong| wrong.name() == text);
    found.ok_or_else(|| format!("{text:?} is none of killed, stalled, lies"))
}
