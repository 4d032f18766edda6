//! Power loss in a log with many buffers and streams, which may lose independent transactions out of commit
//! order (RANGE-3). Acknowledged transactions survive, and a surviving transaction depends only on survivors.
//! A recovery after an interrupted recovery finds the same state.
//!
//! Each client has its own log buffer, and random clients take turns. Transactions stay open over several
//! turns. Clients update shared rows and rows of their own, and sometimes only one log stream is written. A
//! row has the tag of its writer, and a digest of all rows that the transaction had read before. If a
//! transaction survives without one that it has read, the digest differs from the one that the survivors
//! alone produce. Each client's marker has the number of its last surviving transaction.
//! `AZEKURA_CRASH_SEEDS=20` runs 20 rounds of histories; `AZEKURA_CRASH_SEED=n` runs history `n`.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::common::{LogShape, PROTOCOLS, assert_clean, deterministic};
use azekura::{Database, Durability, Error, LogProtocol, TableDefinition, Transaction};
use azekura_io::FaultFs;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Rows that all clients read and update.
const SHARED: TableDefinition<u32, [u8]> = TableDefinition::new("shared");
const SHARED_ROWS: u32 = 150;
const HOT_ROWS: u32 = 10;
const CLIENTS: usize = 16;
const OWN_ROWS: u32 = 40;
const LIVES: u64 = 3;
const TURNS: usize = 320;

fn own(client: usize) -> TableDefinition<u32, [u8]> {
    TableDefinition::named(format!("own {client:02}"))
}

fn marker(client: usize) -> TableDefinition<u32, u64> {
    TableDefinition::named(format!("marker {client:02}"))
}

/// A row: the tag of its writer, a digest of the rows that the writer had read, and the row's length.
type Row = (u64, u64, usize);

fn bytes((tag, digest, len): Row) -> Vec<u8> {
    [&tag.to_le_bytes()[..], &digest.to_le_bytes(), &vec![tag as u8; len]].concat()
}

fn row(bytes: &[u8]) -> Row {
    let (tag, rest) = bytes.split_first_chunk().unwrap();
    let (digest, rest) = rest.split_first_chunk().unwrap();
    (u64::from_le_bytes(*tag), u64::from_le_bytes(*digest), rest.len())
}

const fn mix(digest: u64, with: u64) -> u64 {
    (digest ^ with).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Read(u32),
    Update(u32, usize),
    PutOwn(u32, usize),
    RemoveOwn(u32),
    DropOwn,
}

/// The content of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct World {
    shared: BTreeMap<u32, Row>,
    own: Vec<BTreeMap<u32, Row>>,
    /// Number of committed transactions of each client.
    committed: Vec<u64>,
}

impl World {
    fn new() -> Self {
        let shared = (0..SHARED_ROWS).map(|key| (key, (0, 0, 20 + key as usize % 60))).collect();
        Self { shared, own: vec![BTreeMap::new(); CLIENTS], committed: vec![0; CLIENTS] }
    }

    fn fill(&self, db: &Database) -> Result<(), Error> {
        db.transact(|tx| {
            let shared = tx.table(&SHARED)?;
            self.shared.iter().try_for_each(|(key, &row)| shared.insert(key, &bytes(row)))?;
            (0..CLIENTS).try_for_each(|client| tx.table(&marker(client))?.insert(&0, &0))
        })
    }

    fn read(db: &Database) -> Result<Self, Error> {
        db.transact(|tx| {
            let rows = |table: &TableDefinition<u32, [u8]>| -> Result<BTreeMap<u32, Row>, Error> {
                tx.table(table)?.iter().map(|found| found.map(|(key, value)| (key, row(&value)))).collect()
            };
            let marked = |client| Ok(tx.table(&marker(client))?.get(&0)?.unwrap_or(0));
            Ok(Self {
                shared: rows(&SHARED)?,
                own: (0..CLIENTS).map(|client| rows(&own(client))).collect::<Result<_, Error>>()?,
                committed: (0..CLIENTS).map(marked).collect::<Result<_, Error>>()?,
            })
        })
    }

