//! Leaves, which are authoritative, and route entries, by which other nodes find the leaves.

use serde::{Deserialize, Serialize};

use crate::id::{PageNo, PeId};
use crate::key::{Key, KeyRange};

/// The head of a leaf. The rows of all leaves of a PE are together in its store, in key order.
///
/// - **LEAF-1** (I1) At every moment the ranges of the live leaves partition the keys. A split or a merge is
///   one transaction of one store. A move is decided by one transaction of its source. From the decision
///   until the installation, the staged copy is the live leaf.
/// - **LEAF-2** (I2) The version of a key's leaf grows with every split, merge and move, so at one version a
///   key is in one leaf. Both halves of a split get the old version + 1. A merged leaf gets the larger
///   version of the two + 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeafHead {
    /// Number of the leaf at its PE.
    pub page: PageNo,
    /// Fences of the leaf.
    pub range: KeyRange,
    /// The leaf to the right at the same PE, when this head was written. That leaf may have been removed
    /// since.
    pub right: Option<PageNo>,
    /// Version; grows with every change of structure.
    pub version: u64,
}

impl LeafHead {
    /// Returns the two halves of this leaf, split at `middle`. The right half is the leaf `right`.
    #[must_use]
    pub fn halves(&self, middle: Key, right: PageNo) -> (Self, Self) {
        let version = self.version + 1; // LEAF-2
        let range = KeyRange { low: middle.clone(), high: self.range.high.clone() };
        let upper = Self { page: right, range, right: self.right, version };
        let range = KeyRange { low: self.range.low.clone(), high: Some(middle) };
        (Self { page: self.page, range, right: Some(right), version }, upper)
    }

    /// Returns the route entry of this leaf.
    #[must_use]
    pub fn route_entry(&self, pe: PeId) -> RouteEntry {
        RouteEntry { range: self.range.clone(), pe, page: self.page, version: self.version }
    }
}

/// A statement about a range of keys: at `version`, its keys were in this leaf of that PE.
///
/// An entry stays true (I2), so it may arrive late, twice or never. A newer entry replaces an older one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RouteEntry {
    /// Fences of the leaf at that version.
    pub range: KeyRange,
    /// The node with the leaf.
    pub pe: PeId,
    /// The leaf; the root of the PE's index if only the PE is known.
    pub page: PageNo,
    /// Version of the leaf.
    pub version: u64,
}

/// A row: key and value.
pub type Row = (Vec<u8>, Vec<u8>);

/// Unique number of a move. The incarnation makes it unique over restarts of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MoveId {
    /// The PE that moves the leaf away.
    pub source: PeId,
    /// Number of starts of that node.
    pub incarnation: u64,
    /// Number of the move since that start.
    pub number: u64,
}

/// A leaf that a PE has received, with its rows. The PE owns the leaf only after the source has decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staged {
    /// The move.
    pub id: MoveId,
    /// The leaf as it will be at this PE.
    pub head: LeafHead,
    /// Rows of the leaf.
    pub rows: Vec<Row>,
    /// Route entries of the neighboring leaves, from the source. The receiver adds these before the leaf
    /// (hazard B6).
    pub path: Vec<RouteEntry>,
}
