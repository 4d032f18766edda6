//! A node on a real machine: connections over TCP, the machine's clock, threads for blocking work.
//!
//! | module | content |
//! |---|---|
//! | [`handshake`], `hello` | identifies the node at the other end; the first message of either side |
//! | `links` | outbound connections, one to each other node |
//! | `inbound` | inbound connections, one from each other node |
//! | `listen` | the listener for other nodes |
//! | `unauthenticated` | connections that have not proved the key |
//! | `committer` | one thread that waits for the log |
//! | `world` | clock, random numbers, tasks, threads |
//! | `node_context` | a node among the tasks of its thread, and a handle for other threads |
//! | `running` | the thread, and the construction of the node there |
//!
//! The node runs on one thread, which never blocks. Work that may wait for the device or another transaction
//! runs on a thread of a bounded pool. Only the [`Committer`] waits for flushes of the log, which may take
//! milliseconds. Such a wait occupies no pool thread and holds no leaf lock.

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
