//! The Azekura store: one table of byte keys and byte values.
//!
//! By default, each read-only transaction locks the rows that it reads, as every transaction of the store
//! does. The variant [`snapshots`](AzekuraEngine::snapshots) reads from a snapshot instead; its read ends
//! when the commits that the snapshot shows are durable. Asynchronous commits use the store's commit tickets.

use crate::engine::{
    Engine, EngineSettings, ReadWork, Reader, Record, Session, Sink, Store, Ticket, WriteWork, Writer,
    retry_conflicts,
};
use crate::error::EngineError;
use azekura::{
    CommitTicket, Database, Error, ErrorKind, Limit, LogProtocol, RowRef, SnapshotTable, Table,
    TableDefinition, Transaction, ValueRef,
};
use azekura_io::Fs;
use azekura_trace::{Operation, operation};
use azekura_workload::{Family, Workload};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// The Azekura engine; a setting that is `None` is left to the store.
#[derive(Debug, Clone, Default)]
pub struct AzekuraEngine {
    page_bytes: Option<usize>,
    log_buffers: Option<usize>,
    wal_streams: Option<usize>,
    wal_segment_bytes: Option<u64>,
    fs: Option<Arc<dyn Fs>>,
    log: LogProtocol,
    bulk: bool,
    snapshots: bool,
    encrypted: bool,
    /// Name of a variant; `None` is [`OURS`](crate::table::OURS).
    name: Option<String>,
}

/// Traced operation around a whole transaction of the workload, retries included.
static TRANSACTION: Operation = Operation::new("transaction");

const TABLE: TableDefinition<[u8], [u8]> = TableDefinition::new("kv");

impl AzekuraEngine {
    /// Sets the page size in bytes.
    #[must_use]
    pub const fn page_bytes(mut self, bytes: usize) -> Self {
        self.page_bytes = Some(bytes);
        self
    }

    /// Sets the number of log buffers; the default is the store's own choice.
    #[must_use]
    pub const fn log_buffers(mut self, workers: usize) -> Self {
        self.log_buffers = Some(workers);
        self
    }

    /// Sets the log protocol, which becomes part of the engine's name.
    #[must_use]
    pub fn log(mut self, log: LogProtocol) -> Self {
        self.log = log;
        self.named()
    }

    /// Uses the bulk loader for loads and refuses all other workloads; `-bulk` is added to the engine's name.
    #[must_use]
    pub fn bulk(mut self) -> Self {
        self.bulk = true;
        self.named()
    }

    /// Runs read-only transactions on snapshots, without locks; `-snapshot` is added to the engine's name.
    #[must_use]
    pub fn snapshots(mut self) -> Self {
        self.snapshots = true;
        self.named()
    }

    /// Encrypts the store; `-encrypted` is added to the engine's name.
    #[must_use]
    pub fn encrypted(mut self) -> Self {
        self.encrypted = true;
        self.named()
    }

    const fn way(&self) -> Way {
        Way { bulk: self.bulk, snapshots: self.snapshots }
    }

    fn named(mut self) -> Self {
        let mut name = crate::table::OURS.to_owned();
        if self.log != LogProtocol::default() {
            name = format!("{name}-{}", self.log).replace(':', "-");
        }
        if self.bulk {
            name.push_str("-bulk");
        }
        if self.snapshots {
            name.push_str("-snapshot");
        }
        if self.encrypted {
            name.push_str("-encrypted");
        }
        self.name = Some(name);
        self
    }

    /// Sets the number of log streams; the default is the store's own choice.
    #[must_use]
    pub const fn wal_streams(mut self, streams: usize) -> Self {
        self.wal_streams = Some(streams);
        self
    }

    /// Sets the size of log files in bytes.
    #[must_use]
    pub const fn wal_segment_bytes(mut self, bytes: u64) -> Self {
        self.wal_segment_bytes = Some(bytes);
        self
    }

    /// Sets the file system of the store; the default is the operating system's. Reports do not mention this
    /// setting.
    #[must_use]
    pub fn file_system(mut self, fs: Arc<dyn Fs>) -> Self {
        self.fs = Some(fs);
        self
    }
}

/// Settings of a session.
#[derive(Debug, Clone, Copy, Default)]
struct Way {
    bulk: bool,
    snapshots: bool,
}

