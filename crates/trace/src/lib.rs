//! Lock and wait tracing: probes in a program, a recorder, and an analysis that returns the cost of each lock
//! in each operation. The crate traces operations and waits; it is no profiler of functions. An event takes
//! 32 bytes and about ten nanoseconds.
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
//!     // Only a contended wait is recorded: an uncontended lock costs nothing.
//!     let _waiting = wait(&CACHE, &raw const cache as usize, WaitKind::Latch);
//!     cache.lock().unwrap()
//! });
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`site`] | names of sites and operations |
//! | [`kind`] | kinds of waits and their table columns |
//! | [`recording`] | starting and stopping a recording, and its result |
//! | [`event`] | the 32 bytes that a probe writes |
//! | [`ring`] | the queue from a recording thread to the collector |
//! | [`mod@file`] | the trace file, and a trace in memory |
//! | [`area`] | memory shared by a recorder and recorded programs, and [`parts`] of recorders |
//! | [`error`] | errors |
//! | [`analyze`] | analysis of a trace (feature `analyze`, on by default) |
//! | [`report`] | reports as text, JSON, HTML and Perfetto; comparison of recordings (feature `analyze`) |
//!
//! With the feature `off`, and in loom models, probes have no code and guards have no size.

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
