//! Python package of the Azekura store: databases, tables as mappings, transactions, snapshots, backup.
//!
//! - **PY-1** Each call into the store runs without the GIL: a thread that waits for a lock, the log or a
//!   page stops no other Python thread.
//! - **PY-2** No Python code runs inside a call of the store, but the progress function of a backup, which
//!   takes the GIL for itself and holds no latch.

mod table;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::Duration;

use azekura::{ErrorKind, Restore};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;

use table::{Scope, SnapshotTable, Table};

create_exception!(azekura, Error, PyException, "The base of all errors of the store.");
create_exception!(
    azekura,
    Conflict,
    Error,
    "The transaction was rolled back so that others can go on: run it again."
);
create_exception!(azekura, Busy, Error, "Something is in use or exhausted for now.");
create_exception!(azekura, Corrupt, Error, "Bytes on disk are not those that were written.");
create_exception!(azekura, Closed, Error, "The store or the transaction takes no more calls.");
create_exception!(azekura, Invalid, Error, "The call or its arguments are wrong.");

/// Times that `transact` runs its body before it passes a conflict on.
const MOST_RUNS: u32 = 1000;

fn raised(error: azekura::Error) -> PyErr {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    match error.kind() {
        ErrorKind::Conflict => Conflict::new_err(text),
        ErrorKind::Busy => Busy::new_err(text),
        ErrorKind::Corrupt => Corrupt::new_err(text),
        ErrorKind::Closed => Closed::new_err(text),
        ErrorKind::Invalid => Invalid::new_err(text),
        _ => Error::new_err(text),
    }
}

/// Runs a call of the store without the GIL (PY-1).
fn without_gil<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, azekura::Error> + Send,
) -> PyResult<T> {
    py.detach(call).map_err(raised)
}

/// Opens a store, or creates it.
#[pyfunction]
#[pyo3(signature = (
    path, *, create=true, read_only=false, cache_bytes=None, page_size=None, encryption_key=None
))]
fn open(
    py: Python<'_>,
    path: PathBuf,
    create: bool,
    read_only: bool,
    cache_bytes: Option<usize>,
    page_size: Option<usize>,
    encryption_key: Option<[u8; 32]>,
) -> PyResult<Database> {
    let mut builder = azekura::Database::builder().create(create).read_only(read_only);
    if let Some(bytes) = cache_bytes {
        builder = builder.cache_bytes(bytes);
    }
    if let Some(bytes) = page_size {
        builder = builder.page_size(bytes);
    }
    if let Some(key) = encryption_key {
        builder = builder.encryption_key(&key);
    }
    Ok(Database { db: without_gil(py, || builder.open(path))? })
}

/// Makes a new store at `path` from the backup in directory `source`; returns the number of its rows.
#[pyfunction]
#[pyo3(signature = (source, path, *, verify=false))]
fn restore(py: Python<'_>, source: PathBuf, path: PathBuf, verify: bool) -> PyResult<u64> {
    without_gil(py, || Ok(Restore::new().verify(verify).from_directory(source, path)?.backup.rows))
}

/// An open store. Any number of threads may use it.
#[pyclass(frozen, module = "azekura")]
struct Database {
    db: azekura::Database,
}

#[pymethods]
impl Database {
    /// Returns a table as a mapping; each operation on it is one durable transaction.
    fn table(&self, py: Python<'_>, name: String) -> PyResult<Py<Table>> {
        Table::make(py, Scope::Database(self.db.clone()), name)
    }

    /// Returns the names of all tables.
    fn table_names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        without_gil(py, || self.db.table_names())
    }

    /// Begins a transaction, which ends with `commit`, `abort`, or as a context manager.
    fn begin(&self, py: Python<'_>) -> PyResult<Transaction> {
        let tx = without_gil(py, || {
            let tx = self.db.begin()?;
            tx.detach_from_thread()?;
            Ok(tx)
        })?;
        Ok(Transaction { tx: Arc::new(Mutex::new(Some(tx))) })
    }

    /// Runs `body` with a transaction and commits it; runs it again after a conflict.
    fn transact(&self, py: Python<'_>, body: Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        for run in 1.. {
            let tx = Bound::new(py, self.begin(py)?)?;
            let ended = body.call1((&tx,)).and_then(|value| {
                tx.get().commit(py)?;
                Ok(value)
            });
            match ended {
                Ok(value) => return Ok(value.unbind()),
                Err(error) => {
                    tx.get().roll_back(py)?;
                    if run == MOST_RUNS || !error.is_instance_of::<Conflict>(py) {
                        return Err(error);
                    }
                }
            }
            py.check_signals()?;
            py.detach(|| thread::sleep(Duration::from_micros(u64::from(run.min(100)) * 50)));
        }
        unreachable!("the loop ends")
    }

    /// Opens a snapshot of the present state.
    fn snapshot(&self, py: Python<'_>) -> PyResult<Snapshot> {
        let snapshot = without_gil(py, || self.db.snapshot())?;
        Ok(Snapshot { snapshot: Mutex::new(Some(snapshot)) })
    }

    /// Makes a backup in the new directory `to` while threads go on; returns the number of its rows. Calls
    /// `progress` with the rows and bytes written so far.
    #[pyo3(signature = (to, *, rate=None, progress=None))]
    fn backup(
        &self,
        py: Python<'_>,
        to: PathBuf,
        rate: Option<u64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let mut failed: Option<PyErr> = None;
        let report = without_gil(py, || {
            let mut backup = self.db.backup();
            if let Some(rate) = rate {
                backup = backup.rate_limit(rate);
            }
            if let Some(progress) = &progress {
                backup = backup.progress(|seen| {
                    let called = Python::attach(|py| progress.call1(py, (seen.rows, seen.bytes)).map(drop));
                    failed = failed.take().or(called.err());
                });
            }
            backup.to_directory(to)
        })?;
        failed.map_or(Ok(report.rows), Err)
    }

    /// Closes the store. It is refused with `Busy` while transactions or snapshots are open.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        without_gil(py, || self.db.close())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: Py<PyAny>,
        _error: Py<PyAny>,
        _trace: Py<PyAny>,
    ) -> PyResult<bool> {
        self.close(py)?;
        Ok(false)
    }
}

