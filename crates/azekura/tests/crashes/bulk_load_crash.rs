//! Bulk loads and power loss: at every I/O in turn, and again during recovery. Two of three runs use the
//! P-WAL log protocol, the third one the serial log. Transactions use the log buffers in turn.
//!
//! The script loads tables into reused pages, while other transactions free pages and take checkpoints. It
//! rolls back to savepoints, aborts, and changes loaded rows. `AZEKURA_CRASH_SEEDS=50` runs 50 scripts
//! (default 2); `AZEKURA_CRASH_SEED=n` runs script `n`.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::cell::RefCell;
use std::sync::Arc;

use crate::common::{Model, Outcome, Rows, assert_recovered, deterministic};
use azekura::{Database, Error, LogProtocol, TableDefinition, Transaction};
use azekura_io::FaultFs;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const PAGE: usize = 4096;
const FRAMES: usize = 32;

fn seeds() -> Vec<u64> {
    let var = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    match var("AZEKURA_CRASH_SEED") {
        Some(seed) => vec![seed],
        None => (1..=var("AZEKURA_CRASH_SEEDS").unwrap_or(2)).collect(),
    }
}

fn table(name: &str) -> TableDefinition<[u8], [u8]> {
    TableDefinition::named(name)
}

/// Returns the log protocol of the run with this power cut.
fn protocol(cut: u64) -> LogProtocol {
    if (cut / step()).is_multiple_of(3) { LogProtocol::Serial } else { LogProtocol::PWal }
}

/// One run of the script.
struct Script<'a> {
    db: &'a Database,
    rng: StdRng,
    outcome: RefCell<Outcome>,
}

