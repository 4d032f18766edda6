//! In-memory state of a node. A restart recovers it from the store, or starts without it.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::id::{PageNo, PeId};
use crate::index::{Index, PageCopy};
use crate::key::{Key, KeyRange, Target};
use crate::leaf::{LeafHead, MoveId, RouteEntry, Staged};
#[cfg(feature = "baseline-protocols")]
use crate::lock_service::Held;
#[cfg(feature = "baseline-protocols")]
use crate::message::RequestId;
use crate::node::client_request::Reply;
use crate::options::Options;
use crate::ranges::Ranges;
use crate::store::{Founding, Recovered, Weight};
use crate::world::Slot;

/// Size of a leaf: counted, or estimated since the last count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    pub(super) rows: usize,
    pub(super) bytes: usize,
}

impl Load {
    pub(super) fn halves(self) -> (Self, Self) {
        let half = Self { rows: self.rows / 2, bytes: self.bytes / 2 };
        (half, Self { rows: self.rows - half.rows, bytes: self.bytes - half.bytes })
    }

    pub(super) fn is_more_than(self, options: &Options) -> bool {
        self.rows > options.leaf_rows || self.bytes > options.leaf_bytes
    }

    /// Returns `true` for the size of a merged leaf, or of one of its parts, if the leaves stay separate.
    pub(super) fn is_too_full_to_merge(self, options: &Options) -> bool {
        self.rows > options.leaf_rows * 3 / 4 || self.bytes > options.leaf_bytes * 3 / 4
    }

    pub(super) fn without(self, part: Self) -> Self {
        let (rows, bytes) = (self.rows.saturating_sub(part.rows), self.bytes.saturating_sub(part.bytes));
        Self { rows, bytes }
    }
}

impl From<&Weight> for Load {
    fn from(weight: &Weight) -> Self {
        Self { rows: weight.rows, bytes: weight.bytes }
    }
}

pub(super) struct State {
    pub(super) incarnation: u64,
    next_number: u64,
    next_page: u64,
    pub(super) leaves: BTreeMap<PageNo, LeafHead>,
    /// The leaves by their first keys, in key order.
    by_low: BTreeMap<Key, PageNo>,
    /// Sizes of the leaves that were counted.
    pub(super) loads: BTreeMap<PageNo, Load>,
    pub(super) index: Index,
    /// Nodes that received keys of this PE, with the newest entry for each key; durable.
    pub(super) forwarding: Ranges<PageCopy>,
    pub(super) staged: BTreeMap<MoveId, Staged>,
    pub(super) decided: BTreeMap<MoveId, PeId>,
    /// Moves of this PE that are not decided. A restart aborts them, because they are not stored.
    pub(super) moving: BTreeMap<MoveId, Rc<Slot<Option<PageNo>>>>,
    /// Locks that requests hold here in the paper's protocols.
    #[cfg(feature = "baseline-protocols")]
    pub(super) held: BTreeMap<(RequestId, PageNo), Held>,
    /// Calls to other nodes in the paper's protocols.
    #[cfg(feature = "baseline-protocols")]
    pub(super) calls: BTreeMap<u64, Rc<Slot<bool>>>,
    /// Unanswered requests of this node's clients.
    pub(super) waiting: BTreeMap<u64, Waiting>,
    /// Names of the other nodes' stores; durable.
    pub(super) met: BTreeMap<PeId, u64>,
}

/// A request of a client of this node.
pub(super) struct Waiting {
    /// Receives the answer; `None` if no answer may ever come.
    pub(super) slot: Rc<Slot<Option<Reply>>>,
    /// The node to which the request was forwarded.
    pub(super) sent_to: Option<PeId>,
}

