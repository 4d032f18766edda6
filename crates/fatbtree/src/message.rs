//! Messages between nodes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::{PageNo, PeId};
use crate::key::{Key, KeyRange, Target};
use crate::leaf::{MoveId, RouteEntry, Row, Staged};
use crate::membership::ListMark;

/// Unique number of a request. The incarnation makes it unique over restarts of the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId {
    /// The node of the client, which receives the answer.
    pub origin: PeId,
    /// Number of starts of that node.
    pub incarnation: u64,
    /// Number of the request since that start.
    pub number: u64,
}

/// Number of a transaction that stays open over several requests. It has the form of a request number that is
/// used for no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TransactionId(pub RequestId);

/// Number of a decommission. A restarted node uses a new one, because it may have received leaves since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DecommissionId {
    /// Number of starts of the leaving node.
    pub incarnation: u64,
    /// Number of the decommission since that start.
    pub number: u64,
}

/// Reason to refuse a decommission message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DecommissionRefusal {
    /// The node uses this other list of members.
    List(ListMark),
    /// The node does not have its keys yet, or refuses all requests.
    NotReady(String),
}

/// Work at a leaf.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Reads the value of a key.
    Get,
    /// Stores a value at a key.
    Put(Vec<u8>),
    /// Stores a value at a key that has none.
    Insert(Vec<u8>),
    /// Removes a key.
    Delete,
    /// Passes the bytes to the owner's application, which runs them in a separate transaction.
    Run {
        /// `true` if the request may change rows.
        is_write: bool,
        /// Further keys of the request, in order, all above the target. They must be at the target's PE.
        others: Vec<Key>,
        /// Opaque bytes of the application.
        bytes: Vec<u8>,
    },
    /// Reads rows of one leaf, backward if the target is [`Target::Before`].
    Rows {
        /// Range of the keys to read.
        within: KeyRange,
        /// Maximum of rows.
        limit: u32,
    },
    /// Splits the leaf at the target, which becomes the first key of the right half.
    Split,
    /// Moves the leaf to another PE.
    Move {
        /// The receiving node.
        to: PeId,
    },
    /// Passes the bytes to the owner's application, which runs them in a transaction that stays open until
    /// its [`End`](Self::End).
    Step {
        /// The transaction.
        id: TransactionId,
        /// The coordinator; `None` begins the transaction at this node.
        coordinator: Option<PeId>,
        /// `true` if the step may change rows.
        is_write: bool,
        /// Further keys of the step, as for [`Run`](Self::Run).
        others: Vec<Key>,
        /// Opaque bytes of the application.
        bytes: Vec<u8>,
    },
    /// Ends a transaction. The target is the first key that the transaction has used.
    End {
        /// The transaction.
        id: TransactionId,
        /// The coordinator of the transaction.
        coordinator: PeId,
        /// `true` to commit, `false` to roll back.
        is_commit: bool,
    },
    /// Checks that a transaction is still open. The target is the first key that the transaction has used.
    Check {
        /// The transaction.
        id: TransactionId,
        /// The coordinator of the transaction.
        coordinator: PeId,
    },
    /// Passes the bytes to the owner's application, which reads its node's snapshot for a reader of several
    /// nodes. The reader's first request at a node opens the snapshot. The reader sends an [`End`](Self::End)
    /// to each of the nodes.
    Read {
        /// Number of the reader.
        id: TransactionId,
        /// The nodes that have a snapshot of this reader.
        opened: Vec<PeId>,
        /// Range of all keys that the reader may still read.
        within: KeyRange,
        /// Further keys that the request reads, as for [`Run`](Self::Run).
        others: Vec<Key>,
        /// Opaque bytes of the application.
        bytes: Vec<u8>,
    },
    /// Passes the bytes to the application of one node, for a read that concerns no keys. The target has no
    /// meaning.
    AtNode {
        /// The node.
        pe: PeId,
        /// Opaque bytes of the application.
        bytes: Vec<u8>,
    },
}

