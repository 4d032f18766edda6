//! Tables as mappings, and iterators over their rows.

use std::borrow::Cow;
use std::ops::{Bound as Edge, ControlFlow};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use azekura::{Error, ValueRef};
use pyo3::exceptions::{PyKeyError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

mod definition;
mod load;
mod many;
mod parts;
mod rows;
mod scope;

pub(crate) use self::definition::Definition;
use self::definition::Side;
use self::many::{get_all, insert_all};
use self::parts::part_of;
use self::rows::{Batch, Rows};
pub(crate) use self::scope::{OpenTable, Scope};
use crate::codec::Codec;
use crate::errors::{Invalid, raised, without_gil};
use crate::snapshot::{SnapshotCell, closed};
use crate::transaction::{lock, opened};
use crate::{Store, signals};

type Row = (Vec<u8>, Vec<u8>);
type Bounds = (Edge<Vec<u8>>, Edge<Vec<u8>>);

/// A table with its source of rows.
#[derive(Clone)]
pub(crate) struct View {
    scope: Scope,
    definition: Arc<Definition>,
}

/// Evaluates one expression with the table of a transaction. If the source is a database, this is a new
/// transaction that is retried after conflicts.
macro_rules! in_transaction {
    ($view:expr, $py:expr, $table:ident => $body:expr) => {{
        let definition = &$view.definition.table;
        match &$view.scope {
            Scope::Database(db) => without_gil($py, || {
                db.transact(|tx| {
                    let $table = tx.table(definition)?;
                    let done: Result<_, Error> = $body;
                    signals::refuse_raised()?;
                    done
                })
            }),
            Scope::Transaction(shared) => {
                let mut open = lock(shared)?;
                let tx = opened(&mut open)?;
                without_gil($py, move || {
                    let $table = tx.table(definition)?;
                    $body
                })
            }
            Scope::Snapshot(..) => Err(raised(Error::ReadOnly)),
        }
    }};
}

/// Evaluates one expression as `in_transaction` does, but also with a table of a snapshot; for calls that
/// only read.
macro_rules! in_any_scope {
    ($view:expr, $py:expr, $table:ident => $body:expr) => {{
        match &$view.scope {
            Scope::Snapshot(_, table) => {
                let open = table.upgrade().ok_or_else(closed)?;
                without_gil($py, || {
                    let $table = open.table.table();
                    $body
                })
            }
            _ => in_transaction!($view, $py, $table => $body),
        }
    }};
}

/// The part of a row that an iterator returns.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Key,
    Value,
    Both,
}

impl View {
    /// Returns the next rows of a range.
    fn batch(&self, py: Python<'_>, bounds: &Bounds, reverse: bool, part: Part) -> PyResult<Batch> {
        in_any_scope!(self, py, table => {
            let mut batch = Batch::empty();
            if reverse {
                table.for_each_back(bounds.clone(), |row| batch.add(row, part))?;
            } else {
                table.for_each(bounds.clone(), |row| batch.add(row, part))?;
            }
            Ok(batch)
        })
    }

    /// Counts the rows of a range without reading values.
    fn count(&self, py: Python<'_>, bounds: &Bounds) -> PyResult<usize> {
        in_any_scope!(self, py, table => {
            let mut rows = 0;
            table.for_each(bounds.clone(), |_| signals::count(&mut rows).map(ControlFlow::Continue))?;
            Ok(rows)
        })
    }

    /// Encodes a key. Returns `None` for an object that cannot be a key of the table: as in a dict, it is not
    /// contained. Other exceptions, such as Ctrl-C in `__index__`, are raised.
    fn possible_key<'a>(&self, key: &'a Bound<'_, PyAny>) -> PyResult<Option<Cow<'a, [u8]>>> {
        let py = key.py();
        match self.definition.key.key(key) {
            Err(error)
                if error.is_instance_of::<PyTypeError>(py)
                    || error.is_instance_of::<PyValueError>(py)
                    || error.is_instance_of::<PyOverflowError>(py) =>
            {
                Ok(None)
            }
            encoded => encoded.map(Some),
        }
    }

