//! Opens a store and finds a table in it, with messages that include the remedy.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use azekura::{
    Builder, Database, EncryptionKey, Error, Snapshot, SnapshotTable, Table, TableDefinition, Transaction,
};

use crate::UsageError;
use crate::arguments::StoreArguments;
use crate::backup_location::{self, BackupLocation};
use crate::format::escape::escaped;
use crate::format::row_types::RowTypes;

/// Largest default cache of a command that does not serve. Such a command reads or writes most pages once,
/// and the system clears the memory of each page of the cache before its first use. With a store of 1 GiB
/// and 32 MiB in place of 256 MiB, a dump and a check take half of the time, a backup, a restore and a load
/// 0.7 to 0.9, and a load into a table with rows the same time (decision 078).
const CACHE_OF_ONE_COMMAND: usize = 32 << 20;

/// Returns [`CACHE_OF_ONE_COMMAND`] if the store's own default could be larger.
fn cache_of_one_command() -> Option<usize> {
    let limit = azekura_base::memory::limit()?;
    (limit / 8 > CACHE_OF_ONE_COMMAND as u64).then_some(CACHE_OF_ONE_COMMAND)
}

impl StoreArguments {
    pub(crate) fn builder(&self) -> Result<Builder> {
        self.with_archive(self.settings()?)
    }

    fn with_archive(&self, builder: Builder) -> Result<Builder> {
        Ok(match &self.archive {
            Some(url) if is_object(url) => {
                return Err(UsageError(format!(
                    "a store cannot write its archive to {0}: name a directory, and copy that with \
                     `azekura archive DIR {0}`",
                    url.display()
                ))
                .into());
            }
            Some(directory) => builder.archive(directory),
            None => builder,
        })
    }

    /// Returns the settings without the archive, for a command that does not serve.
    pub(crate) fn settings(&self) -> Result<Builder> {
        let is_default = self.cache.is_none() && self.memory.is_none();
        self.with_cache(if is_default { cache_of_one_command() } else { self.cache })
    }

    /// Returns the settings of a restore. The library limits the cache, unless an archive is replayed, which
    /// writes rows in any order.
    pub(crate) fn settings_of_restore(&self) -> Result<Builder> {
        self.with_cache(self.cache)
    }

    fn with_cache(&self, cache: Option<usize>) -> Result<Builder> {
        let mut builder = Database::builder().direct_pages(self.direct_pages);
        if let Some(bytes) = self.memory {
            builder = builder.memory_bytes(bytes);
        }
        if let Some(bytes) = cache {
            builder = builder.cache_bytes(bytes);
        }
        if let Some(bytes) = self.page_size {
            builder = builder.page_size(bytes);
        }
        if let Some(file) = &self.key_file {
            builder = builder.encryption_key(&read_key(file)?);
        }
        Ok(builder)
    }

    /// Opens the store at `path`, or creates one there.
    pub(crate) fn open_or_create(&self, path: &Path) -> Result<Database> {
        self.builder()?.open(path).map_err(|error| with_remedy(error, path))
    }

    /// Opens the store at `path` for reading, without writing to it.
    pub(crate) fn open_to_read(&self, path: &Path) -> Result<Database> {
        self.builder()?.read_only(true).open(path).map_err(|error| match error {
            Error::InUse { .. } => anyhow!(
                "{} is open for writing in another process. Query that process: a server answers `INFO` and \
                 `GET` (redis-cli -p PORT) and has a metrics endpoint, a program has `Database::stats` and \
                 `Database::check`. Or close the store there, and try again",
                path.display()
            ),
            error => with_remedy(error, path),
        })
    }

    /// Opens or creates the store of a server. With an interval, the log is synced once per interval.
    pub(crate) fn open_to_serve(&self, path: &Path, interval: Option<Duration>) -> Result<Database> {
        let builder = self.with_archive(self.with_cache(self.cache)?)?;
        builder.log_sync_interval(interval).open(path).map_err(|error| with_remedy(error, path))
    }