impl State {
    pub(super) fn recover(
        founding: &Founding,
        options: &Options,
        recovered: Recovered,
        built: Option<Index>,
    ) -> Self {
        let me = founding.pe;
        let mut index =
            built.unwrap_or_else(|| Index::new(me, options.placement(), options.index_entries, me));
        let mut forwarding = Ranges::new(KeyRange::all(), 0, PageCopy { pe: me, page: PageNo::ROOT });
        // The other nodes' key ranges when the cluster was created.
        for (range, pe) in founding.ranges().filter(|(_, pe)| *pe != me) {
            forwarding.learn(&range, 1, &PageCopy { pe, page: PageNo::ROOT });
        }
        for route_entry in &recovered.forwarding {
            forwarding.learn(
                &route_entry.range,
                route_entry.version,
                &PageCopy { pe: route_entry.pe, page: route_entry.page },
            );
        }
        for route_entry in route_entries(&forwarding).filter(|route_entry| route_entry.pe != me) {
            index.learn(&route_entry);
        }
        for head in &recovered.heads {
            index.learn(&head.route_entry(me));
        }
        let by_low = recovered.heads.iter().map(|head| (head.range.low.clone(), head.page)).collect();
        Self {
            // The name of the store is added, so that a new store does not reuse the numbers of the previous
            // one.
            incarnation: recovered.incarnation.wrapping_add(recovered.birth),
            by_low,
            next_number: 0,
            next_page: recovered.next_page,
            leaves: recovered.heads.into_iter().map(|head| (head.page, head)).collect(),
            loads: BTreeMap::new(),
            index,
            forwarding,
            staged: recovered.staged.into_iter().map(|staged| (staged.id, staged)).collect(),
            decided: recovered.decided.into_iter().collect(),
            moving: BTreeMap::new(),
            #[cfg(feature = "baseline-protocols")]
            held: BTreeMap::new(),
            #[cfg(feature = "baseline-protocols")]
            calls: BTreeMap::new(),
            waiting: BTreeMap::new(),
            met: recovered.met.into_iter().collect(),
        }
    }

    /// Returns a number for a request or a move.
    pub(super) fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Returns a number for a leaf that no leaf here has had.
    pub(super) fn next_page(&mut self) -> PageNo {
        let page = PageNo::leaf(self.next_page).expect("2^47 leaves in the life of a store");
        self.next_page += 1;
        page
    }

    /// Returns the node that decides whether the leaf of the target, which is staged, is installed here or
    /// dropped. Returns `None` if the leaf is not staged.
    pub(super) fn source_of_staged(&self, target: &Target) -> Option<PeId> {
        self.staged.values().find(|staged| target.is_in(&staged.head.range)).map(|staged| staged.id.source)
    }

    /// Adds a leaf to memory, and its route entry to the index.
    pub(super) fn put_leaf(&mut self, me: PeId, head: LeafHead) {
        self.index.learn(&head.route_entry(me));
        self.put_leaf_only(head);
    }

    /// Adds a leaf to memory. The caller updates the index.
    pub(super) fn put_leaf_only(&mut self, head: LeafHead) {
        self.by_low.insert(head.range.low.clone(), head.page);
        self.leaves.insert(head.page, head);
    }

    /// Removes a leaf from memory.
    pub(super) fn remove_leaf(&mut self, page: PageNo) {
        if let Some(head) = self.leaves.remove(&page) {
            self.by_low.remove(&head.range.low);
        }
        self.loads.remove(&page);
    }

    /// Returns the leaf of the target at this PE, independent of the index. So in SIB the other PEs need no
    /// index. Also used to find neighbors.
    pub(super) fn own_leaf(&self, target: &Target) -> Option<&LeafHead> {
        let (_, page) = match target {
            Target::At(key) => self.by_low.range::<Key, _>(..=key).next_back(),
            Target::Before(Some(key)) if !key.is_empty() => self.by_low.range::<Key, _>(..key).next_back(),
            Target::Before(Some(_)) => self.by_low.first_key_value(),
            Target::Before(None) => self.by_low.last_key_value(),
        }?;
        self.leaves.get(page).filter(|leaf| target.is_in(&leaf.range))
    }

