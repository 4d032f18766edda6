//! `NewPages`: pages that the file did not have at the last checkpoint. They are written only to the page
//! file.
//!
//! A page has no older image in the file before its first write, so a torn write loses nothing that a sync
//! covered. The log has the page whole: the record that allocated the page wrote all of it, and a restart
//! redoes that record without reading the page. The pages of some large values are not in the log
//! (`azekura_btree`, UNLOGGED-1). A committed row refers to such a page only after a sync that covers the
//! page and ends the set, so no later write of the page can lose it.
//!
//! - **NEW-1** A page is *new* from its first write until the next [`NewPages::checkpoint`], if the file did
//!   not contain its block when the repair was done. A page of a bulk load, which is not in the log, is not
//!   new.
//! - **NEW-2** Redo begins at or below the record that allocated a new page. Let *k* be the checkpoint that a
//!   restart finds. If the page's first write began after *k* had ended the set, then the page was dirty, or
//!   not allocated yet, when *k* scanned the pages before that. So *k*'s redo LSN is at or below the record.
//!   If the first write began before, then *k* has finished and covered each write of the page while it was
//!   new, and none of them is torn.
//! - **NEW-3** The number of a batch with new pages is drawn while the set is locked, and a checkpoint ends
//!   the set and reads the last number under the same lock. So a batch that the checkpoint does not wait for
//!   has no pages that were new before it.
//!
//! A restart writes pages before it takes its first checkpoint. If the file does not have a page then, no
//! sync ever covered the page. So NEW-2 holds with the checkpoint that the restart has found.

use std::collections::HashMap;

use azekura_base::PageId;
use azekura_base::sync::Mutex;

use super::ledger::Ledger;
use crate::store::StoreError;

const CHUNK_WORDS: usize = 64;
const WORD_PAGES: u64 = u64::BITS as u64;
const CHUNK_PAGES: u64 = CHUNK_WORDS as u64 * WORD_PAGES;

/// A set of pages: one bit per page, in blocks of 512 bytes for 4096 pages.
#[derive(Debug, Default)]
struct PageSet(HashMap<u64, Box<[u64; CHUNK_WORDS]>>);

impl PageSet {
    const fn place(id: PageId) -> (u64, usize, u64) {
        let bit = id.0 % CHUNK_PAGES;
        (id.0 / CHUNK_PAGES, (bit / WORD_PAGES) as usize, 1 << (bit % WORD_PAGES))
    }

    fn contains(&self, id: PageId) -> bool {
        let (chunk, word, bit) = Self::place(id);
        self.0.get(&chunk).is_some_and(|words| words[word] & bit != 0)
    }

    /// Inserts the page; returns `true` if it was not in the set.
    fn insert(&mut self, id: PageId) -> bool {
        let (chunk, word, bit) = Self::place(id);
        let words = self.0.entry(chunk).or_insert_with(|| Box::new([0; CHUNK_WORDS]));
        let was_absent = words[word] & bit == 0;
        words[word] |= bit;
        was_absent
    }
}

#[derive(Debug)]
struct State {
    /// The file has the blocks of all pages below this one; unknown before the repair.
    base: u64,
    /// Pages from `base` on that have been written, or are about to be.
    written: PageSet,
    new: PageSet,
}

impl State {
    /// Records a write; returns `true` for a new page.
    fn writes(&mut self, id: PageId) -> bool {
        if id.0 < self.base {
            return false;
        }
        if self.written.insert(id) {
            self.new.insert(id);
        }
        self.new.contains(id)
    }
}

/// The new pages of a page file; see the module head.
#[derive(Debug)]
pub(super) struct NewPages(Mutex<State>);

/// The new pages of a batch, by their indices.
#[derive(Debug)]
pub(super) struct NewBatch {
    pub(super) sequence: u64,
    pub(super) pages: Vec<usize>,
}

impl NewPages {
    /// Returns an empty set; no page is new before [`NewPages::begin_at`].
    pub(super) fn none() -> Self {
        Self(Mutex::new(State { base: u64::MAX, written: PageSet::default(), new: PageSet::default() }))
    }

    /// Records the end of the repair: the file has the blocks of all pages below `base`.
    pub(super) fn begin_at(&self, base: u64) {
        self.0.lock().base = base;
    }

    /// Begins a batch of the new pages of `order`, if there are any, and removes them from `order`.
    pub(super) fn begin(
        &self,
        order: &mut Vec<usize>,
        id: impl Fn(usize) -> PageId,
        ledger: &Ledger,
    ) -> Result<Option<NewBatch>, StoreError> {
        let mut state = self.0.lock();
        let (pages, others) = order.iter().partition::<Vec<usize>, _>(|&&index| state.writes(id(index)));
        *order = others;
        if pages.is_empty() {
            return Ok(None);
        }
        let sequence = ledger.begin_without_slot()?; // NEW-3
        Ok(Some(NewBatch { sequence, pages }))
    }

    /// Records that these pages, which are not in the log, are about to be written.
    pub(super) fn never(&self, pages: impl Iterator<Item = PageId>) {
        let mut state = self.0.lock();
        for id in pages.filter(|id| id.0 >= state.base).collect::<Vec<_>>() {
            state.written.insert(id);
        }
    }

    /// Empties the set; returns the number of the last batch that has begun.
    pub(super) fn checkpoint(&self, ledger: &Ledger) -> u64 {
        let mut state = self.0.lock();
        state.new = PageSet::default();
        ledger.last_begun() // NEW-3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        let ledger = Ledger::new(1);
        ledger.set_repaired(0);
        ledger
    }

    /// Returns the new pages of `ids`.
    fn new(pages: &NewPages, ids: &[u64], ledger: &Ledger) -> Vec<u64> {
        let mut order: Vec<usize> = (0..ids.len()).collect();
        let batch = pages.begin(&mut order, |index| PageId(ids[index]), ledger).unwrap();
        let found: Vec<u64> = batch.iter().flat_map(|batch| &batch.pages).map(|&index| ids[index]).collect();
        assert_eq!(found.len() + order.len(), ids.len());
        batch.into_iter().for_each(|batch| ledger.finish_without_slot(batch.sequence));
        found
    }

    #[test]
    fn a_page_is_new_from_its_first_write_to_the_next_checkpoint() {
        let (pages, ledger) = (NewPages::none(), ledger());
        assert!(new(&pages, &[7], &ledger).is_empty(), "before the repair");
        pages.begin_at(5);
        assert_eq!(new(&pages, &[4, 5, 6, 1 << 50], &ledger), [5, 6, 1 << 50], "the file has page 4");
        assert_eq!(new(&pages, &[5, 9], &ledger), [5, 9], "again before the checkpoint");
        assert_eq!(pages.checkpoint(&ledger), 2);
        assert_eq!(new(&pages, &[5, 6, 7, 9, 1 << 50], &ledger), [7]);
    }

    #[test]
    fn a_page_of_a_bulk_load_is_not_new_when_it_is_written_again() {
        let (pages, ledger) = (NewPages::none(), ledger());
        pages.begin_at(0);
        pages.never([PageId(3)].into_iter());
        assert_eq!(new(&pages, &[3, 4], &ledger), [4]);
    }
}
