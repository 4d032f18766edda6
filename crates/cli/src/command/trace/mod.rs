//! `trace`: records programs and reports on recordings, with `azekura-record` and `azekura-trace`.

mod record;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use azekura_trace::report::{Format, ReportError, ReportOptions, diff_files, report_file};
use clap::{Args, Subcommand, ValueEnum};

use crate::Outcome;
use record::Record;

const EXAMPLES: &str = "\
Examples:
  azekura-lab kv --workload u1 --threads 8 --trace before.trace
  azekura trace record -o before.trace -- ./server --threads 8
  azekura trace report before.trace
  azekura trace report before.trace --format html -o before.html
  azekura trace diff before.trace after.trace";

/// Record the waits of a program and compute the cost of each
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Trace {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Record(Record),
    /// Report on a recording: operations, their waits, the lock holders, and the gain without each wait
    #[command(after_help = EXAMPLES)]
    Report {
        /// The recording
        file: PathBuf,
        #[command(flatten)]
        options: Options,
    },
    /// Compare two recordings and distinguish differences from noise
    ///
    /// A difference is significant if the slices of time of the two recordings differ: 15 samples of two
    /// slices each, without the first and the last slice, by the rank test of Mann and Whitney at 5 % with
    /// Holm's correction for all rows; 19 of 20 pairs of samples, 17 of 20 from a factor of 4, differ in
    /// the same direction; and the larger value is at least 1.1 times the smaller one. Threads, and other
    /// operations that end in few slices, have their executions as samples, and must differ by a factor of
    /// 1.5. The noise between runs is not known: for small differences, compare several pairs.
    #[command(after_help = EXAMPLES)]
    Diff {
        /// The recording to compare with
        before: PathBuf,
        /// The recording that is compared
        after: PathBuf,
        #[command(flatten)]
        options: Options,
    },
}

#[derive(Args, Debug)]
struct Options {
    /// Format of the report; `diff` writes text or json only
    #[arg(long, value_enum, default_value_t = Style::Text)]
    format: Style,

    /// Operation to report in detail [default: the one with the largest total time]
    #[arg(long, value_name = "NAME")]
    operation: Option<String>,

    /// Executions of that operation per second without recording, to compute the cost of recording
    #[arg(long, value_name = "RATE", value_parser = rate)]
    baseline: Option<f64>,

    /// Number of rows of each table
    #[arg(long, value_name = "N", default_value_t = 15)]
    top: usize,

    /// Write to this file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Style {
    /// Tables for a terminal
    Text,
    /// For programs
    Json,
    /// One page for a browser
    Html,
    /// For ui.perfetto.dev
    Perfetto,
}

impl Trace {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        match &self.what {
            What::Record(record) => record.run(),
            What::Report { file, options } => options.write(&[file], out, |out| {
                report_file(file, &options.report(), out).map_err(|error| match error {
                    ReportError::Write(_) => error.into(), // an error of the output
                    error => anyhow::Error::from(error).context(file.display().to_string()),
                })
            }),
            What::Diff { before, after, options } => options
                .write(&[before, after], out, |out| Ok(diff_files(before, after, &options.report(), out)?)),
        }
    }
}

impl Options {
    fn report(&self) -> ReportOptions {
        let format = match self.format {
            Style::Text => Format::Text,
            Style::Json => Format::Json,
            Style::Html => Format::Html,
            Style::Perfetto => Format::Perfetto,
        };
        let baseline_per_second = self.baseline;
        let operation = self.operation.clone();
        ReportOptions { format, operation, baseline_per_second, top: self.top, ..ReportOptions::default() }
    }

    fn write(
        &self,
        recordings: &[&PathBuf],
        out: &mut dyn Write,
        report: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> Result<Outcome> {
        match &self.output {
            None => report(out)?,
            Some(path) => {
                let output = std::fs::canonicalize(path).ok(); // none if the file is new
                let is_output = |recording: &&PathBuf| std::fs::canonicalize(recording).ok() == output;
                if output.is_some() && recordings.iter().any(is_output) {
                    bail!("{} is a recording; choose another file for the report", path.display());
                }
                write_file(path, report)?;
            }
        }
        Ok(Outcome::Well)
    }
}

/// Parses a number of executions per second.
fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "the rate must be a number greater than 0".into())
}

/// A file with its previous content until the first bytes are written. A report that fails before, such as
/// one about an unknown operation, leaves an existing file as it is.
struct Replaced {
    file: File,
    is_begun: bool,
}

impl Write for Replaced {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !std::mem::replace(&mut self.is_begun, true) && self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn write_file(path: &Path, report: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let file = File::options().write(true).create(true).truncate(false).open(path);
    let file = file.with_context(|| format!("cannot create {}", path.display()))?;
    let mut out = BufWriter::new(Replaced { file, is_begun: false });
    let failed = || format!("cannot write {}", path.display());
    report(&mut out).map_err(|error| match error.downcast_ref() {
        Some(ReportError::Write(_)) => error.context(failed()),
        _ => error,
    })?;
    out.flush().with_context(failed)
}
