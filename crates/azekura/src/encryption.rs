//! Encryption at rest: the keys of a store, and the cipher of its files.
//!
//! A store that is created with a key has a random *data key*. CONTROL has the data key *wrapped*: encrypted
//! with the caller's key. Backups and files of the archive have the wrapped key, too ([decision
//! 056](https://github.com/azekura/azekura/blob/main/docs/decisions/056-encryption-at-rest.md)). CONTROL and
//! backups have a *key record*: the wrapped data key, then the id of the caller's key in clear. From this id
//! the function of `Builder::encryption_key_source` finds the key.
//!
//! - **KEY-1** Each creation of a store, also by a restore or a compaction, draws a new data key. Only copies
//!   of the store's files share a data key.
//! - **KEY-2** After the caller's key was changed, no slot of CONTROL has the data key wrapped with the old
//!   key.
//!
//! | module | noun |
//! |---|---|
//! | `aes_gcm` | the cipher; only with the feature `encryption` |
//! | `key` | the caller's key, and its source |

#[cfg(feature = "encryption")]
mod aes_gcm;
#[cfg_attr(not(feature = "encryption"), allow(dead_code, unreachable_pub, reason = "`Builder` takes no key"))]
mod key;
#[cfg(all(test, feature = "encryption"))]
mod tests;

use std::path::Path;
use std::sync::Arc;

use azekura_base::Cipher;
use azekura_base::cipher::TRAILER_BYTES;
use azekura_base::sync::Mutex;
use azekura_wal::LogProtocol;

#[cfg_attr(not(feature = "encryption"), allow(unreachable_pub, reason = "`Builder` takes no key"))]
pub use key::EncryptionKey;
pub(crate) use key::KeySource;

use crate::{Builder, Error};

/// Size of a key.
pub(crate) const KEY_BYTES: usize = 32;
/// Size of a wrapped data key.
pub(crate) const WRAPPED_BYTES: usize = KEY_BYTES + TRAILER_BYTES;
/// Largest length of the id of a key. CONTROL has space for it beside all gaps.
const MOST_ID_BYTES: usize = 512;

/// The keys of an open store that is encrypted.
#[derive(Clone, Debug)]
pub(crate) struct StoreKeys {
    pub(crate) cipher: Arc<dyn Cipher>,
    /// The caller's present key.
    pub(crate) caller: Arc<Mutex<EncryptionKey>>,
}

/// Returns an error if the settings would leave a part of an encrypted store unencrypted.
pub(crate) fn check_settings(builder: &Builder) -> Result<(), Error> {
    let refuse = |reason: &str| Err(Error::Invalid(reason.into()));
    let Some(source) = &builder.encryption_key else { return Ok(()) };
    check_id(source.new_id())?;
    if builder.protocol != LogProtocol::PWal {
        return refuse("only the log P-WAL can be encrypted: choose it, or open the store without a key");
    }
    #[cfg(feature = "far")]
    if builder.far.is_some() {
        return refuse(
            "a far cache would get the pages of an encrypted store in plain text: open it without one",
        );
    }
    Ok(())
}

/// Returns an error if the id of a key is too long.
fn check_id(id: &str) -> Result<(), Error> {
    if id.len() <= MOST_ID_BYTES {
        return Ok(());
    }
    let reason = format!("the id of the encryption key has {} bytes; use at most {MOST_ID_BYTES}", id.len());
    Err(Error::Invalid(reason))
}

/// Returns the keys of a store or backup at `path` with this key record; `None` if the record is empty,
/// because the files are not encrypted. Calls the key source once.
pub(crate) fn unlock(
    path: &Path,
    record: &[u8],
    source: Option<&KeySource>,
) -> Result<Option<StoreKeys>, Error> {
    if record.is_empty() {
        return Ok(None);
    }
    let path = || path.to_path_buf();
    let parts = record.split_at_checked(WRAPPED_BYTES);
    let parts = parts.and_then(|(wrapped, id)| Some((wrapped, std::str::from_utf8(id).ok()?.to_owned())));
    let Some((wrapped, id)) = parts else {
        let reason = "the record of its data key cannot be decoded; restore an intact backup".into();
        return Err(Error::Corrupt { path: path(), offset: 0, reason });
    };
    let Some(source) = source else { return Err(Error::EncryptionKeyMissing { path: path(), id }) };
    let caller = source.key(&path(), &id)?;
    let Some(cipher) = unwrap(&caller, wrapped) else {
        return Err(Error::WrongEncryptionKey { path: path(), id });
    };
    Ok(Some(StoreKeys { cipher, caller: Arc::new(Mutex::new(caller)) }))
}

