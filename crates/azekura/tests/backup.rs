//! Tests of backup and restore. A backup under writers has a prefix of their commits. After damage, kills and
//! failures at any point, a restore gives the right rows or a typed error.

#[path = "backup/archive.rs"]
mod archive;
#[path = "backup/compact.rs"]
mod compact;
#[path = "backup/history.rs"]
mod history;
#[path = "backup/incremental.rs"]
mod incremental;
#[path = "backup/kills.rs"]
mod kills;
#[path = "backup/pieces.rs"]
mod pieces;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use azekura::{Builder, Database, Error, ErrorKind, Fs, Restore, TableDefinition};
use azekura_io::{FailKind, FaultFs};

const PAIRS: [TableDefinition<(u64, u64), u64>; 2] =
    [TableDefinition::new("first"), TableDefinition::new("second")];
const NAMES: TableDefinition<str, String> = TableDefinition::new("names");
const EMPTY: TableDefinition<u32, u32> = TableDefinition::new("empty");
const LOADED: TableDefinition<u32, [u8]> = TableDefinition::new("loaded");
const WRITERS: u64 = 4;

fn small() -> Builder {
    Database::builder()
        .page_size(4096)
        .cache_bytes(4 << 20)
        .log_buffers(1)
        .wal_streams(1)
        .wal_segment_bytes(2 << 20)
        .background(false)
}

fn on(fs: &FaultFs) -> Builder {
    small().file_system(Arc::new(fs.clone()))
}

/// Returns a store with rows of several types, a table without rows, large values and bulk-loaded rows.
fn sample() -> Database {
    let db = small().open_in_memory().expect("opens");
    db.transact(|tx| {
        tx.table(&EMPTY)?.insert(&1, &1)?;
        tx.table(&EMPTY)?.remove(&1)?;
        tx.table(&LOADED)?.bulk_load((0..300_u32).map(|n| (n, vec![n as u8; 10])))?;
        let names = tx.table(&NAMES)?;
        names.insert("", &String::new())?;
        names.insert("large", &"x".repeat(20_000))?;
        names.insert("small", &"y".to_owned())
    })
    .expect("writes");
    db
}

fn bytes_of(db: &Database) -> Vec<u8> {
    let mut bytes = Vec::new();
    let report = db.backup().to_writer(&mut bytes).expect("backs up");
    assert_eq!(report.bytes, bytes.len() as u64);
    bytes
}

/// Returns all tables with their types, and all rows as bytes.
fn contents(db: &Database) -> BTreeMap<String, (String, Vec<(Vec<u8>, Vec<u8>)>)> {
    let snapshot = db.snapshot().expect("opens");
    let read = |name: &str| {
        let table = snapshot.table(&TableDefinition::raw(name))?;
        table.iter().collect::<Result<Vec<_>, Error>>()
    };
    let tables = snapshot.tables().expect("reads the catalog");
    tables
        .into_iter()
        .map(|table| (table.name.clone(), (table.types.to_string(), read(&table.name).expect("reads"))))
        .collect()
}

#[test]
fn a_restored_store_has_the_tables_types_and_rows_of_the_backup() {
    let db = sample();
    let bytes = bytes_of(&db);
    let fs = FaultFs::new();
    let restore = || Restore::new().builder(on(&fs)).verify(true);
    let report = restore().from_reader(&bytes[..], "copy").expect("restores");
    assert_eq!((report.backup.tables, report.backup.rows, report.is_verified), (3, 303, true));
    let copy = on(&fs).create(false).open("copy").expect("opens");
    assert_eq!(contents(&copy), contents(&db));
    assert_eq!(copy.page_size(), 4096);
    // Typed reads also work; the types are compared with the catalog.
    let large = copy.read(|s| s.table(&NAMES)?.get("large")).expect("reads").expect("is there");
    assert_eq!(large.len(), 20_000);
    assert!(copy.check(&mut |_, _| {}).expect("checks").is_clean());
    drop(copy);
    // A second restore refuses the directory and leaves it unchanged.
    let error = restore().from_reader(&bytes[..], "copy").expect_err("not empty");
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    assert_eq!(contents(&on(&fs).open("copy").expect("opens")), contents(&db));
    // The restored store can have another page size.
    restore().page_size(16384).from_reader(&bytes[..], "other").expect("restores");
    assert_eq!(on(&fs).open("other").expect("opens").page_size(), 16384);
}

