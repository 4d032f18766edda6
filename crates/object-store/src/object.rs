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

/// The object's name below the prefix: that of the file in a backup's directory.
const BACKUP_NAME: &str = "backup.azk";
/// The least size of a part; S3 takes no smaller one than 5 MiB.
const PART_BYTES: u64 = 8 << 20;
/// A backup of the estimated size has at most this number of parts, a half of the number that S3 takes.
const PARTS: u64 = 5_000;

/// A backup in an object store: one that exists, or one to be made.
///
/// Its calls block the thread. Do not call them in a task of an asynchronous runtime: use a thread for
/// blocking work, such as tokio's `spawn_blocking`.
#[derive(Clone)]
pub struct BackupObject {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) path: object_store::path::Path,
    /// URL for people.
    pub(crate) name: String,
    pub(crate) runtime: Arc<Runtime>,
    part_bytes: Option<usize>,
}

/// A runtime of one thread, which moves the bytes while the caller's thread reads or writes rows.
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
    /// The backup with this prefix in any object store: S3, Google Cloud Storage, Azure, a directory, memory.
    /// Reads and writes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Url`]: the prefix has an empty part or one that objects cannot have.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str) -> Result<Self, Error> {
        let name = format!("{store}/{prefix}");
        Self::named(store, prefix, &name)
    }

    /// The same with the URL of the prefix, for errors.
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

    /// URL of the object, as errors name it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Size of the parts in which a backup is uploaded; default: 8 MiB, or more for a backup of which S3
    /// would not take that many parts. Three parts are in memory at a time.
    #[must_use]
    pub const fn part_bytes(mut self, bytes: usize) -> Self {
        self.part_bytes = Some(bytes);
        self
    }

    /// Makes the backup while transactions run, as [`Backup::to_writer`] does, and uploads it meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Exists`]: the object exists. [`Error::Store`] and [`Error::Azekura`]: the upload or the
    /// backup failed, and there is no object (OBJECT-1). An object can be there only if the answer to the
    /// last request was lost; then it is complete.
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

    /// Reads the backup and checks each byte of it, as [`Restore::verify_reader`] does.
    ///
    /// # Errors
    ///
    /// As for [`restore`](Self::restore), about the backup.
    pub fn verify(&self, restore: Restore<'_>) -> Result<BackupReport, Error> {
        let reader = self.reader()?;
        Ok(restore.stream_name(&self.name).verify_reader(reader)?)
    }

    /// Reads the object from its start to its end; with [`name`](Self::name) for
    /// [`Backup::since_reader`] and [`Restore::base_reader`].
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
