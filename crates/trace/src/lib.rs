//! Which lock, in which operation, costs how much: probes in the code, a recorder, and the analysis.
//!
//! It is not a profiler of code: it knows operations and waits, not functions. It is not a log either: an
//! event is 32 bytes and about ten nanoseconds.
//!
//! ```
//! use azekura_trace::{Operation, Site, WaitKind, operation, wait};
//!
//! static GET: Operation = Operation::new("get");
//! static CACHE: Site = Site::new("cache");
//!
//! let cache = std::sync::Mutex::new(0u64);
//! let _get = operation(&GET);
//! let _value = cache.try_lock().unwrap_or_else(|_| {
//!     // Only a contended wait is told: an uncontended lock costs nothing.
//!     let _waiting = wait(&CACHE, &raw const cache as usize, WaitKind::Latch);
//!     cache.lock().unwrap()
//! });
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`site`] | names: places where threads wait, operations they wait in |
//! | [`kind`] | what a wait is for and in which column it counts |

pub mod kind;
pub mod site;

mod silent;

pub use kind::{HoldMode, ThreadTag, WaitClass, WaitKind};
pub use silent::{
    HoldGuard, OperationGuard, WaitGuard, hold, is_enabled, mark, operation, thread_tag, wait, wait_for,
};
pub use site::{Operation, Site};
