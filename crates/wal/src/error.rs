//! One error type per operation.

use std::io;
use std::path::{Path, PathBuf};

use azekura_base::{LogFailed, Lsn};

/// The reason that a log could not be created or trimmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WalError {
    /// The settings contradict each other; change them.
    #[error("log options: {reason}")]
    Options {
        /// The contradiction.
        reason: String,
    },
    /// The file system failed; the existing log is unchanged. Try again.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The attempted action.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The directory holds a log of this incarnation, or of a later one: the caller's control file is
    /// outdated.
    #[error("{} has incarnation {found}, so {incarnation} is not new: the control file is too old",
        path.display())]
    IncarnationNotNew {
        /// A segment of that log.
        path: PathBuf,
        /// The incarnation in that segment.
        found: u32,
        /// The requested incarnation.
        incarnation: u32,
    },
    /// The log is poisoned.
    #[error(transparent)]
    Failed(#[from] LogFailed),
}

impl WalError {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}

/// The reason that a record was not appended. No LSN was drawn.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The log failed before, or was closed; reopen the database.
    #[error(transparent)]
    Failed(#[from] LogFailed),
    /// The disk has no room for the next segment (W11). The log stays usable: append again when there is
    /// room.
    #[error("cannot create the next log segment of {needed} bytes in {}", path.display())]
    Full {
        /// The directory of the stream.
        path: PathBuf,
        /// Bytes of the segment that could not be made.
        needed: u64,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The log's directory could not be created, or [`WalOptions::begin`](crate::WalOptions::begin) failed.
    /// Append again when the cause is gone.
    #[error("cannot begin the log in {}", path.display())]
    Begin {
        /// The log's directory.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The record can never be appended: split it.
    #[error("a record of {bytes} bytes; at most {max} fit, half of a log buffer")]
    TooLarge {
        /// Size of the body.
        bytes: usize,
        /// Largest size.
        max: usize,
    },
}

impl AppendError {
    /// Converts an error of the start of the log in directory `log_dir`.
    pub(crate) fn of_start(error: WalError, log_dir: &Path) -> Self {
        let source = match error {
            WalError::Failed(failed) => return Self::Failed(failed),
            WalError::Io { action, path, source } => {
                io::Error::new(source.kind(), format!("{action} {}: {source}", path.display()))
            }
            other => io::Error::other(other.to_string()),
        };
        Self::Begin { path: log_dir.into(), source }
    }
}

/// The reason that a log could not be replayed; `E` is the error of the caller's function.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError<E> {
    /// A file could not be read; its content is unknown. Try again.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The attempted action.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The log is damaged, not merely cut off by a crash: records that were durable are missing or
    /// unreadable.
    #[error(
        "log damaged: record {missing} of incarnation {incarnation} is missing although everything up to \
         {durable} was durable; {} is unreadable from byte {offset}", file.display()
    )]
    Corrupt {
        /// The file with a readable part that ends too early; if there are several, the most likely one.
        file: PathBuf,
        /// End of the readable part.
        offset: u64,
        /// The incarnation.
        incarnation: u32,
        /// The first record that is missing.
        missing: Lsn,
        /// LSN up to which the log itself, or the caller's knowledge, proves that everything was on disk.
        durable: Lsn,
    },
    /// The log is newer than the caller's ranges: the caller's control file is from an earlier time. Restore
    /// all files from the same moment.
    #[error(
        "the log is newer than the control file: {} has incarnation {found}, and the newest one in the \
         control file is {newest}; restore all files from one moment", file.display()
    )]
    StaleRanges {
        /// A segment of the newer log.
        file: PathBuf,
        /// The incarnation of that segment.
        found: u32,
        /// The newest incarnation in the caller's ranges.
        newest: u32,
    },
    /// A chunk of an encrypted log has a right checksum, but its bytes are not those that were encrypted for
    /// its place: they were changed, moved or encrypted with another key.
    #[error(
        "the log chunk at byte {offset} of {} cannot be decrypted: its bytes are not those that were \
         encrypted for this place", file.display()
    )]
    Unauthentic {
        /// The file.
        file: PathBuf,
        /// Offset of the chunk.
        offset: u64,
    },
    /// The caller's ranges are not in order.
    #[error("log ranges: {reason}")]
    Ranges {
        /// The contradiction.
        reason: String,
    },
    /// The caller's function refused a record.
    #[error("cannot apply log record {lsn}")]
    Apply {
        /// The record.
        lsn: Lsn,
        /// The function's error.
        source: E,
    },
}
