//! Durable state of a PE: its rows, and the heads of its leaves.
//!
//! The rows of all leaves are stored together in key order, so a split or a merge changes only heads. A
//! structure change is one transaction, so a crash leaves all of it or nothing.

mod database;
#[cfg(any(test, feature = "sim"))]
mod memory;

use crate::error::StoreError;
use crate::id::{PageNo, PeId};
use crate::key::{Key, KeyRange};
use crate::leaf::{LeafHead, MoveId, RouteEntry, Row, Staged};
use crate::world::Task;

pub use database::{Attachments, DatabaseStore, Inline, NoAttachments, Offload, birth, owner};
#[cfg(any(test, feature = "sim"))]
pub use memory::{Disk, MemoryStore};

/// The store of a node. Each method is atomic, and durable when its task ends.
pub trait LeafStore {
    /// Opens the store, and counts one more start. A new store draws its name and has no leaves. Its node
    /// then collects its keys from the other nodes, and [settles](Change::settles) the store.
    fn recover(&self, founding: Founding) -> Task<'_, Result<Recovered, StoreError>>;

    /// Returns the value of a key.
    fn read(&self, key: Key) -> Task<'_, Result<Option<Vec<u8>>, StoreError>>;

    /// Changes the value of a key. Returns `true` if the key had a value.
    fn write(&self, key: Key, edit: Edit) -> Task<'_, Result<bool, StoreError>>;

    /// Returns up to `limit` rows of a range, from the end backward if `reverse`.
    fn rows(&self, range: KeyRange, limit: usize, reverse: bool) -> Task<'_, Result<Vec<Row>, StoreError>>;

    /// Returns the size of a range. Waits for no transaction.
    fn weigh(&self, range: KeyRange) -> Task<'_, Result<Weight, StoreError>>;

    /// Returns the length of the longest key of a row, in bytes.
    fn max_key_bytes(&self) -> usize;

    /// Changes the structure.
    fn change(&self, change: Change) -> Task<'_, Result<(), StoreError>>;
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Sets this value.
    Put(Vec<u8>),
    /// Sets this value if the key has none.
    Insert(Vec<u8>),
    /// Removes the key.
    Delete,
}

/// Size of a range, and its middle key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Number of rows.
    pub rows: usize,
    /// Number of bytes of keys and values.
    pub bytes: usize,
    /// The key that divides the rows into two halves, if there are at least two rows.
    pub middle: Option<Key>,
}

/// Initial distribution of the keys over the nodes; the same at every node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founding {
    /// Name of the cluster.
    pub cluster: u64,
    /// The node of this store.
    pub pe: PeId,
    /// Key ranges of the nodes: the first key of each range with its node, in key order, beginning with the
    /// empty key.
    pub shares: Vec<(Key, PeId)>,
}

impl Founding {
    /// Returns the ranges with their nodes.
    pub fn ranges(&self) -> impl Iterator<Item = (KeyRange, PeId)> {
        self.shares.iter().enumerate().map(|(place, (low, pe))| {
            let high = self.shares.get(place + 1).map(|(key, _)| key.clone());
            (KeyRange { low: low.clone(), high }, *pe)
        })
    }

    /// Returns the initial leaves of a PE in a new cluster: one for each of its key ranges.
    #[must_use]
    pub fn heads(&self) -> Vec<LeafHead> {
        let own = self.ranges().filter(|(_, pe)| *pe == self.pe);
        (1..)
            .zip(own)
            .map(|(page, (range, _))| LeafHead { page: PageNo(page), range, right: None, version: 1 })
            .collect()
    }
}

