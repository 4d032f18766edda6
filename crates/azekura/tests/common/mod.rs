//! A seeded workload that runs on a store and on a model. After each crash, the recovered state must be
//! between "all acknowledged transactions" and "all attempted transactions".
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use azekura::{Builder, Database, Durability, Error, LogProtocol, TableDefinition, Transaction};
use azekura_io::Fs;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

pub type Rows = BTreeMap<Vec<u8>, Vec<u8>>;
/// Table name → rows; a table without rows is not in the map.
pub type Model = BTreeMap<String, Rows>;

#[derive(Clone, Debug)]
pub enum Op {
    Put {
        table: usize,
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Remove {
        table: usize,
        key: Vec<u8>,
    },
    DropTable {
        table: usize,
    },
    /// Reads [`RELAXED_KEY`].
    ReadRelaxed,
    /// A rollback: these operations, then a rollback to a savepoint before them.
    RolledBack(Vec<Op>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Commit,
    CommitRelaxed,
    Abort,
}

/// A key of table 0 that each relaxed transaction writes and each durable one reads. So a durable commit
/// depends on all relaxed ones before it. Without this dependency, a crash may lose an older relaxed
/// transaction and keep a newer durable one.
pub const RELAXED_KEY: &[u8] = b"relaxed";

#[derive(Clone, Debug)]
pub struct Txn {
    pub ops: Vec<Op>,
    pub end: End,
    pub checkpoint: Option<Checkpoint>,
    /// Log stream that is written alone, in the middle of the transaction and after its end.
    pub writes_alone: Option<usize>,
}

impl Txn {
    /// Makes the commit a relaxed one: adds a write of [`RELAXED_KEY`].
    pub fn relax(&mut self) {
        self.end = End::CommitRelaxed;
        let value = (self.ops.len() as u64).to_be_bytes().to_vec();
        self.ops.push(Op::Put { table: 0, key: RELAXED_KEY.to_vec(), value });
    }
}

/// A checkpoint of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Checkpoint {
    /// Number of pages that the checkpoint writes; `None` for all dirty pages.
    pub pages: Option<usize>,
    /// Number of the operation of the transaction before which the checkpoint is taken; `None` after the
    /// transaction's end.
    pub before: Option<usize>,
}

impl Checkpoint {
    fn draw(rng: &mut StdRng, ops: usize) -> Self {
        Self {
            pages: rng.random_bool(0.6).then(|| rng.random_range(0..6)),
            before: rng.random_bool(0.6).then(|| rng.random_range(0..=ops)),
        }
    }

    fn take(self, db: &Database) -> Result<(), Error> {
        self.pages.map_or_else(|| db.checkpoint(), |pages| db.checkpoint_step(pages))
    }
}

/// Size and variety of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub txns: usize,
    pub ops: usize,
    pub keys: u32,
    pub tables: usize,
    pub large_values: bool,
    pub checkpoints: bool,
}

pub fn table_name(table: usize) -> String {
    format!("t{table}")
}

fn table(index: usize) -> TableDefinition<[u8], [u8]> {
    TableDefinition::named(table_name(index))
}

pub fn workload(seed: u64, shape: Shape) -> Vec<Txn> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..shape.txns)
        .map(|_| {
            let count = rng.random_range(1..=shape.ops);
            let ops = (0..count).map(|_| op(&mut rng, shape, true)).collect();
            let mut txn = Txn { ops, end: End::Abort, checkpoint: None, writes_alone: None };
            match rng.random_range(0..10) {
                0 | 1 => {}
                2..=4 => txn.relax(),
                _ => {
                    txn.end = End::Commit;
                    txn.ops.push(Op::ReadRelaxed);
                }
            }
            let due = shape.checkpoints && rng.random_ratio(1, 6);
            txn.checkpoint = due.then(|| Checkpoint::draw(&mut rng, count));
            txn
        })
        .collect()
}

fn op(rng: &mut StdRng, shape: Shape, may_nest: bool) -> Op {
    let table = rng.random_range(0..shape.tables);
    let key = key(rng.random_range(0..shape.keys));
    match rng.random_range(0..40) {
        0..=9 => Op::Remove { table, key },
        10 if may_nest && shape.tables > 1 => Op::DropTable { table },
        11..=13 if may_nest => {
            let count = rng.random_range(1..6);
            Op::RolledBack((0..count).map(|_| op(rng, shape, false)).collect())
        }
        _ => Op::Put { table, key, value: value(rng, shape.large_values) },
    }
}

