//! The index organizations and protocols that the paper compares, for the evaluation: their names and
//! messages.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::{PageNo, PeId};
use crate::index::PageCopy;
use crate::leaf::RouteEntry;
use crate::message::{Find, RequestId};
use crate::placement::Placement;

impl Placement {
    /// All placements, in the paper's order.
    pub const ALL: [Self; 3] = [Self::SingleIndex, Self::CopyWhole, Self::FatBtree];

    /// The PE that keeps the index in [`Placement::SingleIndex`].
    pub const INDEX_PE: PeId = PeId(0);

    /// Returns the paper's short name.
    #[must_use]
    pub const fn short(self) -> &'static str {
        match self {
            Self::FatBtree => "Fat-Btree",
            Self::SingleIndex => "SIB",
            Self::CopyWhole => "CWB",
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.short())
    }
}

/// Error: no placement has this name.
#[derive(Debug, thiserror::Error)]
#[error("no placement {0:?}: fat-btree, sib or cwb")]
pub struct UnknownPlacement(String);

impl FromStr for Placement {
    type Err = UnknownPlacement;

    fn from_str(name: &str) -> Result<Self, UnknownPlacement> {
        Self::ALL
            .into_iter()
            .find(|placement| placement.short().eq_ignore_ascii_case(name))
            .ok_or_else(|| UnknownPlacement(name.to_owned()))
    }
}

/// Protocol of searches and updates in the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The product's protocol: leaves are authoritative. Copies of index pages are notified of changes, and
    /// no change waits for them.
    #[default]
    Lazy,
    /// The paper's B-OPT (section 3.4): lock coupling with IS or IX down the tree. A split takes SIX on all
    /// copies from the root, then X on all copies of the pages that change. For the evaluation only: a failed
    /// node blocks all others.
    BOpt,
    /// The paper's INC-OPT: as B-OPT, but a split takes X at once, and only from the lowest page that
    /// changes. For the evaluation only.
    IncOpt,
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Self; 3] = [Self::BOpt, Self::IncOpt, Self::Lazy];

    /// Returns a short name.
    #[must_use]
    pub const fn short(self) -> &'static str {
        match self {
            Self::Lazy => "lazy copies",
            Self::BOpt => "B-OPT",
            Self::IncOpt => "INC-OPT",
        }
    }
}

/// A message of the lock-coupling protocols.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockMessage {
    /// Continues a request that already holds a lock on `find.page` at the receiver.
    Couple {
        /// The request.
        find: Find,
        /// The copies of each index page on the path so far, in the order of their PEs.
        way: Vec<Vec<PageCopy>>,
    },
    /// Requests a lock on a page of the receiver.
    Lock {
        /// Number of this call at the sender.
        call: u64,
        /// The request that needs the lock.
        id: RequestId,
        /// The page.
        page: PageNo,
        /// Index of the mode in [`TableMode::ALL`](azekura_lock::TableMode::ALL).
        mode: u8,
    },
    /// Reports that the page is locked.
    Locked {
        /// Number of the call.
        call: u64,
        /// `true` if the page has no space for one more entry.
        is_full: bool,
    },
    /// Releases a page.
    Release {
        /// The request that holds the lock.
        id: RequestId,
        /// The page.
        page: PageNo,
    },
    /// Changes a locked copy of an index page, and releases the page.
    Apply {
        /// Number of this call at the sender.
        call: u64,
        /// The request that holds the lock.
        id: RequestId,
        /// The page.
        page: PageNo,
        /// The entries to apply.
        route_entries: Vec<RouteEntry>,
    },
}
