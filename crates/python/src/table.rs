//! Tables as mappings from bytes to bytes, and their iterators.

use std::ops::Bound as Edge;

use azekura::{Error, TableDefinition};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::{SharedTx, ended, lock, raised, without_gil};

/// Rows that an iterator reads at once.
const BATCH: usize = 256;

type Row = (Vec<u8>, Vec<u8>);
type Bounds = (Edge<Vec<u8>>, Edge<Vec<u8>>);

/// Origin of a table's rows.
#[derive(Clone)]
pub(crate) enum Scope {
    /// Each operation is one transaction.
    Database(azekura::Database),
    Transaction(SharedTx),
    Snapshot(azekura::Snapshot),
}

/// A table in some scope.
#[derive(Clone)]
struct View {
    scope: Scope,
    name: String,
}

/// Runs one expression with the table of a transaction, or of a new one that is retried after conflicts.
macro_rules! in_transaction {
    ($view:expr, $py:expr, $tx:ident, $table:ident => $body:expr) => {{
        let definition = TableDefinition::raw($view.name.as_str());
        match &$view.scope {
            Scope::Database(db) => without_gil($py, || {
                db.transact(|$tx| {
                    let $table = $tx.table(&definition)?;
                    $body
                })
            }),
            Scope::Transaction(shared) => {
                let mut open = lock(shared)?;
                let $tx = open.as_mut().ok_or_else(ended)?;
                without_gil($py, move || {
                    let $table = $tx.table(&definition)?;
                    $body
                })
            }
            Scope::Snapshot(_) => Err(raised(Error::ReadOnly)),
        }
    }};
}

impl View {
    fn get(&self, py: Python<'_>, key: &[u8]) -> PyResult<Option<Vec<u8>>> {
        if let Scope::Snapshot(snapshot) = &self.scope {
            let definition = TableDefinition::raw(self.name.as_str());
            return without_gil(py, || snapshot.table(&definition)?.get(key));
        }
        in_transaction!(self, py, tx, table => table.get(key))
    }

    /// The next rows of a range.
    fn batch(&self, py: Python<'_>, bounds: &Bounds, reverse: bool) -> PyResult<Vec<Row>> {
        if let Scope::Snapshot(snapshot) = &self.scope {
            let definition = TableDefinition::raw(self.name.as_str());
            return without_gil(py, || {
                let rows = snapshot.table(&definition)?.range(bounds.clone());
                if reverse { rows.rev().take(BATCH).collect() } else { rows.take(BATCH).collect() }
            });
        }
        in_transaction!(self, py, tx, table => {
            let rows = table.range(bounds.clone());
            if reverse { rows.rev().take(BATCH).collect() } else { rows.take(BATCH).collect() }
        })
    }

    fn iterate(&self, start: Option<&[u8]>, end: Option<&[u8]>, reverse: bool, part: Part) -> Rows {
        let low = start.map_or(Edge::Unbounded, |key| Edge::Included(key.to_vec()));
        let high = end.map_or(Edge::Unbounded, |key| Edge::Excluded(key.to_vec()));
        let view = self.clone();
        Rows { view, bounds: (low, high), reverse, part, rows: Vec::new(), is_done: false }
    }
}

fn missing(py: Python<'_>, key: &[u8]) -> PyErr {
    PyKeyError::new_err(PyBytes::new(py, key).unbind())
}

/// A table in a snapshot: a mapping that does not change.
#[pyclass(frozen, subclass, module = "azekura")]
pub(crate) struct SnapshotTable {
    view: View,
}

impl SnapshotTable {
    pub(crate) const fn new(scope: Scope, name: String) -> Self {
        Self { view: View { scope, name } }
    }
}

#[pymethods]
impl SnapshotTable {
    #[getter]
    fn name(&self) -> &str {
        &self.view.name
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.view.get(py, key)?.ok_or_else(|| missing(py, key))?;
        Ok(PyBytes::new(py, &value))
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(key) = key.extract::<&[u8]>() else { return Ok(false) };
        Ok(self.view.get(py, key)?.is_some())
    }