/// Returns keys of very different lengths, with long common prefixes.
pub fn key(n: u32) -> Vec<u8> {
    match n % 4 {
        0 => n.to_be_bytes().to_vec(),
        1 => format!("common/prefix/of/many/keys/{n:06}").into_bytes(),
        2 => [b"x".repeat((n % 300) as usize), n.to_be_bytes().to_vec()].concat(),
        _ => vec![(n % 251) as u8, (n / 251) as u8, 0, 0xff],
    }
}

fn value(rng: &mut StdRng, large: bool) -> Vec<u8> {
    let len = match rng.random_range(0..20) {
        0 if large => rng.random_range(3_000..60_000),
        1..=4 => rng.random_range(100..900),
        _ => rng.random_range(0..40),
    };
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes[..]);
    bytes
}

pub fn apply_to_model(model: &mut Model, op: &Op) {
    match op {
        Op::Put { table, key, value } => {
            model.entry(table_name(*table)).or_default().insert(key.clone(), value.clone());
        }
        Op::Remove { table, key } => {
            let name = table_name(*table);
            if let Some(rows) = model.get_mut(&name) {
                rows.remove(key);
                if rows.is_empty() {
                    model.remove(&name);
                }
            }
        }
        Op::DropTable { table } => {
            model.remove(&table_name(*table));
        }
        Op::ReadRelaxed | Op::RolledBack(_) => {}
    }
}

pub fn apply_to_store(tx: &Transaction, op: &Op) -> Result<(), Error> {
    match op {
        Op::Put { table: at, key, value } => tx.table(&table(*at))?.insert(key, value),
        Op::Remove { table: at, key } => tx.table(&table(*at))?.remove(key).map(drop),
        Op::DropTable { table } => tx.drop_table(table_name(*table)).map(drop),
        Op::ReadRelaxed => tx.table(&table(0))?.get(RELAXED_KEY).map(drop),
        Op::RolledBack(ops) => {
            let savepoint = tx.savepoint()?;
            ops.iter().try_for_each(|op| apply_to_store(tx, op))?;
            tx.rollback_to(savepoint)
        }
    }
}

/// The result of a workload.
#[derive(Debug)]
pub struct Outcome {
    /// The content after each attempted commit; `states[0]` is the start.
    pub states: Vec<Model>,
    /// Index in `states` of the last commit that was acknowledged as durable.
    pub acknowledged: usize,
    /// The error that ended the run, if it did not reach the end.
    pub error: Option<Error>,
}

/// Runs the workload from the content `start` until its end or the first error. Each transaction runs in its
/// own thread, one after another, so that the records are in all log buffers. The log buffer of a thread
/// depends on the number of earlier threads in the process, so runs concurrent with other tests differ.
pub fn run(db: &Database, start: Model, txns: &[Txn]) -> Outcome {
    let mut outcome = Outcome { states: vec![start], acknowledged: 0, error: None };
    for txn in txns {
        let result = std::thread::scope(|s| s.spawn(|| run_one(db, txn)).join().expect("no panic"));
        let mut changed = false;
        if txn.end != End::Abort && !matches!(result, Err((_, false))) {
            let before = outcome.states.last().expect("start");
            let mut model = before.clone();
            txn.ops.iter().for_each(|op| apply_to_model(&mut model, op));
            changed = model != *before;
            outcome.states.push(model);
        }
        match result {
            // A commit without changes has nothing to make durable, so relaxed commits before it may still be
            // lost.
            Ok(()) if txn.end == End::Commit && changed => outcome.acknowledged = outcome.states.len() - 1,
            Ok(()) => {}
            Err((error, _)) => {
                outcome.error = Some(error);
                break;
            }
        }
        if let Some(stream) = txn.writes_alone {
            db.write_one_log_stream(stream);
        }
        if let Some(checkpoint) = txn.checkpoint.filter(|c| c.before.is_none())
            && let Err(error) = checkpoint.take(db)
        {
            outcome.error = Some(error);
            break;
        }
    }
    outcome
}

/// Runs one transaction. An error has a flag: `true` if the commit was attempted, so that its result is
/// unknown.
fn run_one(db: &Database, txn: &Txn) -> Result<(), (Error, bool)> {
    let tx = db.begin().map_err(|e| (e, false))?;
    let midway = txn.checkpoint.and_then(|c| c.before);
    for at in 0..=txn.ops.len() {
        if let Some(stream) = txn.writes_alone.filter(|_| at == txn.ops.len() / 2) {
            db.write_one_log_stream(stream + 1);
        }
        if midway == Some(at) {
            txn.checkpoint.map_or(Ok(()), |c| c.take(db)).map_err(|e| (e, false))?;
        }
        txn.ops.get(at).map_or(Ok(()), |op| apply_to_store(&tx, op)).map_err(|e| (e, false))?;
    }
    match txn.end {
        End::Abort => tx.abort().map_err(|e| (e, false)),
        End::Commit => tx.commit().map_err(|e| (e, true)),
        End::CommitRelaxed => {
            tx.set_durability(Durability::Relaxed);
            tx.commit().map_err(|e| (e, true))
        }
    }
}

