//! W13: a crash leaves a prefix of the log. For any prefix, redo and logical undo restore a valid store with
//! exactly the committed records. This holds even if the crash was in the middle of a split, of a large
//! value, of freeing, of undo itself, or of a recovery.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{MemLog, Txn, World, log_buffer};
use azekura_base::{Lsn, PageId, TreeId, TxnId};
use azekura_btree::{
    Deferred, EnvOptions, Head, Record, Tree, UndoLog, Writer, free_step, redo, roll_back_to,
};

const PAGE_SIZE: usize = 4096;
const FRAMES: usize = 200;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((self.0 >> 33) as u32) % sides
    }
}

/// The state of a transaction according to the log.
#[derive(Default)]
struct Known {
    undo: UndoLog,
    committed: bool,
    /// For each index of a deferred free, the rest that is not freed yet.
    freed: BTreeMap<u64, PageId>,
}

/// Performs redo and analysis in one pass, as a restart does.
fn redo_all(world: &World, records: &[Vec<u8>]) -> BTreeMap<TxnId, Known> {
    let mut open: BTreeMap<TxnId, Known> = BTreeMap::new();
    for (i, body) in records.iter().enumerate() {
        let record = Record::decode(body).expect("own record");
        redo(&world.env, Lsn(i as u64 + 1), &record).expect("redo");
        match record.head {
            Head::Update { txn, undo } => open.entry(txn).or_default().undo.push(&undo),
            Head::Compensate { txn } => open.entry(txn).or_default().undo.pop(),
            Head::Commit { txn, has_deferred: true, .. } => open.entry(txn).or_default().committed = true,
            Head::FreeStep { txn, index, next_head } => {
                open.entry(txn).or_default().freed.insert(index, next_head);
            }
            Head::Commit { txn, .. } | Head::End { txn } => {
                open.remove(&txn);
            }
            Head::System | Head::Carry { .. } => {}
        }
    }
    open
}

fn recover(records: &[Vec<u8>]) -> World {
    let log = MemLog::with_records(records);
    let world = World::with_log(PAGE_SIZE, FRAMES, EnvOptions::default(), log);
    for (txn, mut known) in redo_all(&world, records) {
        let writer = Writer { txn, log_buffer: log_buffer() };
        if known.committed {
            free_rest(&world, writer, &known);
        } else {
            roll_back_to(&world.env, writer, &mut known.undo, 0).expect("undo");
        }
        Txn { env: &world.env, id: txn, undo: UndoLog::new() }.note(&Head::End { txn });
    }
    world
}

fn free_rest(world: &World, writer: Writer, known: &Known) {
    for (index, item) in known.undo.deferred_frees().into_iter().enumerate() {
        let index = index as u64;
        let mut left = match known.freed.get(&index) {
            Some(&PageId(0)) => None,
            Some(&head) => Some(Deferred::Chain(head)),
            None => Some(item),
        };
        while let Some(what) = left {
            left = free_step(&world.env, writer, index, what).expect("free step");
        }
    }
}

/// The committed states, each with the number of log records from which on it is valid.
struct History {
    records: Vec<Vec<u8>>,
    states: Vec<(usize, BTreeMap<u32, Model>)>,
    roots: BTreeMap<u32, Tree>,
}

/// Returns a history of transactions with small and large values, created and dropped tables, savepoints and
/// rollbacks.
fn history(seed: u64) -> History {
    let (world, _) = World::new(PAGE_SIZE, FRAMES);
    let mut dice = Dice(seed);
    let mut committed: BTreeMap<u32, Model> = BTreeMap::new();
    let mut roots: BTreeMap<u32, Tree> = BTreeMap::new();
    let mut states = vec![(0, committed.clone())];
    for id in 1..30 {
        let mut txn = world.txn(id);
        let mut now = committed.clone();
        if now.len() < 2 || dice.roll(6) == 0 {
            let tree = txn.create(id as u32);
            roots.insert(id as u32, tree);
            now.insert(id as u32, Model::new());
        }
        let names: Vec<u32> = now.keys().copied().collect();
        let name = names[dice.roll(names.len() as u32) as usize];
        let (tree, mut model) = (roots[&name], now.remove(&name).expect("there"));
        let mut savepoint = None;
        for _ in 0..dice.roll(60) {
            let key = format!("{:0>120}", dice.roll(150)).into_bytes();
            match dice.roll(12) {
                0..6 => {
                    let len = [10, 10, 150, 150, 500, 30_000][dice.roll(6) as usize];
                    let value = vec![dice.roll(256) as u8; len + dice.roll(2) as usize];
                    assert_eq!(txn.put(tree, &key, &value), model.insert(key, value));
                }
                6..10 => assert_eq!(txn.remove(tree, &key), model.remove(&key)),
                10 => savepoint = Some((txn.undo.len(), model.clone())),
                _ => {
                    if let Some((len, before)) = savepoint.take() {
                        txn.roll_back_to(len);
                        model = before;
                    }
                }
            }
        }
        now.insert(name, model);
        if dice.roll(8) == 0 {
            txn.with(&mut azekura_btree::NoLocks, |env, ctx| tree.drop_at_commit(env, ctx)).expect("drop");
            now.remove(&name);
        }
        if dice.roll(4) == 0 {
            txn.roll_back();
        } else {
            // From its commit record on the transaction is committed, even with deferred frees left.
            let commit_at = world.log.len();
            txn.commit();
            states.push((commit_at + 1, now.clone()));
            committed = now;
        }
    }
    History { records: world.log.records(), states, roots }
}

impl History {
    fn committed_after(&self, records: usize) -> &BTreeMap<u32, Model> {
        let at = self.states.partition_point(|(from, _)| *from <= records);
        &self.states[at - 1].1
    }

    fn check(&self, world: &World, prefix: usize) {
        let committed = self.committed_after(prefix);
        let mut trees = vec![Tree { id: TreeId(0), root: PageId(1) }];
        trees.extend(committed.keys().map(|name| self.roots[name]));
        world.assert_sound(&trees, &[]);
        for (name, model) in committed {
            let expected: Vec<_> = model.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
            assert!(world.contents(self.roots[name]) == expected, "tree {name} after {prefix} records");
        }
    }
}

fn every_prefix(seed: u64) {
    println!("seed {seed}");
    let history = history(seed);
    let kinds: BTreeSet<u8> = history.records.iter().map(|body| body[0]).collect();
    assert_eq!(kinds, (1..=6).collect(), "every kind of record has come up");
    let mut dice = Dice(seed ^ 77);
    // The first record makes the store; without it there is none.
    let mut prefix = 1;
    while prefix <= history.records.len() {
        let recovered = recover(&history.records[..prefix]);
        history.check(&recovered, prefix);
        // A second crash, at a random point of that recovery.
        let again = recovered.log.records();
        let cut = prefix + dice.roll((again.len() - prefix + 1) as u32) as usize;
        history.check(&recover(&again[..cut]), prefix);
        prefix += 1 + dice.roll(12) as usize;
    }
}

#[test]
fn w13_every_prefix_of_a_log_recovers_to_what_was_committed() {
    every_prefix(1);
}

#[test]
fn w13_every_prefix_of_another_log_recovers_to_what_was_committed() {
    every_prefix(5);
}
