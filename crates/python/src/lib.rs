//! Python package of the Azekura store: databases, tables as mappings, transactions, snapshots, backup.
//!
//! - **PY-1** Each call into the store runs without the GIL, so a thread that waits for a lock, the log or a
//!   page blocks no other Python thread.
//! - **PY-2** No Python code runs inside a call of the store, except the progress function of a backup, the
//!   key function of an opening, the codec of a row that is removed, and signal handlers. These acquire the
//!   GIL themselves, and hold no latch. They do not run while the interpreter ends: acquiring the GIL would
//!   then panic.
//! - **PY-3** No class needs the GIL: the classes are frozen and `Sync`, except `Rows`, which one thread at a
//!   time borrows; a second thread gets an exception. No Python code runs while a mutex is locked that
//!   another thread waits for, so free-threaded Python can stop all threads for its garbage collector.

mod codec;
mod copies;
mod errors;
mod signals;
mod snapshot;
mod table;
mod ticket;
mod transaction;

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use azekura::Durability;
use pyo3::exceptions::{PyException, PyImportError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use copies::{Shown, builder, with_key};
use errors::{Busy, Conflict, Invalid, without_gil};
use snapshot::{OpenSnapshot, Snapshot};
use table::{Definition, Scope, SnapshotTable, Table};
use ticket::Ticket;
use transaction::{Savepoint, Transaction};

/// Largest number of times that `transact` runs its body; after the last run it raises the conflict. The
/// number, and the default of `retry_time`, are those of `Builder::retry_limit`.
const MOST_RUNS: u32 = 10_000;

/// Opens the store in directory `path`, or creates it there.
///
/// Times are in seconds, and None means no limit. The first call of a transaction that is open for longer
/// than `transaction_timeout` rolls it back; a call that waits for a lock for longer than `lock_timeout`
/// fails with `Conflict`; `close` writes pages for `close_time`, and the next opening recovers the others.
/// With `create=False` the store must exist. `page_size` counts only for a new store. `encryption_key` has
/// 32 bytes, or it is a function that returns the bytes of the key with an id: the id in the files of the
/// store, or `encryption_key_id` for a new store.
///
/// With `durable=False` commits do not wait for the disk, and a crash of the process may lose the last ones;
/// with `log_sync_interval` only a power loss may, those of the last interval. `archive` is the directory of
/// the log archive for `restore` to a time. `file_mode` has the permission bits of new files.
///
/// `memory_bytes` limits the memory of page cache, log, row versions and undo entries together.
/// `cache_bytes`, `version_bytes` (row versions for snapshots) and `undo_bytes` (undo entries of open
/// transactions) set one part. A call that needs more undo entries raises `UndoMemoryExhausted`; its
/// transaction remains open.
#[pyfunction]
#[pyo3(
    signature = (
        path, *, create=true, read_only=false, cache_bytes=None, page_size=None,
        transaction_timeout=Some(60.0), lock_timeout=None, close_time=None, encryption_key=None,
        encryption_key_id="", durable=true, log_sync_interval=None, archive=None, version_bytes=None,
        file_mode=None, direct_pages=false, memory_bytes=None, undo_bytes=None
    ),
    text_signature = "(path, *, create=True, read_only=False, cache_bytes=None, page_size=None, \
                      transaction_timeout=60.0, lock_timeout=None, close_time=None, encryption_key=None, \
                      encryption_key_id='', durable=True, log_sync_interval=None, archive=None, \
                      version_bytes=None, file_mode=None, direct_pages=False, memory_bytes=None, \
                      undo_bytes=None)"
)]
#[expect(clippy::too_many_arguments, reason = "they are named arguments in Python")]
fn open(
    py: Python<'_>,
    #[pyo3(from_py_with = path_of)] path: PathBuf,
    create: bool,
    read_only: bool,
    cache_bytes: Option<usize>,
    page_size: Option<usize>,
    transaction_timeout: Option<f64>,
    lock_timeout: Option<f64>,
    close_time: Option<f64>,
    encryption_key: Option<&Bound<'_, PyAny>>,
    encryption_key_id: &str,
    durable: bool,
    log_sync_interval: Option<f64>,
    archive: Option<&Bound<'_, PyAny>>,
    version_bytes: Option<u64>,
    file_mode: Option<u32>,
    direct_pages: bool,
    memory_bytes: Option<u64>,
    undo_bytes: Option<u64>,
) -> PyResult<Database> {
    let mut builder = builder().create(create).read_only(read_only).direct_pages(direct_pages);
    if !durable {
        // Relaxed is a durability here, not a memory ordering.
        builder = builder.durability(Durability::Relaxed);
    }
    if let Some(interval) = log_sync_interval {
        builder = builder.log_sync_interval(Some(seconds(interval)?));
    }
    if let Some(archive) = archive {
        builder = builder.archive(path_of(archive)?);
    }
    if let Some(bytes) = version_bytes {
        builder = builder.version_bytes(bytes);
    }
    if let Some(bytes) = memory_bytes {
        builder = builder.memory_bytes(bytes);
    }
    if let Some(bytes) = undo_bytes {
        builder = builder.undo_bytes(bytes);
    }
    if let Some(mode) = file_mode {
        builder = builder.file_mode(mode);
    }
    if let Some(limit) = transaction_timeout {
        builder = builder.transaction_timeout(seconds(limit)?);
    }
    if let Some(limit) = lock_timeout {
        let limit = seconds(limit)?;
        // The store runs a call of a table again after a conflict, but no longer than the timeout.
        builder = builder.lock_timeout(limit).retry_limit(MOST_RUNS, limit);
    }
    if let Some(limit) = close_time {
        builder = builder.close_time(seconds(limit)?);
    }
    if let Some(bytes) = cache_bytes {
        builder = builder.cache_bytes(bytes);
    }
    if let Some(bytes) = page_size {
        builder = builder.page_size(bytes);
    }
    builder = with_key(builder, encryption_key, encryption_key_id)?;
    Ok(Database::new(without_gil(py, || builder.open(path))?))
}

