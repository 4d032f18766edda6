//! Requirements on an engine that is measured.
//!
//! An [`Engine`] opens a [`Store`] in a directory; every client thread has a [`Session`] of its own. A
//! session runs whole transactions: it is handed the work as a closure, begins, lets the closure do its
//! steps, commits, and runs it again if it lost against another transaction. That shape suits locking,
//! optimistic and single-writer engines alike, and costs two virtual calls per transaction and one per step.

use crate::error::EngineError;
use azekura_workload::{Value, Workload};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// The settings that every engine gets when a store is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineSettings {
    /// Memory for the engine's own cache, in bytes; `None` is the engine's default.
    pub cache_bytes: Option<u64>,
    /// Bytes of keys and values that the store will hold, about: for engines that need a bound beforehand.
    pub expected_bytes: u64,
    /// Sessions that may be open at once.
    pub sessions: usize,
    /// Reads shall come from the device: engines that can bypass the kernel's page cache do so.
    pub bypass_page_cache: bool,
}

impl EngineSettings {
    /// The cache as reports list it.
    #[must_use]
    pub fn described_cache(&self) -> String {
        self.cache_bytes.map_or_else(|| "default".to_owned(), |bytes| bytes.to_string())
    }
}

/// A kind of store, by name.
pub trait Engine: Send + Sync {
    /// The name in reports: lower case, as `rocksdb`.
    fn name(&self) -> &str;

    /// The settings of its own that matter for the figures: version, how commits are made durable, table
    /// kind.
    fn describe(&self, settings: &EngineSettings) -> BTreeMap<String, String>;

    /// Returns whether [`Session::write_async`] works.
    fn pipelines(&self) -> bool {
        false
    }

    /// Returns whether transactions that read and then write are isolated from each other. Otherwise a
    /// workload that depends on it is refused.
    fn isolates(&self) -> bool {
        true
    }

    /// Returns the ability that this engine lacks for `workload`, if any: the engine is then left out of it,
    /// which is reported and is no failure.
    fn lacks(&self, workload: &Workload) -> Option<&'static str> {
        let _ = workload;
        None
    }

    /// Opens the store in `dir`, which exists; makes an empty one if the directory is empty.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn open(&self, dir: &Path, settings: &EngineSettings) -> Result<Box<dyn Store>, EngineError>;
}

/// An open store, shared by all threads.
pub trait Store: Send + Sync {
    /// A handle for one thread.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn session(&self) -> Result<Box<dyn Session + '_>, EngineError>;

    /// Bytes of log records since the store was opened, without what pads them to blocks, if the engine can
    /// tell.
    fn log_bytes(&self) -> Option<u64> {
        None
    }

    /// Closes the store; background work ends.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn close(self: Box<Self>) -> Result<(), EngineError>;
}

/// The steps of a read-only transaction. It may be run more than once.
pub type ReadWork<'a> = dyn FnMut(&mut dyn Reader) -> Result<(), EngineError> + 'a;
/// The steps of a transaction that writes. It may be run more than once.
pub type WriteWork<'a> = dyn FnMut(&mut dyn Writer) -> Result<(), EngineError> + 'a;

