//! Errors of backups to object stores and of restores; each names the object.

use std::io;
use std::path::PathBuf;

/// Returns the message of an object store's client with its innermost cause, in one line. The message may
/// quote responses with line breaks.
pub(crate) fn one_line(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let cause = cause.to_string();
    if !text.contains(&cause) {
        text = format!("{text}: {cause}");
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The failure of a backup to an object store, or of a restore from one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL or prefix is not valid for a backup or an archive.
    #[error("{url:?} is not a valid place in an object store: {reason}")]
    Url {
        /// The URL or prefix.
        url: String,
        /// The violated rule.
        reason: String,
    },
    /// The environment lacks a setting of the object store, or has an invalid one.
    #[error("cannot use {url}: {reason}")]
    Settings {
        /// The URL.
        url: String,
        /// The setting and its remedy.
        reason: String,
    },
    /// The object exists. Name another prefix, or remove the object first.
    #[error("{object} exists already; name another prefix, or remove that backup first")]
    Exists {
        /// URL of the object.
        object: String,
    },
    /// The object does not exist: no backup has this name, or the backup is not complete.
    #[error("{object} does not exist; name a finished backup, or a log archive")]
    NotFound {
        /// URL of the object.
        object: String,
    },
    /// The object store refused a request, or could not be reached.
    #[error("cannot {action} {object}: {}", one_line(error))]
    Store {
        /// The attempted action.
        action: &'static str,
        /// URL of the object.
        object: String,
        /// The reason.
        error: Box<object_store::Error>,
    },
    /// A file of the log archive could not be read or written.
    #[error("cannot copy {}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The thread of the network client could not be started.
    #[error("cannot start the thread of the network client")]
    Thread(#[source] io::Error),
    /// The backup or the restore failed. An error of the object has the object's URL as its path.
    #[error(transparent)]
    Azekura(#[from] azekura::Error),
}
