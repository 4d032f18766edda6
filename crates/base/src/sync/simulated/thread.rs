//! Threads: a thread that a machine's thread starts belongs to the machine; others are std's.

pub use std::thread::{ScopedJoinHandle, panicking, scope};

use crate::sync::machine;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Gives the processor to another thread.
pub fn yield_now() {
    match machine::current() {
        Some(machine) => machine.yield_now(),
        None => std::thread::yield_now(),
    }
}

/// Sleeps, on the machine's clock.
pub fn sleep(time: Duration) {
    match machine::current() {
        Some(machine) => machine.sleep(time),
        None => std::thread::sleep(time),
    }
}

/// A thread's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThreadId {
    /// The system's.
    Real(std::thread::ThreadId),
    /// The machine's.
    Simulated(usize),
}

/// A thread.
#[derive(Clone, Copy, Debug)]
pub struct Thread(ThreadId);

impl Thread {
    /// Its identity.
    #[must_use]
    pub const fn id(&self) -> ThreadId {
        self.0
    }
}

/// The calling thread.
#[must_use]
pub fn current() -> Thread {
    Thread(match machine::current() {
        Some(machine) => ThreadId::Simulated(machine.thread_number()),
        None => ThreadId::Real(std::thread::current().id()),
    })
}

/// Makes threads.
#[derive(Debug, Default)]
pub struct Builder {
    name: Option<String>,
}

impl Builder {
    /// One without a name.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The name of the thread to be.
    #[must_use]
    pub fn name(mut self, name: String) -> Self {
        self.name = Some(name);
        self
    }

    /// Starts it.
    ///
    /// # Errors
    ///
    /// The system's, if it cannot create a thread.
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

/// A thread that was started.
#[derive(Debug)]
pub struct JoinHandle<T>(Handle<T>);

#[derive(Debug)]
enum Handle<T> {
    Real(std::thread::JoinHandle<T>),
    Simulated { number: usize, result: Arc<std::sync::Mutex<Option<T>>> },
}

impl<T> JoinHandle<T> {
    /// The thread.
    #[must_use]
    pub fn thread(&self) -> Thread {
        Thread(match &self.0 {
            Handle::Real(thread) => ThreadId::Real(thread.thread().id()),
            Handle::Simulated { number, .. } => ThreadId::Simulated(*number),
        })
    }

    /// Returns `true` if it has ended; `false` for a machine's thread.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(&self.0, Handle::Real(thread) if thread.is_finished())
    }

    /// Waits for its end. (A panic of a machine's thread ends the machine.)
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
