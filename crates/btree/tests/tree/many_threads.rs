//! Threads change one tree, in a pool far smaller than the tree; then the whole store is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::common::{World, get};
use azekura_base::sync::atomic::{AtomicBool, Ordering::Relaxed};
use azekura_base::{PageId, TreeId};
use azekura_btree::{
    EnvOptions, Head, LeafBatch, NoLocks, Outcome, PageOp, Record, Scan, Tree, max_record_bytes,
};

const THREADS: u32 = 4;
const STEPS: u32 = 7_000;

/// A small random generator for each thread: the same seed gives the same steps.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((self.0 >> 33) as u32) % sides
    }
}

/// Returns a key of the thread. Keys of all threads interleave, so every leaf has keys of all threads. With
/// 160 bytes the tree has three levels. With 480 bytes it has five, and inner nodes split and merge all the
/// time.
fn own_key(thread: u32, n: u32, width: usize) -> Vec<u8> {
    format!("{n:05}{:.<width$}/{thread}", n * 31).into_bytes()
}

fn shared_key(n: u32) -> Vec<u8> {
    format!("{n:05}/shared").into_bytes()
}

/// Returns a value that shows whether it is complete: one byte, repeated as many times as its value.
fn value(dice: &mut Dice) -> Vec<u8> {
    let byte = dice.roll(200) as u8;
    vec![byte; usize::from(byte) + if dice.roll(400) == 0 { 9000 } else { 0 }]
}

fn assert_whole(value: &[u8]) {
    assert!(value.windows(2).all(|pair| pair[0] == pair[1]), "a torn value: {value:?}");
    assert_eq!(value.len() % 200, value.first().map_or(0, |&b| usize::from(b)) % 200, "cut: {value:?}");
}

/// Inserts, removes, reads and rolls back the thread's own keys, and compares them with a map.
fn writer(world: &World, tree: Tree, thread: u32, seed: u64, width: usize) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut dice = Dice(seed + u64::from(thread));
    let mut txn = world.txn(u64::from(thread) + 1);
    let (mut now, mut committed) = (BTreeMap::new(), BTreeMap::new());
    for step in 0..STEPS {
        let key = own_key(thread, dice.roll(700), width);
        // Phases of growth and of shrinking: splits, then merges.
        let growing = step / 900 % 2 == 0;
        match dice.roll(20) {
            0..2 => {
                let value = value(&mut dice);
                assert_eq!(txn.put(tree, &key, &value), now.insert(key, value));
            }
            2..9 if growing => {
                let value = value(&mut dice);
                assert_eq!(txn.put(tree, &key, &value), now.insert(key, value));
            }
            2..14 => assert_eq!(txn.remove(tree, &key), now.remove(&key)),
            14..17 => assert_eq!(get(&world.env, tree, &key).as_ref(), now.get(&key)),
            17 => scan_own(world, tree, thread, &now, &mut dice),
            18 => {
                txn.commit();
                committed = now.clone();
            }
            _ if dice.roll(4) == 0 => {
                txn.roll_back();
                now = committed.clone();
            }
            _ => shared(world, tree, &mut dice),
        }
    }
    txn.commit();
    now
}

/// Writes keys that all threads write, without transaction and undo. Every value read is complete.
fn shared(world: &World, tree: Tree, dice: &mut Dice) {
    let key = shared_key(dice.roll(50));
    if let Some(value) = get(&world.env, tree, &key) {
        assert_whole(&value);
    }
    let byte = dice.roll(200) as u8;
    let mut txn = world.txn(99);
    if dice.roll(3) == 0 {
        txn.remove(tree, &key);
    } else {
        txn.put(tree, &key, &vec![byte; byte.into()]);
    }
}

fn scan_own(world: &World, tree: Tree, thread: u32, now: &BTreeMap<Vec<u8>, Vec<u8>>, dice: &mut Dice) {
    let (from, to) = (dice.roll(700), dice.roll(700));
    let (from, to) = (own_key(0, from.min(to), 0), own_key(0, from.max(to), 0));
    let forward = dice.roll(2) == 0;
    let mut scan = Scan::new(tree, Bound::Included(&from), Bound::Excluded(&to));
    let (mut batch, mut found, mut last) = (LeafBatch::new(), Vec::new(), None);
    while !scan.is_done() {
        let outcome = if forward {
            scan.next_batch(&world.env, 40, &mut NoLocks, &mut batch)
        } else {
            scan.next_batch_back(&world.env, 40, &mut NoLocks, &mut batch)
        };
        assert_eq!(outcome.expect("scan"), Outcome::Done(()));
        for i in 0..batch.len() {
            let key = batch.key(i).to_vec();
            assert!(last.as_ref().is_none_or(|last| if forward { *last < key } else { *last > key }));
            last = Some(key.clone());
            // Large values of other threads may be freed during a scan without locks; values of this thread
            // may not.
            if key.ends_with(format!("/{thread}").as_bytes()) {
                let mut value = Vec::new();
                batch.read_value(&world.env, i, &mut value).expect("value");
                found.push((key, value));
            }
        }
    }
    if !forward {
        found.reverse();
    }
    let expected: Vec<_> = now.range(from..to).map(|(k, v)| (k.clone(), v.clone())).collect();
    assert_eq!(found, expected, "thread {thread}");
}

