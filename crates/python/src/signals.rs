//! Signals, such as Ctrl-C, during calls of the store.
//!
//! Python runs signal handlers in its main thread only. While this thread waits for a lock or is in a long
//! call, the store calls [`is_raised`] regularly. If a handler has raised an exception, the call of the store
//! ends, and [`without_gil`](crate::errors::without_gil) raises the exception.

use std::cell::Cell;
use std::process;
use std::time::{Duration, Instant};

use azekura::Error;
use pyo3::prelude::*;

/// Shortest time between two runs of the handlers, because a run has to acquire the GIL.
const INTERVAL: Duration = Duration::from_millis(50);
/// Number of rows after which [`count`] reads the clock.
const STEP: usize = 1024;

thread_local! {
    /// The exception of a signal handler that ran inside the present call of the store.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
    /// `true` in Python's main thread, and the process of this answer: in a forked child, the thread that
    /// forked is the main thread. `None`: not known yet.
    static IS_MAIN: Cell<Option<(bool, u32)>> = const { Cell::new(None) };
    /// Time of the last run of the handlers.
    static RAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Returns `true` in Python's main thread, and `None` if this is not known yet.
fn is_main() -> Option<bool> {
    IS_MAIN.get().and_then(|(is_main, pid)| (pid == process::id()).then_some(is_main))
}

fn run_handlers(py: Python<'_>) -> PyResult<()> {
    if is_main().is_none() {
        let threading = py.import("threading")?;
        let main = threading.call_method0("main_thread")?.getattr("ident")?;
        IS_MAIN.set(Some((main.eq(threading.call_method0("get_ident")?)?, process::id())));
    }
    py.check_signals()
}

/// Runs the handlers of signals that have arrived. Returns `true` if one of them has raised an exception, now
/// or earlier in this call of the store.
pub(crate) fn is_raised() -> bool {
    if is_main() == Some(false) {
        return false;
    }
    if RAN.get().is_some_and(|ran| ran.elapsed() < INTERVAL) {
        return refuse_raised().is_err();
    }
    RAN.set(Some(Instant::now()));
    // `None`: the interpreter ends.
    let error = take().or_else(|| Python::try_attach(|py| run_handlers(py).err()).flatten());
    let is_raised = error.is_some();
    RAISED.set(error);
    is_raised
}

/// Returns the exception of a signal handler, which the caller raises.
pub(crate) fn take() -> Option<PyErr> {
    RAISED.take()
}

/// Returns an error if a signal handler has raised an exception in this call of the store. So a transaction
/// of one call is not committed before the exception is raised.
pub(crate) fn refuse_raised() -> Result<(), Error> {
    let error = take();
    let is_raised = error.is_some();
    RAISED.set(error);
    if is_raised { Err(Error::Interrupted) } else { Ok(()) }
}

/// Counts a row that a call of the store visits, and runs the handlers from time to time. Returns an error if
/// one of them has raised an exception.
pub(crate) fn count(rows: &mut usize) -> Result<(), Error> {
    *rows += 1;
    if rows.is_multiple_of(STEP) && is_raised() { Err(Error::Interrupted) } else { Ok(()) }
}