#[test]
fn a_backup_under_writers_has_a_prefix_of_each_writers_commits() {
    let db = small().background(true).open_in_memory().expect("opens");
    let (stop, allowed, acknowledged) =
        (AtomicBool::new(false), AtomicU64::new(0), [const { AtomicU64::new(0) }; WRITERS as usize]);
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (db, stop, allowed, acknowledged) = (&db, &stop, &allowed, &acknowledged);
            scope.spawn(move || {
                for n in 0.. {
                    while n >= allowed.load(SeqCst) {
                        thread::sleep(Duration::from_millis(1));
                    }
                    if stop.load(SeqCst) {
                        break;
                    }
                    db.transact(|tx| {
                        for table in &PAIRS {
                            let rows = tx.table(table)?;
                            rows.insert(&(writer, n), &n)?;
                            // Each row has the number of the commit that wrote it last.
                            rows.insert(&(writer, n / 8), &n)?;
                        }
                        Ok(())
                    })
                    .expect("writes");
                    acknowledged[writer as usize].store(n + 1, SeqCst);
                }
            });
        }
        for round in 0..5 {
            // A limit of commits per writer and round keeps the store small.
            allowed.store((round + 1) * 300, SeqCst);
            while acknowledged.iter().any(|n| n.load(SeqCst) < round * 300 + 20) {
                thread::yield_now();
            }
            let before: Vec<u64> = acknowledged.iter().map(|n| n.load(SeqCst)).collect();
            let fs = FaultFs::new();
            let bytes = bytes_of(&db);
            Restore::new().builder(on(&fs)).verify(true).from_reader(&bytes[..], "copy").expect("restores");
            let copy = on(&fs).open("copy").expect("opens");
            let rows = PAIRS.each_ref().map(|table| {
                copy.read(|s| s.table(table)?.iter().collect::<Result<Vec<_>, _>>()).expect("reads")
            });
            assert_eq!(rows[0], rows[1], "round {round}: half of a transaction");
            for writer in 0..WRITERS {
                let mine: Vec<_> = rows[0].iter().filter(|((w, _), _)| *w == writer).collect();
                let commits = mine.len() as u64;
                assert!(
                    commits >= before[writer as usize],
                    "round {round}: an acknowledged commit is missing"
                );
                assert!(
                    mine.iter().enumerate().all(|(i, ((_, n), _))| *n == i as u64),
                    "round {round}: a hole"
                );
                // The expected state after exactly this number of commits.
                let mut model = BTreeMap::new();
                for n in 0..commits {
                    model.extend([(n, n), (n / 8, n)]);
                }
                assert!(mine.iter().map(|((_, n), value)| (*n, *value)).eq(model), "round {round}");
            }
        }
        stop.store(true, SeqCst);
        allowed.store(u64::MAX, SeqCst);
    });
}

#[test]
fn a_backup_of_a_snapshot_has_the_state_of_that_snapshot() {
    let db = sample();
    let before = contents(&db);
    let snapshot = db.snapshot().expect("opens");
    db.transact(|tx| {
        tx.table(&NAMES)?.insert("small", &"later".to_owned())?;
        tx.drop_table(&LOADED).map(drop)
    })
    .expect("writes");
    let (mut bytes, mut last) = (Vec::new(), None);
    db.backup()
        .snapshot(&snapshot)
        .progress(|seen| last = Some(seen.clone()))
        .to_writer(&mut bytes)
        .expect("backs up");
    let last = last.expect("progress was reported");
    assert_eq!((last.tables, last.rows, last.bytes), (3, 303, bytes.len() as u64));
    let fs = FaultFs::new();
    Restore::new().builder(on(&fs)).from_reader(&bytes[..], "copy").expect("restores");
    assert_eq!(contents(&on(&fs).open("copy").expect("opens")), before);
}

