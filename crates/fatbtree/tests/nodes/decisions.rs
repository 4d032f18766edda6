//! Durable records of structure changes that take effect later: versions (I2) and forwarding entries (I3).
//! Searches succeed for long without them, so a cluster under load would not reveal their absence.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use azekura_fatbtree::sim::{Cluster, ClusterOptions};
use azekura_fatbtree::{LeafHead, Node, PeId, RouteEntry, Work};

fn started(seed: u64, store_delay: Duration) -> Cluster {
    let mut options = ClusterOptions::evenly(3);
    options.node.leaf_rows = 40;
    options.store_delay = store_delay;
    let cluster = Cluster::new(seed, options);
    cluster.start_all();
    cluster
}

/// Writes five rows at the first node, in two leaves that are split at 3.
fn two_leaves(cluster: &Cluster) -> (Rc<Node>, LeafHead, LeafHead) {
    let source = cluster.running(PeId(0));
    let node = Rc::clone(&source);
    cluster.wait(async move {
        for key in 1..=5 {
            node.write([key], Work::Put(vec![key])).await.expect("it runs");
        }
        node.split_leaf(node.leaves()[0].page, vec![3]).await.expect("it has more keys");
    });
    let leaves = source.leaves();
    let [left, right] = leaves.as_slice() else { panic!("{leaves:?}") };
    (source, left.clone(), right.clone())
}

/// LEAF-2: a merged leaf has a higher version than both halves. Otherwise a node that had first learned an
/// older entry would keep it.
#[test]
fn a_merged_leaf_is_newer_than_both_halves() {
    let cluster = started(1, Duration::ZERO);
    let (source, left, right) = two_leaves(&cluster);
    let node = Rc::clone(&source);
    // A leaf with two rows is merged.
    cluster.wait(async move { node.write([4], Work::Delete).await }).expect("it runs");
    let leaves = source.leaves();
    assert_eq!(leaves.len(), 1, "{leaves:?}");
    assert!(leaves[0].version > left.version.max(right.version), "{leaves:?}, {left:?}, {right:?}");
    assert_eq!((&leaves[0].range.low, &leaves[0].range.high), (&left.range.low, &right.range.high));
}

/// Each decision rewrites the neighboring forwarding entries. Two concurrent decisions must not undo each
/// other.
#[test]
fn two_moves_that_are_decided_at_once_are_both_remembered() {
    let mut together = 0;
    for seed in 0..40 {
        let cluster = started(seed, Duration::from_millis(5));
        let (source, left, right) = two_leaves(&cluster);
        let executor = cluster.executor().clone();
        let open = Rc::new(Cell::new(2));
        for (leaf, to) in [(&left, PeId(1)), (&right, PeId(2))] {
            let (node, page, open) = (Rc::clone(&source), leaf.page, Rc::clone(&open));
            let task = async move {
                node.move_leaf(page, to).await.expect("all run");
                open.set(open.get() - 1);
            };
            executor.spawn_in(executor.group(), Box::pin(task));
        }
        assert!(executor.run_until(|| open.get() == 1), "seed {seed}");
        let first_is_over = azekura_fatbtree::Clock::now(&executor);
        assert!(executor.run_until(|| open.get() == 0), "seed {seed}");
        together +=
            usize::from(azekura_fatbtree::Clock::now(&executor) - first_is_over < Duration::from_millis(10));
        let forwarding = cluster.disk(PeId(0)).forwarding();
        for (key, leaf, to) in [(1, &left, PeId(1)), (4, &right, PeId(2))] {
            let newest: Option<&RouteEntry> = forwarding
                .iter()
                .filter(|route_entry| route_entry.range.contains(&[key]))
                .max_by_key(|route_entry| route_entry.version);
            let newest = newest.unwrap_or_else(|| panic!("seed {seed}: nothing of {key}: {forwarding:?}"));
            assert_eq!((newest.pe, newest.version), (to, leaf.version + 1), "seed {seed}: {forwarding:?}");
        }
    }
    assert!(together > 0, "no two were decided at about the same time");
}
