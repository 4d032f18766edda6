//! Errors.

use std::io;

use crate::id::PeId;

/// The reason that a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No node that can answer was reached in time. Nothing was changed; repeat the request.
    #[error("no answer from the owner of the key within {timeout_ms} ms{}",
        reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default())]
    Unavailable {
        /// Time limit of the attempts, in milliseconds.
        timeout_ms: u64,
        /// The reason, if known.
        reason: Option<String>,
    },
    /// The node that owns the key is down. Nothing was changed; repeat the request when the node runs again.
    #[error("node {} cannot be reached: {reason}", pe.0)]
    Unreachable {
        /// The node.
        pe: PeId,
        /// The reason.
        reason: String,
    },
    /// A write was in flight at its timeout, or when the connection to the other node ended, or the store of
    /// the owner failed during the write. The write may have been executed, or may still be executed.
    #[error("{reason}; the write may or may not have happened")]
    Unknown {
        /// The reason.
        reason: String,
    },
    /// The store of the node that owns the key refused the request or failed.
    #[error("the store of {pe}: {reason}")]
    Store {
        /// The node with the store.
        pe: PeId,
        /// Reason that the node reported.
        reason: String,
    },
    /// The application at the owner refused the request. Nothing was changed.
    #[error("{reason}")]
    Application {
        /// The application's error.
        reason: String,
    },
    /// This node has left the cluster. Send requests to another node.
    #[error(
        "node {} has left the cluster and has no keys; send requests to another node, stop this one and \
         delete its store",
        pe.0
    )]
    Left {
        /// The node.
        pe: PeId,
    },
    /// A transaction runs at one node, but its keys are at several nodes.
    #[error(
        "the keys are at several nodes, but a transaction runs at one node; move their leaves to one node"
    )]
    Elsewhere,
    /// The open transaction was rolled back. Begin it again.
    #[error("{reason}")]
    Ended {
        /// The reason.
        reason: String,
    },
    /// The leaf was not split or moved. It is unchanged.
    #[error("{pe}: {reason}")]
    NotMoved {
        /// The node with the leaf.
        pe: PeId,
        /// Reason that the node reported.
        reason: String,
    },
    /// The request does not fit into a frame between nodes.
    #[error("the request has {bytes} bytes; a request between nodes has at most {most}")]
    TooLong {
        /// Size of the request, in bytes.
        bytes: usize,
        /// The limit, in bytes.
        most: usize,
    },
    /// The node has been stopped.
    #[error("this node is stopping; ask another one")]
    Stopped,
    /// The node was stopped during the request, or a bug ended it. The request may have been executed.
    #[error("this node was stopped before the answer; the write may or may not have happened")]
    Interrupted,
    /// The answer does not match the request: the nodes run different versions of the program.
    #[error("the answer of the other node does not match the request; upgrade the older node")]
    Protocol,
    /// The settings contradict each other.
    #[error("{0}")]
    Settings(String),
}

/// The reason that the store of a node did not execute a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// An error of the database.
    #[error(transparent)]
    Database(#[from] azekura::Error),
    /// A row of the node's own tables is malformed. Restore the node's store.
    #[error("the {what} under {key:?} is damaged")]
    Damaged {
        /// The expected value.
        what: &'static str,
        /// The key of the row.
        key: Vec<u8>,
    },
    /// The list of members has other first keys of the nodes than at the first start of this node. Restore
    /// the list.
    #[error(
        "the list of members has other first keys (`from`) than when the cluster was created; restore them, \
         and move leaves instead"
    )]
    OtherShares,
    /// The database has rows from before it became the store of a node, and the rows belong to another node.
    /// Load them through the cluster.
    #[error(
        "the store already has rows that belong to {owner}; start with an empty store and load the rows \
         through the cluster"
    )]
    RowOfAnother {
        /// The first of these rows.
        key: Vec<u8>,
        /// The node that would own this row.
        owner: PeId,
    },
    /// The operating system gave no random bytes for the name of a new store.
    #[error("cannot create an id for a new store: the system gave no random bytes")]
    Name(#[source] io::Error),
    /// The store belongs to another cluster or PE. Use the store of this node.
    #[error(
        "the store belongs to {found} of cluster {found_cluster:016x}, not to {expected} of cluster \
         {expected_cluster:016x}"
    )]
    Stranger {
        /// The PE that the store belongs to.
        found: PeId,
        /// The cluster that the store belongs to.
        found_cluster: u64,
        /// The expected owner.
        expected: PeId,
        /// The cluster of this node.
        expected_cluster: u64,
    },
}

impl StoreError {
    /// Returns `true` if the change was rolled back, and the store accepts other changes: for example, the
    /// disk is full, or a key is too long for the pages of the store.
    #[must_use]
    pub fn is_rolled_back(&self) -> bool {
        use azekura::ErrorKind::{Busy, Conflict, Invalid};
        matches!(self, Self::Database(error) if matches!(error.kind(), Busy | Conflict | Invalid))
    }
}

/// The reason that bytes from another node were refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The frame is longer than the limit. Close the connection.
    #[error("a frame has {bytes} bytes; the limit is {most}")]
    TooLong {
        /// Length in the header.
        bytes: u64,
        /// The limit.
        most: usize,
    },
    /// The frame arrived while this process was suspended, so it may be outdated. Close the connection.
    #[error("this process was suspended when the frame arrived, and its sender no longer waits")]
    Suspended,
    /// The frame is shorter than its header.
    #[error("a frame has {bytes} bytes, fewer than its header")]
    TooShort {
        /// Length in the header.
        bytes: usize,
    },
    /// The checksum of the frame is wrong: it was damaged in flight.
    #[error("a frame has checksum {found:08x} instead of {expected:08x}")]
    Checksum {
        /// Checksum of the bytes.
        expected: u32,
        /// Value in the header.
        found: u32,
    },
    /// The frame has another version of the protocol. Upgrade the older node.
    #[error("a frame has protocol version {found}, this node has {expected}; upgrade the older node")]
    Version {
        /// Value in the header.
        found: u8,
        /// Version of this node.
        expected: u8,
    },
    /// The frame names a sender other than the node at the other end of the connection.
    #[error("a frame of {found} came over the connection of {expected}")]
    Sender {
        /// Value in the header.
        found: PeId,
        /// The node at the other end.
        expected: PeId,
    },
    /// The frame is from another cluster. Correct the list of members.
    #[error("a frame came from cluster {found:016x}; this node belongs to {expected:016x}")]
    Cluster {
        /// Value in the header.
        found: u64,
        /// Cluster of this node.
        expected: u64,
    },
    /// The frame is for an earlier owner of this PE number. It must not be executed.
    #[error("a frame is for epoch {found}; this node is at {expected}")]
    Epoch {
        /// Value in the header.
        found: u32,
        /// Epoch of this node.
        expected: u32,
    },
    /// The body is not a message.
    #[error("the body of a frame is not a message")]
    Body(#[from] postcard::Error),
    /// The connection failed.
    #[error("cannot read a frame")]
    Read(#[source] io::Error),
}
