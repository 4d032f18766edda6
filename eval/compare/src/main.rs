//! `azekura-compare`: runs Azekura's workloads over other engines, interleaved in one run.
//!
//! A separate program in a separate workspace, because it links libraries in C and C++ that the store does
//! not need.
//!
//! ```text
//! azekura-compare --workloads u1,read --threads 1,8 --runs 3 --dir DIR --json results.jsonl
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`beyond`] | data larger than the memory |
//! | `cache` | caches alone: Azekura's with moka, quick_cache and foyer |
//! | [`cli`] | the command line |
//! | [`many`] | many small stores in one process |
//! | [`peers`] | the engines |
//! | [`mod@table`] | the published table: every row, every engine |
//! | [`tpcc`] | TPC-C over all engines |

mod beyond;
#[cfg(feature = "caches")]
mod cache;
mod cli;
mod many;
mod peers;
mod table;
mod tpcc;

use anyhow::{Context, Result};
use azekura_lab::{Engine, Progress, Report, compare, plot};
use clap::Parser;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run(&cli::Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the comparison; returns `true` if everything requested was measured.
fn run(arguments: &cli::Arguments) -> Result<bool> {
    match &arguments.command {
        #[cfg(feature = "caches")]
        Some(cli::Command::Cache(cache)) => return cache.run(),
        Some(cli::Command::BeyondCache(beyond)) => return beyond.run(),
        Some(cli::Command::Many(many)) => return many.run(),
        Some(cli::Command::Table(table)) => return table.run(),
        Some(cli::Command::Tpcc(tpcc)) => return tpcc.run(),
        None => {}
    }
    let engines = cli::choose(peers::with_loaders(), &arguments.engines)?;
    if arguments.list {
        engines.iter().for_each(|engine| println!("{}", engine.name()));
        return Ok(true);
    }
    let (reports, complete) = match &arguments.from {
        Some(file) => (read(file)?, true),
        None => measure(arguments, &engines)?,
    };
    print!("{}", azekura_lab::table::render(&reports));
    if let Some(file) = &arguments.html {
        std::fs::write(file, plot::html(&reports)).with_context(|| format!("write {}", file.display()))?;
    }
    Ok(complete)
}

fn measure(arguments: &cli::Arguments, engines: &[Box<dyn Engine>]) -> Result<(Vec<Report>, bool)> {
    let mut json = match &arguments.json {
        Some(file) => Some(File::create(file).with_context(|| format!("create {}", file.display()))?),
        None => None,
    };
    let mut unwritten = None;
    let outcome = compare(engines, &arguments.plan()?, &Progress::stderr(), &mut |report| {
        // Written at once, so that an interrupted run keeps its results.
        if let Some(file) = &mut json
            && let Err(error) = writeln!(file, "{}", report.to_json())
        {
            unwritten.get_or_insert(error);
        }
    })?;
    if let Some(error) = unwritten {
        return Err(error).context("write the JSON file");
    }
    Ok((outcome.reports, outcome.failures.is_empty()))
}

/// Reads the reports of an earlier run.
fn read(file: &Path) -> Result<Vec<Report>> {
    let lines = BufReader::new(File::open(file).with_context(|| format!("open {}", file.display()))?).lines();
    lines
        .enumerate()
        .map(|(at, line)| {
            serde_json::from_str(&line?)
                .with_context(|| format!("{}, line {}: not a report", file.display(), at + 1))
        })
        .collect()
}
