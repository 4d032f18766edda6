//! Repairs the page file after opening, before the first write.
//!
//! 1. Read every slot; for each page, find the newest valid copy (DW-4, DW-5, DW-8). An unreadable slot
//!    counts as empty (DW-9).
//! 2. Read the page in the page file. If it is damaged, empty, unreadable or outdated (`lsn_map`), write the
//!    copy there. The copy may be below the page's bound, too, which is then lowered: redo brings the copy to
//!    the newest state (DW-8). If it is intact, write the same bytes once more: a failed sync of an earlier
//!    process may have lost them below the page cache. An intact image may be older than the copy; then redo
//!    brings it to the newest state. It may be newer; then a sync covered it before its slot was reused.
//! 3. Sync the page file. Slots may be written only after this (DW-6).
//! 4. Create the area again if it is lost: the copies are not needed any more.
//!
//! New pages (`new_pages`) have no copies: redo rebuilds them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use azekura_base::page::image;
use azekura_base::sync::atomic::Ordering::{Relaxed, Release};
use azekura_base::{PageBuf, PageId};

use super::area::{HEAD_BYTES, SlotHead};
use super::{OpenFile, PageFile};
use crate::store::{StoreError, stored_checksum};

/// Number of sequence numbers that are skipped after an opening that could not read all slots: more than any
/// store uses between two checkpoints.
const UNSEEN_SEQUENCES: u64 = 1 << 32;

/// The newest copy of a page.
#[derive(Debug)]
struct Copy {
    sequence: u64,
    slot: usize,
    /// Offset in the slot, in bytes.
    at: usize,
}

/// The content of the area.
#[derive(Debug, Default)]
struct Copies {
    /// The bytes of each slot; empty for a slot without a valid copy.
    slots: Vec<PageBuf>,
    newest: BTreeMap<PageId, Copy>,
    /// The largest sequence number, including slots with pages that did not reach the disk.
    max_sequence: u64,
    has_unreadable: bool,
}

impl PageFile {
    /// Restores each page that is torn, empty or unreadable from its newest copy in the double-write area,
    /// and returns these pages, in order. Copies that the last checkpoint made unnecessary are ignored
    /// (DW-8). Call it after opening, before reading: until then a torn page reads as
    /// [`StoreError::Corrupt`].
    ///
    /// Reads the heads of all slots, the slots of batches after the last checkpoint, and each page in these
    /// slots from the page file (with the default area, about 512 pages at most). Writes up to as many pages,
    /// and syncs. The first successful call repairs; later calls return nothing. A damaged page without a
    /// copy is not changed.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`]: a write or sync failed; reopen. After a crash in the middle, the next repair finds
    /// the same copies.
    pub fn repair(&self) -> Result<Vec<PageId>, StoreError> {
        if self.ledger.is_repaired() {
            return Ok(Vec::new());
        }
        let _repairing = self.repairing.lock();
        if self.ledger.is_repaired() {
            return Ok(Vec::new()); // Repaired by another thread.
        }
        self.ledger.check()?;
        let copies = self.read_copies();
        let mut repaired = Vec::new();
        for (&id, copy) in &copies.newest {
            let page = &copies.slots[copy.slot][copy.at..copy.at + self.page_size()];
            if self.repair_place(id, page)? {
                repaired.push(id);
            }
        }
        self.cover(self.ledger.finished())?;
        if self.is_area_lost {
            let _growing = self.growing.lock();
            // Relaxed: changed only under the lock. Release: as in `grow_area`.
            let made = self.area.make(&self.slots[0], self.area_len.load(Relaxed));
            made.map_err(|error| self.unless_full(error))?;
            self.area_len.fetch_max(HEAD_BYTES as u64, Release);
        }
        self.lsn_map.count_reads();
        self.new_pages.begin_at(self.page_count());
        self.ledger.set_repaired(self.max_sequence(&copies));
        Ok(repaired)
    }

    /// Returns a number that is at least the largest sequence number of the store's batches.
    fn max_sequence(&self, copies: &Copies) -> u64 {
        let seen = copies.max_sequence.max(self.covered).max(self.head.lock().last_finished);
        if copies.has_unreadable { seen + UNSEEN_SEQUENCES } else { seen }
    }

    fn read_copies(&self) -> Copies {
        let mut copies = Copies::default();
        for (index, place) in self.slots.iter().enumerate() {
            let slot = self.read_slot(index, place, &mut copies).unwrap_or_else(|_| {
                copies.has_unreadable = true;
                PageBuf::zeroed(0)
            });
            copies.slots.push(slot);
        }
        copies
    }

    /// Adds the valid copies of one slot; returns its bytes.
    fn read_slot(&self, index: usize, place: &OpenFile, copies: &mut Copies) -> Result<PageBuf, StoreError> {
        let offset = self.area.slot_offset(index);
        let mut head = PageBuf::zeroed(HEAD_BYTES);
        place.read(offset, &mut head, None)?;
        let Some(head) = SlotHead::parse(&head, self.area) else { return Ok(PageBuf::zeroed(0)) };
        copies.max_sequence = copies.max_sequence.max(head.sequence);
        if head.sequence <= self.covered {
            return Ok(PageBuf::zeroed(0)); // DW-8
        }
        let mut slot = PageBuf::zeroed(self.area.page_at(head.pages.len()));
        place.read(offset, &mut slot, None)?;
        copies.add(self, index, &head, &slot);
        Ok(slot)
    }

    /// Performs step 2 of the module head for one page; returns `true` if the page was damaged.
    fn repair_place(&self, id: PageId, copy: &[u8]) -> Result<bool, StoreError> {
        let mut place = PageBuf::zeroed(self.page_size());
        let read = self.read_unverified(id, &mut place);
        let is_intact = read.and_then(|offset| self.verify(id, &place, offset)).is_ok();
        if !is_intact {
            self.lsn_map.lower([(id, image::lsn(copy))].into_iter(), |error| self.unless_full(error))?;
        }
        self.write_place(id, if is_intact { &place } else { copy })?;
        self.has_grown_to_hold(id);
        Ok(!is_intact)
    }

    /// Extends the known length of the file after a write beyond it: a crash had undone the file's growth.
    fn has_grown_to_hold(&self, id: PageId) {
        let _growing = self.growing.lock();
        let end = self.offset(id).map_or(0, |offset| offset + self.page_size() as u64);
        // Release: as in `grow`.
        self.len.fetch_max(end, Release);
    }
}

impl Copies {
    /// Adds the valid copies of one slot.
    fn add(&mut self, file: &PageFile, slot: usize, head: &SlotHead, bytes: &[u8]) {
        for (index, &(id, checksum)) in head.pages.iter().enumerate() {
            let at = file.area.page_at(index);
            let page = &bytes[at..at + file.page_size()];
            // DW-4.
            if stored_checksum(page) != checksum || !image::is_intact(page, id) {
                continue;
            }
            let copy = Copy { sequence: head.sequence, slot, at };
            match self.newest.entry(id) {
                Entry::Vacant(entry) => drop(entry.insert(copy)),
                Entry::Occupied(mut entry) if entry.get().sequence < copy.sequence => {
                    entry.insert(copy);
                }
                Entry::Occupied(_) => {}
            }
        }
    }
}
