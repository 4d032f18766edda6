//! LMDB (through heed): one writer, copy on write, two syncs per commit; readers map the file.
//!
//! The cache setting does not apply: the kernel's page cache is LMDB's cache.

use super::{described, failed};
use azekura_lab::engine::{ReadWork, WriteWork};
use azekura_lab::{Engine, EngineError, EngineSettings, Reader, Session, Sink, Store, Writer};
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, PutFlags, RoTxn, RwTxn};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;

/// The engine.
#[derive(Debug)]
pub(crate) struct Lmdb;

type Table = Database<Bytes, Bytes>;

impl Engine for Lmdb {
    fn name(&self) -> &str {
        "lmdb"
    }

    fn describe(&self, settings: &EngineSettings) -> BTreeMap<String, String> {
        let version = heed::lmdb_version();
        described([
            ("version", format!("{}.{}.{}", version.major, version.minor, version.patch)),
            ("durability", "sync on commit".into()),
            ("read_ahead", (!settings.bypass_page_cache).to_string()),
        ])
    }

    fn open(&self, dir: &Path, settings: &EngineSettings) -> Result<Box<dyn Store>, EngineError> {
        let map = usize::try_from(settings.expected_bytes * 8 + (1 << 30)).unwrap_or(usize::MAX);
        let mut options = EnvOpenOptions::new();
        options.map_size(map.next_multiple_of(1 << 20)).max_readers(settings.sessions as u32 + 8);
        let flags = if settings.bypass_page_cache { EnvFlags::NO_READ_AHEAD } else { EnvFlags::empty() };
        // SAFETY: no flag weakens safety. No other process or handle has this environment open: the runner
        // opens one store at a time, in a directory of its own.
        let env = unsafe { options.flags(flags).open(dir) }.map_err(failed("opening"))?;
        let mut txn = env.write_txn().map_err(failed("beginning"))?;
        let table = env.create_database(&mut txn, None).map_err(failed("creating the table"))?;
        txn.commit().map_err(failed("committing"))?;
        Ok(Box::new(LmdbStore { env, table }))
    }
}

struct LmdbStore {
    env: Env,
    table: Table,
}

impl Store for LmdbStore {
    fn session(&self) -> Result<Box<dyn Session + '_>, EngineError> {
        Ok(Box::new(LmdbSession(self)))
    }

    fn close(self: Box<Self>) -> Result<(), EngineError> {
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

struct LmdbSession<'s>(&'s LmdbStore);

impl Session for LmdbSession<'_> {
    fn read(&mut self, work: &mut ReadWork<'_>) -> Result<u64, EngineError> {
        let txn = self.0.env.read_txn().map_err(failed("beginning"))?;
        work(&mut Reads { table: self.0.table, txn: &txn })?;
        Ok(0)
    }

    fn write(&mut self, work: &mut WriteWork<'_>) -> Result<u64, EngineError> {
        let mut txn = self.0.env.write_txn().map_err(failed("beginning"))?;
        work(&mut Writes { table: self.0.table, txn: &mut txn })?;
        txn.commit().map_err(failed("committing"))?;
        Ok(0)
    }
}

struct Reads<'t, 'e> {
    table: Table,
    txn: &'t RoTxn<'e>,
}

impl Reader for Reads<'_, '_> {
    fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        get(self.table, self.txn, key, sink)
    }

    fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        scan(self.table, self.txn, from, limit, sink)
    }

    fn scan_back(&mut self, limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        scan_back(self.table, self.txn, limit, sink)
    }
}

struct Writes<'t, 'e> {
    table: Table,
    txn: &'t mut RwTxn<'e>,
}

impl Reader for Writes<'_, '_> {
    fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        get(self.table, self.txn, key, sink)
    }

    fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        scan(self.table, self.txn, from, limit, sink)
    }

    fn scan_back(&mut self, limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        scan_back(self.table, self.txn, limit, sink)
    }
}

impl Writer for Writes<'_, '_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        self.table.put(self.txn, key, value).map_err(failed("writing"))
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), EngineError> {
        self.table.delete(self.txn, key).map_err(failed("removing"))?;
        Ok(())
    }

    fn append(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        self.table.put_with_flags(self.txn, PutFlags::APPEND, key, value).map_err(failed("appending"))
    }
}

fn get(table: Table, txn: &RoTxn<'_>, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
    let value = table.get(txn, key).map_err(failed("reading"))?;
    Ok(value.inspect(|value| sink.add(key, value)).is_some())
}

fn scan(table: Table, txn: &RoTxn<'_>, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
    // LMDB has no empty keys: a scan from the beginning has no lower bound.
    let lower = if from.is_empty() { Bound::Unbounded } else { Bound::Included(from) };
    let bounds: (Bound<&[u8]>, Bound<&[u8]>) = (lower, Bound::Unbounded);
    let records = table.range(txn, &bounds).map_err(failed("scanning"))?;
    for record in records.take(usize::try_from(limit).unwrap_or(usize::MAX)) {
        let (key, value) = record.map_err(failed("scanning"))?;
        sink.add(key, value);
    }
    Ok(())
}

fn scan_back(table: Table, txn: &RoTxn<'_>, limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
    let records = table.rev_iter(txn).map_err(failed("scanning"))?;
    for record in records.take(usize::try_from(limit).unwrap_or(usize::MAX)) {
        let (key, value) = record.map_err(failed("scanning"))?;
        sink.add(key, value);
    }
    Ok(())
}