#[test]
fn an_error_of_the_progress_function_stops_the_backup() {
    let (db, fs) = (sample(), FaultFs::new());
    let backup = || db.backup().file_system(Arc::new(fs.clone()));
    let mut calls = 0;
    let error = backup()
        .try_progress(|_| {
            calls += 1;
            if calls < 2 { Ok(()) } else { Err(Error::other("enough")) }
        })
        .to_directory("b")
        .expect_err("was stopped");
    assert_eq!((calls, error.to_string()), (2, "enough".to_owned()));
    let left = fs.open(Path::new("b/backup.azk.new"), azekura_io::OpenOptions::new().read_only(true));
    assert_eq!(left.and_then(|file| file.len()).expect("is left"), 0, "it takes no space");
    let error = Restore::new().builder(on(&fs)).from_directory("b", "r").expect_err("has no backup");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    backup().to_directory("b").expect("backs up");
}

#[test]
fn a_rate_of_zero_and_a_second_backup_in_a_directory_are_refused() {
    let (db, fs) = (sample(), FaultFs::new());
    let backup = || db.backup().file_system(Arc::new(fs.clone()));
    let error = backup().rate_limit(0).to_directory("b0").expect_err("no rate");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    backup().rate_limit(1 << 30).to_directory("b").expect("backs up");
    let error = backup().to_directory("b").expect_err("is there");
    assert!(error.to_string().contains("holds a backup already"), "{error}");
    on(&fs).open("store").and_then(|db| db.close()).expect("is a store");
    let error = backup().to_directory("store").expect_err("is a store");
    assert!(error.to_string().contains("store is the directory of the store store"), "{error}");
}

#[test]
fn a_file_in_place_of_a_new_directory_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, backup) = (dir.path().join("file"), dir.path().join("backup"));
    std::fs::write(&file, "").expect("writes");
    let db = Database::open(dir.path().join("db")).expect("opens");
    db.backup().to_directory(&backup).expect("backs up");
    for taken in [file.clone(), file.join("below")] {
        let archived = Database::builder().archive(&taken).open(dir.path().join("archived"));
        for error in [
            db.backup().to_directory(&taken).expect_err("a file"),
            db.compact_into(&taken).expect_err("a file"),
            Restore::new().from_directory(&backup, &taken).expect_err("a file"),
            archived.expect_err("a file"),
        ] {
            let shown = error.to_string();
            assert!(shown.starts_with(&format!("{} is a file", taken.display())), "{shown}");
        }
    }
}

#[test]
fn a_backup_to_the_directory_of_a_running_backup_is_refused() {
    let (db, fs) = (sample(), FaultFs::new());
    let backup = || db.backup().file_system(Arc::new(fs.clone()));
    let mut refused = Vec::new();
    let running = backup().progress(|_| refused.extend(backup().to_directory("b").err()));
    running.to_directory("b").expect("backs up");
    assert!(refused.len() > 1, "one refusal for each block");
    for error in refused {
        assert!(error.to_string().contains("b is the destination of a running backup"), "{error}");
    }
    Restore::new().file_system(Arc::new(fs)).verify_directory("b").expect("is complete");
}

fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::NotABackup { .. } | Error::UnsupportedFormat { .. })
}

#[test]
fn a_backup_with_any_wrong_byte_or_any_end_is_refused() {
    let bytes = bytes_of(&sample());
    Restore::new().verify_reader(&bytes[..]).expect("is right");
    let right = bytes.clone();
    let refused = |bytes: &[u8], what: &str| match Restore::new().verify_reader(bytes) {
        // An accepted change has replaced bytes by equal bytes.
        Ok(_) => assert_eq!(bytes, right, "{what} was accepted"),
        Err(error) => assert!(is_refusal(&error), "{what}: {error:?}"),
    };
    let mut damaged = bytes.clone();
    for at in 0..bytes.len() {
        for wrong in [1, 0x80, 0xff] {
            damaged[at] ^= wrong;
            // The structure of the backup has a few hundred bytes, which are all changed; of the bytes of
            // rows a sample is enough.
            if at < 4096 || at + 4096 > bytes.len() || at % 61 == 0 {
                refused(&damaged, &format!("byte {at} xor {wrong}"));
            }
            damaged[at] ^= wrong;
        }
        if at < 4096 || at + 200 > bytes.len() || at % 61 == 0 {
            refused(&bytes[..at], &format!("an end at {at}"));
        }
    }
    refused(&[&bytes[..], &[0]].concat(), "another byte at the end");
    // Runs of zeroes, and blocks of another backup of the same store.
    let other = bytes_of(&sample());
    let mut mixed = bytes.clone();
    for (from, len) in (0..bytes.len()).step_by(509).map(|from| (from, 4096)) {
        let to = bytes.len().min(from + len);
        mixed[from..to].fill(0);
        refused(&mixed, &format!("zeroes at {from}"));
        mixed[from..to].copy_from_slice(&other[from..to]);
        refused(&mixed, &format!("another backup at {from}"));
        mixed[from..to].copy_from_slice(&bytes[from..to]);
    }
}