    /// Opens the store at `path`; creates nothing.
    pub(crate) fn open_existing(&self, path: &Path) -> Result<Database> {
        self.builder()?.create(false).open(path).map_err(|error| with_remedy(error, path))
    }
}

/// Adds the remedy to the error that there is no store at `path`, or a file in its place.
fn with_remedy(error: Error, path: &Path) -> anyhow::Error {
    match error {
        Error::NotFound { .. } | Error::Io { .. } if path.is_file() => {
            anyhow!("{} is a file; name the directory of a store", path.display())
        }
        Error::NotFound { .. } => {
            anyhow!("{error}; `azekura load {} TABLE FILE` creates one", path.display())
        }
        error => error.into(),
    }
}

/// Returns whether an archive's place is a URL of an object store.
pub(crate) fn is_object(archive: &Path) -> bool {
    matches!(backup_location::parse(archive.as_os_str().to_owned()), Ok(BackupLocation::Object(_)))
}

/// Reads a file, or the part of it that shows that it is too long for a key or a password. Devices such as
/// /dev/urandom have no end.
pub(crate) fn read_short(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(4096).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a key from a file: 32 bytes, or 64 hexadecimal digits.
pub(crate) fn read_key(file: &Path) -> Result<[u8; 32]> {
    let bytes = read_short(file).with_context(|| format!("cannot read the key in {}", file.display()))?;
    let digits = bytes.trim_ascii();
    let from_hex = || -> Option<[u8; 32]> {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let bytes: Option<Vec<u8>> =
            digits.chunks(2).map(|two| Some(digit(two[0])? << 4 | digit(*two.get(1)?)?)).collect();
        bytes?.try_into().ok()
    };
    bytes.as_slice().try_into().ok().or_else(from_hex).ok_or_else(|| {
        anyhow!(
            "{} holds no key: write 32 bytes or 64 hexadecimal digits, as `openssl rand -hex 32` prints them",
            file.display()
        )
    })
}

/// Reads a key from a file, and gives it this id.
pub(crate) fn read_named_key(file: &Path, id: Option<&str>) -> Result<EncryptionKey> {
    Ok(EncryptionKey::with_id(id.unwrap_or_default(), &read_key(file)?))
}

/// A table of bytes.
pub(crate) type Bytes = TableDefinition<[u8], [u8]>;

/// Opens the existing table `name` for reading.
pub(crate) fn existing_table<'tx>(
    db: &Database,
    tx: &'tx Transaction,
    name: &str,
) -> Result<Table<'tx, [u8], [u8]>> {
    if !tx.table_exists(name)? {
        return Err(no_such_table(db, name)?);
    }
    Ok(tx.table(&Bytes::raw(name))?)
}

/// Opens the existing table `name` of a snapshot.
pub(crate) fn existing_in<'s>(
    db: &Database,
    snapshot: &'s Snapshot,
    name: &str,
) -> Result<SnapshotTable<'s, [u8], [u8]>> {
    if !snapshot.table_exists(name)? {
        return Err(no_such_table(db, name)?);
    }
    Ok(snapshot.table(&Bytes::raw(name))?)
}

/// Returns the types of the rows of table `name`; without a table, types that accept all rows.
pub(crate) fn row_types(db: &Database, name: &str) -> Result<RowTypes> {
    let types = db.transact(|tx| tx.table_types(name))?;
    Ok(types.map_or_else(RowTypes::default, |types| RowTypes::new(&types.key, &types.value)))
}

fn no_such_table(db: &Database, name: &str) -> Result<anyhow::Error> {
    let names = db.table_names()?;
    let shown: Vec<String> = names.iter().take(8).map(|name| escaped(name.as_bytes())).collect();
    let rest = if names.len() > shown.len() { ", …" } else { "" };
    let present = if names.is_empty() {
        "the store has none yet".to_owned()
    } else {
        format!("the store has {}{rest}", shown.join(", "))
    };
    Ok(anyhow!("there is no table named {name:?}; {present}"))
}
