//! Tests of the log archive. A restore to any time has exactly the commits up to that time. Kills, gaps and
//! damage give the right rows, or a typed error that names the file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use azekura::{Builder, CommitTime, Database, Error, ErrorKind, Restore, TableDefinition, Transaction};
use azekura_io::{FailKind, FaultFs, Fs, OpenOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{on, small};

type Rows = BTreeMap<u64, Vec<u8>>;
/// The rows of each table by the table's name, including tables without rows.
type Model = BTreeMap<String, Rows>;

fn archived(fs: &FaultFs) -> Builder {
    on(fs).archive("archive")
}

fn table(n: u64) -> TableDefinition<u64, [u8]> {
    TableDefinition::named(format!("t{n}"))
}

fn model_of(db: &Database) -> Model {
    let snapshot = db.snapshot().expect("opens");
    let rows = |name: &str| {
        let table = snapshot.table(&TableDefinition::<u64, [u8]>::named(name))?;
        table.iter().collect::<Result<Rows, Error>>()
    };
    let names = snapshot.table_names().expect("reads the catalog");
    names.iter().map(|name| (name.clone(), rows(name).expect("reads"))).collect()
}

/// Makes the changes of one transaction, in the store and in the model.
fn change(random: &mut StdRng, tx: &Transaction, model: &mut Model) -> Result<(), Error> {
    let count = random.random_range(1..6);
    for _ in 0..count {
        let definition = table(random.random_range(0..4));
        let name = definition.name().to_owned();
        let key = random.random_range(0..40);
        match random.random_range(0..20) {
            0 => {
                tx.drop_table(&name)?;
                model.remove(&name);
            }
            8 => {
                let to = table(random.random_range(0..4));
                match tx.rename_table(&name, &to) {
                    Ok(is_renamed) => {
                        assert_eq!(is_renamed, model.contains_key(&name));
                        model.remove(&name).into_iter().for_each(|rows| {
                            model.insert(to.name().to_owned(), rows);
                        });
                    }
                    Err(Error::TableExists { .. }) => assert!(model.contains_key(to.name())),
                    Err(error) => return Err(error),
                }
            }
            1 => {
                // A bulk load, if the table has no rows.
                let from = random.random_range(0..1000);
                let rows: Rows = (0..30).map(|n| (from + n, vec![n as u8; 20 + n as usize * 40])).collect();
                match tx.table(&definition)?.bulk_load(rows.iter().map(|(k, v)| (*k, v.clone()))) {
                    Ok(_) => drop(model.insert(name, rows)),
                    Err(Error::NotEmpty { .. }) => assert!(!model[&name].is_empty()),
                    Err(error) => return Err(error),
                }
            }
            2 | 3 => {
                // Changes that are rolled back.
                let savepoint = tx.savepoint()?;
                change(random, tx, &mut model.clone())?;
                tx.rollback_to(savepoint)?;
            }
            4..8 => {
                tx.table(&definition)?.remove(&key)?;
                if let Some(rows) = model.get_mut(&name) {
                    rows.remove(&key);
                }
            }
            kind => {
                let len =
                    if kind == 19 { random.random_range(5_000..40_000) } else { 30 + (kind % 2) as usize };
                let mut value = vec![0; len];
                random.fill(&mut value[..]);
                tx.table(&definition)?.insert(&key, &value[..])?;
                model.entry(name).or_default().insert(key, value);
            }
        }
    }
    Ok(())
}

fn restore(fs: &FaultFs, backup: &str, to: Option<CommitTime>, copy: &str) -> Result<Model, Error> {
    let mut restore = Restore::new().file_system(Arc::new(fs.clone())).builder(on(fs)).archive("archive");
    if let Some(to) = to {
        restore = restore.to_time(to);
    }
    let report = restore.verify(true).from_directory(backup, copy)?;
    assert!(to.is_none() || report.commit_time == to);
    Ok(model_of(&on(fs).open(copy)?))
}

/// A commit time, and the number of transactions that had committed by then.
#[derive(Clone, Copy)]
struct Point {
    time: CommitTime,
    commits: usize,
}

/// Commits at random, with kills, clean closes, backups, and recorded points in time. Returns the disk, the
/// states after each commit, the points, and the backups with the number of points before each.
fn commit_at_random(
    random: &mut StdRng,
    transactions: usize,
    seed: u64,
) -> (FaultFs, Vec<Model>, Vec<Point>, Vec<(String, usize)>) {
    let mut fs = FaultFs::new();
    let mut db = archived(&fs).open("db").expect("opens");
    let mut states = vec![Model::new()];
    let (mut points, mut backups) = (Vec::new(), Vec::new());
    for n in 0..transactions {
        let mut next = states[states.len() - 1].clone();
        let tx = db.begin().expect("begins");
        change(random, &tx, &mut next).expect("changes");
        if random.random_ratio(1, 5) {
            tx.abort().expect("rolls back");
        } else {
            tx.commit().expect("commits");
            states.push(next);
        }
        match random.random_range(0..24) {
            0..6 => {
                let time = db.archive_log().expect("archives");
                points.push(Point { time, commits: states.len() - 1 });
            }
            6 => {
                let name = format!("b{n}");
                db.backup().file_system(Arc::new(fs.clone())).to_directory(&name).expect("backs up");
                backups.push((name, points.len()));
            }
            7 => {
                // A loser: a transaction that is open when the process is killed.
                let tx = db.begin().expect("begins");
                change(random, &tx, &mut states[states.len() - 1].clone()).expect("changes");
                if random.random_ratio(1, 2) {
                    db.archive_log().expect("archives");
                }
                fs = fs.kill();
                drop((tx, db));
                db = archived(&fs).open("db").expect("restarts");
            }
            8 => {
                db.close().expect("closes");
                drop(db);
                db = archived(&fs).open("db").expect("opens");
            }
            9 => drop(db.checkpoint()),
            _ => {}
        }
        let is_right = n % 20 != 0 || model_of(&db) == states[states.len() - 1];
        assert!(is_right, "seed {seed}: the model is wrong after {n}");
    }
    points.push(Point { time: db.archive_log().expect("archives"), commits: states.len() - 1 });
    (fs, states, points, backups)
}

/// Restores backups to random times. At the time of a point, the store must have exactly the point's state;
/// between two points, a state between theirs. Returns the number of restores.
fn restores_equal_the_model(seed: u64, transactions: usize, restores: usize) -> usize {
    let mut random = StdRng::seed_from_u64(seed);
    let (fs, states, points, backups) = commit_at_random(&mut random, transactions, seed);
    let usable: Vec<_> = backups.iter().filter(|(_, from)| *from + 1 < points.len()).collect();
    if usable.is_empty() {
        return 0;
    }
    for n in 0..restores {
        let (backup, from) = usable[random.random_range(0..usable.len())];
        let at = random.random_range(*from..points.len() - 1);
        let (point, next) = (points[at], points[at + 1]);
        let micros = random.random_range(point.time.as_micros()..=next.time.as_micros());
        let time = if n % 2 == 0 { point.time } else { CommitTime::from_micros(micros) };
        let found = restore(&fs, backup, Some(time), &format!("copy{n}")).expect("restores");
        let possible = match time {
            time if time == point.time => point.commits..=point.commits,
            time if time == next.time => next.commits..=next.commits,
            _ => point.commits..=next.commits,
        };
        assert!(states[possible].contains(&found), "seed {seed}: {backup} to {time}");
    }
    let (backup, _) = &backups[backups.len() - 1];
    assert!(restore(&fs, backup, None, "latest").ok() == states.last().cloned(), "seed {seed}: latest");
    restores + 1
}

#[test]
fn restores_to_random_times_equal_the_model() {
    let wanted: usize = std::env::var("AZEKURA_RESTORES").map_or(54, |n| n.parse().expect("a number"));
    let mut done = 0;
    for seed in 0.. {
        done += restores_equal_the_model(seed, 150, 8);
        if done >= wanted {
            return println!("{done} restores of {} stores", seed + 1);
        }
    }
}

#[test]
fn a_restore_to_a_time_has_the_commits_of_concurrent_writers_up_to_it() {
    const WRITERS: u64 = 4;
    const COMMITS: u64 = 300;
    /// Number of commits after which a writer waits for one more point in time.
    const PER_POINT: u64 = 50;
    let pairs: [TableDefinition<(u64, u64), u64>; 2] =
        [TableDefinition::new("first"), TableDefinition::new("second")];
    let fs = FaultFs::new();
    let db = archived(&fs).background(true).wal_streams(2).log_buffers(4).open("db").expect("opens");
    db.transact(|tx| tx.table(&pairs[0])?.insert(&(9, 9), &0)).expect("writes");
    let done = AtomicBool::new(false);
    let acknowledged = [const { std::sync::atomic::AtomicU64::new(0) }; WRITERS as usize];
    let taken = std::sync::atomic::AtomicU64::new(0);
    let (mut points, mut backups) = (Vec::new(), Vec::new());
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (db, pairs, acknowledged, taken) = (&db, &pairs, &acknowledged, &taken);
            scope.spawn(move || {
                for n in 0..COMMITS {
                    // With a limit, so that a failed assertion of the other thread ends the test.
                    (0..60_000)
                        .take_while(|_| taken.load(SeqCst) < n / PER_POINT)
                        .for_each(|_| thread::sleep(std::time::Duration::from_millis(2)));
                    let mut write = |tx: &Transaction| {
                        // All writers read and write one row, so that their transactions form a chain of
                        // dependencies.
                        let chain = tx.table(&pairs[0])?.get_for_update(&(9, 9))?.unwrap_or(0);
                        tx.table(&pairs[0])?.insert(&(9, 9), &(chain + 1))?;
                        for table in pairs {
                            tx.table(table)?.insert(&(writer, n), &chain)?;
                        }
                        Ok(())
                    };
                    db.transact(&mut write).expect("writes");
                    acknowledged[writer as usize].store(n + 1, SeqCst);
                }
            });
        }
        let counts = || acknowledged.each_ref().map(|n| n.load(SeqCst));
        while counts().iter().any(|n| *n < COMMITS) {
            let before = counts();
            let time = db.archive_log().expect("archives");
            points.push((before, time, counts(), backups.len()));
            taken.fetch_add(1, SeqCst);
            if backups.len() < 3 {
                let name = format!("b{}", backups.len());
                db.backup().file_system(Arc::new(fs.clone())).to_directory(&name).expect("backs up");
                backups.push(name);
            }
        }
        done.store(true, SeqCst);
    });
    assert!(done.load(SeqCst) && points.len() > 3);
    for (nth, (before, time, after, backups)) in points.iter().enumerate().step_by(points.len() / 8 + 1) {
        let Some(backup) = backups.checked_sub(1) else { continue };
        let (from, copy) = (format!("b{backup}"), format!("copy{nth}"));
        let restore = Restore::new().file_system(Arc::new(fs.clone())).builder(on(&fs)).archive("archive");
        restore.to_time(*time).from_directory(from, &copy).expect("restores");
        let copy = on(&fs).open(&copy).expect("opens");
        let [first, second] = pairs.each_ref().map(|table| {
            copy.read(|s| s.table(table)?.iter().collect::<Result<BTreeMap<_, _>, _>>()).expect("reads")
        });
        let total = first[&(9, 9)];
        assert_eq!(first.len() as u64, total + 1, "each link of the chain has its rows");
        assert!(first.iter().filter(|(key, _)| key.0 < WRITERS).eq(&second), "half of a transaction");
        for writer in 0..WRITERS {
            let commits = first.keys().filter(|key| key.0 == writer).count() as u64;
            let (least, most) = (before[writer as usize], after[writer as usize] + 1);
            assert!((least..=most).contains(&commits), "writer {writer}: {commits} of {least}..={most}");
        }
    }
}

