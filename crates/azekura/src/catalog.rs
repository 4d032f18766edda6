//! The catalog: a tree (root page 1) that maps each table name to tree id, root page, and types.
//!
//! A table name is looked up in a cache first. A cached entry is valid only if the transaction has locked the
//! table itself and the cache still has the entry. A transaction that drops a table holds that lock
//! exclusively, and removes the entry before it releases the lock. So no transaction works on a removed tree.
//!
//! - **CATALOG-1** A [`Hint`] is made while a lock on its table is held. The catalog's version changes under
//!   the exclusive lock of each table that is dropped. So if a transaction has locked the hint's table and
//!   the version is unchanged, the table exists. This check costs one load from a cache line that is rarely
//!   written.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use azekura_base::sync::RwLock;
use azekura_base::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};
use azekura_base::varint::{put_bytes, put_u64, take_bytes, take_u64};
use azekura_base::{PageId, TreeId};
use azekura_btree::Tree;

use crate::Error;
use crate::key::Key;
use crate::table::MAX_TABLE_NAME;
use crate::value::Value;

/// The tree of the catalog itself.
pub(crate) const CATALOG: Tree = Tree { id: TreeId(0), root: PageId(1) };

/// Version of the encodings of keys and values in tables written by this build.
const CODEC_VERSION: u32 = 1;

/// The types of a table's rows; the catalog stores them from the table's first row on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableTypes {
    /// The key type ([`Key::type_name`](crate::Key::type_name)).
    pub key: String,
    /// The value type ([`Value::type_name`](crate::Value::type_name)).
    pub value: String,
    /// Version of the encodings.
    pub codec: u32,
}

impl TableTypes {
    pub(crate) fn of<K: Key + ?Sized, V: Value + ?Sized>() -> Self {
        Self { key: K::type_name(), value: V::type_name(), codec: CODEC_VERSION }
    }

    /// Returns the types with these names. The same names always return the same object.
    pub(crate) fn kept(key: &str, value: &str) -> &'static Self {
        static KEPT: Mutex<Vec<&TableTypes>> = Mutex::new(Vec::new());
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(types) = kept.iter().find(|types| types.key == key && types.value == value) {
            return types;
        }
        let types = Self { key: key.into(), value: value.into(), codec: CODEC_VERSION };
        kept.push(Box::leak(Box::new(types)));
        kept[kept.len() - 1]
    }
}

impl fmt::Display for TableTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "keys {}, values {}", self.key, self.value)?;
        if self.codec == CODEC_VERSION { Ok(()) } else { write!(f, ", codec version {}", self.codec) }
    }
}

/// A table of the store; see [`Database::tables`](crate::Database::tables).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TableInfo {
    /// Name of the table.
    pub name: String,
    /// Types of the table's rows.
    #[serde(flatten)]
    pub types: TableTypes,
}

/// A table in the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) tree: Tree,
    pub(crate) types: Arc<TableTypes>,
}

#[derive(Debug, Default)]
pub(crate) struct Catalog {
    cache: RwLock<HashMap<Arc<str>, Entry>>,
    next_id: AtomicU32,
    /// Number of tables dropped so far.
    version: AtomicU64,
}

/// A table's tree, with the catalog's version when the tree was looked up: see CATALOG-1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hint {
    pub(crate) tree: Tree,
    version: u64,
}

impl Catalog {
    pub(crate) fn cached(&self, name: &str) -> Option<Entry> {
        self.cache.read().get(name).cloned()
    }

    /// Adds a table to the cache. The caller holds at least a shared lock on the catalog's row of this name,
    /// and has read `entry` from that row.
    pub(crate) fn remember(&self, name: &Arc<str>, entry: Entry) {
        self.cache.write().insert(Arc::clone(name), entry);
    }

    /// Removes a table from the cache. The caller holds an exclusive lock on the table, and releases it
    /// afterward.
    pub(crate) fn forget(&self, name: &str) {
        self.cache.write().remove(name);
        // Release: pairs with the Acquire in `is_current`, though the table's own lock orders the two
        // already.
        self.version.fetch_add(1, Release);
    }

    /// Returns the hint for a table that the caller has locked and that exists.
    pub(crate) fn hint(&self, tree: Tree) -> Hint {
        Hint { tree, version: self.version.load(Relaxed) }
    }

