//! `lab mariadb`: records an unmodified server from outside.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use azekura_lab::Progress;
use azekura_lab::lab::mariadb::{self, Settings};
use clap::Args;

use azekura_cli::Outcome;
use azekura_cli::shared::seconds;

const EXAMPLES: &str = "\
Examples:
  azekura-lab mariadb --quick
  azekura-lab mariadb --seconds 15 --runs 10 -o mariadb.trace
  azekura-lab mariadb --install              apt-get install mariadb-server first, if it is not there
  azekura trace report mariadb.trace --format html -o mariadb.html

A server of its own is started in a temporary directory, without network; nothing that is installed is \
changed.";

/// Record an unmodified MariaDB server, and compare its top locks with its performance schema
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Mariadb {
    /// Client connections
    #[arg(
        long,
        value_name = "N",
        default_value_t = 16,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    connections: u16,

    /// Rows of each of the four tables
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u32).range(1000..=10_000_000)
    )]
    rows: u32,

    /// Seconds of each interval, with recording and without
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    seconds: Duration,

    /// Number of pairs of intervals, which is the number of recordings
    #[arg(
        long,
        visible_alias = "runs",
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pairs: u16,

    /// Lengthen each hold of the top mutex by this number of microseconds in a last interval. The row that
    /// rises in the performance schema is that mutex. 0 skips the interval
    #[arg(
        long,
        value_name = "US",
        default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(0..=100_000)
    )]
    plant: u32,

    /// Use small tables and one short pair of intervals
    #[arg(long)]
    quick: bool,

    /// Install MariaDB with apt-get if it is missing (needs root)
    #[arg(long)]
    install: bool,

    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,

    /// File for the last recording
    #[arg(short, long, value_name = "FILE", default_value = "mariadb.trace")]
    output: PathBuf,
}

impl Mariadb {
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        if self.install && mariadb::find_programs().is_err() {
            install()?;
        }
        let (rows, stretch, pairs) = match self.quick {
            true => (self.rows.min(5_000), self.seconds.min(Duration::from_secs(2)), 1),
            false => (self.rows, self.seconds, self.pairs.into()),
        };
        let connections = self.connections.into();
        let plant = (self.plant > 0).then(|| Duration::from_micros(self.plant.into()));
        let settings = Settings { connections, rows, stretch, pairs, plant, output: self.output.clone() };
        let progress = Progress::stderr();
        let answer = mariadb::run(&settings, &progress)?;
        progress.finish();
        if self.json {
            serde_json::to_writer_pretty(&mut *out, &answer)?;
            writeln!(out)?;
        } else {
            out.write_all(mariadb::text(&answer).as_bytes())?;
        }
        Ok(Outcome::Well)
    }
}

fn install() -> Result<()> {
    let mut apt = Command::new("apt-get");
    apt.args(["install", "-y", "--no-install-recommends", "mariadb-server"])
        .env("DEBIAN_FRONTEND", "noninteractive");
    let status = apt.status().context("cannot run apt-get")?;
    if !status.success() {
        bail!("apt-get install mariadb-server ended with {status}");
    }
    Ok(())
}
