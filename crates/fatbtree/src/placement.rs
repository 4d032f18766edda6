//! Placement of index pages on PEs: the Fat-Btree, and the paper's two other placements for the evaluation.

use serde::{Deserialize, Serialize};

use crate::id::PeId;

/// Placement of the copies of index pages. All placements distribute the leaves evenly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Fat-Btree: a PE keeps the index pages above its own leaves.
    #[default]
    FatBtree,
    /// SIB, single index B-tree: PE 0 keeps all index pages, the other PEs none.
    #[cfg(feature = "baseline-protocols")]
    SingleIndex,
    /// CWB, copy whole B-tree: every PE keeps all index pages.
    #[cfg(feature = "baseline-protocols")]
    CopyWhole,
}

impl Placement {
    /// Returns `true` if `pe` keeps an index page. `has_leaf_below` is `true` if a leaf of this PE lies below
    /// that page.
    #[cfg_attr(not(feature = "baseline-protocols"), expect(unused_variables, reason = "others use them"))]
    pub(crate) fn keeps(self, pe: PeId, has_leaf_below: bool) -> bool {
        match self {
            Self::FatBtree => has_leaf_below,
            #[cfg(feature = "baseline-protocols")]
            Self::SingleIndex => pe == Self::INDEX_PE,
            #[cfg(feature = "baseline-protocols")]
            Self::CopyWhole => true,
        }
    }

    /// Returns the PE with the index that `pe` uses, usually `pe` itself.
    pub(crate) fn index_of(self, pe: PeId) -> PeId {
        #[cfg(feature = "baseline-protocols")]
        if self == Self::SingleIndex {
            return Self::INDEX_PE;
        }
        pe
    }

    /// Returns `true` if `pe` has an index.
    pub(crate) fn has_index(self, pe: PeId) -> bool {
        self.index_of(pe) == pe
    }
}
