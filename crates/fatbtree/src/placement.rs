//! Placement of index pages on PEs: the three organizations that the paper compares.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::PeId;

/// Placement of the copies of index pages. Each spreads the leaves evenly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Fat-Btree: a PE keeps the index pages above its own leaves.
    #[default]
    FatBtree,
    /// SIB, single index B-tree: PE 0 keeps all index pages, the others none.
    SingleIndex,
    /// CWB, copy whole B-tree: every PE keeps all index pages.
    CopyWhole,
}

impl Placement {
    /// All of them, in the paper's order.
    pub const ALL: [Self; 3] = [Self::SingleIndex, Self::CopyWhole, Self::FatBtree];

    /// The PE that keeps the index of [`Placement::SingleIndex`].
    pub const INDEX_PE: PeId = PeId(0);

    /// Returns `true` if `pe` keeps an index page; `has_leaf_below` tells whether a leaf of its own lies
    /// below that page.
    #[must_use]
    pub fn keeps(self, pe: PeId, has_leaf_below: bool) -> bool {
        match self {
            Self::FatBtree => has_leaf_below,
            Self::SingleIndex => pe == Self::INDEX_PE,
            Self::CopyWhole => true,
        }
    }

    /// Returns `true` if `pe` has an index.
    #[must_use]
    pub fn has_index(self, pe: PeId) -> bool {
        self != Self::SingleIndex || pe == Self::INDEX_PE
    }

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
