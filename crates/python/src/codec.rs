//! Codecs: convert Python objects to the bytes that a table stores, and back.
//!
//! Keys and values of a codec have the bytes and the type name of the Rust type in the table, so programs in
//! both languages can share a table. Encoding runs before the call of the store, and decoding after the call
//! (PY-2).
//!
//! | codec | Rust type |
//! |---|---|
//! | `bytes` | `[u8]` |
//! | `str` | `str` |
//! | `int`, also objects with `__index__`, such as the integers of numpy | `i64` |
//! | `float` | `f64` as a value; as a key, bytes in numeric order with the type name `f64` |
//! | `(str, int)` and other tuples, for keys | `(String, i64)` and other tuples |
//! | `()`, for values: none | `()` |
//! | `"json"`, `"pickle"`, for values | none: text of `json.dumps`, bytes of `pickle.dumps` |

use std::borrow::Cow;

use azekura::{EncodeKey, Key};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyFloat, PyInt, PyMemoryView, PyString, PyTuple};

use crate::errors::Corrupt;

/// The codec of the keys or of the values of a table.
#[derive(Clone, Debug)]
pub(crate) enum Codec {
    Bytes,
    Str,
    Int,
    Float,
    Tuple(Vec<Codec>),
    /// No value: the empty tuple.
    Unit,
    Json,
    Pickle,
}

impl Codec {
    fn simple(codec: &Bound<'_, PyAny>) -> Option<Self> {
        let py = codec.py();
        let all = [
            (Self::Bytes, py.get_type::<PyBytes>()),
            (Self::Str, py.get_type::<PyString>()),
            (Self::Int, py.get_type::<PyInt>()),
            (Self::Float, py.get_type::<PyFloat>()),
        ];
        all.into_iter().find(|(_, kind)| kind.is(codec)).map(|(codec, _)| codec)
    }

    /// Returns the codec for the argument `key` of `table`; `table` is its name.
    pub(crate) fn of_keys(codec: &Bound<'_, PyAny>, table: &str) -> PyResult<Self> {
        if let Ok(parts) = codec.cast::<PyTuple>() {
            let parts: Option<Vec<Self>> = parts.iter().map(|part| Self::simple(&part)).collect();
            if let Some(parts) = parts.filter(|parts| parts.len() > 1) {
                return Ok(Self::Tuple(parts));
            }
        }
        Self::simple(codec).ok_or_else(|| {
            PyTypeError::new_err(format!(
                "table {table:?}: key is bytes, str, int or float, or a tuple of these, as (str, int); \
                 not {}",
                shown(codec)
            ))
        })
    }

