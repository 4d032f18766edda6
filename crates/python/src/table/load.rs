//! Bulk loads.

use std::collections::VecDeque;

use azekura::{Error, Table};
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use super::{Row, Scope, View};
use crate::errors::{raised, without_gil};
use crate::signals;
use crate::transaction::{lock, opened};

/// Number of rows that are taken from the iterable at once, with the GIL.
const TAKEN_ROWS: usize = 1024;
/// Size of these rows in bytes at which no more are taken.
const TAKEN_BYTES: usize = 1 << 20;
/// Bytes of rows that are sorted in memory. More rows use temporary files.
const SORT_BYTES: usize = 64 << 20;

/// The rows of a load. They are taken from the iterable in batches; no latch is held meanwhile.
struct Source<'a> {
    view: &'a View,
    rows: Py<PyIterator>,
    taken: VecDeque<Row>,
    is_ended: bool,
    failed: Option<PyErr>,
}

impl Source<'_> {
    fn take(&mut self, py: Python<'_>) -> PyResult<()> {
        let (mut rows, mut bytes) = (self.rows.bind(py).clone(), 0);
        let codecs = &self.view.definition;
        while self.taken.len() < TAKEN_ROWS && bytes < TAKEN_BYTES {
            let Some(row) = rows.next() else {
                self.is_ended = true;
                break;
            };
            let (key, value) = row?.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
            let (key, value) = (codecs.encode_key(&key)?, codecs.encode_value(&value)?);
            bytes += key.len() + value.len();
            self.taken.push_back((key.into_owned(), value.into_owned()));
        }
        py.check_signals()
    }
}

impl Iterator for Source<'_> {
    type Item = Result<Row, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.taken.is_empty() && !self.is_ended {
            let taken = Python::try_attach(|py| self.take(py));
            match taken {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    self.failed = Some(error);
                    return Some(Err(Error::other("the rows of the load cannot be read")));
                }
                None => return Some(Err(Error::other("the interpreter ends"))),
            }
        }
        self.taken.pop_front().map(Ok)
    }
}

pub(super) fn bulk_load(
    py: Python<'_>,
    view: &View,
    rows: &Bound<'_, PyAny>,
    is_sorted: bool,
) -> PyResult<u64> {
    let rows = rows.try_iter()?.unbind();
    let mut source = Source { view, rows, taken: VecDeque::new(), is_ended: false, failed: None };
    let load = |table: Table<'_, [u8], [u8]>, source: &mut Source<'_>| {
        if is_sorted { table.try_bulk_load(source) } else { table.try_bulk_load_unsorted(source, SORT_BYTES) }
    };
    let definition = &view.definition.table;
    let loaded = match &view.scope {
        // The iterable can be read only once, so the transaction does not run again after a conflict.
        Scope::Database(db) => without_gil(py, || {
            let tx = db.begin()?;
            let loaded = load(tx.table(definition)?, &mut source)?;
            signals::refuse_raised()?;
            tx.commit()?;
            Ok(loaded)
        }),
        Scope::Transaction(shared) => {
            let mut open = lock(shared)?;
            let (tx, source) = (opened(&mut open)?, &mut source);
            without_gil(py, move || load(tx.table(definition)?, source))
        }
        Scope::Snapshot(..) => Err(raised(Error::ReadOnly)),
    };
    source.failed.map_or(loaded, Err)
}
