//! Filling, warming and cooling of stores, which are not measured.

use crate::engine::{Session, Sink, Store};
use crate::error::BenchError;
use azekura_workload::Dataset;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Largest number of records in a transaction that fills a store.
const FILL_RECORDS: usize = 10_000;
/// Largest number of bytes of values in a transaction that fills a store.
const FILL_BYTES: usize = 16 << 20;

/// Writes the data set in key order. Calls `watch` with the number of records written so far.
///
/// # Errors
///
/// An error of the engine.
pub fn fill(store: &dyn Store, dataset: &Dataset, watch: &mut dyn FnMut(u64)) -> Result<(), BenchError> {
    let mut session = store.session()?;
    let mut items = dataset.items_in_key_order();
    let most = (FILL_BYTES / dataset.value_bytes().max(1)).clamp(1, FILL_RECORDS);
    let mut group = Vec::with_capacity(most);
    let mut value = vec![0; dataset.value_bytes()];
    let mut done = 0;
    loop {
        group.clear();
        group.extend(items.by_ref().take(most));
        if group.is_empty() {
            return Ok(());
        }
        session.write(&mut |writer| {
            group.iter().try_for_each(|&item| {
                dataset.value(item).fill(&mut value);
                writer.append(dataset.key(item).as_bytes(), &value)
            })
        })?;
        done += group.len() as u64;
        watch(done);
    }
}

/// Reads the whole table once, which fills the cache. Checks that each value is one that was written, and
/// that there are `expected` records.
///
/// # Errors
///
/// An error of the engine; [`BenchError::WrongAnswer`] if the check fails.
pub fn warm_and_check(store: &dyn Store, expected: u64) -> Result<(), BenchError> {
    let found = warm_and_count(store)?;
    if found != expected {
        return Err(BenchError::WrongAnswer { what: "records", expected, found });
    }
    Ok(())
}

/// Reads the whole table once, checks each value, and returns the number of records.
///
/// # Errors
///
/// An error of the engine; [`BenchError::WrongAnswer`] if a value is damaged.
pub fn warm_and_count(store: &dyn Store) -> Result<u64, BenchError> {
    let mut session = store.session()?;
    let sink = whole_table(session.as_mut())?;
    if sink.damaged() > 0 {
        return Err(BenchError::WrongAnswer { what: "damaged values", expected: 0, found: sink.damaged() });
    }
    Ok(sink.records())
}

/// Returns the bytes that the files below `dir` occupy on the device.
///
/// # Errors
///
/// [`BenchError::Io`].
pub fn disk_bytes(dir: &Path) -> Result<u64, BenchError> {
    let blocks = |path: &PathBuf| match fs::metadata(path) {
        Ok(file) => Ok(file.blocks()),
        // An engine may remove its own files at any time.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(BenchError::io("looking at", path)(error)),
    };
    // The unit of `blocks` is 512 bytes on every file system.
    files(dir)?.iter().map(blocks).sum::<Result<u64, _>>().map(|blocks| blocks * 512)
}

fn whole_table(session: &mut dyn Session) -> Result<Sink, BenchError> {
    let mut sink = Sink::checking();
    session.read(&mut |reader| {
        sink = Sink::checking();
        reader.scan(&[], u64::MAX, &mut sink)
    })?;
    Ok(sink)
}

/// Writes all files below `dir` to the device, so that the kernel does not write one engine's data during
/// another engine's run.
///
/// # Errors
///
/// [`BenchError::Io`].
pub fn sync_files(dir: &Path) -> Result<(), BenchError> {
    for path in files(dir)? {
        open(&path)?.sync_all().map_err(BenchError::io("syncing", &path))?;
    }
    Ok(())
}

/// Removes all files below `dir` from the kernel's page cache, so that the next run begins cold. The store
/// must be closed.
///
/// # Errors
///
/// [`BenchError::Io`].
pub fn cool(dir: &Path) -> Result<(), BenchError> {
    sync_files(dir)?;
    for path in files(dir)? {
        rustix::fs::fadvise(open(&path)?, 0, None, rustix::fs::Advice::DontNeed)
            .map_err(|e| BenchError::io("dropping from the page cache", &path)(e.into()))?;
    }
    Ok(())
}

fn open(path: &Path) -> Result<File, BenchError> {
    File::open(path).map_err(BenchError::io("opening", path))
}

/// Returns all regular files below `dir`.
fn files(dir: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).map_err(BenchError::io("listing", &dir))? {
            let entry = entry.map_err(BenchError::io("listing", &dir))?;
            let kind = entry.file_type().map_err(BenchError::io("listing", &dir))?;
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

/// Creates `dir` as an empty directory, and removes its old content.
///
/// # Errors
///
/// [`BenchError::Io`].
pub fn fresh_dir(dir: &Path) -> Result<(), BenchError> {
    remove_dir(dir)?;
    fs::create_dir_all(dir).map_err(BenchError::io("making", dir))
}

/// Removes `dir` with its content; a missing directory is no error.
///
/// # Errors
///
/// [`BenchError::Io`].
pub fn remove_dir(dir: &Path) -> Result<(), BenchError> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(BenchError::io("removing", dir)(e)),
        _ => Ok(()),
    }
}
