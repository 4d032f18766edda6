//! Reports of one trace as text, JSON, HTML or a Perfetto file, and of the difference of two traces.
//!
//! A command line needs only [`report_file`] and [`diff_files`].

mod bootstrap;
mod diff;
mod flame;
mod html;
mod perfetto;
mod significance;
mod table;
mod text;

pub use diff::{Diff, DiffRow};
pub use significance::Judgment;

use crate::analyze::{Analysis, AnalyzeError, AnalyzeOptions};
use crate::error::ReadError;
use crate::file::Trace;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Tables for a terminal.
    #[default]
    Text,
    /// The whole [`Analysis`] (or [`Diff`]), for programs.
    Json,
    /// One page that needs no network: stacked bars, a timeline, sortable tables, and a flame graph.
    Html,
    /// A trace for ui.perfetto.dev.
    Perfetto,
}

/// Options of a report.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportOptions {
    /// Format of the report.
    pub format: Format,
    /// The operation to report in detail; see [`AnalyzeOptions::operation`].
    pub operation: Option<String>,
    /// Executions per second of that operation without a recording; see
    /// [`AnalyzeOptions::baseline_per_second`].
    pub baseline_per_second: Option<f64>,
    /// Number of rows per table in text.
    pub top: usize,
    /// A file with more events is analyzed in windows of this number; see [`Analysis::of_file`].
    pub window_events: usize,
}

/// Default of [`ReportOptions::window_events`]: a window takes some hundred megabytes.
const WINDOW_EVENTS: usize = 1 << 20;

impl Default for ReportOptions {
    fn default() -> Self {
        Self {
            format: Format::Text,
            operation: None,
            baseline_per_second: None,
            top: 15,
            window_events: WINDOW_EVENTS,
        }
    }
}

impl ReportOptions {
    fn analyze(&self) -> AnalyzeOptions {
        AnalyzeOptions { operation: self.operation.clone(), baseline_per_second: self.baseline_per_second }
    }
}

/// The error of a report that could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The trace could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The trace lacks the requested object.
    #[error(transparent)]
    Analyze(#[from] AnalyzeError),
    /// One of the two files of a difference could not be read or analyzed.
    #[error("{}", path.display())]
    OfFile {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: Box<ReportError>,
    },
    /// The report could not be written.
    #[error("cannot write the report")]
    Write(#[from] io::Error),
    /// The format is not available for a difference, which can be text or JSON.
    #[error("a difference of two traces cannot be written as {0:?}; use text or JSON")]
    FormatOfDiff(Format),
}

/// Reports on a trace file.
///
/// # Errors
///
/// [`ReportError`].
pub fn report_file(
    path: impl AsRef<Path>,
    options: &ReportOptions,
    out: &mut dyn Write,
) -> Result<(), ReportError> {
    if options.format == Format::Perfetto {
        return perfetto::write_file(path.as_ref(), out);
    }
    let analysis = Analysis::of_file(path, options.window_events, &options.analyze())??;
    write_analysis(&analysis, options, out)
}

/// Reports on a trace.
///
/// The same trace and options give the same bytes.
///
/// # Errors
///
/// [`ReportError`].
///
/// # Examples
///
/// ```
/// use azekura_trace::report::{ReportOptions, report};
/// use azekura_trace::{Operation, Options, operation, start, stop};
///
/// static GET: Operation = Operation::new("get");
/// start(Options::default())?;
/// for _ in 0..100 {
///     let _get = operation(&GET);
/// }
/// let trace = stop()?.trace()?;
/// let mut text = Vec::new();
/// report(&trace, &ReportOptions::default(), &mut text)?;
/// assert!(String::from_utf8_lossy(&text).contains("get"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn report(trace: &Trace, options: &ReportOptions, out: &mut dyn Write) -> Result<(), ReportError> {
    match options.format {
        Format::Perfetto => out.write_all(&perfetto::encode(trace))?,
        _ => write_analysis(&Analysis::new(trace, &options.analyze())?, options, out)?,
    }
    Ok(())
}

fn write_analysis(
    analysis: &Analysis,
    options: &ReportOptions,
    out: &mut dyn Write,
) -> Result<(), ReportError> {
    match options.format {
        Format::Json => write_json(analysis, out)?,
        Format::Html => out.write_all(html::page(analysis, options.top)?.as_bytes())?,
        _ => out.write_all(text::text(analysis, options.top).as_bytes())?,
    }
    Ok(())
}

/// Reports the difference between two trace files.
///
/// # Errors
///
/// [`ReportError`].
pub fn diff_files(
    before: impl AsRef<Path>,
    after: impl AsRef<Path>,
    options: &ReportOptions,
    out: &mut dyn Write,
) -> Result<(), ReportError> {
    let analyze = |path: &Path| -> Result<Analysis, ReportError> {
        Ok(Analysis::of_file(path, options.window_events, &options.analyze())??)
    };
    let of = |path: &Path| {
        analyze(path)
            .map_err(|error| ReportError::OfFile { path: path.to_path_buf(), source: Box::new(error) })
    };
    write_diff(&of(before.as_ref())?, &of(after.as_ref())?, options, out)
}

/// Reports the difference between two traces, with bounds that distinguish it from noise.
///
/// # Errors
///
/// [`ReportError`]. The chosen operation must be in both traces.
pub fn diff(
    before: &Trace,
    after: &Trace,
    options: &ReportOptions,
    out: &mut dyn Write,
) -> Result<(), ReportError> {
    let of = |trace: &Trace| Analysis::new(trace, &options.analyze());
    write_diff(&of(before)?, &of(after)?, options, out)
}

fn write_diff(
    before: &Analysis,
    after: &Analysis,
    options: &ReportOptions,
    out: &mut dyn Write,
) -> Result<(), ReportError> {
    let diff = Diff::new(before, after);
    match options.format {
        Format::Text => out.write_all(text::diff(&diff, options.top).as_bytes())?,
        Format::Json => write_json(&diff, out)?,
        format => return Err(ReportError::FormatOfDiff(format)),
    }
    Ok(())
}

fn write_json(value: &impl serde::Serialize, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    out.write_all(b"\n")
}
