//! Threads change rows of their own, in leaves that they share, and open snapshots meanwhile: no lock of the
//! test orders the commits and the openings.
//!
//! Each transaction writes the number of its commit to its writer's *counter* row. So the counters in a
//! snapshot tell which commits of each writer the snapshot has to show, and all its rows are compared with
//! the models of these commits. Some transactions read the counters of other writers. They order the commits
//! of different writers, and a snapshot may contradict neither this order nor that of the calls.
//!
//! `AZEKURA_SEEDS=100` runs 100 seeds (default 2), `AZEKURA_SEED=n` only seed `n`. The threads of a seed draw
//! the same numbers in each run, but run in another order.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use azekura::{Database, Durability, Error, ErrorKind, Restore, Snapshot, TableDefinition, Transaction};
use azekura_io::MemFs;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::common::{assert_clean, deterministic};

const WRITERS: usize = 3;
const READERS: usize = 2;
/// Number of transactions of each writer.
const TRANSACTIONS: usize = 250;
/// Tables of a writer that only it uses. Table 0 is used by all writers.
const OWN: std::ops::Range<u8> = 1..3;

/// The rows of one writer, by table and key.
type State = BTreeMap<(u8, Vec<u8>), Arc<[u8]>>;
type Row = (Vec<u8>, Vec<u8>);
type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

fn name(table: u8, writer: usize) -> String {
    if table == 0 { "shared".into() } else { format!("own {writer}.{table}") }
}

fn definition(table: u8, writer: usize) -> TableDefinition<[u8], [u8]> {
    TableDefinition::named(name(table, writer))
}

fn counter_key(writer: usize) -> Vec<u8> {
    vec![0, writer as u8]
}

/// A commit, or an attempt to commit.
struct Commit {
    state: Arc<State>,
    /// The counters of other writers that the transaction has read.
    counters: Vec<(usize, u64)>,
}

struct Writer {
    /// The commits by number. The last one may not have returned yet.
    commits: Mutex<Vec<Commit>>,
    /// Number of the last commit that has returned.
    returned: AtomicU64,
}

/// A snapshot, with the number of the last commit of each writer.
struct Seen {
    snapshot: Snapshot,
    numbers: [u64; WRITERS],
    context: String,
}

struct Run {
    seed: u64,
    page_size: usize,
    fs: Arc<MemFs>,
    db: Database,
    writers: [Writer; WRITERS],
    open: Mutex<Vec<Arc<Seen>>>,
    working: AtomicUsize,
    /// Numbers of comparisons, and of snapshots that became too old.
    compared: AtomicU64,
    too_old: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a thread as working until it ends, also by a panic.
struct Working<'r>(&'r Run);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, SeqCst);
    }
}

/// Returns `None` for an error that other transactions may cause.
fn expected<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Busy) => None,
        Err(error) => panic!("{error} ({error:?})"),
    }
}

fn value(rng: &mut StdRng) -> Vec<u8> {
    let len = match rng.random_range(0..20) {
        0 => rng.random_range(3_000..20_000), // in overflow pages
        1..6 => rng.random_range(0..700),
        _ => 24, // of equal length: the change is logged as a difference
    };
    let mut value = vec![rng.random(); len];
    let changed = len.min(8);
    rng.fill(&mut value[..changed]);
    value
}

/// A transaction of a writer, with the rows that it sees.
struct Change<'r> {
    run: &'r Run,
    writer: usize,
    tx: Transaction,
    state: State,
    counters: Vec<(usize, u64)>,
}

