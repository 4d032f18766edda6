//! The file `RESTORING`, which marks the directory of a new store until its restore or compaction ends
//! (RESTORE-1).
//!
//! - **RESTORE-2** The file has the id of the new store. Of a directory with this file, only files with names
//!   of a store are removed, and only if CONTROL, if there is one, has this id. So the files of another store
//!   that was copied there, and all other files, stay.

use std::io::ErrorKind;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use azekura_base::sync::random;
use azekura_buffer::PageFile;
use azekura_io::{FileLock, Fs, OpenOptions, file_exists};
use azekura_wal::is_segment;

use crate::control::{CONTROL_NAME, ControlFile, NEW_CONTROL_NAME};
use crate::location::{create_directory, refuse_inside_store};
use crate::restart::{LOCK_NAME, WAL_DIR};
use crate::{Builder, Error};

/// Name of a file that marks a store as being restored (RESTORE-1).
pub(crate) const RESTORING_NAME: &str = "RESTORING";
/// Names of the other files in the directory of a store that is being restored.
const NAMES: [&str; 6] = [
    LOCK_NAME,
    CONTROL_NAME,
    NEW_CONTROL_NAME,
    PageFile::NAME,
    PageFile::DOUBLE_WRITE_NAME,
    PageFile::LSN_MAP_NAME,
];
/// Number of attempts to lock the file, and the pause between them. An opening holds the lock for a moment.
const LOCK_ATTEMPTS: (u32, Duration) = (100, Duration::from_millis(5));

/// Returns an error if the store is the result of an unfinished restore, or is being restored (RESTORE-1).
pub(crate) fn refuse_unfinished(options: &Builder, path: &Path) -> Result<(), Error> {
    if options.restoring.is_some() { Ok(()) } else { refuse_marked(&*options.fs, path) }
}

/// Returns an error if the directory has the file `RESTORING`. A running restore or compaction has locked it.
fn refuse_marked(fs: &dyn Fs, path: &Path) -> Result<(), Error> {
    let marker = path.join(RESTORING_NAME);
    match fs.lock_shared(&marker) {
        Ok(Some(_)) => Err(Error::RestoreUnfinished { path: path.into() }),
        Ok(None) => Err(Error::RestoreRunning { path: path.into() }),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
        Err(error) => Err(Error::io("open", path, error)),
    }
}

/// A restore or compaction that has prepared the directory of its new store.
pub(super) struct Begun {
    /// The id of the new store.
    pub(super) database_id: u64,
    /// `true` if the files of an unfinished restore or compaction were removed.
    pub(super) removed_unfinished: bool,
    _lock: Box<dyn FileLock>,
}

/// Prepares a directory for a restore or a compaction: a new or empty one, or that of an unfinished restore
/// or compaction, from which it removes the files (RESTORE-2).
pub(super) fn begin(fs: &dyn Fs, to: &Path) -> Result<Begun, Error> {
    refuse_inside_store(fs, to, "new store")?;
    create_directory(fs, to, "new store")?;
    let names = fs.list_dir(to).map_err(|e| Error::io("list", to, e))?;
    let (marker, is_marked) = (to.join(RESTORING_NAME), names.iter().any(|name| name == RESTORING_NAME));
    if let Some(name) = names.first().filter(|_| !is_marked) {
        return Err(Error::Invalid(format!(
            "{} is not empty (it holds {name:?}); name a new or empty directory for the new store",
            to.display()
        )));
    }
    let options = if is_marked { OpenOptions::new() } else { OpenOptions::new().create_new(true) };
    let file = fs.open(&marker, options).map_err(|e| Error::io("create", &marker, e))?;
    let lock = lock(fs, to, &marker)?;
    let mut removed_unfinished = false;
    if is_marked {
        let mut id = [0; 8];
        let is_read = file.read_at(0, &mut id).map_err(|e| Error::io("read", &marker, e))? == id.len();
        removed_unfinished = remove_files(fs, to, is_read.then_some(u64::from_le_bytes(id)))?;
    }
    let database_id: u64 = random();
    file.write_at(0, &database_id.to_le_bytes()).map_err(|e| Error::io("write", &marker, e))?;
    file.sync().map_err(|e| Error::io("sync", &marker, e))?;
    fs.sync_dir(to).map_err(|e| Error::io("sync", to, e))?;
    if removed_unfinished {
        tracing::info!(path = %to.display(), "removed the files of an unfinished restore or compaction");
    }
    Ok(Begun { database_id, removed_unfinished, _lock: lock })
}