/// Returns the keys of the store at `path`. Returns an error if a key is given for a store that is not
/// encrypted.
pub(crate) fn unlock_store(
    path: &Path,
    record: &[u8],
    source: Option<&KeySource>,
) -> Result<Option<StoreKeys>, Error> {
    match unlock(path, record, source)? {
        None if source.is_some() => Err(Error::NotEncrypted { path: path.to_path_buf() }),
        keys => Ok(keys),
    }
}

#[cfg(feature = "encryption")]
fn unwrap(caller: &EncryptionKey, wrapped: &[u8]) -> Option<Arc<dyn Cipher>> {
    aes_gcm::unwrap(caller.bytes(), wrapped).map(|key| Arc::new(aes_gcm::AesGcm::new(&key)) as _)
}

#[cfg(not(feature = "encryption"))]
fn unwrap(_: &EncryptionKey, _: &[u8]) -> Option<Arc<dyn Cipher>> {
    None // `Builder` takes no key
}

/// Returns the key record and the keys of a new store with a new data key; an empty record without a key.
#[cfg(feature = "encryption")]
pub(crate) fn new_data_key(
    path: &Path,
    source: Option<&KeySource>,
) -> Result<(Vec<u8>, Option<StoreKeys>), Error> {
    let Some(source) = source else { return Ok((Vec::new(), None)) };
    let caller = source.key(path, source.new_id())?;
    let data_key =
        aes_gcm::new_data_key().map_err(|error| Error::io("draw an encryption key for", path, error))?;
    let record = key_record(path, &caller, &data_key)?;
    let keys = unlock(path, &record, Some(&KeySource::Key(caller)))?;
    Ok((record, keys))
}

#[cfg(not(feature = "encryption"))]
pub(crate) fn new_data_key(_: &Path, _: Option<&KeySource>) -> Result<(Vec<u8>, Option<StoreKeys>), Error> {
    Ok((Vec::new(), None))
}

/// Returns the key record for a data key and a key of the caller.
#[cfg(feature = "encryption")]
fn key_record(path: &Path, caller: &EncryptionKey, data_key: &[u8; KEY_BYTES]) -> Result<Vec<u8>, Error> {
    let wrapped = aes_gcm::wrap(caller.bytes(), data_key);
    let mut record = wrapped.map_err(|error| Error::io("draw a nonce for", path, error))?;
    record.extend_from_slice(caller.id().as_bytes());
    Ok(record)
}

#[cfg(feature = "encryption")]
impl Builder {
    /// Sets the key of an encrypted store; default: no encryption. A new store is encrypted if it is created
    /// with a key; later openings need that key. Needs the feature `encryption`.
    ///
    /// Pages, the log, the sort files of loads, [backups](crate::Database::backup) and the
    /// [archive](Self::archive) are encrypted with AES-256-GCM by a random data key. The store contains the
    /// data key, encrypted with `key`. The guide lists data that are not protected. A store in memory
    /// ([`open_in_memory`](Self::open_in_memory)) ignores the key. A
    /// [compaction](crate::Compaction::encryption_key) copies a store into an encrypted one.
    ///
    /// ```
    /// use azekura::{Database, Error, TableDefinition};
    /// const STOCK: TableDefinition<str, u64> = TableDefinition::new("stock");
    ///
    /// # fn main() -> Result<(), Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// let (path, key) = (dir.path().join("shop.azk"), [7; 32]); // in a real program: 32 random bytes
    /// let db = Database::builder().encryption_key(&key).open(&path)?;
    /// db.transact(|tx| tx.table(&STOCK)?.insert("rice", &7))?;
    /// db.close()?;
    ///
    /// assert!(matches!(Database::open(&path), Err(Error::EncryptionKeyMissing { .. })));
    /// let wrong = Database::builder().encryption_key(&[8; 32]).open(&path);
    /// assert!(matches!(wrong, Err(Error::WrongEncryptionKey { .. })));
    /// let db = Database::builder().encryption_key(&key).open(&path)?;
    /// assert_eq!(db.read(|s| s.table(&STOCK)?.get("rice"))?, Some(7));
    /// # db.close()
    /// # }
    /// ```
    #[must_use]
    pub fn encryption_key(mut self, key: impl Into<EncryptionKey>) -> Self {
        self.encryption_key = Some(KeySource::Key(key.into()));
        self
    }

