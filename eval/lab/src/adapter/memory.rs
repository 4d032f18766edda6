//! A `BTreeMap` behind a lock: the reference engine for tests of the runner, and a measure of the runner's
//! own cost.
//!
//! Nothing is written to disk, so the engine's figures show only the cost of measuring. Commits become
//! durable in order: waiting for one makes all earlier ones durable too.

use crate::engine::{
    Engine, EngineSettings, ReadWork, Reader, Session, Sink, Store, Ticket, WriteWork, Writer,
};
use crate::error::EngineError;
use azekura_base::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use azekura_base::sync::{Arc, Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::path::{Path, PathBuf};

/// An engine with one in-memory store per directory; the stores exist as long as the engine.
#[derive(Debug, Default)]
pub struct MemoryEngine {
    stores: Mutex<HashMap<PathBuf, Arc<Data>>>,
}

#[derive(Debug, Default)]
struct Data {
    records: RwLock<BTreeMap<Vec<u8>, Vec<u8>>>,
    log_bytes: AtomicU64,
    /// Number of the newest commit. Written under the write lock of `records`.
    committed: AtomicU64,
    /// Number of the newest durable commit; all earlier ones are durable too. Raised by waiting threads.
    durable: AtomicU64,
}

impl Engine for MemoryEngine {
    fn name(&self) -> &str {
        "memory"
    }

    fn describe(&self, _settings: &EngineSettings) -> BTreeMap<String, String> {
        BTreeMap::from([("durability".into(), "none".into())])
    }

    fn pipelines(&self) -> bool {
        true
    }

    fn open(&self, dir: &Path, _settings: &EngineSettings) -> Result<Box<dyn Store>, EngineError> {
        let mut stores = self.stores.lock();
        // A directory without the marker file was emptied by the caller, so its store starts empty.
        let marker = dir.join("in-memory");
        if !marker.exists() {
            stores.remove(dir);
            std::fs::write(&marker, "").map_err(|e| EngineError::failed("opening", e))?;
        }
        Ok(Box::new(MemoryStore(Arc::clone(stores.entry(dir.to_owned()).or_default()))))
    }
}

struct MemoryStore(Arc<Data>);

impl Store for MemoryStore {
    fn session(&self) -> Result<Box<dyn Session + '_>, EngineError> {
        Ok(Box::new(MemorySession(&self.0)))
    }

    fn log_bytes(&self) -> Option<u64> {
        // Relaxed: a statistic; no other data depends on its value.
        Some(self.0.log_bytes.load(Relaxed))
    }
}

struct MemorySession<'s>(&'s Arc<Data>);

impl MemorySession<'_> {
    fn commit(&self, work: &mut WriteWork<'_>) -> Result<u64, EngineError> {
        let mut records = self.0.records.write();
        let mut writes = Writes { records: &mut records, before: Vec::new(), log_bytes: 0 };
        if let Err(error) = work(&mut writes) {
            writes.undo();
            return Err(error);
        }
        self.0.log_bytes.fetch_add(writes.log_bytes, Relaxed);
        Ok(self.0.committed.fetch_add(1, SeqCst) + 1)
    }
}

impl Session for MemorySession<'_> {
    fn read(&mut self, work: &mut ReadWork<'_>) -> Result<u64, EngineError> {
        work(&mut Reads(&self.0.records.read()))?;
        Ok(0)
    }

    fn write(&mut self, work: &mut WriteWork<'_>) -> Result<u64, EngineError> {
        let number = self.commit(work)?;
        self.0.durable.fetch_max(number, SeqCst);
        Ok(0)
    }

    fn write_async(&mut self, work: &mut WriteWork<'_>) -> Result<(u64, Box<dyn Ticket>), EngineError> {
        let number = self.commit(work)?;
        Ok((0, Box::new(MemoryTicket { data: Arc::clone(self.0), number })))
    }
}

struct MemoryTicket {
    data: Arc<Data>,
    number: u64,
}

impl Ticket for MemoryTicket {
    fn is_durable(&self) -> Result<bool, EngineError> {
        Ok(self.data.durable.load(SeqCst) >= self.number)
    }

    fn wait(self: Box<Self>) -> Result<(), EngineError> {
        self.data.durable.fetch_max(self.data.committed.load(SeqCst), SeqCst);
        Ok(())
    }
}

struct Reads<'r>(&'r BTreeMap<Vec<u8>, Vec<u8>>);

impl Reader for Reads<'_> {
    fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        Ok(get(self.0, key, sink))
    }

    fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        scan(self.0, from, limit, sink);
        Ok(())
    }

    fn scan_back(&mut self, limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        scan_back(self.0, limit, sink);
        Ok(())
    }
}

struct Writes<'w> {
    records: &'w mut BTreeMap<Vec<u8>, Vec<u8>>,
    /// Key and old value of each write.
    before: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    log_bytes: u64,
}

impl Writes<'_> {
    fn undo(&mut self) {
        for (key, value) in std::mem::take(&mut self.before).into_iter().rev() {
            match value {
                Some(value) => self.records.insert(key, value),
                None => self.records.remove(&key),
            };
        }
    }
}

impl Reader for Writes<'_> {
    fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        Ok(get(self.records, key, sink))
    }

    fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        scan(self.records, from, limit, sink);
        Ok(())
    }

    fn scan_back(&mut self, limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        scan_back(self.records, limit, sink);
        Ok(())
    }
}

impl Writer for Writes<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        let before = self.records.insert(key.to_vec(), value.to_vec());
        self.before.push((key.to_vec(), before));
        self.log_bytes += (key.len() + value.len()) as u64;
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), EngineError> {
        let before = self.records.remove(key);
        self.before.push((key.to_vec(), before));
        self.log_bytes += key.len() as u64;
        Ok(())
    }
}

fn get(records: &BTreeMap<Vec<u8>, Vec<u8>>, key: &[u8], sink: &mut Sink) -> bool {
    let value = records.get(key);
    value.inspect(|value| sink.add(key, value)).is_some()
}

fn scan(records: &BTreeMap<Vec<u8>, Vec<u8>>, from: &[u8], limit: u64, sink: &mut Sink) {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    for (key, value) in records.range::<[u8], _>((Bound::Included(from), Bound::Unbounded)).take(limit) {
        sink.add(key, value);
    }
}

fn scan_back(records: &BTreeMap<Vec<u8>, Vec<u8>>, limit: u64, sink: &mut Sink) {
    for (key, value) in records.iter().rev().take(usize::try_from(limit).unwrap_or(usize::MAX)) {
        sink.add(key, value);
    }
}