/// Locks the file `RESTORING` until the restore ends.
fn lock(fs: &dyn Fs, to: &Path, marker: &Path) -> Result<Box<dyn FileLock>, Error> {
    for _ in 0..LOCK_ATTEMPTS.0 {
        match fs.lock_exclusive(marker).map_err(|e| Error::io("lock", marker, e))? {
            Some(lock) => return Ok(lock),
            None => sleep(LOCK_ATTEMPTS.1),
        }
    }
    Err(Error::RestoreRunning { path: to.into() })
}

/// Removes the files of the unfinished restore of store `id`, and makes the removals durable. Returns `true`
/// if there were files. If a file may not be of this restore, removes nothing and returns an error.
fn remove_files(fs: &dyn Fs, to: &Path, id: Option<u64>) -> Result<bool, Error> {
    let list = |dir: &Path| fs.list_dir(dir).map_err(|e| Error::io("list", dir, e));
    let foreign = |path: &Path| {
        Error::Invalid(format!(
            "{} is not of the unfinished restore or compaction in its directory: move it elsewhere and run \
             the restore again, or name another directory",
            path.display()
        ))
    };
    let (mut files, mut dirs) = (Vec::new(), vec![to.to_path_buf()]);
    for name in list(to)?.iter().filter(|name| *name != RESTORING_NAME) {
        if name == WAL_DIR {
            dirs.push(to.join(WAL_DIR));
        } else if NAMES.contains(&name.as_str()) {
            files.push(to.join(name));
        } else {
            return Err(foreign(&to.join(name)));
        }
    }
    if let Some(log) = dirs.get(1).cloned() {
        for stream in list(&log)? {
            let dir = log.join(&stream);
            for segment in list(&dir)? {
                if !is_segment(&stream, &segment) {
                    return Err(foreign(&dir.join(segment)));
                }
                files.push(dir.join(segment));
            }
            dirs.push(dir);
        }
    }
    if files.is_empty() {
        return Ok(false);
    }
    // A file without an id is of an earlier version.
    let Some(id) = id else { return Err(Error::RestoreUnfinished { path: to.into() }) };
    let control = to.join(CONTROL_NAME);
    if file_exists(fs, &control).map_err(|e| Error::io("open", &control, e))?
        && ControlFile::open(fs, to, true)?.current().database_id != id
    {
        return Err(foreign(&control));
    }
    // CONTROL last: until then, each repeated call finds the id.
    files.sort_by_key(|file| *file == control);
    for file in &files {
        fs.remove_file(file).map_err(|e| Error::io("remove", file, e))?;
    }
    dirs.iter().try_for_each(|dir| fs.sync_dir(dir).map_err(|e| Error::io("sync", dir, e)))?;
    Ok(true)
}

/// Marks the new store as complete, so that it can be opened (RESTORE-1).
pub(super) fn finish(fs: &dyn Fs, to: &Path) -> Result<(), Error> {
    let marker = to.join(RESTORING_NAME);
    fs.remove_file(&marker).map_err(|e| Error::io("remove", &marker, e))?;
    fs.sync_dir(to).map_err(|e| Error::io("sync", to, e))
}

/// Frees the disk space of a store that a failed restore or compaction has closed: removes the files of its
/// directory, which was empty before, except `RESTORING` (RESTORE-1). Best effort, because the caller returns
/// the first error.
pub(super) fn free_space(fs: &dyn Fs, store: &Path) {
    let log = store.join(WAL_DIR);
    let streams = fs.list_dir(&log).unwrap_or_default().into_iter().map(|name| log.join(name));
    for dir in streams.chain([store.to_path_buf()]) {
        let names = fs.list_dir(&dir).unwrap_or_default();
        for name in names.iter().filter(|name| *name != RESTORING_NAME) {
            let _ = fs.remove_file(&dir.join(name)); // fails for directories
        }
    }
}