/// Returns a store with an archive, a backup of it, and later commits.
fn archive_with_backup() -> (FaultFs, Model, CommitTime) {
    let fs = FaultFs::new();
    let db = archived(&fs).open("db").expect("opens");
    let put =
        |n: u64| db.transact(|tx| tx.table(&table(n % 2))?.insert(&n, &vec![n as u8; 50 * n as usize][..]));
    put(1).expect("writes");
    db.backup().file_system(Arc::new(fs.clone())).to_directory("b").expect("backs up");
    let early = db.archive_log().expect("archives");
    (2..20).for_each(|n| put(n).expect("writes"));
    put(300).expect("writes");
    db.archive_log().expect("archives");
    let model = model_of(&db);
    db.close().expect("closes");
    (fs, model, early)
}

fn archive_files(fs: &FaultFs) -> Vec<std::path::PathBuf> {
    let mut files = fs.files();
    files.retain(|path| path.to_string_lossy().contains("log-"));
    files.sort();
    files
}

#[test]
fn a_damaged_archive_is_named_or_restores_the_right_rows() {
    let (fs, model, early) = archive_with_backup();
    let files = archive_files(&fs);
    let [file] = &files[..] else { panic!("one file: {files:?}") };
    let len = fs.contents(file).expect("is there").len() as u64;
    assert_eq!(restore(&fs, "b", None, "whole").expect("restores"), model);
    let (mut named, mut right) = (0, 0);
    for (nth, at) in (0..len).step_by(len as usize / 60).chain(0..52).enumerate() {
        fs.flip_bit(file, at, (at % 8) as u32).expect("flips");
        // Damage after the target time is not read.
        let to = (nth % 4 == 0).then_some(early);
        match restore(&fs, "b", to, &format!("copy{nth}")) {
            Err(error @ (Error::Corrupt { .. } | Error::UnsupportedFormat { .. })) => {
                assert!(error.to_string().contains("log-"), "{error}");
                named += 1;
            }
            Ok(found) => {
                assert!(to.is_some() && found.values().map(BTreeMap::len).sum::<usize>() == 1, "byte {at}");
                right += 1;
            }
            Err(other) => panic!("byte {at}: {other:?}"),
        }
        fs.flip_bit(file, at, (at % 8) as u32).expect("flips back");
    }
    assert!(named > 80 && right > 5, "{named} named, {right} right");
}