    /// Applies a transaction's changes to this content.
    fn apply(&mut self, txn: &Txn) {
        let mut digest = txn.tag;
        for &step in &txn.steps {
            match step {
                Step::Read(key) => digest = mix(digest, self.shared[&key].1),
                Step::Update(key, len) => _ = self.shared.insert(key, (txn.tag, digest, len)),
                Step::PutOwn(key, len) => _ = self.own[txn.client].insert(key, (txn.tag, digest, len)),
                Step::RemoveOwn(key) => _ = self.own[txn.client].remove(&key),
                Step::DropOwn => self.own[txn.client].clear(),
            }
        }
        self.committed[txn.client] = txn.number;
    }
}

#[derive(Clone, Debug)]
struct Txn {
    client: usize,
    /// Position among the transactions of the client.
    number: u64,
    tag: u64,
    steps: Vec<Step>,
    is_acknowledged: bool,
}

/// A transaction that is still open.
struct Open {
    tx: Transaction,
    txn: Txn,
    digest: u64,
    read: BTreeSet<u32>,
    updated: BTreeSet<u32>,
}

impl Open {
    fn step(&mut self, step: Step) -> Result<(), Error> {
        let (tx, txn) = (&self.tx, &mut self.txn);
        match step {
            Step::Read(key) => {
                self.read.insert(key);
                let found = tx.table(&SHARED)?.get(&key)?.unwrap();
                self.digest = mix(self.digest, row(&found).1);
            }
            Step::Update(key, len) => {
                self.updated.insert(key);
                tx.table(&SHARED)?.insert(&key, &bytes((txn.tag, self.digest, len)))?;
            }
            Step::PutOwn(key, len) => {
                tx.table(&own(txn.client))?.insert(&key, &bytes((txn.tag, self.digest, len)))?;
            }
            Step::RemoveOwn(key) => _ = tx.table(&own(txn.client))?.remove(&key)?,
            Step::DropOwn => _ = tx.drop_table(own(txn.client).name())?,
        }
        txn.steps.push(step);
        Ok(())
    }

    /// Changes some rows and rolls back to a savepoint; the locks are kept.
    fn go_astray(&mut self, steps: &[Step]) -> Result<(), Error> {
        let savepoint = self.tx.savepoint()?;
        let (digest, len) = (self.digest, self.txn.steps.len());
        steps.iter().try_for_each(|&step| self.step(step))?;
        self.tx.rollback_to(savepoint)?;
        self.txn.steps.truncate(len);
        self.digest = digest;
        Ok(())
    }
}

/// One run of the store until a crash, with its committed transactions in order.
struct Life<'a> {
    db: &'a Database,
    rng: &'a mut StdRng,
    clients: usize,
    /// Percentage of turns that write one log stream alone.
    alone: u32,
    /// Number of ends, of ten, that are aborts or commits without waiting.
    relaxed: u32,
    /// Number of clients that wait for commits; only their log streams are written alone.
    favoured: usize,
    numbers: Vec<u64>,
    next_tag: u64,
    open: BTreeMap<usize, Open>,
    committed: Vec<Txn>,
}