impl Engine for AzekuraEngine {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(crate::table::OURS)
    }

    fn describe(&self, settings: &EngineSettings) -> BTreeMap<String, String> {
        let chosen = |value: Option<usize>| value.map_or_else(|| "default".to_owned(), |v| v.to_string());
        BTreeMap::from([
            ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("durability".to_owned(), "immediate".to_owned()),
            ("isolation".to_owned(), "serializable".to_owned()),
            ("cache_bytes".to_owned(), settings.described_cache()),
            ("page_bytes".to_owned(), chosen(self.page_bytes)),
            ("log".to_owned(), self.log.to_string()),
            ("log_buffers".to_owned(), chosen(self.log_buffers)),
            ("wal_streams".to_owned(), chosen(self.wal_streams)),
        ])
    }

    fn pipelines(&self) -> bool {
        !self.bulk
    }

    /// The bulk loader needs an empty table, so only one client can use it.
    fn most_clients(&self) -> usize {
        if self.bulk { 1 } else { usize::MAX }
    }

    fn lacks(&self, workload: &Workload) -> Option<&'static str> {
        if self.bulk && workload.family() != Family::Load {
            return Some("a bulk loader only");
        }
        let only_writes = matches!(workload.family(), Family::U1 | Family::U10) || workload.is_load();
        (self.snapshots && only_writes).then_some("other reads only")
    }

    fn open(&self, dir: &Path, settings: &EngineSettings) -> Result<Box<dyn Store>, EngineError> {
        let mut builder = Database::builder().log_protocol(self.log).direct_pages(settings.bypass_page_cache);
        if let Some(bytes) = settings.cache_bytes {
            builder = builder.cache_bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        if let Some(bytes) = self.page_bytes {
            builder = builder.page_size(bytes);
        }
        if let Some(workers) = self.log_buffers {
            builder = builder.log_buffers(workers);
        }
        if let Some(streams) = self.wal_streams {
            builder = builder.wal_streams(streams);
        }
        if let Some(bytes) = self.wal_segment_bytes {
            builder = builder.wal_segment_bytes(bytes);
        }
        if self.encrypted {
            builder = builder.encryption_key(&[7; 32]);
        }
        if let Some(fs) = &self.fs {
            builder = builder.file_system(Arc::clone(fs));
        }
        Ok(Box::new(AzekuraStore { db: builder.open(dir).map_err(failed("opening"))?, way: self.way() }))
    }
}

/// Returns a function that wraps an error of the store; retryable errors become conflicts.
fn failed(doing: &'static str) -> impl Fn(Error) -> EngineError {
    move |error| match error.kind() {
        ErrorKind::Conflict => EngineError::conflict(doing, error),
        _ => EngineError::failed(doing, error),
    }
}

struct AzekuraStore {
    db: Database,
    way: Way,
}

impl Store for AzekuraStore {
    fn session(&self) -> Result<Box<dyn Session + '_>, EngineError> {
        Ok(Box::new(AzekuraSession { db: &self.db, way: self.way }))
    }

    fn log_bytes(&self) -> Option<u64> {
        Some(self.db.stats().log.record_bytes)
    }

    fn close(self: Box<Self>) -> Result<(), EngineError> {
        self.db.close().map_err(failed("closing"))
    }
}

/// Returns a session on an open store, for one thread.
pub(crate) fn session(db: &Database) -> Box<dyn Session + '_> {
    Box::new(AzekuraSession { db, way: Way::default() })
}

/// Returns a session as [`session`] does, with read-only transactions on snapshots.
pub(crate) fn snapshot_session(db: &Database) -> Box<dyn Session + '_> {
    Box::new(AzekuraSession { db, way: Way { snapshots: true, ..Way::default() } })
}

struct AzekuraSession<'s> {
    db: &'s Database,
    way: Way,
}

impl AzekuraSession<'_> {
    /// Runs `work` in a transaction and ends it with `commit`, again until no conflict occurs. Returns the
    /// result of `commit` and the number of retries.
    fn transact<T>(
        &self,
        mut work: impl FnMut(&mut Steps<'_>) -> Result<(), EngineError>,
        commit: impl Fn(Transaction) -> Result<T, Error>,
    ) -> Result<(T, u64), EngineError> {
        let _transaction = operation(&TRANSACTION);
        retry_conflicts(|| {
            let tx = self.db.begin().map_err(failed("beginning"))?;
            work(&mut Steps(tx.table(&TABLE).map_err(failed("opening the table"))?))?;
            commit(tx).map_err(failed("committing"))
        })
    }
}

