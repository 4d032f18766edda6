//! The `azekura` command: a store from the shell.
//!
//! This crate is not an API: programs use the `azekura` crate. A library exists only for the fuzz targets
//! of the parsers of `load`, and for the evaluation's command (`azekura-lab`).
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
//! | `store` | opening a store, finding a table, with messages that include the remedy |
//! | `backup_location`, `objects` | places of backups and archives; object stores |
//! | `command` | one module per subcommand |
//! | `demo` | a bank that is killed and audited in rounds |
//! | `logging` | the log of `serve` |
//! | `progress` | progress bars and notes on stderr |
//! | `scratch` | temporary directories that are also removed after a signal |
//! | `signals` | signals that stop a server; the signal of the limit of file sizes |
//! | `parent` | ends this process when its parent process ends |
//! | `show` | numbers in readable form |
//! | `time` | times on the command line |
//!
//! Data is written to stdout, errors and progress to stderr. Exit codes: 0 success; 1 not found, a failed
//! check or an error; 2 wrong usage. A command that runs a program ends with its exit code.

#![forbid(unsafe_code)]

mod arguments;
mod backup_location;
mod command;
mod demo;
pub mod format;
mod logging;
mod objects;
mod parent;
mod progress;
mod scratch;
mod show;
mod signals;
mod store;
mod time;

/// Parts of the command line that the evaluation's command (`azekura-lab`) shares. Not an API.
#[doc(hidden)]
pub mod shared {
    pub use crate::arguments::{cache_bytes, page_bytes, seconds, size};
    pub use crate::parent::end_with;
    pub use crate::scratch::Scratch;
    pub use crate::show::{count, counted};
}

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

use arguments::Arguments;

/// The result of a command that ran without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success: exit code 0.
    Well,
    /// The object was not found, or a check failed; the command has printed the reason: exit code 1.
    Failed,
    /// The exit code of a program that the command ran, which is passed on.
    Code(u8),
}

/// An invalid combination of arguments, detected after parsing: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UsageError(String);

/// Standard output. Its errors name it, so that they differ from those of other pipes and connections.
struct Stdout {
    out: io::Stdout,
    /// The command was started without this descriptor (`>&-`).
    is_closed: bool,
}

/// A failed write to standard output.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
struct StdoutError(io::Error);

/// Returns standard input. If the command was started without this descriptor (`<&-`), the runtime has opened
/// /dev/null in its place, which would pass for empty input.
fn stdin() -> Result<io::StdinLock<'static>> {
    if azekura_base::inherited::was_closed(0) {
        return Err(io::Error::from(rustix::io::Errno::BADF)).context("cannot read standard input");
    }
    Ok(io::stdin().lock())
}

fn of_stdout(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::Interrupted => error, // tried again by the caller
        kind => io::Error::new(kind, StdoutError(error)),
    }
}

impl Stdout {
    fn open() -> Self {
        Self { out: io::stdout(), is_closed: azekura_base::inherited::was_closed(1) }
    }

    fn check_open(&self) -> io::Result<()> {
        if self.is_closed { Err(of_stdout(rustix::io::Errno::BADF.into())) } else { Ok(()) }
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check_open()?;
        self.out.write(bytes).map_err(of_stdout)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush().map_err(of_stdout)
    }
}

/// Parses the process's arguments and runs the command.
///
/// Wrong arguments end the process with exit code 2.
#[must_use]
pub fn run() -> ExitCode {
    run_from(std::env::args_os())
}

/// Parses these arguments and runs the command; the first one is the program's name.
///
/// Wrong arguments end the process with exit code 2.
#[must_use]
pub fn run_from(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    match parse::<Arguments>("azekura", arguments) {
        Ok(arguments) => run_command("azekura", |out| command::run(&arguments, out)),
        Err(code) => code,
    }
}

/// Parses the arguments of a command. Wrong arguments end the process with exit code 2. `Err` has the exit
/// code after `--help` or `--version`: 0, or 1 with an error message if the text could not be written.
///
/// # Errors
///
/// The arguments request a text instead of a run.
pub fn parse<A: Parser>(program: &str, arguments: impl IntoIterator<Item = OsString>) -> Result<A, ExitCode> {
    A::try_parse_from(arguments).map_err(|text| {
        if text.use_stderr() {
            text.exit();
        }
        // The text is written by its own writer, which chooses the colors.
        run_command(program, |_| {
            Stdout::open().check_open()?;
            text.print().map_err(of_stdout)?;
            Ok(Outcome::Well)
        })
    })
}

/// Runs a command with buffered standard output, prints its error after the program's name, and returns the
/// exit code.
#[must_use]
pub fn run_command(program: &str, command: impl FnOnce(&mut dyn Write) -> Result<Outcome>) -> ExitCode {
    signals::outlive_file_limit();
    // Stdout is not locked: the workers of `demo-child` write to it too, while `out` is empty.
    let mut out = BufWriter::with_capacity(64 << 10, Stdout::open());
    let mut code = 0;
    let result = command(&mut out).and_then(|outcome| {
        code = match outcome {
            Outcome::Well => 0,
            Outcome::Failed => 1,
            Outcome::Code(code) => code,
        };
        Ok(out.flush()?)
    });
    match result {
        Ok(()) => ExitCode::from(code),
        Err(error) if is_closed_stdout(&error) => {
            // The reader closed the pipe (`| head`). The rest of the buffer must not be written on drop.
            let _ = out.into_parts();
            ExitCode::from(code)
        }
        Err(error) => {
            let _ = out.flush();
            progress::note(format_args!("{program}: {error:#}"));
            ExitCode::from(if error.is::<UsageError>() { 2 } else { 1 })
        }
    }
}

/// Returns `true` if the reader of standard output has closed it. A broken pipe elsewhere, such as a
/// connection that an object store has ended, is an error of the command.
fn is_closed_stdout(error: &anyhow::Error) -> bool {
    stdout_error(error).is_some_and(|error| error.0.kind() == io::ErrorKind::BrokenPipe)
}

/// Returns the failed write to standard output that is the cause of an error.
fn stdout_error(error: &anyhow::Error) -> Option<&StdoutError> {
    error.chain().find_map(|cause| cause.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_closed_standard_output_is_no_error() {
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        let of_backup =
            azekura::Error::Io { action: "write", path: "stream".into(), source: of_stdout(broken()) };
        assert!(is_closed_stdout(&of_stdout(broken()).into()));
        assert!(is_closed_stdout(&of_backup.into()));
        assert!(!is_closed_stdout(&broken().into()), "a connection");
        assert!(!is_closed_stdout(&of_stdout(io::ErrorKind::StorageFull.into()).into()));
    }
}
