//! `Area`: the format of the double-write area.
//!
//! A head of 4096 bytes, then the slots. Numbers are little-endian, CRC is CRC-32C; all other bytes are zero.
//!
//! | bytes of the head | field |
//! |---|---|
//! | 0..8 | `AZKDWHD` and 01 |
//! | 8..12 | CRC over bytes 12..4096 |
//! | 12..16 | page size |
//! | 16..20 | number of slots |
//! | 20..24 | pages that fit a slot, *n* |
//! | 24..32 | database id |
//!
//! Slot *s* begins at 4096 + *s* × (4096 + *n* × page size): a slot head of 4096 bytes, then the pages, in
//! the order in which the head lists them.
//!
//! | bytes of a slot head | field |
//! |---|---|
//! | 0..8 | `AZKDWSL` and 01 |
//! | 8..12 | CRC over bytes 12..4096 |
//! | 12..16 | number of pages, at most *n* |
//! | 16..24 | sequence number of the batch |
//! | 24..32 | database id |
//! | 32 + 16·*i* .. | page id (8 bytes), checksum of page *i* (4), zero (4) |
//!
//! A slot counts as empty if its head does not match its CRC, or is of another store. A page in a slot is
//! valid if it is intact and has the id *and the checksum* in the head's list. The checksum is needed because
//! an incomplete write can leave the new head in front of pages of the previous batch.

use azekura_base::bytes::{u32_at, u64_at};
use azekura_base::page::MIN_PAGE_SIZE;
use azekura_base::{PageBuf, PageId, checksum};

/// Bytes of the area's head, and of each slot's head; also the alignment of all parts of the area.
pub(super) const HEAD_BYTES: usize = MIN_PAGE_SIZE;

const AREA_MAGIC: [u8; 8] = *b"AZKDWHD\x01";
const SLOT_MAGIC: [u8; 8] = *b"AZKDWSL\x01";
const ENTRIES_AT: usize = 32;
const ENTRY_BYTES: usize = 16;
const MAX_SLOTS: u32 = 1024;
/// Exclusive bound of sequence numbers that no store reaches: a head with a larger number is invalid.
const MAX_SEQUENCE: u64 = 1 << 62;
const MAX_PAGES_PER_SLOT: u32 = ((HEAD_BYTES - ENTRIES_AT) / ENTRY_BYTES) as u32;

/// Number and size of the batches that can be in flight at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaShape {
    /// Number of batches that may be written before the page file must be synced; also the number of threads
    /// that may write at once. 1 to 1024.
    pub slots: u32,
    /// Largest number of pages in a batch, 1 to 254; larger batches are split.
    pub pages_per_slot: u32,
}

impl AreaShape {
    /// Returns the default: eight slots of about 1 MiB. Each write of the area waits for the device, so it
    /// should contain many pages.
    #[must_use]
    pub fn for_page_size(page_size: usize) -> Self {
        Self { slots: 8, pages_per_slot: ((1 << 20) / page_size.max(1)).clamp(16, 128) as u32 }
    }

    /// Returns `true` if slot heads can list that many pages, and the number of slots is plausible.
    const fn is_possible(self) -> bool {
        self.slots >= 1
            && self.slots <= MAX_SLOTS
            && self.pages_per_slot >= 1
            && self.pages_per_slot <= MAX_PAGES_PER_SLOT
    }

    /// Returns the nearest valid shape.
    pub(super) fn made_possible(self) -> Self {
        Self {
            slots: self.slots.clamp(1, MAX_SLOTS),
            pages_per_slot: self.pages_per_slot.clamp(1, MAX_PAGES_PER_SLOT),
        }
    }
}

/// The dimensions of the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) shape: AreaShape,
    pub(super) page_size: usize,
    pub(super) database_id: u64,
}

/// A wrong field in the head of a file: its name, the value found, the value expected.
pub(super) type Misfit = (&'static str, u64, u64);

impl Area {
    pub(super) const fn slot_bytes(self) -> usize {
        HEAD_BYTES + self.shape.pages_per_slot as usize * self.page_size
    }

    pub(super) const fn slot_offset(self, slot: usize) -> u64 {
        (HEAD_BYTES + slot * self.slot_bytes()) as u64
    }

    pub(super) const fn len(self) -> u64 {
        self.slot_offset(self.shape.slots as usize)
    }

    /// Returns the area's head.
    pub(super) fn head(self) -> PageBuf {
        let mut head = PageBuf::zeroed(HEAD_BYTES);
        head[12..16].copy_from_slice(&(self.page_size as u32).to_le_bytes());
        head[16..20].copy_from_slice(&self.shape.slots.to_le_bytes());
        head[20..24].copy_from_slice(&self.shape.pages_per_slot.to_le_bytes());
        head[24..32].copy_from_slice(&self.database_id.to_le_bytes());
        seal_head(&mut head, AREA_MAGIC);
        head
    }

    /// Returns the dimensions of an area with this head, for pages of this size.
    pub(super) fn from_head(head: &[u8], page_size: usize) -> Result<Self, Misfit> {
        check_head(head, AREA_MAGIC)?;
        let found = u32_at(head, 12);
        if u64::from(found) != page_size as u64 {
            return Err(("page size", found.into(), page_size as u64));
        }
        let shape = AreaShape { slots: u32_at(head, 16), pages_per_slot: u32_at(head, 20) };
        if !shape.is_possible() {
            let nearest = shape.made_possible();
            return Err(if nearest.slots == shape.slots {
                ("number of pages in a slot", shape.pages_per_slot.into(), nearest.pages_per_slot.into())
            } else {
                ("number of slots", shape.slots.into(), nearest.slots.into())
            });
        }
        Ok(Self { shape, page_size, database_id: u64_at(head, 24) })
    }

    /// Returns the offset of page `index` in a slot.
    pub(super) const fn page_at(self, index: usize) -> usize {
        HEAD_BYTES + index * self.page_size
    }
}

/// Content of a slot's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotHead {
    /// Sequence number of the batch; of two copies of a page, the one with the larger number was written
    /// later.
    pub(super) sequence: u64,
    /// Id and checksum of each page.
    pub(super) pages: Vec<(PageId, u32)>,
}