impl Life<'_> {
    fn run(&mut self, turns: usize) -> Result<(), Error> {
        for _ in 0..turns {
            let client = self.rng.random_range(0..self.clients);
            match self.rng.random_range(0..100) {
                n if n < self.alone => self.db.write_one_log_stream(self.rng.random_range(0..self.favoured)),
                n if n < self.alone + 60 => self.work(client)?,
                n if n < self.alone + 61 => self.db.checkpoint_step(self.rng.random_range(0..8))?,
                n if n < self.alone + 62 => self.look()?,
                n if n < self.alone + 63 && self.open.is_empty() => {
                    self.work(client)?;
                    if let Some(open) = self.open.get_mut(&client) {
                        open.step(Step::DropOwn)?;
                        self.end(client)?;
                    }
                }
                _ => self.end(client)?,
            }
        }
        Ok(())
    }

    fn is_free(&self, client: usize, key: u32, to_update: bool) -> bool {
        let holds = |open: &Open| open.updated.contains(&key) || (to_update && open.read.contains(&key));
        !self.open.iter().any(|(other, open)| *other != client && holds(open))
    }

    fn draw(&mut self, client: usize) -> Option<Step> {
        // Few rows are hot: they are read and changed again before they are durable.
        let rows = if self.rng.random_bool(0.5) { HOT_ROWS } else { SHARED_ROWS };
        let (key, own_key) = (self.rng.random_range(0..rows), self.rng.random_range(0..OWN_ROWS));
        let len = if self.rng.random_ratio(1, 6) { self.rng.random_range(300..900) } else { 40 };
        let step = match self.rng.random_range(0..10) {
            0..=1 => Step::Read(key),
            2..=3 => Step::Update(key, len),
            4 => Step::RemoveOwn(own_key),
            5 if self.rng.random_ratio(1, 8) => Step::PutOwn(own_key, 9_000),
            _ => Step::PutOwn(own_key, len),
        };
        let may = match step {
            Step::Read(key) => self.is_free(client, key, false),
            Step::Update(key, _) => self.is_free(client, key, true),
            _ => true,
        };
        may.then_some(step)
    }

    /// Runs a step, or several steps that are rolled back, of the client's transaction. Begins a transaction
    /// if none is open.
    fn work(&mut self, client: usize) -> Result<(), Error> {
        if !self.open.contains_key(&client) {
            let tx = self.db.begin_on_log_buffer(client)?;
            self.next_tag += 1;
            let (tag, number) = (self.next_tag, self.numbers[client] + 1);
            let txn = Txn { client, number, tag, steps: Vec::new(), is_acknowledged: false };
            let (read, updated) = Default::default();
            self.open.insert(client, Open { tx, txn, digest: tag, read, updated });
        }
        let astray = self.rng.random_ratio(1, 12);
        let count = if astray { 3 } else { 1 };
        let steps: Vec<Step> = (0..count).filter_map(|_| self.draw(client)).collect();
        let open = self.open.get_mut(&client).unwrap();
        if astray { open.go_astray(&steps) } else { steps.iter().try_for_each(|&step| open.step(step)) }
    }

    /// Ends the client's transaction: in most cases by writing its marker and waiting for the commit.
    fn end(&mut self, client: usize) -> Result<(), Error> {
        let Some(open) = self.open.remove(&client) else { return Ok(()) };
        let Open { tx, mut txn, .. } = open;
        let end = self.rng.random_range(0..10);
        if end == 0 {
            return tx.abort();
        }
        tx.table(&marker(client))?.insert(&0, &txn.number)?;
        let is_relaxed = end < self.relaxed || client >= self.favoured;
        if is_relaxed {
            tx.set_durability(Durability::Relaxed);
        }
        self.numbers[client] = txn.number;
        let done = tx.commit();
        txn.is_acknowledged = !is_relaxed && done.is_ok();
        self.committed.push(txn);
        done
    }

    /// Reads some rows and commits, after which the last writers of these rows must be durable (W8).
    fn look(&mut self) -> Result<(), Error> {
        let tx = self.db.begin_on_log_buffer(self.rng.random_range(0..CLIENTS))?;
        let mut seen = Vec::new();
        for _ in 0..2 {
            let key = self.rng.random_range(0..SHARED_ROWS);
            if self.is_free(CLIENTS, key, false) {
                seen.push(row(&tx.table(&SHARED)?.get(&key)?.unwrap()).0);
            }
        }
        tx.commit()?;
        let was_seen = |txn: &&mut Txn| seen.contains(&txn.tag);
        self.committed.iter_mut().filter(was_seen).for_each(|txn| txn.is_acknowledged = true);
        Ok(())
    }
}

/// Totals over all histories.
#[derive(Debug, Default)]
struct Met {
    acknowledged: usize,
    /// Number of transactions that survived although one committed before them was lost.
    outlived: usize,
    /// Number of committed transactions that were lost.
    lost: usize,
    /// Number of recoveries that lost power.
    cut_recoveries: usize,
}

