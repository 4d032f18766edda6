//! redb: one writer, copy-on-write B-tree, one sync per commit (its default one-phase commit).

use super::{described, failed};
use azekura_lab::engine::{ReadWork, WriteWork};
use azekura_lab::{Engine, EngineError, EngineSettings, Reader, Session, Sink, Store, Writer};
use redb::{Database, ReadableDatabase, ReadableTable, Table, TableDefinition};
use std::collections::BTreeMap;
use std::path::Path;

/// The engine.
#[derive(Debug)]
pub(crate) struct Redb;

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("kv");

impl Engine for Redb {
    fn name(&self) -> &str {
        "redb"
    }

    fn describe(&self, settings: &EngineSettings) -> BTreeMap<String, String> {
        described([
            ("version", "4.4".into()),
            ("durability", "immediate".into()),
            ("cache_bytes", settings.described_cache()),
        ])
    }

    fn open(&self, dir: &Path, settings: &EngineSettings) -> Result<Box<dyn Store>, EngineError> {
        let mut builder = Database::builder();
        if let Some(bytes) = settings.cache_bytes {
            builder.set_cache_size(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        let database = builder.create(dir.join("data.redb")).map_err(failed("opening"))?;
        let txn = database.begin_write().map_err(failed("beginning"))?;
        txn.open_table(TABLE).map_err(failed("creating the table"))?;
        txn.commit().map_err(failed("committing"))?;
        Ok(Box::new(RedbStore(database)))
    }
}

struct RedbStore(Database);

impl Store for RedbStore {
    fn session(&self) -> Result<Box<dyn Session + '_>, EngineError> {
        Ok(Box::new(RedbSession(&self.0)))
    }
}

struct RedbSession<'s>(&'s Database);

impl Session for RedbSession<'_> {
    fn read(&mut self, work: &mut ReadWork<'_>) -> Result<u64, EngineError> {
        let txn = self.0.begin_read().map_err(failed("beginning"))?;
        work(&mut Rows(txn.open_table(TABLE).map_err(failed("opening the table"))?))?;
        Ok(0)
    }

    fn write(&mut self, work: &mut WriteWork<'_>) -> Result<u64, EngineError> {
        let txn = self.0.begin_write().map_err(failed("beginning"))?;
        work(&mut Rows(txn.open_table(TABLE).map_err(failed("opening the table"))?))?;
        txn.commit().map_err(failed("committing"))?;
        Ok(0)
    }
}

/// The table in a transaction.
struct Rows<T>(T);

impl<T: ReadableTable<&'static [u8], &'static [u8]>> Reader for Rows<T> {
    fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        let value = self.0.get(key).map_err(failed("reading"))?;
        Ok(value.inspect(|value| sink.add(key, value.value())).is_some())
    }

    fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        let records = self.0.range(from..).map_err(failed("scanning"))?;
        for record in records.take(usize::try_from(limit).unwrap_or(usize::MAX)) {
            let (key, value) = record.map_err(failed("scanning"))?;
            sink.add(key.value(), value.value());
        }
        Ok(())
    }

    fn scan_back(&mut self, limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        let records = self.0.iter().map_err(failed("scanning"))?.rev();
        for record in records.take(usize::try_from(limit).unwrap_or(usize::MAX)) {
            let (key, value) = record.map_err(failed("scanning"))?;
            sink.add(key.value(), value.value());
        }
        Ok(())
    }
}

impl Writer for Rows<Table<'_, &'static [u8], &'static [u8]>> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        self.0.insert(key, value).map_err(failed("writing"))?;
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), EngineError> {
        self.0.remove(key).map_err(failed("removing"))?;
        Ok(())
    }
}