#[test]
fn a_restore_of_a_damaged_backup_leaves_nothing_that_opens() {
    let bytes = bytes_of(&sample());
    let mut refused = 0;
    for at in (0..bytes.len()).step_by(bytes.len() / 40) {
        let fs = FaultFs::new();
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        let restored = Restore::new().builder(on(&fs)).from_reader(&damaged[..], "copy");
        let error = restored.expect_err("is damaged");
        assert!(is_refusal(&error), "{error:?}");
        let is_marker = |file: &std::path::PathBuf| file.ends_with("copy/RESTORING");
        assert!(fs.files().iter().all(is_marker), "files that take space: {:?}", fs.files());
        for builder in [on(&fs), on(&fs).read_only(true)] {
            match builder.create(false).open("copy") {
                Err(Error::RestoreUnfinished { .. }) => refused += 1,
                Err(Error::NotFound { .. }) => assert!(at < 76, "byte {at}"), // in the header
                other => panic!("byte {at}: {other:?}"),
            }
        }
        let again = Restore::new().builder(on(&fs)).from_reader(&bytes[..], "copy").expect("restores");
        assert!(!again.removed_unfinished, "the failed restore has removed its files");
        on(&fs).create(false).open("copy").expect("opens");
    }
    assert!(refused >= 78, "{refused}");
}

#[test]
fn foreign_missing_and_unfinished_backups_are_named() {
    let fs = FaultFs::new();
    let restore = || Restore::new().file_system(Arc::new(fs.clone())).builder(on(&fs));
    let reason = |from: &str| match restore().from_directory(from, "copy").expect_err("is no backup") {
        Error::NotABackup { reason, .. } => reason,
        other => panic!("{other:?}"),
    };
    assert!(reason("missing").contains("no file"));
    on(&fs).open("store").expect("opens");
    assert!(reason("store").contains("no file"));
    let open = fs.open(Path::new("store/backup.azk.new"), azekura_io::OpenOptions::new().create(true));
    open.expect("creates");
    assert!(reason("store").contains("did not finish"));
    let error = Restore::new().verify_reader(&[b'x'; 100][..]).expect_err("is no backup");
    assert!(matches!(error, Error::NotABackup { .. }), "{error:?}");
    assert!(!fs.exists(Path::new("copy")), "a refused restore made a directory");
    let error = Restore::new().verify_reader(Fails).expect_err("fails");
    assert!(matches!(error, Error::Io { .. }), "{error:?}");
}

struct Fails;

impl Read for Fails {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(std::io::Error::other("no"))
    }
}

/// Runs `call` once for each of its I/Os, and lets that I/O fail. With `power`, the power fails at the I/O,
/// and some unsynced writes are lost. Passes the disk after each run to `check`; returns the number of I/Os.
fn at_each_io(
    call: impl Fn(&FaultFs) -> Result<(), Error>,
    power: bool,
    check: impl Fn(&FaultFs, u64),
) -> u64 {
    for n in 1.. {
        let fs = FaultFs::new();
        if power {
            fs.cut_power_at(n);
        } else {
            fs.fail_at(n, if n % 2 == 0 { FailKind::Io } else { FailKind::NoSpace });
        }
        let made = call(&fs);
        let done = fs.io_count() < n;
        assert!(!done || made.is_ok(), "{made:?}");
        if power {
            (0..3).for_each(|seed| check(&fs.crash(seed), n));
        } else {
            fs.heal();
            check(&fs.kill(), n);
        }
        if done {
            return n - 1;
        }
    }
    unreachable!("the loop ends")
}