impl Change<'_> {
    /// Returns a key of the table. In the shared table, adjacent blocks of ten keys have different writers.
    fn key(&self, rng: &mut StdRng, table: u8) -> Vec<u8> {
        let number = rng.random_range(0..10);
        if table == 0 {
            let mut key = vec![rng.random_range(1..9), self.writer as u8, number];
            key.resize(if number < 5 { 3 } else { 3 + usize::from(number) * 4 }, number);
            return key;
        }
        [b"a common prefix".to_vec(), vec![rng.random_range(0..6), number]].concat()
    }

    fn rows(&self, rng: &mut StdRng, table: u8) -> Vec<Row> {
        let count = [1, 5, 40][rng.random_range(0..3)];
        let rows: BTreeMap<_, _> = (0..count).map(|_| (self.key(rng, table), value(rng))).collect();
        rows.into_iter().collect()
    }

    fn put(&mut self, table: u8, (key, value): Row) {
        self.state.insert((table, key), value.into());
    }

    fn count(&self, table: u8) -> usize {
        self.state.keys().filter(|(of, _)| *of == table).count()
    }

    /// Runs a random call. `None`: it has failed because of others.
    fn step(&mut self, rng: &mut StdRng) -> Option<()> {
        let table = if rng.random_bool(0.7) { 0 } else { rng.random_range(OWN) };
        let key = self.key(rng, table);
        let rows = expected(self.tx.table(&definition(table, self.writer)))?;
        match rng.random_range(0..40) {
            0..=17 => {
                let value = value(rng);
                expected(rows.insert(&key, &value))?;
                self.put(table, (key, value));
            }
            18..=24 => {
                let removed = expected(rows.remove(&key))?;
                let of_model = self.state.remove(&(table, key));
                assert!(removed.as_deref() == of_model.as_deref(), "{}: removed row", self.run.seed);
            }
            25..=27 => {
                let found = expected(rows.get(&key))?;
                let of_model = self.state.get(&(table, key));
                assert!(found.as_deref() == of_model.map(|value| &**value), "{}: row", self.run.seed);
            }
            28..=30 => {
                // Ten adjacent keys, none of which is of another writer.
                let (from, mut to) = (key[..key.len().min(if table == 0 { 2 } else { 16 })].to_vec(), key);
                to.truncate(from.len());
                to.push(10);
                let removed = expected(rows.remove_range(from.as_slice()..to.as_slice()))?;
                let before = self.state.len();
                self.state.retain(|(of, key), _| *of != table || *key < from || *key >= to);
                assert_eq!(removed as usize, before - self.state.len(), "{}: removed range", self.run.seed);
            }
            31 | 32 => {
                let new = self.rows(rng, table);
                let memory = [1_000, 1 << 20][rng.random_range(0..2)];
                expected(rows.bulk_load_unsorted(new.iter().rev().map(|(k, v)| (k, v)), memory))?;
                new.into_iter().for_each(|row| self.put(table, row));
            }
            33 | 34 if table > 0 => {
                let new = self.rows(rng, table);
                match rows.bulk_load(new.iter().map(|(k, v)| (k, v))) {
                    Err(Error::NotEmpty { .. }) => assert!(self.count(table) > 0),
                    loaded => {
                        expected(loaded)?;
                        new.into_iter().for_each(|row| self.put(table, row));
                    }
                }
            }
            35 if table > 0 => {
                expected(self.tx.drop_table(name(table, self.writer)))?;
                self.state.retain(|(of, _), _| *of != table);
            }
            36 | 37 if table > 0 => {
                let to = if table == 1 { 2 } else { 1 };
                match self.tx.rename_table(name(table, self.writer), name(to, self.writer)) {
                    Err(Error::TableExists { .. }) => {}
                    renamed => {
                        if expected(renamed)? {
                            assert_eq!(self.count(to), 0, "{}: replaced a table", self.run.seed);
                            let all = std::mem::take(&mut self.state).into_iter();
                            let moved = |of| if of == table { to } else { of };
                            self.state = all.map(|((of, key), value)| ((moved(of), key), value)).collect();
                        }
                    }
                }
            }
            _ => {
                let counters = expected(rows_of_counters(&self.tx))?;
                let others = counters.into_iter().filter(|(writer, _)| *writer != self.writer);
                self.counters.extend(others);
            }
        }
        Some(())
    }

    /// Runs a few calls, and writes the counter. `None`: the transaction has to be rolled back.
    fn fill(&mut self, rng: &mut StdRng, number: u64) -> Option<()> {
        let (steps, at) = (rng.random_range(1..10), rng.random_range(0..10));
        let mut savepoint = None;
        for step in 0..=steps {
            if step == at.min(steps) {
                let shared = expected(self.tx.table(&definition(0, self.writer)))?;
                expected(shared.insert(&counter_key(self.writer), &number.to_be_bytes()))?;
                self.put(0, (counter_key(self.writer), number.to_be_bytes().to_vec()));
            } else if rng.random_bool(0.15) {
                // The counters stay read, as the locks stay.
                savepoint = Some((expected(self.tx.savepoint())?, self.state.clone(), step));
            } else if let Some((to, state, _)) = savepoint.take_if(|(.., of)| *of >= at && step > *of) {
                expected(self.tx.rollback_to(to))?;
                self.state = state;
            } else {
                self.step(rng)?;
            }
        }
        Some(())
    }
}

