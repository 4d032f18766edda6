//! Snapshots.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use pyo3::prelude::*;

use crate::Store;
use crate::errors::{Closed, without_gil};
use crate::table::{Definition, OpenTable, SnapshotTable};

/// An open snapshot. Its store is freed after it, and closes without the GIL.
#[derive(Clone)]
pub(crate) struct OpenSnapshot {
    pub(crate) snapshot: azekura::Snapshot,
    pub(crate) store: Arc<Store>,
}

/// An open snapshot and its tables; `None` after the close.
type Opened = Option<(OpenSnapshot, Vec<Arc<OpenTable>>)>;

/// A snapshot and its tables until it is closed. A Python snapshot, its tables and their iterators
/// share it.
pub(crate) struct SnapshotCell {
    open: Mutex<Opened>,
    /// Identifies the store. Does not keep it open.
    pub(crate) store: Weak<Store>,
}

impl SnapshotCell {
    fn lock(&self) -> PyResult<MutexGuard<'_, Opened>> {
        self.open.lock().map_err(|_| Closed::new_err("a call of the snapshot panicked"))
    }

    pub(crate) fn get(&self) -> PyResult<OpenSnapshot> {
        self.lock()?.as_ref().map(|(open, _)| open.clone()).ok_or_else(closed)
    }

    /// Keeps a table until the snapshot is closed, or no Python object has it. The snapshot has the only
    /// lasting reference, so its close ends its tables.
    pub(crate) fn keep(&self, table: OpenTable) -> PyResult<Weak<OpenTable>> {
        let mut open = self.lock()?;
        let (_, tables) = open.as_mut().ok_or_else(closed)?;
        tables.retain(|table| Arc::weak_count(table) > 0);
        let table = Arc::new(table);
        let kept = Arc::downgrade(&table);
        tables.push(table);
        Ok(kept)
    }
}

pub(crate) fn closed() -> PyErr {
    Closed::new_err("the snapshot was closed")
}

/// The state of the store at one moment.
#[pyclass(frozen, weakref, module = "azekura")]
pub(crate) struct Snapshot {
    cell: Arc<SnapshotCell>,
}

impl Snapshot {
    pub(crate) fn new(open: OpenSnapshot) -> Self {
        let store = Arc::downgrade(&open.store);
        Self { cell: Arc::new(SnapshotCell { open: Mutex::new(Some((open, Vec::new()))), store }) }
    }
}

#[pymethods]
impl Snapshot {
    /// Returns a table of the snapshot as a mapping.
    #[pyo3(signature = (name, *, key=None, value=None))]
    fn table(
        &self,
        py: Python<'_>,
        name: String,
        key: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<SnapshotTable> {
        SnapshotTable::of_snapshot(py, &self.cell, Definition::of(name, key, value)?)
    }

    /// Returns a table of the database as it is in this snapshot: `snap[stock]`.
    fn __getitem__<'py>(
        slf: &Bound<'py, Self>,
        py: Python<'py>,
        table: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let definition = match table.cast::<SnapshotTable>() {
            Ok(table) => table.get().definition_in(&slf.get().cell.store)?,
            // A multimap table opens the table of its pairs.
            Err(error) => match table.getattr_opt("_at")? {
                Some(open) => return open.call1((slf,)),
                None => return Err(error.into()),
            },
        };
        let table = SnapshotTable::of_snapshot(py, &slf.get().cell, definition)?;
        Ok(Bound::new(py, table)?.into_any())
    }

    /// Returns the names of all tables.
    fn table_names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let open = self.cell.get()?;
        without_gil(py, || open.snapshot.table_names())
    }

    /// Returns the age of the snapshot in seconds.
    #[getter]
    fn age(&self) -> PyResult<f64> {
        Ok(self.cell.get()?.snapshot.age().as_secs_f64())
    }

    /// Waits until every transaction that the snapshot has read is durable.
    fn wait_durable(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.cell.get()?;
        without_gil(py, || open.snapshot.wait_durable())
    }

    /// Closes the snapshot and ends its tables and their iterators.
    fn close(&self) -> PyResult<()> {
        let open = self.cell.lock()?.take();
        drop(open); // not under the mutex: another thread that holds the GIL could wait for it
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
