//! Leaves, which are authoritative, and route entries, by which other nodes find them.

use serde::{Deserialize, Serialize};

use crate::id::{PageNo, PeId};
use crate::key::{Key, KeyRange};

/// The head of a leaf. Its rows are in its PE's store, in key order with those of all other leaves there.
///
/// - **LEAF-1** (I1) At every moment the live leaves' ranges partition the keys. A split and a merge are one
///   transaction of one store. A move is decided by one transaction of its source; from there until it is
///   installed, the staged copy is the live leaf.
/// - **LEAF-2** (I2) The version of the leaf that a key belongs to grows with every split, merge and move, so
///   that at one version a key is in one leaf. Both halves of a split get the whole's version + 1; what was
///   merged the larger one's + 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeafHead {
    /// Its number at its PE.
    pub page: PageNo,
    /// Its fences.
    pub range: KeyRange,
    /// The leaf that was to the right of it, at the same PE. It may be removed since.
    pub right: Option<PageNo>,
    /// Grows with every change of structure.
    pub version: u64,
}

impl LeafHead {
    /// Its halves, cut at `middle`; the right one is the leaf `right`.
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

/// At `version`, the keys of `range` were in this leaf of that PE.
///
/// An entry stays true (I2), so it may arrive late, twice or never. A newer entry replaces it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RouteEntry {
    /// Fences, then.
    pub range: KeyRange,
    /// The node with the leaf.
    pub pe: PeId,
    /// The leaf; the root of that PE's index if only the PE is known.
    pub page: PageNo,
    /// Version of the leaf at that time.
    pub version: u64,
}

/// A row: key and value.
pub type Row = (Vec<u8>, Vec<u8>);

/// Name of a move: unique, for its first half is how often the source was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MoveId {
    /// The PE that gives the leaf.
    pub source: PeId,
    /// Number of starts of that node.
    pub incarnation: u64,
    /// The number of the move since then.
    pub number: u64,
}

/// A leaf that came to a PE, with its rows. It is not owned before the source has decided so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staged {
    /// The move.
    pub id: MoveId,
    /// The leaf as it will be here.
    pub head: LeafHead,
    /// Its rows.
    pub rows: Vec<Row>,
    /// The source's knowledge of the neighboring leaves: the path comes before the leaf (hazard B6).
    pub path: Vec<RouteEntry>,
}