impl Work {
    /// Returns `true` if the work may change rows.
    #[must_use]
    pub const fn is_write(&self) -> bool {
        match self {
            Self::Put(_) | Self::Insert(_) | Self::Delete | Self::Split | Self::Move { .. } => true,
            Self::Run { is_write, .. } => *is_write,
            // These must not be executed twice, even if they change no rows.
            Self::Step { .. } | Self::Read { .. } | Self::End { .. } => true,
            Self::Get | Self::Rows { .. } | Self::Check { .. } | Self::AtNode { .. } => false,
        }
    }

    /// Returns the approximate size of the work in a frame, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Put(value) | Self::Insert(value) => value.len(),
            Self::AtNode { bytes, .. } => bytes.len(),
            Self::Run { others, bytes, .. }
            | Self::Step { others, bytes, .. }
            | Self::Read { others, bytes, .. } => bytes.len() + others.iter().map(Vec::len).sum::<usize>(),
            Self::Get
            | Self::Delete
            | Self::Rows { .. }
            | Self::Split
            | Self::Move { .. }
            | Self::End { .. }
            | Self::Check { .. } => 0,
        }
    }
}

/// A request in flight to a leaf.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Find {
    /// Number of the request.
    pub id: RequestId,
    /// Key, or end of a range, that determines the leaf.
    pub target: Target,
    /// Work at that leaf.
    pub work: Work,
    /// The page to which the request was sent: a leaf, or an index page from which to descend.
    pub page: PageNo,
    /// Version of the route entry that named the receiver as owner of the target; 0 if there was none.
    pub floor: u64,
    /// Number of times that the request was forwarded.
    pub hops: u8,
    /// Time after the arrival of this message in which the request may be executed, in milliseconds.
    pub time_ms: u32,
    /// Time of this node's clock from which on the request is not executed, because its answer would arrive
    /// too late (FIND-1). Every node sets it when the request arrives; it is not sent.
    #[serde(skip)]
    pub until: Option<Duration>,
}

/// Result of some work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The value of a key.
    Value(Option<Vec<u8>>),
    /// A completed write.
    Done {
        /// `true` if the key had a value.
        existed: bool,
    },
    /// Reply of the application.
    Ran(Vec<u8>),
    /// Rows, in the order of the request.
    Rows {
        /// The rows.
        rows: Vec<Row>,
        /// `true` if the leaf has more rows.
        is_more: bool,
    },
}

/// The reason that a node did not execute the work. Nothing was changed, except possibly after
/// [`Failed`](Self::Failed).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The node does not own the leaf and has no newer route entry. The origin retries.
    Lost,
    /// The store of the node refused the work.
    Store {
        /// The node with the store.
        pe: PeId,
        /// Reason that the node reported.
        reason: String,
    },
    /// Some of the keys are at other PEs.
    Elsewhere,
    /// The leaf was not split or moved.
    NotMoved {
        /// The node with the leaf.
        pe: PeId,
        /// Reason that the node reported.
        reason: String,
    },
    /// The store of the node failed during the work. The work may have been executed.
    Failed {
        /// The node with the store.
        pe: PeId,
        /// Reason that the node reported.
        reason: String,
    },
    /// The node that owns the leaf cannot be reached, or has no keys yet. The origin retries.
    Away {
        /// The node.
        pe: PeId,
        /// The reason.
        reason: String,
    },
    /// The transaction has ended: it was rolled back.
    Ended {
        /// The node that reports it.
        pe: PeId,
        /// The reason.
        reason: String,
    },
    /// The request does not fit into a frame between nodes, and was not sent to the owner of its key.
    TooLong {
        /// Size of the request, in bytes.
        bytes: usize,
    },
    /// The application refused the work.
    Application {
        /// The application's error.
        reason: String,
    },
}

