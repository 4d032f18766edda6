//! Messages between nodes.

use serde::{Deserialize, Serialize};

use crate::id::{PageNo, PeId};
use crate::key::{Key, KeyRange, Target};
use crate::leaf::{MoveId, RouteEntry, Row, Staged};
use crate::membership::ListMark;

/// A request's name at the node that it came to first. Unique over restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId {
    /// The node that a client is connected to, and that gets the answer.
    pub origin: PeId,
    /// Number of starts of that node.
    pub incarnation: u64,
    /// The number of the request since then.
    pub number: u64,
}

/// A transaction that stays open over several requests: a request of its client's node that was never sent
/// has its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TransactionId(pub RequestId);

/// Name of a decommission. A restarted node draws a new one, because it may have taken leaves since.
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
    /// Read the value of a key.
    Get,
    /// Give a key a value.
    Put(Vec<u8>),
    /// Give a key a value if it has none.
    Insert(Vec<u8>),
    /// Remove a key.
    Delete,
    /// Hand the bytes to the owner's application, which runs them in a transaction of its own.
    Run {
        /// `true` if it may change rows.
        is_write: bool,
        /// Further keys that it touches, in order, all above the target. They must be at the target's PE.
        others: Vec<Key>,
        /// Opaque bytes of the application.
        bytes: Vec<u8>,
    },
    /// Read rows of one leaf, backwards if the target is [`Target::Before`].
    Rows {
        /// Only keys of this range.
        within: KeyRange,
        /// Most rows.
        limit: u32,
    },
    /// Cut the leaf in two at the target, which becomes the first key of the right half.
    Split,
    /// Give the leaf to another PE.
    Move {
        /// The receiving node.
        to: PeId,
    },
    /// Hand the bytes to the owner's application, which runs them in a transaction that stays open until its
    /// [`End`](Self::End).
    Step {
        /// The transaction.
        id: TransactionId,
        /// The coordinator; `None` begins the transaction at this node.
        coordinator: Option<PeId>,
        /// `true` if it may change rows.
        is_write: bool,
        /// Further keys that it touches, as for [`Run`](Self::Run).
        others: Vec<Key>,
        /// Opaque bytes of the application.
        bytes: Vec<u8>,
    },
    /// End a transaction. The target is the first key that it has touched.
    End {
        /// The transaction.
        id: TransactionId,
        /// The coordinator of the transaction.
        coordinator: PeId,
        /// Commits if `true`, else rolls back.
        is_commit: bool,
    },
    /// Tell whether a transaction goes on. The target is the first key that it has touched.
    Check {
        /// The transaction.
        id: TransactionId,
        /// The coordinator of the transaction.
        coordinator: PeId,
    },
    /// Hand the bytes to the owner's application, which reads its node's snapshot for a reader of several
    /// nodes. The first request of the reader at a node opens the snapshot; the reader sends an
    /// [`End`](Self::End) to each of the nodes.
    Read {
        /// The reader.
        id: TransactionId,
        /// The nodes that have a snapshot for it.
        opened: Vec<PeId>,
        /// All keys that it may still read.
        within: KeyRange,
        /// Further keys that the request reads, as for [`Run`](Self::Run).
        others: Vec<Key>,
        /// Opaque bytes of the application.
        bytes: Vec<u8>,
    },
}

impl Work {
    /// `true` if it may change rows.
    #[must_use]
    pub const fn is_write(&self) -> bool {
        match self {
            Self::Put(_) | Self::Insert(_) | Self::Delete | Self::Split | Self::Move { .. } => true,
            Self::Run { is_write, .. } => *is_write,
            // Not to be done twice, whatever they do.
            Self::Step { .. } | Self::Read { .. } | Self::End { .. } => true,
            Self::Get | Self::Rows { .. } | Self::Check { .. } => false,
        }
    }

