//! Interfaces of a measured engine.
//!
//! An [`Engine`] opens a [`Store`] in a directory; each client thread has its own [`Session`]. A session runs
//! whole transactions: the caller passes the steps as a closure. The session begins a transaction, calls the
//! closure, commits, and repeats all of this after a conflict. This interface suits locking, optimistic and
//! single-writer engines alike. Its cost is two virtual calls per transaction and one per step.

use crate::error::EngineError;
use azekura_workload::{Value, Workload};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Settings that every engine receives when a store is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineSettings {
    /// Size of the engine's own cache, in bytes; `None` is the engine's default.
    pub cache_bytes: Option<u64>,
    /// Approximate bytes of keys and values in the store, for engines that need a bound in advance.
    pub expected_bytes: u64,
    /// Sessions that may be open at once.
    pub sessions: usize,
    /// Reads must reach the device: engines that can bypass the kernel's page cache do so.
    pub bypass_page_cache: bool,
}

impl EngineSettings {
    /// Returns the cache size as reports list it.
    #[must_use]
    pub fn described_cache(&self) -> String {
        self.cache_bytes.map_or_else(|| "default".to_owned(), |bytes| bytes.to_string())
    }
}

/// A measured engine.
pub trait Engine: Send + Sync {
    /// Returns the name in reports, in lower case, such as `rocksdb`.
    fn name(&self) -> &str;

    /// Returns the engine's own settings that matter for the figures, such as its version, its durability
    /// mode and its kind of table.
    fn describe(&self, settings: &EngineSettings) -> BTreeMap<String, String>;

    /// Returns whether the engine supports [`Session::write_async`].
    fn pipelines(&self) -> bool {
        false
    }

    /// Returns whether transactions that read and then write are isolated from each other. Workloads that
    /// depend on isolation are not run on an engine without it.
    fn isolates(&self) -> bool {
        true
    }

    /// Returns the ability that this engine lacks for `workload`, if any. The engine is then excluded from
    /// the workload, which is reported but is no failure.
    fn lacks(&self, workload: &Workload) -> Option<&'static str> {
        let _ = workload;
        None
    }

    /// Returns the largest number of clients with which this engine runs.
    fn most_clients(&self) -> usize {
        usize::MAX
    }

    /// Opens the store in `dir`, which must exist; creates an empty store if the directory is empty.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn open(&self, dir: &Path, settings: &EngineSettings) -> Result<Box<dyn Store>, EngineError>;
}

/// An open store, shared by all threads.
pub trait Store: Send + Sync {
    /// Returns a session for one thread.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn session(&self) -> Result<Box<dyn Session + '_>, EngineError>;

    /// Returns the bytes of log records since the store was opened, without padding to blocks; `None` if the
    /// engine does not count them.
    fn log_bytes(&self) -> Option<u64> {
        None
    }

    /// Closes the store and ends its background work. The default drops the store.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn close(self: Box<Self>) -> Result<(), EngineError> {
        Ok(())
    }
}

/// Steps of a read-only transaction; they may be run more than once.
pub type ReadWork<'a> = dyn FnMut(&mut dyn Reader) -> Result<(), EngineError> + 'a;
/// Steps of a transaction that writes; they may be run more than once.
pub type WriteWork<'a> = dyn FnMut(&mut dyn Writer) -> Result<(), EngineError> + 'a;

/// A session: one thread's access to a store.
pub trait Session {
    /// Runs a read-only transaction over the newest committed state. Returns the number of retries.
    ///
    /// # Errors
    ///
    /// An error of the engine, except conflicts, which are retried.
    fn read(&mut self, work: &mut ReadWork<'_>) -> Result<u64, EngineError>;

    /// Runs a transaction and commits it durably: the commit survives a power failure once this returns.
    /// Returns the number of retries.
    ///
    /// # Errors
    ///
    /// An error of the engine, except conflicts, which are retried.
    fn write(&mut self, work: &mut WriteWork<'_>) -> Result<u64, EngineError>;

    /// Runs a transaction and commits it without waiting until the commit is durable. Other transactions see
    /// its effects at once. Returns the number of retries and a ticket for the commit.
    ///
    /// # Errors
    ///
    /// An error of the engine, except conflicts, which are retried. Engines without asynchronous commits
    /// return an error.
    fn write_async(&mut self, _work: &mut WriteWork<'_>) -> Result<(u64, Box<dyn Ticket>), EngineError> {
        Err(EngineError::failed("committing asynchronously", "this engine has no asynchronous commit"))
    }

    /// Fills the empty store with all records, in ascending order, with the engine's bulk loader; the result
    /// is durable. Returns the number of records. Returns `None`, without reading `records`, if the engine
    /// has no bulk loader or does not use it.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn bulk_load(&mut self, _records: &mut dyn Iterator<Item = Record>) -> Result<Option<u64>, EngineError> {
        Ok(None)
    }
}

/// The handle of a commit that may not be durable yet.
pub trait Ticket {
    /// Returns whether the commit is durable. Never blocks.
    ///
    /// # Errors
    ///
    /// The log failed: the commit may be lost.
    fn is_durable(&self) -> Result<bool, EngineError>;

