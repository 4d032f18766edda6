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
//! | [`recording`] | how to record, and what comes of it |
//! | [`event`] | the 32 bytes a probe writes |
//! | [`ring`] | the hand-off from a recording thread to the collector |
//! | [`mod@file`] | the trace file, and a trace in memory |
//! | [`area`] | memory that a recorder shares with the programs that it records, and [`parts`] of recorders |
//! | [`error`] | what can go wrong |
//! | [`analyze`] | from a trace to an answer (feature `analyze`, on by default) |
//! | [`report`] | the answer as text, JSON, a page, a Perfetto file; two answers as a difference (likewise) |
//!
//! With the feature `off` (and in loom models) probes are no code at all and guards have no size.

#[cfg(feature = "analyze")]
pub mod analyze;
pub mod error;
pub mod event;
pub mod file;
pub mod kind;
pub mod recording;
#[cfg(feature = "analyze")]
pub mod report;
pub mod ring;
pub mod site;

#[cfg(not(any(feature = "off", loom)))]
#[path = "live/mod.rs"]
mod probes;

#[cfg(any(feature = "off", loom))]
#[path = "silent.rs"]
mod probes;

#[cfg(all(not(any(feature = "off", loom)), target_os = "linux"))]
pub mod area;
#[cfg(not(any(feature = "off", loom)))]
pub use probes::parts;

pub use error::{ReadError, StartError, StopError};
pub use kind::{HoldMode, ThreadTag, WaitClass, WaitKind};
pub use probes::{
    HoldGuard, OperationGuard, Suspension, WaitGuard, hold, is_enabled, mark, operation, released, start,
    stop, suspend, thread_tag, wait, wait_for,
};
pub use recording::{CpuTime, Options, Recording};
pub use site::{Operation, Site};
