//! Tests of stores that were replaced by an older copy of their directory: backups and archives of the
//! replaced store are refused, and those from before the copy are used. Tests of archives that lost a part.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura::{BackupReport, Builder, Database, Error, ErrorKind, Restore, TableDefinition};
use azekura_io::{FaultFs, Fs, OpenOptions};

use super::{contents, on};

const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");

fn put(db: &Database, from: u64, byte: u8) {
    db.transact(|tx| {
        let rows = tx.table(&ROWS)?;
        (from..from + 200).try_for_each(|key| rows.insert(&key, &[byte; 100]))
    })
    .expect("writes");
}

fn backup(db: &Database, fs: &FaultFs, since: Option<&str>, to: &str) -> Result<BackupReport, Error> {
    let backup = db.backup().file_system(Arc::new(fs.clone()));
    let backup = if let Some(base) = since { backup.since(base) } else { backup };
    backup.to_directory(to)
}

fn restore(fs: &FaultFs, bases: &[&str], backup: &str, copy: &str) -> Database {
    let restore = Restore::new().file_system(Arc::new(fs.clone())).builder(on(fs)).verify(true);
    let restore = bases.iter().fold(restore, |restore, base| restore.base(*base));
    restore.from_directory(backup, copy).expect("restores");
    on(fs).open(copy).expect("opens")
}

/// Returns the files below `dir`.
fn files_below(fs: &FaultFs, dir: &str) -> Vec<PathBuf> {
    let root = Path::new("/").join(dir);
    fs.files().into_iter().filter(|path| path.starts_with(dir) || path.starts_with(&root)).collect()
}

/// Copies the files below `dir` to another disk.
fn copy(from: &FaultFs, to: &FaultFs, dir: &str) {
    to.create_dir_all(Path::new(dir)).expect("creates");
    for path in files_below(from, dir) {
        let file = to.open(&path, OpenOptions::new().create(true)).expect("opens");
        file.set_len(0).expect("truncates");
        file.write_at(0, &from.contents(&path).expect("is there")).expect("writes");
    }
}

/// The moment of a copy of the directory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Copied {
    Closed,
    /// Between two runs: the store was killed before, and recovered by an opening that changed nothing.
    Recovered,
    Running,
}

/// Returns a store that changes after a copy, and the copy. Both have `archive` and the backup `before`.
fn diverged(open: &dyn Fn(&FaultFs) -> Builder, copied: Copied) -> (FaultFs, Database, FaultFs) {
    let mut fs = FaultFs::new();
    let mut db = open(&fs).open("db").expect("opens");
    put(&db, 0, 1);
    backup(&db, &fs, None, "before").expect("backs up");
    put(&db, 100, 2);
    match copied {
        Copied::Closed => db.close().expect("closes"),
        Copied::Recovered => {
            fs = fs.kill();
            open(&fs).open("db").expect("recovers").close().expect("closes");
        }
        Copied::Running => {
            let older = fs.kill();
            put(&db, 200, 3);
            return (fs, db, older);
        }
    }
    drop(db);
    let older = fs.kill();
    db = open(&fs).open("db").expect("opens");
    put(&db, 200, 3);
    (fs, db, older)
}

/// Opens, changes and closes the store this many times.
fn run_without_archive(fs: &FaultFs, runs: u64) {
    for run in 0..runs {
        let db = on(fs).open("db").expect("opens");
        put(&db, 5_000 + run * 100, 9);
        db.close().expect("closes");
    }
}

/// Ends a run of the store: with or without changes, by a close or a kill. Returns the disk.
fn ended(run: u64, fs: &FaultFs, db: Database) -> FaultFs {
    if run % 4 < 2 {
        put(&db, 100 * run, 2);
    }
    if matches!(run % 4, 1 | 2) {
        db.close().expect("closes");
    }
    fs.kill()
}

