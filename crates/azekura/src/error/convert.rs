//! Conversions of the errors of other crates.

use std::path::PathBuf;

use azekura_buffer::{FixError, PoolError, StoreError, WriteError};
use azekura_wal::{AppendError, ReplayError, WalError};

use super::Error;
use super::reason::{cannot_grow, is_full};

impl From<azekura_btree::TreeError> for Error {
    fn from(error: azekura_btree::TreeError) -> Self {
        use azekura_btree::TreeError as E;
        match error {
            E::Fix(error) => error.into(),
            E::Append(error) => error.into(),
            E::Write(error) => error.into(),
            E::Interrupted => Self::Interrupted,
            E::Corrupt { page_id, reason } => Self::damaged(page_id, reason.into()),
            E::Apply(error) => Self::damaged(error.page_id, error.to_string()),
            other => Self::Invalid(other.to_string()),
        }
    }
}

impl From<FixError> for Error {
    fn from(error: FixError) -> Self {
        match error {
            FixError::PoolExhausted { .. } => Self::CacheExhausted { reason: error.to_string() },
            FixError::Read(source) => source.into(),
            FixError::WriteBack { source, .. } => source.into(),
            FixError::NoSuchPage { page_id, .. } | FixError::Foreign { page_id, .. } => {
                Self::damaged(page_id, error.to_string())
            }
            other => Self::PageIo { source: other.into() },
        }
    }
}

impl From<WriteError> for Error {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Store(source) => source.into(),
            WriteError::Log(failed) => failed.into(),
            other => Self::PageIo { source: other.into() },
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        if let Some((path, page, offset, damage)) = error.damage() {
            return Self::CorruptPage {
                path: path.into(),
                page,
                reason: format!("{damage} (offset {offset})"),
            };
        }
        match error {
            StoreError::Failed { .. } => Self::PagesFailed { path: PathBuf::new() },
            // Only after a failed extension of a file is its content certain.
            StoreError::Io { action: "make room for" | "make room in", ref source, .. }
                if cannot_grow(source) =>
            {
                Self::LogFull { source: error.into() }
            }
            StoreError::Stale { ref path, .. } | StoreError::Refused { ref path, .. } => {
                Self::Corrupt { path: path.to_path_buf(), offset: 0, reason: error.to_string() }
            }
            other => Self::PageIo { source: other.into() },
        }
    }
}

impl From<PoolError> for Error {
    fn from(error: PoolError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<AppendError> for Error {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Failed(failed) => failed.into(),
            AppendError::Begin { ref source, .. } if is_full(source) => {
                Self::LogFull { source: error.into() }
            }
            AppendError::Begin { path, source } => Self::Io { action: "begin the log in", path, source },
            AppendError::Full { .. } => Self::LogFull { source: error.into() },
            other => Self::Invalid(other.to_string()),
        }
    }
}

impl From<WalError> for Error {
    fn from(error: WalError) -> Self {
        match error {
            WalError::Io { action, path, source } => Self::Io { action, path, source },
            WalError::Failed(failed) => failed.into(),
            WalError::IncarnationNotNew { ref path, .. } => {
                Self::Corrupt { path: path.clone(), offset: 0, reason: error.to_string() }
            }
            other => Self::Invalid(other.to_string()),
        }
    }
}

impl From<ReplayError<Error>> for Error {
    fn from(error: ReplayError<Error>) -> Self {
        match error {
            ReplayError::Apply { source, .. } => source,
            ReplayError::Io { action, path, source } => Self::Io { action, path, source },
            ReplayError::Corrupt { ref file, offset, .. } => {
                Self::Corrupt { path: file.clone(), offset, reason: error.to_string() }
            }
            ReplayError::Unauthentic { ref file, offset } => {
                Self::Corrupt { path: file.clone(), offset, reason: error.to_string() }
            }
            ReplayError::StaleRanges { ref file, .. } => {
                Self::Corrupt { path: file.clone(), offset: 0, reason: error.to_string() }
            }
            other => Self::Invalid(other.to_string()),
        }
    }
}