/// A message between nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// A request, to be executed or forwarded.
    Find(Find),
    /// The result of a request, sent to its origin.
    Answered {
        /// The request.
        id: RequestId,
        /// The result.
        result: Result<Answer, Refusal>,
        /// Route entry of the leaf, or of its present owner.
        route_entry: Option<RouteEntry>,
        /// Number of times that the request was forwarded.
        hops: u8,
    },
    /// Route entries that the receiver may use.
    RouteEntries(Vec<RouteEntry>),
    /// A leaf, to be staged until the source has decided.
    Stage(Staged),
    /// The leaf is staged, under this number.
    Kept {
        /// The move.
        id: MoveId,
        /// The number.
        page: PageNo,
    },
    /// The source has decided: the receiver of this message owns the leaf.
    Install {
        /// The move.
        id: MoveId,
    },
    /// The sender owns the leaf now.
    Installed {
        /// The move.
        id: MoveId,
    },
    /// Requests the decision about a move.
    Ask {
        /// The move.
        id: MoveId,
    },
    /// The move was aborted: the receiver drops the staged leaf.
    Abort {
        /// The move.
        id: MoveId,
    },
    /// A node that was started requests route entries.
    Hello,
    /// A node with a new store requests the durable route entries of the receiver.
    Account {
        /// The collection that the request belongs to: the incarnation of the requesting node, and a number
        /// since that start.
        hearing: (u64, u64),
        /// First key of the requested entries.
        from: Key,
    },
    /// Answer to `Account`: a part of the entries, in key order.
    Accounted {
        /// The collection that the answer belongs to.
        hearing: (u64, u64),
        /// First key of the requested entries.
        from: Key,
        /// Entries of the sender's leaves, and of the nodes that received its other leaves.
        route_entries: Vec<RouteEntry>,
        /// Staged leaves from the requesting node, with the moves that it has to decide.
        staged: Vec<(MoveId, RouteEntry)>,
        /// The newest version among all entries of the sender.
        newest: u64,
        /// First key of the remaining entries, if any.
        rest: Option<Key>,
    },
    /// A node is about to take ownership of its keys with a new store.
    Admit {
        /// Name of the store.
        birth: u64,
        /// The operator accepts that rows of an older store of this node may be lost.
        is_loss_accepted: bool,
    },
    /// Answer to `Admit`.
    Admitted {
        /// Name of the store.
        birth: u64,
        /// `false` if the sender has recorded another store.
        is_admitted: bool,
    },
    /// The receiver of a leaf refuses it, because it is leaving, has no keys yet, refuses all requests, or
    /// cannot store a key of the leaf. It has stored nothing.
    Declined {
        /// The move.
        id: MoveId,
    },
    /// A leaving node sends a part of its durable route entries.
    Decommission {
        /// The decommission.
        id: DecommissionId,
        /// The list of members that it uses.
        list: ListMark,
        /// Number of the part.
        part: u32,
        /// Route entries of the leaves that it moved away.
        route_entries: Vec<RouteEntry>,
    },
    /// The sender has stored this part.
    DecommissionAcknowledged {
        /// The decommission.
        id: DecommissionId,
        /// Number of the part.
        part: u32,
    },
    /// The sender refuses the decommission message.
    DecommissionRefused {
        /// The decommission.
        id: DecommissionId,
        /// The reason.
        why: DecommissionRefusal,
    },
    /// A node has left the cluster permanently.
    Left {
        /// The node.
        pe: PeId,
    },
    /// The sender has recorded that a node has left.
    LeftNoted {
        /// The node that has left.
        pe: PeId,
    },
    /// The list of members that the sender uses.
    List {
        /// The list.
        list: ListMark,
    },
    /// The sender is alive.
    Heartbeat {
        /// Time of the sender's application in milliseconds since 1970, if the application uses a clock.
        clock_ms: Option<u64>,
    },
    /// A message of a lock-coupling protocol.
    #[cfg(feature = "baseline-protocols")]
    Lock(crate::baseline::LockMessage),
}