#[test]
fn an_incremental_backup_refuses_a_base_of_a_replaced_store() {
    for copied in [Copied::Closed, Copied::Recovered, Copied::Running] {
        for runs in [0, 1, 3] {
            let (newer, db, older) = diverged(&on, copied);
            backup(&db, &newer, None, "base").expect("backs up");
            backup(&db, &newer, Some("before"), "more").expect("backs up");
            copy(&newer, &older, "base");
            copy(&newer, &older, "more");
            run_without_archive(&older, runs);
            let db = on(&older).open("db").expect("opens");
            put(&db, 300, 4);
            for base in ["base", "more"] {
                let error = backup(&db, &older, Some(base), "wrong").expect_err("is refused");
                let is_right = matches!(&error, Error::OtherHistory { path, .. } if path.starts_with(base));
                assert!(is_right && error.kind() == ErrorKind::Invalid, "{copied:?}, {runs}: {error:?}");
                assert!(error.to_string().contains("make a full backup"), "{error}");
            }
            backup(&db, &older, Some("before"), "right").expect("backs up");
            assert_eq!(contents(&restore(&older, &["before"], "right", "copy")), contents(&db));
            backup(&db, &older, None, "full").expect("backs up");
            put(&db, 400, 5);
            backup(&db, &older, Some("full"), "next").expect("backs up");
            assert_eq!(contents(&restore(&older, &["full"], "next", "copy2")), contents(&db));
        }
    }
}

#[test]
fn an_incremental_backup_accepts_a_base_from_before_many_openings() {
    let mut fs = FaultFs::new();
    let mut db = on(&fs).open("db").expect("opens");
    backup(&db, &fs, None, "empty").expect("backs up");
    put(&db, 0, 1);
    backup(&db, &fs, None, "first").expect("backs up");
    for run in 0..12 {
        fs = ended(run, &fs, db);
        db = on(&fs).open("db").expect("opens");
        for (base, to) in [("empty", format!("a{run}")), ("first", format!("b{run}"))] {
            backup(&db, &fs, Some(base), &to).unwrap_or_else(|error| panic!("run {run}: {error}"));
            let copy = restore(&fs, &[base], &to, &format!("copy-{to}"));
            assert_eq!(contents(&copy), contents(&db), "{to}");
        }
        let to = format!("c{run}");
        let base = if run == 0 { "first".to_owned() } else { format!("c{}", run - 1) };
        backup(&db, &fs, Some(&base), &to).unwrap_or_else(|error| panic!("run {run}: {error}"));
    }
}

/// The base has a commit that the older copy lacks. It is later than the first change of a transaction that
/// was open at the time of the copy and of the base.
#[test]
fn a_base_of_a_replaced_store_is_refused_beside_a_long_transaction() {
    let fs = FaultFs::new();
    let db = on(&fs).open("db").expect("opens");
    put(&db, 0, 1);
    let tx = db.begin().expect("begins");
    tx.table(&ROWS).and_then(|rows| rows.insert(&5_000, &[5_u8; 10])).expect("writes");
    put(&db, 1_000, 2);
    let older = fs.kill();
    put(&db, 0, 3);
    backup(&db, &fs, None, "base").expect("backs up");
    copy(&fs, &older, "base");
    let replaced = on(&older).open("db").expect("recovers");
    put(&replaced, 3_000, 4);
    let error = backup(&replaced, &older, Some("base"), "wrong").expect_err("is refused");
    assert!(matches!(error, Error::OtherHistory { .. }), "{error:?}");
    tx.commit().expect("commits");
    backup(&db, &fs, Some("base"), "right").expect("backs up");
    assert_eq!(contents(&restore(&fs, &["base"], "right", "copy")), contents(&db));
}

