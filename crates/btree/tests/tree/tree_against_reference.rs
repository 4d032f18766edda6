//! Random histories of transactions, with rollbacks and savepoints, compared with a `BTreeMap`.

mod emptied;

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::common::{Txn, World, get};
use azekura_base::PageId;
use azekura_base::cipher::TRAILER_BYTES;
use azekura_btree::{LeafBatch, NoLocks, Outcome, Scan, Tree, max_inline_value, max_key, max_record_bytes};
use proptest::prelude::*;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, u8, usize),
    Remove(Vec<u8>),
    RemoveRange(Vec<u8>, usize),
    Get(Vec<u8>),
    Scan(Vec<u8>, Vec<u8>, usize),
    Savepoint,
    RollBackToSavepoint,
    Commit,
    Abort,
}

/// Keys of several shapes: short keys that collide, long common prefixes, zero bytes at the end, and very
/// long keys.
fn key(longest: usize) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (0u32..400).prop_map(|n| n.to_be_bytes().to_vec()),
        3 => (0u32..400).prop_map(|n| format!("customer/account/{:08}", n * 7919 % 400).into_bytes()),
        2 => prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255)], 0..12),
        1 => (0u8..20, 1..=longest).prop_map(|(b, len)| { let mut k = vec![7; len]; k[len - 1] = b; k }),
    ]
}

fn value_len(page_size: usize) -> impl Strategy<Value = usize> {
    let inline = max_inline_value(page_size, 0);
    prop_oneof![
        6 => 0..120usize,
        2 => Just(40usize),
        2 => 0..=inline,
        1 => inline + 1..4 * page_size,
    ]
}

fn step(page_size: usize) -> impl Strategy<Value = Step> {
    let k = || key(max_key(page_size));
    prop_oneof![
        30 => (k(), any::<u8>(), value_len(page_size)).prop_map(|(k, b, n)| Step::Put(k, b, n)),
        12 => k().prop_map(Step::Remove),
        2 => (k(), 1..120usize).prop_map(|(k, n)| Step::RemoveRange(k, n)),
        6 => k().prop_map(Step::Get),
        4 => (k(), k(), 1..50usize).prop_map(|(a, b, n)| Step::Scan(a, b, n)),
        2 => Just(Step::Savepoint),
        1 => Just(Step::RollBackToSavepoint),
        2 => Just(Step::Commit),
        1 => Just(Step::Abort),
    ]
}

fn value(byte: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| byte.wrapping_add((i / 3) as u8)).collect()
}

struct Run<'w> {
    world: &'w World,
    tree: Tree,
    txn: Txn<'w>,
    now: Model,
    committed: Model,
    savepoint: Option<(usize, Model)>,
}