fn open(disk: &FaultFs, shape: LogShape) -> Result<Database, Error> {
    let store = deterministic(Arc::new(disk.clone()), 4096, 160).redo_threads(1 + shape.workers % 3);
    // No client of this test may wait for a lock; the timeout reports a mistake.
    shape.apply(store).lock_timeout(Duration::from_secs(20)).open("db")
}

fn draw_shape(rng: &mut StdRng) -> LogShape {
    let shape = LogShape::draw(rng);
    if rng.random_bool(0.6) { LogShape { protocol: LogProtocol::PWal, ..shape } } else { shape }
}

/// Determines the survivors among `committed` by the markers. Asserts that they include all acknowledged
/// transactions, and that the content is the result of the survivors alone.
fn assert_survivors(db: &Database, before: &World, committed: &[Txn], context: &str) -> (World, usize) {
    let found = World::read(db).unwrap_or_else(|e| panic!("{context}: reading everything: {e}"));
    let survives = |txn: &&Txn| txn.number <= found.committed[txn.client];
    let mut expected = before.clone();
    let mut survivors = 0;
    for txn in committed {
        assert!(survives(&txn) || !txn.is_acknowledged, "{context}: acknowledged and gone: {txn:?}");
        if survives(&txn) {
            expected.apply(txn);
            survivors += 1;
        }
    }
    assert_eq!(found, expected, "{context}: not what the survivors come to");
    assert_clean(db, context);
    (found, survivors)
}

/// Returns the number of survivors that committed after a lost transaction.
fn outlived(world: &World, committed: &[Txn]) -> usize {
    let survives = |txn: &&Txn| txn.number <= world.committed[txn.client];
    committed.iter().skip_while(survives).filter(survives).count()
}

/// Runs the store on `disk` until the power fails at I/O `cut` or `turns` are over, and crashes it. Returns
/// the disk at that time, and the committed transactions.
fn live(
    disk: &FaultFs,
    shape: LogShape,
    (turns, cut): (usize, u64),
    before: &World,
    rng: &mut StdRng,
    met: &mut Met,
) -> (FaultFs, Vec<Txn>) {
    let db = open(disk, shape).unwrap_or_else(|e| panic!("open as {shape:?}: {e} ({e:?})"));
    disk.cut_power_at(cut);
    let (alone, relaxed) = (rng.random_range(0..16), rng.random_range(4..=9));
    let favoured = rng.random_range(1..=shape.workers);
    let next_tag = rng.random_range(1..1 << 40);
    let seed = next_tag;
    let mut life = Life {
        db: &db,
        clients: shape.workers,
        alone,
        relaxed,
        favoured,
        numbers: before.committed.clone(),
        next_tag,
        open: BTreeMap::new(),
        committed: Vec::new(),
        rng,
    };
    if let Err(error) = life.run(turns) {
        assert!(disk.power_is_off(), "{shape:?}: {error}");
    }
    let Life { open: left_open, committed, .. } = life;
    let crashed = disk.crash(seed);
    drop(left_open);
    drop(db); // closes the store on a disk that is not used again
    met.acknowledged += committed.iter().filter(|txn| txn.is_acknowledged).count();
    (crashed, committed)
}

/// Returns a closed store with the content of [`World::new`].
fn filled() -> (FaultFs, World) {
    let (disk, world) = (FaultFs::new(), World::new());
    let db = open(&disk, LogShape { protocol: LogProtocol::PWal, workers: 1, streams: 1 }).unwrap();
    world.fill(&db).unwrap();
    db.close().unwrap();
    (disk, world)
}

