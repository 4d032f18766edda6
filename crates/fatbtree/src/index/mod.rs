//! The index pages of one PE: its route entries to all leaves.
//!
//! Only leaves are authoritative. The index is *soft state*, rebuilt from the leaves' fences and the
//! forwarding table. An outdated index leads to a leaf that was right at some version. From there, right
//! links and newer entries lead to the present leaf. So copies at different PEs need not agree or have the
//! same shape, and no operation waits for a copy (hazards B2, B4).
//!
//! | page | entries |
//! |---|---|
//! | level 1 | leaves of any PE; or the root of a PE, if only the owner is known |
//! | above | a page of this PE, directly; or an entry of a pointer page, if other copies must be known |
//!
//! - **INDEX-1** The root covers all keys and never moves; an inner entry covers what its local page covers.
//! - **INDEX-2** (I2) Each route entry in the index was true at its version. Of two entries for a key the
//!   newer one is kept (RANGES-2).
//! - **INDEX-3** Fat-Btree: an entry has a local page below it exactly if a leaf of this PE is below it
//!   (section 2). When the last such leaf moves away, the page is removed. When a leaf arrives, the path to
//!   it is added first (hazard B6).

#[cfg(feature = "baseline-protocols")]
mod build;
mod change;
mod pointers;
mod prune;
#[cfg(test)]
mod tests;
mod verify;

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{LogicalPageId, PageNo, PeId, Pointer};
use crate::key::{KeyRange, Target};
use crate::leaf::RouteEntry;
use crate::placement::Placement;
use crate::ranges::Ranges;

#[cfg(feature = "baseline-protocols")]
pub use build::{BuildOptions, Built, build};
pub use pointers::PageCopy;
pub(crate) use pointers::{PointerEntry, PointerPages};

/// An index page.
#[derive(Clone, Debug)]
pub(crate) struct IndexPage {
    pub(crate) level: u8,
    /// The page to the right at the same PE, at the time of the split. That page may have been removed since.
    pub(crate) right: Option<PageNo>,
    pub(crate) entries: Ranges<LogicalPageId>,
}

/// The index of one PE.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    me: PeId,
    placement: Placement,
    /// Maximum of entries of a page.
    capacity: usize,
    pages: BTreeMap<PageNo, IndexPage>,
    pointers: PointerPages,
    next_page: u64,
}

/// Choice of a copy of a page if this PE has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The copy of the PE that owns the leaf: at most one hop.
    ByRange,
    /// Any copy, selected by this number, as in the paper.
    #[cfg(feature = "baseline-protocols")]
    Any(u64),
}

/// Result of a descent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// The visited index pages, including pointer pages.
    pub(crate) trail: Vec<PageNo>,
    pub(crate) to: PageCopy,
    /// Version at which that PE owned the target; `None` if the PE was chosen for its copy of an index page.
    pub(crate) owner_at: Option<u64>,
}

/// One step of a descent.
#[cfg(feature = "baseline-protocols")]
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) to: PageCopy,
    /// All copies of the page `to`.
    pub(crate) copies: Vec<PageCopy>,
    pub(crate) is_leaf: bool,
    pub(crate) is_by_pointer: bool,
}

/// Number that stands for all pointer pages in a trail. No page has this number.
pub(crate) const POINTER_PAGE: PageNo = PageNo((1 << 48) - 1);

impl Index {
    /// Creates an index in which `unknown` owns all keys, at version 0.
    pub(crate) fn new(me: PeId, placement: Placement, capacity: usize, unknown: PeId) -> Self {
        let unknown = if placement.has_index(me) { unknown } else { placement.index_of(me) };
        let entries = Ranges::new(KeyRange::all(), 0, LogicalPageId::page(unknown, PageNo::ROOT));
        let root = IndexPage { level: 1, right: None, entries };
        Self {
            me,
            placement,
            capacity,
            pages: BTreeMap::from([(PageNo::ROOT, root)]),
            pointers: PointerPages::default(),
            next_page: 1,
        }
    }

    /// Returns the number of index pages.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Returns the number of levels of index pages.
    pub(crate) fn height(&self) -> u8 {
        self.pages[&PageNo::ROOT].level
    }

    /// Descends from `start`, or from the root if `start` is not on the path to the target.
    pub(crate) fn route(&self, target: &Target, start: PageNo, choice: Choice) -> Route {
        let mut route =
            Route { trail: Vec::new(), to: PageCopy { pe: self.me, page: start }, owner_at: None };
        while route.to.pe == self.me && route.owner_at.is_none() {
            let is_start = |page: &&IndexPage| !target.is_left_of(&page.entries.range().low);
            let page = match self.pages.get(&route.to.page).filter(is_start) {
                Some(page) => page,
                None => {
                    route.to.page = PageNo::ROOT;
                    &self.pages[&PageNo::ROOT]
                }
            };
            route.trail.push(route.to.page);
            if target.is_right_of(page.entries.range().high.as_deref()) {
                // B-link inside this PE. A link to a removed page leads to the root.
                route.to.page = page.right.unwrap_or(PageNo::ROOT);
                continue;
            }
            self.step_down(page, target, choice, &mut route);
        }
        route
    }