#[test]
fn a_restore_or_compaction_that_runs_is_not_called_unfinished() {
    let (fs, source) = (FaultFs::new(), sample());
    let bytes = bytes_of(&source);
    let is_running = |error: Result<(), Error>| {
        assert!(
            matches!(&error, Err(Error::RestoreRunning { path }) if path == Path::new("copy")),
            "{error:?}"
        );
        assert_eq!(error.expect_err("is running").kind(), ErrorKind::Busy);
    };
    let restore = || Restore::new().builder(on(&fs));
    let mut seen = 0;
    let look = |_: &azekura::BackupProgress| {
        is_running(on(&fs).open("copy").map(drop));
        is_running(on(&fs).read_only(true).open("copy").map(drop));
        is_running(restore().from_reader(&bytes[..], "copy").map(drop));
        seen += 1;
    };
    restore().progress(look).from_reader(&bytes[..], "copy").expect("restores");
    assert!(seen > 0);
    let copy = on(&fs).open("copy").expect("opens");
    assert_eq!(contents(&copy), contents(&source));
    let look = |_: &azekura::BackupProgress| {
        let opened = on(&fs).open("small");
        assert!(matches!(opened, Err(Error::RestoreRunning { .. })), "{opened:?}");
    };
    copy.compaction().progress(look).into_directory("small").expect("compacts");
    assert_eq!(contents(&on(&fs).open("small").expect("opens")), contents(&source));
}

#[test]
fn a_restore_that_stops_at_any_io_is_whole_or_does_not_open() {
    let db = sample();
    let (bytes, right) = (bytes_of(&db), contents(&db));
    for power in [true, false] {
        let (whole, removed) = (AtomicU64::new(0), AtomicU64::new(0));
        let refusals = std::sync::Mutex::new(BTreeSet::new());
        let restore = |fs: &FaultFs| Restore::new().builder(on(fs)).from_reader(&bytes[..], "copy").map(drop);
        let ios = at_each_io(restore, power, |fs, n| match on(fs).create(false).open("copy") {
            Ok(copy) => {
                assert_eq!(contents(&copy), right, "I/O {n}");
                assert!(copy.check(&mut |_, _| {}).expect("checks").is_clean(), "I/O {n}");
                whole.fetch_add(1, SeqCst);
            }
            Err(Error::RestoreUnfinished { .. }) => {
                refusals.lock().expect("locks").insert("unfinished");
                let again = Restore::new().builder(on(fs)).from_reader(&bytes[..], "copy");
                let again = again.unwrap_or_else(|error| panic!("I/O {n}: {error:?}"));
                removed.fetch_add(u64::from(again.removed_unfinished), SeqCst);
                let copy = on(fs).create(false).open("copy").expect("opens");
                assert_eq!(contents(&copy), right, "I/O {n}");
                assert!(copy.check(&mut |_, _| {}).expect("checks").is_clean(), "I/O {n}");
            }
            Err(Error::NotFound { .. }) => {
                refusals.lock().expect("locks").insert("missing");
            }
            Err(other) => panic!("I/O {n}: {other:?}"),
        });
        assert!(ios > 20 && whole.load(SeqCst) > 0, "{ios} I/Os, {whole:?} whole");
        assert!(refusals.lock().expect("locks").contains("unfinished"));
        // A failed restore removes its files itself.
        assert!(!power || removed.load(SeqCst) > 10, "{removed:?}");
    }
}

/// Returns a file system with a restore into `copy` that was killed after its store was created.
fn killed_restore(bytes: &[u8]) -> FaultFs {
    let fs = FaultFs::new();
    let mut killed = None;
    let kill = |_: &azekura::BackupProgress| {
        killed.get_or_insert_with(|| fs.kill());
    };
    Restore::new().builder(on(&fs)).progress(kill).from_reader(bytes, "copy").expect("restores");
    killed.expect("a block was restored")
}

/// A restore stops at each I/O while it removes the files of a killed one. The next restore continues.
#[test]
fn the_removal_of_an_unfinished_restore_can_stop_at_any_io() {
    let db = sample();
    let (bytes, right) = (bytes_of(&db), contents(&db));
    for n in 1.. {
        let fs = killed_restore(&bytes);
        let restore = |fs: &FaultFs| Restore::new().builder(on(fs)).from_reader(&bytes[..], "copy");
        fs.cut_power_at(n);
        let is_done = restore(&fs).is_ok_and(|report| report.removed_unfinished);
        for after in [fs.crash(n), fs.crash_losing_all(), fs.crash_keeping_all()] {
            if !is_done {
                match on(&after).create(false).open("copy") {
                    Ok(copy) => assert_eq!(contents(&copy), right, "I/O {n}"),
                    Err(Error::RestoreUnfinished { .. }) => drop(restore(&after).expect("restores")),
                    Err(other) => panic!("I/O {n}: {other:?}"),
                }
            }
            assert_eq!(contents(&on(&after).create(false).open("copy").expect("opens")), right, "I/O {n}");
        }
        if is_done {
            assert!(n > 20, "{n} I/Os");
            break;
        }
    }
}