/// Opens an empty store in memory, for tests.
#[pyfunction]
fn in_memory(py: Python<'_>) -> PyResult<Database> {
    Ok(Database::new(without_gil(py, || builder().cache_bytes(32 << 20).open_in_memory())?))
}

/// Returns a path that was given as text, as bytes, or as an object with `__fspath__`. An empty path is
/// refused: joined with the name of a file, it would mean the working directory.
fn path_of(path: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    let path: PathBuf = path.py().import("os")?.call_method1("fsdecode", (path,))?.extract()?;
    if path.as_os_str().is_empty() { Err(Invalid::new_err("the path is empty")) } else { Ok(path) }
}

fn seconds(value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| Invalid::new_err(format!("{value} is not a number of seconds above 0")))
}

/// Returns the value of a transaction's body. The coroutine of an `async` body is refused: it would run after
/// the commit.
fn refuse_coroutine(value: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    if value.get_type().name()? != "coroutine" {
        return Ok(value);
    }
    value.call_method0("close")?; // otherwise Python warns that it was never awaited
    Err(PyTypeError::new_err(
        "the function of a transaction is `async`; write a plain function, and run it by `transact_async`",
    ))
}

/// Flags of the code of functions with `yield` and with `async` and `yield`.
const GENERATORS: u32 = 0x20 | 0x200;

/// Converts a report of the store to a dict.
fn report<'py>(py: Python<'py>, report: &impl serde::Serialize) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(report).map_err(|error| errors::Error::new_err(error.to_string()))?;
    py.import("json")?.call_method1("loads", (text,))
}

/// An open store, which a Python database and its tables share; `None` only while it is dropped.
pub(crate) struct Store(Option<azekura::Database>);

impl Deref for Store {
    type Target = azekura::Database;

    fn deref(&self) -> &azekura::Database {
        self.0.as_ref().expect("a store that is being dropped has no users")
    }
}

impl Drop for Store {
    /// Closes the store without the GIL, because the last pages are written. Snapshots share the store, so
    /// none of them is open. If a transaction is open, the store stays open until the transaction is freed:
    /// if another thread frees it meanwhile, dropping the database closes the store.
    fn drop(&mut self) {
        let db = self.0.take();
        Python::attach(|py| py.detach(|| db.map(|db| db.close())));
    }
}

