//! Errors of starting and stopping a recording and of reading a trace file.

use std::io;
use std::path::PathBuf;

/// A recording could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// One recording at a time: stop the other first.
    #[error("a recording is already under way; end it first")]
    AlreadyStarted,
    /// This program was built with the feature `off`.
    #[error("the probes are compiled out of this program (feature `off`)")]
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
    /// The kernel does not support the CPU clock that was insisted on.
    #[error("restartable sequences do not report context switches on this system; use CpuTime::Auto")]
    NoRseq,
}

/// A recording could not be ended properly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// There is nothing to stop.
    #[error("no recording is under way; start one first")]
    NotStarted,
    /// The trace file could not be written; the part written before can still be read.
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

/// A trace could not be read.
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
    /// Not a trace file at all.
    #[error("not a trace file: it begins with {found:02x?}")]
    NotATrace {
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// A trace of another version of this program.
    #[error("trace file of version {found}; this program reads {expected}: use the version that recorded it")]
    Version {
        /// In the file.
        found: u32,
        /// Of this program.
        expected: u32,
    },
    /// A block's bytes are not those that were written.
    #[error("block at offset {offset}: checksum {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// Offset of the block.
        offset: u64,
        /// As computed from the bytes.
        found: u32,
        /// As stored.
        expected: u32,
    },
    /// A block's checksum is right and its content makes no sense: written by a broken program.
    #[error("block at offset {offset}: {what}")]
    Malformed {
        /// Offset of the block.
        offset: u64,
        /// Description of the error.
        what: &'static str,
    },
    /// The file ends before its first blocks: nothing can be read from it.
    #[error("trace file cut off at {len} bytes, before its head was complete; record again")]
    NoHead {
        /// Bytes that are there.
        len: u64,
    },
}
