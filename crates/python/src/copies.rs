//! Settings of stores, and their copies: backup, restore, compaction.

use std::path::PathBuf;

use azekura::{BackupProgress, CommitTime, EncryptionKey, Error, Restore};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::codec::type_of;
use crate::errors::{Invalid, without_gil};
use crate::{path_of, signals};

/// Returns the settings of each store: signal handlers run while a call waits.
pub(crate) fn builder() -> azekura::Builder {
    azekura::Database::builder().interrupt(signals::is_raised)
}

/// Returns the bytes of a key. The error does not contain the key.
fn key_bytes(key: &Bound<'_, PyAny>) -> PyResult<[u8; 32]> {
    let bytes = key.extract::<Vec<u8>>().map_err(|_| {
        let text = format!("an encryption key is 32 bytes, not {}", type_of(key));
        PyTypeError::new_err(text)
    })?;
    let wrong = |bytes: Vec<u8>| format!("an encryption key has 32 bytes, not {}", bytes.len());
    bytes.try_into().map_err(|bytes| Invalid::new_err(wrong(bytes)))
}

/// Sets the key of an encrypted store: 32 bytes, or a function that returns the key with an id.
pub(crate) fn with_key(
    builder: azekura::Builder,
    key: Option<&Bound<'_, PyAny>>,
    id: &str,
) -> PyResult<azekura::Builder> {
    let Some(key) = key else { return Ok(builder) };
    if !key.is_callable() {
        return Ok(builder.encryption_key(EncryptionKey::with_id(id, &key_bytes(key)?)));
    }
    let function = key.clone().unbind();
    Ok(builder.encryption_key_source(id, move |id| {
        let ends = || Err(Invalid::new_err("the interpreter ends"));
        Python::try_attach(|py| key_bytes(function.call1(py, (id,))?.bind(py))).unwrap_or_else(ends)
    }))
}

/// Returns the key of a new store: 32 bytes with an id.
pub(crate) fn new_key(key: &Bound<'_, PyAny>, id: &str) -> PyResult<EncryptionKey> {
    Ok(EncryptionKey::with_id(id, &key_bytes(key)?))
}

/// Calls a Python function with two numbers while a copy or a check is made. Keeps the exception of the
/// function, and returns an error that stops the copy.
pub(crate) struct Shown<'a> {
    pub(crate) function: Option<&'a Py<PyAny>>,
    pub(crate) failed: Option<PyErr>,
}

impl Shown<'_> {
    pub(crate) fn show(&mut self, first: u64, second: u64) -> Result<(), Error> {
        let Some(function) = self.function.filter(|_| self.failed.is_none()) else { return Ok(()) };
        match Python::try_attach(|py| function.call1(py, (first, second)).map(drop)) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => {
                let text = error.to_string();
                self.failed = Some(error);
                Err(Error::other(text))
            }
            None => Err(Error::other("the interpreter ends")),
        }
    }

    /// Returns the exception of the function, or else the result of the copy.
    pub(crate) fn end<T>(self, made: PyResult<T>) -> PyResult<T> {
        self.failed.map_or(made, Err)
    }
}

/// Makes a backup and returns the number of its rows.
pub(crate) fn back_up(
    py: Python<'_>,
    db: &azekura::Database,
    to: PathBuf,
    (rate, since): (Option<u64>, Option<PathBuf>),
    progress: Option<Py<PyAny>>,
) -> PyResult<u64> {
    let mut shown = Shown { function: progress.as_ref(), failed: None };
    let made = without_gil(py, || {
        let mut backup = db.backup();
        if shown.function.is_some() {
            backup = backup.try_progress(|seen: &BackupProgress| shown.show(seen.rows, seen.bytes));
        }
        if let Some(rate) = rate {
            backup = backup.rate_limit(rate);
        }
        if let Some(base) = since {
            backup = backup.since(base);
        }
        backup.to_directory(to)
    });
    shown.end(made.map(|report| report.rows))
}

