//! Background work of stores, executed by threads of the process.
//!
//! An open store has no thread of its own. Its background work consists of *jobs*. A job is started when
//! there is work, and ends when there is none. So an idle store costs no thread and no wake-up, and a
//! thousand stores share a few threads.
//!
//! | kind | jobs | waits for | threads |
//! |---|---|---|---|
//! | [`Kind::Log`] | flushes of log buffers, creation of log files | the device | one per running job |
//! | [`Kind::Pages`] | page writes, checkpoints | the device, log jobs, running jobs | processors + 4 |
//!
//! The jobs of one store form one [`Group`] per kind. The process has threads while any group is open. At
//! most [`KEPT_IDLE`] idle threads of a kind are kept. They sleep without a timeout. While a
//! [delayed](Group::start_after) job is pending, one of them sleeps until the job is due.
//!
//! - **JOBS-1** Each kind has at least one thread as long as a group of the kind is open: [`Group::new`]
//!   starts it or fails. A job never waits for a queued job of its own kind, and a log job never waits for a
//!   job of another kind. So every job runs eventually, even if the system allows no more threads. Therefore
//!   a job without an end must check [`Group::is_overdue`] and end in time.
//! - **JOBS-2** After [`Group::close`] was called, no job of the group begins. After it has returned, none
//!   runs.
//! - **JOBS-3** A forked process has none of its parent's threads. It starts its own threads with its first
//!   group.
//!
//! On a [simulated machine](crate::sync::machine), and in a model, each job gets its own thread.

mod group;
mod pool;
#[cfg(all(test, not(loom)))]
#[expect(clippy::unwrap_used, reason = "a failed step ends the test")]
mod tests;

pub use group::{Group, Starter};
pub use pool::{KEPT_IDLE, Kind, PAGE_THREADS, limit_threads};
