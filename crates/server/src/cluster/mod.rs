//! This server as a node of a cluster: it accepts a request for any key, and runs it at the node that owns
//! the key.
//!
//! | module | content |
//! |---|---|
//! | `local` | requests for keys of this node, without the node's thread |
//! | `pipeline` | requests of one connection that are in flight together |
//! | `gateway` | a request of a client of this node, until its reply |
//! | `interactive` | transactions over several requests |
//! | `scan` | traversal of the leaves of all nodes, in order |
//! | `reader` | reads of several nodes, by a snapshot of each |
//! | `prefixes` | prefixes of `SCAN` cursors of other nodes |
//! | `owner` | commands at the node that owns the keys |
//! | `watched` | keys that a client watches |
//! | `admin` | `AZ.CLUSTER` |
//! | `wire` | messages between gateway and owner |
//!
//! - **GATEWAY-1** The reply to a write is sent after the write is durable at the owner. The reply to a read
//!   is sent after all data that it contains is durable.
//! - **GATEWAY-2** A request is one transaction at one node, or is refused with `CROSSNODE`.
//!   `docs/cluster.md` lists the exceptions: scans over several leaves, and `MGET` and `DEL` with keys of
//!   several nodes.
//! - **GATEWAY-3** A request without an answer in time gets an error: `UNAVAIL` if nothing was changed,
//!   `UNKNOWN` if something may have been changed.

mod admin;
mod gateway;
mod interactive;
mod local;
mod owner;
mod pipeline;
mod prefixes;
mod reader;
mod scan;
mod watched;
mod wire;

use std::net::TcpListener;
use std::sync::Arc;

use azekura_auth::AuthKey;
use azekura_fatbtree::tcp::{NodeConfig, NodeHandle, NodeThread};
use azekura_fatbtree::{LocalKeys, Meta, Options, PeId};

use crate::counters::{Count, SpreadCount};
use crate::error::ServerError;
use crate::keyspace::KEYS_TABLE;
use crate::listener;
use crate::options::ServerOptions;
use crate::server::Shared;

pub(crate) use gateway::no_reply;
pub(crate) use interactive::{Interactive, StepError};
pub(crate) use pipeline::{KeyRequest, Pipeline};
pub(crate) use prefixes::OtherPrefixes;
pub(crate) use reader::{ClusterSnapshot, SharedSnapshot};
pub(crate) use watched::{CHANGED, Watched};
pub(crate) use wire::Bytes;

/// Longest value in a cluster, in bytes: a leaf must fit into a frame between nodes, even if this value has
/// made the leaf too large.
const MAX_VALUE_BYTES: usize = 4 << 20;

/// The cluster of a server, and its node in the cluster.
#[derive(Clone)]
#[non_exhaustive]
pub struct ClusterOptions {
    /// The list of members.
    pub meta: Arc<dyn Meta + Send + Sync>,
    /// Number of this server's node.
    pub pe: PeId,
    /// The shared key of the nodes.
    pub key: AuthKey,
    /// Listener for other nodes; by default a new one at the address in `meta`.
    pub listener: Option<Arc<TcpListener>>,
    /// Settings of the node.
    pub node: Options,
}

impl ClusterOptions {
    /// Returns the options of node `pe` of a cluster, with default settings of the node.
    #[must_use]
    pub fn new(meta: Arc<dyn Meta + Send + Sync>, pe: PeId, key: AuthKey) -> Self {
        Self { meta, pe, key, listener: None, node: Options::default() }
    }
}

impl std::fmt::Debug for ClusterOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterOptions").field("pe", &self.pe).finish_non_exhaustive()
    }
}

/// The cluster node of this server.
pub(crate) struct Cluster {
    pe: PeId,
    node: NodeHandle,
    /// Keys that this server's own threads serve.
    local_keys: Arc<LocalKeys>,
    meta: Arc<dyn Meta + Send + Sync>,
    /// Longest key, in bytes.
    max_key_bytes: usize,
    /// Bound of all replies to one request, in bytes.
    max_reply_bytes: usize,
    /// Number of times that connections have waited for requests to nodes; requests in flight together count
    /// once.
    waits: Count,
    /// Requests that threads of connections have served, except members of groups.
    served_here: SpreadCount,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("pe", &self.pe).finish_non_exhaustive()
    }
}

/// Returns the longest value, in bytes, that these options allow.
pub(crate) fn max_value_bytes(options: &ServerOptions) -> usize {
    let most = if options.cluster.is_some() { MAX_VALUE_BYTES } else { usize::MAX };
    options.wire.max_bulk_bytes.min(most)
}

/// Starts the cluster node, if the options name a cluster.
pub(crate) fn start(shared: &Arc<Shared>) -> Result<Option<NodeThread>, ServerError> {
    let Some(options) = shared.options.cluster.clone() else {
        return match azekura_fatbtree::store::owner(&shared.engine.db)? {
            None => Ok(None),
            // The store does not have all keys of the cluster, and a leaf may be in flight to another node.
            Some((cluster, pe)) => Err(ServerError::NodeStore { cluster, pe }),
        };
    };
    let ClusterOptions { meta, pe, key, listener, mut node } = options;
    node.open_timeout = shared.options.transaction_timeout;
    let members = meta.members()?;
    let listener = match (listener, members.node(pe)) {
        (Some(listener), _) => listener.try_clone().map_err(ServerError::Thread)?,
        (None, Some(member)) => listener::listen(member.address)?,
        (None, None) => return Err(azekura_fatbtree::tcp::StartError::NoMember(pe).into()),
    };
    let config = NodeConfig { pe, members, key, listener, options: node, rows: KEYS_TABLE.to_owned() };
    let for_owner = Arc::clone(shared);
    let thread = NodeThread::start(
        shared.engine.db.clone(),
        Arc::new(owner::AttachedRows),
        move |tools| std::rc::Rc::new(owner::Owner::new(for_owner, tools)),
        config,
    )?;
    let for_node = Arc::clone(&meta);
    thread.handle().tell(move |here| Box::pin(here.follow(for_node)));
    shared.engine.context.cursors.join(OtherPrefixes::of(thread.handle()));
    let max_reply_bytes = shared.options.max_reply_bytes;
    let cluster = Cluster {
        pe,
        node: thread.handle(),
        local_keys: Arc::clone(thread.local_keys()),
        meta,
        max_key_bytes: shared.engine.context.max_key_bytes,
        max_reply_bytes,
        waits: Count::default(),
        served_here: SpreadCount::default(),
    };
    // The cell is empty: only this function sets it.
    let _ = shared.cluster.set(cluster);
    Ok(Some(thread))
}