fn counter_of(key: &[u8], value: &[u8]) -> (usize, u64) {
    (usize::from(key[1]), value.try_into().map_or(u64::MAX, u64::from_be_bytes))
}

fn rows_of_counters(tx: &Transaction) -> Result<Vec<(usize, u64)>, Error> {
    let (from, to) = (counter_key(0), counter_key(WRITERS));
    let rows = tx.table(&definition(0, 0))?.range(from.as_slice()..to.as_slice());
    rows.map(|row| row.map(|(key, value)| counter_of(&key, &value))).collect()
}

impl Run {
    fn new(seed: u64) -> Self {
        let (fs, page_size) = (Arc::new(MemFs::new()), [4096, 8192][seed as usize % 2]);
        let db = deterministic(Arc::clone(&fs) as _, page_size, [64, 400][seed as usize / 2 % 2])
            .version_bytes([64 << 20, 40 << 10][usize::from(seed % 5 == 4)])
            .background(seed.is_multiple_of(3))
            .lock_timeout(Duration::from_millis(50))
            .open("db")
            .unwrap();
        let start = || Commit { state: Arc::default(), counters: Vec::new() };
        let writer = |_| Writer { commits: Mutex::new(vec![start()]), returned: AtomicU64::new(0) };
        Self {
            seed,
            page_size,
            fs,
            db,
            writers: std::array::from_fn(writer),
            open: Mutex::default(),
            working: AtomicUsize::new(WRITERS),
            compared: AtomicU64::new(0),
            too_old: AtomicU64::new(0),
        }
    }

    fn write(&self, writer: usize) {
        let _working = Working(self);
        let rng = &mut StdRng::seed_from_u64(self.seed * 100 + writer as u64);
        let own = &self.writers[writer];
        let (mut number, mut tickets) = (0, Vec::new());
        for _ in 0..TRANSACTIONS {
            let state = State::clone(&lock(&own.commits)[number as usize].state);
            let tx = self.db.begin().unwrap();
            let mut change = Change { run: self, writer, tx, state, counters: Vec::new() };
            let is_complete = change.fill(rng, number + 1).is_some();
            let Change { tx, state, counters, .. } = change;
            if !is_complete || rng.random_bool(0.1) {
                if rng.random_bool(0.5) {
                    expected(tx.abort());
                }
                continue;
            }
            if rng.random_bool(0.2) {
                thread::sleep(Duration::from_micros(rng.random_range(0..3_000)));
            }
            lock(&own.commits).push(Commit { state: Arc::new(state), counters });
            let committed = match rng.random_range(0..3) {
                0 => tx.commit(),
                1 => {
                    tx.set_durability(Durability::Relaxed);
                    tx.commit()
                }
                _ => tx.commit_async().map(|ticket| tickets.push(ticket)),
            };
            match expected(committed) {
                None => drop(lock(&own.commits).pop()),
                Some(()) => {
                    number += 1;
                    own.returned.store(number, SeqCst);
                }
            }
            if tickets.len() > 20 {
                tickets.drain(..).for_each(|ticket| ticket.wait().unwrap());
            }
        }
        tickets.into_iter().for_each(|ticket| ticket.wait().unwrap());
    }

