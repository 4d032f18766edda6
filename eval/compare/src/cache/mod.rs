//! `cache`: compares page caches and general caches, row by row of the goals for the buffer pool.
//!
//! For a row of rates, the result of each cache is the median and the spread of its runs, which are
//! interleaved. Hit ratios are exact: one thread, one trace. Each row ends with its goals: the required value
//! (*must*), the desired value (*moonshot*), and the measured one.
//!
//! | module | content |
//! |---|---|
//! | `bench` | the rows |
//! | `row` | one row, its goals, the result |
//! | `peers` | the caches that are compared |
//! | `stalled` | a thread that is stopped anywhere |
//! | `disk` | the device, raw and through the pool |
//! | `memory` | memory of a cache without its pages |

mod bench;
mod disk;
mod memory;
mod peers;
mod row;
#[cfg(target_os = "linux")]
mod stalled;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use azekura_lab::Progress;
use azekura_lab::machine::Machine;
use serde::Serialize;

use self::row::Row;

/// Compare page caches and general caches: Azekura's with moka, quick_cache and foyer
#[derive(Debug, clap::Args)]
pub(crate) struct Cache {
    /// Print one JSON object instead of tables, or write it to FILE in addition to the tables
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Measured seconds of each rate
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Measurements of each rate; the median is reported
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// References of the traces for hit ratios; the first third warms the cache
    #[arg(long, default_value_t = 6_000_000)]
    references: usize,
    /// Times that a thread is stopped for row a4, for each of Azekura's pools; a tenth of that for each other
    /// cache
    #[arg(long, default_value_t = 1000)]
    stops: usize,
    /// MiB of the file that row c4 writes, and reads with direct I/O
    #[arg(long, default_value_t = 1024)]
    disk_mib: u64,
    /// Only these rows, such as a1,b1
    #[arg(long, value_delimiter = ',')]
    rows: Vec<String>,
    /// Directory for the files to read: a sparse file of 1 GiB, and the file of c4
    #[arg(long, default_value = ".")]
    dir: PathBuf,
}

/// The results as JSON.
#[derive(Serialize)]
struct Report {
    machine: Machine,
    rows: Vec<Row>,
}

impl Cache {
    /// Runs the comparison; returns `true` if it ran.
    pub(crate) fn run(&self) -> Result<bool> {
        let time = Duration::try_from_secs_f64(self.seconds).context("--seconds")?;
        anyhow::ensure!(self.disk_mib >= 1, "--disk-mib 0: at least 1");
        let bench = bench::Bench {
            time,
            runs: self.runs.max(1),
            references: self.references.max(64 * 3),
            stops: self.stops.max(1),
            disk_pages: self.disk_mib * 128,
            dir: &self.dir,
        };
        let is_printed = self.json.as_deref() == Some(Path::new("-"));
        let progress = Progress::stderr();
        let rows = bench.run(&self.rows, &mut |row| {
            if !is_printed {
                print!("{}", text(row));
            }
            progress.line(&format!("{}: {}", row.row, row.what));
        })?;
        progress.finish();
        let report = Report { machine: Machine::here(&self.dir), rows };
        let json = serde_json::to_string_pretty(&report)?;
        match &self.json {
            Some(_) if is_printed => println!("{json}"),
            Some(file) => {
                std::fs::write(file, json).with_context(|| format!("write {}", file.display()))?;
            }
            None => {}
        }
        if !is_printed {
            print!("{}", summary(&report.rows));
        }
        Ok(true)
    }
}

/// Formats a Markdown table of all goals.
fn summary(rows: &[Row]) -> String {
    let bound = |bound: Option<f64>| bound.map_or_else(|| "–".into(), |bound| format!("{bound}"));
    let mut out = String::from(
        "| row | what | measure | must | moonshot | measured | |\n|---|---|---|---|---|---|---|\n",
    );
    for (row, goal) in rows.iter().flat_map(|row| row.goals.iter().map(move |goal| (row, goal))) {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {:.2} | {}{} |",
            row.row,
            row.what,
            goal.measure,
            bound(goal.must),
            bound(goal.moonshot),
            goal.measured,
            goal.reached.text(),
            if row.is_disturbed { " (disturbed)" } else { "" }
        );
    }
    out
}

fn text(row: &Row) -> String {
    let mut out = format!("{}: {} ({})\n", row.row, row.what, row.unit);
    for result in &row.results {
        let (cache, value, spread) = (result.cache, result.value, result.spread * 100.0);
        let _ = writeln!(out, "  {cache:32} {value:>12.2}  spread {spread:>3.0} %");
    }
    for goal in &row.goals {
        let than = if goal.is_upper_bound { "at most" } else { "at least" };
        let bound =
            |name: &str, bound: Option<f64>| bound.map_or_else(String::new, |b| format!(", {name} {b}"));
        let _ = writeln!(
            out,
            "  {}: {:.2} ({than}{}{}): {}",
            goal.measure,
            goal.measured,
            bound("must", goal.must),
            bound("moonshot", goal.moonshot),
            goal.reached.text()
        );
    }
    if row.is_disturbed {
        out.push_str("  DISTURBED: others used the processors; measure again on a quiet machine\n");
    }
    out.push('\n');
    out
}
