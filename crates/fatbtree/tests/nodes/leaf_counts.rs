//! Counts of the rows of leaves: they may take long, so no request waits for them, and they are not repeated
//! without need.

use std::cell::Cell;
use std::rc::Rc;

use azekura_fatbtree::sim::{Cluster, ClusterOptions, Executor, MakeStore};
use azekura_fatbtree::store::{Change, Disk, Edit, Founding, LeafStore, MemoryStore, Recovered, Weight};
use azekura_fatbtree::{Error, Key, KeyRange, PeId, Row, StoreError, Target, Task, Work};

const NODE: PeId = PeId(0);

/// Counts of a store: their number, and whether they end.
#[derive(Clone, Default)]
struct Counts(Rc<(Cell<usize>, Cell<bool>)>);

impl Counts {
    fn number(&self) -> usize {
        self.0.0.get()
    }

    fn stop(&self) {
        self.0.1.set(true);
    }
}

struct Counted {
    store: MemoryStore,
    counts: Counts,
}

impl LeafStore for Counted {
    fn recover(&self, founding: Founding) -> Task<'_, Result<Recovered, StoreError>> {
        self.store.recover(founding)
    }

    fn read(&self, key: Key) -> Task<'_, Result<Option<Vec<u8>>, StoreError>> {
        self.store.read(key)
    }

    fn write(&self, key: Key, edit: Edit) -> Task<'_, Result<bool, StoreError>> {
        self.store.write(key, edit)
    }

    fn rows(&self, range: KeyRange, limit: usize, reverse: bool) -> Task<'_, Result<Vec<Row>, StoreError>> {
        self.store.rows(range, limit, reverse)
    }

    fn max_key_bytes(&self) -> usize {
        self.store.max_key_bytes()
    }

    fn weigh(&self, range: KeyRange) -> Task<'_, Result<Weight, StoreError>> {
        let (number, is_stopped) = &*self.counts.0;
        number.set(number.get() + 1);
        if is_stopped.get() { Box::pin(std::future::pending()) } else { self.store.weigh(range) }
    }

    fn change(&self, change: Change) -> Task<'_, Result<(), StoreError>> {
        self.store.change(change)
    }
}

fn started() -> (Cluster, Counts) {
    let mut options = ClusterOptions::evenly(1);
    options.node.leaf_rows = 64;
    let (disk, counts) = (Disk::default(), Counts::default());
    let for_store = counts.clone();
    let make: Box<MakeStore> = Box::new(move |_, _| {
        Rc::new(Counted { store: MemoryStore::new(disk.clone()), counts: for_store.clone() })
    });
    let cluster = Cluster::with(Executor::new(7), options, Some(make), None);
    cluster.start_all();
    (cluster, counts)
}

fn write(cluster: &Cluster, key: u8, work: Work) {
    let node = cluster.running(NODE);
    cluster.wait(async move { node.call(Target::At(vec![key]), work).await }).expect("it runs");
}

fn get(cluster: &Cluster, key: u8) -> Result<Option<Vec<u8>>, Error> {
    let node = cluster.running(NODE);
    cluster.wait(async move { node.get([key]).await })
}

#[test]
fn a_write_is_answered_before_the_rows_of_its_leaf_are_counted() {
    let (cluster, counts) = started();
    counts.stop();
    write(&cluster, 1, Work::Put(vec![1]));
    assert_eq!(get(&cluster, 1).expect("it runs"), Some(vec![1]));
    assert_eq!(counts.number(), 1);
}

/// A node with a leaf of one row, key 1, and a leaf with keys 100 to 159, which is too full for a merge.
fn with_a_full_leaf() -> (Cluster, Counts) {
    let (cluster, counts) = started();
    (100..160).for_each(|key| write(&cluster, key, Work::Put(vec![key])));
    write(&cluster, 100, Work::Split);
    write(&cluster, 1, Work::Put(vec![1]));
    assert_eq!(cluster.running(NODE).leaves().len(), 2);
    (cluster, counts)
}

#[test]
fn requests_are_answered_while_leaves_are_counted_for_a_merge() {
    let (cluster, counts) = with_a_full_leaf();
    let before = counts.number();
    counts.stop();
    write(&cluster, 1, Work::Delete);
    assert!(cluster.executor().run_until(|| counts.number() > before), "the leaves are compared");
    assert_eq!(get(&cluster, 1).expect("it runs"), None);
    assert_eq!(get(&cluster, 100).expect("it runs"), Some(vec![100]));
}

#[test]
fn a_full_neighbor_is_not_counted_at_each_removal_of_the_last_row() {
    let (cluster, counts) = with_a_full_leaf();
    let before = counts.number();
    for _ in 0..20 {
        write(&cluster, 1, Work::Delete);
        write(&cluster, 1, Work::Put(vec![1]));
    }
    let counted = counts.number() - before;
    assert!((1..=4).contains(&counted), "{counted} counts");
    assert_eq!(cluster.running(NODE).leaves().len(), 2);
    // After the removal of most rows of the neighbor, the leaves are merged.
    (110..160).for_each(|key| write(&cluster, key, Work::Delete));
    assert!(cluster.executor().run_until(|| cluster.running(NODE).leaves().len() == 1));
    assert_eq!(get(&cluster, 100).expect("it runs"), Some(vec![100]));
    assert_eq!(cluster.running(NODE).verify(), Vec::<String>::new());
}
