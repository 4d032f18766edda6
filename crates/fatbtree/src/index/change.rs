//! Adds route entries, and splits full index pages.
//!
//! A change is made without a suspension point at which another task could run. So a local descent from the
//! root never sees a partial change. Right links serve requests that another PE has sent to a page.

use crate::id::{LogicalPageId, PageNo, Pointer};
use crate::index::{Index, IndexPage, PageCopy, PointerEntry};
use crate::key::{Key, KeyRange, Target};
use crate::leaf::RouteEntry;
use crate::ranges::{Piece, Ranges};

impl Index {
    /// Adds a route entry. Returns `true` if the entry was new for some key.
    pub(crate) fn learn(&mut self, route_entry: &RouteEntry) -> bool {
        if !self.placement.has_index(self.me) {
            return false;
        }
        let mut is_new = false;
        let mut at = Some(route_entry.range.low.clone());
        while let Some(low) = &at {
            let target = Target::At(low.clone());
            let path = self.path(&target);
            let page = path[path.len() - 1];
            let (learned, high) = if self.pages[&page].level == 1 {
                self.learn_at(page, route_entry)
            } else if self.placement.keeps(self.me, route_entry.pe == self.me) {
                // The path is added before the leaf (B6); the loop continues below it.
                self.make_local(page, &target);
                continue;
            } else {
                self.learn_elsewhere(page, &target, route_entry)
            };
            is_new |= learned;
            if learned && self.pages.get(&page).is_some_and(|page| page.level == 1) {
                self.fit(path);
            }
            at = high.filter(|high| route_entry.range.contains(high));
        }
        is_new
    }

    fn learn_at(&mut self, page: PageNo, route_entry: &RouteEntry) -> (bool, Option<Key>) {
        let entries = &mut self.pages.get_mut(&page).expect("on a path").entries;
        let leaf = LogicalPageId::page(route_entry.pe, route_entry.page);
        (entries.learn(&route_entry.range, route_entry.version, &leaf), entries.range().high.clone())
    }

    /// Records the owner of keys for which this PE keeps no index page.
    fn learn_elsewhere(
        &mut self,
        page: PageNo,
        target: &Target,
        route_entry: &RouteEntry,
    ) -> (bool, Option<Key>) {
        let id = self.pages[&page].entries.find(target).value;
        let entry = self.pointers.get_mut(id).expect("no local page: the entry is a pointer");
        let high = entry.holders.range().high.clone();
        // This node's own leaves are authoritative, so only entries of other owners are new.
        let range = route_entry.range.intersection(entry.holders.range());
        let is_known = entry
            .holders
            .iter()
            .filter(|(piece, _)| piece.overlaps(&range))
            .all(|(_, piece)| piece.value.pe == route_entry.pe);
        if is_known {
            return (false, high);
        }
        let copy = PageCopy { pe: route_entry.pe, page: PageNo::ROOT };
        if !entry.copies.contains(&copy) && !entry.copies.iter().any(|copy| copy.pe == route_entry.pe) {
            entry.copies.push(copy);
            entry.copies.sort_unstable();
        }
        (entry.holders.learn(&range, route_entry.version, &copy), high)
    }

    /// Replaces a pointer to a remote page by a local page.
    fn make_local(&mut self, parent: PageNo, target: &Target) {
        let level = self.pages[&parent].level - 1;
        let place = self.pages[&parent].entries.place(target);
        let id = self.pages[&parent].entries.pieces()[place].value;
        let entry = self.pointers.remove(id).expect("no local page: the entry is a pointer");
        let range = entry.holders.range().clone();
        let entries = if level == 1 {
            map(&entry.holders, |copy| LogicalPageId::page(copy.pe, PageNo::ROOT))
        } else {
            let below = self.pointers.add(PointerEntry { local: None, ..entry });
            Ranges::new(range.clone(), 0, below)
        };
        let page = self.add_page(IndexPage { level, right: None, entries });
        let id = LogicalPageId::page(self.me, page);
        self.entries_mut(parent).replace(&range, 0, &id);
    }

