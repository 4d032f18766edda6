//! Reserves disk space for accepted writes, so that a batch can be written even to a full disk. The
//! double-write area grows with the slots in use. If it cannot grow, a batch is written a few pages at a time
//! through the first slot. The first pages of that slot are allocated before the first page is changed.

use std::io;

use azekura_base::PageId;
use azekura_base::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::PageFile;
use super::area::HEAD_BYTES;
use super::ledger::OwnedSlot;
use crate::store::StoreError;

/// Number of pages for which the first slot of the double-write area has space before a page is changed: this
/// many pages are written at once to a full disk.
const ROOM_PAGES: usize = 8;

/// Returns `true` if there was no space on the disk or in the user's quota, or if the file may not be longer.
pub(super) fn is_full(error: &StoreError) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error, StoreError::Io { source, .. }
        if matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge))
}

impl PageFile {
    /// Takes a slot; returns it with the number of pages for which it has space: `count`, or fewer if the
    /// disk is full.
    pub(super) fn take_slot(&self, count: usize) -> Result<(OwnedSlot, usize), StoreError> {
        let slot = self.take_any_slot()?;
        let opened = self.slots[slot.index].len();
        match opened.and_then(|_| self.grow_area(slot.index, count)) {
            Ok(()) => Ok((slot, count)),
            Err(error) => {
                self.ledger.finish(slot); // A batch without pages.
                let room = self.first_slot_room().min(count);
                if room == 0 || !is_full(&error) {
                    return Err(error);
                }
                self.take_slot_with_room(room).map(|slot| (slot, room))
            }
        }
    }

    /// Takes a slot with space for `count` pages; the first slot has it.
    pub(super) fn take_slot_with_room(&self, count: usize) -> Result<OwnedSlot, StoreError> {
        loop {
            let slot = self.take_any_slot()?;
            if self.area.slot_offset(slot.index) + self.area.page_at(count) as u64
                <= self.area_len.load(Acquire)
            {
                return Ok(slot);
            }
            self.ledger.finish(slot); // The slot with the oldest batch is next.
        }
    }

    /// Returns the number of pages for which the first slot has space.
    fn first_slot_room(&self) -> usize {
        let end = self.area_len.load(Acquire).min(self.area.slot_offset(1));
        let room = end.saturating_sub(self.area.slot_offset(0) + HEAD_BYTES as u64);
        (room / self.area.page_size as u64) as usize
    }

    /// Extends the area to contain `count` pages in this slot. The area grows without holes, to at most twice
    /// its length if that is more than needed.
    fn grow_area(&self, slot: usize, count: usize) -> Result<(), StoreError> {
        let end = self.area.slot_offset(slot) + self.area.page_at(count) as u64;
        if end <= self.area_len.load(Acquire) {
            return Ok(());
        }
        let _growing = self.growing.lock();
        let len = self.area_len.load(Relaxed); // Relaxed: changed only under the lock
        if end <= len {
            return Ok(());
        }
        self.ledger.check()?;
        // The missing part of the head's block is written as zeroes: it contains no data.
        let from = len.max(1).next_multiple_of(HEAD_BYTES as u64);
        let target = end.max((2 * from).next_multiple_of(HEAD_BYTES as u64)).min(self.area.len());
        let place = &self.slots[0];
        if len <= HEAD_BYTES as u64 {
            // The head may have been created just now, and a crash may lose it: write the same bytes,
            // durably.
            let written = place.file.write_at_sync(0, &self.area.head());
            written.map_err(|e| self.fail(place.error("write the head of", None, 0)(e)))?;
        }
        if let Err(error) = place.file.write_zeroes(from, target - from) {
            return Err(self.unless_full(place.error("make room in", None, from)(error)));
        }
        // Release: pairs with the Acquire loads; a reader of the new value finds the zeroes written.
        self.area_len.store(target, Release);
        Ok(())
    }

    /// Reserves space before the log accepts a change. Afterward the page file contains these pages, and the
    /// area has space for some pages, so that all accepted changes can be written to a full disk.
    pub(super) fn make_room_for(&self, first: PageId, count: u32) -> Result<(), StoreError> {
        self.grow_to_hold(PageId(first.0 + u64::from(count).saturating_sub(1)))?;
        self.fill_holes(first, count)?;
        let count = ROOM_PAGES.min(self.area.shape.pages_per_slot as usize);
        self.grow_area(0, count)
    }
}
