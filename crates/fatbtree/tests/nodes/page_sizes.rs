//! Nodes with stores of different page sizes. A key that fits into the pages of one store may be too long for
//! another.

use std::rc::Rc;
use std::sync::Arc;

use azekura::Database;
use azekura_fatbtree::sim::{Cluster, ClusterOptions, Executor, MakeStore};
use azekura_fatbtree::store::{DatabaseStore, Inline, LeafStore, NoAttachments};
use azekura_fatbtree::{Error, PeId, Target, Work};

const LARGE_PAGES: PeId = PeId(0);
const SMALL_PAGES: PeId = PeId(1);

#[test]
fn a_leaf_with_a_key_that_is_too_long_for_the_receiver_stays() {
    let make: Box<MakeStore> = Box::new(|pe, _| -> Rc<dyn LeafStore> {
        let page_size = if pe == LARGE_PAGES { 16 << 10 } else { 4 << 10 };
        let db = Database::builder().cache_bytes(32 << 20).page_size(page_size).open_in_memory();
        let db = db.expect("memory");
        Rc::new(DatabaseStore::new(db, "rows", Rc::new(Inline), Arc::new(NoAttachments)))
    });
    let cluster = Cluster::with(Executor::new(1), ClusterOptions::evenly(2), Some(make), None);
    cluster.start_all();
    let (long, short) = (vec![1; 3000], vec![2]);
    for key in [long.clone(), short.clone()] {
        let node = cluster.running(SMALL_PAGES);
        cluster.wait(async move { node.write(key, Work::Put(vec![7])).await }).expect("both run");
    }
    let move_leaf = |key: Vec<u8>| {
        let node = cluster.running(LARGE_PAGES);
        let work = Work::Move { to: SMALL_PAGES };
        cluster.wait(async move { node.call(Target::At(key), work).await })
    };
    let refused = move_leaf(long.clone());
    let Err(Error::NotMoved { reason, .. }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("too small for a key"), "{reason}");
    // Nor may a leaf begin with such a key, because its node could not record a later move of it.
    let node = cluster.running(LARGE_PAGES);
    let split = async move { node.call(Target::At(vec![200; 3000]), Work::Split).await };
    let refused = cluster.wait(split);
    let Err(Error::NotMoved { reason, .. }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("too long"), "{reason}");
    let node = cluster.running(LARGE_PAGES);
    let (middle, page) = (short.clone(), node.leaves()[0].page);
    cluster.wait(async move { node.split_leaf(page, middle).await }).expect("it has both keys");
    move_leaf(short.clone()).expect("its keys are short");
    for key in [long, short] {
        let node = cluster.running(SMALL_PAGES);
        assert_eq!(cluster.wait(async move { node.get(key).await }).expect("both run"), Some(vec![7]));
    }
    for pe in [LARGE_PAGES, SMALL_PAGES] {
        assert_eq!(cluster.running(pe).failure(), None);
    }
}
