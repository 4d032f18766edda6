//! A tree is only as large as its records need, regardless of the order of removals: no leaf stays without
//! records, no inner node stays with one child, and `first` reads one leaf.

use std::ops::Bound::Unbounded;

use azekura_base::PageId;
use azekura_btree::{EnvOptions, LeafBatch, NoLocks, Outcome, Scan, Tree, TreeReport, max_key};

use crate::common::{MemLog, Txn, World};

/// Shapes of keys; the keys of each shape ascend with `n`.
const SHAPES: [fn(u32) -> Vec<u8>; 4] = [
    |n| n.to_be_bytes().to_vec(),
    |n| format!("sessions/by-expiry/{n:08}").into_bytes(),
    // Groups with long common prefixes: a fence between two groups shares no prefix with their keys.
    |n| [(n / 512).to_be_bytes().to_vec(), vec![7; 60], n.to_be_bytes().to_vec()].concat(),
    |n| [vec![7; max_key(4096) - 4], n.to_be_bytes().to_vec()].concat(),
];

fn key(shape: usize, n: u32) -> Vec<u8> {
    SHAPES[shape](n)
}

/// Returns the first or last record, and the number of leaves that were read to find it.
fn end_of(world: &World, tree: Tree, is_first: bool) -> (Option<Vec<u8>>, u64) {
    let (mut scan, mut batch) = (Scan::new(tree, Unbounded, Unbounded), LeafBatch::new());
    let before = world.env.scanned_leaves();
    let outcome = if is_first {
        scan.next_batch(&world.env, 1, &mut NoLocks, &mut batch)
    } else {
        scan.next_batch_back(&world.env, 1, &mut NoLocks, &mut batch)
    };
    assert_eq!(outcome.expect("scan"), Outcome::Done(()));
    let found = (!batch.is_empty()).then(|| batch.key(0).to_vec());
    (found, world.env.scanned_leaves() - before)
}

/// Checks the tree, and that only its root may be bare.
#[track_caller]
pub(crate) fn assert_dense(world: &World, tree: Tree) -> TreeReport {
    let catalogue = Tree { id: azekura_base::TreeId(0), root: PageId(1) };
    let report = world.assert_sound(&[catalogue, tree], &[]).trees[1];
    let (mut scan, mut batch) = (Scan::new(tree, Unbounded, Unbounded), LeafBatch::new());
    let (before, mut with_records) = (world.env.scanned_leaves(), 0);
    while !scan.is_done() {
        let outcome = scan.next_batch(&world.env, usize::MAX, &mut NoLocks, &mut batch).expect("scan");
        assert_eq!(outcome, Outcome::Done(()));
        with_records += u64::from(!batch.is_empty());
    }
    let leaves = world.env.scanned_leaves() - before;
    assert_eq!(leaves, report.leaf_pages);
    assert_eq!(leaves, with_records.max(1), "leaves, and those with records");
    assert!(report.inner_pages < report.leaf_pages, "an inner node with one child: {report:?}");
    report
}

fn world_with_tree(frames: usize) -> (World, Tree) {
    let (world, _) = World::new(4096, frames);
    let mut txn = world.txn(1);
    let tree = txn.create(1);
    txn.commit();
    (world, tree)
}

fn fill(txn: &mut Txn<'_>, tree: Tree, shape: usize, numbers: impl Iterator<Item = u32>) {
    numbers.for_each(|n| drop(txn.put(tree, &key(shape, n), &[9; 30])));
}

#[test]
fn a_queue_has_a_constant_size_after_many_rows() {
    for shape in 0..SHAPES.len() {
        let (world, tree) = world_with_tree(2000);
        let mut txn = world.txn(2);
        fill(&mut txn, tree, shape, 0..500);
        let mut size = None;
        for n in 500..12_000 {
            let (first, leaves) = end_of(&world, tree, true);
            assert_eq!((first.as_deref(), leaves), (Some(&*key(shape, n - 500)), 1), "shape {shape}");
            txn.remove(tree, &key(shape, n - 500));
            fill(&mut txn, tree, shape, n..n + 1);
            txn.undo.clear();
            if n % 2000 == 0 {
                let report = assert_dense(&world, tree);
                let pages = report.leaf_pages + report.inner_pages;
                let first = *size.get_or_insert(pages);
                assert!(pages * 10 <= first * 11 + 20, "shape {shape}: {first} pages, then {pages}");
            }
        }
    }
}

#[test]
fn a_stack_that_alternates_at_a_leaf_border_has_a_constant_size() {
    for shape in 0..SHAPES.len() {
        let (world, tree) = world_with_tree(2000);
        let mut txn = world.txn(2);
        fill(&mut txn, tree, shape, 0..300);
        let pages = assert_dense(&world, tree).leaf_pages;
        for round in 0..400 {
            let depth = round % 150;
            fill(&mut txn, tree, shape, 300..300 + depth);
            (300..300 + depth).rev().for_each(|n| {
                assert_eq!(end_of(&world, tree, false), (Some(key(shape, n)), 1));
                txn.remove(tree, &key(shape, n)).expect("it was put");
            });
            txn.undo.clear();
        }
        let report = assert_dense(&world, tree);
        assert!(report.leaf_pages <= pages + 1, "{pages} leaves, then {report:?}");
    }
}

/// Orders of removal: from either end, from the middle outwards, and at random.
fn order(kind: usize, count: u32) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..count).collect();
    match kind {
        0 => {}
        1 => numbers.reverse(),
        2 => numbers.sort_by_key(|n| n.abs_diff(count / 2)),
        _ => numbers.sort_by_key(|n| n.wrapping_mul(0x9E37_79B1).rotate_left(13)),
    }
    numbers
}

