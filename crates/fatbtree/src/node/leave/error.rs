//! Errors of a decommission.

use crate::error::StoreError;
use crate::id::{PageNo, PeId};
use crate::leaf::MoveId;

/// The reason that a node could not leave. The node is still a member, with its remaining leaves.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaveError {
    /// The paper's protocols do not move leaves, and the single index cannot move.
    #[error(
        "{0} cannot leave: leaves are moved by the lazy protocol only, and an index that is at one node \
         stays there"
    )]
    #[cfg(feature = "baseline-protocols")]
    Protocol(PeId),
    /// There is no other node.
    #[error("{0} is the last node; stop it instead")]
    Last(PeId),
    /// The node, or a node that has to store its decommission message, is not settled or refuses requests.
    #[error("{0}")]
    NotReady(String),
    /// The node is leaving already.
    #[error("{0} is leaving already")]
    Busy(PeId),
    /// Nodes use different versions of the list of members.
    #[error(
        "wrong version: {pe} uses version {theirs} of the list of members, {me} uses version {ours}; \
         give both the same list and reload it (AZ.CLUSTER RELOAD)"
    )]
    Version {
        /// The node that was to leave.
        me: PeId,
        /// Version that this node uses.
        ours: u64,
        /// The node with another version.
        pe: PeId,
        /// Version that the other node uses.
        theirs: u64,
    },
    /// Another node uses another list of the same version.
    #[error(
        "wrong list: {pe} uses another list of members with version {version}; \
         raise the version with each change, and give all nodes the same list"
    )]
    OtherList {
        /// The other node.
        pe: PeId,
        /// The version.
        version: u64,
    },
    /// No other node accepts a leaf.
    #[error("no node took {page}: {reason}; try again")]
    NotTaken {
        /// The leaf.
        page: PageNo,
        /// The reason that the last requested node did not accept the leaf.
        reason: String,
    },
    /// A move was not decided in time, because its other node cannot be reached.
    #[error("the outcome of {0} is not decided; run the command again when its other node is reachable")]
    OpenMove(MoveId),
    /// A node did not acknowledge the decommission in time. All other nodes have to acknowledge it.
    #[error(
        "{0} did not acknowledge the decommission in time; run the command again when all nodes are reachable"
    )]
    NoAnswer(PeId),
    /// A store failed.
    #[error("the store of a node failed: {0}")]
    Store(String),
}

impl From<StoreError> for LeaveError {
    fn from(error: StoreError) -> Self {
        let (reason, is_rolled_back) = (error.to_string(), error.is_rolled_back());
        if is_rolled_back { Self::NotReady(reason) } else { Self::Store(reason) }
    }
}
