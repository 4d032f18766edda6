//! A store that was opened by a relative path continues to work when the process changes its working
//! directory, and when its directory is renamed: every later file is created in the store's directory. Only
//! the owner can read the files, unless another mode is set.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use azekura::{Database, Error, Restore, TableDefinition};

const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");
const CHILD: &str = "AZEKURA_TEST_CHILD_DIRECTORY";

fn open(path: &str) -> Database {
    Database::builder().cache_bytes(1 << 20).wal_segment_bytes(2 << 20).open(path).unwrap()
}

fn fill(db: &Database, from: u64) {
    for first in (from..from + 20_000).step_by(500) {
        let fill = |tx: &azekura::Transaction| {
            let rows = tx.table(&ROWS)?;
            (first..first + 500).try_for_each(|key| rows.insert(&key, &[7; 400][..]))
        };
        db.transact(fill).unwrap();
    }
}

/// Runs in its own process, because the working directory belongs to the process. The archive begins a new
/// file after 16 MiB; the rows have 26 MB.
fn child(directory: &Path) {
    std::env::set_current_dir(directory).unwrap();
    let builder = Database::builder().cache_bytes(1 << 20).wal_segment_bytes(2 << 20);
    let db = builder.archive("archive").open("store").unwrap();
    std::env::set_current_dir("/").unwrap();
    fill(&db, 0);
    db.checkpoint().unwrap();
    fill(&db, 20_000);
    for (first, count) in [(40_000, 100), (40_100, 1)] {
        let put = |tx: &azekura::Transaction| {
            let rows = tx.table(&ROWS)?;
            (first..first + count).try_for_each(|key: u64| rows.insert(&key, &[7; 100_000][..]))
        };
        db.transact(put).unwrap();
        db.archive_log().unwrap();
    }
    let in_archive = std::fs::read_dir(directory.join("archive")).unwrap().count();
    assert!(in_archive >= 4, "the lock, the end, and two files of the log: {in_archive}");
    let path = db.path().to_owned();
    assert!(path.is_absolute());
    db.close().unwrap();
    assert!(Database::builder().create(false).open("store").is_err(), "it is not below /");
    let db = Database::builder().cache_bytes(1 << 20).create(false).open(path).unwrap();
    let count = db.transact(|tx| Ok(tx.table(&ROWS)?.iter().count())).unwrap();
    assert_eq!(count, 40_101);
    assert!(db.check(&mut |_, _| ()).unwrap().is_clean());
}

#[test]
fn a_store_opened_by_a_relative_path_does_not_depend_on_the_working_directory() {
    if let Some(directory) = std::env::var_os(CHILD) {
        return child(Path::new(&directory));
    }
    let directory = tempfile::tempdir().unwrap();
    let name =
        "working_directory::a_store_opened_by_a_relative_path_does_not_depend_on_the_working_directory";
    let status = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(CHILD, directory.path())
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn a_renamed_store_leaves_the_store_of_its_former_name_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (name, renamed) = (directory.path().join("store"), directory.path().join("renamed"));
    let first = open(name.to_str().unwrap());
    fill(&first, 0);
    std::fs::rename(&name, &renamed).unwrap();
    fill(&first, 20_000);
    assert!(!name.exists());
    let second = open(name.to_str().unwrap());
    first.checkpoint().unwrap();
    fill(&first, 40_000);
    assert!(!name.join("wal").exists(), "the second store has written nothing");
    fill(&second, 0);
    for (db, path, rows) in [(first, &renamed, 60_000), (second, &name, 20_000)] {
        db.close().unwrap();
        let db = Database::builder().create(false).open(path).unwrap();
        assert_eq!(db.transact(|tx| Ok(tx.table(&ROWS)?.iter().count())).unwrap(), rows);
        assert!(db.check(&mut |_, _| ()).unwrap().is_clean());
    }
}

#[test]
fn an_empty_path_is_refused_with_its_name() {
    let refused = |done: Result<(), Error>, what: &str| match done {
        Err(Error::Invalid(reason)) => {
            assert_eq!(reason, format!("the path of the {what} is empty; name a directory"));
        }
        other => panic!("{what}: {other:?}"),
    };
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let db = open(at("store").to_str().unwrap());
    refused(Database::open("").map(drop), "store");
    refused(Database::open_read_only("").map(drop), "store");
    refused(Database::builder().archive("").open(at("other")).map(drop), "archive");
    assert!(!at("other").exists());
    refused(db.compact_into("").map(drop), "new store");
    refused(db.backup().to_directory("").map(drop), "backup");
    refused(Restore::new().from_directory("", at("new")).map(drop), "backup");
    db.backup().to_directory(at("monday")).unwrap();
    refused(Restore::new().from_directory(at("monday"), "").map(drop), "new store");
    refused(Restore::new().archive("").from_directory(at("monday"), at("new")).map(drop), "archive");
    assert!(!at("new").exists());
}

