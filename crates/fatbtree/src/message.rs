//! What nodes say to each other.

use serde::{Deserialize, Serialize};

use crate::id::{PageNo, PeId};
use crate::index::PageCopy;
use crate::key::{Key, KeyRange, Target};
use crate::leaf::{Fact, MoveId, Row, Staged};
use crate::membership::ListMark;

/// A request's name at the node that it came to first. Unique over restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId {
    /// The node that a client asked, and that gets the answer.
    pub origin: PeId,
    /// How often it had been started.
    pub incarnation: u64,
    /// The number of the request since then.
    pub number: u64,
}

/// A transaction that stays open over several requests: a request of its client's node that was never sent
/// has its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TransactionId(pub RequestId);

/// A farewell's name: a node that was started again has to say another, for it may have taken leaves since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FarewellId {
    /// How often the node that leaves had been started.
    pub incarnation: u64,
    /// The number of the farewell since then.
    pub number: u64,
}

/// Why a farewell is not kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unkept {
    /// The node goes by this other list of members.
    List(ListMark),
    /// It has not its keys yet, or answers nothing.
    NotReady(String),
}

/// What is to be done at a leaf.
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
        /// Whether it may change something.
        is_write: bool,
        /// Further keys that it touches, in order, all above the target. They must be at the target's PE.
        others: Vec<Key>,
        /// What only the application understands.
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
        /// To whom.
        to: PeId,
    },
    /// Hand the bytes to the owner's application, which runs them in a transaction that stays open until its
    /// [`End`](Self::End).
    Step {
        /// Which transaction.
        id: TransactionId,
        /// Where it takes place; `None`: it begins, here.
        home: Option<PeId>,
        /// Whether it may change something.
        is_write: bool,
        /// Further keys that it touches, as for [`Run`](Self::Run).
        others: Vec<Key>,
        /// What only the application understands.
        bytes: Vec<u8>,
    },
    /// End a transaction. The target is the first key that it has touched.
    End {
        /// Which one.
        id: TransactionId,
        /// Where it takes place.
        home: PeId,
        /// Whether it commits.
        is_commit: bool,
    },
    /// Tell whether a transaction goes on. The target is the first key that it has touched.
    Check {
        /// Which one.
        id: TransactionId,
        /// Where it takes place.
        home: PeId,
    },
}

impl Work {
    /// Whether it may change something.
    #[must_use]
    pub const fn is_write(&self) -> bool {
        match self {
            Self::Put(_) | Self::Insert(_) | Self::Delete | Self::Split | Self::Move { .. } => true,
            Self::Run { is_write, .. } => *is_write,
            // Not to be done twice, whatever they do.
            Self::Step { .. } | Self::End { .. } => true,
            Self::Get | Self::Rows { .. } | Self::Check { .. } => false,
        }
    }

    /// About how many bytes it takes in a frame.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Put(value) | Self::Insert(value) => value.len(),
            Self::Run { others, bytes, .. } | Self::Step { others, bytes, .. } => {
                bytes.len() + others.iter().map(Vec::len).sum::<usize>()
            }
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

/// A request on its way to a leaf.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Find {
    /// Whose.
    pub id: RequestId,
    /// Where.
    pub target: Target,
    /// What.
    pub work: Work,
    /// The page that it was sent to: a leaf, or an index page to go down from.
    pub page: PageNo,
    /// The version of the fact that said that the receiver owns the target; 0 if none said so.
    pub floor: u64,
    /// How often it has been sent on.
    pub hops: u8,
}

/// What came of some work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The value of a key.
    Value(Option<Vec<u8>>),
    /// It is done; whether the key was there before.
    Done {
        /// There was a value.
        existed: bool,
    },
    /// What the application says.
    Ran(Vec<u8>),
    /// Rows, in the order in which they were asked for.
    Rows {
        /// The rows.
        rows: Vec<Row>,
        /// Whether the leaf has more of them.
        is_more: bool,
    },
}

