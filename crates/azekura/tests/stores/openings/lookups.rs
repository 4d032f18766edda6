//! Openings on a file system that cannot determine whether a file exists.

use std::io;
use std::path::Path;
use std::sync::Arc;

use azekura::Error;
use azekura_io::{File, FileLock, Fs, MemFs, OpenOptions};

use super::{put, rows, try_open};

/// A file system in memory on which each [`Fs::exists`] fails, as on a network file system after a lost
/// connection. All other calls succeed.
#[derive(Clone, Debug)]
struct Blind(MemFs);

impl Fs for Blind {
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<Arc<dyn File>> {
        self.0.open(path, options)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.0.create_dir_all(path)
    }

    fn list_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        self.0.list_dir(path)
    }

    fn exists(&self, _: &Path) -> bool {
        false
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.0.remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.0.sync_dir(path)
    }

    fn lock_exclusive(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.0.lock_exclusive(path)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.0.lock_shared(path)
    }
}

#[test]
fn a_store_that_cannot_be_looked_up_is_not_created_again() {
    let fs = MemFs::new();
    let db = try_open(&fs).unwrap();
    put(&db, 1);
    db.close().unwrap();
    let db = try_open(&Blind(fs)).unwrap();
    assert_eq!(rows(&db), 1);
}

#[test]
fn an_unfinished_restore_that_cannot_be_looked_up_does_not_open() {
    let fs = MemFs::new();
    try_open(&fs).unwrap().close().unwrap();
    drop(fs.open(Path::new("/db/RESTORING"), OpenOptions::new().create(true)).unwrap());
    let opened = try_open(&Blind(fs));
    assert!(matches!(opened, Err(Error::RestoreUnfinished { .. })), "{opened:?}");
}

#[test]
fn a_backup_that_cannot_be_looked_up_is_not_replaced() {
    let fs = Blind(MemFs::new());
    let db = try_open(&fs).unwrap();
    let backup = |to: &str| db.backup().file_system(Arc::new(fs.clone())).to_directory(to);
    backup("/backup").unwrap();
    let made = fs.0.files(Path::new("/backup")).unwrap();
    for taken in ["/backup", "/db"] {
        let again = backup(taken);
        assert!(matches!(again, Err(Error::Invalid(_))), "{again:?}");
    }
    assert_eq!(fs.0.files(Path::new("/backup")).unwrap(), made);
}
