//! Backups in object stores. Without the feature `object-store` they are rejected.

#[cfg(feature = "object-store")]
pub(crate) use azekura_object_store::BackupObject;

#[cfg(not(feature = "object-store"))]
pub(crate) use refused::BackupObject;

#[cfg(not(feature = "object-store"))]
mod refused {
    use std::convert::Infallible;
    use std::io::Empty;
    use std::path::Path;

    use azekura::{Backup, BackupReport, Restore, RestoreReport};

    use crate::UsageError;

    /// A backup in an object store. Without the feature `object-store` this type has no values.
    #[derive(Debug)]
    pub(crate) enum BackupObject {}

    impl BackupObject {
        pub(crate) fn from_url(url: &str) -> Result<Self, UsageError> {
            Err(UsageError(format!(
                "cannot use {url}: this command was built without object stores; \
                 build it with `--features object-store`"
            )))
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
