//! The adaptive hash index of InnoDB 5.0 under `btr_search_latch`: rows that were asked for before are found
//! by their keys without a walk down the tree.
//!
//! As there, a change of a row leaves the structure of the index alone and needs the latch only shared:
//! InnoDB's entries point at the record on its page, ours have a cell of their own. Exclusively it is latched
//! for new keys.
//!
//! - **SEARCH-1** What [`SearchIndex::guess`] finds is the row as the last transaction left it that came to
//!   its commit: it is learned under the store's shared lock on the row, and changed under the exclusive
//!   lock, just before the commit. (A commit that has begun fails only when the log does, and the store takes
//!   no more commits then.)

use super::Key;
use azekura_base::sync::Mutex;
use azekura_baselines::rw::{Accounted, Guarded, OneWord, RwLatch, StateCell};
use azekura_trace::Site;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

/// The latch's name in reports.
pub static SEARCH_LATCH: Site = Site::new("btr_search_latch");
/// The name of the mutex inside it.
pub static SEARCH_MUTEX: Site = Site::new("mutex of btr_search_latch");
/// The name of the word in its place.
pub static SEARCH_WORD: Site = Site::new("word of btr_search_latch");

/// Representation of the latch's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Latch {
    /// Under a mutex, as in InnoDB 5.0.
    Mutex,
    /// Under a mutex that also guards an account of the holders, as in its debug build.
    Account,
    /// In one word, as the paper's cure.
    Word,
}

impl Latch {
    /// All, in the order of the study.
    pub const ALL: [Self; 3] = [Self::Mutex, Self::Account, Self::Word];

    /// In tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Account => "mutex + account",
            Self::Word => "one word",
        }
    }

    /// An empty index under such a latch.
    #[must_use]
    pub fn index(self) -> Box<dyn SearchIndex> {
        match self {
            Self::Mutex => Box::new(HashIndex::<Guarded>::new(&SEARCH_MUTEX)),
            Self::Account => Box::new(HashIndex::<Accounted>::new(&SEARCH_MUTEX)),
            Self::Word => Box::new(HashIndex::<OneWord>::new(&SEARCH_WORD)),
        }
    }
}

/// Hashed without a key by chance: which cells share cache lines is to be the same in each run of a
/// simulation, and nobody chooses rows against it.
type Rows = HashMap<Key, Cell, BuildHasherDefault<DefaultHasher>>;
/// A row, or none for now.
type Cell = Mutex<Option<Arc<[u8]>>>;

/// Rows by key, whatever the latch.
pub trait SearchIndex: Send + Sync + std::fmt::Debug {
    /// The row, if it was learned and not forgotten since. Latches shared.
    fn guess(&self, key: &Key) -> Option<Arc<[u8]>>;
    /// Remembers a row that the caller has just read under its lock. Latches exclusively if the key is new.
    fn learn(&self, key: &Key, row: &[u8]);
    /// Changes a row that the caller holds locked exclusively, if it was learned; `None`: it is no more.
    /// Latches shared.
    fn change(&self, key: &Key, row: Option<&[u8]>);
    /// All rows that are known. Latches shared, for long: for checks.
    fn rows(&self) -> Vec<(Key, Arc<[u8]>)>;
}

/// Rows remembered at most; when full, the index starts anew.
const CAPACITY: usize = 1 << 16;

#[derive(Debug)]
struct HashIndex<S> {
    rows: RwLatch<S, Rows>,
}

impl<S: StateCell> HashIndex<S> {
    fn new(inside: &'static Site) -> Self {
        let rows = Rows::with_capacity_and_hasher(CAPACITY, BuildHasherDefault::default());
        Self { rows: RwLatch::new(&SEARCH_LATCH, inside, rows) }
    }

    /// Sets the cell of a key that has one; returns whether it has.
    fn set(&self, key: &Key, row: Option<&Arc<[u8]>>) -> bool {
        let rows = self.rows.shared();
        let Some(cell) = rows.get(key) else { return false };
        let before = std::mem::replace(&mut *cell.lock(), row.map(Arc::clone));
        drop(rows);
        drop(before); // freed, if it is, after the latch was released
        true
    }
}

impl<S: StateCell + std::fmt::Debug> SearchIndex for HashIndex<S> {
    fn guess(&self, key: &Key) -> Option<Arc<[u8]>> {
        self.rows.shared().get(key).and_then(|cell| cell.lock().clone())
    }

    fn learn(&self, key: &Key, row: &[u8]) {
        let row = Arc::from(row);
        if self.set(key, Some(&row)) {
            return;
        }
        let mut rows = self.rows.exclusive();
        if rows.len() >= CAPACITY {
            rows.clear();
        }
        rows.insert(key.clone(), Mutex::new(Some(row)));
    }

    fn change(&self, key: &Key, row: Option<&[u8]>) {
        // A row that is not there cannot come while its exclusive lock is the caller's.
        self.set(key, row.map(Arc::from).as_ref());
    }

    fn rows(&self) -> Vec<(Key, Arc<[u8]>)> {
        let rows = self.rows.shared();
        let known = rows.iter().filter_map(|(key, cell)| cell.lock().clone().map(|row| (key.clone(), row)));
        known.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::bottleneck::front::TableId;

    #[test]
    fn what_was_learnt_is_found_as_it_was_changed_last() {
        for latch in Latch::ALL {
            let index = latch.index();
            let key = Key::new(TableId::Item, 7u64);
            assert!(index.guess(&key).is_none());
            index.learn(&key, b"a row");
            assert_eq!(index.guess(&key).as_deref(), Some(b"a row".as_slice()));
            assert!(index.guess(&Key::new(TableId::Author, 7u64)).is_none());
            index.change(&key, Some(b"another"));
            assert_eq!(index.guess(&key).as_deref(), Some(b"another".as_slice()));
            index.change(&key, None);
            assert!(index.guess(&key).is_none());
            let unknown = Key::new(TableId::Item, 8u64);
            index.change(&unknown, Some(b"nobody asked for it"));
            assert!(index.guess(&unknown).is_none());
        }
    }
}