impl Session for AzekuraSession<'_> {
    fn read(&mut self, work: &mut ReadWork<'_>) -> Result<u64, EngineError> {
        if self.way.snapshots {
            let _transaction = operation(&TRANSACTION);
            let snapshot = self.db.snapshot().map_err(failed("opening a snapshot"))?;
            work(&mut SnapshotSteps(snapshot.table(&TABLE).map_err(failed("opening the table"))?))?;
            snapshot.wait_durable().map_err(failed("waiting for the snapshot's commits"))?;
            return Ok(0);
        }
        Ok(self.transact(|steps| work(steps), Transaction::commit)?.1)
    }

    fn write(&mut self, work: &mut WriteWork<'_>) -> Result<u64, EngineError> {
        Ok(self.transact(|steps| work(steps), Transaction::commit)?.1)
    }

    fn write_async(&mut self, work: &mut WriteWork<'_>) -> Result<(u64, Box<dyn Ticket>), EngineError> {
        let (ticket, retries) = self.transact(|steps| work(steps), Transaction::commit_async)?;
        Ok((retries, Box::new(AzekuraTicket(ticket))))
    }

    fn bulk_load(&mut self, records: &mut dyn Iterator<Item = Record>) -> Result<Option<u64>, EngineError> {
        if !self.way.bulk {
            return Ok(None);
        }
        let tx = self.db.begin().map_err(failed("beginning"))?;
        let table = tx.table(&TABLE).map_err(failed("opening the table"))?;
        let loaded = table.bulk_load(records).map_err(failed("loading"))?;
        tx.commit().map_err(failed("committing"))?;
        Ok(Some(loaded))
    }
}

struct AzekuraTicket(CommitTicket);

impl Ticket for AzekuraTicket {
    fn is_durable(&self) -> Result<bool, EngineError> {
        self.0.is_durable().map_err(failed("committing"))
    }

    fn wait(self: Box<Self>) -> Result<(), EngineError> {
        self.0.wait().map_err(failed("committing"))
    }
}

struct Steps<'t>(Table<'t, [u8], [u8]>);

struct SnapshotSteps<'s>(SnapshotTable<'s, [u8], [u8]>);

/// Passes a lent value to the sink, which reads as much of it as it needs.
#[inline]
fn lend(sink: &mut Sink, key: &[u8], value: ValueRef<'_>) -> Result<(), Error> {
    if let Some(bytes) = value.as_slice() {
        sink.add(key, bytes);
        return Ok(());
    }
    if sink.needs_whole() {
        sink.add(key, &value.bytes()?);
        return Ok(());
    }
    if !sink.touches() {
        let mut start = [0; 8];
        let len = value.read_at(0, &mut start)?;
        sink.add_start(key, &start[..len], value.len());
        return Ok(());
    }
    let mut is_first = true;
    value.for_each_piece(|piece| {
        if std::mem::take(&mut is_first) {
            sink.add_start(key, piece, value.len());
        }
        sink.touch(piece);
        Ok(ControlFlow::Continue(()))
    })?;
    if is_first {
        sink.add_start(key, &[], 0);
    }
    Ok(())
}

/// Adds a row to the sink.
#[inline]
fn add(row: RowRef<'_, [u8], [u8]>, sink: &mut Sink) -> Result<ControlFlow<()>, Error> {
    lend(sink, row.key_bytes(), row.value_ref())?;
    Ok(ControlFlow::Continue(()))
}

/// Implements [`Reader`] for tables of transactions and of snapshots. Both types have the same methods, but
/// no common trait.
macro_rules! impl_reader {
    ($steps:ty) => {
        impl Reader for $steps {
            fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
                let found =
                    self.0.with_value(key, |value| lend(sink, key, value)).map_err(failed("reading"))?;
                Ok(found.is_some())
            }

            fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
                let rows = Limit(from.., usize::try_from(limit).unwrap_or(usize::MAX));
                self.0.for_each(rows, |row| add(row, sink)).map_err(failed("scanning"))
            }

            fn scan_back(&mut self, limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
                let rows = Limit(.., usize::try_from(limit).unwrap_or(usize::MAX));
                self.0.for_each_back(rows, |row| add(row, sink)).map_err(failed("scanning"))
            }
        }
    };
}

impl_reader!(Steps<'_>);
impl_reader!(SnapshotSteps<'_>);

impl Writer for Steps<'_> {
    fn prefetch(&mut self, keys: &[&[u8]]) -> Result<(), EngineError> {
        self.0.prefetch(keys.iter().copied()).map_err(failed("announcing"))?;
        Ok(())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        self.0.insert(key, value).map_err(failed("writing"))
    }

    fn get_for_update(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        let found = self.0.get_for_update(key).map_err(failed("reading for update"))?;
        Ok(found.inspect(|value| sink.add(key, value)).is_some())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), EngineError> {
        self.0.remove(key).map_err(failed("removing"))?;
        Ok(())
    }
}