    /// About how many bytes it takes in a frame.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Put(value) | Self::Insert(value) => value.len(),
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
    /// Name of the request.
    pub id: RequestId,
    /// Key, or end of a range, that selects the leaf.
    pub target: Target,
    /// Work to do there.
    pub work: Work,
    /// The page that it was sent to: a leaf, or an index page to go down from.
    pub page: PageNo,
    /// Version of the route entry that named the receiver as owner of the target; 0 if there was none.
    pub floor: u64,
    /// Number of times that it was forwarded.
    pub hops: u8,
}

/// Result of some work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The value of a key.
    Value(Option<Vec<u8>>),
    /// A completed write.
    Done {
        /// There was a value.
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

/// The reason that a node did not do the work. Nothing of it was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The node does not own the leaf and has no newer route entry. The origin retries.
    Lost,
    /// Its store refused.
    Store {
        /// The node with the store.
        pe: PeId,
        /// Reason that it reported.
        reason: String,
    },
    /// Some of the keys are at other PEs.
    Elsewhere,
    /// The leaf was not split, or not moved; and why.
    NotMoved {
        /// The node with the leaf.
        pe: PeId,
        /// Reason that it reported.
        reason: String,
    },
    /// Its store failed in the middle: whether it happened is not known.
    Failed {
        /// The node with the store.
        pe: PeId,
        /// Reason that it reported.
        reason: String,
    },
    /// The node that owns the leaf cannot be reached, or has no keys yet. Send the request again.
    Away {
        /// The node.
        pe: PeId,
        /// The reason.
        reason: String,
    },
    /// The transaction is over: it was rolled back.
    Ended {
        /// The node that reports it.
        pe: PeId,
        /// The reason.
        reason: String,
    },
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Work to be done, or sent on.
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
    /// A leaf, to be kept until the source has decided.
    Stage(Staged),
    /// The leaf is kept, under this number.
    Kept {
        /// The move.
        id: MoveId,
        /// The number.
        page: PageNo,
    },
    /// The source has decided: the leaf is the receiver's.
    Install {
        /// The move.
        id: MoveId,
    },
    /// The receiver of the leaf owns it now.
    Installed {
        /// The move.
        id: MoveId,
    },
    /// Requests the decision about a move.
    Ask {
        /// The move.
        id: MoveId,
    },
    /// The move was aborted: drop the staged leaf.
    Abort {
        /// The move.
        id: MoveId,
    },
    /// A node that was started requests route entries.
    Hello,
    /// A node with a new store requests the durable route entries of the receiver.
    Account {
        /// The poll of all other nodes that it belongs to: the start of the node that asks, and a number
        /// since then.
        hearing: (u64, u64),
        /// From this key on.
        from: Key,
    },
    /// Answer to `Account`: some of these entries, in key order.
    Accounted {
        /// For which hearing.
        hearing: (u64, u64),
        /// Since which key.
        from: Key,
        /// The leaves of the sender, and the nodes that received its other leaves.
        route_entries: Vec<RouteEntry>,
        /// Leaves that came from the asking node, with moves that it has to decide.
        staged: Vec<(MoveId, RouteEntry)>,
        /// The newest version of its entries.
        newest: u64,
        /// There is more, from this key on.
        rest: Option<Key>,
    },
    /// A node is about to settle on a new store.
    Admit {
        /// The store's name.
        birth: u64,
        /// The operator accepts that rows of an older store of this node may be lost.
        is_loss_accepted: bool,
    },
    /// Answer to `Admit`.
    Admitted {
        /// The store's name.
        birth: u64,
        /// If not, it has recorded another store.
        is_admitted: bool,
    },
    /// The receiver of a staged leaf takes none: it is leaving. Nothing is kept.
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
    /// A node has left the cluster, for good.
    Left {
        /// The node.
        pe: PeId,
    },
    /// The sender remembers that.
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
        /// The time of its application, in milliseconds since 1970, if that has one.
        clock_ms: Option<u64>,
    },
    /// Of a protocol that locks hand over hand.
    #[cfg(feature = "baseline-protocols")]
    Lock(crate::baseline::LockMessage),
}