    /// Reads the counters of a snapshot. Asserts that they are between the bounds, and that they agree with
    /// the order of the commits.
    fn counters(
        &self,
        snapshot: &Snapshot,
        least: [u64; WRITERS],
        context: &str,
    ) -> Result<[u64; WRITERS], Error> {
        let (mut numbers, table) = ([0; WRITERS], snapshot.table(&definition(0, 0))?);
        let (from, to) = (counter_key(0), counter_key(WRITERS));
        for row in table.range(from.as_slice()..to.as_slice()) {
            let (writer, number) = row.map(|(key, value)| counter_of(&key, &value))?;
            numbers[writer] = number;
        }
        for (writer, own) in self.writers.iter().enumerate() {
            let commits = lock(&own.commits);
            let has = numbers[writer];
            let bounds = least[writer]..commits.len() as u64;
            assert!(bounds.contains(&has), "{context}: commit {has} of writer {writer}, not of {bounds:?}");
            let returned = own.returned.load(SeqCst);
            // A commit that has not returned may fail.
            let known = (0..).zip(&*commits).filter(|(number, _)| *number <= returned.max(has));
            for (number, commit) in known {
                for &(other, read) in &commit.counters {
                    let is_right =
                        if number <= has { numbers[other] >= read } else { numbers[other] <= read };
                    assert!(
                        is_right,
                        "{context}: commit {number} of writer {writer} has read {read} of writer {other}, \
                         and the snapshot has {numbers:?}"
                    );
                }
            }
        }
        Ok(numbers)
    }

    /// Returns the rows of a table with these numbers of commits.
    fn model(&self, table: u8, of: usize, numbers: [u64; WRITERS]) -> BTreeMap<Vec<u8>, Arc<[u8]>> {
        let mut rows = BTreeMap::new();
        for (writer, number) in numbers.into_iter().enumerate() {
            let state = Arc::clone(&lock(&self.writers[writer].commits)[number as usize].state);
            let of_table = state.iter().filter(|((t, _), _)| *t == table && (table == 0 || of == writer));
            rows.extend(of_table.map(|((_, key), value)| (key.clone(), Arc::clone(value))));
        }
        rows
    }

    fn open(&self, rng: &mut StdRng) {
        let is_durable = rng.random_bool(0.2);
        let returned = self.writers.each_ref().map(|writer| writer.returned.load(SeqCst));
        let least = if is_durable { [0; WRITERS] } else { returned };
        let opened = if is_durable { self.db.durable_snapshot() } else { self.db.snapshot() };
        let snapshot = match opened {
            Err(Error::TransactionsTooLarge { .. }) => return,
            opened => opened.unwrap(),
        };
        let context = format!("seed {}, durable: {is_durable}, after {returned:?}", self.seed);
        match self.counters(&snapshot, least, &context) {
            Ok(numbers) => lock(&self.open).push(Arc::new(Seen { snapshot, numbers, context })),
            Err(Error::SnapshotTooOld { .. }) => drop(self.too_old.fetch_add(1, SeqCst)),
            Err(error) => panic!("{context}: {error}"),
        }
    }

