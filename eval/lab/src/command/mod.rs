//! The subcommands of `azekura-lab`, one module each. The modules only parse options and print reports.

mod bottleneck;
mod far_goals;
mod far_kills;
mod far_memory;
mod far_soak;
mod fat_btree;
mod judged;
mod kv;
mod mariadb;
mod nb_gclock;
mod p_wal;
mod recorded;
mod sim;
mod snapshots;
mod tpcc;

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use azekura_cli::Outcome;
use azekura_cli::shared::{cache_bytes, page_bytes};
use clap::{Args, Parser, Subcommand};

/// Default page cache of `kv` and `tpcc`: the size in the published comparisons.
const CACHE_BYTES: u64 = 1 << 30;

/// Evaluations of the Azekura store: the five papers, workloads, simulated machines
#[derive(Debug, Parser)]
#[command(name = "azekura-lab", version, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    store: StoreArguments,

    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 success; 1 a check failed; 2 wrong usage.
Results go to stdout, errors and progress to stderr.
`azekura-lab COMMAND --help` shows examples.";

/// Options of the store under a workload.
#[derive(Args, Clone, Copy, Debug)]
struct StoreArguments {
    /// Page cache, such as 64M or 2G [default: 1G]
    #[arg(
        long,
        global = true,
        value_name = "SIZE",
        value_parser = cache_bytes,
        help_heading = "Store options"
    )]
    cache: Option<usize>,

    /// Page size: 4K, 8K (default), 16K, 32K or 64K
    #[arg(
        long,
        global = true,
        value_name = "SIZE",
        value_parser = page_bytes,
        help_heading = "Store options"
    )]
    page_size: Option<usize>,
}

#[derive(Debug, Subcommand)]
enum Command {
    NbGclock(nb_gclock::NbGclock),
    PWal(p_wal::PWal),
    FarMemory(far_memory::FarMemory),
    FarGoals(far_goals::FarGoals),
    FarKills(far_kills::FarKills),
    FarSoak(far_soak::FarSoak),
    FatBtree(fat_btree::FatBtree),
    Bottleneck(bottleneck::Bottleneck),
    Mariadb(mariadb::Mariadb),
    Kv(kv::Kv),
    Tpcc(tpcc::Tpcc),
    Sim(sim::Sim),
    Snapshots(snapshots::Snapshots),
}

impl Arguments {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        match &self.command {
            Command::NbGclock(lab) => lab.run(out),
            Command::PWal(lab) => lab.run(out),
            Command::FarMemory(lab) => lab.run(out),
            Command::FarGoals(lab) => lab.run(out),
            Command::FarKills(lab) => lab.run(out),
            Command::FarSoak(lab) => lab.run(out),
            Command::FatBtree(lab) => lab.run(out),
            Command::Bottleneck(lab) => lab.run(out),
            Command::Mariadb(lab) => lab.run(out),
            Command::Kv(kv) => kv.run(&self.store, out),
            Command::Tpcc(tpcc) => tpcc.run(&self.store, out),
            Command::Sim(sim) => sim.run(out),
            Command::Snapshots(lab) => lab.run(out),
        }
    }
}

/// Writes a line and flushes, so that an interrupted run keeps the results so far.
fn write_line(out: &mut dyn Write, line: &str) -> io::Result<()> {
    writeln!(out, "{line}")?;
    out.flush()
}

/// Output format and file of an evaluation's report.
#[derive(Args, Debug)]
struct Output {
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,

    /// Write charts and tables to this page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// A report in its output formats: functions that produce each.
struct Forms<'f> {
    text: &'f dyn Fn() -> String,
    json: &'f dyn Fn() -> Result<String>,
    /// Charts and tables; `None` if the report has no charts.
    html: Option<&'f dyn Fn() -> String>,
}

impl Output {
    /// Writes the HTML page if it was requested, then the JSON object or the tables.
    fn deliver(&self, out: &mut dyn Write, forms: &Forms<'_>) -> Result<()> {
        if let (Some(file), Some(html)) = (&self.html, forms.html) {
            std::fs::write(file, html()).with_context(|| format!("write {}", file.display()))?;
        }
        let shown = if self.json { (forms.json)()? + "\n" } else { (forms.text)() };
        Ok(out.write_all(shown.as_bytes())?)
    }

    /// Does the same as [`Self::deliver`] for a report that has all formats and cannot fail.
    fn deliver_all(
        &self,
        out: &mut dyn Write,
        text: impl Fn() -> String,
        json: impl Fn() -> String,
        html: impl Fn() -> String,
    ) -> Result<Outcome> {
        self.deliver(out, &Forms { text: &text, json: &|| Ok(json()), html: Some(&html) })?;
        Ok(Outcome::Well)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }
}
