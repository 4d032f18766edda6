//! Repair: what happens after opening, before the first write.
//!
//! 1. Read every slot; of each page, find the newest copy that counts (DW-4, DW-5).
//! 2. Read the page's place. Damaged: write the copy there. Intact: the image is older than the copy, and the
//!    log brings it forward; or the copy's; or newer, and then a sync had covered it before its slot was used
//!    again. Write the very same bytes once more: a failed sync of an earlier process may have lost them
//!    behind the page cache.
//! 3. Sync the page file. Only now may slots be written (DW-6).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use azekura_base::page::image;
use azekura_base::{PageBuf, PageId};

use super::PageFile;
use super::area::SlotHead;
use crate::store::{StoreError, stored_checksum};

/// The newest copy of a page.
#[derive(Debug)]
struct Copy {
    sequence: u64,
    slot: usize,
    /// Where in the slot.
    at: usize,
}

/// What the area holds.
#[derive(Debug, Default)]
struct Copies {
    slots: Vec<PageBuf>,
    newest: BTreeMap<PageId, Copy>,
    /// The largest sequence number, counting slots whose pages did not get to the disk.
    max_sequence: u64,
}

impl PageFile {
    /// Puts the newest copy of a page from the double-write area into each place whose bytes are torn, and
    /// returns these pages, in order. Call it after opening, before reading: until then a torn page reads as
    /// [`StoreError::Corrupt`].
    ///
    /// Reads the area, and the place of each page in it (with the usual area, some 512 pages at most), writes
    /// up to as many, and syncs. The first call that succeeds does it; later ones return nothing. A damaged
    /// page without a copy stays as it is.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`]. After a failed read, call again; after a failed write or sync, reopen. After a
    /// crash in the middle, the next repair finds what this one found.
    pub fn repair(&self) -> Result<Vec<PageId>, StoreError> {
        if self.ledger.is_repaired() {
            return Ok(Vec::new());
        }
        let _repairing = self.repairing.lock();
        if self.ledger.is_repaired() {
            return Ok(Vec::new()); // by another thread
        }
        self.ledger.check()?;
        let copies = self.read_copies()?;
        let mut repaired = Vec::new();
        for (&id, copy) in &copies.newest {
            let page = &copies.slots[copy.slot][copy.at..copy.at + self.page_size()];
            if self.repair_place(id, page)? {
                repaired.push(id);
            }
        }
        self.cover(self.ledger.finished())?;
        self.ledger.set_repaired(copies.max_sequence);
        Ok(repaired)
    }

    fn read_copies(&self) -> Result<Copies, StoreError> {
        let mut copies = Copies::default();
        for (index, place) in self.slots.iter().enumerate() {
            let mut slot = PageBuf::zeroed(self.area.slot_bytes());
            place.read(self.area.slot_offset(index), &mut slot, None)?;
            if let Some(head) = SlotHead::parse(&slot, self.area) {
                copies.add(self, index, &head, &slot);
            }
            copies.slots.push(slot);
        }
        Ok(copies)
    }

    /// Step 2 of the module's head for one page; returns whether its place was damaged.
    fn repair_place(&self, id: PageId, copy: &[u8]) -> Result<bool, StoreError> {
        let mut place = PageBuf::zeroed(self.page_size());
        self.read_unverified(id, &mut place)?;
        let is_damaged = !image::is_intact(&place, id);
        if is_damaged {
            self.write_place(id, copy)?;
        } else if !image::is_zero(&place) {
            self.write_place(id, &place)?;
        }
        Ok(is_damaged)
    }
}

impl Copies {
    /// Takes in what counts of one slot.
    fn add(&mut self, file: &PageFile, slot: usize, head: &SlotHead, bytes: &[u8]) {
        self.max_sequence = self.max_sequence.max(head.sequence);
        for (index, &(id, checksum)) in head.pages.iter().enumerate() {
            let at = file.area.page_at(index);
            let page = &bytes[at..at + file.page_size()];
            // DW-4. A page of zeroes is intact, but nobody writes one.
            if stored_checksum(page) != checksum || image::id(page) != id || !image::is_intact(page, id) {
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