impl Run<'_> {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Put(k, b, n) => {
                let value = value(*b, *n);
                let old = self.txn.put(self.tree, k, &value);
                assert_eq!(old, self.now.insert(k.clone(), value));
            }
            Step::Remove(k) => assert_eq!(self.txn.remove(self.tree, k), self.now.remove(k)),
            Step::RemoveRange(k, n) => {
                let keys: Vec<_> = self.now.range(k.clone()..).take(*n).map(|(k, _)| k.clone()).collect();
                for k in keys {
                    assert_eq!(self.txn.remove(self.tree, &k), self.now.remove(&k));
                }
            }
            Step::Get(k) => assert_eq!(get(&self.world.env, self.tree, k).as_ref(), self.now.get(k)),
            Step::Scan(a, b, n) => self.scan(a, b, *n),
            Step::Savepoint => self.savepoint = Some((self.txn.undo.len(), self.now.clone())),
            Step::RollBackToSavepoint => {
                if let Some((len, model)) = self.savepoint.take() {
                    self.txn.roll_back_to(len);
                    self.now = model;
                }
            }
            Step::Commit => {
                self.txn.commit();
                self.committed = self.now.clone();
                self.savepoint = None;
            }
            Step::Abort => {
                self.txn.roll_back();
                self.now = self.committed.clone();
                self.savepoint = None;
            }
        }
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) {
        let bounds = [
            (Bound::Included(from), Bound::Excluded(to)),
            (Bound::Excluded(from), Bound::Included(to)),
            (Bound::Unbounded, Bound::Excluded(to)),
            (Bound::Included(from), Bound::Unbounded),
        ];
        for (lower, upper) in bounds {
            let expected: Vec<_> = self
                .now
                .iter()
                .filter(|(k, _)| match lower {
                    Bound::Included(a) => k.as_slice() >= a,
                    Bound::Excluded(a) => k.as_slice() > a,
                    Bound::Unbounded => true,
                })
                .filter(|(k, _)| match upper {
                    Bound::Included(b) => k.as_slice() <= b,
                    Bound::Excluded(b) => k.as_slice() < b,
                    Bound::Unbounded => true,
                })
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            let mut both = Scan::new(self.tree, lower, upper);
            let mut found = self.drain(&mut both.clone(), limit, |_| true);
            assert_eq!(found, expected, "forward");
            found = self.drain(&mut both.clone(), limit, |_| false);
            found.reverse();
            assert_eq!(found, expected, "backward");
            // Consumes the range from both ends in turn: each record is returned once.
            let (mut front, mut back) = (Vec::new(), Vec::new());
            let mut forward = false;
            while !both.is_done() {
                forward = !forward;
                let part = self.batch(&mut both, limit, forward);
                if forward { front.extend(part) } else { back.extend(part) }
            }
            back.reverse();
            front.extend(back);
            assert_eq!(front, expected, "from both ends");
        }
    }

    fn drain(
        &self,
        scan: &mut Scan,
        limit: usize,
        forward: impl Fn(usize) -> bool,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut out = Vec::new();
        loop {
            let part = self.batch(scan, limit, forward(out.len()));
            if part.is_empty() {
                return out;
            }
            out.extend(part);
        }
    }

    fn batch(&self, scan: &mut Scan, limit: usize, forward: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
        let (env, mut batch) = (&self.world.env, LeafBatch::new());
        let outcome = if forward {
            scan.next_batch(env, limit, &mut NoLocks, &mut batch)
        } else {
            scan.next_batch_back(env, limit, &mut NoLocks, &mut batch)
        };
        assert_eq!(outcome.expect("scan"), Outcome::Done(()));
        assert!(batch.len() <= limit);
        (0..batch.len())
            .map(|i| {
                let mut value = Vec::new();
                batch.read_value(env, i, &mut value).expect("value");
                (batch.key(i).to_vec(), value)
            })
            .collect()
    }
}

fn run(page_size: usize, frames: usize, steps: &[Step]) {
    let (world, _) = World::new(page_size, frames);
    let mut txn = world.txn(1);
    let tree = txn.create(1);
    txn.commit();
    let mut run =
        Run { world: &world, tree, txn, now: Model::new(), committed: Model::new(), savepoint: None };
    steps.iter().for_each(|step| run.step(step));
    let catalogue = Tree { id: azekura_base::TreeId(0), root: PageId(1) };
    let pending = run.txn.undo.deferred_frees();
    world.assert_sound(&[catalogue, tree], &pending);
    // The rollback undoes the changes of the open transaction, which restores the committed state.
    run.txn.roll_back();
    let contents = world.contents(tree);
    assert_eq!(contents, run.committed.clone().into_iter().collect::<Vec<_>>());
    let report = world.assert_sound(&[catalogue, tree], &[]);
    assert_eq!(report.trees[1].records, contents.len() as u64);
    emptied::assert_dense(&world, tree);
    assert!(world.log.records().iter().all(|body| body.len() <= max_record_bytes(page_size)));
    redone_equals_done(&world, page_size, frames);
}