#[test]
fn a_tree_shrinks_to_an_empty_root_in_whichever_order_its_records_are_removed() {
    for shape in 0..SHAPES.len() {
        let count = if shape == 3 { 800 } else { 6000 };
        for kind in 0..4 {
            let (world, tree) = world_with_tree(3000);
            let mut txn = world.txn(2);
            // In random order, so that leaves between fences with a long common prefix become full.
            fill(&mut txn, tree, shape, order(3, count).into_iter());
            txn.undo.clear();
            let full = assert_dense(&world, tree);
            assert!(full.height >= 3 || shape < 2, "{full:?}");
            for (i, n) in order(kind, count).into_iter().enumerate() {
                txn.remove(tree, &key(shape, n)).expect("it was put");
                if i % 400 == 0 {
                    let report = assert_dense(&world, tree);
                    let share = report.leaf_pages as f64 / full.leaf_pages as f64;
                    let left = report.records as f64 / full.records as f64;
                    // Two neighbors that do not merge use more than 3/4 of a page together.
                    assert!(
                        share <= 3.5 * left + 0.05,
                        "shape {shape}, order {kind}: {report:?} of {full:?}"
                    );
                }
            }
            txn.undo.clear();
            let empty = assert_dense(&world, tree);
            assert_eq!((empty.height, empty.leaf_pages, empty.inner_pages), (1, 1, 0));
        }
    }
}

#[test]
fn a_rollback_that_removes_rows_leaves_no_pages_behind() {
    for shape in 0..SHAPES.len() {
        let (world, tree) = world_with_tree(2000);
        let mut txn = world.txn(2);
        (0..6).for_each(|n| drop(txn.put(tree, &key(shape, 500 * n), &[1; 30])));
        txn.commit();
        let before = assert_dense(&world, tree);
        for round in 0..3 {
            let mut txn = world.txn(3 + round);
            fill(&mut txn, tree, shape, (0..2500).filter(|n| n % 500 != 0));
            txn.roll_back();
        }
        let after = assert_dense(&world, tree);
        assert_eq!(after.records, before.records);
        assert!(after.leaf_pages <= before.leaf_pages + 1, "shape {shape}: {before:?}, then {after:?}");
    }
}

#[test]
fn a_queue_of_large_values_takes_the_pages_of_those_that_are_in_it() {
    let (world, tree) = world_with_tree(2000);
    let value = vec![5; 9000];
    let mut sizes = Vec::new();
    for n in 0..3000_u32 {
        let mut txn = world.txn(u64::from(n) + 2);
        txn.put(tree, &key(1, n), &value);
        if n >= 40 {
            txn.remove(tree, &key(1, n - 40)).expect("it was put");
        }
        txn.commit();
        if n % 500 == 499 {
            let report = assert_dense(&world, tree);
            assert!(report.leaf_pages <= 2, "{report:?}");
            sizes.push(report.overflow_pages);
        }
    }
    assert!(sizes.iter().all(|&pages| pages == sizes[0]), "{sizes:?}");
    let in_use = (0..).map(PageId).take_while(|id| world.page(*id).iter().any(|&byte| byte != 0)).count();
    assert!(in_use < 2 * sizes[0] as usize, "the file grew to {in_use} pages for {} of values", sizes[0]);
}

/// A leaf that a crash or a full log left bare, between its last removal and its unlinking, is unlinked by a
/// later removal in a neighbor.
#[test]
fn an_empty_leaf_left_by_a_crash_is_removed_with_a_removal_beside_it() {
    for shape in 0..2 {
        let (world, tree) = world_with_tree(2000);
        let mut txn = world.txn(2);
        fill(&mut txn, tree, shape, 0..2000);
        for n in 0..1200 {
            // The log accepts the removal, and no record after it.
            world.log.break_after(1);
            txn.remove(tree, &key(shape, n)).expect("it was put");
            world.log.repair();
        }
        txn.undo.clear();
        let log = MemLog::with_records(&world.log.records());
        let again = World::with_log(4096, 2000, EnvOptions::default(), log);
        world.replay_into(&again);
        let bare = end_of(&again, tree, true).1;
        assert!(bare > 5, "{bare} leaves to the first record");
        let mut txn = again.txn(3);
        (1200..1400).for_each(|n| drop(txn.remove(tree, &key(shape, n)).expect("it was put")));
        let (_, leaves) = end_of(&again, tree, true);
        assert!(leaves < bare, "shape {shape}: {bare} leaves, then {leaves}");
        (1400..2000).for_each(|n| drop(txn.remove(tree, &key(shape, n)).expect("it was put")));
        txn.undo.clear();
        assert_eq!(assert_dense(&again, tree).leaf_pages, 1);
    }
}

/// An inner node that a crash left with one child, between the changes of two levels, is merged by a later
/// removal.
#[test]
fn an_inner_node_left_with_one_child_by_a_crash_goes_with_a_removal_below_it() {
    for (shape, records) in [(2, 2), (3, 2), (3, 3)] {
        let (world, tree) = world_with_tree(3000);
        let mut txn = world.txn(2);
        fill(&mut txn, tree, shape, 0..3000);
        for n in 0..2000 {
            world.log.break_after(records);
            txn.remove(tree, &key(shape, n)).expect("it was put");
            world.log.repair();
        }
        let log = MemLog::with_records(&world.log.records());
        let again = World::with_log(4096, 3000, EnvOptions::default(), log);
        world.replay_into(&again);
        let mut txn = again.txn(3);
        (2000..3000).rev().for_each(|n| drop(txn.remove(tree, &key(shape, n)).expect("it was put")));
        txn.undo.clear();
        assert_eq!(assert_dense(&again, tree).height, 1, "shape {shape}, {records} records");
    }
}
