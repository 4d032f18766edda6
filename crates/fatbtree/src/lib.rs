//! Fat-Btree: one ordered index over shared-nothing nodes, each with its own store.
//!
//! The leaves are distributed over the nodes (*PEs*, processing elements). Each node keeps its leaves, the
//! index pages above them, and no other index pages. So every node can accept any request, no node takes part
//! in all requests, and most index pages have few copies. Fat-Btree is not a consensus system, and each row
//! is at one node. Replicas, takeover of a failed node, and transactions over several nodes do not exist.
//!
//! ```
//! use azekura_fatbtree::sim::{Cluster, ClusterOptions};
//! use azekura_fatbtree::{KeyRange, PeId, Work};
//!
//! // Three nodes in virtual time; the first third of the keys is PE 0's, and so on.
//! let cluster = Cluster::new(1, ClusterOptions::evenly(3));
//! cluster.start_all();
//! let (first, last) = (cluster.node(PeId(0)).unwrap(), cluster.node(PeId(2)).unwrap());
//! let found = cluster.executor().block_on(async move {
//!     first.write(*b"zebra", Work::Put(b"striped".to_vec())).await?;
//!     let leaf = first.leaves()[0].page;
//!     first.move_leaf(leaf, PeId(2)).await.expect("PE 2 runs");
//!     last.scan(KeyRange::all(), false, 10).await
//! });
//! assert_eq!(found.unwrap()?.rows, [(b"zebra".to_vec(), b"striped".to_vec())]);
//! # Ok::<(), azekura_fatbtree::Error>(())
//! ```
//!
//! Source: Miyazaki and Yokota, "An implementation and evaluation of Fat-Btrees". The paper's protocols B-OPT
//! and INC-OPT exist only for the evaluation (feature `baseline-protocols`). The product's protocol uses the
//! paper's structure and another rule: *the leaf level is authoritative, copies of index pages are soft
//! state*. Copies are notified of changes, and no change waits for them. `tests/nodes/protocol_model.rs`
//! model-checks this protocol.
//!
//! - **I1** At every moment the live leaves partition the keys.
//! - **I2** Every route entry was true at its version. The version of a key's leaf grows with each change.
//! - **I3** A node that receives a request for a key that it does not own has a newer route entry than each
//!   entry that leads to this node. So every search ends, at the right leaf.
//!
//! | module | noun |
//! |---|---|
//! | [`node`] | a PE: requests of clients, searches, work at leaves, splits, merges, moves |
//! | `index` | a PE's index pages and pointer pages; the initial build |
//! | `ranges`, `leaf` | versioned values of key ranges; leaves and their route entries |
//! | `id`, `key`, `key_set` | logical page ids; ranges and sets of keys |
//! | `placement` | placement of index pages |
//! | `baseline` | the organizations and protocols that the paper compares, for the evaluation |
//! | [`store`] | durable state of a PE: in an [`azekura::Database`], or in memory |
//! | `lock_service`, `page_service` | the paper's two services |
//! | `message`, [`frame`] | messages between nodes, and their encoding |
//! | `membership` | members of a cluster and their addresses: a file, or another `Meta` |
//! | `options` | settings of a node |
//! | `clock_offset` | compares the nodes' clocks |
//! | `world` | network, clock, random numbers and tasks, as traits |
//! | [`tcp`] | implementations for real machines |
//! | `sim` | implementations in virtual time, with faults, from a seed: for tests (feature `sim`) |

#![forbid(unsafe_code)]

#[cfg(feature = "baseline-protocols")]
mod baseline;
mod clock_offset;
mod error;
pub mod frame;
mod id;
mod index;
mod key;
mod key_set;
mod leaf;
mod lock_service;
mod membership;
mod message;
pub mod node;
mod options;
mod page_service;
mod placement;
mod ranges;
#[cfg(feature = "sim")]
pub mod sim;
pub mod store;
pub mod tcp;
mod world;

#[cfg(feature = "baseline-protocols")]
pub use baseline::{LockMessage, Protocol, UnknownPlacement};
pub use clock_offset::ClockOffset;
pub use error::{Error, FrameError, StoreError};
pub use id::{LogicalPageId, PageNo, PeId, Pointer};
pub use index::PageCopy;
#[cfg(feature = "baseline-protocols")]
pub use index::{BuildOptions, Built, build};
pub use key::{Key, KeyRange, Target};
pub use leaf::{LeafHead, MoveId, RouteEntry, Row, Staged};
pub use membership::{FileMeta, ListMark, Member, Membership, MembershipError, Meta, even_shares};
pub use message::{
    Answer, DecommissionId, DecommissionRefusal, Find, Message, Refusal, RequestId, TransactionId, Work,
};
pub use node::{
    Application, Asked, Counts, Credentials, Growth, LeaveError, ListError, LocalEntry, LocalKeys,
    MISSED_HEARTBEATS, MoveError, NoApplication, Node, OpenTransaction, Parts, Ran, Rows, RunError, Stepped,
};
pub use options::Options;
pub use page_service::{Access, PageService, StorePages};
pub use placement::Placement;
pub use ranges::{Piece, Ranges};
pub use world::{Clock, Net, Rng, Spawn, Task, World};