    /// Returns the codec for the argument `value` of `table`; `table` is its name.
    pub(crate) fn of_values(codec: &Bound<'_, PyAny>, table: &str) -> PyResult<Self> {
        let named = match codec.extract::<Cow<'_, str>>().ok().as_deref() {
            Some("json") => Some(Self::Json),
            Some("pickle") => Some(Self::Pickle),
            _ => codec.cast::<PyTuple>().is_ok_and(|codec| codec.is_empty()).then_some(Self::Unit),
        };
        named.or_else(|| Self::simple(codec)).ok_or_else(|| {
            PyTypeError::new_err(format!(
                "table {table:?}: value is bytes, str, int, float, \"json\", \"pickle\", or () for none; \
                 not {}",
                shown(codec)
            ))
        })
    }

    /// Returns the type name for the catalog.
    pub(crate) fn type_name(&self) -> String {
        match self {
            Self::Bytes => "bytes".into(),
            Self::Str => "str".into(),
            Self::Int => "i64".into(),
            Self::Float => "f64".into(),
            Self::Tuple(parts) => {
                format!("({})", parts.iter().map(Self::type_name).collect::<Vec<_>>().join(", "))
            }
            Self::Unit => "()".into(),
            Self::Json => "json".into(),
            Self::Pickle => "pickle".into(),
        }
    }

    /// Returns the codec as the arguments of `table` state it.
    pub(crate) fn python_name(&self) -> String {
        match self {
            Self::Int => "int".into(),
            Self::Float => "float".into(),
            Self::Tuple(parts) => {
                format!("({})", parts.iter().map(Self::python_name).collect::<Vec<_>>().join(", "))
            }
            other => other.type_name(),
        }
    }

    /// Encodes a key.
    pub(crate) fn key<'a>(&self, key: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, [u8]>> {
        if let (Self::Bytes, Ok(bytes)) = (self, key.cast::<PyBytes>()) {
            return Ok(Cow::Borrowed(bytes.as_bytes()));
        }
        let mut out = Vec::new();
        let Self::Tuple(codecs) = self else {
            self.encode(key, &mut out, true)?;
            return Ok(out.into());
        };
        let parts = key.cast::<PyTuple>()?;
        if parts.len() != codecs.len() {
            return Err(PyTypeError::new_err("wrong number of parts"));
        }
        for (number, (codec, part)) in codecs.iter().zip(parts.iter()).enumerate() {
            codec.encode(&part, &mut out, number + 1 == codecs.len())?;
        }
        Ok(out.into())
    }

    /// Encodes a bound of a range: a key, or for tuples also the first parts of a key.
    pub(crate) fn bound<'a>(&self, key: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, [u8]>> {
        match (self, key.cast::<PyTuple>()) {
            (Self::Tuple(codecs), Ok(parts)) if parts.len() < codecs.len() => {
                self.leading(parts).map(Cow::Owned)
            }
            _ => self.key(key),
        }
    }

    /// Encodes a prefix of keys: the first characters of a string, the first bytes, or the first parts of a
    /// tuple.
    pub(crate) fn prefix(&self, prefix: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
        match self {
            Self::Tuple(_) => self.leading(prefix.cast::<PyTuple>()?),
            _ => self.key(prefix).map(Cow::into_owned),
        }
    }

    /// Returns `true` if keys have prefixes.
    pub(crate) const fn has_prefixes(&self) -> bool {
        matches!(self, Self::Bytes | Self::Str | Self::Tuple(_))
    }

    /// Returns `true` if a prefix has all parts of a tuple, so that at most one key has this prefix.
    pub(crate) fn is_whole(&self, prefix: &Bound<'_, PyAny>) -> bool {
        let Self::Tuple(codecs) = self else { return false };
        prefix.cast::<PyTuple>().is_ok_and(|parts| parts.len() == codecs.len())
    }

    fn leading(&self, parts: &Bound<'_, PyTuple>) -> PyResult<Vec<u8>> {
        let Self::Tuple(codecs) = self else { return Ok(Vec::new()) };
        let mut out = Vec::new();
        if parts.len() > codecs.len() {
            return Err(PyTypeError::new_err("too many parts"));
        }
        for (number, (codec, part)) in codecs.iter().zip(parts.iter()).enumerate() {
            codec.encode(&part, &mut out, number + 1 == codecs.len())?;
        }
        Ok(out)
    }

    /// Appends a key or a part of a key; `is_last` is `true` if no part follows.
    fn encode(&self, key: &Bound<'_, PyAny>, out: &mut Vec<u8>, is_last: bool) -> PyResult<()> {
        fn put<K: EncodeKey<Q> + ?Sized, Q: ?Sized>(key: &Q, out: &mut Vec<u8>, is_last: bool) {
            if is_last { K::encode(key, out) } else { K::encode_part(key, out) }
        }
        match self {
            Self::Str => put::<str, str>(&key.cast::<PyString>()?.to_cow()?, out, is_last),
            Self::Int => put::<i64, i64>(&key.extract()?, out, is_last),
            Self::Float => put::<u64, u64>(&ordered(key.extract()?)?, out, is_last),
            _ => put::<[u8], [u8]>(&bytes(key)?, out, is_last),
        }
        Ok(())
    }

    /// Decodes a key.
    pub(crate) fn key_from<'py>(&self, py: Python<'py>, mut stored: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Tuple(codecs) => {
                let decode = |(number, codec): (usize, &Self)| {
                    codec.decode(py, &mut stored, number + 1 == codecs.len())
                };
                let parts: Vec<_> = codecs.iter().enumerate().map(decode).collect::<PyResult<_>>()?;
                Ok(PyTuple::new(py, parts)?.into_any())
            }
            _ => self.decode(py, &mut stored, true),
        }
    }

    fn decode<'py>(&self, py: Python<'py>, stored: &mut &[u8], is_last: bool) -> PyResult<Bound<'py, PyAny>> {
        fn take<K: Key + ?Sized>(stored: &mut &[u8], is_last: bool) -> PyResult<K::Owned> {
            let key = if is_last { K::decode(stored) } else { K::decode_part(stored) };
            key.map_err(|error| Corrupt::new_err(error.to_string()))
        }
        Ok(match self {
            Self::Str => PyString::new(py, &take::<str>(stored, is_last)?).into_any(),
            Self::Int => take::<i64>(stored, is_last)?.into_pyobject(py)?.into_any(),
            Self::Float => PyFloat::new(py, from_ordered(take::<u64>(stored, is_last)?)).into_any(),
            _ if is_last => PyBytes::new(py, stored).into_any(),
            _ => PyBytes::new(py, &take::<[u8]>(stored, is_last)?).into_any(),
        })
    }

    /// Encodes a value.
    pub(crate) fn value<'a>(&self, value: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, [u8]>> {
        let py = value.py();
        Ok(match self {
            Self::Str => value.cast::<PyString>()?.to_cow()?.into_owned().into_bytes().into(),
            Self::Int => value.extract::<i64>()?.to_le_bytes().to_vec().into(),
            Self::Float => value.extract::<f64>()?.to_le_bytes().to_vec().into(),
            Self::Unit if value.cast::<PyTuple>().is_ok_and(|value| value.is_empty()) => Cow::Borrowed(&[]),
            Self::Unit => return Err(PyTypeError::new_err("not ()")),
            Self::Json => {
                let text = py.import("json")?.call_method1("dumps", (value,))?;
                text.extract::<String>()?.into_bytes().into()
            }
            Self::Pickle => {
                let bytes = py.import("pickle")?.call_method1("dumps", (value,))?;
                bytes.extract::<Vec<u8>>()?.into()
            }
            _ => bytes(value)?,
        })
    }

    /// Decodes a value.
    pub(crate) fn value_from<'py>(&self, py: Python<'py>, stored: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let damaged =
            || Corrupt::new_err(format!("{} stored bytes are no {}", stored.len(), self.python_name()));
        let number = || stored.try_into().map_err(|_| damaged());
        Ok(match self {
            Self::Str => PyString::new(py, std::str::from_utf8(stored).map_err(|_| damaged())?).into_any(),
            Self::Int => i64::from_le_bytes(number()?).into_pyobject(py)?.into_any(),
            Self::Float => PyFloat::new(py, f64::from_le_bytes(number()?)).into_any(),
            Self::Unit if stored.is_empty() => PyTuple::empty(py).into_any(),
            Self::Unit => return Err(damaged()),
            Self::Json => py.import("json")?.call_method1("loads", (PyBytes::new(py, stored),))?,
            Self::Pickle => py.import("pickle")?.call_method1("loads", (PyBytes::new(py, stored),))?,
            _ => PyBytes::new(py, stored).into_any(),
        })
    }
}