#[test]
fn the_directory_of_a_store_takes_no_copy_or_archive() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let db = open(at("store").to_str().unwrap());
    fill(&db, 0);
    db.backup().to_directory(at("monday")).unwrap();
    symlink(at("store"), at("link")).unwrap();
    std::fs::create_dir(at("store/sub")).unwrap();
    symlink(at("store/sub"), at("deep")).unwrap();
    let is_created =
        || at("store/a").exists() || std::fs::read_dir(at("store/sub")).unwrap().next().is_some();
    for to in ["store", "store/a", "store/sub/a/b", "link", "link/a", "deep", "deep/a", "none/../store/a"] {
        let refused = |done: Result<(), Error>, what: &str| match done {
            Err(Error::Invalid(reason)) => {
                let store = std::fs::canonicalize(at("store")).unwrap();
                let (to, store) = (at(to), store.display());
                let expected = format!("the directory of the store {store}, or inside it; name another one");
                assert_eq!(reason, format!("{} is {expected} for the {what}", to.display()));
            }
            other => panic!("{what} in {to}: {other:?}"),
        };
        if to.starts_with("none") {
            std::fs::create_dir(at("none")).unwrap();
        }
        refused(db.backup().to_directory(at(to)).map(drop), "backup");
        refused(db.compact_into(at(to)).map(drop), "new store");
        refused(Restore::new().from_directory(at("monday"), at(to)).map(drop), "new store");
        refused(Database::builder().archive(at(to)).open(at("other")).map(drop), "archive");
        assert!(!is_created(), "nothing was created for {to}");
    }
    db.backup().to_directory(at("store-backup")).unwrap();
    db.close().unwrap();
    let own = Database::builder().archive(at("link/archive")).open(at("store"));
    assert!(matches!(own, Err(Error::Invalid(_))), "{own:?}");
}

/// Returns the modes of the directory and of all directories and files below it: first those of directories,
/// then those of files. The store may remove or rename a file meanwhile; such a file is left out.
fn modes(dir: &Path) -> (Vec<u32>, Vec<u32>) {
    let mode = |path: &Path| match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        metadata => Some(metadata.unwrap().permissions().mode() & 0o777),
    };
    let (mut dirs, mut files) = (Vec::from_iter(mode(dir)), Vec::new());
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let (more_dirs, more_files) = modes(&path);
            dirs.extend(more_dirs);
            files.extend(more_files);
        } else {
            files.extend(mode(&path));
        }
    }
    (dirs, files)
}

#[test]
fn files_have_owner_only_permissions_by_default() {
    let directory = tempfile::tempdir().unwrap();
    for (mode, files, dirs) in [(None, 0o600, 0o700), (Some(0o640), 0o640, 0o750)] {
        let path = directory.path().join(format!("{files:o}"));
        let builder = Database::builder().cache_bytes(1 << 20).wal_segment_bytes(2 << 20);
        let builder = mode.into_iter().fold(builder, azekura::Builder::file_mode);
        let db = builder.open(&path).unwrap();
        fill(&db, 0);
        let (found_dirs, found_files) = modes(&path);
        assert!(found_files.len() >= 5, "CONTROL, pages, dw, LOCK, a log file: {found_files:?}");
        assert!(found_files.iter().all(|&found| found == files), "{found_files:?}");
        assert!(found_dirs.len() >= 3 && found_dirs.iter().all(|&found| found == dirs), "{found_dirs:?}");
    }
    for bad in [0o400, 0o4600, 0o711] {
        let refused = Database::builder().file_mode(bad).open(directory.path().join("refused"));
        assert!(matches!(refused, Err(Error::Invalid(_))), "{bad:o}");
    }
}

#[test]
fn a_control_file_that_cannot_be_opened_is_not_called_missing() {
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("CONTROL", directory.path().join("CONTROL")).unwrap(); // a loop
    std::fs::write(directory.path().join("lsnmap"), "").unwrap();
    for builder in [Database::builder(), Database::builder().create(false)] {
        let error = builder.open(directory.path()).unwrap_err();
        assert!(matches!(&error, Error::Io { path, .. } if path.ends_with("CONTROL")), "{error:?}");
    }
}
