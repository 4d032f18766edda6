//! Options and output of the labs that look for forbidden outcomes.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Error, Result};
use azekura_lab::Progress;
use azekura_lab::lab::judged::Judged;
use clap::Args;

use azekura_cli::Outcome;

/// Seed and output format of a lab that looks for forbidden outcomes.
#[derive(Args, Debug)]
pub(super) struct Judging {
    /// Seed of the first trial; each later trial adds 1
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

impl Judging {
    /// Runs the lab, passing the path of this executable, and writes its report.
    pub(super) fn run<R: Judged, E: Into<Error>>(
        &self,
        out: &mut dyn Write,
        lab: impl FnOnce(PathBuf, &Progress) -> Result<R, E>,
    ) -> Result<Outcome> {
        let program = std::env::current_exe().context("find this program")?;
        let progress = Progress::stderr();
        let report = lab(program, &progress).map_err(Into::into)?;
        progress.finish();
        let text = if self.json { report.to_json() + "\n" } else { report.to_text() };
        out.write_all(text.as_bytes())?;
        Ok(if report.is_well() { Outcome::Well } else { Outcome::Failed })
    }
}
