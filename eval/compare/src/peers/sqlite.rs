//! SQLite: a `WITHOUT ROWID` table in WAL mode with `synchronous=FULL` (one sync per commit).
//!
//! Each session has a connection with the whole cache size, which favors SQLite with many threads. Writers
//! wait for a mutex here, because SQLite itself would make them poll.

use super::{described, failed};
use azekura_lab::engine::{ReadWork, WriteWork};
use azekura_lab::{Engine, EngineError, EngineSettings, Reader, Session, Sink, Store, Writer};
use rusqlite::{Connection, OptionalExtension, Rows, TransactionBehavior};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The engine.
#[derive(Debug)]
pub(crate) struct Sqlite;

impl Engine for Sqlite {
    fn name(&self) -> &str {
        "sqlite"
    }

    fn describe(&self, settings: &EngineSettings) -> BTreeMap<String, String> {
        described([
            ("version", rusqlite::version().into()),
            ("durability", "journal_mode=WAL, synchronous=FULL".into()),
            ("cache_bytes_per_session", settings.described_cache()),
        ])
    }

    fn open(&self, dir: &Path, settings: &EngineSettings) -> Result<Box<dyn Store>, EngineError> {
        let store = SqliteStore {
            path: dir.join("data.sqlite"),
            cache_kib: settings.cache_bytes.map(|bytes| bytes / 1024),
            writer: Mutex::new(()),
        };
        store
            .connect()?
            .execute_batch(
                "CREATE TABLE IF NOT EXISTS kv (k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID",
            )
            .map_err(failed("creating the table"))?;
        Ok(Box::new(store))
    }
}

struct SqliteStore {
    path: PathBuf,
    /// The cache of a connection in KiB; `None` is SQLite's default.
    cache_kib: Option<u64>,
    /// Held by the session that writes.
    writer: Mutex<()>,
}

impl SqliteStore {
    fn connect(&self) -> Result<Connection, EngineError> {
        let cache = self.cache_kib.map_or_else(String::new, |kib| format!("PRAGMA cache_size=-{kib}"));
        let connection = Connection::open(&self.path).map_err(failed("opening"))?;
        connection
            .execute_batch(&format!(
                "PRAGMA busy_timeout=60000; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; \
                 {cache}; PRAGMA temp_store=MEMORY"
            ))
            .map_err(failed("setting up the connection"))?;
        Ok(connection)
    }
}

impl Store for SqliteStore {
    fn session(&self) -> Result<Box<dyn Session + '_>, EngineError> {
        Ok(Box::new(SqliteSession { connection: self.connect()?, writer: &self.writer }))
    }
}

struct SqliteSession<'s> {
    connection: Connection,
    writer: &'s Mutex<()>,
}

impl Session for SqliteSession<'_> {
    fn read(&mut self, work: &mut ReadWork<'_>) -> Result<u64, EngineError> {
        // Each statement is a read transaction of its own. Several operations in one transaction are rare
        // here.
        work(&mut Steps(&self.connection))?;
        Ok(0)
    }

    fn write(&mut self, work: &mut WriteWork<'_>) -> Result<u64, EngineError> {
        let _writer = self.writer.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let txn = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(failed("beginning"))?;
        work(&mut Steps(&txn))?;
        txn.commit().map_err(failed("committing"))?;
        Ok(0)
    }
}

struct Steps<'c>(&'c Connection);

impl Reader for Steps<'_> {
    fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        let mut statement =
            self.0.prepare_cached("SELECT v FROM kv WHERE k = ?").map_err(failed("preparing"))?;
        let found = statement
            .query_row([key], |row| {
                sink.add(key, row.get_ref(0)?.as_blob()?);
                Ok(())
            })
            .optional()
            .map_err(failed("reading"))?;
        Ok(found.is_some())
    }

    fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        let mut statement = self
            .0
            .prepare_cached("SELECT k, v FROM kv WHERE k >= ? ORDER BY k LIMIT ?")
            .map_err(failed("preparing"))?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        show(statement.query((from, limit)).map_err(failed("scanning"))?, sink)
    }

    fn scan_back(&mut self, limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        let mut statement = self
            .0
            .prepare_cached("SELECT k, v FROM kv ORDER BY k DESC LIMIT ?")
            .map_err(failed("preparing"))?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        show(statement.query([limit]).map_err(failed("scanning"))?, sink)
    }
}

/// Passes all rows to the sink.
fn show(mut rows: Rows<'_>, sink: &mut Sink) -> Result<(), EngineError> {
    while let Some(row) = rows.next().map_err(failed("scanning"))? {
        let key = row.get_ref(0).map_err(failed("scanning"))?;
        let value = row.get_ref(1).map_err(failed("scanning"))?;
        sink.add(key.as_blob().map_err(failed("scanning"))?, value.as_blob().map_err(failed("scanning"))?);
    }
    Ok(())
}

impl Writer for Steps<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        let mut statement = self
            .0
            .prepare_cached("INSERT INTO kv VALUES (?, ?) ON CONFLICT (k) DO UPDATE SET v = excluded.v")
            .map_err(failed("preparing"))?;
        statement.execute((key, value)).map_err(failed("writing"))?;
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), EngineError> {
        let mut statement =
            self.0.prepare_cached("DELETE FROM kv WHERE k = ?").map_err(failed("preparing"))?;
        statement.execute([key]).map_err(failed("removing"))?;
        Ok(())
    }
}