fn run(page_size: usize, frames: usize, seed: u64, width: usize, options: EnvOptions) {
    println!("seed {seed}");
    let world = World::with_options(page_size, frames, options);
    let catalogue = world.env.format(crate::common::log_buffer()).expect("format");
    let tree = {
        let mut txn = world.txn(1000);
        txn.create(1)
    };
    let models: Vec<_> = std::thread::scope(|scope| {
        let world = &world;
        let handles: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || writer(world, tree, thread, seed, width)))
            .collect();
        handles.into_iter().map(|handle| handle.join().expect("a writer panicked")).collect()
    });
    let mut expected: BTreeMap<_, _> = models.into_iter().flatten().collect();
    for (key, value) in world.contents(tree) {
        if key.ends_with(b"/shared") {
            assert_whole(&value);
        } else {
            assert_eq!(expected.remove(&key), Some(value));
        }
    }
    assert_eq!(expected, BTreeMap::new(), "lost records");
    let report = world.assert_sound(&[catalogue, tree], &[]);
    println!("{:?}, {} log records", report.trees[1], world.log.len());
    let mut changes = [0; 2];
    for body in world.log.records() {
        assert!(body.len() <= max_record_bytes(page_size));
        let record = Record::decode(&body).expect("own record");
        for op in record.ops().filter(|_| record.head == Head::System) {
            match op.expect("own record").1 {
                PageOp::Truncate { .. } => changes[0] += 1,
                PageOp::Release => changes[1] += 1,
                _ => {}
            }
        }
    }
    println!("{changes:?} splits and merges");
    assert!(changes[0] > 60 && changes[1] > 10, "{changes:?} splits and merges");
    assert_eq!(catalogue, Tree { id: TreeId(0), root: PageId(1) });

    // W7: the log's order is the order in which each page changed, so redo gives the same pages.
    let again = World::blank(page_size, frames);
    world.replay_into(&again);
    for id in (0..report.pages + 50).map(PageId) {
        assert!(world.page(id) == again.page(id), "redo made page {id} differently");
    }
}

#[test]
fn w7_threads_on_one_tree_lose_nothing_and_their_log_redoes_it() {
    run(4096, 64, 1, 160, EnvOptions::default());
}

#[test]
fn threads_in_a_pool_with_room_for_everything_lose_nothing() {
    run(4096, 4000, 2, 480, EnvOptions::default());
}

/// Threads that always latch, from the root down, lose no changes and do not deadlock.
#[test]
fn threads_that_always_latch_their_way_down_lose_nothing_and_do_not_deadlock() {
    run(4096, 300, 3, 480, EnvOptions { optimistic_attempts: 0, ..EnvOptions::default() });
}

/// HOP-3: data that was copied during a change is discarded.
#[test]
fn readers_never_see_a_value_that_is_half_one_and_half_another() {
    let (world, tree) = World::new(4096, 64);
    let key = b"the key that everybody wants";
    let mut txn = world.txn(1);
    txn.put(tree, key, &[0; 500]);
    let stop = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let reader = |by_scan: bool| {
            let (world, stop) = (&world, &stop);
            scope.spawn(move || {
                let mut seen = BTreeSet::new();
                // Relaxed: the flag only ends the loop.
                while !stop.load(Relaxed) {
                    let value = if by_scan { scan_for(world, tree, key) } else { get(&world.env, tree, key) };
                    let value = value.expect("never removed");
                    assert!(value.iter().all(|&byte| byte == value[0]), "{value:?}");
                    assert_eq!(value.len(), 500 - usize::from(value[0]) % 3);
                    seen.insert(value[0]);
                }
                seen.len()
            })
        };
        let readers = [reader(true), reader(false)];
        for n in 0..20_000u32 {
            let byte = n as u8;
            txn.put(tree, key, &vec![byte; 500 - usize::from(byte) % 3]);
            // Moves cells by changing the length of a neighboring value.
            txn.put(tree, b"a neighbor", &vec![1; (n * 37 % 450) as usize]);
            txn.undo.clear();
        }
        stop.store(true, Relaxed);
        readers.map(|reader| reader.join().expect("a reader panicked"))
    });
    println!("distinct values seen: {seen:?}");
}

