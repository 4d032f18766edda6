//! Shared by the labs that look for forbidden outcomes.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Error, Result};
use azekura_lab::Progress;
use azekura_lab::lab::judged::Judged;
use clap::Args;

use azekura_cli::Outcome;

/// Lots and report of such a lab.
#[derive(Args, Debug)]
pub(super) struct Judging {
    /// Of the first part; the next ones follow
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

impl Judging {
    /// Runs the lab, which is given this program, and delivers its report.
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
