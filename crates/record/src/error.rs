//! Errors of recording a program.

use azekura_trace::ReadError;
use std::io;
use std::path::PathBuf;

/// The reason that a program could not be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The build contains no preload library; it exists for Linux with glibc only.
    #[error("no library to preload in this build: build it for Linux with glibc, without AZEKURA_EMBED=none")]
    NoLibrary,
    /// `AZEKURA_PRELOAD` is set, and names no file.
    #[error(
        "AZEKURA_PRELOAD is {value:?}, and there is no such library; unset it to use the built-in one, or \
         give the path of one"
    )]
    OtherLibrary {
        /// The value of `AZEKURA_PRELOAD`.
        value: String,
    },
    /// The directory that the recorder shares with the program could not be created or used.
    #[error("cannot use the recorder's directory {}", path.display())]
    Directory {
        /// The directory or a file in it.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The program could not be started.
    #[error("cannot start {program}")]
    Start {
        /// The program's name.
        program: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The library cannot be loaded into the program. This is checked before the program runs.
    #[error("cannot record {}: {reason}", path.display())]
    NotRecordable {
        /// The program, or the interpreter of the script.
        path: PathBuf,
        /// The reason, with an alternative if there is one.
        reason: &'static str,
    },
    /// The program ran without loading the library.
    #[error(
        "the program did not load the recorder: it is statically linked, runs with another user's rights, \
         uses another C library than glibc, or the directory for temporary files (TMPDIR) is mounted noexec"
    )]
    NotLoaded,
    /// The recording has no events: the program started no thread and waited for nothing that is recorded.
    #[error(
        "nothing was recorded. Possible reasons: the program started no thread and waited for no lock, file \
         sync or epoll event; it first restricted its system calls (seccomp); it continues in the \
         background; it ended before the recording began (--delay)"
    )]
    NothingRecorded,
    /// A recording could not be written to the requested file.
    #[error(
        "a recording is not written; the recordings, with addresses in the place of names, are kept in {}",
        path.display()
    )]
    Kept {
        /// Directory of the recordings.
        path: PathBuf,
        /// The reason.
        source: Box<RecordError>,
    },
    /// The kernel does not permit the observation: it requires more rights, or a lower `perf_event_paranoid`.
    #[error(
        "the kernel does not permit {what}: run as root or with CAP_PERFMON (for switches alone, \
         perf_event_paranoid up to 2 is enough; now it is {paranoid})"
    )]
    NotPermitted {
        /// The event that was requested.
        what: &'static str,
        /// The present value of `perf_event_paranoid`.
        paranoid: String,
    },
    /// The kernel does not support the requested event.
    #[error("the kernel does not support {what}")]
    Kernel {
        /// The event that was requested.
        what: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
    /// There is no such process, or it belongs to another user.
    #[error("{}", not_observed(*process, source))]
    NoProcess {
        /// The requested process.
        process: u32,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The symbols of a requested program or library cannot be read.
    #[error("cannot read the symbols of {}", path.display())]
    Program {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A function is not in its file: it is misspelled, stripped, or inlined into its callers.
    #[error(
        "no function {name} in {}{}", file.display(),
        if alike.is_empty() { String::new() } else { format!("; like it: {}", alike.join(", ")) }
    )]
    NoFunction {
        /// The requested name.
        name: String,
        /// The file that was searched.
        file: PathBuf,
        /// Names in the file that contain the requested name.
        alike: Vec<String>,
    },
    /// The recording of a process cannot be read.
    #[error("cannot read the recording of process {process}")]
    Read {
        /// The process.
        process: u32,
        /// The reason.
        source: ReadError,
    },
    /// The trace file could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
}

fn not_observed(process: u32, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::PermissionDenied {
        format!("process {process} belongs to another user: run as root, or as this user")
    } else {
        format!("there is no process {process}; it may have just ended")
    }
}

/// Returns an error's message with those of its causes, in one line.
pub(crate) fn in_full(error: &RecordError) -> String {
    let mut text = error.to_string();
    let mut reason = std::error::Error::source(error);
    while let Some(source) = reason {
        text += &format!(": {source}");
        reason = source.source();
    }
    text
}