/// One thread's use of a store.
pub trait Session {
    /// Runs a read-only transaction over the newest committed state. Returns how often it had to be run
    /// again.
    ///
    /// # Errors
    ///
    /// An error of the engine, except conflicts, which are retried.
    fn read(&mut self, work: &mut ReadWork<'_>) -> Result<u64, EngineError>;

    /// Runs a transaction and commits it; it is durable (would survive a power cut) when this returns.
    /// Returns how often it had to be run again.
    ///
    /// # Errors
    ///
    /// An error of the engine, except conflicts, which are retried.
    fn write(&mut self, work: &mut WriteWork<'_>) -> Result<u64, EngineError>;

    /// Runs a transaction and commits it, without waiting until it is durable. Others see its effects at
    /// once.
    ///
    /// # Errors
    ///
    /// An error of the engine, except conflicts, which are retried; engines without asynchronous commits
    /// return one.
    fn write_async(&mut self, _work: &mut WriteWork<'_>) -> Result<(u64, Box<dyn Ticket>), EngineError> {
        Err(EngineError::failed("committing asynchronously", "this engine has no asynchronous commit"))
    }

    /// Fills the empty store with all records, which come in ascending order, in a way of its own for that,
    /// durably; gives how many they were. `None` if it has no such way, or is not to use it: then nothing was
    /// taken from `records`.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn bulk_load(&mut self, _records: &mut dyn Iterator<Item = Record>) -> Result<Option<u64>, EngineError> {
        Ok(None)
    }
}

/// A commit that may not be durable yet.
pub trait Ticket {
    /// Returns whether it is durable. Never blocks.
    ///
    /// # Errors
    ///
    /// The log failed: the commit may be lost.
    fn is_durable(&self) -> Result<bool, EngineError>;

    /// Blocks until it is durable.
    ///
    /// # Errors
    ///
    /// The log failed: the commit may be lost.
    fn wait(self: Box<Self>) -> Result<(), EngineError>;
}

/// Reads inside a transaction.
pub trait Reader {
    /// Looks a key up and shows its value, if it is there, to the sink. Returns whether it is.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError>;

    /// Shows up to `limit` records in key order to the sink, beginning at the first key not below `from`.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError>;

    /// Shows up to `limit` records in descending key order to the sink, beginning at the last key.
    ///
    /// # Errors
    ///
    /// Those of the engine.
    fn scan_back(&mut self, limit: u64, sink: &mut Sink) -> Result<(), EngineError>;
}

/// Reads and writes inside a transaction.
pub trait Writer: Reader {
    /// Stores a value, whether the key is there or not.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError>;

    /// Looks a key up that is going to be written, as [`Reader::get`]. Engines that lock take the lock at
    /// once that the write will need.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn get_for_update(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        self.get(key, sink)
    }

    /// Removes a key that is there.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn remove(&mut self, key: &[u8]) -> Result<(), EngineError>;

    /// Stores a value under a key above all others. Engines with a quicker way for that take it.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn append(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        self.put(key, value)
    }
}

/// Destination of records that are read: counted and touched in place, so that no engine must copy; or kept,
/// for callers that need them.
#[derive(Debug, Clone, Default)]
pub struct Sink {
    records: u64,
    bytes: u64,
    mixed: u64,
    damaged: u64,
    checks: bool,
    touches: bool,
    kept: Option<Vec<Record>>,
}

/// Key and value.
pub type Record = (Vec<u8>, Vec<u8>);

impl Sink {
    /// A sink that verifies each value as well (about 20 ns for 100 bytes).
    #[must_use]
    pub fn checking() -> Self {
        Self { checks: true, ..Self::default() }
    }

    /// A sink that reads every byte of each value if `touches` is true, and the first eight otherwise.
    #[must_use]
    pub fn touching(touches: bool) -> Self {
        Self { touches, ..Self::default() }
    }

    /// A sink that keeps copies of its records.
    #[must_use]
    pub fn keeping() -> Self {
        Self { kept: Some(Vec::new()), ..Self::default() }
    }

    /// The records kept so far; none are left.
    pub fn take(&mut self) -> Vec<Record> {
        self.kept.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes a record: reads the first bytes of its key and value.
    #[inline]
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        self.records += 1;
        self.bytes += (key.len() + value.len()) as u64;
        self.mixed = self.mixed.rotate_left(5) ^ head(key) ^ head(value);
        if self.touches {
            self.mixed = self.mixed.wrapping_add(sum(value));
        }
        if self.checks && Value::of(value).is_none() {
            self.damaged += 1;
        }
        if let Some(kept) = &mut self.kept {
            kept.push((key.to_vec(), value.to_vec()));
        }
    }

    /// Returns whether each value must be passed whole, to [`add`](Self::add).
    #[must_use]
    pub const fn needs_whole(&self) -> bool {
        self.checks || self.kept.is_some()
    }

