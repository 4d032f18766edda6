//! Tests that change bytes in every file of a store. Later reads return the written content or a typed error,
//! and a store that `check` finds clean has the written content. There is no panic and no silent loss.

#![allow(unreachable_pub, dead_code, reason = "the entries are shared with the fuzz targets")]

#[path = "damage/campaign.rs"]
mod campaign;
mod common;
#[path = "fuzz/control_file.rs"]
mod control_file;
#[path = "damage/harm.rs"]
mod harm;
#[path = "damage/life.rs"]
mod life;
#[path = "damage/live_copy.rs"]
mod live_copy;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura::{Database, Error, ErrorKind};
use azekura_io::MemFs;
use common::{Model, Outcome, Shape};
use control_file::Files;
use mutate::Random;

const DIR: &str = "/db";
const PAGE: usize = 4096;

fn open(fs: &MemFs) -> Result<Database, Error> {
    common::deterministic(Arc::new(fs.clone()), PAGE, 256).open(DIR)
}

/// Returns the files of a store with several tables, trees of three levels and large values, and the outcome
/// of the workload that wrote it.
fn store(is_closed: bool) -> (Files, Outcome) {
    let fs = MemFs::new();
    let db = open(&fs).expect("creates");
    let shape =
        Shape { txns: 150, ops: 20, keys: 900, tables: 3, large_values: true, checkpoints: !is_closed };
    let outcome = common::run(&db, Model::new(), &common::workload(5, shape));
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    if is_closed {
        db.close().expect("closes");
        return (fs.files(Path::new(DIR)).expect("is there"), outcome);
    }
    let unclosed = fs.files(Path::new(DIR)).expect("is there");
    drop(db);
    (unclosed, outcome)
}

/// Changes one position of one file; returns the file's index, and a description of the change.
fn damage(random: &mut Random, files: &mut Files) -> (usize, String) {
    let at_file = random.below(files.len());
    let bytes = &mut files[at_file].1;
    if bytes.is_empty() {
        return (at_file, "nothing".into());
    }
    // Large parts of a file may be zero, because they are reserved for growth. So half of the positions are
    // among bytes that are not zero.
    let mut at = random.below(bytes.len());
    if random.below(2) == 0 {
        at = (at..bytes.len()).find(|&i| bytes[i] != 0).unwrap_or(at);
    }
    let done = match random.below(6) {
        0 | 1 => {
            bytes[at] ^= 1 << random.below(8);
            "a bit"
        }
        2 => {
            let len = (1 + random.below(64)).min(bytes.len() - at);
            bytes[at..at + len].iter_mut().for_each(|b| *b = random.next() as u8);
            "some bytes"
        }
        3 => {
            let (from, to) = (at / 512 * 512, (at / 512 * 512 + 512).min(bytes.len()));
            bytes[from..to].fill(0);
            "a sector zeroed"
        }
        4 => {
            let from = at / PAGE * PAGE;
            let to = (from + PAGE).min(bytes.len());
            let other = random.below(bytes.len() / PAGE + 1) * PAGE;
            if random.below(2) == 0 || other + (to - from) > bytes.len() {
                bytes[from..to].fill(0);
            } else {
                bytes.copy_within(other..other + (to - from), from);
            }
            "a page zeroed, or another one in its place"
        }
        _ => {
            bytes.truncate(at);
            "cut off"
        }
    };
    (at_file, format!("{done} at byte {at}"))
}

/// Opens and reads the damaged store; returns the kind of the error, or `None` if there is none.
fn ask(fs: &MemFs, what: &str, outcome: &Outcome, oldest_allowed: usize) -> Option<ErrorKind> {
    let db = match open(fs) {
        Ok(db) => db,
        Err(error) => return Some(error.kind()),
    };
    let checked = db.check(&mut |_, _| {});
    let found = common::content(&db);
    let is_allowed = |found: &Model| outcome.states[oldest_allowed..].contains(found);
    let last = outcome.states.last().expect("a start");
    match (&checked, &found) {
        (_, Ok(found)) => {
            assert!(is_allowed(found), "{what}: silently wrong: {}", common::difference(last, found));
        }
        (Ok(report), Err(error)) => {
            assert!(!report.is_clean(), "{what}: check finds nothing, but reading says {error}");
        }
        (Err(_), Err(_)) => {}
    }
    read_single_keys(&db, what, outcome, oldest_allowed);
    found.err().map(|error| error.kind())
}

