//! Tickets of asynchronous commits, and their callbacks.

use std::io;
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::{process, thread};

use azekura::CommitTicket;
use pyo3::prelude::*;

use crate::errors::{raised, without_gil};

/// A ticket of a commit, which reports when the commit is durable. Await it, or call `wait`.
#[pyclass(frozen, weakref, module = "azekura")]
pub(crate) struct Ticket {
    ticket: CommitTicket,
    /// A copy of the ticket for each callback that was not called yet.
    waiting: Mutex<Vec<(CommitTicket, Arc<Callback>)>>,
}

impl Ticket {
    pub(crate) const fn new(ticket: CommitTicket) -> Self {
        Self { ticket, waiting: Mutex::new(Vec::new()) }
    }
}

#[pymethods]
impl Ticket {
    /// Blocks until the commit is durable.
    pub(crate) fn wait(&self, py: Python<'_>) -> PyResult<()> {
        let ticket = self.ticket.clone();
        without_gil(py, || ticket.wait())
    }

    /// True if the commit is durable already.
    #[getter]
    fn durable(&self) -> PyResult<bool> {
        self.ticket.is_durable().map_err(raised)
    }

    /// Calls `callback` once when the commit is durable or the log has failed. If that is the case already,
    /// the callback runs in this thread, otherwise in a thread of the package. The callback may run too
    /// early, so check `durable` again.
    fn _notify(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        let wakes = Arc::new(Callback { callback: Mutex::new(Some(callback)) });
        let waker = Waker::from(Arc::clone(&wakes));
        let mut ticket = self.ticket.clone();
        let state = py.detach(|| Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker)));
        match state {
            Poll::Ready(_) => match wakes.take() {
                Some(callback) => callback.call0(py).map(drop),
                None => Ok(()),
            },
            Poll::Pending => {
                // Dropping a copy drops its waker, so each caller has a copy of its own.
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                waiting.retain(|(_, callback)| callback.is_waiting());
                waiting.push((ticket, wakes));
                // Without its thread the callback would never run, and a task would wait without end.
                caller()?;
                Ok(())
            }
        }
    }
}

/// A waker that causes a call of a Python function. A thread of the log wakes it and must not wait for the
/// GIL, so another thread makes the call.
struct Callback {
    callback: Mutex<Option<Py<PyAny>>>,
}

impl Callback {
    fn is_waiting(&self) -> bool {
        self.callback.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn take(&self) -> Option<Py<PyAny>> {
        self.callback.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Wake for Callback {
    fn wake(self: Arc<Self>) {
        if let Some(callback) = self.take() {
            call_later(callback);
        }
    }
}

/// Sender to the thread that calls callbacks, and the process that started this thread. A forked process does
/// not have the thread.
static CALLER: Mutex<Option<(u32, Sender<Py<PyAny>>)>> = Mutex::new(None);

/// Returns the sender to the thread that calls callbacks, and starts the thread if it does not run.
fn caller() -> io::Result<Sender<Py<PyAny>>> {
    let mut caller = CALLER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((started_by, calls)) = &*caller
        && *started_by == process::id()
    {
        return Ok(calls.clone());
    }
    let (sender, calls) = channel::<Py<PyAny>>();
    let run = move || {
        for callback in calls {
            // A closed event loop accepts no calls, and an interpreter that ends runs none.
            let _ = Python::try_attach(|py| drop(callback.call0(py)));
        }
    };
    thread::Builder::new().name("azekura-await".into()).spawn(run)?;
    *caller = Some((process::id(), sender.clone()));
    Ok(sender)
}

fn call_later(callback: Py<PyAny>) {
    // `_notify` has started the thread, or has raised its error. The receiver lives as long as the process,
    // so the send cannot fail.
    if let Ok(calls) = caller() {
        let _ = calls.send(callback);
    }
}
