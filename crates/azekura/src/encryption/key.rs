//! The caller's key, and its source.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::KEY_BYTES;
use crate::Error;

/// A key of an encrypted store: 32 random bytes, and an optional id.
///
/// The files of the store have the id in clear, so that
/// [`Builder::encryption_key_source`](crate::Builder::encryption_key_source) finds the key. A store opens
/// with the bytes of its key and any id.
///
/// ```
/// use azekura::EncryptionKey;
/// let key = EncryptionKey::with_id("shop/2", &[7; 32]);
/// assert_eq!(format!("{key:?}"), r#"EncryptionKey { id: "shop/2", .. }"#); // not the bytes
/// let without_id: EncryptionKey = (&[7; 32]).into();
/// ```
#[derive(Clone)]
pub struct EncryptionKey {
    bytes: [u8; KEY_BYTES],
    id: String,
}

impl EncryptionKey {
    /// Returns a key with an id of at most 512 bytes.
    pub fn with_id(id: impl Into<String>, bytes: &[u8; KEY_BYTES]) -> Self {
        Self { bytes: *bytes, id: id.into() }
    }

    pub(crate) const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.bytes
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }
}

/// Returns a key without an id.
impl From<&[u8; KEY_BYTES]> for EncryptionKey {
    fn from(bytes: &[u8; KEY_BYTES]) -> Self {
        Self::with_id("", bytes)
    }
}

impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncryptionKey").field("id", &self.id).finish_non_exhaustive()
    }
}

type Fetch = dyn Fn(&str) -> Result<[u8; KEY_BYTES], Box<dyn std::error::Error + Send + Sync>> + Send + Sync;

/// The setting of a builder: a key, or a function that returns the key with an id.
#[derive(Clone)]
pub(crate) enum KeySource {
    Key(EncryptionKey),
    Function {
        /// The id of the key of a new store.
        id: String,
        fetch: Arc<Fetch>,
    },
}

impl KeySource {
    /// Returns the id of the key of a new store.
    pub(crate) fn new_id(&self) -> &str {
        match self {
            Self::Key(key) => &key.id,
            Self::Function { id, .. } => id,
        }
    }

    /// Sets the id of the key of a new store, if it has none.
    pub(crate) fn set_new_id_if_empty(&mut self, id: &str) {
        let new_id = match self {
            Self::Key(key) => &mut key.id,
            Self::Function { id, .. } => id,
        };
        if new_id.is_empty() {
            id.clone_into(new_id);
        }
    }

    /// Returns the key of the store or backup at `path`, which has this id.
    pub(super) fn key(&self, path: &Path, id: &str) -> Result<EncryptionKey, Error> {
        let bytes = match self {
            Self::Key(key) => Ok(key.bytes),
            Self::Function { fetch, .. } => fetch(id),
        };
        bytes.map(|bytes| EncryptionKey::with_id(id, &bytes)).map_err(|source| {
            Error::EncryptionKeyUnavailable { path: path.to_path_buf(), id: id.to_owned(), source }
        })
    }
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySource").field("id", &self.new_id()).finish_non_exhaustive()
    }
}
