//! `cache`: page caches and general caches side by side, row by row of the goals that the buffer pool is built for.
//!
//! A row that is a rate gives each cache's median, the spread over the runs and the ratio to the best rival; the runs of a row are interleaved.
//! Hit ratios are exact: one thread, one trace. *Least* and *aim* are ratios to (or differences from) the best rival of the same run.

mod peers;
mod rows;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use azekura_bench::Progress;
use azekura_bench::machine::Machine;
use serde::Serialize;

use self::rows::Row;

/// Compare page caches and general caches: ours with moka, quick_cache and foyer
#[derive(Debug, clap::Args)]
pub(crate) struct Cache {
    /// Write one JSON object to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Measured seconds of each rate
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Measurements of each rate; the median counts
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// References of the traces for hit ratios; the first third warms
    #[arg(long, default_value_t = 6_000_000)]
    references: usize,
    /// Only these rows, such as a1,b1
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// Directory for a file to read, of 1 GiB of holes
    #[arg(long, default_value = ".")]
    dir: PathBuf,
}

/// All of it, as JSON.
#[derive(Serialize)]
struct Report {
    machine: Machine,
    rows: Vec<Row>,
}

impl Cache {
    /// Whether it ran.
    pub(crate) fn run(&self) -> Result<bool> {
        let time = Duration::try_from_secs_f64(self.seconds).context("--seconds")?;
        let bench =
            rows::Bench { time, runs: self.runs.max(1), references: self.references.max(3), dir: &self.dir };
        let progress = Progress::stderr();
        let rows = bench.run(&self.rows, &mut |row| progress.line(&text(row)))?;
        progress.finish();
        let report = Report { machine: Machine::here(&self.dir), rows };
        if let Some(file) = &self.json {
            std::fs::write(file, serde_json::to_string_pretty(&report)?)
                .with_context(|| format!("write {}", file.display()))?;
        }
        Ok(true)
    }
}

fn text(row: &Row) -> String {
    let mut out = format!("{}: {} ({})\n", row.goal, row.what, row.unit);
    for result in &row.results {
        let _ = writeln!(
            out,
            "  {:32} {:>12.2}  spread {:>3.0} %  {}",
            result.cache,
            result.value,
            result.spread * 100.0,
            result.of_best_rival.map_or_else(String::new, |ratio| format!("{ratio:.2} of the best rival"))
        );
    }
    let _ = writeln!(
        out,
        "  least {:.2}: {}; aim {:.2}: {}",
        row.least,
        word(row.has_least),
        row.aim,
        word(row.has_aim)
    );
    out
}

const fn word(reached: bool) -> &'static str {
    if reached { "reached" } else { "NOT reached" }
}
