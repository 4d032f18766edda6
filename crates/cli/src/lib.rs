//! The `azekura` command: a store from the shell.
//!
//! It is not an API: programs use the `azekura` crate. It is a library at all so that the parsers of what `load` reads
//! can be fuzzed from outside.
//!
//! ```
//! use azekura_cli::format::{Row, tsv};
//! let mut row = Row::default();
//! tsv::parse(b"two\\nlines\tthe value", false, &mut row)?;
//! assert_eq!((row.key, row.value), (b"two\nlines".to_vec(), b"the value".to_vec()));
//! # Ok::<(), azekura_cli::format::Fault>(())
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`mod@format`] | rows as text: TSV with escapes, CSV, JSON lines |
//! | `arguments` | the command line: subcommands, sizes, keys |
//! | `store` | opening a store, finding a table, with messages that say what to do next |
//! | `command` | one module per subcommand |
//! | `demo` | the bank that is killed again and again |
//! | `progress` | bars on stderr |
//! | `show` | numbers for people |
//!
//! Data goes to stdout, errors and progress to stderr. Exit codes: 0 well, 1 not found, check failed or refused, 2 usage.

#![forbid(unsafe_code)]

mod arguments;
mod command;
mod demo;
pub mod format;
mod parent;
mod progress;
mod show;
mod store;

use std::error::Error;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::Parser;

use arguments::Arguments;

/// How a command that did its work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// As wished: exit code 0.
    Well,
    /// Not found, or a check failed; what there is to say has been said: exit code 1.
    Failed,
}

/// A wrong command line that only looking at several arguments together shows: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UsageError(String);

/// Runs the command that the process's arguments ask for.
///
/// Wrong arguments end the process with exit code 2, as does `--help` with 0.
#[must_use]
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    // Not locked for good: the workers of `demo-child` write to stdout too, when `out` is empty.
    let mut out = BufWriter::with_capacity(64 << 10, io::stdout());
    let done = command::run(&arguments, &mut out).and_then(|outcome| {
        out.flush()?;
        Ok(outcome)
    });
    match done {
        Ok(Outcome::Well) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::from(1),
        Err(error) if is_broken_pipe(&error) => {
            // Whoever read us has enough (`| head`). What is left in the buffer must not be tried again on drop.
            let _ = out.into_parts();
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = out.flush();
            eprintln!("azekura: {error:#}");
            ExitCode::from(if error.is::<UsageError>() { 2 } else { 1 })
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = |cause: &(dyn Error + 'static)| cause.downcast_ref::<io::Error>().map(io::Error::kind);
    error.chain().any(|cause| kind(cause) == Some(io::ErrorKind::BrokenPipe))
}