    /// Calls `read` with the value at a key; returns `None` if there is no row. The values are bytes.
    fn part<T: Send>(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        read: impl Fn(ValueRef<'_>) -> Result<T, Error> + Sync + Send,
    ) -> PyResult<Option<T>> {
        if !matches!(self.definition.value, Codec::Bytes) {
            return Err(self.definition.needs(Side::Values, "only values of bytes are read in parts"));
        }
        let key = self.definition.encode_key(key)?;
        in_any_scope!(self, py, table => table.with_value(key.as_ref(), &read))
    }

    fn key_from<'py>(&self, py: Python<'py>, stored: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        self.definition.decode_key(py, stored)
    }

    fn value_from<'py>(&self, py: Python<'py>, stored: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        self.definition.decode_value(py, stored)
    }

    fn item<'py>(&self, py: Python<'py>, key: &[u8], value: &[u8]) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, [self.key_from(py, key)?, self.value_from(py, value)?])
    }

    /// Removes a row by `remove` and returns it as (key, value). If the codec raises an exception, or the
    /// interpreter ends, the row stays: a transaction of one call is rolled back, and in another one the row
    /// is stored again.
    fn removed(
        &self,
        py: Python<'_>,
        remove: impl Fn(&azekura::Table<'_, [u8], [u8]>) -> Result<Option<Row>, Error> + Sync,
    ) -> PyResult<Option<Py<PyTuple>>> {
        let failure = Mutex::new(None);
        let (remove, kept) = (&remove, &failure);
        let row = in_transaction!(self, py, table => {
            let Some((key, value)) = remove(&table)? else { return Ok(None) };
            match Python::try_attach(|py| self.item(py, &key, &value).map(Bound::unbind)) {
                Some(Ok(item)) => Ok(Some(item)),
                failed => {
                    table.insert(&key, &value)?;
                    *kept.lock().unwrap_or_else(PoisonError::into_inner) = failed.and_then(Result::err);
                    Err(Error::other("the row cannot be decoded, because the interpreter ends"))
                }
            }
        });
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(row, Err)
    }

    fn item_or_none<'py>(&self, py: Python<'py>, row: Option<Row>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        row.map(|(key, value)| self.item(py, &key, &value)).transpose()
    }

    fn value_or<'py>(
        &self,
        py: Python<'py>,
        stored: Option<Vec<u8>>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match stored {
            Some(value) => self.value_from(py, &value),
            None => Ok(default.unwrap_or_else(|| py.None().into_bound(py))),
        }
    }
}

fn missing(key: &Bound<'_, PyAny>) -> PyErr {
    // In a tuple, because the parts of a key that is a tuple would be several arguments.
    PyKeyError::new_err((key.clone().unbind(),))
}

/// A table in a snapshot: a read-only mapping.
#[pyclass(frozen, subclass, weakref, module = "azekura")]
pub(crate) struct SnapshotTable {
    pub(crate) view: View,
}

impl SnapshotTable {
    pub(crate) fn new(scope: Scope, definition: Arc<Definition>) -> Self {
        Self { view: View { scope, definition } }
    }

    pub(crate) fn of_snapshot(
        py: Python<'_>,
        cell: &Arc<SnapshotCell>,
        definition: Arc<Definition>,
    ) -> PyResult<Self> {
        let open = cell.get()?;
        let table = without_gil(py, || open.snapshot.owned_table(&definition.table))?;
        let table = cell.keep(OpenTable { table, _store: Arc::clone(&open.store) })?;
        Ok(Self::new(Scope::Snapshot(Arc::clone(cell), table), definition))
    }

    /// Returns the definition for a transaction or snapshot of `store`, to which the table belongs: the table
    /// of this name in another store is another table.
    pub(crate) fn definition_in(&self, store: &Weak<Store>) -> PyResult<Arc<Definition>> {
        let (definition, own) = (&self.view.definition, self.view.scope.store());
        if own.ptr_eq(store) {
            return Ok(Arc::clone(definition));
        }
        let path = |store: &Weak<Store>| {
            store.upgrade().map_or_else(|| "a closed database".into(), |db| db.path().display().to_string())
        };
        Err(Invalid::new_err(format!(
            "table {:?} belongs to {}, and this transaction or snapshot to {}; open the table there by \
             table()",
            definition.table.name(),
            path(&own),
            path(store)
        )))
    }