    /// Returns the leaves of this PE with keys of `range`. The first one may be returned twice.
    fn overlapping<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = &'a LeafHead> {
        let first = self.own_leaf(&Target::At(range.low.clone()));
        let others = self.by_low.range(range.low.clone()..).map(|(_, page)| page);
        let others = others.filter_map(|page| self.leaves.get(page));
        first.into_iter().chain(others.take_while(|leaf| range.contains(&leaf.range.low)))
    }

    /// Returns a leaf of this PE with keys that are in another leaf at a newer version (STORE-5).
    pub(super) fn outdated_by(&self, newer: &RouteEntry) -> Option<LeafHead> {
        self.overlapping(&newer.range).find(|leaf| leaf.version < newer.version).cloned()
    }

    /// Returns `true` if this store, with `withheld` leaves, is from before a move of keys to this PE: for
    /// one of the keys it knows only older versions, of moves away, leaves and staged leaves (STORE-6,
    /// STORE-7).
    pub(super) fn lacks_arrival(&self, moved: &RouteEntry, withheld: &[LeafHead]) -> bool {
        let mut known = Ranges::new(moved.range.clone(), 0, ());
        let first = self.forwarding.place(&Target::At(moved.range.low.clone()));
        for (place, piece) in self.forwarding.pieces().iter().enumerate().skip(first) {
            let range = self.forwarding.piece_range(place);
            if !range.overlaps(&moved.range) {
                break;
            }
            known.learn(&range, piece.version, &());
        }
        for leaf in self.overlapping(&moved.range).chain(withheld) {
            known.learn(&leaf.range, leaf.version, &());
        }
        for Staged { head, .. } in self.staged.values() {
            known.learn(&head.range, head.version + 1, &());
        }
        known.pieces().iter().any(|piece| piece.version < moved.version)
    }

    /// Records the new owner of keys. An entry about this PE is not added to the index, which has this PE's
    /// leaves.
    pub(super) fn give(&mut self, me: PeId, route_entry: &RouteEntry) {
        self.forwarding.learn(
            &route_entry.range,
            route_entry.version,
            &PageCopy { pe: route_entry.pe, page: route_entry.page },
        );
        if route_entry.pe != me {
            self.index.learn(route_entry);
        }
    }

    /// Returns the range and the entries that the store has to replace when these entries are added: all
    /// pieces that change, and the pieces between them.
    pub(super) fn forwarding_with(&self, new_entries: &[RouteEntry]) -> (KeyRange, Vec<RouteEntry>) {
        let mut forwarding = self.forwarding.clone();
        for route_entry in new_entries {
            forwarding.learn(
                &route_entry.range,
                route_entry.version,
                &PageCopy { pe: route_entry.pe, page: route_entry.page },
            );
        }
        let changed = hull(new_entries);
        // Selects all pieces that touch the range, completely: splitting or merging pieces has also changed
        // their neighbors.
        let touches = |range: &KeyRange| {
            range.overlaps(&changed)
                || range.high.as_ref() == Some(&changed.low)
                || changed.high.as_ref() == Some(&range.low)
        };
        let pieces: Vec<_> = route_entries(&forwarding).filter(|piece| touches(&piece.range)).collect();
        let range = match (pieces.first(), pieces.last()) {
            (Some(first), Some(last)) => {
                KeyRange { low: first.range.low.clone(), high: last.range.high.clone() }
            }
            _ => changed.clone(),
        };
        (range, pieces)
    }
}

/// Returns the range from the first key of these route entries to their end.
fn hull(route_entries: &[RouteEntry]) -> KeyRange {
    let low = route_entries.iter().map(|route_entry| route_entry.range.low.clone()).min().unwrap_or_default();
    let is_open = route_entries.iter().any(|route_entry| route_entry.range.high.is_none());
    let high = route_entries
        .iter()
        .filter_map(|route_entry| route_entry.range.high.clone())
        .max()
        .filter(|_| !is_open);
    KeyRange { low, high }
}

/// Returns the pieces as route entries.
pub(super) fn route_entries(forwarding: &Ranges<PageCopy>) -> impl Iterator<Item = RouteEntry> {
    forwarding.iter().map(|(range, piece)| RouteEntry {
        range,
        pe: piece.value.pe,
        page: piece.value.page,
        version: piece.version,
    })
}