/// An open store. Any number of threads may use it.
#[pyclass(frozen, weakref, module = "azekura")]
struct Database {
    db: Arc<Store>,
}

impl Database {
    fn new(db: azekura::Database) -> Self {
        Self { db: Arc::new(Store(Some(db))) }
    }
}

#[pymethods]
impl Database {
    /// Returns a table as a mapping; each operation on the table is one durable transaction.
    #[pyo3(signature = (name, *, key=None, value=None))]
    fn table(
        &self,
        py: Python<'_>,
        name: String,
        key: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<Table>> {
        Table::make(py, Scope::Database(Arc::clone(&self.db)), Definition::of(name, key, value)?)
    }

    /// Returns the names of all tables.
    fn table_names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        without_gil(py, || self.db.table_names())
    }

    /// Begins a transaction, which ends with `commit`, `abort`, or at the end of a `with` block. With
    /// `durable=False` a commit does not wait for the disk, and a crash of the process or a power loss may
    /// lose the last commits. `lock_timeout` is in seconds. With `nowait=True` a call that would wait for a
    /// lock raises `Busy`.
    #[pyo3(signature = (*, durable=None, lock_timeout=None, nowait=false))]
    fn begin(
        &self,
        py: Python<'_>,
        durable: Option<bool>,
        lock_timeout: Option<f64>,
        nowait: bool,
    ) -> PyResult<Transaction> {
        let lock_timeout = lock_timeout.map(seconds).transpose()?;
        let tx = without_gil(py, || {
            let tx = self.db.begin()?;
            if let Some(durable) = durable {
                // Relaxed is a durability here, not a memory ordering.
                tx.set_durability(if durable { Durability::Immediate } else { Durability::Relaxed });
            }
            if lock_timeout.is_some() {
                tx.set_lock_timeout(lock_timeout)?;
            }
            if nowait {
                tx.set_nowait(true)?;
            }
            Ok(tx)
        })?;
        Ok(Transaction::new(tx, &self.db))
    }