impl Script<'_> {
    fn model(&self) -> Model {
        self.outcome.borrow().states.last().unwrap().clone()
    }

    /// Commits a transaction that applies the same changes to the store and to the model. The commit is
    /// acknowledged when this function returns.
    fn commit(
        &self,
        change: impl FnOnce(&Transaction) -> Result<(), Error>,
        model: impl FnOnce(&mut Model),
    ) -> Result<(), Error> {
        let turn = self.outcome.borrow().states.len();
        let tx = self.db.begin_on_log_buffer(turn)?;
        change(&tx)?;
        // The model is read after the change, because the change may have committed other transactions.
        let mut after = self.model();
        model(&mut after);
        after.retain(|_, rows| !rows.is_empty());
        self.outcome.borrow_mut().states.push(after);
        tx.commit()?;
        let mut outcome = self.outcome.borrow_mut();
        outcome.acknowledged = outcome.states.len() - 1;
        Ok(())
    }

    /// Returns rows for several leaves and levels; some values are stored in chains of overflow pages.
    fn rows(&mut self, count: u32) -> Rows {
        let mut rows = Rows::new();
        for n in 0..count {
            let len = match self.rng.random_range(0..100) {
                0 => self.rng.random_range(3_000..30_000),
                1..30 => self.rng.random_range(100..500),
                _ => self.rng.random_range(0..60),
            };
            rows.insert(crate::common::key(n), vec![self.rng.random(); len]);
        }
        rows
    }

    /// Loads `rows`. Before three of them, checkpoints and other transactions run.
    fn load(&self, tx: &Transaction, name: &str, rows: &Rows) -> Result<(), Error> {
        let at = |part: usize| rows.len() * part / 4;
        let with_others = rows.iter().enumerate().map(|(i, (key, value))| {
            if i == at(1) {
                self.db.checkpoint()?;
                self.free_some()?;
            } else if i == at(2) {
                self.db.checkpoint_step(7)?;
            } else if i == at(3) {
                // The load itself takes no later checkpoint, so the log still has records that a restart
                // would redo on these pages.
                self.free_some()?;
            }
            Ok((key.as_slice(), value.as_slice()))
        });
        tx.table(&table(name))?.try_bulk_load(with_others).map(drop)
    }

    /// Commits other transactions that write pages and free others; the load then reuses the freed pages.
    fn free_some(&self) -> Result<(), Error> {
        let n = self.outcome.borrow().states.len() as u32;
        let large = vec![n as u8; 20_000];
        let rows: Vec<_> = (0..40).map(|i| (crate::common::key(i + n), vec![n as u8; 300])).collect();
        self.commit(
            |tx| {
                let side = tx.table(&table("side"))?;
                for (key, value) in &rows {
                    side.insert(key, value)?;
                }
                side.insert(b"large", &large)
            },
            |model| {
                let side = model.entry("side".into()).or_default();
                side.extend(rows.iter().cloned());
                side.insert(b"large".to_vec(), large.clone());
            },
        )?;
        // Removes all rows but keeps the table, because the loading transaction may have locked the table's
        // name in the catalog.
        self.commit(
            |tx| {
                let side = tx.table(&table("side"))?;
                rows.iter().try_for_each(|(key, _)| side.remove(key).map(drop))?;
                side.remove(b"large".as_slice()).map(drop)
            },
            |model| {
                let side = model.entry("side".into()).or_default();
                rows.iter().for_each(|(key, _)| drop(side.remove(key)));
                side.remove(&b"large"[..]);
            },
        )
    }

    fn play(&mut self) -> Result<(), Error> {
        self.commit(
            |tx| tx.table(&table("side"))?.insert(b"stays", b""),
            |model| drop(model.insert("side".into(), [(b"stays".to_vec(), Vec::new())].into())),
        )?;
        // Nothing was freed before, so the load takes no checkpoint, and only the loader writes its pages.
        let large: Rows = (0..3).map(|n| (crate::common::key(n), vec![n as u8; 9_000])).collect();
        self.commit(
            |tx| {
                let rows = large.iter().map(|(key, value)| (key.as_slice(), value.as_slice()));
                tx.table(&table("d"))?.bulk_load(rows).map(drop)
            },
            |model| drop(model.insert("d".into(), large.clone())),
        )?;
        let rows = self.rows(700);
        self.commit(|tx| self.load(tx, "a", &rows), |model| drop(model.insert("a".into(), rows.clone())))?;
        self.change("a", 60)?;
        // An aborted load, and a load that is undone by a rollback to a savepoint.
        let other = self.rows(300);
        let tx = self.db.begin()?;
        self.load(&tx, "b", &other)?;
        tx.abort()?;
        self.commit(
            |tx| {
                tx.table(&table("c"))?.insert(b"first", b"1")?;
                let savepoint = tx.savepoint()?;
                self.load(tx, "b", &other)?;
                tx.table(&table("b"))?.insert(b"more", &[1; 2_000])?;
                tx.rollback_to(savepoint)?;
                tx.table(&table("c"))?.insert(b"last", b"2")
            },
            |model| {
                let rows = [("first", "1"), ("last", "2")];
                let rows = rows.map(|(k, v)| (k.as_bytes().to_vec(), v.as_bytes().to_vec()));
                model.insert("c".into(), rows.into());
            },
        )?;
        // The pages of "a" are freed and reused.
        self.commit(|tx| tx.drop_table("a").map(drop), |model| drop(model.remove("a")))?;
        let again = self.rows(900);
        self.commit(
            |tx| {
                self.load(tx, "a", &again)?;
                tx.table(&table("c"))?.remove(b"first".as_slice()).map(drop)
            },
            |model| {
                model.insert("a".into(), again.clone());
                model.entry("c".into()).or_default().remove(&b"first"[..]);
            },
        )?;
        self.change("a", 100)
    }

    /// Changes single loaded rows, enough for splits and merges.
    fn change(&mut self, name: &str, count: u32) -> Result<(), Error> {
        for i in 0..count / 20 {
            let keys: Vec<_> = (0..20).map(|_| crate::common::key(self.rng.random_range(0..900))).collect();
            let value = (i % 2 == 0).then(|| vec![i as u8; self.rng.random_range(0..400)]);
            self.commit(
                |tx| {
                    let table = tx.table(&table(name))?;
                    keys.iter().try_for_each(|key| match &value {
                        Some(value) => table.insert(key, value),
                        None => table.remove(key).map(drop),
                    })
                },
                |model| {
                    let rows = model.entry(name.to_owned()).or_default();
                    for key in &keys {
                        match &value {
                            Some(value) => drop(rows.insert(key.clone(), value.clone())),
                            None => drop(rows.remove(key)),
                        }
                    }
                },
            )?;
        }
        Ok(())
    }
}

