//! A backup in an object store.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use azekura::{Backup, BackupReport, Restore, RestoreReport};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use tokio::runtime::Runtime;

use crate::Error;
use crate::download::ObjectReader;
use crate::upload::Upload;

/// Name of the object below the prefix: the name of the file in a backup's directory.
const BACKUP_NAME: &str = "backup.azk";
/// Least size of a part. S3 accepts no part below 5 MiB, except the last one.
const PART_BYTES: u64 = 8 << 20;
/// Maximum of parts of a backup with the estimated size: half of the 10,000 parts that S3 accepts.
const PARTS: u64 = 5_000;

/// A backup in an object store, existing or to be written.
///
/// Its calls block the thread. Do not call them in a task of an asynchronous runtime: use a thread for
/// blocking work, such as tokio's `spawn_blocking`.
#[derive(Clone)]
pub struct BackupObject {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) path: object_store::path::Path,
    /// URL for messages.
    pub(crate) name: String,
    pub(crate) runtime: Arc<Runtime>,
    part_bytes: Option<usize>,
}

/// Creates a runtime with one thread, which transfers the bytes while the caller's thread reads or writes
/// rows.
pub(crate) fn runtime() -> Result<Arc<Runtime>, Error> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).thread_name("azekura-objects").enable_all().build();
    Ok(Arc::new(runtime.map_err(Error::Thread)?))
}

impl fmt::Debug for BackupObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackupObject").field("name", &self.name).finish_non_exhaustive()
    }
}

impl BackupObject {
    /// Returns the backup with this prefix in any object store: S3, Google Cloud Storage, Azure, a directory,
    /// memory. Sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::Url`]: the prefix has an empty part or a part that is invalid in the name of an object.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str) -> Result<Self, Error> {
        let name = format!("{store}/{prefix}");
        Self::named(store, prefix, &name)
    }

    /// Like [`new`](Self::new), with the URL of the prefix for errors.
    pub(crate) fn named(store: Arc<dyn ObjectStore>, prefix: &str, url: &str) -> Result<Self, Error> {
        let prefix = object_store::path::Path::parse(prefix)
            .map_err(|error| Error::Url { url: url.into(), reason: error.to_string() })?;
        Ok(Self {
            store,
            path: prefix.join(BACKUP_NAME),
            name: format!("{}/{BACKUP_NAME}", url.trim_end_matches('/')),
            runtime: runtime()?,
            part_bytes: None,
        })
    }

    /// Returns the URL of the object, as it appears in errors.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the size of the parts in which a backup is uploaded. Default: 8 MiB, or more if the backup would
    /// otherwise exceed the number of parts that S3 accepts. Three parts are in memory at a time.
    #[must_use]
    pub const fn part_bytes(mut self, bytes: usize) -> Self {
        self.part_bytes = Some(bytes);
        self
    }

    /// Writes the backup while transactions run, as [`Backup::to_writer`] does, and uploads it at the same
    /// time.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]: the object exists. [`Error::Store`] and [`Error::Azekura`]: the upload or the
    /// backup failed, and the object does not exist (OBJECT-1). Exception: if only the answer to the last
    /// request was lost, the object exists and is complete.
    pub fn write(&self, backup: Backup<'_>) -> Result<BackupReport, Error> {
        match self.head() {
            Ok(_) => return Err(Error::Exists { object: self.name.clone() }),
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        let part_bytes = self.part_bytes.map_or_else(
            || usize::try_from(PART_BYTES.max(backup.estimated_bytes() / PARTS)).unwrap_or(usize::MAX),
            |bytes| bytes.max(1),
        );
        let mut upload = Upload::new(self, part_bytes);
        let written = backup.stream_name(&self.name).to_writer(&mut upload).map_err(Error::from);
        match written.and_then(|report| upload.finish().map(|()| report)) {
            Ok(report) => Ok(report),
            Err(error) => {
                upload.abort();
                Err(upload.failure.take().map_or(error, |failure| self.error("write", failure)))
            }
        }
    }

    /// Restores the backup into a new store at `to`, as [`Restore::from_reader`] does.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; [`Error::Store`]; [`Error::Azekura`] with the errors of
    /// [`Restore::from_directory`].
    pub fn restore(&self, restore: Restore<'_>, to: impl AsRef<Path>) -> Result<RestoreReport, Error> {
        let reader = self.reader()?;
        Ok(restore.stream_name(&self.name).from_reader(reader, to)?)
    }

    /// Reads the backup and verifies every byte, as [`Restore::verify_reader`] does.
    ///
    /// # Errors
    ///
    /// As for [`restore`](Self::restore), except the errors of writing a store.
    pub fn verify(&self, restore: Restore<'_>) -> Result<BackupReport, Error> {
        let reader = self.reader()?;
        Ok(restore.stream_name(&self.name).verify_reader(reader)?)
    }

    /// Returns a reader of the whole object. Pass it with [`name`](Self::name) to [`Backup::since_reader`] or
    /// [`Restore::base_reader`].
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], [`Error::Store`].
    pub fn reader(&self) -> Result<ObjectReader, Error> {
        Ok(ObjectReader::new(self.clone(), self.head()?))
    }

    fn head(&self) -> Result<ObjectMeta, Error> {
        self.runtime.block_on(self.store.head(&self.path)).map_err(|error| self.error("find", error))
    }

    pub(crate) fn error(&self, action: &'static str, error: object_store::Error) -> Error {
        let object = self.name.clone();
        match error {
            object_store::Error::NotFound { .. } if action == "find" => Error::NotFound { object },
            object_store::Error::AlreadyExists { .. } => Error::Exists { object },
            error => Error::Store { action, object, error: Box::new(error) },
        }
    }
}
