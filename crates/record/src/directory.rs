//! Directories of recorders, and their removal after a recorder was killed.

use crate::process;
use azekura_trace::area;
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use std::fs::{DirEntry, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// Beginning of the names of the directories.
pub(crate) const PREFIX: &str = "azekura-record-";
/// The library, in the directory for temporary files.
pub(crate) const LIBRARY_FILE: &str = "libazekura_preload.so";
/// A file beside the library that the recorder locks while it runs. A directory with neither this file nor an
/// area is never removed by another recorder.
pub(crate) const LOCK_FILE: &str = "lock";
/// Least age of the locked file of a killed recorder. A younger file may not be locked yet.
const STALE: Duration = Duration::from_secs(10);

/// Creates a file that only its user can open, and locks it until it is closed.
pub(crate) fn create_locked(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    let _ = flock(&file, FlockOperation::NonBlockingLockExclusive); // some file systems have no locks
    Ok(file)
}

/// Removes this user's directories of recorders that were killed, which would stay forever.
pub(crate) fn remove_stale(place: &Path) {
    let Ok(entries) = std::fs::read_dir(place) else { return };
    let is_recorders = |entry: &DirEntry| entry.file_name().as_bytes().starts_with(PREFIX.as_bytes());
    for entry in entries.flatten().filter(is_recorders) {
        if is_stale(&entry.path()) {
            let _ = std::fs::remove_dir_all(entry.path()); // tried again by the next recorder
        }
    }
}

/// Returns `true` if no recorder, no running program and no user needs a recorder's directory.
fn is_stale(directory: &Path) -> bool {
    // The entry itself, because another user may have made it a symbolic link.
    let is_own = |metadata: Metadata| metadata.is_dir() && metadata.uid() == geteuid().as_raw();
    std::fs::symlink_metadata(directory).is_ok_and(is_own)
        && [LOCK_FILE, area::FILE].into_iter().any(|name| is_abandoned(&directory.join(name)))
        && !is_library_in_use(directory)
}

/// Returns `true` if the recorder that created this file was killed: it would hold the lock.
fn is_abandoned(locked: &Path) -> bool {
    let lock = |file| flock(&file, FlockOperation::NonBlockingLockExclusive);
    age_of(locked).is_some_and(|age| age > STALE) && File::open(locked).is_ok_and(|file| lock(file).is_ok())
}

/// Returns `true` if a running program has loaded the library in the directory.
fn is_library_in_use(directory: &Path) -> bool {
    // The name of the directory is unique. The path to it may contain symbolic links.
    let name = directory.file_name().map(|name| Path::new(name).join(LIBRARY_FILE));
    let Some(age) = age_of(&directory.join(LIBRARY_FILE)) else { return false };
    name.is_none_or(|name| process::is_mapped(&name, age + STALE))
}

/// Returns the time since the last change of a file.
fn age_of(file: &Path) -> Option<Duration> {
    std::fs::metadata(file).ok()?.modified().ok()?.elapsed().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    #[test]
    fn directories_of_killed_recorders_are_removed_unless_they_are_in_use_or_kept() {
        let place = tempfile::tempdir().unwrap();
        let make = |name: &str, files: &[&str]| {
            let directory = place.path().join(name);
            std::fs::create_dir(&directory).unwrap();
            files.iter().for_each(|file| std::fs::write(directory.join(file), "").unwrap());
            directory
        };
        let make_old = |directory: &Path| {
            for file in [LOCK_FILE, area::FILE].map(|name| directory.join(name)) {
                if let Ok(file) = File::open(file) {
                    file.set_modified(std::time::SystemTime::now() - 2 * STALE).unwrap();
                }
            }
        };
        let area = make("azekura-record-1", &[area::FILE]);
        let killed = make("azekura-record-2", &[LOCK_FILE, LIBRARY_FILE]);
        let (running_area, running) = (make("azekura-record-3", &[]), make("azekura-record-4", &[]));
        let locked = [running_area.join(area::FILE), running.join(LOCK_FILE)];
        let _locks = locked.map(|path| create_locked(&path).unwrap());
        let kept = make("azekura-record-5", &[LIBRARY_FILE]);
        let other = make("other", &[LOCK_FILE]);
        let in_use = make("azekura-record-6", &[LOCK_FILE]);
        // Copied by a process, because a file that is open for writing cannot be executed.
        let copied = Command::new("cp").arg("/bin/cat").arg(in_use.join(LIBRARY_FILE)).status();
        assert!(copied.unwrap().success());
        let mut user = Command::new(in_use.join(LIBRARY_FILE)).stdin(Stdio::piped()).spawn().unwrap();
        let young = make("azekura-record-7", &[LOCK_FILE]);
        let others = make("azekura-record-8", &[LOCK_FILE]);
        let is_others = std::os::unix::fs::chown(&others, Some(65_534), None).is_ok(); // only root can
        for directory in [&area, &killed, &running_area, &running, &kept, &other, &in_use, &others] {
            make_old(directory);
        }
        remove_stale(place.path());
        let is_there = |directory: &PathBuf| directory.exists();
        assert_eq!([&area, &killed].map(is_there), [false; 2]);
        assert_eq!([&running_area, &running, &kept, &other, &in_use, &young].map(is_there), [true; 6]);
        assert_eq!(others.exists(), is_others);
        drop(user.stdin.take());
        user.wait().unwrap();
        remove_stale(place.path());
        assert!(!in_use.exists(), "its last user has ended");
    }
}