/// Runs the script on a fresh disk that loses power at its `cut`-th I/O. Also returns `true` if the run
/// reached that I/O.
fn run_until(cut: u64, seed: u64) -> (FaultFs, Outcome, bool) {
    let fs = FaultFs::new();
    fs.cut_power_at(cut);
    let mut outcome = Outcome { states: vec![Model::new()], acknowledged: 0, error: None };
    let store = deterministic(Arc::new(fs.clone()), PAGE, FRAMES).log_protocol(protocol(cut));
    match store.open("db") {
        Ok(db) => {
            let mut script =
                Script { db: &db, rng: StdRng::seed_from_u64(seed), outcome: RefCell::new(outcome) };
            let error = script.play().err();
            outcome = script.outcome.into_inner();
            outcome.error = error;
            if outcome.error.is_none() {
                let _ = db.close();
            }
        }
        Err(error) => outcome.error = Some(error),
    }
    let has_cut = fs.power_is_off();
    (fs, outcome, has_cut)
}

fn recover(disk: &FaultFs, n: u64) -> Result<Database, Error> {
    deterministic(Arc::new(disk.clone()), PAGE, FRAMES).redo_threads(1 + (n % 3) as usize).open("db")
}

/// Returns the step between power cuts: 1 if a seed variable is set, otherwise 3.
fn step() -> u64 {
    let is_asked =
        ["AZEKURA_CRASH_SEEDS", "AZEKURA_CRASH_SEED"].iter().any(|name| std::env::var(name).is_ok());
    if is_asked { 1 } else { 3 }
}

#[test]
fn every_cut_leaves_the_loaded_table_whole_or_empty() {
    for seed in seeds() {
        let mut cut = 1 + seed % step();
        loop {
            let (fs, outcome, happened) = run_until(cut, seed);
            let context = format!("seed {seed}, power cut at I/O {cut}");
            let db = recover(&fs.crash(seed * 1_000_003 + cut), cut)
                .unwrap_or_else(|e| panic!("{context}: open: {e} ({e:?})"));
            assert_recovered(&db, &outcome, &context);
            if !happened {
                assert!(outcome.error.is_none(), "{context}: {:?}", outcome.error);
                break;
            }
            cut += step();
        }
        assert!(cut > 100, "the script does enough I/O to be worth cutting: {cut}");
    }
}

/// Several recoveries lose power, one after another, until one recovery completes.
#[test]
fn a_crash_during_the_recovery_of_a_load_changes_nothing() {
    for seed in seeds() {
        let mut first_cut = 20 + seed % 7;
        loop {
            let (fs, outcome, happened) = run_until(first_cut, seed);
            if !happened {
                break;
            }
            let mut disk = fs.crash(seed + first_cut);
            let mut cut = 1;
            loop {
                disk.cut_power_at(cut);
                let context = format!("seed {seed}, cut at {first_cut}, then during recovery at {cut}");
                let recovered = recover(&disk, cut);
                if !disk.power_is_off() {
                    let db = recovered.unwrap_or_else(|e| panic!("{context}: {e}"));
                    disk.heal();
                    assert_recovered(&db, &outcome, &context);
                    break;
                }
                drop(recovered);
                disk = disk.crash(seed * 31 + cut);
                cut += 1 + cut / 8;
            }
            first_cut += 53;
        }
    }
}

/// With the loader's threads, the cleaner and the checkpointer running, a power cut at any I/O leaves either
/// the whole load or an empty table.
#[test]
fn a_cut_while_threads_write_leaves_the_table_whole_or_empty() {
    for seed in 0..if step() == 1 { 100 } else { 12 } {
        let protocol = if seed % 2 == 0 { LogProtocol::PWal } else { LogProtocol::Serial };
        let rng = &mut StdRng::seed_from_u64(seed);
        let rows: Rows = (0..6_000u32).map(|n| (n.to_be_bytes().to_vec(), vec![n as u8; 60])).collect();
        let fs = FaultFs::new();
        let open = |fs: &FaultFs| {
            let store = deterministic(Arc::new(fs.clone()), PAGE, 64).log_protocol(protocol);
            store.background(true).open("db")
        };
        let mut outcome = Outcome { states: vec![Model::new()], acknowledged: 0, error: None };
        {
            let db = open(&fs).unwrap();
            fs.cut_power_at(rng.random_range(1..90));
            let tx = db.begin().unwrap();
            let mut load = |tx: Transaction| {
                tx.table(&table("a"))?
                    .bulk_load(rows.iter().map(|(key, value)| (key.as_slice(), value.as_slice())))?;
                outcome.states.push([("a".to_owned(), rows.clone())].into());
                tx.commit()
            };
            if load(tx).is_ok() {
                outcome.acknowledged = 1;
            }
            fs.cut_power();
        }
        let db = open(&fs.crash(seed)).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_recovered(&db, &outcome, &format!("seed {seed}"));
    }
}