impl SlotHead {
    /// Writes the head into the first bytes of a slot.
    pub(super) fn write_to(&self, slot: &mut [u8], database_id: u64) {
        let head = &mut slot[..HEAD_BYTES];
        head.fill(0);
        head[12..16].copy_from_slice(&(self.pages.len() as u32).to_le_bytes());
        head[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        head[24..32].copy_from_slice(&database_id.to_le_bytes());
        for (i, (id, checksum)) in self.pages.iter().enumerate() {
            let at = ENTRIES_AT + i * ENTRY_BYTES;
            head[at..at + 8].copy_from_slice(&id.0.to_le_bytes());
            head[at + 8..at + 12].copy_from_slice(&checksum.to_le_bytes());
        }
        seal_head(head, SLOT_MAGIC);
    }

    /// Parses the head in the first bytes of a slot of `area`; returns `None` if the slot counts as empty.
    pub(super) fn parse(head: &[u8], area: Area) -> Option<Self> {
        check_head(head, SLOT_MAGIC).ok()?;
        let (count, sequence) = (u32_at(head, 12), u64_at(head, 16));
        let is_ours = u64_at(head, 24) == area.database_id;
        if !is_ours || count > area.shape.pages_per_slot || sequence > MAX_SEQUENCE {
            return None;
        }
        let entries = (0..count as usize).map(|i| ENTRIES_AT + i * ENTRY_BYTES);
        let pages = entries.map(|at| (PageId(u64_at(head, at)), u32_at(head, at + 8))).collect();
        Some(Self { sequence, pages })
    }
}

pub(super) fn seal_head(head: &mut [u8], magic: [u8; 8]) {
    head[..8].copy_from_slice(&magic);
    let crc = checksum::crc32c(&head[12..HEAD_BYTES]);
    head[8..12].copy_from_slice(&crc.to_le_bytes());
}

pub(super) fn check_head(head: &[u8], magic: [u8; 8]) -> Result<(), Misfit> {
    if head[..8] != magic {
        return Err(("mark of the file's kind", u64_at(head, 0), u64::from_le_bytes(magic)));
    }
    let (found, expected) = (u32_at(head, 8), checksum::crc32c(&head[12..HEAD_BYTES]));
    if found == expected { Ok(()) } else { Err(("checksum of the head", found.into(), expected.into())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: Area =
        Area { shape: AreaShape { slots: 3, pages_per_slot: 254 }, page_size: 8192, database_id: 5 };

    #[test]
    fn an_area_head_round_trips_and_a_changed_one_is_refused() {
        assert_eq!(Area::from_head(&AREA.head(), 8192), Ok(AREA));
        assert_eq!(Area::from_head(&AREA.head(), 4096).unwrap_err(), ("page size", 8192, 4096));
        for byte in 0..HEAD_BYTES {
            let mut head = AREA.head();
            head[byte] ^= 0x10;
            assert!(Area::from_head(&head, 8192).is_err(), "byte {byte}");
        }
        let impossible = Area { shape: AreaShape { slots: 3, pages_per_slot: 255 }, ..AREA };
        assert_eq!(
            Area::from_head(&impossible.head(), 8192).unwrap_err(),
            ("number of pages in a slot", 255, 254)
        );
    }

    #[test]
    fn a_slot_head_lists_as_many_pages_as_fit() {
        let pages = (0..254).map(|i| (PageId(u64::MAX - i), i as u32)).collect();
        let head = SlotHead { sequence: 77, pages };
        let mut slot = PageBuf::zeroed(HEAD_BYTES);
        head.write_to(&mut slot, 5);
        assert_eq!(SlotHead::parse(&slot, AREA), Some(head));
        let smaller = Area { shape: AreaShape { slots: 3, pages_per_slot: 253 }, ..AREA };
        assert_eq!(SlotHead::parse(&slot, smaller), None, "more pages than the slot has");
        assert_eq!(SlotHead::parse(&slot, Area { database_id: 6, ..AREA }), None, "of another store");
        for byte in 0..HEAD_BYTES {
            slot[byte] ^= 1;
            assert_eq!(SlotHead::parse(&slot, AREA), None, "byte {byte}");
            slot[byte] ^= 1;
        }
    }

    #[test]
    fn slots_follow_each_other_aligned() {
        for page_size in [4096, 8192, 16384, 32768, 65536] {
            let area = Area { shape: AreaShape::for_page_size(page_size), page_size, database_id: 0 };
            assert!(area.shape.is_possible());
            assert_eq!(area.slot_offset(0), 4096);
            assert_eq!(area.slot_offset(1) - area.slot_offset(0), area.slot_bytes() as u64);
            assert_eq!(area.len() % 4096, 0);
        }
    }
}
