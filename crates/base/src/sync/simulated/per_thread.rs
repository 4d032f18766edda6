//! Thread-locals: of the simulated thread if there is one, and otherwise of the system's thread.

use crate::sync::machine::current;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::thread::{AccessError, LocalKey};

/// A thread-local made by [`per_thread!`](crate::per_thread).
#[derive(Debug)]
pub struct PerThread<T: 'static> {
    real: &'static LocalKey<T>,
    make: fn() -> T,
}

impl<T: 'static> PerThread<T> {
    /// Creates the key. Only for [`per_thread!`](crate::per_thread).
    #[doc(hidden)]
    pub const fn new(real: &'static LocalKey<T>, make: fn() -> T) -> Self {
        Self { real, make }
    }

    /// Runs `f` with the thread's value.
    ///
    /// # Panics
    ///
    /// In the case of std's `with`: if the thread is ending.
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        let Some(machine) = current() else { return self.real.with(f) };
        let value = machine.local(std::ptr::from_ref(self).addr(), &|| Rc::new((self.make)()) as Rc<dyn Any>);
        f(value.downcast_ref().expect("made above, of this type"))
    }
}

impl<T: 'static> PerThread<T> {
    /// Runs `f` with the thread's value, unless the thread is ending.
    ///
    /// # Errors
    ///
    /// The error of std's `try_with`: the thread is ending.
    pub fn try_with<R>(&'static self, f: impl FnOnce(&T) -> R) -> Result<R, AccessError> {
        if current().is_some() { Ok(self.with(f)) } else { self.real.try_with(f) }
    }
}

impl<T: 'static> PerThread<Cell<T>> {
    /// Returns the thread's value.
    pub fn get(&'static self) -> T
    where
        T: Copy,
    {
        self.with(Cell::get)
    }

    /// Sets the thread's value.
    pub fn set(&'static self, value: T) {
        self.with(|cell| cell.set(value));
    }

    /// Sets the thread's value and returns the previous value.
    pub fn replace(&'static self, value: T) -> T {
        self.with(|cell| cell.replace(value))
    }
}

impl<T: 'static> PerThread<RefCell<T>> {
    /// Runs `f` with the thread's value, mutably borrowed.
    ///
    /// # Panics
    ///
    /// If the value is already borrowed.
    pub fn with_borrow_mut<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> R {
        self.with(|cell| f(&mut cell.borrow_mut()))
    }

    /// Returns the thread's value and leaves the default value in its place.
    ///
    /// # Panics
    ///
    /// If the value is borrowed.
    pub fn take(&'static self) -> T
    where
        T: Default,
    {
        self.with(RefCell::take)
    }

    /// Sets the thread's value.
    ///
    /// # Panics
    ///
    /// If the value is borrowed.
    pub fn set(&'static self, value: T) {
        self.with(|cell| drop(cell.replace(value)));
    }
}
