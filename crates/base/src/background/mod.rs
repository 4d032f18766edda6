//! Background work of stores, done by threads of the process.
//!
//! An open store has no thread of its own. Its background work consists of *jobs*: a job is started when
//! there is work, and it ends when there is none. So a store that is idle costs no thread and no wake-up, and
//! a thousand stores share a few threads.
//!
//! | kind | jobs | waits for | threads |
//! |---|---|---|---|
//! | [`Kind::Log`] | flushes of log buffers, files for the log | the device | one for each job that runs |
//! | [`Kind::Pages`] | page writes, checkpoints | the device, log jobs, running jobs | processors + 4 |
//!
//! The jobs of one store form a [`Group`] for each kind. The process has threads while any group is open; at
//! most [`KEPT_IDLE`] of a kind are kept without work. They sleep without a time limit, except one of them
//! while a [delayed](Group::start_after) job is pending.
//!
//! - **JOBS-1** Each kind has at least one thread as long as a group of it is open: [`Group::new`] starts it
//!   or fails. A job waits for no queued job of its own kind, and a job of the log for no job of another
//!   kind. So every job runs eventually, even if the system allows no more threads. Therefore a job without
//!   an end must check [`Group::is_overdue`] and end in time.
//! - **JOBS-2** No job of a group begins after [`Group::close`] was called, and none runs after it returned.
//! - **JOBS-3** A forked process has none of its parent's threads: it gets threads of its own with its first
//!   group.
//!
//! On a [simulated machine](crate::sync::machine), and in a model, each job gets a thread of its own.

mod group;
mod pool;
#[cfg(all(test, not(loom)))]
#[expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]
mod tests;

pub use group::{Group, Starter};
pub use pool::{KEPT_IDLE, Kind, PAGE_THREADS, limit_threads};
