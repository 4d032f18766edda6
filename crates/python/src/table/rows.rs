//! The iterator over the rows of a table.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::{Batch, Bounds, Edge, Part, View};

/// An iterator over rows, which keeps its database, transaction or snapshot open.
#[pyclass(module = "azekura")]
pub(crate) struct Rows {
    view: View,
    /// The range after the rows of `batch`.
    bounds: Bounds,
    reverse: bool,
    part: Part,
    batch: Batch,
}

impl Rows {
    pub(super) fn new(view: View, bounds: Bounds, reverse: bool, part: Part) -> Self {
        Self { view, bounds, reverse, part, batch: Batch::default() }
    }

    /// Reads the next batch if all rows of the present one were returned.
    fn fill(&mut self, py: Python<'_>) -> PyResult<()> {
        if self.batch.next == self.batch.lengths.len() && !self.batch.is_last {
            // A loop without Python code, such as that of `list`, runs no signal handlers.
            py.check_signals()?;
            self.batch = self.view.batch(py, &self.bounds, self.reverse, self.part)?;
            if let Some(last) = self.batch.last_key() {
                let past = Edge::Excluded(last.to_vec());
                *(if self.reverse { &mut self.bounds.1 } else { &mut self.bounds.0 }) = past;
            }
        }
        Ok(())
    }
}

#[pymethods]
impl Rows {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(slf: &Bound<'py, Self>, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let in_use = |_| PyRuntimeError::new_err("another thread uses this iterator");
        let rows = &mut *slf.try_borrow_mut().map_err(in_use)?;
        rows.fill(py)?;
        let Some((key, value)) = rows.batch.take() else { return Ok(None) };
        Ok(Some(match rows.part {
            Part::Key => rows.view.key_from(py, key)?,
            Part::Value => rows.view.value_from(py, value)?,
            Part::Both => rows.view.item(py, key, value)?.into_any(),
        }))
    }
}