    /// Splits the last page of a path if it is too full, and the pages above it if they become too full.
    /// Removes the last page if this PE need not keep it any more.
    fn fit(&mut self, mut path: Vec<PageNo>) {
        let Some(page) = path.last().copied() else { return };
        if self.is_unneeded(page) {
            self.prune(path);
            return;
        }
        while let Some(page) = path.pop() {
            if self.pages[&page].entries.pieces().len() <= self.capacity {
                return;
            }
            match path.last() {
                Some(&parent) => self.split(page, parent),
                None => {
                    let child = self.grow();
                    self.split(child, PageNo::ROOT);
                }
            }
        }
    }

    /// Adds a level between the root and its entries. The root keeps its number.
    fn grow(&mut self) -> PageNo {
        let old = self.pages[&PageNo::ROOT].clone();
        let level = old.level + 1;
        let child = self.add_page(old);
        let entries = Ranges::new(KeyRange::all(), 0, LogicalPageId::page(self.me, child));
        self.pages.insert(PageNo::ROOT, IndexPage { level, right: None, entries });
        child
    }

    fn split(&mut self, page: PageNo, parent: PageNo) {
        let left = self.pages.get_mut(&page).expect("on a path");
        let middle = left.entries.pieces()[left.entries.pieces().len() / 2].low.clone();
        let right =
            IndexPage { level: left.level, right: left.right, entries: left.entries.split_off(&middle) };
        let (level, range) = (right.level, right.entries.range().clone());
        let right_page = self.add_page(right);
        self.pages.get_mut(&page).expect("on a path").right = Some(right_page);
        let id = self.split_pointer(parent, &middle, right_page);
        self.entries_mut(parent).replace(&range, 0, &id);
        if level == 1 {
            // One half may have no leaf of this PE now. A pointer replaces that half, so the number of the
            // parent's entries stays the same.
            for half in [Target::At(middle), self.before(&range.low)] {
                let path = self.path(&half);
                if path.last().is_some_and(|page| self.is_unneeded(*page)) {
                    self.prune_one(&path);
                }
            }
        }
    }

    fn before(&self, low: &[u8]) -> Target {
        Target::Before(Some(low.to_vec()))
    }

    /// Returns the pointer to the right half of a split page. If the left half has copies, the pointer lists
    /// their PEs too, because they will split the page as well.
    fn split_pointer(&mut self, parent: PageNo, middle: &[u8], right: PageNo) -> LogicalPageId {
        let id = self.pages[&parent].entries.find(&Target::At(middle.to_vec())).value;
        let Some(entry) = self.pointers.get_mut(id) else { return LogicalPageId::page(self.me, right) };
        let holders = entry.holders.split_off(middle);
        let holders = map(&holders, |copy| PageCopy { pe: copy.pe, page: PageNo::ROOT });
        let copies = entry.copies.iter().map(|copy| PageCopy { page: PageNo::ROOT, ..*copy }).collect();
        self.pointers.add(PointerEntry { local: Some(right), holders, copies })
    }

    pub(super) fn add_page(&mut self, page: IndexPage) -> PageNo {
        let number = PageNo::index(self.next_page).expect("2^47 index pages since the start");
        self.next_page += 1;
        self.pages.insert(number, page);
        number
    }

    pub(super) fn entries_mut(&mut self, page: PageNo) -> &mut Ranges<LogicalPageId> {
        &mut self.pages.get_mut(&page).expect("on a path").entries
    }

    /// Returns `true` if this PE does not keep the page under its placement.
    fn is_unneeded(&self, page: PageNo) -> bool {
        let index_page = &self.pages[&page];
        page != PageNo::ROOT && index_page.level == 1 && {
            let is_own = |piece: &Piece<LogicalPageId>| match piece.value.pointer() {
                Pointer::Page(pe, page) => pe == self.me && page != PageNo::ROOT,
                _ => false,
            };
            !self.placement.keeps(self.me, index_page.entries.pieces().iter().any(is_own))
        }
    }
}

/// Returns a map with the same ranges and versions, and other values.
pub(super) fn map<T, U>(ranges: &Ranges<T>, value: impl Fn(&T) -> U) -> Ranges<U>
where
    T: Clone + PartialEq,
    U: Clone + PartialEq,
{
    let first = &ranges.pieces()[0];
    let mut mapped = Ranges::new(ranges.range().clone(), first.version, value(&first.value));
    for (range, piece) in ranges.iter().skip(1) {
        mapped.replace(&range, piece.version, &value(&piece.value));
    }
    mapped
}
