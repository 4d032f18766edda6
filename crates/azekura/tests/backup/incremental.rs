//! Tests of incremental backups: a chain restores the rows of its last backup, and each backup has about the
//! size of the changes.

use std::sync::Arc;
use std::thread;

use azekura::{Database, Error, ErrorKind, Restore, TableDefinition};
use azekura_io::{CountingFs, FaultFs};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{contents, on};

const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");

fn backup(db: &Database, fs: &FaultFs, since: Option<&str>, to: &str) -> azekura::BackupReport {
    let mut backup = db.backup().file_system(Arc::new(fs.clone()));
    if let Some(base) = since {
        backup = backup.since(base);
    }
    backup.to_directory(to).expect("backs up")
}

fn restore(fs: &FaultFs, backup: &str, bases: &[String], copy: &str) -> Result<Database, Error> {
    let restore = Restore::new().file_system(Arc::new(fs.clone())).builder(on(fs)).verify(true);
    let restore = bases.iter().fold(restore, |restore, base| restore.base(base));
    restore.from_directory(backup, copy)?;
    on(fs).open(copy)
}

/// Changes rows of several tables, with large values, bulk loads, drops, and tables created again.
fn change(random: &mut StdRng, db: &Database) {
    let tx = db.begin().expect("begins");
    let table = TableDefinition::<u64, [u8]>::named(format!("t{}", random.random_range(0..4)));
    let mut run = || -> Result<(), Error> {
        match random.random_range(0..14) {
            0 => drop(tx.drop_table(table.name())?),
            12 => match tx.rename_table(&table, format!("t{}", random.random_range(0..6))) {
                Err(Error::TableExists { .. }) => {}
                renamed => drop(renamed?),
            },
            1 if tx.table(&table)?.first()?.is_none() => {
                let rows = (0..2000_u64).map(|n| (n * 3, vec![n as u8; 60]));
                tx.table(&table)?.bulk_load(rows)?;
            }
            2 => {
                // Removals that empty and merge leaves.
                let from = random.random_range(0..6000_u64);
                let keys: Vec<u64> = tx
                    .table(&table)?
                    .range(from..from + 1500)
                    .map(|row| row.map(|row| row.0))
                    .collect::<Result<_, _>>()?;
                for key in keys {
                    tx.table(&table)?.delete(&key)?;
                }
            }
            kind => {
                for _ in 0..random.random_range(1..30) {
                    let len = if kind == 3 { 9_000 } else { random.random_range(0..100) };
                    let key = random.random_range(0..6000);
                    tx.table(&table)?.insert(&key, &vec![kind as u8; len][..])?;
                }
            }
        }
        Ok(())
    };
    run().expect("changes");
    if random.random_ratio(1, 6) {
        tx.abort().expect("rolls back");
    } else {
        tx.commit().expect("commits");
    }
}

#[test]
fn chains_of_incremental_backups_restore_the_state_of_each() {
    for seed in 0..8 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut fs = FaultFs::new();
        let mut db = on(&fs).open("db").expect("opens");
        let (mut chain, mut states) = (Vec::<String>::new(), Vec::new());
        for n in 0..8 {
            // A transaction that is open during a backup: no backup so far has its changes, and its pages get
            // no later changes.
            let open = db.begin().expect("begins");
            let held = TableDefinition::<u64, [u8]>::named("held");
            (0..40)
                .try_for_each(|i| open.table(&held)?.insert(&(n * 100 + i), &[n as u8; 90][..]))
                .expect("writes");
            (0..random.random_range(0..12)).for_each(|_| change(&mut random, &db));
            let to = format!("b{n}");
            // The base is any earlier backup.
            let base =
                chain.len().checked_sub(1).map(|last| random.random_range(last.saturating_sub(2)..=last));
            let report = backup(&db, &fs, base.map(|base| chain[base].as_str()), &to);
            assert_eq!(report.is_incremental, base.is_some());
            chain.push(to);
            states.push(contents(&db));
            open.commit().expect("commits");
            if random.random_ratio(1, 3) {
                fs = fs.kill();
                drop(db);
                db = on(&fs).open("db").expect("restarts");
            }
        }
        for (n, state) in states.iter().enumerate().step_by(2) {
            let copy = restore(&fs, &chain[n], &chain[..n], &format!("copy{n}")).expect("restores");
            assert!(contents(&copy) == *state, "seed {seed}: backup {n}");
        }
    }
}