type SharedTx = Arc<Mutex<Option<azekura::Transaction>>>;

/// Locks a transaction, which one thread uses at a time.
fn lock(tx: &SharedTx) -> PyResult<MutexGuard<'_, Option<azekura::Transaction>>> {
    match tx.try_lock() {
        Ok(open) => Ok(open),
        Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err("another thread uses this transaction")),
        Err(TryLockError::Poisoned(_)) => Err(Closed::new_err("a call of this transaction panicked")),
    }
}

fn ended() -> PyErr {
    Closed::new_err("the transaction has ended")
}

/// A transaction; commits at the end of its `with` block, rolls back on an exception.
#[pyclass(frozen, module = "azekura")]
struct Transaction {
    tx: SharedTx,
}

impl Transaction {
    fn roll_back(&self, py: Python<'_>) -> PyResult<()> {
        let tx = lock(&self.tx)?.take();
        without_gil(py, || tx.map_or(Ok(()), azekura::Transaction::abort))
    }
}

#[pymethods]
impl Transaction {
    /// Returns a table as a mapping, in this transaction.
    fn table(&self, py: Python<'_>, name: String) -> PyResult<Py<Table>> {
        Table::make(py, Scope::Transaction(Arc::clone(&self.tx)), name)
    }

    /// Commits and waits until the transaction is durable.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        let tx = lock(&self.tx)?.take().ok_or_else(ended)?;
        without_gil(py, || tx.commit())
    }

    /// Rolls back.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let tx = lock(&self.tx)?.take().ok_or_else(ended)?;
        without_gil(py, || tx.abort())
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
        if !kind.is_none(py) {
            self.roll_back(py)?;
        } else if lock(&self.tx)?.is_some() {
            self.commit(py)?;
        }
        Ok(false)
    }
}

/// The store as it was at one moment.
#[pyclass(frozen, module = "azekura")]
struct Snapshot {
    snapshot: Mutex<Option<azekura::Snapshot>>,
}

impl Snapshot {
    fn get(&self) -> PyResult<azekura::Snapshot> {
        let open = self.snapshot.lock().map_err(|_| Closed::new_err("a call of the snapshot panicked"))?;
        open.clone().ok_or_else(|| Closed::new_err("the snapshot was closed"))
    }
}

#[pymethods]
impl Snapshot {
    /// Returns a table as a mapping, as it was.
    fn table(&self, name: String) -> PyResult<SnapshotTable> {
        Ok(SnapshotTable::new(Scope::Snapshot(self.get()?), name))
    }

    /// Returns the names of all tables.
    fn table_names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let snapshot = self.get()?;
        without_gil(py, || snapshot.table_names())
    }

    /// Closes the snapshot. It stays open while tables of it are in use.
    fn close(&self) -> PyResult<()> {
        let open = self.snapshot.lock();
        drop(open.map_err(|_| Closed::new_err("a call of the snapshot panicked"))?.take());
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(&self, _kind: Py<PyAny>, _error: Py<PyAny>, _trace: Py<PyAny>) -> PyResult<bool> {
        self.close()?;
        Ok(false)
    }
}

#[pymodule]
fn _azekura(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add_class::<Database>()?;
    module.add_class::<Transaction>()?;
    module.add_class::<Snapshot>()?;
    module.add_class::<SnapshotTable>()?;
    module.add_class::<Table>()?;
    module.add("Error", py.get_type::<Error>())?;
    module.add("Conflict", py.get_type::<Conflict>())?;
    module.add("Busy", py.get_type::<Busy>())?;
    module.add("Corrupt", py.get_type::<Corrupt>())?;
    module.add("Closed", py.get_type::<Closed>())?;
    module.add("Invalid", py.get_type::<Invalid>())?;
    module.add_function(wrap_pyfunction!(open, module)?)?;
    module.add_function(wrap_pyfunction!(restore, module)?)
}