/// A read-only opening undoes an open transaction in memory. The next recovery undoes it again, and in the
/// store of which the opened one is a copy, the transaction commits.
#[test]
fn a_backup_of_a_killed_store_that_is_opened_read_only_is_a_base() {
    let fs = FaultFs::new();
    let db = on(&fs).open("db").expect("opens");
    put(&db, 0, 1);
    backup(&db, &fs, None, "before").expect("backs up");
    let tx = db.begin().expect("begins");
    let remove = |key: u64| tx.table(&ROWS).and_then(|rows| rows.delete(&key));
    assert!((0..100).all(|key| remove(key).expect("removes")));
    put(&db, 1_000, 2); // makes the records of the open transaction durable, too
    let killed = fs.kill();
    let read_only = on(&killed).read_only(true).open("db").expect("recovers in memory");
    assert_eq!(read_only.stats().recovery.losers, 1);
    backup(&read_only, &killed, None, "full").expect("backs up");
    backup(&read_only, &killed, Some("before"), "more").expect("backs up");
    drop(read_only);
    copy(&killed, &fs, "full");
    copy(&killed, &fs, "more");
    tx.commit().expect("commits");
    let recovered = on(&killed).open("db").expect("recovers");
    put(&recovered, 2_000, 3);
    for (db, fs) in [(&recovered, &killed), (&db, &fs)] {
        for (base, bases) in [("full", &["full"][..]), ("more", &["more", "before"][..])] {
            let (to, copy) = (format!("since-{base}"), format!("copy-{base}"));
            backup(db, fs, Some(base), &to).unwrap_or_else(|error| panic!("{base}: {error}"));
            assert_eq!(contents(&restore(fs, bases, &to, &copy)), contents(db), "{base}");
        }
    }
}

#[test]
fn a_base_from_before_many_runs_is_accepted_or_refused() {
    let (newer, db, older) = diverged(&on, Copied::Closed);
    backup(&db, &newer, None, "base").expect("backs up");
    copy(&newer, &older, "base");
    for run in 0..800_u64 {
        let db = on(&older).open("db").expect("opens");
        db.transact(|tx| tx.table(&ROWS)?.insert(&run, &[7_u8; 10])).expect("writes");
        db.close().expect("closes");
    }
    let db = on(&older).open("db").expect("opens");
    let error = backup(&db, &older, Some("base"), "wrong").expect_err("is refused");
    let is_right = matches!(&error, Error::OtherHistory { path, .. } if path.starts_with("base"));
    assert!(is_right && error.to_string().contains("was replaced by a copy"), "{error}");
    backup(&db, &older, Some("before"), "right").expect("backs up");
    assert_eq!(contents(&restore(&older, &["before"], "right", "copy")), contents(&db));
    // CONTROL alone has the newest runs only.
    older.remove_file(Path::new("db/runs")).expect("is there");
    let error = backup(&db, &older, Some("before"), "lost").expect_err("is refused");
    assert!(error.to_string().contains("opened and changed too often"), "{error}");
}

fn archived(fs: &FaultFs) -> Builder {
    on(fs).archive("archive")
}

fn replay(fs: &FaultFs, backup: &str, archive: &str, to: &str) -> Result<Database, Error> {
    let restore = Restore::new().file_system(Arc::new(fs.clone())).builder(on(fs)).archive(archive);
    restore.from_directory(backup, to)?;
    on(fs).open(to)
}

