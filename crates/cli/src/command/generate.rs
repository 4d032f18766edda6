//! `completions` and `man`: print shell completions, and write manual pages.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::Outcome;
use crate::arguments::Arguments;

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  azekura completions bash > /etc/bash_completion.d/azekura
  azekura completions zsh > ~/.zfunc/_azekura
  azekura completions fish > ~/.config/fish/completions/azekura.fish";

/// Print completions of the command line for a shell
#[derive(Args, Debug)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        // The generator panics if a write fails, for example at a closed pipe.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Arguments::command(), "azekura", &mut script);
        out.write_all(&script)?;
        Ok(Outcome::Well)
    }
}

const MAN_EXAMPLES: &str = "\
Examples:
  azekura man /usr/local/share/man/man1
  azekura man . && man ./azekura-load.1";

/// Write manual pages of all commands into a directory
#[derive(Args, Debug)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct Man {
    /// Directory for the pages, which must exist
    #[arg(value_name = "DIR")]
    to: PathBuf,
}

impl Man {
    pub(crate) fn run(&self) -> Result<Outcome> {
        let written: io::Result<()> = clap_mangen::generate_to(Arguments::command(), &self.to);
        written.with_context(|| format!("cannot write manual pages into {}", self.to.display()))?;
        Ok(Outcome::Well)
    }
}