/// Asserts that redo of the log restores the store, byte for byte. W12 and W13 rely on this.
fn redone_equals_done(world: &World, page_size: usize, frames: usize) {
    let again = World::blank(page_size, frames);
    world.replay_into(&again);
    // The log is replayed twice: redo is idempotent.
    world.replay_into(&again);
    let last = (0..).map(PageId).take_while(|&id| id.0 < 400).filter(|&id| world.page(id) != again.page(id));
    assert_eq!(last.collect::<Vec<_>>(), [], "pages that redo made differently");
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(40))]
    #[test]
    fn a_tree_of_4_kib_pages_is_a_sorted_map(steps in prop::collection::vec(step(4096), 1..600)) {
        run(4096, 48, &steps);
    }
}

proptest! {
    #![proptest_config(config(40))]
    #[test]
    fn a_tree_of_pages_with_a_trailer_is_a_sorted_map(steps in prop::collection::vec(step(4048), 1..600)) {
        run(4096 - TRAILER_BYTES, 48, &steps);
    }
}

proptest! {
    #![proptest_config(config(25))]
    #[test]
    fn a_tree_of_8_kib_pages_is_a_sorted_map(steps in prop::collection::vec(step(8192), 1..600)) {
        run(8192, 48, &steps);
    }
}

proptest! {
    #![proptest_config(config(8))]
    #[test]
    fn a_tree_of_64_kib_pages_is_a_sorted_map(steps in prop::collection::vec(step(65536), 1..500)) {
        run(65536, 40, &steps);
    }
}

/// LAST-1: writes in key order descend once for each leaf, and twice more where a split makes room. Removals
/// descend once for each leaf, and once more after each attempt to merge. Writes
/// that alternate between two trees descend each time, and so do writes to a leaf that others change in
/// between.
#[test]
fn rows_in_key_order_descend_once_for_each_leaf() {
    const ROWS: u32 = 3000;
    let (world, catalog) = World::new(4096, 1000);
    let mut txn = world.txn(1);
    let tree = txn.create(7);
    for key in 0..ROWS {
        txn.put(tree, &key.to_be_bytes(), &[7; 40]);
    }
    let leaves = world.assert_sound(&[catalog, tree], &[]).trees[1].leaf_pages;
    let descents = txn.undo.descents();
    assert!(leaves > 30 && descents <= 3 * leaves, "{descents} descents to {leaves} leaves");

    for key in (0..ROWS).rev() {
        txn.put(tree, &key.to_be_bytes(), &[8; 40]);
    }
    let backward = txn.undo.descents() - descents;
    assert!(backward <= leaves + 1, "{backward} descents for updates in {leaves} leaves");

    let (mut other, before) = (world.txn(2), txn.undo.descents());
    for key in 0..100 {
        txn.put(tree, &u32::to_be_bytes(2 * key), &[9; 40]);
        other.put(tree, &u32::to_be_bytes(2 * key + 1), &[10; 40]);
    }
    // The leaf of the first key is the leaf of the last update.
    assert_eq!((txn.undo.descents() - before, other.undo.descents()), (99, 100));
    let wanted = (0..ROWS).map(|key| {
        let byte = if key >= 200 { 8 } else { 9 + (key % 2) as u8 };
        (key.to_be_bytes().to_vec(), vec![byte; 40])
    });
    assert!(world.contents(tree) == wanted.collect::<Vec<_>>());

    let (leaves, before) =
        (world.assert_sound(&[catalog, tree], &[]).trees[1].leaf_pages, txn.undo.descents());
    (0..ROWS).for_each(|key| assert!(txn.remove(tree, &key.to_be_bytes()).is_some()));
    let removal = txn.undo.descents() - before;
    assert!(
        (leaves / 2..=4 * leaves).contains(&removal),
        "{removal} descents to remove all rows of {leaves} leaves"
    );
    assert!(world.contents(tree).is_empty());
}