#[test]
fn an_archive_of_a_replaced_store_is_not_continued() {
    for copied in [Copied::Closed, Copied::Recovered, Copied::Running] {
        for runs in [0, 1, 3] {
            let (newer, db, older) = diverged(&archived, copied);
            backup(&db, &newer, None, "base").expect("backs up");
            db.archive_log().expect("archives");
            copy(&newer, &older, "archive");
            copy(&newer, &older, "base");
            run_without_archive(&older, runs); // so that the archive can be tried again
            let error = archived(&older).open("db").expect_err("is refused");
            let is_right = matches!(&error, Error::OtherHistory { path, store, .. }
                if path == Path::new("archive") && store == Path::new("db"));
            assert!(is_right, "{copied:?}, {runs}: {error:?}");
            assert!(error.to_string().contains("name a new directory"), "{error}");
            // A new archive, and a new backup.
            let db = on(&older).archive("archive2").open("db").expect("opens");
            backup(&db, &older, None, "full").expect("backs up");
            put(&db, 300, 4);
            db.archive_log().expect("archives");
            assert_eq!(
                contents(&replay(&older, "full", "archive2", "copy").expect("restores")),
                contents(&db)
            );
            // The archive of the older copy is not replayed after a backup of the replaced store.
            db.close().expect("closes");
            for n in 0..3 {
                let db = on(&older).archive("archive2").open("db").expect("opens");
                put(&db, 600 + n, 6);
                db.close().expect("closes");
            }
            let wrong = replay(&older, "base", "archive2", "wrong");
            assert!(matches!(wrong, Err(Error::NotABackup { .. })), "{wrong:?}");
            // The archive of the replaced store is still right for its backups.
            assert_eq!(contents(&replay(&newer, "base", "archive", "copy").expect("restores")), {
                let db = on(&newer.kill()).archive("archive").open("db").expect("opens");
                contents(&db)
            });
        }
    }
}

#[test]
fn an_archive_is_used_by_one_store_at_a_time() {
    let fs = FaultFs::new();
    let db = archived(&fs).open("db").expect("opens");
    put(&db, 0, 1);
    db.close().expect("closes");
    for path in files_below(&fs, "db") {
        let path_in_db = path.strip_prefix("/").unwrap_or(&path).strip_prefix("db").expect("is in db");
        let to = Path::new("db2").join(path_in_db);
        fs.create_dir_all(to.parent().expect("is in db2")).expect("creates");
        let file = fs.open(&to, OpenOptions::new().create(true)).expect("opens");
        file.write_at(0, &fs.contents(&path).expect("is there")).expect("writes");
    }
    let db = archived(&fs).open("db").expect("opens");
    backup(&db, &fs, None, "b").expect("backs up");
    for change in 0..2 {
        let error = archived(&fs).open("db2").expect_err("is in use");
        assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains("in use"), "{error:?}");
        put(&db, 100 + change, 2);
        db.archive_log().expect("archives");
    }
    let right = contents(&db);
    db.close().expect("closes"); // the handle exists still
    assert_eq!(contents(&replay(&fs, "b", "archive", "copy").expect("restores")), right);
    let error = archived(&fs).open("db2").expect_err("is of another history");
    assert!(matches!(error, Error::OtherHistory { .. }), "{error:?}");
    archived(&fs).open("db").expect("opens").close().expect("closes");
}

#[test]
fn an_archive_is_continued_after_many_openings() {
    let mut fs = FaultFs::new();
    let mut db = archived(&fs).open("db").expect("opens");
    backup(&db, &fs, None, "empty").expect("backs up");
    for run in 0..12 {
        fs = ended(run, &fs, db);
        db = archived(&fs).open("db").unwrap_or_else(|error| panic!("run {run}: {error}"));
        let to = format!("b{run}");
        backup(&db, &fs, None, &to).expect("backs up");
        for (n, base) in ["empty", to.as_str()].into_iter().enumerate() {
            let copy = replay(&fs, base, "archive", &format!("copy{run}-{n}"));
            let copy = copy.unwrap_or_else(|error| panic!("run {run}, {base}: {error}"));
            assert_eq!(contents(&copy), contents(&db), "run {run}, {base}");
        }
    }
}