    /// Sets a function that returns the key of an encrypted store, for example from a key service. The store
    /// calls it with the id of the key. The files of the store have this id in clear; it is `id` for a new
    /// store, and [`change_encryption_key`](crate::Database::change_encryption_key) sets another one. The
    /// function is called once for each opening of a store or backup, and twice for the creation of a store.
    /// The id is empty if the key has none.
    ///
    /// An error of the function is returned as [`Error::EncryptionKeyUnavailable`]. An id has at most 512
    /// bytes. It may be the key itself as encrypted by the service, in text.
    ///
    /// ```
    /// use azekura::{Database, EncryptionKey, Error, TableDefinition};
    /// # fn ask_key_service(id: &str) -> Result<[u8; 32], std::io::Error> {
    /// #     let first = id.as_bytes().last().copied();
    /// #     first.map(|n| [n; 32]).ok_or_else(|| std::io::ErrorKind::NotFound.into())
    /// # }
    /// # fn main() -> Result<(), Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("shop.azk");
    /// let open = || Database::builder().encryption_key_source("shop/1", ask_key_service).open(&path);
    /// let db = open()?; // creates the store with the key "shop/1"
    /// let new = ask_key_service("shop/2").map_err(Error::other)?;
    /// db.change_encryption_key(EncryptionKey::with_id("shop/2", &new))?;
    /// db.close()?;
    /// let db = open()?; // asks for the key "shop/2"
    /// assert_eq!(db.encryption_key_id().as_deref(), Some("shop/2"));
    /// # db.close()
    /// # }
    /// ```
    #[must_use]
    pub fn encryption_key_source<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        mut self,
        id: impl Into<String>,
        fetch: impl Fn(&str) -> Result<[u8; KEY_BYTES], E> + Send + Sync + 'static,
    ) -> Self {
        let fetch = Arc::new(move |id: &str| fetch(id).map_err(Into::into));
        self.encryption_key = Some(KeySource::Function { id: id.into(), fetch });
        self
    }
}

#[cfg(feature = "encryption")]
impl crate::Database {
    /// Returns `true` if the store is encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.shared().keys.is_some()
    }

    /// Returns the id of the key with which the store is encrypted: empty if the key has none, `None` if the
    /// store is not encrypted.
    #[must_use]
    pub fn encryption_key_id(&self) -> Option<String> {
        self.shared().keys.as_ref().map(|keys| keys.caller.lock().id().to_owned())
    }

    /// Wraps the data key of the store with `new`, the caller's new key; later openings need the new key.
    /// Costs two writes to the control file. The data key stays the same, so no page is rewritten. To replace
    /// the data key, too, [compact](Self::compaction) the store after the change. Older backups still need
    /// the old key. A [restore](crate::Restore) needs the key of its backup only: the data key in that backup
    /// also decrypts the bases and the archive.
    ///
    /// ```
    /// # use azekura::{Database, Error};
    /// # fn main() -> Result<(), Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// let db = Database::builder().encryption_key(&[7; 32]).open(dir.path())?;
    /// db.change_encryption_key(&[8; 32])?;
    /// db.close()?;
    /// Database::builder().encryption_key(&[8; 32]).open(dir.path())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotEncrypted`], [`Error::ReadOnly`]; [`Error::Invalid`]: the id of the key is too long;
    /// [`Error::Io`]: the control file cannot be written. After an [`Error::Io`] the store opens with the old
    /// key or with the new one, and the call may be repeated: the old key is needed until a call succeeds.
    pub fn change_encryption_key(&self, new: impl Into<EncryptionKey>) -> Result<(), Error> {
        self.wrap_data_key(&new.into())
    }

    fn wrap_data_key(&self, new: &EncryptionKey) -> Result<(), Error> {
        let shared = self.owners().enter()?;
        let path = || shared.path.clone();
        let keys = shared.keys.as_ref().ok_or_else(|| Error::NotEncrypted { path: path() })?;
        if shared.options.read_only {
            return Err(Error::ReadOnly);
        }
        check_id(new.id())?;
        let mut control = shared.control.change();
        let mut caller = keys.caller.lock();
        let current = control.current();
        let wrapped = current.key_record.get(..WRAPPED_BYTES);
        let data_key = wrapped.and_then(|wrapped| aes_gcm::unwrap(caller.bytes(), wrapped));
        let data_key =
            data_key.ok_or_else(|| Error::WrongEncryptionKey { path: path(), id: caller.id().to_owned() })?;
        let record = key_record(&shared.path, new, &data_key)?;
        // KEY-2: the loop writes both slots.
        for _ in 0..2 {
            let mut next = (*control.current()).clone();
            next.key_record.clone_from(&record);
            control.write(next)?;
            *caller = new.clone();
        }
        shared.archive.iter().for_each(|archive| archive.set_key_record(&record));
        Ok(())
    }
}