/// Reads rows one by one. Each read returns the row of an allowed state, or an error.
fn read_single_keys(db: &Database, what: &str, outcome: &Outcome, oldest_allowed: usize) {
    let last = outcome.states.last().expect("a start");
    for (name, rows) in last {
        for (key, _) in rows.iter().step_by(7) {
            let table = azekura::TableDefinition::raw(name.as_str());
            let Ok(found) = db.transact(|tx| tx.table(&table)?.get(key)) else { continue };
            let was = |state: &Model| state.get(name).and_then(|rows| rows.get(key)) == found.as_ref();
            let is_allowed = outcome.states[oldest_allowed..].iter().any(was);
            assert!(is_allowed, "{what}: {name}/{key:02x?} is silently wrong");
        }
    }
}

fn damage_and_ask(runs: u64, is_closed: bool) {
    let (files, outcome) = store(is_closed);
    let (mut unharmed, mut refused) = (0, 0);
    for seed in 0..runs {
        let random = &mut Random::new(seed);
        let mut changed = files.clone();
        let (at, done) = damage(random, &mut changed);
        let path = changed[at].0.display().to_string();
        let what = format!("seed {seed}: {path}: {done}");
        // A closed store has all commits; a killed store has at least the acknowledged ones.
        let oldest_allowed = if is_closed { outcome.states.len() - 1 } else { outcome.acknowledged };
        let fs = MemFs::with_files(&changed).expect("fits");
        let answer = std::panic::catch_unwind(AssertUnwindSafe(|| ask(&fs, &what, &outcome, oldest_allowed)));
        match answer.unwrap_or_else(|_| panic!("{what}: panic")) {
            None => unharmed += 1,
            Some(kind) => {
                assert!(matches!(kind, ErrorKind::Corrupt | ErrorKind::Io), "{what}: {kind:?}");
                refused += 1;
            }
        }
    }
    assert!(unharmed > 0 && refused > 0, "{unharmed} unharmed, {refused} refused: the damage is not varied");
}

#[test]
fn a_damaged_closed_store_never_answers_wrongly() {
    damage_and_ask(120, true);
}

#[test]
fn a_damaged_unclosed_store_never_answers_wrongly() {
    damage_and_ask(80, false);
}

#[test]
fn a_damaged_encrypted_store_never_answers_wrongly() {
    common::with_key(|| {
        damage_and_ask(120, true);
        damage_and_ask(80, false);
    });
}

#[test]
fn a_changed_control_file_opens_the_store_or_says_what_is_wrong() {
    mutate::run_mutated(100, &control_file::seeds(), control_file::control_file);
}

/// The newest log file of a killed store is missing, empty, truncated, filled with zeroes, or replaced. No
/// other chunk refers to its content; only the log end in CONTROL reveals the loss. Without the log end,
/// recovery would end the log earlier.
#[test]
fn a_killed_store_that_lost_the_newest_log_file_is_refused() {
    const ROWS: azekura::TableDefinition<u64, [u8]> = azekura::TableDefinition::new("rows");
    let fs = MemFs::new();
    let db = open(&fs).expect("creates");
    let put = |n: u64| db.transact(|tx| tx.table(&ROWS)?.insert(&n, &[n as u8; 300])).expect("commits");
    (0..400).for_each(put);
    let files = fs.files(Path::new(DIR)).expect("is there");
    drop(db);
    let is_used =
        |file: &&(PathBuf, Vec<u8>)| file.0.starts_with("/db/wal") && file.1.iter().any(|&byte| byte != 0);
    let newest = files.iter().filter(is_used).map(|(path, _)| path).max().expect("a log");
    let other = &files.iter().find(is_used).expect("a log").1;
    let last_page = |bytes: &[u8]| bytes.chunks(PAGE).rposition(|page| page.iter().any(|&byte| byte != 0));
    let cut = |bytes: &[u8], more: usize| {
        Some(bytes[..last_page(bytes).map_or(0, |page| page * PAGE) + more].to_vec())
    };
    let harms: [(&str, &dyn Fn(&[u8]) -> Option<Vec<u8>>); 6] = [
        ("missing", &|_| None),
        ("empty", &|_| Some(Vec::new())),
        ("cut off before its last chunk", &|bytes| cut(bytes, 0)),
        ("cut off in its last chunk", &|bytes| cut(bytes, 200)),
        ("zeroes", &|bytes| Some(vec![0; bytes.len()])),
        ("the first one", &|_| Some(other.clone())),
    ];
    for (done, harm) in harms {
        let opened = |has_log_end: bool| {
            let mut changed = files.clone();
            let at = changed.iter().position(|(path, _)| path == newest).expect("is there");
            match harm(&changed[at].1) {
                Some(bytes) => changed[at].1 = bytes,
                None => drop(changed.remove(at)),
            }
            let control = changed.iter_mut().find(|(path, _)| path.ends_with("CONTROL")).expect("is there");
            if !has_log_end {
                control.1[32 * 1024..].fill(0);
            }
            open(&MemFs::with_files(&changed).expect("fits"))
        };
        let refused = opened(true).map(drop).expect_err(done);
        assert!(matches!(&refused, Error::Corrupt { path, .. } if path.starts_with("/db/wal")), "{refused}");
        let rows = opened(false).and_then(|db| db.transact(|tx| tx.table(&ROWS)?.len())).expect(done);
        assert!(rows < 400, "{done}: the log end is not what finds the loss");
    }
}