    fn read(&self, py: Python<'_>, key: &[u8]) -> PyResult<Option<Vec<u8>>> {
        in_any_scope!(self.view, py, table => table.get(key))
    }
}

#[pymethods]
impl SnapshotTable {
    /// Returns the table's name.
    #[getter]
    fn name(&self) -> &str {
        self.view.definition.table.name()
    }

    fn __repr__(&self) -> String {
        let definition = &self.view.definition;
        let (key, value) = (definition.key.type_name(), definition.value.type_name());
        format!("<azekura table {:?}: {key} to {value}>", definition.table.name())
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let stored = self.read(py, &self.view.definition.encode_key(key)?)?;
        self.view.value_from(py, &stored.ok_or_else(|| missing(key))?)
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Some(key) = self.view.possible_key(key)? else { return Ok(false) };
        in_any_scope!(self.view, py, table => table.contains(key.as_ref()))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.view.count(py, &(Edge::Unbounded, Edge::Unbounded))
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        in_any_scope!(self.view, py, table => table.is_empty()).map(|is_empty| !is_empty)
    }

    fn __iter__(&self) -> Rows {
        Rows::new(self.view.clone(), (Edge::Unbounded, Edge::Unbounded), false, Part::Key)
    }

    /// Returns the value at a key, or `default`.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let stored = self.read(py, &self.view.definition.encode_key(key)?)?;
        self.view.value_or(py, stored, default)
    }

    /// Returns the values at several keys, in the order of the keys; `default` for a key without a row. All
    /// values are read at one moment.
    #[pyo3(signature = (keys, default=None))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let encode =
            |key: PyResult<Bound<'py, PyAny>>| Ok(self.view.definition.encode_key(&key?)?.into_owned());
        let keys: Vec<Vec<u8>> = keys.try_iter()?.map(encode).collect::<PyResult<_>>()?;
        let values: Vec<Option<Vec<u8>>> = in_any_scope!(self.view, py, table => {
            get_all(&keys, |part| table.prefetch(part), |key| table.get(key))
        })?;
        let default = default.unwrap_or_else(|| py.None().into_bound(py));
        let decode = |value: &Option<Vec<u8>>| match value {
            Some(value) => self.view.value_from(py, value),
            None => Ok(default.clone()),
        };
        PyList::new(py, values.iter().map(decode).collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns at most `length` bytes of the value at a key, from `offset` on, or None. Of a large value,
    /// only the pages with these bytes are read. The values of the table are bytes.
    fn read_at<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        offset: u64,
        length: usize,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let part = self.view.part(py, key, |value| part_of(&value, offset, length))?;
        Ok(part.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Returns the length of the value at a key without reading the value, or None. The values of the table
    /// are bytes.
    fn value_length(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
        self.view.part(py, key, |value| Ok(value.len()))
    }

    /// Returns the row with the least key as (key, value), or None.
    fn first<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let row = in_any_scope!(self.view, py, table => table.first())?;
        self.view.item_or_none(py, row)
    }

    /// Returns the row with the greatest key as (key, value), or None.
    fn last<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let row = in_any_scope!(self.view, py, table => table.last())?;
        self.view.item_or_none(py, row)
    }

    /// Iterates over the keys, the values or the rows of a range: `part` is "keys", "values" or "items".
    #[pyo3(signature = (part, start, end, prefix, reverse))]
    fn _rows(
        &self,
        part: &str,
        start: Option<&Bound<'_, PyAny>>,
        end: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
        reverse: bool,
    ) -> PyResult<Rows> {
        let part = match part {
            "keys" => Part::Key,
            "values" => Part::Value,
            _ => Part::Both,
        };
        let bounds = self.view.definition.bounds(start, end, prefix)?;
        Ok(Rows::new(self.view.clone(), bounds, reverse, part))
    }

    /// Counts the rows of a range without reading values.
    #[pyo3(signature = (start, end, prefix))]
    fn _count(
        &self,
        py: Python<'_>,
        start: Option<&Bound<'_, PyAny>>,
        end: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        self.view.count(py, &self.view.definition.bounds(start, end, prefix)?)
    }

    /// Returns `true` if a key lies in a range.
    #[pyo3(signature = (key, start, end, prefix))]
    fn _is_inside(
        &self,
        key: &Bound<'_, PyAny>,
        start: Option<&Bound<'_, PyAny>>,
        end: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let Some(key) = self.view.possible_key(key)? else { return Ok(false) };
        let (low, high) = self.view.definition.bounds(start, end, prefix)?;
        let is_above = !matches!(&low, Edge::Included(low) if key.as_ref() < low.as_slice());
        Ok(is_above && !matches!(&high, Edge::Excluded(high) if key.as_ref() >= high.as_slice()))
    }
}