    /// Compares a random part of a snapshot with the model.
    fn compare(&self, seen: &Arc<Seen>, rng: &mut StdRng) {
        if rng.random_bool(0.1)
            && let Ok(numbers) = self.counters(&seen.snapshot, seen.numbers, &seen.context)
        {
            assert_eq!(numbers, seen.numbers, "{}: read again", seen.context);
        }
        let (table, writer) =
            (if rng.random_bool(0.6) { 0 } else { rng.random_range(OWN) }, rng.random_range(0..WRITERS));
        let model = self.model(table, writer, seen.numbers);
        let mut end = |at: f64| {
            let key =
                vec![rng.random_range(0..10), rng.random_range(0..WRITERS as u8), rng.random_range(0..10)];
            if rng.random_bool(at) { Bound::Unbounded } else { Bound::Included(key) }
        };
        let mut bounds: Bounds = (end(0.5), end(0.5));
        if let (Bound::Included(from), Bound::Included(to)) = &bounds
            && from > to
        {
            bounds = (bounds.1, bounds.0);
        }
        let of_model: Vec<Row> =
            model.range(bounds.clone()).map(|(key, value)| (key.clone(), value.to_vec())).collect();
        let how = rng.random_range(0..4);
        match self.rows(&seen.snapshot, (table, writer), &bounds, how, rng) {
            Err(Error::SnapshotTooOld { .. }) => {
                lock(&self.open).retain(|other| !Arc::ptr_eq(other, seen));
                self.too_old.fetch_add(1, SeqCst);
            }
            Err(error) => panic!("{}: {error}", seen.context),
            Ok(rows) => {
                let at = rows.iter().zip(&of_model).take_while(|(a, b)| a == b).count();
                assert!(
                    rows == of_model,
                    "{}: commits {:?}, table {table} of {writer}, {bounds:?} in way {how}: {} rows, not {}; \
                     row {at}: {:.100?}, not {:.100?}",
                    seen.context,
                    seen.numbers,
                    rows.len(),
                    of_model.len(),
                    rows.get(at),
                    of_model.get(at)
                );
                self.compared.fetch_add(1, SeqCst);
            }
        }
    }

    /// Reads a range of a snapshot in one of four ways.
    fn rows(
        &self,
        snapshot: &Snapshot,
        (table, writer): (u8, usize),
        bounds: &Bounds,
        how: u32,
        rng: &mut StdRng,
    ) -> Result<Vec<Row>, Error> {
        let table = snapshot.table(&definition(table, writer))?;
        let range = (bounds.0.as_ref().map(Vec::as_slice), bounds.1.as_ref().map(Vec::as_slice));
        let (mut rows, mut rest) = (Vec::new(), Vec::new());
        match how {
            0 => rows = table.range(range).collect::<Result<_, _>>()?,
            1 => rest = table.range(range).rev().collect::<Result<_, _>>()?,
            2 => {
                let mut both = table.range(range);
                loop {
                    let is_front = rng.random_bool(0.5);
                    let Some(row) = (if is_front { both.next() } else { both.next_back() }) else { break };
                    if is_front { &mut rows } else { &mut rest }.push(row?);
                    if rng.random_bool(0.05) {
                        thread::yield_now();
                    }
                }
            }
            _ => {
                let mut keys = Vec::new();
                table.for_each(range, |row| {
                    keys.push(row.key()?);
                    Ok(std::ops::ControlFlow::Continue(()))
                })?;
                for key in keys {
                    let value = table.get(&key)?;
                    rows.push((key, value.unwrap_or_else(|| b"a row without a value".to_vec())));
                }
            }
        }
        rest.reverse();
        rows.extend(rest);
        Ok(rows)
    }

    fn compare_copy(&self, copy: &Database, context: &str) {
        let snapshot = copy.snapshot().unwrap();
        let numbers = self.counters(&snapshot, [0; WRITERS], context).unwrap();
        let seen = Arc::new(Seen { snapshot, numbers, context: context.into() });
        let rng = &mut StdRng::seed_from_u64(self.seed);
        (0..20).for_each(|_| self.compare(&seen, rng));
        drop(seen);
        assert_clean(copy, context);
    }