/// Why a node did not do the work. It has done nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// It does not own the leaf, and knows nobody newer who does. Ask again.
    Lost,
    /// Its store refused.
    Store {
        /// Whose store.
        pe: PeId,
        /// What it said.
        reason: String,
    },
    /// Some of the keys are at other PEs.
    Elsewhere,
    /// The leaf was not split, or not moved; and why.
    NotMoved {
        /// Whose leaf.
        pe: PeId,
        /// What it said.
        reason: String,
    },
    /// Its store failed in the middle: whether it happened is not known.
    Failed {
        /// Whose store.
        pe: PeId,
        /// What it said.
        reason: String,
    },
    /// The node that owns the leaf cannot be reached, or has no keys yet. Ask again.
    Away {
        /// Which node.
        pe: PeId,
        /// Why.
        reason: String,
    },
    /// The transaction is over: it was rolled back.
    Ended {
        /// Whose word that is.
        pe: PeId,
        /// Why.
        reason: String,
    },
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Work to be done, or sent on.
    Find(Find),
    /// What came of it, to the origin.
    Answered {
        /// Of which request.
        id: RequestId,
        /// What came of it.
        result: Result<Answer, Refusal>,
        /// The leaf that did it, or who did not own it.
        fact: Option<Fact>,
        /// How often the request was sent on.
        hops: u8,
    },
    /// What may be worth knowing.
    Facts(Vec<Fact>),
    /// A leaf, to be kept until the source has decided.
    Stage(Staged),
    /// The leaf is kept, under this number.
    Kept {
        /// Which move.
        id: MoveId,
        /// The number.
        page: PageNo,
    },
    /// The source has decided: the leaf is the receiver's.
    Install {
        /// Which move.
        id: MoveId,
    },
    /// The receiver of the leaf owns it now.
    Installed {
        /// Which move.
        id: MoveId,
    },
    /// What has become of a move?
    Ask {
        /// Which.
        id: MoveId,
    },
    /// Nothing has: forget it.
    Abort {
        /// Which move.
        id: MoveId,
    },
    /// A node that has been started asks what others know.
    Hello,
    /// The paper's protocols: a request whose lock on `find.page` is already held at the receiver.
    Couple {
        /// The request.
        find: Find,
        /// The copies of each index page on its way so far, in the order of their PEs.
        way: Vec<Vec<PageCopy>>,
    },
    /// The paper's protocols: lock a page of the receiver.
    Lock {
        /// Name of this question at the sender.
        call: u64,
        /// For which request.
        id: RequestId,
        /// Which page.
        page: PageNo,
        /// Place of the mode among [`LockMode::ALL`](crate::LockMode::ALL).
        mode: u8,
    },
    /// It is locked.
    Locked {
        /// Which question.
        call: u64,
        /// Whether the page has no room for one more entry.
        is_full: bool,
    },
    /// Release a page.
    Release {
        /// For which request.
        id: RequestId,
        /// Which page.
        page: PageNo,
    },
    /// Change a locked copy of an index page, and release it.
    Apply {
        /// Name of this question at the sender.
        call: u64,
        /// For which request.
        id: RequestId,
        /// Which page.
        page: PageNo,
        /// What it has to know.
        facts: Vec<Fact>,
    },
    /// A node with a new store asks what the receiver knows for good of where keys are.
    Account {
        /// Which hearing of all others it belongs to: the start of the node that asks, and a number since
        /// then.
        hearing: (u64, u64),
        /// From this key on.
        from: Key,
    },
    /// Some of that, in key order.
    Accounted {
        /// For which hearing.
        hearing: (u64, u64),
        /// Since which key.
        from: Key,
        /// Its leaves, and to whom it gave others.
        facts: Vec<Fact>,
        /// Leaves that came from the node that asks, and whose move it has to decide.
        staged: Vec<(MoveId, Fact)>,
        /// The newest version of anything that it knows.
        newest: u64,
        /// There is more, from this key on.
        rest: Option<Key>,
    },
    /// A node is about to settle on a new store.
    Admit {
        /// The store's name.
        birth: u64,
        /// Somebody has said that what an older store of this node had may be lost.
        is_loss_accepted: bool,
    },
    /// Whether the receiver takes the store with this name for the sender's from now on.
    Admitted {
        /// The store's name.
        birth: u64,
        /// If not, it knows another.
        is_admitted: bool,
    },
    /// The receiver of a staged leaf takes none: it is leaving. Nothing is kept.
    Declined {
        /// Which move.
        id: MoveId,
    },
    /// A node that is about to leave tells what it knows for good of where keys are; a part of it.
    Farewell {
        /// Which farewell.
        id: FarewellId,
        /// The list of members that it goes by.
        list: ListMark,
        /// Which part.
        part: u32,
        /// To whom it gave leaves.
        facts: Vec<Fact>,
    },
    /// The sender keeps that for good.
    FarewellKept {
        /// Of which farewell.
        id: FarewellId,
        /// Which part.
        part: u32,
    },
    /// The sender does not.
    FarewellRefused {
        /// Which farewell.
        id: FarewellId,
        /// Why.
        why: Unkept,
    },
    /// A node has left the cluster, for good.
    Left {
        /// Which one.
        pe: PeId,
    },
    /// The sender remembers that.
    LeftNoted {
        /// Who has left.
        pe: PeId,
    },
    /// The list of members that the sender goes by.
    List {
        /// Which one.
        list: ListMark,
    },
    /// The sender is alive.
    Heartbeat {
        /// The time of its application, in milliseconds since 1970, if that has one.
        clock_ms: Option<u64>,
    },
}