    /// Waits until the commit is durable.
    ///
    /// # Errors
    ///
    /// The log failed: the commit may be lost.
    fn wait(self: Box<Self>) -> Result<(), EngineError>;
}

/// Reads inside a transaction.
pub trait Reader {
    /// Passes the value of a key to the sink, if the key exists. Returns whether it exists.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError>;

    /// Passes up to `limit` records in key order to the sink, beginning at the first key not below `from`.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError>;

    /// Passes up to `limit` records in descending key order to the sink, beginning at the last key.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn scan_back(&mut self, limit: u64, sink: &mut Sink) -> Result<(), EngineError>;
}

/// Reads and writes inside a transaction.
pub trait Writer: Reader {
    /// Announces the keys that the transaction will write or remove, if the engine has a call for it.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn prefetch(&mut self, keys: &[&[u8]]) -> Result<(), EngineError> {
        let _ = keys;
        Ok(())
    }

    /// Inserts a key or replaces its value.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError>;

    /// Reads a key, as [`Reader::get`] does, before the transaction writes it. Locking engines acquire the
    /// lock for the write at once.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn get_for_update(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        self.get(key, sink)
    }

    /// Removes an existing key.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn remove(&mut self, key: &[u8]) -> Result<(), EngineError>;

    /// Inserts a key above all existing keys, with the engine's faster method for this case if it has one.
    ///
    /// # Errors
    ///
    /// An error of the engine.
    fn append(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        self.put(key, value)
    }
}

/// Destination of the records that are read. A sink counts and touches records in place, so that engines need
/// not copy them, or keeps copies.
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

/// A key and its value.
pub type Record = (Vec<u8>, Vec<u8>);

impl Sink {
    /// Returns a sink that verifies each value as well (about 20 ns for 100 bytes).
    #[must_use]
    pub fn checking() -> Self {
        Self { checks: true, ..Self::default() }
    }

    /// Returns a sink that reads every byte of each value if `touches` is true, and the first eight bytes
    /// otherwise.
    #[must_use]
    pub fn touching(touches: bool) -> Self {
        Self { touches, ..Self::default() }
    }

    /// Returns a sink that keeps copies of its records.
    #[must_use]
    pub fn keeping() -> Self {
        Self { kept: Some(Vec::new()), ..Self::default() }
    }

    /// Returns the records kept so far, and removes them from the sink.
    pub fn take(&mut self) -> Vec<Record> {
        self.kept.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Adds a record: counts it, and reads as much of its value as the sink's mode requires.
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

    /// Returns whether engines must pass each value whole, to [`add`](Self::add).
    #[must_use]
    pub const fn needs_whole(&self) -> bool {
        self.checks || self.kept.is_some()
    }

    /// Returns whether the sink reads every byte of each value.
    #[must_use]
    pub const fn touches(&self) -> bool {
        self.touches
    }

    /// Adds a record, as [`add`](Self::add) does, given the beginning of a lent value of `len` bytes; eight
    /// bytes are enough. If the sink [touches](Self::touches) values, the engine passes all bytes to
    /// [`touch`](Self::touch) afterward.
    #[inline]
    pub fn add_start(&mut self, key: &[u8], start: &[u8], len: u64) {
        self.records += 1;
        self.bytes += key.len() as u64 + len;
        self.mixed = self.mixed.rotate_left(5) ^ head(key) ^ head(start);
    }

    /// Reads every byte of the next piece of a value. The length of each piece but the last is a multiple of
    /// 8.
    pub fn touch(&mut self, piece: &[u8]) {
        self.mixed = self.mixed.wrapping_add(sum(piece));
    }

    /// Returns the number of added records.
    #[must_use]
    pub const fn records(&self) -> u64 {
        self.records
    }

    /// Returns the bytes of keys and values of the added records.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of values that no client wrote; 0 unless the sink is [checking](Self::checking).
    #[must_use]
    pub const fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Returns a number that depends on every record, so that the compiler cannot remove any read.
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

/// Returns the sum of all words: one addition per word, so the speed is limited by memory.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().fold(head(rest), |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

/// Runs `attempt` until it does not end in a conflict, with longer and longer sleeps after the second
/// conflict. Returns its result and the number of retries. For adapters of engines that do not retry by
/// themselves.
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
