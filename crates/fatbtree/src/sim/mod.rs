//! A cluster in one thread and in virtual time, determined by a seed: the same nodes, with a simulated
//! network, clock and disks.
//!
//! The network is an event loop of this crate and not `turmoil`, because a node needs only frames, time,
//! random numbers and tasks. An event is a frame, so delay, loss and reordering apply to single frames, which
//! is harsher than TCP. Virtual time has no resolution limit. The resolution of tokio's timers is a
//! millisecond, which is longer than everything the paper measures except a disk access. A run costs only its
//! events.
//!
//! | module | content |
//! |---|---|
//! | `executor` | tasks, timers, virtual time |
//! | `network` | frames in flight, faults |
//! | `cluster` | nodes that start, crash and restart from their disks |
//! | `history` | recorded operations of clients, and a linearizability check |

mod cluster;
mod executor;
mod history;
mod local;
mod network;

pub use cluster::{Cluster, ClusterOptions, MakeApplication, MakePages, MakeStore};
pub use executor::{Executor, Group};
pub use history::{Event, History, Seen, Violation};
pub use network::{Delivery, Faults, Network};
