//! fjall: an LSM tree with a journal, with both of its kinds of transactions.
//!
//! - `fjall-occ`: optimistic transactions; each commit syncs the journal.
//! - `fjall-sw`: one writer at a time. A commit is synced after the writer lock is released, so that one sync
//!   can serve several writers.

use super::{described, failed};
use azekura_lab::engine::{ReadWork, WriteWork, retry_conflicts};
use azekura_lab::{Engine, EngineError, EngineSettings, Reader, Session, Sink, Store, Writer};
use fjall::{
    KeyspaceCreateOptions, OptimisticTxDatabase, OptimisticTxKeyspace, PersistMode, Readable,
    SingleWriterTxDatabase, SingleWriterTxKeyspace, Snapshot,
};
use std::collections::BTreeMap;
use std::path::Path;

/// The engine, with one of the two kinds of transactions.
#[derive(Debug)]
pub(crate) struct Fjall {
    name: &'static str,
    optimistic: bool,
}

impl Fjall {
    /// Returns the engine with optimistic transactions.
    #[must_use]
    pub(crate) const fn optimistic() -> Self {
        Self { name: "fjall-occ", optimistic: true }
    }

    /// Returns the engine with one writer at a time.
    #[must_use]
    pub(crate) const fn single_writer() -> Self {
        Self { name: "fjall-sw", optimistic: false }
    }
}

impl Engine for Fjall {
    fn name(&self) -> &str {
        self.name
    }

    fn describe(&self, settings: &EngineSettings) -> BTreeMap<String, String> {
        described([
            ("version", "3.1".into()),
            ("durability", "fdatasync of the journal".into()),
            ("cache_bytes", settings.described_cache()),
        ])
    }

    fn open(&self, dir: &Path, settings: &EngineSettings) -> Result<Box<dyn Store>, EngineError> {
        let options = KeyspaceCreateOptions::default;
        if self.optimistic {
            let mut builder = OptimisticTxDatabase::builder(dir);
            if let Some(bytes) = settings.cache_bytes {
                builder = builder.cache_size(bytes);
            }
            let database = builder.open().map_err(failed("opening"))?;
            let table = database.keyspace("kv", options).map_err(failed("opening the table"))?;
            Ok(Box::new(Optimistic { database, table }))
        } else {
            let mut builder = SingleWriterTxDatabase::builder(dir);
            if let Some(bytes) = settings.cache_bytes {
                builder = builder.cache_size(bytes);
            }
            let database = builder.open().map_err(failed("opening"))?;
            let table = database.keyspace("kv", options).map_err(failed("opening the table"))?;
            Ok(Box::new(SingleWriter { database, table }))
        }
    }
}

struct Optimistic {
    database: OptimisticTxDatabase,
    table: OptimisticTxKeyspace,
}

impl Store for Optimistic {
    fn session(&self) -> Result<Box<dyn Session + '_>, EngineError> {
        Ok(Box::new(OptimisticSession(self)))
    }
}

struct OptimisticSession<'s>(&'s Optimistic);

impl Session for OptimisticSession<'_> {
    fn read(&mut self, work: &mut ReadWork<'_>) -> Result<u64, EngineError> {
        work(&mut Reads { table: self.0.table.as_ref(), snapshot: self.0.database.read_tx() })?;
        Ok(0)
    }

    fn write(&mut self, work: &mut WriteWork<'_>) -> Result<u64, EngineError> {
        let ((), retries) = retry_conflicts(|| {
            let txn = self.0.database.write_tx().map_err(failed("beginning"))?;
            let mut writes =
                OptimisticWrites { table: &self.0.table, txn: txn.durability(Some(PersistMode::SyncData)) };
            work(&mut writes)?;
            let committed = writes.txn.commit().map_err(failed("committing"))?;
            committed.map_err(|conflict| EngineError::conflict("committing", conflict))
        })?;
        Ok(retries)
    }
}

struct OptimisticWrites<'s> {
    table: &'s OptimisticTxKeyspace,
    txn: fjall::OptimisticWriteTx,
}

