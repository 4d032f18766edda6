//! Transactions and savepoints.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use pyo3::exceptions::{PyResourceWarning, PyRuntimeError};
use pyo3::prelude::*;

use crate::Store;
use crate::errors::{Closed, raised, without_gil};
use crate::table::{Definition, Scope, Table};
use crate::ticket::Ticket;

pub(crate) type SharedTx = Arc<TxCell>;

/// A transaction that has not ended, or `None`, with its store. A Python transaction, its tables and their
/// iterators share it.
pub(crate) struct TxCell {
    open: Mutex<Option<azekura::Transaction>>,
    /// Identifies the store. Does not keep it open.
    pub(crate) store: Weak<Store>,
}

/// Returns the open transaction for a call.
pub(crate) fn opened(open: &mut Option<azekura::Transaction>) -> PyResult<&mut azekura::Transaction> {
    open.as_mut().ok_or_else(ended)
}

/// Locks a transaction, which only one thread at a time can use.
pub(crate) fn lock(tx: &SharedTx) -> PyResult<MutexGuard<'_, Option<azekura::Transaction>>> {
    match tx.open.try_lock() {
        Ok(open) => Ok(open),
        Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err("another thread uses this transaction")),
        Err(TryLockError::Poisoned(_)) => Err(Closed::new_err("a call of this transaction panicked")),
    }
}

fn ended() -> PyErr {
    Closed::new_err("the transaction has ended")
}

/// A transaction, which commits at the end of its `with` block and rolls back on an exception.
#[pyclass(frozen, weakref, module = "azekura")]
pub(crate) struct Transaction {
    tx: SharedTx,
}

impl Transaction {
    pub(crate) fn new(tx: azekura::Transaction, store: &Arc<Store>) -> Self {
        Self { tx: Arc::new(TxCell { open: Mutex::new(Some(tx)), store: Arc::downgrade(store) }) }
    }

    pub(crate) fn roll_back(&self, py: Python<'_>) -> PyResult<()> {
        let open = lock(&self.tx)?.take();
        without_gil(py, || open.map_or(Ok(()), azekura::Transaction::abort))
    }

    /// Rolls the transaction back after an exception of its body. Returns the conflict that has rolled the
    /// transaction back before, because the body may have caught it and raised another exception.
    pub(crate) fn roll_back_after(&self, py: Python<'_>) -> PyResult<Option<PyErr>> {
        let Some(tx) = lock(&self.tx)?.take() else { return Ok(None) };
        let conflict = without_gil(py, || {
            if !tx.is_over() {
                return tx.abort().map(|()| None);
            }
            Ok(tx.commit().err().filter(azekura::Error::is_retryable))
        })?;
        Ok(conflict.map(raised))
    }

    /// Runs a call with the open transaction, without the GIL.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&azekura::Transaction) -> Result<T, azekura::Error> + Send,
    ) -> PyResult<T> {
        let mut open = lock(&self.tx)?;
        let tx = opened(&mut open)?;
        without_gil(py, move || call(tx))
    }
}

impl Drop for TxCell {
    /// Rolls back a transaction that was not ended, with a warning, because its locks have blocked other
    /// transactions. A table or an iterator of the transaction that is still in use keeps it open.
    fn drop(&mut self) {
        let Some(open) = self.open.get_mut().unwrap_or_else(PoisonError::into_inner).take() else { return };
        Python::attach(|py| {
            if !open.is_over() {
                let warning = py.get_type::<PyResourceWarning>();
                let text =
                    c"a transaction was forgotten, and is rolled back: commit or abort it, or use `with`";
                // The transaction may be freed while an exception passes, and a warning must not replace it.
                let passing = PyErr::take(py);
                if let Err(error) = PyErr::warn(py, &warning, text, 1) {
                    error.write_unraisable(py, None);
                }
                if let Some(passing) = passing {
                    passing.restore(py);
                }
            }
            py.detach(|| drop(open));
        });
    }
}

#[pymethods]
impl Transaction {
    /// Returns a table as a mapping, in this transaction.
    #[pyo3(signature = (name, *, key=None, value=None))]
    fn table(
        &self,
        py: Python<'_>,
        name: String,
        key: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<Table>> {
        Table::make(py, Scope::Transaction(Arc::clone(&self.tx)), Definition::of(name, key, value)?)
    }

    /// Returns a table of the database for use in this transaction: `tx[stock]`.
    fn __getitem__<'py>(
        slf: &Bound<'py, Self>,
        py: Python<'py>,
        table: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let definition = match table.cast::<Table>() {
            Ok(table) => table.borrow().as_super().definition_in(&slf.get().tx.store)?,
            // A multimap table opens the table of its pairs.
            Err(error) => match table.getattr_opt("_in")? {
                Some(open) => return open.call1((slf,)),
                None => return Err(error.into()),
            },
        };
        let table = Table::make(py, Scope::Transaction(Arc::clone(&slf.get().tx)), definition)?;
        Ok(table.into_bound(py).into_any())
    }

    /// Removes a table; returns `true` if there was one.
    fn drop_table(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        self.with(py, |tx| tx.drop_table(name))
    }

    /// Renames a table; returns `true` if there was one.
    fn rename_table(&self, py: Python<'_>, name: &str, to: &str) -> PyResult<bool> {
        self.with(py, |tx| tx.rename_table(name, to))
    }

    /// Returns a savepoint of the present state, which `rollback_to` restores. As a context manager, the
    /// savepoint is restored automatically after an exception.
    fn savepoint(slf: PyRef<'_, Self>, py: Python<'_>) -> PyResult<Savepoint> {
        let savepoint = slf.with(py, azekura::Transaction::savepoint)?;
        Ok(Savepoint { tx: slf.into(), savepoint })
    }

    /// Undoes every change made since the savepoint. The locks are kept.
    fn rollback_to(&self, py: Python<'_>, savepoint: &Savepoint) -> PyResult<()> {
        self.with(py, |tx| tx.rollback_to(savepoint.savepoint))
    }

    /// Commits and waits until the transaction is durable.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        let open = lock(&self.tx)?.take().ok_or_else(ended)?;
        without_gil(py, || open.commit())
    }

    /// Commits and returns a ticket at once, which reports when the transaction is durable.
    pub(crate) fn commit_nowait(&self, py: Python<'_>) -> PyResult<Ticket> {
        let open = lock(&self.tx)?.take().ok_or_else(ended)?;
        Ok(Ticket::new(without_gil(py, || open.commit_async())?))
    }

    /// Rolls the transaction back.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let open = lock(&self.tx)?.take().ok_or_else(ended)?;
        without_gil(py, || open.abort())
    }

    /// Declares that another thread may continue and end the transaction: other transactions of this thread
    /// then wait for it. Without this call, such a wait raises `Invalid`, because it would not end.
    fn detach_from_thread(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, azekura::Transaction::detach_from_thread)
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

/// A state of a transaction that a rollback can restore.
#[pyclass(frozen, module = "azekura")]
pub(crate) struct Savepoint {
    tx: Py<Transaction>,
    savepoint: azekura::Savepoint,
}

#[pymethods]
impl Savepoint {
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
        let tx = self.tx.get();
        // A transaction that a conflict has rolled back has no changes to undo.
        if !kind.is_none(py) && lock(&tx.tx)?.as_ref().is_some_and(|open| !open.is_over()) {
            tx.rollback_to(py, self)?;
        }
        Ok(false)
    }
}