fn scan_for(world: &World, tree: Tree, key: &[u8]) -> Option<Vec<u8>> {
    let mut scan = Scan::new(tree, Bound::Included(key), Bound::Included(key));
    let mut batch = LeafBatch::new();
    assert_eq!(scan.next_batch(&world.env, 10, &mut NoLocks, &mut batch).expect("scan"), Outcome::Done(()));
    let mut value = Vec::new();
    batch.read_value(&world.env, 0, &mut value).expect("value");
    (batch.len() == 1).then_some(value)
}

/// SCAN-1: between two batches of a scan its leaf is split, merged, changed, or evicted with the whole pool.
/// There is one thread, so each batch must be the next rows at that moment.
#[test]
fn a_scan_continues_after_every_kind_of_change_of_its_leaf() {
    for seed in 0..if cfg!(miri) { 2 } else { 20 } {
        let (world, tree) = World::new(4096, 24);
        let mut dice = Dice(seed);
        let mut txn = world.txn(1);
        let other = txn.create(7);
        let mut model = BTreeMap::new();
        let key = |n: u32| format!("{n:05}").into_bytes();
        for n in 0..500 {
            txn.put(tree, &key(4 * n), &[1; 60]);
            model.insert(key(4 * n), vec![1; 60]);
            txn.put(other, &key(n), &[2; 400]);
        }
        let is_forward = seed % 2 == 0;
        let mut scan = Scan::new(tree, Bound::Unbounded, Bound::Unbounded);
        let (mut batch, mut last) = (LeafBatch::new(), None::<Vec<u8>>);
        while !scan.is_done() {
            let near = last.as_ref().map_or(if is_forward { 0 } else { 2000 }, |key| {
                std::str::from_utf8(key).expect("digits").parse::<u32>().expect("a number")
            });
            let ahead = |n: u32| key(if is_forward { near + n } else { near.saturating_sub(n) });
            // Rows newer than the last batch: the scan may have passed their positions.
            let mut fresh = BTreeSet::new();
            match dice.roll(8) {
                0 => (0..40).for_each(|n| {
                    txn.put(tree, &ahead(n), &[3; 80]);
                    if model.insert(ahead(n), vec![3; 80]).is_none() {
                        fresh.insert(ahead(n));
                    }
                }),
                1 => (0..120).for_each(|n| {
                    assert_eq!(txn.remove(tree, &ahead(n)), model.remove(&ahead(n)));
                }),
                2 => (0..500).for_each(|n| assert!(get(&world.env, other, &key(n)).is_some())),
                3 => {
                    txn.put(tree, &ahead(4), &[4; 60]);
                    if model.insert(ahead(4), vec![4; 60]).is_none() {
                        fresh.insert(ahead(4));
                    }
                }
                _ => {}
            }
            let limit = 1 + dice.roll(9) as usize;
            let outcome = match is_forward {
                true => scan.next_batch(&world.env, limit, &mut NoLocks, &mut batch),
                false => scan.next_batch_back(&world.env, limit, &mut NoLocks, &mut batch),
            };
            assert_eq!(outcome.expect("scans"), Outcome::Done(()));
            let from = last.clone().map_or(Bound::Unbounded, Bound::Excluded);
            let mut rest: Box<dyn Iterator<Item = _>> = match is_forward {
                true => Box::new(model.range((from, Bound::Unbounded))),
                false => Box::new(model.range((Bound::Unbounded, from)).rev()),
            };
            for i in 0..batch.len() {
                let mut found = Vec::new();
                batch.read_value(&world.env, i, &mut found).expect("reads");
                let next =
                    rest.by_ref().find(|row| i > 0 || **row.0 == *batch.key(0) || !fresh.contains(row.0));
                assert_eq!(next, Some((&batch.key(i).to_vec(), &found)), "seed {seed}");
            }
            if batch.is_empty() {
                assert!(rest.all(|row| fresh.contains(row.0)), "seed {seed}: an empty batch is the end");
            }
            last = batch.len().checked_sub(1).map(|i| batch.key(i).to_vec()).or(last);
        }
        txn.commit();
        world.assert_sound(&[tree, other], &[]);
    }
}
