//! Exceptions. Their classes are in `azekura/_errors.py`, because some of them have two bases.

use std::error::Error as _;
use std::io;

use azekura::{Error as StoreError, ErrorKind};
use pyo3::import_exception;
use pyo3::prelude::*;

use crate::signals;

import_exception!(azekura._errors, Error);
import_exception!(azekura._errors, Conflict);
import_exception!(azekura._errors, Busy);
import_exception!(azekura._errors, Corrupt);
import_exception!(azekura._errors, Closed);
import_exception!(azekura._errors, Expired);
import_exception!(azekura._errors, Invalid);
import_exception!(azekura._errors, IoError);
import_exception!(azekura._errors, UndoMemoryExhausted);

/// Imports the classes. While the interpreter ends, an import would fail, and end the process by a panic.
pub(crate) fn import(py: Python<'_>) {
    drop([
        py.get_type::<Error>(),
        py.get_type::<Conflict>(),
        py.get_type::<Busy>(),
        py.get_type::<Corrupt>(),
        py.get_type::<Closed>(),
        py.get_type::<Expired>(),
        py.get_type::<Invalid>(),
        py.get_type::<IoError>(),
        py.get_type::<UndoMemoryExhausted>(),
    ]);
}

/// Returns the `errno` of the first operating-system error among the causes.
fn errno(error: &StoreError) -> Option<i32> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(code) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(code);
        }
        cause = error.source();
    }
    None
}

/// Returns the exception for an error of the store.
pub(crate) fn raised(error: StoreError) -> PyErr {
    let text = error.full_message();
    if matches!(error, StoreError::SnapshotTooOld { .. }) {
        return Expired::new_err(text);
    }
    if matches!(error, StoreError::UndoMemoryExhausted { .. }) {
        return UndoMemoryExhausted::new_err(text);
    }
    // The call of a table was not run again, because its time is over.
    if let StoreError::RetriesExhausted { source, .. } = &error
        && matches!(**source, StoreError::LockTimeout { .. })
    {
        return Conflict::new_err(source.full_message());
    }
    match error.kind() {
        ErrorKind::Conflict => Conflict::new_err(text),
        ErrorKind::Busy => Busy::new_err(text),
        ErrorKind::Corrupt => Corrupt::new_err(text),
        ErrorKind::Closed => Closed::new_err(text),
        ErrorKind::Invalid => Invalid::new_err(text),
        ErrorKind::Io => match errno(&error) {
            Some(code) => IoError::new_err((code, text)),
            None => IoError::new_err(text),
        },
        _ => Error::new_err(text),
    }
}

/// Runs a call of the store without the GIL (PY-1). Raises the exception of a signal handler that ran during
/// the call.
pub(crate) fn without_gil<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, StoreError> + Send,
) -> PyResult<T> {
    let result = py.detach(call);
    signals::take().map_or_else(|| result.map_err(raised), Err)
}