fn is_about(error: &Error, file: &Path) -> bool {
    matches!(error, Error::Corrupt { path, .. } if path.file_name() == file.file_name())
}

/// A file that lost its content, or has that of another file, is not a part of the log without commits.
#[test]
fn an_archive_file_without_its_header_is_named() {
    let (fs, _, _) = archive_with_backup();
    let put = |builder: Builder, n: u64| {
        let db = builder.open("db").expect("opens");
        db.transact(|tx| tx.table(&table(0))?.insert(&n, &[7][..])).expect("writes");
        db.close().expect("closes");
    };
    put(on(&fs), 777);
    put(archived(&fs), 778); // begins a second file
    let files = archive_files(&fs);
    let [first, second] = &files[..] else { panic!("two files: {files:?}") };
    let open = |path| fs.open(path, OpenOptions::new()).expect("opens");
    let (bytes, other) = (fs.contents(first).expect("is there"), fs.contents(second).expect("is there"));
    let mut headless = bytes.clone();
    headless[..52].fill(0);
    for (nth, content) in [&[][..], &bytes[..40], &headless, &other].into_iter().enumerate() {
        open(first).set_len(0).expect("truncates");
        open(first).write_at(0, content).expect("writes");
        let error = restore(&fs, "b", None, &format!("copy{nth}")).expect_err("is damaged");
        assert!(is_about(&error, first), "content {nth}: {error}");
    }
    // The newest file: it is not removed, because it has blocks.
    let mut headless = other;
    headless[..52].fill(0);
    open(second).write_at(0, &headless).expect("writes");
    let error = archived(&fs).open("db").expect_err("is damaged");
    assert!(is_about(&error, second), "{error}");
    assert_eq!(fs.contents(second), Some(headless));
}

