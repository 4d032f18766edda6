//! Up to four transactions of one thread at a time call everything that changes tables, in a random order,
//! beside up to three snapshots, checkpoints, backups, power cuts and openings. Each answer is compared with
//! a model: the committed rows, with the earlier calls of the transaction applied to them. Since a
//! transaction has locked all that it has read and written, calls of others must not change this result.
//!
//! `AZEKURA_SEEDS=100` runs 100 seeds (default 6), `AZEKURA_SEED=n` only seed `n`.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::common::{Model, Rows, assert_clean, content, deterministic, difference, key, table_name};
use azekura::{Database, Error, ErrorKind, Restore, Savepoint, Snapshot, TableDefinition, Transaction};
use azekura_io::{FaultFs, MemFs};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Number of tables. Renames exchange their names.
const TABLES: usize = 3;

type Row = (Vec<u8>, Vec<u8>);

#[derive(Clone, Debug)]
enum Op {
    Insert(Row),
    InsertFrom(Row),
    InsertIfAbsent(Row),
    Replace(Row),
    CompareAndSet(Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>),
    Append(Row),
    Remove(Vec<u8>),
    Get(Vec<u8>, bool),
    Scan(Vec<u8>, Vec<u8>, Scan),
    First,
    Last,
    PopFirst,
    PopLast,
    RemoveRange(Vec<u8>, Vec<u8>),
    RetainOdd(Vec<u8>, Vec<u8>),
    Load(Rows),
    LoadUnsorted(Rows, usize),
    Len,
    Drop,
    Rename(usize),
}

#[derive(Clone, Copy, Debug)]
enum Scan {
    Forward,
    Backward,
    Lent,
    LentBack,
    ForUpdate,
}

#[derive(Debug, PartialEq)]
enum Answer {
    None,
    Bool(bool),
    Count(u64),
    Value(Option<Vec<u8>>),
    Row(Option<Row>),
    Rows(Vec<Row>),
    NotEmpty,
}

fn definition(table: usize) -> TableDefinition<[u8], [u8]> {
    TableDefinition::named(table_name(table))
}

fn is_odd(value: &[u8]) -> bool {
    value.len() % 2 == 1
}

/// Runs a call on the store.
fn call(tx: &Transaction, at: usize, op: &Op) -> Result<Answer, Error> {
    let table = tx.table(&definition(at))?;
    Ok(match op {
        Op::Insert((key, value)) => table.insert(key, value).map(|()| Answer::None)?,
        Op::InsertFrom((key, value)) => Answer::Count(table.insert_from(key, value.as_slice())?),
        Op::InsertIfAbsent((key, value)) => Answer::Bool(table.insert_if_absent(key, value)?),
        Op::Replace((key, value)) => Answer::Value(table.replace(key, value)?),
        Op::CompareAndSet(key, expected, new) => {
            Answer::Bool(table.compare_and_set(key, expected.as_ref(), new.as_ref())?)
        }
        Op::Append((key, more)) => table
            .update(key, |old| Some([old.unwrap_or_default(), more.clone()].concat()))
            .map(|()| Answer::None)?,
        Op::Remove(key) => Answer::Value(table.remove(key)?),
        Op::Get(key, false) => Answer::Value(table.get(key)?),
        Op::Get(key, true) => Answer::Value(table.get_for_update(key)?),
        Op::Scan(from, to, scan) => {
            let range = from.as_slice()..to.as_slice();
            let mut rows = Vec::new();
            let mut lent = |row: azekura::RowRef<'_, [u8], [u8]>| {
                rows.push((row.key()?, row.value()?));
                Ok(ControlFlow::Continue(()))
            };
            match scan {
                Scan::Forward => rows = table.range(range).collect::<Result<_, _>>()?,
                Scan::Backward => rows = table.range(range).rev().collect::<Result<_, _>>()?,
                Scan::Lent => table.for_each(range, &mut lent)?,
                Scan::LentBack => table.for_each_back(range, &mut lent)?,
                Scan::ForUpdate => rows = table.range_for_update(range).collect::<Result<_, _>>()?,
            }
            Answer::Rows(rows)
        }
        Op::First => Answer::Row(table.first()?),
        Op::Last => Answer::Row(table.last()?),
        Op::PopFirst => Answer::Row(table.pop_first()?),
        Op::PopLast => Answer::Row(table.pop_last()?),
        Op::RemoveRange(from, to) => Answer::Count(table.remove_range(from.as_slice()..to.as_slice())?),
        Op::RetainOdd(from, to) => {
            Answer::Count(table.retain_in(from.as_slice()..to.as_slice(), |_, value| is_odd(&value))?)
        }
        Op::Load(rows) => match table.bulk_load(rows.iter()) {
            Err(Error::NotEmpty { .. }) => Answer::NotEmpty,
            loaded => Answer::Count(loaded?),
        },
        Op::LoadUnsorted(rows, memory) => {
            Answer::Count(table.bulk_load_unsorted(rows.iter().rev(), *memory)?)
        }
        Op::Len => Answer::Count(table.len()?),
        Op::Drop => tx.drop_table(table_name(at)).map(|_| Answer::None)?,
        Op::Rename(to) => match tx.rename_table(table_name(at), table_name(*to)) {
            Err(Error::TableExists { .. }) => Answer::Bool(false),
            renamed => Answer::Bool(renamed?),
        },
    })
}

