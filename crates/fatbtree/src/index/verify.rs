//! Checks of all invariants of an index.

use std::collections::BTreeSet;

use crate::id::{PageNo, PeId, Pointer};
use crate::index::Index;
use crate::key::KeyRange;
use crate::leaf::LeafHead;

impl Index {
    /// Returns the violated invariants of the index, given the leaves of its PE. The result is empty unless
    /// the program has a bug.
    pub(crate) fn verify(&self, leaves: &[LeafHead]) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut seen = BTreeSet::new();
        self.verify_page(PageNo::ROOT, &KeyRange::all(), self.height(), &mut seen, &mut wrong);
        for page in self.pages.keys().filter(|page| !seen.contains(page)) {
            wrong.push(format!("no path of the index leads to {page}"));
        }
        if self.placement.has_index(self.me) {
            wrong.extend(leaves.iter().filter_map(|leaf| self.verify_leaf(leaf)));
        }
        wrong
    }

    fn verify_leaf(&self, leaf: &LeafHead) -> Option<String> {
        let around = self.around(&crate::key::Target::At(leaf.range.low.clone()));
        let is_there = around.iter().any(|route_entry| {
            (route_entry.pe, route_entry.page, route_entry.version) == (self.me, leaf.page, leaf.version)
                && route_entry.range.low == leaf.range.low
        });
        (!is_there).then(|| format!("{leaf:?} is not in the index"))
    }

    fn verify_page(
        &self,
        page: PageNo,
        range: &KeyRange,
        level: u8,
        seen: &mut BTreeSet<PageNo>,
        wrong: &mut Vec<String>,
    ) {
        let Some(index_page) = self.pages.get(&page) else {
            wrong.push(format!("{page} is not there"));
            return;
        };
        if !seen.insert(page) || index_page.level != level || index_page.entries.range() != range {
            wrong.push(format!("{page}: level {} over {:?}", index_page.level, index_page.entries.range()));
            return;
        }
        if level == 1 {
            let own = |pe: PeId, page: PageNo| pe == self.me && !page.is_index();
            let pieces = index_page.entries.pieces();
            let has_own = pieces
                .iter()
                .any(|piece| matches!(piece.value.pointer(), Pointer::Page(pe, page) if own(pe, page)));
            if page != PageNo::ROOT && !self.placement.keeps(self.me, has_own) {
                wrong.push(format!("{page} is kept without need"));
            }
            return;
        }
        for (range, piece) in index_page.entries.iter() {
            if let Some(entry) = self.pointers.get(piece.value)
                && entry.holders.range() != &range
            {
                wrong.push(format!(
                    "{page}: copies over {:?} in an entry over {range:?}",
                    entry.holders.range()
                ));
            }
            match self.local_child(piece.value) {
                Some(child) => self.verify_page(child, &range, level - 1, seen, wrong),
                None if self.pointers.get(piece.value).is_none() => {
                    wrong.push(format!("{page}: an entry over {range:?} leads nowhere"));
                }
                None => {}
            }
        }
    }
}