    /// Number of rows; reads the whole table.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let mut rows = self.view.iterate(None, None, false, Part::Key);
        let mut count = 0;
        while rows.fill(py)? {
            count += std::mem::take(&mut rows.rows).len();
        }
        Ok(count)
    }

    fn __iter__(&self) -> Rows {
        self.view.iterate(None, None, false, Part::Key)
    }

    /// Returns the value at a key, or `default`.
    #[pyo3(signature = (key, default=None))]
    fn get(&self, py: Python<'_>, key: &[u8], default: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        match self.view.get(py, key)? {
            Some(value) => Ok(PyBytes::new(py, &value).into_any().unbind()),
            None => Ok(default.unwrap_or_else(|| py.None())),
        }
    }

    /// Iterates over the rows from `start`, included, to `end`, excluded.
    #[pyo3(signature = (start=None, end=None, *, reverse=false))]
    fn items(&self, start: Option<&[u8]>, end: Option<&[u8]>, reverse: bool) -> Rows {
        self.view.iterate(start, end, reverse, Part::Both)
    }

    /// As `items`, without the values.
    #[pyo3(signature = (start=None, end=None, *, reverse=false))]
    fn keys(&self, start: Option<&[u8]>, end: Option<&[u8]>, reverse: bool) -> Rows {
        self.view.iterate(start, end, reverse, Part::Key)
    }

    /// As `items`, without the keys.
    #[pyo3(signature = (start=None, end=None, *, reverse=false))]
    fn values(&self, start: Option<&[u8]>, end: Option<&[u8]>, reverse: bool) -> Rows {
        self.view.iterate(start, end, reverse, Part::Value)
    }
}

/// A table of a database or a transaction: a mapping.
#[pyclass(frozen, extends = SnapshotTable, module = "azekura")]
pub(crate) struct Table;

impl Table {
    pub(crate) fn make(py: Python<'_>, scope: Scope, name: String) -> PyResult<Py<Self>> {
        Py::new(py, (Self, SnapshotTable::new(scope, name)))
    }
}

#[pymethods]
impl Table {
    fn __setitem__(slf: PyRef<'_, Self>, py: Python<'_>, key: &[u8], value: &[u8]) -> PyResult<()> {
        let view = &slf.as_super().view;
        in_transaction!(view, py, tx, table => table.insert(key, value))
    }

    fn __delitem__(slf: PyRef<'_, Self>, py: Python<'_>, key: &[u8]) -> PyResult<()> {
        let view = &slf.as_super().view;
        let was_there = in_transaction!(view, py, tx, table => table.delete(key))?;
        if was_there { Ok(()) } else { Err(missing(py, key)) }
    }
}

/// The part of a row that an iterator gives.
#[derive(Clone, Copy)]
enum Part {
    Key,
    Value,
    Both,
}

/// An iterator over rows; keeps its scope.
#[pyclass(module = "azekura")]
pub(crate) struct Rows {
    view: View,
    bounds: Bounds,
    reverse: bool,
    part: Part,
    /// Rows that were read, last one first.
    rows: Vec<Row>,
    is_done: bool,
}

impl Rows {
    /// Reads the next batch when none is left; `false` at the end.
    fn fill(&mut self, py: Python<'_>) -> PyResult<bool> {
        if self.rows.is_empty() && !self.is_done {
            self.rows = self.view.batch(py, &self.bounds, self.reverse)?;
            self.is_done = self.rows.len() < BATCH;
            if let Some((last, _)) = self.rows.last() {
                let past = Edge::Excluded(last.clone());
                *(if self.reverse { &mut self.bounds.1 } else { &mut self.bounds.0 }) = past;
            }
            self.rows.reverse();
        }
        Ok(!self.rows.is_empty())
    }
}

#[pymethods]
impl Rows {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        if !self.fill(py)? {
            return Ok(None);
        }
        let Some((key, value)) = self.rows.pop() else { return Ok(None) };
        let (key, value) = (|| PyBytes::new(py, &key), || PyBytes::new(py, &value));
        Ok(Some(match self.part {
            Part::Key => key().into_any().unbind(),
            Part::Value => value().into_any().unbind(),
            Part::Both => PyTuple::new(py, [key(), value()])?.into_any().unbind(),
        }))
    }
}
