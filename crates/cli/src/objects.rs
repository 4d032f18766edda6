//! Backups and log archives in object stores. Without the feature `object-store` they are rejected.

#[cfg(feature = "object-store")]
pub(crate) use azekura_object_store::{ArchiveObjects, BackupObject};

#[cfg(not(feature = "object-store"))]
pub(crate) use refused::{ArchiveObjects, BackupObject};

#[cfg(not(feature = "object-store"))]
mod refused {
    use std::convert::Infallible;
    use std::io::Empty;
    use std::path::Path;

    use azekura::{Backup, BackupReport, Restore, RestoreReport};

    use crate::UsageError;

    fn refusal(url: &str) -> UsageError {
        UsageError(format!(
            "cannot use {url}: this command was built without object stores; \
             build it with `--features object-store`"
        ))
    }

    /// A log archive in an object store. Without the feature `object-store` this type has no values.
    #[derive(Debug)]
    pub(crate) enum ArchiveObjects {}

    impl ArchiveObjects {
        pub(crate) fn from_url(url: &str) -> Result<Self, UsageError> {
            Err(refusal(url))
        }

        pub(crate) const fn push(&mut self, _: &Path) -> Result<u64, Infallible> {
            match *self {}
        }

        pub(crate) const fn fetch(&self, _: &Path) -> Result<u64, Infallible> {
            match *self {}
        }
    }

    /// A backup in an object store. Without the feature `object-store` this type has no values.
    #[derive(Debug)]
    pub(crate) enum BackupObject {}

    impl BackupObject {
        pub(crate) fn from_url(url: &str) -> Result<Self, UsageError> {
            Err(refusal(url))
        }

        pub(crate) const fn name(&self) -> &str {
            match *self {}
        }

        pub(crate) const fn reader(&self) -> Result<Empty, Infallible> {
            match *self {}
        }

        pub(crate) fn write(&self, _: Backup<'_>) -> Result<BackupReport, Infallible> {
            match *self {}
        }

        pub(crate) fn restore(&self, _: Restore<'_>, _: &Path) -> Result<RestoreReport, Infallible> {
            match *self {}
        }

        pub(crate) fn verify(&self, _: Restore<'_>) -> Result<BackupReport, Infallible> {
            match *self {}
        }
    }
}
