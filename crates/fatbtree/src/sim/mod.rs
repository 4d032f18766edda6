//! A cluster in one thread and in virtual time, determined by a seed: the same nodes, on a net, a clock and
//! disks that are events.
//!
//! It is an event loop of our own and not `turmoil`, because a node asks for so little: frames, time, chance,
//! tasks. An event is a frame, so delay, loss and reordering are per frame, harsher than TCP; time has no
//! grain, where tokio's timers have a millisecond, which is longer than everything the paper measures but a
//! disk access; and a run costs what its events cost.
//!
//! | module | noun |
//! |---|---|
//! | `executor` | tasks, timers, virtual time |
//! | `network` | frames in flight, faults |
//! | `cluster` | nodes that start, crash and start again on what their disks kept |
//! | `history` | what clients saw; is it linearizable? |

mod cluster;
mod executor;
mod history;
mod network;

pub use cluster::{Cluster, ClusterOptions, MakeApplication, MakePages, MakeStore};
pub use executor::{Executor, Group};
pub use history::{Event, History, Seen, Violation};
pub use network::{Delivery, Faults, Network};
