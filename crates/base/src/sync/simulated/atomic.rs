//! Atomics that call the machine before each access.

use crate::sync::machine::{Access, current};
use std::panic::Location;
pub use std::sync::atomic::{Ordering, compiler_fence};

/// Executes a fence. On a machine, full fences take time.
#[inline]
pub fn fence(order: Ordering) {
    if order == Ordering::SeqCst
        && let Some(machine) = current()
    {
        machine.full_fence();
    }
    std::sync::atomic::fence(order);
}

#[inline]
#[track_caller]
fn before<T>(word: &T, access: Access, order: Ordering) {
    if let Some(machine) = current() {
        machine.access(std::ptr::from_ref(word).addr(), size_of::<T>(), access, Location::caller());
        if access == Access::Store && order == Ordering::SeqCst {
            machine.full_fence();
        }
    }
}

macro_rules! atomic {
    ($(#[$meta:meta])* $name:ident, $value:ty $(, $generic:ident)?) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name$(<$generic>)?(std::sync::atomic::$name$(<$generic>)?);

        impl$(<$generic>)? $name$(<$generic>)? {
            /// Returns an atomic with the value `value`.
            #[must_use]
            pub const fn new(value: $value) -> Self {
                Self(std::sync::atomic::$name::new(value))
            }
            /// Loads the value, as std's `load`.
            #[inline]
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                before(self, Access::Load, order);
                self.0.load(order)
            }
            /// Stores a value, as std's `store`.
            #[inline]
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                before(self, Access::Store, order);
                self.0.store(value, order);
            }
            /// Exchanges the value, as std's `swap`.
            #[inline]
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                before(self, Access::Swap, order);
                self.0.swap(value, order)
            }
            /// Compares and exchanges the value, as std's `compare_exchange`.
            ///
            /// # Errors
            ///
            /// The current value, if it was not `expected`.
            #[inline]
            #[track_caller]
            pub fn compare_exchange(
                &self, expected: $value, new: $value, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                before(self, Access::Swap, success);
                self.0.compare_exchange(expected, new, success, failure)
            }
            /// Compares and exchanges the value, as std's `compare_exchange_weak`. Here it has no spurious
            /// failures.
            ///
            /// # Errors
            ///
            /// The current value, if it was not `expected`.
            #[inline]
            #[track_caller]
            pub fn compare_exchange_weak(
                &self, expected: $value, new: $value, success: Ordering, failure: Ordering,
            ) -> Result<$value, $value> {
                before(self, Access::Swap, success);
                self.0.compare_exchange(expected, new, success, failure)
            }
            /// Returns the value, by exclusive reference.
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }
            /// Returns the value, and consumes the atomic.
            #[must_use]
            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }
        }
    };
}

macro_rules! additions {
    ($name:ident, $value:ty: $($method:ident),*) => {
        impl $name {
            $(
                /// Calls std's method of this name.
                #[inline]
                #[track_caller]
                pub fn $method(&self, value: $value, order: Ordering) -> $value {
                    before(self, Access::Add, order);
                    self.0.$method(value, order)
                }
            )*
        }
        impl From<$value> for $name {
            fn from(value: $value) -> Self {
                Self::new(value)
            }
        }
    };
}

macro_rules! numbers {
    ($($name:ident, $value:ty;)*) => {$(
        atomic!(/** std's, and a question first. */ $name, $value);
        additions!($name, $value: fetch_add, fetch_sub, fetch_and, fetch_or, fetch_xor, fetch_max, fetch_min);
    )*};
}

numbers! {
    AtomicU8, u8;
    AtomicU16, u16;
    AtomicU32, u32;
    AtomicU64, u64;
    AtomicUsize, usize;
    AtomicI32, i32;
    AtomicI64, i64;
    AtomicIsize, isize;
}
atomic!(/** std's, and a question first. */ AtomicBool, bool);
additions!(AtomicBool, bool: fetch_and, fetch_or, fetch_xor);
atomic!(/** std's, and a question first. */ AtomicPtr, *mut T, T);

impl AtomicU32 {
    /// Returns std's atomic, for calls of the kernel.
    pub(super) const fn real(&self) -> &std::sync::atomic::AtomicU32 {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_of_a_machine_they_are_stds() {
        let word = AtomicU64::new(5);
        assert_eq!(word.fetch_add(2, Ordering::Relaxed), 5);
        assert_eq!(word.compare_exchange(7, 1, Ordering::AcqRel, Ordering::Relaxed), Ok(7));
        assert_eq!(word.compare_exchange_weak(7, 1, Ordering::AcqRel, Ordering::Relaxed), Err(1));
        assert_eq!((word.swap(9, Ordering::SeqCst), word.into_inner()), (1, 9));
        assert_eq!(size_of::<AtomicU8>(), 1);
    }
}
