//! Helpers of the tests of the fault disk.
#![allow(dead_code, reason = "each test file uses only some of the helpers")]

use std::path::Path;
use std::sync::Arc;

use azekura_io::{FaultFs, File, Fs, OpenOptions};

/// Number of crashes per check. The rarest expected outcome has a probability above 1 in 50 per seed.
pub(crate) const SEEDS: u64 = 1000;

pub(crate) const SECTOR: usize = 512;

pub(crate) fn path(name: &str) -> &Path {
    Path::new(name)
}

/// Creates a file with a durable name.
pub(crate) fn create(fs: &FaultFs, name: &str) -> Arc<dyn File> {
    let file = fs.open(path(name), OpenOptions::new().create_new(true)).expect("a new file");
    fs.sync_dir(path("/")).expect("the power is on");
    file
}

/// Returns `count` sectors filled with one byte.
pub(crate) fn sectors(count: usize, byte: u8) -> Vec<u8> {
    vec![byte; count * SECTOR]
}

/// Returns the file's contents after each of [`SEEDS`] crashes.
pub(crate) fn outcomes(fs: &FaultFs, name: &str) -> Vec<Vec<u8>> {
    (0..SEEDS).map(|seed| fs.crash(seed).contents(path(name)).expect("its name is durable")).collect()
}

/// Fails unless `is_so` holds for some outcomes and does not hold for others.
#[track_caller]
pub(crate) fn sometimes<T: std::fmt::Debug>(outcomes: &[T], what: &str, is_so: impl Fn(&T) -> bool) {
    let count = outcomes.iter().filter(|outcome| is_so(outcome)).count();
    assert!(count > 0, "never in {} crashes: {what}", outcomes.len());
    assert!(count < outcomes.len(), "in each of {} crashes: {what}", outcomes.len());
}

/// Returns the byte that fills a sector.
#[track_caller]
pub(crate) fn sector_byte(bytes: &[u8], sector: usize) -> u8 {
    let sector = &bytes[sector * SECTOR..(sector + 1) * SECTOR];
    assert!(sector.iter().all(|&b| b == sector[0]), "a torn sector");
    sector[0]
}
