//! Why a node has not left.

use crate::error::StoreError;
use crate::id::{PageNo, PeId};
use crate::leaf::MoveId;

/// Why a node has not left. It is a member, with the leaves that it still has.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaveError {
    /// The paper's protocols do not move leaves, and the single index does not move at all.
    #[error(
        "{0} cannot leave: leaves are moved by the lazy protocol only, and an index that is at one node stays there"
    )]
    Protocol(PeId),
    /// There is nobody else.
    #[error("{0} is the last node; stop it instead")]
    Last(PeId),
    /// It, or one that has to keep its farewell, has not its own keys yet, or answers nothing.
    #[error("{0}")]
    NotReady(String),
    /// It is leaving already.
    #[error("{0} is leaving already")]
    Busy(PeId),
    /// Not all nodes go by the same list of members.
    #[error(
        "wrong version: {pe} goes by version {theirs} of the list of members, and {me} by version {ours}; give both the same list, and have it read"
    )]
    Version {
        /// Who would leave.
        me: PeId,
        /// Its version.
        ours: u64,
        /// Who goes by another.
        pe: PeId,
        /// And by which.
        theirs: u64,
    },
    /// Another node goes by another list of the same version.
    #[error(
        "wrong list: {pe} goes by another list of members of version {version}; raise the version with each change, and give all nodes the same list"
    )]
    OtherList {
        /// Who.
        pe: PeId,
        /// Which version.
        version: u64,
    },
    /// A leaf is left that nobody takes.
    #[error("{page} is left: {reason}")]
    NotTaken {
        /// Which leaf.
        page: PageNo,
        /// Why the last one did not take it.
        reason: String,
    },
    /// A move is not decided in time, since its other node is away.
    #[error("{0} is not over; its other node has to be reached")]
    OpenMove(MoveId),
    /// All others have to be reached.
    #[error("{0} has not kept the farewell in time; all nodes have to be reached")]
    NoAnswer(PeId),
    /// A store failed.
    #[error("a store failed: {0}")]
    Store(String),
}

impl From<StoreError> for LeaveError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.to_string())
    }
}
