//! A node on a real machine: connections over TCP, the machine's clock, threads for what may block.
//!
//! | module | noun |
//! |---|---|
//! | [`handshake`] | identifies the node at the other end |
//! | `links` | one connection to each other node, for what this one says |
//! | `inbound` | the connections of the others, one of each |
//! | `listen` | connections of other nodes, for what they say |
//! | `unauthenticated` | connections that have not shown the key |
//! | `committer` | one thread that waits for the log, for everybody |
//! | `world` | time, chance, tasks, threads |
//! | `node_context` | a node among the tasks of its thread, and a handle for other threads |
//! | `running` | the thread, and what the node is made of there |
//!
//! All of the node runs on one thread and never waits there. What may wait for the device or another
//! transaction, a transaction's work, runs on a thread of a bounded pool; what waits for the log's flush,
//! which may be milliseconds, waits with the [`Committer`], and keeps neither a thread nor a leaf's lock
//! meanwhile.

mod committer;
pub mod handshake;
mod hello;
mod inbound;
mod links;
mod listen;
mod node_context;
mod running;
mod unauthenticated;
mod world;

pub use committer::Committer;
pub use links::{LinkState, LinkStatus};
pub use listen::{ListenerStatus, receive_all};
pub use node_context::{NodeContext, NodeHandle, NodeStatus};
pub use running::{NodeConfig, NodeThread, StartError, Tools};
