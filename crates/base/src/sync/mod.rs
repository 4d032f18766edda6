//! The only source of atomics, mutexes, parking, clocks of waits, and thread-locals.
//!
//! Shipped code gets std's atomics and parking_lot's mutex; under `--cfg loom` the same names are loom's, so
//! that a model runs the shipped algorithm and not a copy of it. With the feature `sim` they are std's with a
//! check before each access: if this thread belongs to a simulated [`machine`], that machine decides when the
//! access happens and what it costs (`azekura-sim`); otherwise nothing changes. No other code in the
//! workspace may import atomics from std (except for per-thread statistics, with a reason beside them).

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

/// Returns a random number, not for secrets. On a simulated machine it comes from the run's seed.
#[must_use]
pub fn random() -> u64 {
    use std::hash::BuildHasher;
    match machine::current() {
        Some(machine) if cfg!(feature = "sim") => machine.random(),
        _ => std::hash::RandomState::new().hash_one(0_u8),
    }
}

/// Returns the processor time that all threads of this process have used; on a simulated machine that of its
/// threads. A model has no time. Costs a system call.
#[must_use]
pub fn processor_time() -> std::time::Duration {
    machine::simulated().map_or_else(|| clock::read(clock::PROCESS), |machine| machine.processor_time(None))
}

/// As [`processor_time`], for the calling thread only.
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

/// A thread-local. On a simulated machine each of its threads has one; else it is std's `thread_local!`, with
/// the same words.
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

/// A thread-local. On a simulated machine each of its threads has one; else it is std's `thread_local!`, with
/// the same words.
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
