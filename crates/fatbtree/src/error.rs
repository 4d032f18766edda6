//! Errors.

use std::io;

use crate::id::PeId;

/// The reason that a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No node that can answer was reached in time. Nothing was changed; try again.
    #[error("the owner of the key could not be reached within {timeout_ms} ms{}",
        reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default())]
    Unavailable {
        /// Time of the attempts.
        timeout_ms: u64,
        /// The reason, if it is known.
        reason: Option<String>,
    },
    /// The node that owns the key is down. Nothing was changed; try again once it is back.
    #[error("node {} cannot be reached: {reason}", pe.0)]
    Unreachable {
        /// The node.
        pe: PeId,
        /// The reason.
        reason: String,
    },
    /// A write was in flight when the time was up, or when the connection to the other node ended. It may
    /// have happened, or may still happen.
    #[error("no answer within {timeout_ms} ms; the write may or may not have happened")]
    Unknown {
        /// Time of the wait.
        timeout_ms: u64,
    },
    /// The store of the node that owns the key refused or failed.
    #[error("the store of {pe}: {reason}")]
    Store {
        /// The node with the store.
        pe: PeId,
        /// Reason that it reported.
        reason: String,
    },
    /// A transaction takes place at one node, and its keys are at several.
    #[error(
        "the keys are at several nodes, but a transaction runs at one node; move their leaves to one node"
    )]
    Elsewhere,
    /// The transaction that was open is over, and was rolled back. Begin it again.
    #[error("{reason}")]
    Ended {
        /// The reason.
        reason: String,
    },
    /// The leaf was not split or moved. It is where it was.
    #[error("{pe}: {reason}")]
    NotMoved {
        /// The node with the leaf.
        pe: PeId,
        /// Reason that it reported.
        reason: String,
    },
    /// The request does not fit into a frame between nodes.
    #[error("the request has {bytes} bytes; a request between nodes has at most {most}")]
    TooLong {
        /// Bytes needed.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// The node has been stopped.
    #[error("this node is stopping; ask another one")]
    Stopped,
    /// The node was stopped in the midst of it, or a mistake in the program ended it: what was asked may have
    /// happened.
    #[error("this node was stopped before the answer; the write may or may not have happened")]
    Interrupted,
    /// The answer is not one to the question: the nodes run different programs.
    #[error("the answer of the other node does not match the request; upgrade the older node")]
    Protocol,
    /// The settings do not fit together.
    #[error("{0}")]
    Settings(String),
}

/// The reason that the store of a node did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database's reason.
    #[error(transparent)]
    Database(#[from] azekura::Error),
    /// A row of the node's own tables has a form that no node writes. Restore the node's store.
    #[error("the {what} under {key:?} is damaged")]
    Damaged {
        /// The expected value.
        what: &'static str,
        /// Its key.
        key: Vec<u8>,
    },
    /// The list of members has other first keys of the nodes than at the first start of this node. Restore
    /// it.
    #[error(
        "the list of members has other first keys (`from`) than when the cluster was created; restore them, \
         and move leaves instead"
    )]
    OtherShares,
    /// The database has rows of a time before it became a node's, which belong to another node; load them
    /// through the cluster.
    #[error(
        "the store already has rows that belong to {owner}; start with an empty store and load the rows \
         through the cluster"
    )]
    RowOfAnother {
        /// The first of them.
        key: Vec<u8>,
        /// The node that would own it.
        owner: PeId,
    },
    /// The system gives no random bytes for the name of a new store.
    #[error("cannot create an id for a new store: the system gave no random bytes")]
    Name(#[source] io::Error),
    /// The store belongs to another cluster or PE; use the one that was made for this.
    #[error(
        "the store belongs to {found} of cluster {found_cluster:016x}, not to {expected} of cluster \
         {expected_cluster:016x}"
    )]
    Stranger {
        /// Its owner.
        found: PeId,
        /// The cluster of its store.
        found_cluster: u64,
        /// The expected owner.
        expected: PeId,
        /// The cluster of this node.
        expected_cluster: u64,
    },
}

/// The reason that bytes from another node were refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Longer than any frame may be; the connection has to be closed.
    #[error("a frame has {bytes} bytes; the limit is {most}")]
    TooLong {
        /// Length in the header.
        bytes: u64,
        /// The limit.
        most: usize,
    },
    /// Too short for its own head.
    #[error("a frame has {bytes} bytes, fewer than its header")]
    TooShort {
        /// Length in the header.
        bytes: usize,
    },
    /// Its checksum is wrong: damaged in flight.
    #[error("a frame has checksum {found:08x} instead of {expected:08x}")]
    Checksum {
        /// Checksum of the bytes.
        expected: u32,
        /// Value in the header.
        found: u32,
    },
    /// Of another version of the protocol; upgrade the older node.
    #[error("a frame has protocol version {found}, this node has {expected}; upgrade the older node")]
    Version {
        /// Value in the header.
        found: u8,
        /// Version of this node.
        expected: u8,
    },
    /// The frame names another sender than the node at the other end of the connection.
    #[error("a frame of {found} came over the connection of {expected}")]
    Sender {
        /// Value in the header.
        found: PeId,
        /// The node at the other end.
        expected: PeId,
    },
    /// From another cluster; correct the list of members.
    #[error("a frame came from cluster {found:016x}; this node belongs to {expected:016x}")]
    Cluster {
        /// Value in the header.
        found: u64,
        /// This node's.
        expected: u64,
    },
    /// The frame is for an earlier owner of this PE number. It must not be executed.
    #[error("a frame is for epoch {found}; this node is at {expected}")]
    Epoch {
        /// Value in the header.
        found: u32,
        /// This node's.
        expected: u32,
    },
    /// The body is no message.
    #[error("the body of a frame is not a message")]
    Body(#[from] postcard::Error),
    /// The connection failed.
    #[error("cannot read a frame")]
    Read(#[source] io::Error),
}