    /// Runs `body` with a transaction and commits it. After a conflict, runs `body` again, also if `body` has
    /// caught the conflict. After 10,000 runs, or once `retry_time` seconds have passed (None: no such
    /// limit), raises the conflict instead.
    #[pyo3(
        signature = (body, *, retry_time=Some(30.0)),
        text_signature = "($self, body, *, retry_time=30.0)"
    )]
    fn transact<'py>(
        &self,
        py: Python<'py>,
        body: Bound<'py, PyAny>,
        retry_time: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (value, ticket) = self._transact_nowait(py, body, retry_time)?;
        ticket.wait(py)?;
        Ok(value)
    }

    /// Runs `body` as `transact` does, but does not wait for the commit. Returns the value and the ticket of
    /// the commit.
    #[pyo3(signature = (body, retry_time))]
    fn _transact_nowait<'py>(
        &self,
        py: Python<'py>,
        body: Bound<'py, PyAny>,
        retry_time: Option<f64>,
    ) -> PyResult<(Bound<'py, PyAny>, Ticket)> {
        self._refuse_generator(&body)?;
        let (began, limit) = (Instant::now(), retry_time.map(seconds).transpose()?);
        for run in 1.. {
            let tx = Bound::new(py, self.begin(py, None, None, false)?)?;
            let value = body.call1((&tx,)).and_then(refuse_coroutine);
            let ended = value.and_then(|value| Ok((value, tx.get().commit_nowait(py)?)));
            match ended {
                Ok(ended) => return Ok(ended),
                Err(mut error) => {
                    // The error of the body is more informative than that of its rollback.
                    let rolled_back = tx.get().roll_back_after(py);
                    let is_stuck = rolled_back.is_err();
                    // Ctrl-C and the cancellation of a task are no `Exception`: the body does not run again.
                    if let Ok(Some(hidden)) = rolled_back
                        && error.is_instance_of::<PyException>(py)
                    {
                        error = hidden;
                    }
                    let is_last = run == MOST_RUNS || limit.is_some_and(|limit| began.elapsed() >= limit);
                    if is_stuck || is_last || !error.is_instance_of::<Conflict>(py) {
                        return Err(error);
                    }
                }
            }
            py.check_signals()?;
            py.detach(|| thread::sleep(Duration::from_micros(u64::from(run.min(100)) * 50)));
        }
        unreachable!("the loop ends")
    }

    /// Raises an error if `body` is a function with `yield`: a call of it only makes a generator, and runs
    /// nothing.
    #[expect(clippy::unused_self, reason = "a method, so that Python code finds it")]
    fn _refuse_generator(&self, body: &Bound<'_, PyAny>) -> PyResult<()> {
        let Some(code) = body.getattr_opt("__code__")? else { return Ok(()) };
        let flags = code.getattr_opt("co_flags")?.and_then(|flags| flags.extract::<u32>().ok());
        if flags.is_none_or(|flags| flags & GENERATORS == 0) {
            return Ok(());
        }
        Err(PyTypeError::new_err(
            "the function of a transaction has `yield`, so a call of it runs nothing; return a list",
        ))
    }

    /// Opens a snapshot of the present state. With `durable=True`, it has only transactions that are durable.
    #[pyo3(signature = (*, durable=false))]
    fn snapshot(&self, py: Python<'_>, durable: bool) -> PyResult<Snapshot> {
        let snapshot =
            without_gil(py, || if durable { self.db.durable_snapshot() } else { self.db.snapshot() })?;
        Ok(Snapshot::new(OpenSnapshot { snapshot, store: Arc::clone(&self.db) }))
    }

    /// Returns a dict from the names of all tables to the names of their key and value types.
    fn tables<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let tables = without_gil(py, || self.db.tables())?;
        let found = PyDict::new(py);
        for table in tables {
            found.set_item(table.name, (table.types.key, table.types.value))?;
        }
        Ok(found)
    }

    /// Makes a backup in the new directory `to` while other threads continue; returns the number of its rows.
    /// Writes at most `rate` bytes per second. By default, the backup pauses while transactions change rows,
    /// so that they keep about 0.9 of their speed. With `since`, the directory of an earlier backup, the new
    /// one has only what has changed. Calls `progress` with the number of rows and bytes written so far. An
    /// exception of `progress` stops the backup.
    #[pyo3(signature = (to, *, rate=None, progress=None, since=None))]
    fn backup(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = path_of)] to: PathBuf,
        rate: Option<u64>,
        progress: Option<Py<PyAny>>,
        since: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let since = since.map(path_of).transpose()?;
        copies::back_up(py, &self.db, to, (rate, since), progress)
    }

    /// Copies all tables into a new store with full pages in the new directory `to`; returns the number of
    /// rows. `page_size` and `encryption_key` are those of the new store, by default those of this one. Calls
    /// `progress` with the number of rows and bytes copied so far.
    #[pyo3(
        signature = (to, *, page_size=None, encryption_key=None, encryption_key_id="", progress=None)
    )]
    fn compact_into(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = path_of)] to: PathBuf,
        page_size: Option<usize>,
        encryption_key: Option<&Bound<'_, PyAny>>,
        encryption_key_id: &str,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let key = encryption_key.map(|key| copies::new_key(key, encryption_key_id)).transpose()?;
        let mut shown = Shown { function: progress.as_ref(), failed: None };
        let made = without_gil(py, || {
            let mut compaction = self.db.compaction().progress(|seen| {
                let _ = shown.show(seen.rows, seen.bytes); // `end` raises the exception
            });
            if let Some(bytes) = page_size {
                compaction = compaction.page_size(bytes);
            }
            if let Some(key) = key {
                compaction = compaction.encryption_key(key);
            }
            Ok(compaction.into_directory(to)?.rows)
        });
        shown.end(made)
    }

    /// Copies all commits that have returned to the archive; returns a datetime that separates them from
    /// later commits. A restore to this time has exactly these commits.
    fn archive_log<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        copies::datetime(py, without_gil(py, || self.db.archive_log())?)
    }

    /// Replaces the key of an encrypted store by 32 other bytes. Later openings need the new key, and call a
    /// function that was given as the key with `id`.
    #[pyo3(signature = (key, *, id=""))]
    fn change_encryption_key(&self, py: Python<'_>, key: &Bound<'_, PyAny>, id: &str) -> PyResult<()> {
        let key = copies::new_key(key, id)?;
        without_gil(py, || self.db.change_encryption_key(key))
    }

    /// Writes changed pages to the disk, so that a later opening has less to recover.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
        without_gil(py, || self.db.checkpoint())
    }

    /// Returns counters and sizes as a dict.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stats = without_gil(py, || Ok(self.db.stats()))?;
        report(py, &stats)
    }

    /// Reads every page and returns a report as a dict; `findings` has all damage. With `repair=True`, also
    /// frees leaked pages, unless there is other damage. Calls `progress` with the number of pages that were
    /// checked, and of all pages.
    #[pyo3(signature = (*, repair=false, progress=None))]
    fn check<'py>(
        &self,
        py: Python<'py>,
        repair: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut shown = Shown { function: progress.as_ref(), failed: None };
        let found = without_gil(py, || {
            let mut show = |checked, pages| {
                let _ = shown.show(checked, pages); // `end` raises the exception
            };
            if repair { self.db.repair(&mut show) } else { self.db.check(&mut show) }
        });
        report(py, &shown.end(found)?)
    }

    /// The directory of the store.
    #[getter]
    fn path(&self) -> PathBuf {
        self.db.path().to_path_buf()
    }

    /// Size of a page in bytes.
    #[getter]
    fn page_size(&self) -> usize {
        self.db.page_size()
    }

    /// Length of the longest possible key, in bytes of its encoding.
    #[getter]
    fn max_key_bytes(&self) -> usize {
        self.db.max_key_bytes()
    }

    /// Removes a table; returns whether there was one.
    fn drop_table(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        without_gil(py, || self.db.transact(|tx| tx.drop_table(name)))
    }

    /// Renames a table; returns whether there was one.
    fn rename_table(&self, py: Python<'_>, name: &str, to: &str) -> PyResult<bool> {
        without_gil(py, || self.db.transact(|tx| tx.rename_table(name, to)))
    }

    /// Closes the store. Raises `Busy` while transactions or snapshots are open.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        without_gil(py, || self.db.close())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Py<PyAny>,
        _error: Py<PyAny>,
        _trace: Py<PyAny>,
    ) -> PyResult<bool> {
        match self.close(py) {
            // An exception in the block is more informative, and its traceback keeps transactions open.
            Err(error) if !kind.is_none(py) && error.is_instance_of::<Busy>(py) => Ok(false),
            closed => closed.map(|()| false),
        }
    }
}