/// A backup writes nothing to the log, so the archive may end before the time of the backup.
#[test]
fn the_time_of_a_restored_store_is_not_before_its_backup() {
    let fs = FaultFs::new();
    let db = archived(&fs).open("db").expect("opens");
    db.transact(|tx| tx.table(&table(0))?.insert(&1, &[1][..])).expect("writes");
    let before = db.archive_log().expect("archives");
    db.backup().file_system(Arc::new(fs.clone())).to_directory("b").expect("backs up");
    let restore = |to: Option<CommitTime>, copy: &str| {
        let restore = Restore::new().file_system(Arc::new(fs.clone())).builder(on(&fs)).archive("archive");
        let restore = if let Some(to) = to { restore.to_time(to) } else { restore };
        restore.from_directory("b", copy).expect("restores").commit_time.expect("has a time")
    };
    let time = restore(None, "copy");
    assert!(time > before, "{time}");
    assert_eq!(restore(Some(time), "again"), time);
}

#[test]
fn a_restore_has_the_rows_of_renamed_tables() {
    let fs = FaultFs::new();
    let db = archived(&fs).open("db").expect("opens");
    let put = |n: u64, key: u64| db.transact(|tx| tx.table(&table(n))?.insert(&key, &[n as u8][..]));
    (0..3).try_for_each(|n| put(n, n)).expect("writes");
    db.backup().file_system(Arc::new(fs.clone())).to_directory("b").expect("backs up");
    db.transact(|tx| tx.rename_table(table(0), table(7))).expect("renames");
    put(7, 70).expect("writes to the renamed table");
    db.transact(|tx| {
        // Two tables exchange their names, and a third one is replaced by a new one.
        tx.rename_table(table(1), "between")?;
        tx.rename_table(table(7), table(1))?;
        tx.rename_table("between", table(7))?;
        tx.drop_table(table(2))?;
        tx.table(&table(2))?.insert(&9, &[9][..])?;
        let savepoint = tx.savepoint()?;
        tx.rename_table(table(2), table(8))?;
        tx.rollback_to(savepoint)
    })
    .expect("renames");
    let time = db.archive_log().expect("archives");
    let restored = restore(&fs, "b", Some(time), "copy").expect("restores");
    assert_eq!(restored, model_of(&db));
    assert_eq!(restored["t1"], Rows::from([(0, vec![0]), (70, vec![7])]));
    assert_eq!(restored["t7"], Rows::from([(1, vec![1])]));
}

