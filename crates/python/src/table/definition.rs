//! Name and codecs of a table.

use std::borrow::Cow;
use std::ops::Bound as Edge;
use std::sync::Arc;

use azekura::TableDefinition;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::Bounds;
use crate::codec::{Codec, type_of};
use crate::errors::Corrupt;

/// Name and codecs of a table.
pub(crate) struct Definition {
    pub(super) table: TableDefinition<[u8], [u8]>,
    pub(super) key: Codec,
    pub(super) value: Codec,
    /// `true` if the table was opened without codecs.
    is_raw: bool,
}

/// The keys or the values of a table.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Side {
    Keys,
    Values,
}

impl Definition {
    /// Returns the definition for the arguments of `table`. Without codecs a table of any types opens, as
    /// bytes.
    pub(crate) fn of(
        name: String,
        key: Option<&Bound<'_, PyAny>>,
        value: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Arc<Self>> {
        let is_raw = key.is_none() && value.is_none();
        let key = key.map_or(Ok(Codec::Bytes), |key| Codec::of_keys(key, &name))?;
        let value = value.map_or(Ok(Codec::Bytes), |value| Codec::of_values(value, &name))?;
        let table = if is_raw {
            TableDefinition::raw(name)
        } else {
            TableDefinition::encoded(name, &key.type_name(), &value.type_name())
        };
        Ok(Arc::new(Self { table, key, value, is_raw }))
    }

    /// Encodes a key.
    pub(super) fn encode_key<'a>(&self, key: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, [u8]>> {
        self.key.key(key).map_err(|error| self.refused(Side::Keys, key, error))
    }

    /// Encodes a value.
    pub(super) fn encode_value<'a>(&self, value: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, [u8]>> {
        self.value.value(value).map_err(|error| self.refused(Side::Values, value, error))
    }

    /// Decodes a key.
    pub(super) fn decode_key<'py>(&self, py: Python<'py>, stored: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        self.key.key_from(py, stored).map_err(|error| self.damaged(py, error))
    }

    /// Decodes a value.
    pub(super) fn decode_value<'py>(&self, py: Python<'py>, stored: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        self.value.value_from(py, stored).map_err(|error| self.damaged(py, error))
    }

    /// Returns a `TypeError` that names the table and its codec, for a call that other codecs support.
    pub(super) fn needs(&self, side: Side, needed: &str) -> PyErr {
        PyTypeError::new_err(format!("{}; {needed}", self.described(side)))
    }

    /// Returns the table and its codec for a message.
    fn described(&self, side: Side) -> String {
        let (side, codec) = match side {
            Side::Keys => ("keys", &self.key),
            Side::Values => ("values", &self.value),
        };
        format!("the {side} of table {:?} are {}", self.table.name(), codec.python_name())
    }

    /// Returns the exception for an object that the codec does not encode, with the table and the codec. An
    /// exception of another class, such as one of a program's `__index__`, is returned as it is.
    fn refused(&self, side: Side, object: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
        let py = object.py();
        let is = |class: &Bound<'_, PyType>| error.get_type(py).is(class);
        let encodes_any = matches!((side, &self.value), (Side::Values, Codec::Json | Codec::Pickle));
        let described = self.described(side);
        let text = if is(&py.get_type::<PyTypeError>()) && !encodes_any && error.traceback(py).is_none() {
            let hint =
                if self.is_raw { "; give table() the codecs of its rows, as key=str, value=int" } else { "" };
            format!("{described}, not {}{hint}", type_of(object))
        } else if is(&py.get_type::<PyOverflowError>()) {
            format!("{described}, and this one does not fit into 64 bits: {}", error.value(py))
        } else if is(&py.get_type::<PyTypeError>()) || is(&py.get_type::<PyValueError>()) {
            format!("{described}: {}", error.value(py))
        } else {
            return error;
        };
        let named = PyErr::from_type(error.get_type(py), text);
        if error.traceback(py).is_some() {
            named.set_cause(py, Some(error)); // Python code has raised it
        }
        named
    }

    /// Adds the name of the table to the error of damaged bytes.
    fn damaged(&self, py: Python<'_>, error: PyErr) -> PyErr {
        if !error.is_instance_of::<Corrupt>(py) {
            return error;
        }
        Corrupt::new_err(format!("table {:?}: {}", self.table.name(), error.value(py)))
    }

    /// Encodes the range from `start` (inclusive) to `end` (exclusive), or the range of a prefix.
    pub(super) fn bounds(
        &self,
        start: Option<&Bound<'_, PyAny>>,
        end: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bounds> {
        let key = &self.key;
        if let Some(prefix) = prefix {
            if !key.has_prefixes() {
                return Err(self.needs(Side::Keys, "only keys of str, bytes or tuples have prefixes"));
            }
            let low = key.prefix(prefix).map_err(|error| self.refused(Side::Keys, prefix, error))?;
            if key.is_whole(prefix) {
                return Ok((Edge::Included(low.clone()), Edge::Excluded([low, vec![0]].concat())));
            }
            let high = match low.iter().rposition(|byte| *byte != u8::MAX) {
                Some(at) => {
                    let mut high = low[..=at].to_vec();
                    high[at] += 1;
                    Edge::Excluded(high)
                }
                None => Edge::Unbounded,
            };
            return Ok((Edge::Included(low), high));
        }
        let bound = |bound: &Bound<'_, PyAny>| match key.bound(bound) {
            Ok(encoded) => Ok(encoded.into_owned()),
            Err(error) => Err(self.refused(Side::Keys, bound, error)),
        };
        let (low, high) = (start.map(bound).transpose()?, end.map(bound).transpose()?);
        Ok((low.map_or(Edge::Unbounded, Edge::Included), high.map_or(Edge::Unbounded, Edge::Excluded)))
    }
}