#[test]
fn an_archive_that_lost_its_end_is_restored_to_an_earlier_time_only() {
    let fs = FaultFs::new();
    let db = archived(&fs).open("db").expect("opens");
    backup(&db, &fs, None, "b").expect("backs up");
    put(&db, 0, 1);
    let early = db.archive_log().expect("archives");
    put(&db, 100, 2);
    let late = db.archive_log().expect("archives");
    let right = contents(&db);
    db.close().expect("closes");
    assert_eq!(contents(&replay(&fs, "b", "archive", "right").expect("restores")), right);
    let mut files = files_below(&fs, "archive");
    files.retain(|path| path.extension().is_some_and(|extension| extension == "azk"));
    let [end, log] = &files[..] else { panic!("{files:?}") };
    let (end_bytes, log_bytes) = (fs.contents(end).expect("is there"), fs.contents(log).expect("is there"));
    let write = |path: &Path, bytes: &[u8]| {
        let file = fs.open(path, OpenOptions::new().create(true)).expect("opens");
        file.set_len(0).expect("truncates");
        file.write_at(0, bytes).expect("writes");
    };
    let restored = |copy: &str, to: Option<azekura::CommitTime>| {
        let restore = Restore::new().file_system(Arc::new(fs.clone())).builder(on(&fs)).archive("archive");
        let restore = if let Some(time) = to { restore.to_time(time) } else { restore };
        restore.from_directory("b", copy).map(drop)
    };
    // The end of the newest file is missing, the file with the end, or its content.
    for (n, is_log) in [true, false, false].into_iter().enumerate() {
        match n {
            0 => write(log, &log_bytes[..log_bytes.len() - 5_000]),
            1 => fs.remove_file(end).expect("removes"),
            _ => write(end, &[7; 44]),
        }
        let error = restored(&format!("whole{n}"), None).expect_err("lost its end");
        assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
        assert!(error.to_string().contains("archive"), "{error}");
        restored(&format!("early{n}"), Some(early)).expect("restores");
        let later = restored(&format!("late{n}"), Some(late));
        assert_eq!(later.is_err(), is_log, "{later:?}");
        write(log, &log_bytes);
        write(end, &end_bytes);
    }
    // A whole file is missing.
    let db = on(&fs).open("db").expect("opens");
    put(&db, 200, 3);
    db.close().expect("closes");
    let db = archived(&fs).open("db").expect("opens"); // begins a file after the gap
    backup(&db, &fs, None, "b2").expect("backs up");
    put(&db, 300, 4);
    db.archive_log().expect("archives");
    let right = contents(&db);
    assert_eq!(contents(&replay(&fs, "b2", "archive", "right2").expect("restores")), right);
    let newest = files_below(&fs, "archive").pop().expect("is there");
    assert_ne!(&newest, log);
    fs.remove_file(&newest).expect("removes");
    let error = replay(&fs, "b2", "archive", "lost").expect_err("lost a file");
    assert!(error.to_string().contains("newest part of the archive is missing"), "{error}");
}

#[test]
fn the_directory_of_a_store_is_no_archive() {
    let fs = FaultFs::new();
    on(&fs).open("db").expect("opens").close().expect("closes");
    let error = on(&fs).archive("db").open("db").expect_err("is a store");
    assert!(error.to_string().contains("db is the directory of the store db"), "{error:?}");
    assert!(!files_below(&fs, "db").iter().any(|path| path.ends_with("end.azk")), "no file was created");
    on(&fs).open("db").expect("opens").close().expect("closes");
}

#[test]
fn a_missing_archive_is_not_created_again() {
    let fs = FaultFs::new();
    let db = archived(&fs).open("db").expect("opens");
    put(&db, 0, 1);
    db.close().expect("closes");
    archived(&fs).open("db").expect("opens").close().expect("closes");
    for path in files_below(&fs, "archive") {
        fs.remove_file(&path).expect("removes");
    }
    for archive in ["archive", "archive", "archive/", "archive//"] {
        let error = on(&fs).archive(archive).open("db").expect_err("is missing");
        let is_right = matches!(&error, Error::ArchiveMissing { path, store }
            if path == Path::new(archive) && store == Path::new("db"));
        assert!(is_right && error.to_string().contains("mount"), "{error:?}");
    }
    assert!(files_below(&fs, "archive").is_empty(), "no file was created");
    on(&fs).open("db").expect("opens without an archive").close().expect("closes");
    let db = on(&fs).archive("other").open("db").expect("begins another archive");
    put(&db, 100, 2);
    db.close().expect("closes");
    on(&fs).archive("other").open("db").expect("opens").close().expect("closes");
}