#[test]
fn times_and_archives_that_do_not_fit_are_refused() {
    let (fs, _, early) = archive_with_backup();
    let refusal = |to: Option<CommitTime>, copy: &str| restore(&fs, "b", to, copy).expect_err("is refused");
    let late = CommitTime::from_micros(u64::MAX);
    let error = refusal(Some(late), "late");
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("ends at"), "{error}");
    let error = refusal(Some(CommitTime::from_micros(1)), "soon");
    assert!(error.to_string().contains("an earlier backup"), "{error}");
    assert!(!fs.exists_in("soon"), "a refused restore made a directory");
    let error = Restore::new()
        .file_system(Arc::new(fs.clone()))
        .builder(on(&fs))
        .to_time(early)
        .from_directory("b", "none")
        .expect_err("has no archive");
    assert!(error.to_string().contains("needs the log archive"), "{error}");
    // The archive of another store, used for the store and for a restore.
    let other = on(&fs).archive("archive").open("other").expect_err("is another store's");
    assert!(other.to_string().contains("archive of another store"), "{other}");
    let other = on(&fs).archive("other-archive").open("other").expect("opens");
    other.backup().file_system(Arc::new(fs.clone())).to_directory("other-b").expect("backs up");
    let error = restore(&fs, "other-b", None, "wrong").expect_err("is another store's");
    assert!(matches!(error, Error::NotABackup { .. }), "{error:?}");
    assert!(error.to_string().contains("archive is not the archive of the backup"), "{error}");
    // A backup of a store without an archive.
    small()
        .open_in_memory()
        .expect("opens")
        .backup()
        .file_system(Arc::new(fs.clone()))
        .to_directory("plain")
        .expect("backs up");
    let error = restore(&fs, "plain", None, "plain-copy").expect_err("has no commit time");
    assert!(error.to_string().contains("without an archive"), "{error}");
    let error = small().open_in_memory().expect("opens").archive_log().expect_err("has none");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn a_run_without_the_archive_leaves_a_gap_that_a_restore_names() {
    for crash in [false, true] {
        let (mut fs, _, early) = archive_with_backup();
        let db = on(&fs).open("db").expect("opens");
        db.transact(|tx| tx.table(&table(0))?.insert(&777, &[7][..])).expect("writes");
        db.checkpoint().expect("moves the log's start");
        if crash {
            fs = fs.kill();
        } else {
            db.close().expect("closes");
        }
        drop(db);
        let db = archived(&fs).open("db").expect("opens");
        db.transact(|tx| tx.table(&table(0))?.insert(&778, &[8][..])).expect("writes");
        let late = db.archive_log().expect("archives");
        assert!(restore(&fs, "b", Some(early), "early").is_ok());
        match restore(&fs, "b", Some(late), "late") {
            Err(Error::Corrupt { reason, .. }) => {
                assert!(reason.contains("is missing in the archive"), "{reason}")
            }
            other => panic!("crash {crash}: {other:?}"),
        }
        db.backup().file_system(Arc::new(fs.clone())).to_directory("b2").expect("backs up");
        assert_eq!(restore(&fs, "b2", None, "new").expect("restores"), model_of(&db));
    }
}

