//! Removal of pages that have no leaf of this PE below them (INDEX-3, hazard B6).

use crate::id::{LogicalPageId, PageNo, Pointer};
use crate::index::change::map;
use crate::index::{Index, PageCopy, PointerEntry};
use crate::key::{KeyRange, Target};
use crate::ranges::Ranges;

impl Index {
    /// Replaces the last page of a path by a pointer to the PEs that keep it. Does the same for each page
    /// above that has no local page any more.
    pub(super) fn prune(&mut self, mut path: Vec<PageNo>) {
        while path.len() > 1 {
            self.prune_one(&path);
            path.pop();
            let Some(page) = path.last() else { return };
            let has_local = |id: LogicalPageId| self.local_child(id).is_some();
            if self.pages[page].entries.pieces().iter().any(|piece| has_local(piece.value)) {
                return;
            }
        }
    }

    pub(super) fn prune_one(&mut self, path: &[PageNo]) {
        let [.., parent, page] = *path else { return };
        let Some(gone) = self.pages.remove(&page) else { return };
        let holders = if gone.level == 1 {
            map(&gone.entries, |id| owner(*id))
        } else {
            self.holders_below(&gone.entries)
        };
        let range = gone.entries.range().clone();
        let mut copies: Vec<_> = holders.pieces().iter().map(|piece| piece.value).collect();
        copies.sort_unstable();
        copies.dedup();
        let target = Target::At(range.low.clone());
        let old = self.pages[&parent].entries.find(&target).value;
        self.pointers.remove(old);
        let id = self.pointers.add(PointerEntry { local: None, holders, copies });
        self.entries_mut(parent).replace(&range, 0, &id);
    }

    /// Returns the owners of the keys below entries that all lead to other nodes.
    fn holders_below(&mut self, entries: &Ranges<LogicalPageId>) -> Ranges<PageCopy> {
        let mut all: Option<Ranges<PageCopy>> = None;
        for piece in entries.pieces() {
            let Some(entry) = self.pointers.remove(piece.value) else { continue };
            match &mut all {
                None => all = Some(entry.holders),
                Some(all) => all.append(entry.holders),
            }
        }
        all.unwrap_or_else(|| {
            let range: KeyRange = entries.range().clone();
            Ranges::new(range, 0, PageCopy { pe: self.me, page: PageNo::ROOT })
        })
    }
}

fn owner(id: LogicalPageId) -> PageCopy {
    match id.pointer() {
        Pointer::Page(pe, _) => PageCopy { pe, page: PageNo::ROOT },
        Pointer::Copies { .. } => unreachable!("level 1 pages point at leaves"),
    }
}
