//! The log of `serve`: writes the events of server and store to stderr, one line each. Commands that write to
//! a log archive print the store's warnings.

use std::io;

use anyhow::{Context, Result};
use clap::ValueEnum;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;

use crate::UsageError;

/// The environment variable with the log filter.
pub(crate) const FILTER: &str = "RUST_LOG";

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for terminals.
    #[default]
    Text,
    /// One JSON object per line: timestamp, level, target, and fields, including the message.
    Json,
}

/// Starts to write events to stderr: the events that the filter selects, or without a filter the events of
/// level `info` and above.
pub(crate) fn start(format: LogFormat) -> Result<()> {
    let filter = match std::env::var(FILTER) {
        Ok(text) if !text.is_empty() => text.parse::<Targets>().map_err(|error| {
            UsageError(format!(
                "{FILTER}={text:?} is not a filter ({error}); example: info, or warn,azekura=debug"
            ))
        })?,
        _ => Targets::new().with_default(LevelFilter::INFO),
    };
    // No internal errors: the library would report a failed write to stderr on stderr too, and would panic
    // there.
    let lines = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).log_internal_errors(false);
    let lines = lines.with_writer(io::stderr);
    let installed = match format {
        LogFormat::Text => {
            tracing::subscriber::set_global_default(lines.with_ansi(false).finish().with(filter))
        }
        LogFormat::Json => {
            std::panic::set_hook(Box::new(report_panic));
            tracing::subscriber::set_global_default(
                lines.json().with_current_span(false).with_span_list(false).finish().with(filter),
            )
        }
    };
    installed.context("cannot start the log")
}

/// Starts to write the warnings of the store to stderr.
pub(crate) fn start_warnings() -> Result<()> {
    let lines = tracing_subscriber::fmt().with_max_level(LevelFilter::WARN).log_internal_errors(false);
    let lines = lines.with_writer(io::stderr).with_ansi(false).without_time().with_target(false);
    tracing::subscriber::set_global_default(lines.finish()).context("cannot start the log")
}

/// Reports a panic like the standard hook, but as a JSON line.
fn report_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let location = panic.location().map(ToString::to_string);
    let text = panic.payload_as_str().unwrap_or("no text");
    tracing::error!(thread = thread.name(), location, text, "panic");
}