/// State that is recovered from a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Number of starts, including this one.
    pub incarnation: u64,
    /// The leaves.
    pub heads: Vec<LeafHead>,
    /// Received leaves that are not owned yet.
    pub staged: Vec<Staged>,
    /// Moves that were decided here and that the receiver has not acknowledged.
    pub decided: Vec<(MoveId, PeId)>,
    /// Route entries of leaves that this PE moved to other nodes.
    pub forwarding: Vec<RouteEntry>,
    /// Next leaf number: all used numbers are smaller.
    pub next_page: u64,
    /// Name of the store, drawn when the store was created. Another store of the same PE has another name.
    pub birth: u64,
    /// `true` if the store has received its keys. Otherwise the node must not answer requests.
    pub is_settled: bool,
    /// `true` if the store is settled, and is a copy of the store that was settled: restored from a backup,
    /// or compacted. The next [`Change::settles`] ends this.
    pub is_copy: bool,
    /// Names of the recorded stores of the other PEs.
    pub met: Vec<(PeId, u64)>,
    /// PEs that have left the cluster.
    pub left: Vec<PeId>,
    /// The newest version of the list of members that this PE has used.
    pub list: u64,
}

/// A change of structure. Empty fields are left unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// New or changed heads.
    pub put: Vec<LeafHead>,
    /// Removed heads.
    pub remove: Vec<PageNo>,
    /// Range of the rows to remove.
    pub clear: Option<KeyRange>,
    /// Rows to add.
    pub rows: Vec<Row>,
    /// Replaces all route entries of moved leaves in this range.
    pub forwarding: Option<(KeyRange, Vec<RouteEntry>)>,
    /// A received leaf.
    pub stage: Option<Staged>,
    /// A staged leaf that is now owned, or was dropped.
    pub unstage: Option<MoveId>,
    /// A decided move to this PE.
    pub decide: Option<(MoveId, PeId)>,
    /// A move that its receiver has acknowledged.
    pub forget: Option<MoveId>,
    /// Name of the store of another PE, which replaces an earlier recorded name.
    pub met: Option<(PeId, u64)>,
    /// `true` if the store has its keys now.
    pub settles: bool,
    /// A PE that has left the cluster.
    pub left: Option<PeId>,
    /// Version of the list of members from now on.
    pub list: Option<u64>,
}

#[cfg(test)]
mod tests {
    //! The same tests for both stores.