    fn step_down(&self, page: &IndexPage, target: &Target, choice: Choice, route: &mut Route) {
        let entry = page.entries.find(target);
        match entry.value.pointer() {
            Pointer::Page(pe, child) => {
                route.to = PageCopy { pe, page: child };
                if page.level == 1 {
                    route.owner_at = Some(entry.version);
                }
            }
            Pointer::Copies { .. } => {
                route.trail.push(POINTER_PAGE);
                let copies = self.pointers.get(entry.value).expect("an entry's pointer is freed with it");
                let holder = copies.holders.find(target);
                match (copies.local, choice) {
                    (Some(local), _) => route.to = PageCopy { pe: self.me, page: local },
                    #[cfg(feature = "baseline-protocols")]
                    (None, Choice::Any(any)) if !copies.copies.is_empty() => {
                        route.to = copies.copies[(any % copies.copies.len() as u64) as usize];
                    }
                    (None, _) => {
                        route.to = holder.value;
                        route.owner_at = Some(holder.version);
                    }
                }
            }
        }
    }

    /// Takes one step down or to the right from a page of this PE. Returns `None` if the page does not exist
    /// or begins beyond the target.
    #[cfg(feature = "baseline-protocols")]
    pub(crate) fn step(&self, page: PageNo, target: &Target, choice: Choice) -> Option<Step> {
        let index_page =
            self.pages.get(&page).filter(|page| !target.is_left_of(&page.entries.range().low))?;
        if target.is_right_of(index_page.entries.range().high.as_deref()) {
            let to = PageCopy { pe: self.me, page: index_page.right? };
            return Some(Step { to, copies: vec![to], is_leaf: false, is_by_pointer: false });
        }
        let mut route = Route { trail: vec![page], to: PageCopy { pe: self.me, page }, owner_at: None };
        self.step_down(index_page, target, choice, &mut route);
        let copies =
            self.pointers.get(index_page.entries.find(target).value).map(|entry| entry.copies.clone());
        Some(Step {
            to: route.to,
            copies: copies.filter(|copies| !copies.is_empty()).unwrap_or_else(|| vec![route.to]),
            is_leaf: index_page.level == 1 && !route.to.page.is_index(),
            is_by_pointer: route.trail.len() > 1,
        })
    }

    /// Returns the newest version in the index.
    pub(crate) fn newest_version(&self) -> u64 {
        let pages = self.pages.values().flat_map(|page| page.entries.pieces()).map(|piece| piece.version);
        pages.chain(self.pointers.versions()).max().unwrap_or(0)
    }

    /// Returns `true` if a page has no space for one more entry.
    #[cfg(feature = "baseline-protocols")]
    pub(crate) fn is_full(&self, page: PageNo) -> bool {
        self.pages.get(&page).is_some_and(|page| page.entries.pieces().len() >= self.capacity)
    }

    /// Returns the entries of the level 1 page above a key.
    pub(crate) fn around(&self, target: &Target) -> Vec<RouteEntry> {
        let Some(page) = self.level_one(target) else { return Vec::new() };
        let route_entry = |(range, piece): (KeyRange, &crate::ranges::Piece<LogicalPageId>)| {
            let Pointer::Page(pe, page) = piece.value.pointer() else { return None };
            Some(RouteEntry { range, pe, page, version: piece.version })
        };
        self.pages[&page].entries.iter().filter_map(route_entry).collect()
    }

    /// Returns the PEs that keep a copy of the index page above the leaf of `target`, as far as known: the
    /// PEs with leaves below that page.
    pub(crate) fn sharers(&self, target: &Target) -> BTreeSet<PeId> {
        self.around(target)
            .into_iter()
            .map(|route_entry| route_entry.pe)
            .filter(|pe| *pe != self.me)
            .collect()
    }

    /// Returns the local level 1 page on the path to `target`.
    pub(crate) fn level_one(&self, target: &Target) -> Option<PageNo> {
        self.path(target).last().copied().filter(|page| self.pages[page].level == 1)
    }

    /// Returns the local pages on the path to `target`, from the root.
    fn path(&self, target: &Target) -> Vec<PageNo> {
        let mut path = vec![PageNo::ROOT];
        loop {
            let page = &self.pages[&path[path.len() - 1]];
            if page.level == 1 {
                return path;
            }
            match self.local_child(page.entries.find(target).value) {
                Some(child) => path.push(child),
                None => return path,
            }
        }
    }

    /// Returns the local page of an entry above level 1.
    fn local_child(&self, id: LogicalPageId) -> Option<PageNo> {
        match id.pointer() {
            Pointer::Page(_, page) => Some(page),
            Pointer::Copies { .. } => self.pointers.get(id).and_then(|entry| entry.local),
        }
    }
}