/// Reads the whole store.
pub fn content(db: &Database) -> Result<Model, Error> {
    let mut model = Model::new();
    for name in db.table_names()? {
        let rows: Rows =
            db.transact(|tx| tx.table(&TableDefinition::raw(name.as_str()))?.iter().collect())?;
        if !rows.is_empty() {
            model.insert(name, rows);
        }
    }
    Ok(model)
}

/// Returns the index of the store's state in `outcome.states`. Panics with `context` if the state is not one
/// of the allowed states, or if `check` finds damage.
pub fn assert_recovered(db: &Database, outcome: &Outcome, context: &str) -> usize {
    let found = content(db).unwrap_or_else(|e| panic!("{context}: reading everything: {e}"));
    let allowed = outcome.acknowledged..outcome.states.len();
    let Some(at) = allowed.clone().rev().find(|&i| outcome.states[i] == found) else {
        let other = outcome.states.iter().position(|s| *s == found);
        panic!(
            "{context}: recovered content is none of states {allowed:?} (it is state {other:?}); {}",
            difference(&outcome.states[outcome.acknowledged], &found)
        );
    };
    assert_clean(db, context);
    at
}

pub fn assert_clean(db: &Database, context: &str) {
    let report = db.check(&mut |_, _| {}).unwrap_or_else(|e| panic!("{context}: check: {e}"));
    assert!(report.is_clean(), "{context}: check found {:?}", report.findings);
}

pub fn difference(expected: &Model, found: &Model) -> String {
    for name in expected.keys().chain(found.keys()) {
        let (a, b) = (expected.get(name), found.get(name));
        if a == b {
            continue;
        }
        let empty = Rows::new();
        let (a, b) = (a.unwrap_or(&empty), b.unwrap_or(&empty));
        let missing: Vec<_> = a.keys().filter(|k| !b.contains_key(*k)).take(3).collect();
        let extra: Vec<_> = b.keys().filter(|k| !a.contains_key(*k)).take(3).collect();
        let changed = a.iter().filter(|(k, v)| b.get(*k).is_some_and(|w| w != *v)).count();
        return format!(
            "against the acknowledged state, table {name} ({} rows, found {}): missing {missing:02x?}, \
             extra {extra:02x?}, {changed} changed",
            a.len(),
            b.len()
        );
    }
    "no difference in content".into()
}

/// The log settings of one run of a store.
#[derive(Clone, Copy, Debug)]
pub struct LogShape {
    pub protocol: LogProtocol,
    pub workers: usize,
    pub streams: usize,
}

/// All log protocols, with an epoch interval that is short enough for a test.
pub const PROTOCOLS: [LogProtocol; 3] =
    [LogProtocol::PWal, LogProtocol::Serial, LogProtocol::Epoch { interval: Duration::from_micros(500) }];

impl LogShape {
    /// Returns random log settings with up to 16 log buffers and streams.
    pub fn draw(rng: &mut StdRng) -> Self {
        let workers = rng.random_range(1..=16);
        Self { protocol: PROTOCOLS[rng.random_range(0..3)], workers, streams: rng.random_range(1..=workers) }
    }

    /// Applies the settings to a builder. Two of three settings draw LSNs in ranges.
    pub fn apply(self, builder: Builder) -> Builder {
        let lsn_range = [64, 1, 6][(self.workers + self.streams) % 3];
        let protocol = if ENCRYPTS.get() { LogProtocol::PWal } else { self.protocol };
        let builder = builder.log_protocol(protocol).wal_lsn_range(lsn_range);
        builder.log_buffers(self.workers).wal_streams(self.streams)
    }
}

thread_local! {
    static ENCRYPTS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `test` with an encryption key for each store that this thread opens by [`deterministic`].
pub fn with_key(test: impl FnOnce()) {
    ENCRYPTS.set(true);
    test();
    ENCRYPTS.set(false);
}

/// Returns the settings of a small store on `fs` without background threads, so that every run does the same
/// I/O in the same order.
pub fn deterministic(fs: Arc<dyn Fs>, page_size: usize, frames: usize) -> Builder {
    let builder = Database::builder();
    let builder = if ENCRYPTS.get() { builder.encryption_key(&[7; 32]) } else { builder };
    builder
        .page_size(page_size)
        .cache_bytes(frames * page_size)
        .log_buffers(3)
        .wal_streams(2)
        .wal_segment_bytes(2 << 20)
        .recovery_time(Duration::from_millis(250))
        .logged_value_bytes(6_000) // further large values of a transaction are not in the log
        .background(false)
        .file_system(fs)
}
