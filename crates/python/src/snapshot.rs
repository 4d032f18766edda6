//! Snapshots.

use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::prelude::*;

use crate::Store;
use crate::errors::{Closed, without_gil};
use crate::table::{Definition, SnapshotTable};

/// An open snapshot. Its store is freed after it, and closes without the GIL.
#[derive(Clone)]
pub(crate) struct OpenSnapshot {
    pub(crate) snapshot: azekura::Snapshot,
    pub(crate) store: Arc<Store>,
}

/// The state of the store at one moment.
#[pyclass(frozen, weakref, module = "azekura")]
pub(crate) struct Snapshot {
    open: Mutex<Option<OpenSnapshot>>,
}

impl Snapshot {
    pub(crate) const fn new(open: OpenSnapshot) -> Self {
        Self { open: Mutex::new(Some(open)) }
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, Option<OpenSnapshot>>> {
        self.open.lock().map_err(|_| Closed::new_err("a call of the snapshot panicked"))
    }

    fn get(&self) -> PyResult<OpenSnapshot> {
        self.lock()?.clone().ok_or_else(|| Closed::new_err("the snapshot was closed"))
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
        SnapshotTable::of_snapshot(py, &self.get()?, Definition::of(name, key, value)?)
    }

    /// Returns a table of the database as it is in this snapshot: `snap[stock]`.
    fn __getitem__<'py>(
        slf: &Bound<'py, Self>,
        py: Python<'py>,
        table: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let definition = match table.cast::<SnapshotTable>() {
            Ok(table) => table.get().definition(),
            // A multimap table opens the table of its pairs.
            Err(error) => match table.getattr_opt("_at")? {
                Some(open) => return open.call1((slf,)),
                None => return Err(error.into()),
            },
        };
        let table = SnapshotTable::of_snapshot(py, &slf.get().get()?, definition)?;
        Ok(Bound::new(py, table)?.into_any())
    }

    /// Returns the names of all tables.
    fn table_names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let open = self.get()?;
        without_gil(py, || open.snapshot.table_names())
    }

    /// Returns the age of the snapshot in seconds.
    #[getter]
    fn age(&self) -> PyResult<f64> {
        Ok(self.get()?.snapshot.age().as_secs_f64())
    }

    /// Waits until every transaction that the snapshot has read is durable.
    fn wait_durable(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.get()?;
        without_gil(py, || open.snapshot.wait_durable())
    }

    /// Closes the snapshot. The snapshot stays open while its tables are in use.
    fn close(&self) -> PyResult<()> {
        let open = self.lock()?.take();
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
