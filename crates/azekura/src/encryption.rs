//! Encryption at rest: the keys of a store, and the cipher of its files.
//!
//! A store that is created with a key has a random *data key*. CONTROL has the data key *wrapped*: encrypted
//! with the caller's key. Backups and files of the archive have the wrapped key, too ([decision
//! 056](https://github.com/azekura/azekura/blob/main/docs/decisions/056-encryption-at-rest.md)).
//!
//! - **KEY-1** Each creation of a store, also by a restore or a compaction, draws a new data key. Only copies
//!   of the store's files share a data key.
//! - **KEY-2** After the caller's key was changed, no slot of CONTROL has the data key wrapped with the old
//!   key.
//!
//! | module | noun |
//! |---|---|
//! | `aes_gcm` | the cipher; only with the feature `encryption` |

#[cfg(feature = "encryption")]
mod aes_gcm;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use azekura_base::Cipher;
use azekura_base::cipher::TRAILER_BYTES;
use azekura_base::sync::Mutex;
use azekura_wal::LogProtocol;

use crate::{Builder, Error};

/// Size of a key.
pub(crate) const KEY_BYTES: usize = 32;
/// Size of a wrapped data key.
pub(crate) const WRAPPED_BYTES: usize = KEY_BYTES + TRAILER_BYTES;

/// The caller's key, which wraps the data key.
#[cfg_attr(not(feature = "encryption"), allow(dead_code, reason = "`Builder` takes no key"))]
#[derive(Clone)]
pub(crate) struct CallerKey(pub(crate) [u8; KEY_BYTES]);

impl fmt::Debug for CallerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallerKey")
    }
}

/// The keys of an open store that is encrypted.
#[derive(Clone, Debug)]
pub(crate) struct StoreKeys {
    pub(crate) cipher: Arc<dyn Cipher>,
    /// The caller's present key.
    pub(crate) caller: Arc<Mutex<CallerKey>>,
}

/// Returns an error if the settings would leave a part of an encrypted store unencrypted.
pub(crate) fn check_settings(builder: &Builder) -> Result<(), Error> {
    let refuse = |reason: &str| Err(Error::Invalid(reason.into()));
    if builder.encryption_key.is_none() {
        return Ok(());
    }
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

/// Returns the cipher of a store, backup or archive at `path` with this wrapped data key; `None` if the
/// wrapped key is empty, because the files are not encrypted.
pub(crate) fn unlock(
    path: &Path,
    wrapped: &[u8],
    caller: Option<&CallerKey>,
) -> Result<Option<Arc<dyn Cipher>>, Error> {
    if wrapped.is_empty() {
        return Ok(None);
    }
    let path = || path.to_path_buf();
    let caller = caller.ok_or_else(|| Error::EncryptionKeyMissing { path: path() })?;
    unwrap(caller, wrapped).map(Some).ok_or_else(|| Error::WrongEncryptionKey { path: path() })
}

/// Returns the keys of the store at `path`. Returns an error if a key is given for a store that is not
/// encrypted.
pub(crate) fn unlock_store(
    path: &Path,
    wrapped: &[u8],
    caller: Option<&CallerKey>,
) -> Result<Option<StoreKeys>, Error> {
    let cipher = unlock(path, wrapped, caller)?;
    match (cipher, caller) {
        (Some(cipher), Some(caller)) => {
            Ok(Some(StoreKeys { cipher, caller: Arc::new(Mutex::new(caller.clone())) }))
        }
        (_, Some(_)) => Err(Error::NotEncrypted { path: path.to_path_buf() }),
        (_, None) => Ok(None),
    }
}

#[cfg(feature = "encryption")]
fn unwrap(caller: &CallerKey, wrapped: &[u8]) -> Option<Arc<dyn Cipher>> {
    aes_gcm::unwrap(caller, wrapped).map(|key| Arc::new(aes_gcm::AesGcm::new(&key)) as _)
}

#[cfg(not(feature = "encryption"))]
fn unwrap(_: &CallerKey, _: &[u8]) -> Option<Arc<dyn Cipher>> {
    None // `Builder` takes no key
}

/// Returns a new data key, wrapped with the key of `caller`; empty without a key.
#[cfg(feature = "encryption")]
pub(crate) fn new_data_key(path: &Path, caller: Option<&CallerKey>) -> Result<Vec<u8>, Error> {
    let Some(caller) = caller else { return Ok(Vec::new()) };
    aes_gcm::new_data_key(caller).map_err(|error| Error::io("draw an encryption key for", path, error))
}

#[cfg(not(feature = "encryption"))]
pub(crate) fn new_data_key(_: &Path, _: Option<&CallerKey>) -> Result<Vec<u8>, Error> {
    Ok(Vec::new())
}

#[cfg(feature = "encryption")]
impl Builder {
    /// Sets the key of an encrypted store; default: no encryption. A new store is encrypted if it is created
    /// with a key; later openings need that key. Needs the feature `encryption`.
    ///
    /// Pages, the log, the sort files of loads, [backups](crate::Database::backup) and the
    /// [archive](Self::archive) are encrypted with AES-256-GCM by a random data key. The store contains the
    /// data key, encrypted with `key`. The guide lists data that are not protected. A store in memory
    /// ([`open_in_memory`](Self::open_in_memory)) ignores the key. To encrypt an existing store, restore a
    /// backup of it with a key.
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
    pub fn encryption_key(mut self, key: &[u8; KEY_BYTES]) -> Self {
        self.encryption_key = Some(CallerKey(*key));
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

    /// Wraps the data key of the store with `new`, the caller's new key; later openings need the new key.
    /// Costs two writes to the control file. The data key stays the same, so no page is rewritten. Older
    /// backups still need the old key. A [restore](crate::Restore) needs the key of its backup only: the data
    /// key in that backup also decrypts the bases and the archive.
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
    /// [`Error::NotEncrypted`], [`Error::ReadOnly`]; [`Error::Io`]: the control file cannot be written. The
    /// store then opens with the old key or with the new one, and the call may be repeated.
    pub fn change_encryption_key(&self, new: &[u8; KEY_BYTES]) -> Result<(), Error> {
        let shared = self.owners().enter()?;
        let path = || shared.path.clone();
        let keys = shared.keys.as_ref().ok_or_else(|| Error::NotEncrypted { path: path() })?;
        if shared.options.read_only {
            return Err(Error::ReadOnly);
        }
        let new = CallerKey(*new);
        let mut control = shared.control.lock();
        let mut caller = keys.caller.lock();
        let data_key = aes_gcm::unwrap(&caller, &control.current().wrapped_key)
            .ok_or_else(|| Error::WrongEncryptionKey { path: path() })?;
        let wrapped = aes_gcm::wrap(&new, &data_key)
            .map_err(|error| Error::io("draw a nonce for", &shared.path, error))?;
        // KEY-2: the loop writes both slots.
        for _ in 0..2 {
            let mut next = control.current().clone();
            next.wrapped_key.clone_from(&wrapped);
            control.write(next)?;
            *caller = new.clone();
        }
        shared.archive.iter().for_each(|archive| archive.set_wrapped_key(&wrapped));
        Ok(())
    }
}