#[test]
fn a_renamed_table_is_restored_from_an_incremental_backup() {
    let fs = FaultFs::new();
    let db = on(&fs).open("db").expect("opens");
    let others = TableDefinition::<u64, [u8]>::new("others");
    let fill = |table: &TableDefinition<u64, [u8]>, value: u8| {
        db.transact(|tx| tx.table(table)?.bulk_load((0..2_000_u64).map(|n| (n, vec![value; 100]))))
            .expect("loads")
    };
    fill(&ROWS, 1);
    fill(&others, 2);
    backup(&db, &fs, None, "full");
    // The new name is below the names of the base, above them, and that of the other table.
    for (n, names) in
        [[("rows", "a"), ("a", "a")], [("a", "z"), ("z", "z")], [("others", "b"), ("z", "others")]]
            .into_iter()
            .enumerate()
    {
        for (from, to) in names.into_iter().filter(|(from, to)| from != to) {
            assert!(db.transact(|tx| tx.rename_table(from, to)).expect("renames"));
        }
        let to = format!("b{n}");
        let report = backup(&db, &fs, Some("full"), &to);
        assert!(report.rows >= 2_000, "{report:?}");
        let copy = restore(&fs, &to, &["full".to_owned()], &format!("copy{n}")).expect("restores");
        assert_eq!(contents(&copy), contents(&db));
    }
}

#[test]
fn an_incremental_backup_has_the_pages_that_changed() {
    let fs = FaultFs::new();
    let db = on(&fs).open("db").expect("opens");
    db.transact(|tx| tx.table(&ROWS)?.bulk_load((0..20_000_u64).map(|n| (n, vec![7; 100]))).map(drop))
        .expect("loads");
    let full = backup(&db, &fs, None, "full");
    let none = backup(&db, &fs, Some("full"), "none");
    assert!(none.bytes < 300 && none.rows == 0, "{none:?}");
    for n in [3, 9_000, 19_999] {
        db.transact(|tx| tx.table(&ROWS)?.insert(&n, &[8; 100][..])).expect("writes");
    }
    let three = backup(&db, &fs, Some("none"), "three");
    assert!(three.rows > 3 && three.rows < 150 && three.bytes < full.bytes / 100, "{three:?} of {full:?}");
    let bases = ["full".to_owned(), "none".to_owned()];
    let copy = restore(&fs, "three", &bases, "copy").expect("restores");
    assert_eq!(contents(&copy), contents(&db));
    // A base is missing, damaged, or from another store.
    let error = restore(&fs, "three", &bases[..1], "copy2").expect_err("a base is missing");
    assert!(matches!(error, Error::NotABackup { .. }) && error.to_string().contains("--base"), "{error:?}");
    assert!(error.to_string().contains("backup.azk is incremental"), "{error}"); // and it is a backup
    fs.flip_bit(std::path::Path::new("full/backup.azk"), full.bytes / 2, 3).expect("flips");
    let error = restore(&fs, "three", &bases, "copy3").expect_err("a base is damaged");
    assert!(matches!(&error, Error::Corrupt { path, .. } if path.starts_with("full")), "{error:?}");
    let other = on(&fs).open("other").expect("opens");
    let error =
        other.backup().file_system(Arc::new(fs.clone())).since("full").to_directory("x").expect_err("other");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

/// The open files (SOURCE-1) and the stack of a restore do not grow with the length of the chain.
#[test]
fn a_restore_of_a_long_chain_has_one_backup_open() {
    let (disk, store) = (FaultFs::new(), FaultFs::new());
    let db = on(&store).open("db").expect("opens");
    let mut chain = Vec::<String>::new();
    for n in 0..1_000_u64 {
        db.transact(|tx| tx.table(&ROWS)?.insert(&n, &[n as u8; 100][..])).expect("writes");
        let to = format!("b{n}");
        backup(&db, &disk, chain.last().map(String::as_str), &to);
        chain.push(to);
    }
    let last = chain.pop().expect("is there");
    let counting = CountingFs::new(Arc::new(disk));
    let run = || {
        let (mut most, mut calls) = (0, 0);
        let restore = Restore::new()
            .file_system(Arc::new(counting.clone()))
            .builder(on(&store))
            .verify(true)
            .progress(|_| (most, calls) = (counting.counts().open_files.max(most), calls + 1));
        let restore = chain.iter().fold(restore, |restore, base| restore.base(base));
        restore.from_directory(&last, "copy").expect("restores");
        assert!(calls > 0 && most <= 1, "{most} open files in {calls} calls");
    };
    thread::scope(|scope| {
        let small = thread::Builder::new().stack_size(1 << 20).spawn_scoped(scope, run);
        small.expect("starts").join().expect("restores");
    });
    assert_eq!(contents(&on(&store).open("copy").expect("opens")), contents(&db));
}