fn history(first: LogShape, seed: u64, met: &mut Met) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut disk, mut world) = filled();
    for life in 0..LIVES {
        let shape = if life == 0 { first } else { draw_shape(&mut rng) };
        let context = format!("AZEKURA_CRASH_SEED={seed}, life {life} as {shape:?}");
        let cut = rng.random_range(40..500);
        let (crashed, committed) = live(&disk, shape, (TURNS, cut), &world, &mut rng, met);
        disk = recover_and_be_cut(crashed, &world, &committed, &mut rng, &context, met);
        let db = open(&disk, draw_shape(&mut rng)).unwrap_or_else(|e| panic!("{context}: {e} ({e:?})"));
        let (found, survivors) = assert_survivors(&db, &world, &committed, &context);
        db.close().unwrap();
        met.outlived += outlived(&found, &committed);
        met.lost += committed.len() - survivors;
        world = found;
    }
}

/// Runs recoveries that lose power, one after another. A recovery after any of them must find the same
/// content.
fn recover_and_be_cut(
    mut disk: FaultFs,
    before: &World,
    committed: &[Txn],
    rng: &mut StdRng,
    context: &str,
    met: &mut Met,
) -> FaultFs {
    let mut settled: Option<World> = None;
    let mut check = |disk: &FaultFs, rng: &mut StdRng, when: &str| {
        let context = format!("{context}, {when}");
        let copy = disk.crash(1);
        let db = open(&copy, draw_shape(rng)).unwrap_or_else(|e| panic!("{context}: {e} ({e:?})"));
        let (found, _) = assert_survivors(&db, before, committed, &context);
        let settled = settled.get_or_insert_with(|| found.clone());
        assert_eq!(*settled, found, "{context}: an earlier recovery found something else");
    };
    check(&disk, rng, "at once");
    for cut in 0..rng.random_range(0..4) {
        disk.cut_power_at(rng.random_range(1..60));
        drop(open(&disk, draw_shape(rng)));
        met.cut_recoveries += usize::from(disk.power_is_off());
        disk = disk.crash(cut);
        check(&disk, rng, &format!("after recovery {cut}"));
    }
    disk
}

/// Runs the history of a seed. Of 16 seeds, each has another number of log buffers; every third seed uses
/// another log protocol.
fn history_of(seed: u64, met: &mut Met) {
    let workers = 1 + (seed % 16) as usize;
    let streams = 1 + StdRng::seed_from_u64(seed).random_range(0..16) % workers;
    let protocol = if seed % 3 == 2 { PROTOCOLS[(seed / 3 % 3) as usize] } else { LogProtocol::PWal };
    history(LogShape { protocol, workers, streams }, seed, met);
}

#[test]
fn acknowledged_transactions_survive_and_survivors_depend_on_survivors_only() {
    let var = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    match var("AZEKURA_CRASH_SEED") {
        Some(seed) => history_of(seed, &mut Met::default()),
        None => {
            let mut met = Met::default();
            let rounds = var("AZEKURA_CRASH_SEEDS").unwrap_or(1);
            (0..32 * rounds).for_each(|seed| history_of(seed, &mut met));
            eprintln!("{met:?}");
            let histories = (32 * rounds) as usize;
            assert!(met.lost > 3 * histories, "too little was lost: {met:?}");
            assert!(met.cut_recoveries > histories, "too few recoveries were cut: {met:?}");
        }
    }
}

/// Runs the same history with a power cut at each of its I/Os in turn.
#[test]
fn a_power_loss_at_any_io_is_recovered() {
    for (seed, workers, streams) in [(1, 3, 2), (2, 5, 5)] {
        let shape = LogShape { protocol: LogProtocol::PWal, workers, streams };
        let (base, world) = filled();
        let mut met = Met::default();
        let mut cut = 1;
        loop {
            let context = format!("seed {seed}, power cut at I/O {cut} of a life as {shape:?}");
            let disk = base.crash(1);
            let mut rng = StdRng::seed_from_u64(seed);
            let (crashed, committed) = live(&disk, shape, (150, cut), &world, &mut rng, &mut met);
            let is_over = !disk.power_is_off();
            let mut rng = StdRng::seed_from_u64(cut);
            recover_and_be_cut(crashed, &world, &committed, &mut rng, &context, &mut met);
            if is_over {
                break;
            }
            cut += 1;
        }
        assert!(cut > 30, "{cut} I/Os in a life are too few to mean anything");
    }
}