    /// Returns `true` if the hint's table, which the caller has locked, still exists (CATALOG-1).
    pub(crate) fn is_current(&self, hint: Hint) -> bool {
        self.version.load(Acquire) == hint.version
    }

    /// Returns a tree id that no tree has had since the store was opened.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: all ids were used.
    pub(crate) fn new_id(&self) -> Result<TreeId, Error> {
        // SeqCst: pairs with the load in `next_id`. The creator of the tree reads the snapshot clock after
        // this increment, and a thread that opens a snapshot advances the clock before that load. So if the
        // snapshot sees the tree, the load returns an id above the tree's.
        // Relaxed for the guess and a failure: the exchange decides.
        let mut id = self.next_id.load(Relaxed);
        while id < u32::MAX {
            match self.next_id.compare_exchange_weak(id, id + 1, SeqCst, Relaxed) {
                Ok(_) => return Ok(TreeId(id)),
                Err(found) => id = found,
            }
        }
        Err(Error::Invalid("the store has created 4,294,967,295 tables; compact it into a new store".into()))
    }

    /// Excludes ids up to `used` from later use.
    pub(crate) fn reserve(&self, used: TreeId) {
        self.next_id.fetch_max(used.0.saturating_add(1), Relaxed);
    }

    /// Returns an id that is larger than those of all tables.
    pub(crate) fn next_id(&self) -> u32 {
        self.next_id.load(SeqCst) // SeqCst: pairs with the increment in `new_id`
    }
}

/// Returns the catalog's value for a table.
pub(crate) fn encode(entry: &Entry) -> Vec<u8> {
    let mut out = Vec::new();
    put_u64(&mut out, u64::from(entry.tree.id.0));
    put_u64(&mut out, entry.tree.root.0);
    put_u64(&mut out, u64::from(entry.types.codec));
    put_bytes(&mut out, entry.types.key.as_bytes());
    put_bytes(&mut out, entry.types.value.as_bytes());
    out
}

/// Decodes the tree of a catalog value; `None` for invalid bytes.
pub(crate) fn decode_tree(mut value: &[u8]) -> Option<Tree> {
    take_tree(&mut value)
}

fn take_tree(input: &mut &[u8]) -> Option<Tree> {
    let id = u32::try_from(take_u64(input)?).ok()?;
    Some(Tree { id: TreeId(id), root: PageId(take_u64(input)?) })
}

/// Decodes a catalog value; `None` for invalid bytes.
pub(crate) fn decode(mut value: &[u8]) -> Option<Entry> {
    let input = &mut value;
    let tree = take_tree(input)?;
    let codec = u32::try_from(take_u64(input)?).ok()?;
    let mut text = || std::str::from_utf8(take_bytes(input)?).ok().map(str::to_owned);
    let types = TableTypes { key: text()?, value: text()?, codec };
    (value.is_empty() && tree.id.0 != 0).then_some(Entry { tree, types: Arc::new(types) })
}

/// Returns an error if no table can have this name.
pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let len = name.len();
    if (1..=MAX_TABLE_NAME).contains(&len) {
        return Ok(());
    }
    Err(Error::Invalid(format!("a table name of {len} bytes; use 1 to {MAX_TABLE_NAME}")))
}

/// Returns the error for a catalog row that holds no tree.
pub(crate) fn corrupt_row(table: &str) -> Error {
    let reason = format!("the catalog's row of table {table:?} does not describe a tree");
    Error::damaged(CATALOG.root, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_round_trips_and_damage_is_seen() {
        let tree = Tree { id: TreeId(300), root: PageId(1 << 40) };
        let entry = Entry { tree, types: Arc::new(TableTypes::of::<(String, u64), [u8; 4]>()) };
        let bytes = encode(&entry);
        assert_eq!((decode(&bytes), decode_tree(&bytes)), (Some(entry), Some(tree)));
        (0..bytes.len()).for_each(|len| assert_eq!(decode(&bytes[..len]), None));
        assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
    }

    #[test]
    fn no_table_gets_a_used_id_after_all_ids_were_used() {
        let catalog = Catalog::default();
        catalog.reserve(TreeId(u32::MAX - 2));
        assert_eq!(catalog.new_id().expect("one id is left"), TreeId(u32::MAX - 1));
        for _ in 0..2 {
            assert!(matches!(catalog.new_id(), Err(Error::Invalid(_))));
        }
        catalog.reserve(TreeId(u32::MAX));
        assert_eq!(catalog.next_id(), u32::MAX);
    }
}
