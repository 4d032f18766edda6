//! The iterator over the rows of a table.

use std::ops::ControlFlow;

use azekura::{Error, RowRef};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::{Bounds, Edge, Part, View};

/// Largest number of rows that an iterator reads at once.
const BATCH_ROWS: usize = 256;
/// Size of a batch in bytes at which an iterator stops reading ahead.
const BATCH_BYTES: usize = 64 << 10;

/// Rows that an iterator has read, in one buffer.
#[derive(Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// Lengths of key and value of each row.
    lengths: Vec<(usize, usize)>,
    /// Index of the next row.
    next: usize,
    at: usize,
    /// `true` if no row follows those of this batch.
    is_last: bool,
}

impl Batch {
    /// Returns a batch of no rows, after which no row follows.
    pub(super) fn empty() -> Self {
        Self { is_last: true, ..Self::default() }
    }

    /// Adds a row. Returns `Break` when the batch is full.
    pub(super) fn add(&mut self, row: RowRef<'_, [u8], [u8]>, part: Part) -> Result<ControlFlow<()>, Error> {
        let before = self.bytes.len();
        self.bytes.extend_from_slice(row.key_bytes());
        let key = self.bytes.len();
        if part != Part::Key {
            self.bytes.extend_from_slice(&row.value_ref().bytes()?);
        }
        self.lengths.push((key - before, self.bytes.len() - key));
        self.is_last = self.lengths.len() < BATCH_ROWS && self.bytes.len() < BATCH_BYTES;
        Ok(if self.is_last { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    }

    /// Returns key and value of the next row.
    fn take(&mut self) -> Option<(&[u8], &[u8])> {
        let (key, value) = *self.lengths.get(self.next)?;
        let row = &self.bytes[self.at..self.at + key + value];
        (self.next, self.at) = (self.next + 1, self.at + row.len());
        Some(row.split_at(key))
    }

    /// Returns the key of the last row.
    fn last_key(&self) -> Option<&[u8]> {
        let (key, value) = *self.lengths.last()?;
        let at = self.bytes.len() - key - value;
        Some(&self.bytes[at..at + key])
    }
}

/// An iterator over rows, which keeps its database, transaction or snapshot until that is closed.
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
