//! The organizations and protocols that the paper compares, for the evaluation: their names and messages.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::{PageNo, PeId};
use crate::index::PageCopy;
use crate::leaf::RouteEntry;
use crate::message::{Find, RequestId};
use crate::placement::Placement;

impl Placement {
    /// All of them, in the paper's order.
    pub const ALL: [Self; 3] = [Self::SingleIndex, Self::CopyWhole, Self::FatBtree];

    /// The PE that keeps the index of [`Placement::SingleIndex`].
    pub const INDEX_PE: PeId = PeId(0);

    /// The paper's short name.
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

/// No placement has this name.
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
    /// The product's protocol: leaves are authoritative; copies of index pages are sent changes without
    /// waiting.
    #[default]
    Lazy,
    /// The paper's (section 3.4): IS or IX hand over hand down the tree; a split takes SIX on all copies from
    /// the root, then X on all copies of what changes. For the figures: a node that is gone stops everything.
    BOpt,
    /// As B-OPT, but a split takes X at once, and only from the lowest page that changes. For the figures.
    IncOpt,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::BOpt, Self::IncOpt, Self::Lazy];

    /// A short name.
    #[must_use]
    pub const fn short(self) -> &'static str {
        match self {
            Self::Lazy => "lazy copies",
            Self::BOpt => "B-OPT",
            Self::IncOpt => "INC-OPT",
        }
    }
}

/// A message of the protocols that lock hand over hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockMessage {
    /// A request with a lock on `find.page` that is already held at the receiver.
    Couple {
        /// The request.
        find: Find,
        /// The copies of each index page that were visited so far, in the order of their PEs.
        way: Vec<Vec<PageCopy>>,
    },
    /// Lock a page of the receiver.
    Lock {
        /// Name of this question at the sender.
        call: u64,
        /// For which request.
        id: RequestId,
        /// The page.
        page: PageNo,
        /// Place of the mode among [`TableMode::ALL`](azekura_lock::TableMode::ALL).
        mode: u8,
    },
    /// The page is locked.
    Locked {
        /// Name of the question.
        call: u64,
        /// `true` if the page has no room for one more entry.
        is_full: bool,
    },
    /// Release a page.
    Release {
        /// For which request.
        id: RequestId,
        /// The page.
        page: PageNo,
    },
    /// Change a locked copy of an index page, and release it.
    Apply {
        /// Name of this question at the sender.
        call: u64,
        /// For which request.
        id: RequestId,
        /// The page.
        page: PageNo,
        /// Entries to apply.
        route_entries: Vec<RouteEntry>,
    },
}