    use std::rc::Rc;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn wait<T>(mut task: Task<'_, T>) -> T {
        match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("these stores do not wait"),
        }
    }

    fn stores() -> Vec<(&'static str, Rc<dyn LeafStore>)> {
        let db = azekura::Database::in_memory().expect("memory");
        vec![
            ("memory", Rc::new(MemoryStore::new(Disk::default()))),
            ("database", Rc::new(DatabaseStore::new(db, "rows", Rc::new(Inline), Arc::new(NoAttachments)))),
        ]
    }

    fn founding() -> Founding {
        Founding { cluster: 7, pe: PeId(1), shares: vec![(vec![], PeId(0)), (b"m".to_vec(), PeId(1))] }
    }

    fn key(byte: u8) -> Key {
        vec![byte]
    }

    #[test]
    fn a_new_store_has_no_keys_until_it_settles_and_counts_its_starts() {
        for (name, store) in stores() {
            let first = wait(store.recover(founding())).expect("fine");
            assert_eq!((first.incarnation, first.next_page), (1, 1), "{name}");
            assert_eq!((first.is_settled, first.heads.len()), (false, 0), "{name}");
            let second = wait(store.recover(founding())).expect("fine");
            assert_eq!(
                second,
                Recovered { incarnation: 2, ..first },
                "{name}: it has its name from the start"
            );
            let change = Change { put: founding().heads(), settles: true, ..Change::default() };
            wait(store.change(change)).expect("fine");
            wait(store.change(Change { met: Some((PeId(0), 77)), ..Change::default() })).expect("fine");
            wait(store.change(Change { met: Some((PeId(0), 78)), ..Change::default() })).expect("fine");
            let change = Change { left: Some(PeId(4)), list: Some(9), ..Change::default() };
            wait(store.change(change)).expect("fine");
            let third = wait(store.recover(founding())).expect("fine");
            let settled = Recovered {
                incarnation: 3,
                heads: founding().heads(),
                next_page: 2,
                is_settled: true,
                met: vec![(PeId(0), 78)],
                left: vec![PeId(4)],
                list: 9,
                ..second
            };
            assert_eq!(third, settled, "{name}");
            let other = Founding { pe: PeId(0), ..founding() };
            assert!(matches!(wait(store.recover(other)), Err(StoreError::Stranger { .. })), "{name}");
        }
    }

    #[test]
    fn a_database_with_rows_becomes_a_node_only_if_they_are_its_own() {
        let db = azekura::Database::in_memory().expect("memory");
        let store = DatabaseStore::new(db.clone(), "rows", Rc::new(Inline), Arc::new(NoAttachments));
        let rows = azekura::TableDefinition::<[u8], [u8]>::new("rows");
        assert_eq!(owner(&db).expect("fine"), None);
        db.transact(|tx| tx.table(&rows)?.insert(b"b", b"2")).expect("fine");
        let refused = wait(store.recover(founding()));
        assert!(
            matches!(&refused, Err(StoreError::RowOfAnother { key, owner: PeId(0) }) if key == b"b"),
            "{refused:?}"
        );
        db.transact(|tx| tx.table(&rows)?.remove(b"b")).expect("fine");
        db.transact(|tx| tx.table(&rows)?.insert(b"q", b"2")).expect("fine");
        wait(store.recover(founding())).expect("its own");
        assert_eq!(owner(&db).expect("fine"), Some((7, PeId(1))));
        let other_shares =
            Founding { shares: vec![(vec![], PeId(0)), (b"n".to_vec(), PeId(1))], ..founding() };
        assert!(matches!(wait(store.recover(other_shares)), Err(StoreError::OtherShares)));
        assert_eq!(wait(store.read(key(b'q'))).expect("fine"), Some(b"2".to_vec()));
    }

    #[test]
    fn a_compacted_database_is_a_copy_until_it_is_settled_again() {
        let disk = azekura_io::FaultFs::new();
        let open = |name: &str| {
            let db = azekura::Database::builder().file_system(Arc::new(disk.clone()));
            let db = db.background(false).open(name).expect("fine");
            (db.clone(), DatabaseStore::new(db, "rows", Rc::new(Inline), Arc::new(NoAttachments)))
        };
        let recover = |store: &DatabaseStore| {
            let found = wait(store.recover(founding())).expect("fine");
            (found.is_settled, found.is_copy)
        };
        let settles = || Change { put: founding().heads(), settles: true, ..Change::default() };
        let (db, store) = open("db");
        assert_eq!(recover(&store), (false, false));
        db.compact_into("unsettled").expect("fine");
        assert_eq!(recover(&open("unsettled").1), (false, false), "it has no keys yet");
        wait(store.change(settles())).expect("fine");
        assert_eq!(recover(&store), (true, false));
        db.compact_into("copy").expect("fine");
        let (_, copy) = open("copy");
        assert_eq!([recover(&copy), recover(&copy)], [(true, true); 2]);
        wait(copy.change(settles())).expect("fine");
        assert_eq!([recover(&copy), recover(&store)], [(true, false); 2]);
        // An earlier version did not record the database.
        db.transact(|tx| {
            tx.table(&azekura::TableDefinition::<[u8], [u8]>::new("fat.self"))?.insert(b"settled", b"")
        })
        .expect("fine");
        assert_eq!(recover(&store), (true, false));
    }

    #[test]
    fn a_range_of_many_rows_is_counted_and_has_a_middle() {
        const ROWS: usize = 3 * 8192 + 5;
        for (name, store) in stores() {
            wait(store.recover(founding())).expect("fine");
            let row = |number: usize| ((number as u32).to_be_bytes().to_vec(), vec![0]);
            let rows = (0..ROWS).map(row).collect();
            wait(store.change(Change { rows, ..Change::default() })).expect("fine");
            let weight = wait(store.weigh(KeyRange::all())).expect("fine");
            assert_eq!((weight.rows, weight.bytes), (ROWS, 5 * ROWS), "{name}");
            let middle = weight.middle.expect("it has two rows");
            let middle = u32::from_be_bytes(middle.try_into().expect("four bytes")) as usize;
            assert!(middle.abs_diff(ROWS / 2) < 4, "{name}: {middle}");
        }
    }

    #[test]
    fn rows_are_written_read_weighed_and_walked_both_ways() {
        for (name, store) in stores() {
            wait(store.recover(founding())).expect("fine");
            for byte in b'm'..=b'q' {
                assert!(!wait(store.write(key(byte), Edit::Insert(vec![byte]))).expect("fine"), "{name}");
            }
            assert!(wait(store.write(key(b'n'), Edit::Insert(vec![0]))).expect("fine"), "{name}");
            assert!(wait(store.write(key(b'o'), Edit::Put(vec![1, 2]))).expect("fine"), "{name}");
            assert!(wait(store.write(key(b'q'), Edit::Delete)).expect("fine"), "{name}");
            assert!(!wait(store.write(key(b'q'), Edit::Delete)).expect("fine"), "{name}");
            assert_eq!(wait(store.read(key(b'n'))).expect("fine"), Some(vec![b'n']), "{name}");
            assert_eq!(wait(store.read(key(b'q'))).expect("fine"), None, "{name}");
            let range = KeyRange::new(*b"m", Some(b"p"));
            let keys = |rows: Vec<Row>| rows.into_iter().map(|(key, _)| key[0]).collect::<Vec<_>>();
            assert_eq!(keys(wait(store.rows(range.clone(), 9, false)).expect("fine")), b"mno", "{name}");
            assert_eq!(keys(wait(store.rows(range.clone(), 2, true)).expect("fine")), b"on", "{name}");
            let weight = wait(store.weigh(range)).expect("fine");
            assert_eq!(weight, Weight { rows: 3, bytes: 7, middle: Some(key(b'n')) }, "{name}");
        }
    }

    #[test]
    fn a_change_of_structure_is_found_again_whole() {
        for (name, store) in stores() {
            let founded = wait(store.recover(founding())).expect("fine");
            let change = Change { put: founding().heads(), settles: true, ..Change::default() };
            wait(store.change(change)).expect("fine");
            wait(store.write(key(b'm'), Edit::Put(vec![1]))).expect("fine");
            wait(store.write(key(b'x'), Edit::Put(vec![2]))).expect("fine");
            let id = MoveId { source: PeId(1), incarnation: 1, number: 5 };
            let head = |page, low: &[u8], high| LeafHead {
                page: PageNo(page),
                range: KeyRange::new(low, high),
                right: None,
                version: 2,
            };
            let forwarding =
                RouteEntry { range: KeyRange::new(*b"x", None), pe: PeId(0), page: PageNo(4), version: 3 };
            let staged = Staged {
                id,
                head: head(9, b"a", Some(b"b")),
                rows: vec![(key(b'a'), vec![3])],
                path: vec![],
            };
            let change = Change {
                put: vec![head(1, b"m", Some(b"x")), head(3, b"b", Some(b"c"))],
                clear: Some(forwarding.range.clone()),
                rows: vec![(key(b'b'), vec![7])],
                forwarding: Some((forwarding.range.clone(), vec![forwarding.clone()])),
                stage: Some(staged.clone()),
                decide: Some((id, PeId(0))),
                ..Change::default()
            };
            wait(store.change(change)).expect("fine");
            assert_eq!(wait(store.read(key(b'x'))).expect("fine"), None, "{name}");
            assert_eq!(wait(store.read(key(b'b'))).expect("fine"), Some(vec![7]), "{name}");
            let found = wait(store.recover(founding())).expect("fine");
            assert_eq!(found.heads, [head(1, b"m", Some(b"x")), head(3, b"b", Some(b"c"))], "{name}");
            assert_eq!((&found.staged, &found.decided), (&vec![staged], &vec![(id, PeId(0))]), "{name}");
            assert_eq!(found.forwarding, [forwarding], "{name}");
            assert_eq!(found.next_page, 10, "{name}");

            let change = Change {
                remove: vec![PageNo(3)],
                unstage: Some(id),
                forget: Some(id),
                forwarding: Some((KeyRange::all(), vec![])),
                ..Change::default()
            };
            wait(store.change(change)).expect("fine");
            let found = wait(store.recover(founding())).expect("fine");
            assert_eq!((found.heads.len(), found.staged.len(), found.decided.len()), (1, 0, 0), "{name}");
            assert_eq!((found.forwarding.len(), founded.forwarding.len()), (0, 0), "{name}");
            assert_eq!(found.next_page, 10, "{name}: no number is used twice");
        }
    }
}
