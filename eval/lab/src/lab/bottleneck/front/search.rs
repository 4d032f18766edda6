//! The adaptive hash index of InnoDB 5.0 under `btr_search_latch`: finds rows that were read before by their
//! keys, without a descent of the tree.
//!
//! As in InnoDB, a change of a row does not change the structure of the index and needs the latch only in
//! shared mode. (InnoDB's entries point to the record on its page; here each entry has a cell with the row.)
//! New keys need the latch in exclusive mode.
//!
//! - **SEARCH-1** [`SearchIndex::guess`] returns the row as of the last transaction that reached its commit.
//!   A row is added under the store's shared lock on it, and changed under the exclusive lock, just before
//!   the commit. (A commit that has begun fails only if the log fails, and then the store accepts no more
//!   commits.)

use super::Key;
use azekura_base::sync::Mutex;
use azekura_baselines::rw::{Accounted, Guarded, OneWord, RwLatch, StateCell};
use azekura_trace::Site;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

/// Lock site of the latch in recordings and reports.
pub static SEARCH_LATCH: Site = Site::new("btr_search_latch");
/// Lock site of the mutex that protects the latch's state.
pub static SEARCH_MUTEX: Site = Site::new("mutex of btr_search_latch");
/// Wait site of the atomic word that replaces the mutex.
pub static SEARCH_WORD: Site = Site::new("word of btr_search_latch");

/// Representation of the latch's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Latch {
    /// State under a mutex, as in InnoDB 5.0.
    Mutex,
    /// State under a mutex that also protects a list of the holders, as in InnoDB's debug build.
    Account,
    /// State in one atomic word: the paper's change.
    Word,
}

impl Latch {
    /// All representations, in the order of the study.
    pub const ALL: [Self; 3] = [Self::Mutex, Self::Account, Self::Word];

    /// Returns the name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Account => "mutex + account",
            Self::Word => "one word",
        }
    }

    /// Returns an empty index under this kind of latch.
    #[must_use]
    pub fn index(self) -> Box<dyn SearchIndex> {
        match self {
            Self::Mutex => Box::new(HashIndex::<Guarded>::new(&SEARCH_MUTEX)),
            Self::Account => Box::new(HashIndex::<Accounted>::new(&SEARCH_MUTEX)),
            Self::Word => Box::new(HashIndex::<OneWord>::new(&SEARCH_WORD)),
        }
    }
}

/// Rows by key. The hash function has no random seed, so that each run of a simulation has the same cells on
/// the same cache lines. Keys come from the workload, not from an attacker.
type Rows = HashMap<Key, Cell, BuildHasherDefault<DefaultHasher>>;
/// A row; `None` after the row was removed.
type Cell = Mutex<Option<Arc<[u8]>>>;

/// A hash index over rows, for any kind of latch.
pub trait SearchIndex: Send + Sync + std::fmt::Debug {
    /// Returns the row if the index has it. Takes the latch in shared mode.
    fn guess(&self, key: &Key) -> Option<Arc<[u8]>>;
    /// Adds a row that the caller has just read under the row lock. Takes the latch in exclusive mode if the
    /// key is new.
    fn learn(&self, key: &Key, row: &[u8]);
    /// Changes a row if the index has it; `None` removes it. The caller holds the row's exclusive lock. Takes
    /// the latch in shared mode.
    fn change(&self, key: &Key, row: Option<&[u8]>);
    /// Returns all rows of the index. For checks: holds the latch in shared mode for a long time.
    fn rows(&self) -> Vec<(Key, Arc<[u8]>)>;
}

/// Largest number of rows; adding one more empties the index first.
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

    /// Replaces the row of a key that is in the index. Returns whether the key is.
    fn set(&self, key: &Key, row: Option<&Arc<[u8]>>) -> bool {
        let rows = self.rows.shared();
        let Some(cell) = rows.get(key) else { return false };
        let before = std::mem::replace(&mut *cell.lock(), row.map(Arc::clone));
        drop(rows);
        drop(before); // the latch is released first, because this may free the row
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
        // A missing row cannot be added while the caller holds the row's exclusive lock.
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
    fn a_guess_returns_the_last_change() {
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
