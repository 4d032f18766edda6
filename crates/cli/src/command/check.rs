//! `check`: verifies a store.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use azekura::CheckReport;
use clap::Args;

use crate::arguments::StoreArguments;
use crate::format::escape::escaped;
use crate::{Outcome, logging, progress, show};

const EXAMPLES: &str = "\
Examples:
  azekura check my.db
  azekura check my.db --json | jq .findings
  azekura check my.db --repair

Reads every page: checksums, order of keys, bounds of subtrees, reachability,
pages lost or used twice. --repair frees pages that are marked as used and
that nothing refers to, unless anything else is wrong; it changes no row.
--repair opens the store for writing: with a log archive, name it by --archive.
Exit code 1 if anything is wrong.";

/// Verify a whole store
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Check {
    /// Directory of the store
    #[arg(value_name = "DB")]
    path: PathBuf,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// Free leaked pages; changes no row
    #[arg(long)]
    repair: bool,
}

impl Check {
    pub(crate) fn run(&self, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        if self.repair {
            logging::start_warnings()?; // as other commands that write to a log archive
        }
        let open = if self.repair { StoreArguments::open_existing } else { StoreArguments::open_to_read };
        let db = open(store, &self.path)?;
        let bar = progress::pages();
        let mut progress = |done, of| {
            bar.set_length(of);
            bar.set_position(done);
        };
        let report = if self.repair { db.repair(&mut progress) } else { db.check(&mut progress) }?;
        bar.finish_and_clear();
        let printed = self.print(&report, out);
        // The reader of stdout may have read enough (`| head`); the exit code still shows the damage.
        if report.is_clean() { printed.map(|()| Outcome::Well) } else { Ok(Outcome::Failed) }
    }

    fn print(&self, report: &CheckReport, out: &mut dyn Write) -> Result<()> {
        if self.json {
            writeln!(out, "{}", serde_json::to_string(report)?)?;
        } else {
            for finding in &report.findings {
                writeln!(out, "page {}: {}", finding.page, finding.what)?;
            }
            for table in &report.tables {
                writeln!(out, "{}: {}", escaped(table.name.as_bytes()), show::counted(table.rows, "row"))?;
            }
            if report.freed_pages > 0 {
                writeln!(out, "freed {}", show::counted(report.freed_pages, "leaked page"))?;
            }
            let verdict = match report.findings.len() {
                0 => "clean".to_owned(),
                findings => format!("DAMAGED: {}", show::counted(findings as u64, "finding")),
            };
            writeln!(out, "{} checked: {verdict}", show::counted(report.pages, "page"))?;
        }
        Ok(())
    }
}
