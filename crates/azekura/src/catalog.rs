//! Names of tables: a tree of its own (root page 1) from name to tree id and root page.
//!
//! A table name is looked up in a cache first. A cached entry is believed only after the transaction has a
//! lock on the table itself and finds the entry still there; who drops a table holds that lock exclusively
//! and takes the entry out before letting go. So no transaction ever works on a tree that is gone.
//!
//! - **CATALOG-1** A [`Hint`] is made while a lock on its table is held, and the version moves under the
//!   exclusive lock of each table that goes: who has locked the hint's table and finds the version unmoved
//!   has a table that is there. That costs one load of a line that is hardly ever written.

use std::collections::HashMap;
use std::sync::Arc;

use azekura_base::sync::RwLock;
use azekura_base::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use azekura_base::varint::{put_u64, take_u64};
use azekura_base::{PageId, TreeId};
use azekura_btree::Tree;

use crate::Error;

/// The catalogue's own tree.
pub(crate) const CATALOG: Tree = Tree { id: TreeId(0), root: PageId(1) };

#[derive(Debug, Default)]
pub(crate) struct Catalog {
    cache: RwLock<HashMap<Arc<str>, Tree>>,
    next_id: AtomicU32,
    /// Tables dropped so far.
    version: AtomicU64,
}

/// A table's tree, and when it was that: see CATALOG-1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hint {
    pub(crate) tree: Tree,
    version: u64,
}

impl Catalog {
    pub(crate) fn cached(&self, name: &str) -> Option<Tree> {
        self.cache.read().get(name).copied()
    }

    /// The caller holds a shared lock, at least, on the catalogue's row of this name, and read `tree` there.
    pub(crate) fn remember(&self, name: &Arc<str>, tree: Tree) {
        self.cache.write().insert(Arc::clone(name), tree);
    }

    /// The caller holds an exclusive lock on the table and is about to let it go.
    pub(crate) fn forget(&self, name: &str) {
        self.cache.write().remove(name);
        // Release: pairs with the Acquire in `is_current`, though the table's own lock orders the two
        // already.
        self.version.fetch_add(1, Release);
    }

    /// What to remember of a table that the caller has locked and knows to be there.
    pub(crate) fn hint(&self, tree: Tree) -> Hint {
        Hint { tree, version: self.version.load(Relaxed) }
    }

    /// Whether the hint's table, which the caller has locked, is still there (CATALOG-1).
    pub(crate) fn is_current(&self, hint: Hint) -> bool {
        self.version.load(Acquire) == hint.version
    }

    /// A tree id that no tree has had since the store was opened.
    pub(crate) fn new_id(&self) -> TreeId {
        // Relaxed: only distinctness matters.
        TreeId(self.next_id.fetch_add(1, Relaxed))
    }

    /// No id at or below `used` is given out any more.
    pub(crate) fn reserve(&self, used: TreeId) {
        self.next_id.fetch_max(used.0 + 1, Relaxed);
    }
}

/// The catalogue's value for a tree.
pub(crate) fn encode(tree: Tree) -> Vec<u8> {
    let mut out = Vec::new();
    put_u64(&mut out, u64::from(tree.id.0));
    put_u64(&mut out, tree.root.0);
    out
}

/// The tree of a catalogue value; `None` for bytes that are none.
pub(crate) fn decode(mut value: &[u8]) -> Option<Tree> {
    let id = u32::try_from(take_u64(&mut value)?).ok()?;
    let root = take_u64(&mut value)?;
    (value.is_empty() && id != 0).then_some(Tree { id: TreeId(id), root: PageId(root) })
}

/// The error of a catalog row that holds no tree.
pub(crate) fn corrupt_row(table: &str) -> Error {
    Error::CorruptPage {
        page: CATALOG.root,
        reason: format!("the catalog's row of table {table:?} is no tree"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_round_trips_and_damage_is_seen() {
        let tree = Tree { id: TreeId(300), root: PageId(1 << 40) };
        assert_eq!(decode(&encode(tree)), Some(tree));
        assert_eq!(decode(&encode(tree)[..3]), None);
        assert_eq!(decode(b""), None);
    }
}