fn bytes<'a>(object: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, [u8]>> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(Cow::Borrowed(bytes.as_bytes()));
    }
    if let Ok(bytes) = object.cast::<PyByteArray>() {
        return Ok(Cow::Owned(bytes.to_vec()));
    }
    // Other objects with the buffer protocol, such as memoryview and array.
    let view = PyMemoryView::from(object)?;
    // The bytes of objects are addresses. The names of fields are between colons: `T{<i:name:<O:other:}`.
    let format: String = view.getattr("format")?.extract()?;
    if format.split(':').step_by(2).any(|codes| codes.contains('O')) {
        return Err(PyTypeError::new_err("not bytes"));
    }
    Ok(Cow::Owned(view.call_method0("tobytes")?.extract()?))
}

/// Returns the type of an object for a message; of a tuple, the types of its parts.
pub(crate) fn type_of(object: &Bound<'_, PyAny>) -> String {
    let name = |object: &Bound<'_, PyAny>| {
        object.get_type().name().map_or_else(|_| "object".into(), |name| name.to_string())
    };
    match object.cast_exact::<PyTuple>() {
        Ok(parts) => {
            let names = parts.iter().map(|part| name(&part)).collect::<Vec<_>>().join(", ");
            if parts.len() == 1 { format!("({names},)") } else { format!("({names})") }
        }
        Err(_) => name(object),
    }
}

/// Returns the text of an object for a message.
fn shown(object: &Bound<'_, PyAny>) -> String {
    object.repr().map_or_else(|_| type_of(object), |text| text.to_string())
}

/// The sign bit of a float.
const SIGN: u64 = 1 << 63;

/// Maps a float to an integer so that the order is preserved. Both zeros map to the same integer.
fn ordered(key: f64) -> PyResult<u64> {
    if key.is_nan() {
        return Err(PyValueError::new_err("NaN has no place in the order of keys"));
    }
    let bits = if key == 0.0 { 0 } else { key.to_bits() };
    Ok(if bits & SIGN == 0 { bits | SIGN } else { !bits })
}

fn from_ordered(key: u64) -> f64 {
    f64::from_bits(if key & SIGN == 0 { !key } else { key ^ SIGN })
}