/// Applies a call to the model. `None`: the model does not know the answer.
fn apply(model: &mut Model, at: usize, op: &Op) -> Option<Answer> {
    if let Op::Rename(to) = op {
        let (to, rows) = (table_name(*to), model.remove(&table_name(at)).unwrap_or_default());
        model.insert(to, rows);
        return None;
    }
    let rows = model.entry(table_name(at)).or_default();
    let between = |rows: &Rows, from: &[u8], to: &[u8]| -> Vec<Row> {
        let is_between = |(key, _): &(&Vec<u8>, _)| key.as_slice() >= from && key.as_slice() < to;
        rows.iter().filter(is_between).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let remove = |rows: &mut Rows, removed: Vec<Row>| {
        removed.iter().for_each(|(key, _)| drop(rows.remove(key)));
        Answer::Count(removed.len() as u64)
    };
    Some(match op.clone() {
        Op::Insert((key, value)) => {
            rows.insert(key, value);
            Answer::None
        }
        Op::InsertFrom((key, value)) => {
            let len = value.len() as u64;
            rows.insert(key, value);
            Answer::Count(len)
        }
        Op::InsertIfAbsent((key, value)) => {
            let is_absent = !rows.contains_key(&key);
            rows.entry(key).or_insert(value);
            Answer::Bool(is_absent)
        }
        Op::Replace((key, value)) => Answer::Value(rows.insert(key, value)),
        Op::CompareAndSet(key, expected, new) => {
            let is_expected = rows.get(&key) == expected.as_ref();
            match new {
                Some(value) if is_expected => drop(rows.insert(key, value)),
                None if is_expected => drop(rows.remove(&key)),
                _ => {}
            }
            Answer::Bool(is_expected)
        }
        Op::Append((key, more)) => {
            rows.entry(key).or_default().extend(more);
            Answer::None
        }
        Op::Remove(key) => Answer::Value(rows.remove(&key)),
        Op::Get(key, _) => Answer::Value(rows.get(&key).cloned()),
        Op::Scan(from, to, scan) => {
            let mut found = between(rows, &from, &to);
            if matches!(scan, Scan::Backward | Scan::LentBack) {
                found.reverse();
            }
            Answer::Rows(found)
        }
        Op::First => Answer::Row(rows.first_key_value().map(|(key, value)| (key.clone(), value.clone()))),
        Op::Last => Answer::Row(rows.last_key_value().map(|(key, value)| (key.clone(), value.clone()))),
        Op::PopFirst => Answer::Row(rows.pop_first()),
        Op::PopLast => Answer::Row(rows.pop_last()),
        Op::RemoveRange(from, to) => {
            let removed = between(rows, &from, &to);
            remove(rows, removed)
        }
        Op::RetainOdd(from, to) => {
            let mut removed = between(rows, &from, &to);
            removed.retain(|(_, value)| !is_odd(value));
            remove(rows, removed)
        }
        Op::Load(_) if !rows.is_empty() => Answer::NotEmpty,
        Op::Load(new) | Op::LoadUnsorted(new, _) => {
            let count = new.len() as u64;
            rows.extend(new);
            Answer::Count(count)
        }
        Op::Len => Answer::Count(rows.len() as u64),
        Op::Drop => {
            rows.clear();
            return None;
        }
        Op::Rename(_) => unreachable!("handled above"),
    })
}

/// A transaction with its calls and their answers, and its savepoints with the number of calls before each.
struct Open {
    tx: Transaction,
    calls: Vec<(usize, Op, Answer)>,
    savepoints: Vec<(Savepoint, usize)>,
}

impl Open {
    /// Returns the rows that the transaction sees: the committed rows, and its calls on them. Each call must
    /// give the answer that it gave, although other transactions have committed since.
    fn view(&self, committed: &Model, context: &str) -> Model {
        let mut model = committed.clone();
        for (at, op, answer) in &self.calls {
            let repeated = apply(&mut model, *at, op);
            assert!(
                repeated.as_ref().is_none_or(|repeated| repeated == answer),
                "{context}: {op:.80?} of table {at} gave {answer:.300?}, and would now give {repeated:.300?}"
            );
        }
        model
    }
}

struct Run {
    rng: StdRng,
    context: String,
    page_size: usize,
    fs: FaultFs,
    db: Database,
    committed: Model,
    open: Vec<Open>,
    snapshots: Vec<(Snapshot, Model)>,
}

fn without_empty(mut model: Model) -> Model {
    model.retain(|_, rows| !rows.is_empty());
    model
}

fn opened(fs: FaultFs, page_size: usize) -> Result<Database, Error> {
    deterministic(Arc::new(fs), page_size, 48).version_bytes(1 << 20).open("db")
}

impl Run {
    fn new(seed: u64) -> Self {
        let (fs, page_size) = (FaultFs::new(), [4096, 8192, 16384][seed as usize % 3]);
        let db = opened(fs.clone(), page_size).unwrap();
        Self {
            rng: StdRng::seed_from_u64(seed),
            context: String::new(),
            page_size,
            fs,
            db,
            committed: Model::new(),
            open: Vec::new(),
            snapshots: Vec::new(),
        }
    }

    fn key(&mut self) -> Vec<u8> {
        key(self.rng.random_range(0..300))
    }

    fn row(&mut self) -> Row {
        let most = [8, 60, 700, 700, 3_000, 40_000][self.rng.random_range(0..6)];
        let mut value = vec![0; self.rng.random_range(0..=most)];
        self.rng.fill(&mut value[..]);
        (self.key(), value)
    }

    fn rows(&mut self) -> Rows {
        let count = [0, 1, 5, 50, 250][self.rng.random_range(0..5)];
        (0..count).map(|_| self.row()).collect()
    }

    fn bounds(&mut self) -> (Vec<u8>, Vec<u8>) {
        let (a, b) = (self.key(), self.key());
        if a <= b { (a, b) } else { (b, a) }
    }

    /// Returns a random call; `rows` are those that the transaction sees in the table.
    fn op(&mut self, rows: Option<&Rows>) -> Op {
        let some = self.key();
        match self.rng.random_range(0..60) {
            0..=13 => Op::Insert(self.row()),
            14 => Op::InsertFrom(self.row()),
            15..=17 => Op::InsertIfAbsent(self.row()),
            18..=20 => Op::Replace(self.row()),
            21..=23 => {
                let present = rows.and_then(|rows| rows.get(&some).cloned());
                let expected = if self.rng.random_bool(0.7) { present } else { Some(Vec::new()) };
                let new = self.rng.random_bool(0.7).then(|| self.row().1);
                Op::CompareAndSet(some, expected, new)
            }
            24 | 25 => Op::Append(self.row()),
            26..=31 => Op::Remove(some),
            32..=36 => Op::Get(some, self.rng.random_bool(0.3)),
            37..=42 => {
                let (from, to) = self.bounds();
                let scans = [Scan::Forward, Scan::Backward, Scan::Lent, Scan::LentBack, Scan::ForUpdate];
                Op::Scan(from, to, scans[self.rng.random_range(0..5)])
            }
            43 => Op::First,
            44 => Op::Last,
            45 => Op::PopFirst,
            46 => Op::PopLast,
            47 => {
                let (from, to) = self.bounds();
                Op::RemoveRange(from, to)
            }
            48 => {
                let (from, to) = self.bounds();
                Op::RetainOdd(from, to)
            }
            49..=51 => Op::Load(self.rows()),
            52 | 53 => {
                let memory = [1_000, 1 << 20][self.rng.random_range(0..2)];
                Op::LoadUnsorted(self.rows(), memory)
            }
            54 | 55 => Op::Len,
            56 | 57 => Op::Drop,
            _ => Op::Rename(self.rng.random_range(0..TABLES)),
        }
    }

    /// Runs one call of transaction `i`, and compares its answer.
    fn call(&mut self, i: usize) {
        let mut view = self.open[i].view(&self.committed, &self.context);
        let at = self.rng.random_range(0..TABLES);
        let op = self.op(view.get(&table_name(at)));
        let context = format!("{}, transaction {i}, {op:.80?} of table {at}", self.context);
        let open = &mut self.open[i];
        match call(&open.tx, at, &op) {
            Ok(answer) => {
                if let (Op::Rename(to), Answer::Bool(is_renamed)) = (&op, &answer) {
                    let has_rows = |table| view.get(&table_name(table)).is_some_and(|rows| !rows.is_empty());
                    assert!(!is_renamed || !has_rows(*to), "{context}: replaced a table");
                    if !is_renamed {
                        return;
                    }
                }
                if let Some(expected) = apply(&mut view, at, &op) {
                    assert!(answer == expected, "{context}: {answer:.300?} in place of {expected:.300?}");
                }
                open.calls.push((at, op, answer));
            }
            Err(error) => {
                let is_expected = matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Busy);
                assert!(is_expected, "{context}: {error} ({error:?})");
                if open.tx.is_over() {
                    self.open.swap_remove(i);
                }
            }
        }
    }

    fn savepoint_or_rollback(&mut self, i: usize) {
        let open = &mut self.open[i];
        if open.savepoints.is_empty() || self.rng.random_bool(0.6) {
            open.savepoints.push((open.tx.savepoint().unwrap(), open.calls.len()));
            return;
        }
        let to = self.rng.random_range(0..open.savepoints.len());
        let (savepoint, calls) = open.savepoints[to];
        match open.tx.rollback_to(savepoint) {
            Ok(()) => {
                open.calls.truncate(calls);
                open.savepoints.truncate(to + 1);
            }
            Err(error) if open.tx.is_over() && error.kind() == ErrorKind::Conflict => {
                self.open.swap_remove(i);
            }
            Err(error) => assert!(error.kind() == ErrorKind::Busy, "{}: {error}", self.context),
        }
    }

    fn end(&mut self, i: usize) {
        let open = self.open.swap_remove(i);
        let view = open.view(&self.committed, &self.context);
        if self.rng.random_bool(0.75) {
            open.tx.commit().unwrap_or_else(|error| panic!("{}: commit: {error}", self.context));
            self.committed = view;
        } else if self.rng.random_bool(0.5) {
            open.tx.abort().unwrap_or_else(|error| panic!("{}: abort: {error}", self.context));
        }
    }

    /// Compares a random range of a snapshot with the model of its moment.
    fn read_snapshot(&mut self) {
        let (i, at) = (self.rng.random_range(0..self.snapshots.len()), self.rng.random_range(0..TABLES));
        let (bounds, backward, some) = (self.bounds(), self.rng.random_bool(0.5), self.key());
        let (snapshot, model) = &self.snapshots[i];
        let range = bounds.0.as_slice()..bounds.1.as_slice();
        let read = || -> Result<_, Error> {
            let table = snapshot.table(&definition(at))?;
            let rows: Vec<Row> = if backward {
                table.range(range.clone()).rev().collect::<Result<_, _>>()?
            } else {
                table.range(range.clone()).collect::<Result<_, _>>()?
            };
            Ok((rows, table.get(&some)?, table.len()?))
        };
        let empty = Rows::new();
        let rows = model.get(&table_name(at)).unwrap_or(&empty);
        let mut expected: Vec<Row> = rows
            .iter()
            .filter(|(key, _)| range.contains(&key.as_slice()))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if backward {
            expected.reverse();
        }
        match read() {
            Ok((found, value, len)) => {
                let context = format!("{}, snapshot {i}, table {at}", self.context);
                assert!(found == expected, "{context}: rows {found:.300?} in place of {expected:.300?}");
                assert!(value.as_ref() == rows.get(&some), "{context}: key {some:02x?}: {value:.300?}");
                assert_eq!(len, rows.len() as u64, "{context}");
            }
            Err(Error::SnapshotTooOld { .. }) => drop(self.snapshots.swap_remove(i)),
            Err(error) => panic!("{}: snapshot {i}: {error}", self.context),
        }
    }

    /// Backs a snapshot up, restores the backup, and compares.
    fn back_up(&mut self) {
        let (snapshot, model) = &self.snapshots[self.rng.random_range(0..self.snapshots.len())];
        let mut bytes = Vec::new();
        match self.db.backup().snapshot(snapshot).to_writer(&mut bytes) {
            Ok(_) => {}
            Err(Error::SnapshotTooOld { .. }) => return,
            Err(error) => panic!("{}: backup: {error}", self.context),
        }
        let fs = Arc::new(MemFs::new());
        let copy = || deterministic(Arc::clone(&fs) as _, self.page_size, 48);
        Restore::new().builder(copy()).from_reader(bytes.as_slice(), "copy").unwrap();
        let copy = copy().open("copy").unwrap();
        self.compare(&copy, model, "restored backup");
    }

    fn compare(&self, db: &Database, model: &Model, kind: &str) {
        let (expected, found) = (without_empty(model.clone()), content(db).unwrap());
        let context = format!("{}, {kind}", self.context);
        assert!(found == expected, "{context}: {}", difference(&expected, &found));
        assert_clean(db, &context);
    }

    /// Opens the store as it is after a power cut or a kill at this moment.
    fn cut(&mut self) {
        let seed = self.rng.random();
        let disk = if self.rng.random_bool(0.5) { self.fs.crash(seed) } else { self.fs.kill() };
        let db = opened(disk.clone(), self.page_size).unwrap();
        self.compare(&db, &self.committed, "after a cut");
        if self.rng.random_bool(0.3) {
            self.snapshots.clear();
            self.open.clear();
            (self.fs, self.db) = (disk, db);
        }
    }

    fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..=9 if self.open.len() < 4 => {
                let tx = self.db.begin().unwrap();
                tx.detach_from_thread().unwrap();
                tx.set_nowait(true).unwrap();
                self.open.push(Open { tx, calls: Vec::new(), savepoints: Vec::new() });
            }
            10..=13 if self.snapshots.len() < 3 => {
                self.snapshots.push((self.db.snapshot().unwrap(), self.committed.clone()));
            }
            14..=20 if !self.snapshots.is_empty() => self.read_snapshot(),
            21 if !self.snapshots.is_empty() => {
                let i = self.rng.random_range(0..self.snapshots.len());
                drop(self.snapshots.swap_remove(i));
            }
            22 if !self.snapshots.is_empty() && self.rng.random_bool(0.3) => self.back_up(),
            23 => self.db.checkpoint_step(self.rng.random_range(0..6)).unwrap(),
            24 if self.rng.random_bool(0.3) => self.db.checkpoint().unwrap(),
            25 => drop(self.db.release_step().unwrap()),
            // Without a new snapshot meanwhile, only first changes of rows store versions from then on.
            45 if !self.snapshots.is_empty() && self.rng.random_bool(0.5) => {
                std::thread::sleep(azekura_btree::SPARSE_AFTER);
                self.db.checkpoint_step(0).unwrap();
            }
            26 if self.rng.random_bool(0.3) => self.cut(),
            27 if self.open.is_empty() => self.compare(&self.db, &self.committed, "open store"),
            28..=36 if !self.open.is_empty() => {
                let i = self.rng.random_range(0..self.open.len());
                self.end(i);
            }
            37..=44 if !self.open.is_empty() => {
                let i = self.rng.random_range(0..self.open.len());
                self.savepoint_or_rollback(i);
            }
            _ if !self.open.is_empty() => {
                let i = self.rng.random_range(0..self.open.len());
                self.call(i);
            }
            _ => {}
        }
    }
}

#[test]
fn interleaved_transactions_and_snapshots_see_the_rows_of_the_model() {
    let var = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seeds = match var("AZEKURA_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=var("AZEKURA_SEEDS").unwrap_or(6),
    };
    for seed in seeds {
        let mut run = Run::new(seed);
        for step in 0..1_500 {
            run.context = format!("seed {seed}, step {step}");
            run.step();
        }
        run.open.clear();
        run.compare(&run.db, &run.committed, "end");
        run.snapshots.clear();
        run.db.close().unwrap();
        let db = opened(run.fs.clone(), run.page_size).unwrap();
        run.compare(&db, &run.committed, "after a close");
    }
}