    /// Returns whether every byte of each value is to be read.
    #[must_use]
    pub const fn touches(&self) -> bool {
        self.touches
    }

    /// As [`add`](Self::add), for a value of `len` bytes that an engine lends: takes its first eight bytes.
    /// The engine passes all bytes to [`touch`](Self::touch) afterwards if the sink
    /// [touches](Self::touches) them.
    #[inline]
    pub fn add_start(&mut self, key: &[u8], start: &[u8], len: u64) {
        self.records += 1;
        self.bytes += key.len() as u64 + len;
        self.mixed = self.mixed.rotate_left(5) ^ head(key) ^ head(start);
    }

    /// Reads every byte of the next piece of a value. The length of each but the last is a multiple of 8.
    pub fn touch(&mut self, piece: &[u8]) {
        self.mixed = self.mixed.wrapping_add(sum(piece));
    }

    /// Records taken.
    #[must_use]
    pub const fn records(&self) -> u64 {
        self.records
    }

    /// Bytes of keys and values taken.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of values that no client wrote, if the sink checks.
    #[must_use]
    pub const fn damaged(&self) -> u64 {
        self.damaged
    }

    /// A number that depends on every record, so that no reading can be optimized away.
    #[must_use]
    pub const fn mixed(&self) -> u64 {
        self.mixed
    }
}

#[inline]
fn head(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(head) => u64::from_le_bytes(*head),
        None => bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    }
}

/// The sum of all words, at the speed of memory.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().fold(head(rest), |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

/// Runs `attempt` until it does not end in a conflict, sleeping a little longer after each. Returns its
/// result and how often it was run again. For adapters of engines that do not retry by themselves.
///
/// # Errors
///
/// The first error of `attempt` that is not a conflict.
pub fn retry_conflicts<T>(
    mut attempt: impl FnMut() -> Result<T, EngineError>,
) -> Result<(T, u64), EngineError> {
    const LONGEST: Duration = Duration::from_millis(2);
    let mut retries = 0;
    let mut pause = Duration::from_micros(10);
    loop {
        match attempt() {
            Ok(done) => return Ok((done, retries)),
            Err(error) if error.is_conflict() => {
                retries += 1;
                if retries > 1 {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(LONGEST);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_are_retried_and_counted_and_other_errors_are_not() {
        let mut left = 3;
        let (done, retries) = retry_conflicts(|| {
            left -= 1;
            if left > 0 { Err(EngineError::conflict("committing", "deadlock")) } else { Ok("done") }
        })
        .unwrap();
        assert_eq!((done, retries), ("done", 2));

        let error =
            retry_conflicts::<()>(|| Err(EngineError::failed("committing", "disk full"))).unwrap_err();
        assert!(matches!(error, EngineError::Failed { doing: "committing", .. }));
    }

    #[test]
    fn a_checking_sink_counts_damaged_values() {
        let mut value = [0; 100];
        Value(5).fill(&mut value);
        let mut sink = Sink::checking();
        sink.add(b"key", &value);
        value[50] ^= 1;
        sink.add(b"key", &value);
        assert_eq!((sink.records(), sink.bytes(), sink.damaged()), (2, 206, 1));
    }

    #[test]
    fn a_touching_sink_depends_on_every_byte() {
        let mixed = |touches, value: &[u8]| {
            let (mut sink, mut lent) = (Sink::touching(touches), Sink::touching(touches));
            sink.add(b"key", value);
            lent.add_start(b"key", &value[..8], value.len() as u64);
            if lent.touches() {
                value.chunks(48).for_each(|piece| lent.touch(piece));
            }
            assert_eq!((sink.mixed(), sink.bytes()), (lent.mixed(), lent.bytes()));
            sink.mixed()
        };
        let value = [3; 101];
        for at in 0..value.len() {
            let mut other = value;
            other[at] = 4;
            assert_ne!(mixed(true, &other), mixed(true, &value), "byte {at}");
            assert_eq!(mixed(false, &other) == mixed(false, &value), at >= 8, "byte {at}");
        }
    }
}