/// A table of a database or a transaction, as a mutable mapping.
#[pyclass(frozen, extends = SnapshotTable, module = "azekura")]
pub(crate) struct Table;

impl Table {
    pub(crate) fn make(py: Python<'_>, scope: Scope, definition: Arc<Definition>) -> PyResult<Py<Self>> {
        Py::new(py, (Self, SnapshotTable::new(scope, definition)))
    }
}

#[pymethods]
impl Table {
    fn __setitem__(
        slf: PyRef<'_, Self>,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let view = &slf.as_super().view;
        let (key, value) = (view.definition.encode_key(key)?, view.definition.encode_value(value)?);
        in_transaction!(view, py, table => table.insert(key.as_ref(), value.as_ref()))
    }

    fn __delitem__(slf: PyRef<'_, Self>, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let view = &slf.as_super().view;
        let encoded = view.definition.encode_key(key)?;
        let was_there = in_transaction!(view, py, table => table.delete(encoded.as_ref()))?;
        if was_there { Ok(()) } else { Err(missing(key)) }
    }

    /// Removes the row at a key and returns it as (key, value), or None if there is no row.
    fn _take(slf: PyRef<'_, Self>, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyTuple>>> {
        let view = &slf.as_super().view;
        let key = view.definition.encode_key(key)?;
        view.removed(py, |table| Ok(table.remove(key.as_ref())?.map(|value| (key.to_vec(), value))))
    }

