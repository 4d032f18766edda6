//! The only source of atomics, mutexes, parking, clocks of waits, and thread-locals.
//!
//! Shipped code gets std's atomics and parking_lot's mutex. Under `--cfg loom` the same names are loom's
//! types, so that a model runs the shipped algorithm and not a copy of it. With the feature `sim` they are
//! std's types with a check before each access. If the thread belongs to a simulated [`machine`], the machine
//! decides when the access happens and what it costs (`azekura-sim`). No other code in the workspace may
//! import atomics from std, except for per-thread statistics, with a reason next to the import.

pub mod machine;
#[cfg(loom)]
mod model;
#[cfg(all(not(loom), not(feature = "sim")))]
mod real;
#[cfg(all(not(loom), feature = "sim"))]
mod simulated;
#[cfg(not(loom))]
mod wait_word;

#[cfg(loom)]
pub use self::model::*;
#[cfg(all(not(loom), not(feature = "sim")))]
pub use self::real::*;
#[cfg(all(not(loom), feature = "sim"))]
pub use self::simulated::*;

/// Returns a random number that is not suitable for secrets. On a simulated machine it comes from the run's
/// seed, so code that a simulation runs may have no other source of random numbers.
#[must_use]
pub fn random() -> u64 {
    use std::hash::BuildHasher;
    match machine::current() {
        Some(machine) if cfg!(feature = "sim") => machine.random(),
        _ => std::hash::RandomState::new().hash_one(0_u8),
    }
}

/// Returns the processor time of all threads of this process, or of the simulated machine. A model has no
/// time. Costs a system call.
#[must_use]
pub fn processor_time() -> std::time::Duration {
    machine::simulated().map_or_else(|| clock::read(clock::PROCESS), |machine| machine.processor_time(None))
}

/// Returns the processor time of the calling thread; see [`processor_time`].
#[must_use]
pub fn thread_time() -> std::time::Duration {
    machine::simulated().map_or_else(
        || clock::read(clock::THREAD),
        |machine| machine.processor_time(Some(machine.thread_number())),
    )
}

#[cfg(loom)]
mod clock {
    pub(super) const PROCESS: () = ();
    pub(super) const THREAD: () = ();

    pub(super) const fn read((): ()) -> std::time::Duration {
        std::time::Duration::ZERO
    }
}

#[cfg(not(loom))]
mod clock {
    use rustix::time::{ClockId, clock_gettime};

    pub(super) const PROCESS: ClockId = ClockId::ProcessCPUTime;
    pub(super) const THREAD: ClockId = ClockId::ThreadCPUTime;

    pub(super) fn read(id: ClockId) -> std::time::Duration {
        let time = clock_gettime(id);
        std::time::Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }
}

/// Defines a thread-local with the syntax of std's `thread_local!`. On a simulated machine each thread of the
/// machine has its own value.
#[cfg(not(all(not(loom), feature = "sim")))]
#[macro_export]
macro_rules! per_thread {
    (static $name:ident: $type:ty = const $make:block;) => {
        ::std::thread_local! { static $name: $type = const $make; }
    };
    (static $name:ident: $type:ty = $make:expr;) => {
        ::std::thread_local! { static $name: $type = $make; }
    };
}

/// Defines a thread-local with the syntax of std's `thread_local!`. On a simulated machine each thread of the
/// machine has its own value.
#[cfg(all(not(loom), feature = "sim"))]
#[macro_export]
macro_rules! per_thread {
    (static $name:ident: $type:ty = const $make:block;) => {
        $crate::per_thread! { static $name: $type = $make; }
    };
    (static $name:ident: $type:ty = $make:expr;) => {
        static $name: $crate::sync::PerThread<$type> = {
            ::std::thread_local! { static REAL: $type = $make; }
            $crate::sync::PerThread::new(&REAL, || $make)
        };
    };
}