/// LAST-1: a row that was read and is then changed needs no second descent, unless its leaf has changed in
/// between or the note is of another leaf. A note of another leaf does not displace the leaf of the last
/// change.
#[test]
fn a_change_of_a_row_that_was_read_needs_no_second_descent() {
    const ROWS: u32 = 3000;
    let (world, catalog) = World::new(4096, 1000);
    let (mut txn, mut other) = (world.txn(1), world.txn(2));
    let tree = txn.create(7);
    (0..ROWS).for_each(|key| _ = txn.put(tree, &key.to_be_bytes(), &[7; 40]));
    let read = |txn: &mut Txn<'_>, key: u32| {
        let (found, leaf) = tree.get_in_leaf(&world.env, &key.to_be_bytes(), &mut Vec::new()).expect("reads");
        assert!(found);
        txn.undo.note_read(leaf.expect("a leaf without a latch"));
    };
    let change = |txn: &mut Txn<'_>, key: u32| {
        let before = txn.undo.descents();
        assert!(txn.put(tree, &key.to_be_bytes(), &[8; 40]).is_some());
        txn.undo.descents() - before
    };
    for key in [5, 2000, 1000] {
        read(&mut txn, key);
        assert_eq!(change(&mut txn, key), 0, "the leaf of the read");
    }
    read(&mut txn, 5);
    assert_eq!(change(&mut txn, 1001), 0, "the leaf of the last change");
    assert_eq!(change(&mut txn, 5), 1, "the note was forgotten");
    read(&mut txn, 2000);
    assert_eq!(change(&mut other, 2000), 1);
    assert_eq!(change(&mut txn, 2000), 1, "the leaf has changed");
    world.assert_sound(&[catalog, tree], &[]);
    let changed = [5, 1000, 1001, 2000];
    let wanted =
        (0..ROWS).map(|key| (key.to_be_bytes().to_vec(), vec![7 + u8::from(changed.contains(&key)); 40]));
    assert!(world.contents(tree) == wanted.collect::<Vec<_>>());
}

/// A write does not use the remembered leaf of the last change after that leaf was merged away and its page
/// became part of another tree.
#[test]
fn a_cached_leaf_that_was_unlinked_is_not_written() {
    const ROWS: u32 = 1000;
    let (world, catalog) = World::new(4096, 1000);
    let mut txn = world.txn(1);
    let tree = txn.create(7);
    let (mut model, mut trees) = (Model::new(), vec![catalog, tree]);
    for key in 0..ROWS {
        txn.put(tree, &key.to_be_bytes(), &[7; 40]);
        model.insert(key.to_be_bytes().to_vec(), vec![7; 40]);
    }
    for middle in [500u32, 40, 980] {
        txn.put(tree, &middle.to_be_bytes(), &[8; 40]);
        let (_, leaf) =
            tree.get_in_leaf(&world.env, &(middle + 1).to_be_bytes(), &mut Vec::new()).expect("reads");
        leaf.into_iter().for_each(|leaf| txn.undo.note_read(leaf));
        let mut other = world.txn(2);
        for key in middle.saturating_sub(200)..(middle + 200).min(ROWS) {
            other.remove(tree, &key.to_be_bytes());
            model.remove(&key.to_be_bytes()[..]);
        }
        let second = other.create(100 + middle);
        for key in 0..ROWS {
            other.put(second, &key.to_be_bytes(), &[1; 40]);
        }
        txn.put(tree, &(middle + 1).to_be_bytes(), &[9; 40]);
        model.insert((middle + 1).to_be_bytes().to_vec(), vec![9; 40]);
        assert!(world.contents(second).iter().all(|(_, value)| *value == [1; 40]));
        trees.push(second);
        world.assert_sound(&trees, &[]);
        assert!(world.contents(tree) == model.clone().into_iter().collect::<Vec<_>>());
    }
}