    /// Stores several rows, in one transaction.
    fn _insert(slf: PyRef<'_, Self>, py: Python<'_>, rows: &Bound<'_, PyList>) -> PyResult<()> {
        let view = &slf.as_super().view;
        let encode = |row: Bound<'_, PyAny>| {
            let (key, value) = row.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
            let key = view.definition.encode_key(&key)?.into_owned();
            Ok((key, view.definition.encode_value(&value)?.into_owned()))
        };
        let rows: Vec<Row> = rows.iter().map(encode).collect::<PyResult<_>>()?;
        in_transaction!(view, py, table => insert_all(&table, &rows))
    }

    /// Returns the value at a key. If there is no row, stores and returns `default`.
    #[pyo3(signature = (key, default=None))]
    fn setdefault<'py>(
        slf: PyRef<'_, Self>,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let view = &slf.as_super().view;
        let default = default.unwrap_or_else(|| py.None().into_bound(py));
        let encoded = view.definition.encode_key(key)?;
        // An invalid default raises an exception only if there is no row.
        let value = view.definition.encode_value(&default);
        let new = value.as_ref().ok().map(|value| value.as_ref());
        let found = in_transaction!(view, py, table => {
            let found = table.get_for_update(encoded.as_ref())?;
            if let (None, Some(new)) = (&found, new) {
                table.insert(encoded.as_ref(), new)?;
            }
            Ok(found)
        })?;
        match found {
            Some(found) => view.value_from(py, &found),
            None => value.map(|_| default.clone()),
        }
    }

    /// Returns the value at a key, or `default`, and locks the row for an update.
    #[pyo3(signature = (key, default=None))]
    fn get_for_update<'py>(
        slf: PyRef<'_, Self>,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let view = &slf.as_super().view;
        let key = view.definition.encode_key(key)?;
        let found = in_transaction!(view, py, table => table.get_for_update(key.as_ref()))?;
        view.value_or(py, found, default)
    }

    /// Adds a number to the value at a key and returns the sum. A missing row counts as 0.
    #[pyo3(signature = (key, amount=1))]
    fn add(slf: PyRef<'_, Self>, py: Python<'_>, key: &Bound<'_, PyAny>, amount: i64) -> PyResult<i64> {
        let view = &slf.as_super().view;
        if !matches!(view.definition.value, Codec::Int) {
            return Err(view.definition.needs(Side::Values, "add() needs int: table(name, value=int)"));
        }
        let key = view.definition.encode_key(key)?;
        let sum = in_transaction!(view, py, table => {
            let old = table.get_for_update(key.as_ref())?;
            let number = |old: Vec<u8>| old.try_into().map(i64::from_le_bytes);
            let Ok(old) = old.map_or(Ok(0), number) else {
                let name = view.definition.table.name();
                let reason = format!("table {name:?}: the stored value is not an int of 8 bytes");
                return Err(Error::Invalid(reason));
            };
            let sum = old.checked_add(amount);
            if let Some(sum) = sum {
                table.insert(key.as_ref(), &sum.to_le_bytes())?;
            }
            Ok(sum)
        })?;
        sum.ok_or_else(|| {
            let name = view.definition.table.name();
            PyOverflowError::new_err(format!("table {name:?}: the sum does not fit into 64 bits"))
        })
    }

    /// Removes the row with the least key that no other transaction has locked, and returns it as (key,
    /// value). Returns None if there is no such row. With `skip_locked=False`, waits for the row with the
    /// least key of all.
    #[pyo3(signature = (*, skip_locked=true))]
    fn pop_first(slf: PyRef<'_, Self>, py: Python<'_>, skip_locked: bool) -> PyResult<Option<Py<PyTuple>>> {
        let view = &slf.as_super().view;
        view.removed(
            py,
            |table| if skip_locked { table.skip_locked().pop_first() } else { table.pop_first() },
        )
    }

    /// Removes the row with the greatest key, as `pop_first` does for the least one.
    #[pyo3(signature = (*, skip_locked=true))]
    fn pop_last(slf: PyRef<'_, Self>, py: Python<'_>, skip_locked: bool) -> PyResult<Option<Py<PyTuple>>> {
        let view = &slf.as_super().view;
        view.removed(py, |table| if skip_locked { table.skip_locked().pop_last() } else { table.pop_last() })
    }

    /// Stores a row unless there is a row with this key. Returns True if the row was stored.
    fn insert_if_absent(
        slf: PyRef<'_, Self>,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let view = &slf.as_super().view;
        let (key, value) = (view.definition.encode_key(key)?, view.definition.encode_value(value)?);
        in_transaction!(view, py, table => table.insert_if_absent(key.as_ref(), value.as_ref()))
    }

    /// Stores `value` at a key if the present value is `expected`; returns True in that case. None stands for
    /// an absent row: as `expected`, and as `value`, which then removes the row. Values are compared in their
    /// encoded form.
    fn compare_and_set(
        slf: PyRef<'_, Self>,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        expected: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let view = &slf.as_super().view;
        let encode = |value: Option<_>| value.map(|value| view.definition.encode_value(value)).transpose();
        let (key, expected, value) = (view.definition.encode_key(key)?, encode(expected)?, encode(value)?);
        in_transaction!(view, py, table => {
            table.compare_and_set(key.as_ref(), expected.as_deref(), value.as_deref())
        })
    }

    /// Fills an empty table with the rows of an iterable of (key, value), in ascending order of their keys,
    /// in one transaction; returns their number. This is several times as fast as `update`. With
    /// `is_sorted=False` the rows are in any order, and the table may have rows; of equal keys the last one
    /// counts. The iterable must not use the table's transaction.
    #[pyo3(signature = (rows, *, is_sorted=true))]
    fn bulk_load(
        slf: PyRef<'_, Self>,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        is_sorted: bool,
    ) -> PyResult<u64> {
        load::bulk_load(py, &slf.as_super().view, rows, is_sorted)
    }

    /// Removes the rows of a range, or the rows with keys that begin with `prefix`; returns their number.
    #[pyo3(signature = (start=None, end=None, *, prefix=None))]
    fn remove_range(
        slf: PyRef<'_, Self>,
        py: Python<'_>,
        start: Option<&Bound<'_, PyAny>>,
        end: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        if prefix.is_some() && (start.is_some() || end.is_some()) {
            return Err(PyTypeError::new_err("give a prefix, or a start and an end"));
        }
        let view = &slf.as_super().view;
        let bounds = view.definition.bounds(start, end, prefix)?;
        in_transaction!(view, py, table => table.remove_range(bounds.clone()))
    }
}