/// A store without CONTROL is reported as damaged, whatever other files it has. The opening neither reports a
/// foreign directory nor creates a new store.
#[test]
fn a_store_without_its_control_file_is_refused_unchanged() {
    let (files, _) = store(true);
    for missing in [&["CONTROL"][..], &["CONTROL", "dw"], &["CONTROL", "pages"]] {
        let mut left = files.clone();
        left.retain(|(path, _)| !missing.iter().any(|name| path.ends_with(name)));
        let fs = MemFs::with_files(&left).expect("fits");
        let error = open(&fs).expect_err("no CONTROL");
        assert!(matches!(&error, Error::Corrupt { path, .. } if path.ends_with("CONTROL")), "{error}");
        for builder in [Database::builder().read_only(true), Database::builder().create(false)] {
            let error = builder.file_system(Arc::new(fs.clone())).open(DIR).expect_err("no CONTROL");
            assert!(matches!(&error, Error::Corrupt { path, .. } if path.ends_with("CONTROL")), "{error}");
        }
        let after = fs.files(Path::new(DIR)).expect("is there");
        assert_eq!(
            after.iter().filter(|(path, _)| !path.ends_with("LOCK")).count(),
            left.iter().filter(|(path, _)| !path.ends_with("LOCK")).count()
        );
    }
}

/// An opening refuses a page file from before a commit that has large values outside the log.
#[test]
fn a_page_file_older_than_a_commit_with_unlogged_values_is_refused() {
    const VALUES: azekura::TableDefinition<u64, [u8]> = azekura::TableDefinition::new("values");
    let fs = MemFs::new();
    let db = open(&fs).expect("creates");
    let store = |key: u64| db.transact(|tx| tx.table(&VALUES)?.insert(&key, &[key as u8; 50_000][..]));
    store(1).expect("commits");
    db.checkpoint().expect("checkpoint");
    let before = fs.files(Path::new(DIR)).expect("is there");
    store(2).expect("commits");
    let after = fs.files(Path::new(DIR)).expect("is there");
    drop(db);
    let old_pages = |files: &Files| {
        let pages = |files: &Files| {
            files.iter().find(|(path, _)| path.ends_with("pages")).expect("is there").1.clone()
        };
        let mut mixed = files.clone();
        mixed
            .iter_mut()
            .filter(|(path, _)| path.ends_with("pages"))
            .for_each(|(_, bytes)| *bytes = pages(&before));
        MemFs::with_files(&mixed).expect("fits")
    };
    let sound = open(&MemFs::with_files(&after).expect("fits")).expect("recovers");
    let value = sound.transact(|tx| tx.table(&VALUES)?.get(&2)).expect("reads");
    assert_eq!(value.as_deref(), Some(&[2; 50_000][..]));
    drop(sound);
    let refused = open(&old_pages(&after)).map(drop).expect_err("the value is in no file");
    assert!(matches!(&refused, Error::Corrupt { path, .. } if path.ends_with("pages")), "{refused}");
    assert!(refused.to_string().contains("older than the log"), "{refused}");
}