/// Returns the time of commits that a `datetime`, or a number of seconds since 1970, stands for.
fn commit_time(time: &Bound<'_, PyAny>) -> PyResult<CommitTime> {
    let seconds: f64 = match time.getattr_opt("timestamp")? {
        Some(timestamp) => timestamp.call0()?.extract()?,
        None => time.extract()?,
    };
    let micros = (seconds * 1e6).round();
    if !(0.0..9e15).contains(&micros) {
        return Err(Invalid::new_err(format!("{seconds} seconds since 1970 are no possible time")));
    }
    Ok(CommitTime::from_micros(micros as u64))
}

/// Returns a time of commits as a `datetime` in UTC.
pub(crate) fn datetime(py: Python<'_>, time: CommitTime) -> PyResult<Bound<'_, PyAny>> {
    let module = py.import("datetime")?;
    let utc = module.getattr("timezone")?.getattr("utc")?;
    let epoch = module.getattr("datetime")?.call_method1("fromtimestamp", (0, utc))?;
    let since = module.getattr("timedelta")?.call1((0, 0, time.as_micros()))?;
    epoch.call_method1("__add__", (since,))
}

/// Creates a new store at `path` from the backup in directory `source`; returns the number of its rows.
///
/// An incremental backup also needs the earlier ones, as `bases`. With `archive` the later transactions of
/// the archive are repeated, to its end or `to_time`, a datetime or seconds since 1970. The backup of an
/// encrypted store needs its `encryption_key`, which the new store has, too. The id of its key is
/// `encryption_key_id`, or that of the backup.
#[pyfunction]
#[pyo3(
    signature = (
        source, path, *, verify=false, bases=None, archive=None, to_time=None, page_size=None,
        encryption_key=None, encryption_key_id=""
    ),
    text_signature = "(source, path, *, verify=False, bases=(), archive=None, to_time=None, page_size=None, \
                      encryption_key=None, encryption_key_id='')"
)]
#[expect(clippy::too_many_arguments, reason = "they are named arguments in Python")]
pub(crate) fn restore(
    py: Python<'_>,
    #[pyo3(from_py_with = path_of)] source: PathBuf,
    #[pyo3(from_py_with = path_of)] path: PathBuf,
    verify: bool,
    bases: Option<&Bound<'_, PyAny>>,
    archive: Option<&Bound<'_, PyAny>>,
    to_time: Option<&Bound<'_, PyAny>>,
    page_size: Option<usize>,
    encryption_key: Option<&Bound<'_, PyAny>>,
    encryption_key_id: &str,
) -> PyResult<u64> {
    let builder = with_key(builder(), encryption_key, encryption_key_id)?;
    let bases = bases.map_or(Ok(Vec::new()), |bases| bases.try_iter()?.map(|base| path_of(&base?)).collect());
    let (bases, archive): (Vec<PathBuf>, _) = (bases?, archive.map(path_of).transpose()?);
    let to_time = to_time.map(commit_time).transpose()?;
    without_gil(py, || {
        let mut restore = Restore::new().builder(builder).verify(verify);
        for base in bases {
            restore = restore.base(base);
        }
        if let Some(archive) = archive {
            restore = restore.archive(archive);
        }
        if let Some(time) = to_time {
            restore = restore.to_time(time);
        }
        if let Some(bytes) = page_size {
            restore = restore.page_size(bytes);
        }
        Ok(restore.from_directory(source, path)?.backup.rows)
    })
}

/// Reads the backup in directory `source` and checks each byte of it; returns the number of its rows. The
/// backup of an encrypted store needs its `encryption_key`.
#[pyfunction]
#[pyo3(signature = (source, *, encryption_key=None))]
pub(crate) fn verify_backup(
    py: Python<'_>,
    #[pyo3(from_py_with = path_of)] source: PathBuf,
    encryption_key: Option<&Bound<'_, PyAny>>,
) -> PyResult<u64> {
    let builder = with_key(builder(), encryption_key, "")?;
    without_gil(py, || Ok(Restore::new().builder(builder).verify_directory(source)?.rows))
}