impl Reader for OptimisticWrites<'_> {
    fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        get(&self.txn, self.table.as_ref(), key, sink)
    }

    fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        scan(&self.txn, self.table.as_ref(), from, limit, sink)
    }

    fn scan_back(&mut self, limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        scan_back(&self.txn, self.table.as_ref(), limit, sink)
    }
}

impl Writer for OptimisticWrites<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        self.txn.insert(self.table, key, value);
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), EngineError> {
        self.txn.remove(self.table, key);
        Ok(())
    }
}

struct SingleWriter {
    database: SingleWriterTxDatabase,
    table: SingleWriterTxKeyspace,
}

impl Store for SingleWriter {
    fn session(&self) -> Result<Box<dyn Session + '_>, EngineError> {
        Ok(Box::new(SingleWriterSession(self)))
    }
}

struct SingleWriterSession<'s>(&'s SingleWriter);

impl Session for SingleWriterSession<'_> {
    fn read(&mut self, work: &mut ReadWork<'_>) -> Result<u64, EngineError> {
        work(&mut Reads { table: self.0.table.as_ref(), snapshot: self.0.database.read_tx() })?;
        Ok(0)
    }

    fn write(&mut self, work: &mut WriteWork<'_>) -> Result<u64, EngineError> {
        let mut writes =
            SingleWrites { table: &self.0.table, txn: self.0.database.write_tx().durability(None) };
        work(&mut writes)?;
        writes.txn.commit().map_err(failed("committing"))?;
        self.0.database.persist(PersistMode::SyncData).map_err(failed("syncing the journal"))?;
        Ok(0)
    }
}

struct SingleWrites<'s> {
    table: &'s SingleWriterTxKeyspace,
    txn: fjall::SingleWriterWriteTx<'s>,
}

impl Reader for SingleWrites<'_> {
    fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        get(&self.txn, self.table.as_ref(), key, sink)
    }

    fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        scan(&self.txn, self.table.as_ref(), from, limit, sink)
    }

    fn scan_back(&mut self, limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        scan_back(&self.txn, self.table.as_ref(), limit, sink)
    }
}

impl Writer for SingleWrites<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        self.txn.insert(self.table, key, value);
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), EngineError> {
        self.txn.remove(self.table, key);
        Ok(())
    }
}

struct Reads<'s> {
    table: &'s fjall::Keyspace,
    snapshot: Snapshot,
}

impl Reader for Reads<'_> {
    fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        get(&self.snapshot, self.table, key, sink)
    }

    fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        scan(&self.snapshot, self.table, from, limit, sink)
    }

    fn scan_back(&mut self, limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        scan_back(&self.snapshot, self.table, limit, sink)
    }
}

fn get(
    from: &impl Readable,
    table: &fjall::Keyspace,
    key: &[u8],
    sink: &mut Sink,
) -> Result<bool, EngineError> {
    let value = from.get(table, key).map_err(failed("reading"))?;
    Ok(value.inspect(|value| sink.add(key, value)).is_some())
}

fn scan(
    snapshot: &impl Readable,
    table: &fjall::Keyspace,
    from: &[u8],
    limit: u64,
    sink: &mut Sink,
) -> Result<(), EngineError> {
    let records = snapshot.range(table, from..);
    for record in records.take(usize::try_from(limit).unwrap_or(usize::MAX)) {
        let (key, value) = record.into_inner().map_err(failed("scanning"))?;
        sink.add(&key, &value);
    }
    Ok(())
}

fn scan_back(
    snapshot: &impl Readable,
    table: &fjall::Keyspace,
    limit: u64,
    sink: &mut Sink,
) -> Result<(), EngineError> {
    let records = snapshot.iter(table).rev();
    for record in records.take(usize::try_from(limit).unwrap_or(usize::MAX)) {
        let (key, value) = record.into_inner().map_err(failed("scanning"))?;
        sink.add(&key, &value);
    }
    Ok(())
}