/// Runs a store with an archive twice; the only errors are those of the disk.
fn life(fs: &FaultFs) -> Result<(), Error> {
    for run in 0..2 {
        let db = archived(fs).open("db")?;
        for n in 0..6_u64 {
            let (key, value) = (run * 100 + n, vec![n as u8; 2_000 * n as usize]);
            db.transact(|tx| tx.table(&table(n % 2))?.insert(&key, &value[..]))?;
            if n == 3 {
                db.archive_log()?;
            }
        }
        db.close()?;
    }
    Ok(())
}

#[test]
fn an_archive_is_complete_after_a_crash_at_any_io() {
    // A first run, with a backup from which the restores begin.
    let prepared = || {
        let fs = FaultFs::new();
        let db = archived(&fs).open("db").expect("opens");
        db.backup().file_system(Arc::new(fs.clone())).to_directory("b").expect("backs up");
        db.close().expect("closes");
        fs
    };
    let mut crashes = 0;
    for power in [true, false] {
        for n in (1..).step_by(3) {
            let fs = prepared();
            let at = fs.io_count() + n;
            if power {
                fs.cut_power_at(n);
            } else {
                fs.fail_at(n, FailKind::Io);
            }
            let lived = life(&fs);
            let is_done = fs.io_count() < at;
            assert!(!is_done || lived.is_ok(), "{lived:?}");
            let fs = if power {
                fs.crash(n)
            } else {
                fs.heal();
                fs.kill()
            };
            let db = archived(&fs).open("db").unwrap_or_else(|e| panic!("I/O {n}: {e:?}"));
            db.transact(|tx| tx.table(&table(1))?.insert(&5000, &[1][..])).expect("writes");
            db.archive_log().expect("archives");
            let found = restore(&fs, "b", None, "copy").unwrap_or_else(|e| panic!("I/O {n}: {e:?}"));
            assert!(found == model_of(&db), "power {power}, I/O {n}");
            crashes += 1;
            if is_done {
                break;
            }
        }
    }
    assert!(crashes > 40, "{crashes}");
}

trait Exists {
    fn exists_in(&self, path: &str) -> bool;
}

impl Exists for FaultFs {
    fn exists_in(&self, path: &str) -> bool {
        azekura::Fs::exists(self, Path::new(path))
    }
}

#[test]
fn a_restore_with_the_settings_of_the_store_does_not_use_their_archive() {
    let fs = FaultFs::new();
    let db = archived(&fs).open("db").expect("opens");
    db.transact(|tx| tx.table(&table(1))?.insert(&1, b"one")).expect("writes");
    let mut bytes = Vec::new();
    db.backup().to_writer(&mut bytes).expect("backs up");
    Restore::new().builder(archived(&fs)).from_reader(&bytes[..], "new").expect("restores");
    assert_eq!(model_of(&on(&fs).open("new").expect("opens")), model_of(&db));
}
