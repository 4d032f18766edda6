//! Names of tables: a tree of its own (root page 1) from name to tree id and root page.
//!
//! A table name is looked up in a cache first. A cached entry is believed only after the transaction has a lock on the
//! table itself and finds the entry still there; who drops a table holds that lock exclusively and takes the entry out before letting
//! go. So no transaction ever works on a tree that is gone.

use std::collections::HashMap;
use std::sync::Arc;

use azekura_base::sync::atomic::{AtomicU32, Ordering::Relaxed};
use azekura_base::varint::{put_u64, take_u64};
use azekura_base::{PageId, TreeId};
use azekura_btree::Tree;
use parking_lot::RwLock;

/// The catalogue's own tree.
pub(crate) const CATALOG: Tree = Tree { id: TreeId(0), root: PageId(1) };

#[derive(Debug, Default)]
pub(crate) struct Catalog {
    cache: RwLock<HashMap<Arc<str>, Tree>>,
    next_id: AtomicU32,
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