    /// Copies the store in one of two ways, and compares the copy.
    fn copy(&self, rng: &mut StdRng, reader: usize) {
        let context = format!("seed {}, copy", self.seed);
        let too_old = |error| match error {
            Error::SnapshotTooOld { .. } | Error::TransactionsTooLarge { .. } => {}
            error => panic!("{context}: {error}"),
        };
        let to = format!("copy {reader} {}", rng.random::<u32>());
        let builder = |fs: &Arc<MemFs>| deterministic(Arc::clone(fs) as _, self.page_size, 64);
        if rng.random_bool(0.5) {
            if let Err(error) = self.db.compact_into(&to) {
                return too_old(error);
            }
            self.compare_copy(&builder(&self.fs).open(&to).unwrap(), &context);
        } else {
            let mut bytes = Vec::new();
            if let Err(error) = self.db.backup().to_writer(&mut bytes) {
                return too_old(error);
            }
            let fs = Arc::new(MemFs::new());
            Restore::new().builder(builder(&fs)).from_reader(bytes.as_slice(), &to).unwrap();
            self.compare_copy(&builder(&fs).open(&to).unwrap(), &context);
        }
    }

    fn read(&self, reader: usize) {
        let rng = &mut StdRng::seed_from_u64(self.seed * 100 + 50 + reader as u64);
        // In some runs snapshots are opened rarely, so sparse periods begin and versions are turned off.
        let opens = [0.3, 0.02, 0.1][self.seed as usize % 3];
        while self.working.load(SeqCst) > 0 {
            let some = {
                let open = lock(&self.open);
                (!open.is_empty()).then(|| Arc::clone(&open[rng.random_range(0..open.len())]))
            };
            match (rng.random_range(0..300), some) {
                (0, _) => self.copy(rng, reader),
                (1, _) => assert_clean(&self.db, "beside writers"),
                (2, _) => drop(self.db.stats()),
                (3..10, _) => self.db.checkpoint_step(rng.random_range(0..6)).unwrap(),
                (10, _) => self.db.checkpoint().unwrap(),
                (11, _) => drop(self.db.release_step().unwrap()),
                (12, _) => {
                    lock(&self.open).clear();
                    thread::sleep(azekura_btree::GRACE);
                    self.db.checkpoint_step(0).unwrap();
                }
                (13..16, Some(_)) => {
                    thread::sleep(azekura_btree::SPARSE_AFTER);
                    self.db.checkpoint_step(0).unwrap();
                }
                (16..40, Some(some)) => lock(&self.open).retain(|other| !Arc::ptr_eq(other, &some)),
                (_, Some(some)) if !rng.random_bool(opens) => self.compare(&some, rng),
                _ if lock(&self.open).len() < 4 => self.open(rng),
                _ => {}
            }
        }
    }

    fn check(self) {
        thread::scope(|scope| {
            let run = &self;
            for writer in 0..WRITERS {
                scope.spawn(move || run.write(writer));
            }
            for reader in 0..READERS {
                scope.spawn(move || run.read(reader));
            }
        });
        let rng = &mut StdRng::seed_from_u64(self.seed);
        for seen in std::mem::take(&mut *lock(&self.open)) {
            (0..10).for_each(|_| self.compare(&seen, rng));
        }
        let returned = self.writers.each_ref().map(|writer| writer.returned.load(SeqCst));
        let snapshot = self.db.snapshot().unwrap();
        let numbers = self.counters(&snapshot, returned, "end").unwrap();
        assert_eq!(numbers, returned, "seed {}: at the end", self.seed);
        drop(snapshot);
        assert_clean(&self.db, "end");
        let (compared, too_old) = (self.compared.load(SeqCst), self.too_old.load(SeqCst));
        eprintln!("seed {}: commits {returned:?}, {compared} comparisons, {too_old} too old", self.seed);
        assert!(returned.iter().all(|&commits| commits > 0) && compared > 0, "seed {}", self.seed);
        self.db.checkpoint().unwrap();
    }
}

#[test]
fn snapshots_of_many_threads_equal_the_models_of_their_commits() {
    let var = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seeds = match var("AZEKURA_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=var("AZEKURA_SEEDS").unwrap_or(2),
    };
    seeds.for_each(|seed| Run::new(seed).check());
}
