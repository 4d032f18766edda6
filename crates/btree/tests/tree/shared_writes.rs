//! G8: a descent through warm inner pages writes no shared cache line. Reads of resident pages do not search
//! the page table.

use azekura_btree::{LeafBatch, NoLocks, Outcome, Scan, Tree};

use crate::common::{World, get};
use std::ops::Bound::Unbounded;

fn shared_writes() -> u64 {
    azekura_buffer::count::on_this_thread().shared_writes
}

fn key(n: u32) -> Vec<u8> {
    format!("{n:0>150}").into_bytes()
}

/// Returns a tree of three levels with 3,000 rows.
fn filled() -> (World, Tree) {
    let (world, tree) = World::new(4096, 4000);
    let mut txn = world.txn(1);
    for n in 0..3000 {
        txn.put(tree, &key(n), &[3; 60]);
    }
    (world, tree)
}

fn read_all(world: &World, tree: Tree) {
    for n in 0..3000 {
        assert!(get(&world.env, tree, &key(n)).is_some());
    }
}

#[test]
fn g8_a_warm_read_writes_no_shared_line() {
    let (world, tree) = filled();
    let report = world.assert_sound(&[tree], &[]);
    assert!(report.trees[0].height >= 3);
    // The first read of a page may raise its reference count from zero.
    read_all(&world, tree);
    let before = shared_writes();
    read_all(&world, tree);
    assert_eq!(shared_writes() - before, 0, "shared lines written by 3000 warm reads");

    let (mut scan, mut batch, mut records) = (Scan::new(tree, Unbounded, Unbounded), LeafBatch::new(), 0);
    while !scan.is_done() {
        let outcome = scan.next_batch(&world.env, 100, &mut NoLocks, &mut batch).expect("scan");
        assert_eq!(outcome, Outcome::Done(()));
        records += batch.len();
    }
    assert_eq!((records, shared_writes() - before), (3000, 0), "a warm scan");
}

/// Pages of a large value are copied without pin or latch, like nodes.
#[test]
fn g8_a_warm_read_of_a_large_value_writes_no_shared_line() {
    let (world, tree) = World::new(4096, 4000);
    let value: Vec<u8> = (0..500_000u32).map(|n| (n + n / 256) as u8).collect();
    world.txn(1).put(tree, b"large", &value);
    // The first peeks at a page raise its reference count.
    for _ in 0..3 {
        assert_eq!(get(&world.env, tree, b"large").as_ref(), Some(&value));
    }
    let before = shared_writes();
    assert_eq!(get(&world.env, tree, b"large"), Some(value));
    assert_eq!(shared_writes() - before, 0, "shared lines written by a warm read of 124 pages");
}

#[test]
fn g8_a_warm_write_touches_shared_lines_of_its_leaf_only() {
    let (world, tree) = filled();
    let mut txn = world.txn(2);
    read_all(&world, tree);
    let before = shared_writes();
    for n in 0..1000 {
        txn.put(tree, &key(n), &[4; 60]);
    }
    let each = (shared_writes() - before) as f64 / 1000.0;
    // Pin, latch, dirty flag, unlatch and unpin, of one page. With the inner pages there would be three times
    // as many.
    assert!(each <= 6.0, "{each} shared writes for an update in place");
}

/// Returns the number of page-table searches by this thread.
fn lookups() -> u64 {
    azekura_buffer::count::on_this_thread().lookups
}

#[test]
fn a_scan_descends_once_for_each_leaf_and_reads_search_no_page_table() {
    let (world, tree) = filled();
    let report = world.assert_sound(&[tree], &[]);
    let leaves = report.trees[0].leaf_pages;
    let before = lookups();
    read_all(&world, tree);
    assert_eq!(lookups() - before, 0, "searches of the page table by reads of resident pages");
    for is_forward in [true, false] {
        let (mut scan, mut batch, mut records) = (Scan::new(tree, Unbounded, Unbounded), LeafBatch::new(), 0);
        let (before, scanned) = (lookups(), world.env.scanned_leaves());
        while !scan.is_done() {
            let outcome = match is_forward {
                true => scan.next_batch(&world.env, 1, &mut NoLocks, &mut batch),
                false => scan.next_batch_back(&world.env, 1, &mut NoLocks, &mut batch),
            };
            assert_eq!(outcome.expect("scan"), Outcome::Done(()));
            records += batch.len();
        }
        assert_eq!(records, 3000);
        assert_eq!(world.env.scanned_leaves() - scanned, leaves, "one descent for each leaf");
        assert_eq!(lookups() - before, 0);
    }
}
