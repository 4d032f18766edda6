//! Threads. A thread that is started by a thread of a machine belongs to the machine; other threads are
//! std's.

pub use std::thread::{ScopedJoinHandle, panicking, scope};

use crate::sync::machine;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Yields the processor to another thread.
pub fn yield_now() {
    match machine::current() {
        Some(machine) => machine.yield_now(),
        None => std::thread::yield_now(),
    }
}

/// Sleeps, on the clock of the machine if there is one.
pub fn sleep(time: Duration) {
    match machine::current() {
        Some(machine) => machine.sleep(time),
        None => std::thread::sleep(time),
    }
}

/// Identity of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThreadId {
    /// Identity of a thread of the system.
    Real(std::thread::ThreadId),
    /// Number of a thread of a machine.
    Simulated(usize),
}

/// A handle of a thread.
#[derive(Clone, Copy, Debug)]
pub struct Thread(ThreadId);

impl Thread {
    /// Returns the thread's identity.
    #[must_use]
    pub const fn id(&self) -> ThreadId {
        self.0
    }
}

/// Returns a handle of the calling thread.
#[must_use]
pub fn current() -> Thread {
    Thread(match machine::current() {
        Some(machine) => ThreadId::Simulated(machine.thread_number()),
        None => ThreadId::Real(std::thread::current().id()),
    })
}

/// Settings for starting a thread.
#[derive(Debug, Default)]
pub struct Builder {
    name: Option<String>,
}

impl Builder {
    /// Returns settings without a thread name.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the name of the new thread.
    #[must_use]
    pub fn name(mut self, name: String) -> Self {
        self.name = Some(name);
        self
    }

    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The error of the system, if it cannot create a thread.
    pub fn spawn<T: Send + 'static>(
        self,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let Some(machine) = machine::current() else {
            let builder = self.name.into_iter().fold(std::thread::Builder::new(), std::thread::Builder::name);
            return builder.spawn(body).map(|thread| JoinHandle(Handle::Real(thread)));
        };
        // std's mutex: no thread ever waits for it, so the machine need not simulate it.
        let result = Arc::new(std::sync::Mutex::new(None));
        let ours = Arc::clone(&result);
        let number = machine.spawn(Box::new(move || {
            let value = body();
            *ours.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(value);
        }));
        Ok(JoinHandle(Handle::Simulated { number, result }))
    }
}

/// Starts a thread.
///
/// # Panics
///
/// If the system cannot create a thread.
pub fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn(body).expect("the system has room for a thread")
}

/// Handle of a thread that was started; used for joining it.
#[derive(Debug)]
pub struct JoinHandle<T>(Handle<T>);

#[derive(Debug)]
enum Handle<T> {
    Real(std::thread::JoinHandle<T>),
    Simulated { number: usize, result: Arc<std::sync::Mutex<Option<T>>> },
}

impl<T> JoinHandle<T> {
    /// Returns the handle of the thread.
    #[must_use]
    pub fn thread(&self) -> Thread {
        Thread(match &self.0 {
            Handle::Real(thread) => ThreadId::Real(thread.thread().id()),
            Handle::Simulated { number, .. } => ThreadId::Simulated(*number),
        })
    }

    /// Returns `true` if the thread has ended; always `false` for a thread of a machine.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(&self.0, Handle::Real(thread) if thread.is_finished())
    }

    /// Waits until the thread has ended. (A panic of a machine's thread ends the machine.)
    ///
    /// # Errors
    ///
    /// Payload of the thread's panic.
    pub fn join(self) -> std::thread::Result<T> {
        match self.0 {
            Handle::Real(thread) => thread.join(),
            Handle::Simulated { number, result } => {
                if let Some(machine) = machine::current() {
                    machine.join(number);
                }
                let value = result.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
                value.ok_or_else(|| Box::new("the machine was left before the thread ended") as _)
            }
        }
    }
}