/// `true` if a module was made. The classes of the exceptions are those of its interpreter: in another one,
/// `except azekura.Conflict` would not match them.
static IS_IMPORTED: AtomicBool = AtomicBool::new(false);

// Free-threaded Python does not enable its GIL for this module (PY-3).
#[pymodule(gil_used = false)]
#[pyo3(name = "_azekura")]
fn azekura_module(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Relaxed: orders nothing.
    if IS_IMPORTED.load(Relaxed) {
        let text = "azekura can be imported only once in a process, by one interpreter";
        return Err(PyImportError::new_err(text));
    }
    errors::import(module.py());
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Database>()?;
    module.add_class::<Transaction>()?;
    module.add_class::<Savepoint>()?;
    module.add_class::<Ticket>()?;
    module.add_class::<Snapshot>()?;
    module.add_class::<SnapshotTable>()?;
    module.add_class::<Table>()?;
    module.add_function(wrap_pyfunction!(open, module)?)?;
    module.add_function(wrap_pyfunction!(in_memory, module)?)?;
    module.add_function(wrap_pyfunction!(copies::restore, module)?)?;
    module.add_function(wrap_pyfunction!(copies::verify_backup, module)?)?;
    IS_IMPORTED.store(true, Relaxed); // Relaxed: orders nothing
    Ok(())
}
