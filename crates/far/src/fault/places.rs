//! Addresses of pages: first the pages of the region, then the pages of the adopted ranges (existing memory
//! of the program, such as static arrays), range by range.

use super::arena::{Mapping, advise, close};
use super::page_set::PageSet;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;

/// An adopted range and the number of its first page.
#[derive(Debug)]
struct Adopted {
    /// Never unmapped, because the memory belongs to the program.
    mapping: ManuallyDrop<Mapping>,
    first: u32,
}

/// Maps page numbers to addresses; see the [module](self).
#[derive(Debug)]
pub(crate) struct Places {
    region: Mapping,
    adopted: Vec<Adopted>,
    page_bytes: usize,
    unmanaged: Arc<PageSet>,
    reserved: Arc<PageSet>,
}

impl Places {
    /// Replaces the adopted memory by new memory. Each range consists of whole pages.
    pub(super) fn new(region: Mapping, adopted: &[Range<usize>], page_bytes: usize) -> io::Result<Self> {
        let mut first = pages(region.bytes(), page_bytes);
        let mut places = Vec::new();
        for range in adopted {
            let mapping = ManuallyDrop::new(Mapping::in_place_of(range)?);
            mapping.advise(libc::MADV_NOHUGEPAGE)?;
            places.push(Adopted { mapping, first });
            first += pages(range.len(), page_bytes);
        }
        let unmanaged = Arc::new(PageSet::none(first)?);
        let reserved = Arc::new(PageSet::none(first)?);
        Ok(Self { region, adopted: places, page_bytes, unmanaged, reserved })
    }

    /// Returns the same places in a child process.
    pub(super) fn for_child(&self) -> Self {
        let place = |place: &Adopted| Adopted {
            mapping: ManuallyDrop::new(place.mapping.for_child()),
            first: place.first,
        };
        Self {
            region: self.region.for_child(),
            adopted: self.adopted.iter().map(place).collect(),
            page_bytes: self.page_bytes,
            unmanaged: Arc::clone(&self.unmanaged),
            reserved: Arc::clone(&self.reserved),
        }
    }

    /// Returns the pages that left far memory permanently.
    pub(super) fn unmanaged(&self) -> &PageSet {
        &self.unmanaged
    }

    /// Returns the pages that are reserved.
    pub(super) fn reserved(&self) -> &PageSet {
        &self.reserved
    }

    /// Returns the address of the region's first byte.
    pub(super) fn base(&self) -> *mut u8 {
        self.region.at()
    }

    pub(super) fn page(&self, page: u32) -> *mut u8 {
        let place = self.adopted.iter().rev().find(|place| page >= place.first);
        let (at, first) = place.map_or((self.region.at(), 0), |place| (place.mapping.at(), place.first));
        at.wrapping_add((page - first) as usize * self.page_bytes)
    }

    /// Splits a range of pages into parts with contiguous addresses.
    pub(super) fn pieces(&self, pages: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let Range { mut start, end } = pages;
        std::iter::from_fn(move || {
            let next = self.adopted.iter().map(|place| place.first).find(|&first| first > start);
            let piece = start..next.map_or(end, |next| next.min(end));
            start = piece.end;
            (!piece.is_empty()).then_some(piece)
        })
    }

    pub(super) fn page_of(&self, address: usize) -> Option<u32> {
        let within = |mapping: &Mapping| {
            let offset = address.wrapping_sub(mapping.at() as usize);
            (offset < mapping.bytes()).then(|| pages(offset, self.page_bytes))
        };
        let adopted = || self.adopted.iter().find_map(|place| Some(place.first + within(&place.mapping)?));
        within(&self.region).or_else(adopted)
    }

    /// Calls `one` with the address and the length of each range of memory that is still managed.
    pub(super) fn each_managed(
        &self,
        mut one: impl FnMut(*mut u8, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let adopted = self.adopted.iter().map(|place| (&*place.mapping, place.first));
        for (mapping, first) in [(&self.region, 0)].into_iter().chain(adopted) {
            let all = first..first + pages(mapping.bytes(), self.page_bytes);
            for piece in self.unmanaged.others(all) {
                one(self.page(piece.start), piece.len() * self.page_bytes)?;
            }
        }
        Ok(())
    }

    pub(super) fn advise(&self, advice: i32) -> io::Result<()> {
        self.each_managed(|at, bytes| advise(at, bytes, advice))
    }

    /// Removes all access to the managed memory. No thread uses it any more.
    pub(super) fn close(&self) -> io::Result<()> {
        self.each_managed(close)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a region has fewer than 2^32 pages")]
fn pages(bytes: usize, page_bytes: usize) -> u32 {
    (bytes / page_bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_numbered_place_by_place() {
        const PAGE: usize = 8192;
        let ours = [Mapping::anonymous(3 * PAGE).unwrap(), Mapping::anonymous(2 * PAGE).unwrap()];
        let at = ours.each_ref().map(|mapping| mapping.at() as usize);
        let adopted = [at[0]..at[0] + 3 * PAGE, at[1] + 4096..at[1] + 4096 + PAGE];
        let region = Mapping::anonymous(4 * PAGE).unwrap();
        let base = region.at() as usize;
        let places = Places::new(region, &adopted, PAGE).unwrap();
        for (page, address) in
            [(0, base), (3, base + 3 * PAGE), (4, at[0]), (6, at[0] + 2 * PAGE), (7, at[1] + 4096)]
        {
            assert_eq!(places.page(page) as usize, address);
            assert_eq!(places.page_of(address), Some(page));
            assert_eq!(places.page_of(address + PAGE - 1), Some(page));
        }
        assert!(places.pieces(0..8).eq([0..4, 4..7, 7..8]));
        assert!(places.pieces(2..6).eq([2..4, 4..6]));
        assert!(places.pieces(4..7).eq(std::iter::once(4..7)));
        assert_eq!(places.page_of(at[1] + 4095), None);
        assert_eq!(places.page_of(at[1] + 4096 + PAGE), None);
    }
}
