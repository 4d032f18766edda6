//! Errors of starting and stopping a recording and of reading a trace file.

use std::io;
use std::path::PathBuf;

/// The error of a recording that could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Another recording is running. It must be stopped first.
    #[error("a recording is already running; stop it first")]
    AlreadyStarted,
    /// This program was built with the feature `off`.
    #[error("the probes are compiled out of this program; build it without the feature `off`")]
    CompiledOut,
    /// The trace file could not be created.
    #[error("cannot create trace file {}", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The collector's thread could not be started.
    #[error("cannot start the collector's thread")]
    Thread {
        /// The operating system's reason.
        source: io::Error,
    },
    /// The kernel does not support the requested CPU clock.
    #[error("restartable sequences do not report context switches on this system; use CpuTime::Auto")]
    NoRseq,
}

/// The error of a recording that could not be ended properly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// No recording is running.
    #[error("no recording is running; start one first")]
    NotStarted,
    /// The trace file could not be written completely. The written part can still be read.
    #[error("cannot write trace file {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The collector panicked: a bug of this crate.
    #[error("the collector's thread panicked")]
    CollectorDied,
}

/// The error of a trace that could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The operating system failed.
    #[error("cannot read trace file {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The file is no trace file.
    #[error("not a trace file: it begins with {found:02x?}")]
    NotATrace {
        /// The first bytes of the file.
        found: Vec<u8>,
    },
    /// The trace was written by an incompatible version of this program.
    #[error("trace file of version {found}; this program reads {expected}: use the version that recorded it")]
    Version {
        /// Version of the file.
        found: u32,
        /// Version of this program.
        expected: u32,
    },
    /// A block's bytes are not those that were written.
    #[error("block at offset {offset}: checksum {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// Offset of the block.
        offset: u64,
        /// Checksum of the bytes.
        found: u32,
        /// Stored checksum.
        expected: u32,
    },
    /// A block's checksum is right, but its content is invalid: a faulty program wrote the block.
    #[error("block at offset {offset}: {what}")]
    Malformed {
        /// Offset of the block.
        offset: u64,
        /// Description of the error.
        what: &'static str,
    },
    /// The file ends before its first blocks, so nothing can be read from it.
    #[error("trace file cut off at {len} bytes, before its head was complete; record again")]
    NoHead {
        /// Length of the file in bytes.
        len: u64,
    },
}