#[test]
fn files_that_are_not_of_the_unfinished_restore_are_not_removed() {
    let bytes = bytes_of(&sample());
    let restore = |fs: &FaultFs| Restore::new().builder(on(fs)).from_reader(&bytes[..], "copy");
    for foreign in
        ["copy/notes.txt", "copy/pages.old", "copy/wal/00/notes", "copy/wal/notes/0000000000000001"]
    {
        let fs = killed_restore(&bytes);
        let path = Path::new(foreign);
        fs.create_dir_all(path.parent().expect("has a parent")).expect("creates");
        fs.open(path, azekura_io::OpenOptions::new().create(true))
            .expect("creates")
            .write_at(0, b"mine")
            .expect("writes");
        let before = fs.files();
        let error = restore(&fs).expect_err("has a foreign file");
        assert!(matches!(&error, Error::Invalid(reason) if reason.contains(foreign)), "{error:?}");
        assert_eq!(fs.files(), before, "nothing is removed");
        fs.remove_file(path).expect("removes");
        assert!(restore(&fs).map(|report| report.removed_unfinished).expect("restores"));
    }
    // Another store that was copied into the directory.
    let fs = killed_restore(&bytes);
    drop(on(&fs).open("other").expect("creates"));
    fs.rename(Path::new("other/CONTROL"), Path::new("copy/CONTROL")).expect("renames");
    let before = fs.files();
    let error = restore(&fs).expect_err("is another store");
    assert!(matches!(&error, Error::Invalid(reason) if reason.contains("copy/CONTROL")), "{error:?}");
    assert_eq!(fs.files(), before, "nothing is removed");
    // An earlier version left no id.
    let fs = killed_restore(&bytes);
    fs.open(Path::new("copy/RESTORING"), azekura_io::OpenOptions::new())
        .expect("opens")
        .set_len(0)
        .expect("cuts");
    let before = fs.files();
    assert!(matches!(restore(&fs), Err(Error::RestoreUnfinished { .. })));
    assert_eq!(fs.files(), before, "nothing is removed");
}

#[test]
fn a_backup_that_stops_at_any_io_is_whole_or_refused() {
    let db = sample();
    for power in [true, false] {
        let (whole, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        let backup = |fs: &FaultFs| db.backup().file_system(Arc::new(fs.clone())).to_directory("b").map(drop);
        let ios = at_each_io(backup, power, |fs, n| {
            let restore = || Restore::new().file_system(Arc::new(fs.clone()));
            match restore().verify_directory("b") {
                Ok(report) => {
                    assert_eq!(report.rows, 303, "I/O {n}");
                    whole.fetch_add(1, SeqCst);
                }
                Err(Error::NotABackup { .. }) => {
                    refused.fetch_add(1, SeqCst);
                    // The next backup to the same directory succeeds.
                    backup(fs).expect("backs up");
                    restore().verify_directory("b").expect("is whole");
                }
                Err(other) => panic!("I/O {n}: {other:?}"),
            }
        });
        assert!(
            ios >= 5 && whole.load(SeqCst) > 0 && refused.load(SeqCst) > 0,
            "{ios} {whole:?} {refused:?}"
        );
    }
}

#[test]
fn settings_that_no_store_can_have_are_refused_before_a_directory_is_made() {
    let (fs, bytes) = (FaultFs::new(), bytes_of(&sample()));
    let restore = |builder: Builder| Restore::new().builder(builder);
    for restore in [
        restore(on(&fs).cache_bytes(4096)),
        restore(on(&fs).redo_threads(0)),
        restore(on(&fs)).page_size(5000),
        restore(on(&fs)).page_size(65536).builder(on(&fs).cache_bytes(1 << 20)),
    ] {
        let refused = restore.from_reader(&bytes[..], "copy");
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    let db = on(&fs).cache_bytes(24 * 4096).open("db").expect("opens");
    let refused = db.compaction().page_size(65536).into_directory("copy");
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert!(!fs.exists(Path::new("copy")));
}
