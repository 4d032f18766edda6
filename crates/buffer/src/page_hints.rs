//! Page hints: for each page id, the frame into which the page was last loaded. A reader of a resident page
//! with a correct hint does not search the page table.
//!
//! A hint is one word. Consecutive page ids, which most leaves below one inner node have, share a cache line
//! in groups of sixteen; in the page table each page has a separate bucket. A page's hint has one position:
//! the page id modulo the number of words, which is at least the number of frames.
//!
//! | bits | meaning |
//! |---|---|
//! | 24..32 | bits of the page id above the position: pages with the same position usually differ in them |
//! | 0..24 | frame number + 1; 0: no hint |
//!
//! - **HINT-1** A hint may refer to a frame that holds another page, or none. The reader reads the version of
//!   the frame's latch, and then checks that the frame has the page's id, is open, and has content, as after
//!   a search (FRAME-3). If a check fails, the reader searches the page table.
//! - **HINT-2** Only a thread that has mapped a page to a frame stores the page's hint. So readers write no
//!   shared line (G8), and two resident pages with the same position do not overwrite each other's hint
//!   repeatedly.

use azekura_base::PageId;
use azekura_base::sync::atomic::{AtomicU32, Ordering::Relaxed};
use azekura_base::zeroed::{ZeroedArray, ZeroedMemory};

use crate::count::shared_store;
use crate::frame::{FrameId, MAX_FRAMES};

const FRAME_BITS: u32 = 24;
const _: () = assert!(MAX_FRAMES < 1 << FRAME_BITS);

/// The hints of a pool.
#[derive(Debug)]
pub(crate) struct PageHints {
    words: ZeroedArray<AtomicU32>,
    /// The number of words is 1 << `place_bits`.
    place_bits: u32,
}

impl PageHints {
    /// Returns hints for a pool with `frames` frames, in this memory if it has room.
    pub(crate) fn new(frames: usize, memory: &mut ZeroedMemory) -> Self {
        let words = frames.next_power_of_two();
        Self { words: memory.array(words, || AtomicU32::new(0)), place_bits: words.trailing_zeros() }
    }

    /// Returns the memory of the hints, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    #[inline]
    fn word(&self, page_id: PageId) -> (&AtomicU32, u32) {
        let tag = (page_id.0 >> self.place_bits) as u32;
        (&self.words[page_id.0 as usize & (self.words.len() - 1)], tag << FRAME_BITS)
    }

    /// Returns the frame that the page may be in.
    #[inline]
    pub(crate) fn get(&self, page_id: PageId) -> Option<FrameId> {
        let (word, tag) = self.word(page_id);
        // Relaxed: HINT-1. The frame's own words order all later reads.
        let frame = (word.load(Relaxed) ^ tag).wrapping_sub(1);
        (frame < (1 << FRAME_BITS) - 1).then_some(FrameId(frame))
    }

    /// Stores the frame to which the caller has mapped the page.
    pub(crate) fn set(&self, page_id: PageId, frame: FrameId) {
        let (word, tag) = self.word(page_id);
        shared_store();
        word.store(tag | (frame.0 + 1), Relaxed); // Relaxed: HINT-1, orders nothing
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_the_hint_of_its_last_page() {
        let hints = PageHints::new(1000, &mut ZeroedMemory::none());
        assert_eq!(hints.bytes(), 4096);
        assert_eq!(hints.get(PageId(5)), None);
        hints.set(PageId(5), FrameId(0));
        hints.set(PageId(6), FrameId(MAX_FRAMES as u32 - 1));
        assert_eq!(hints.get(PageId(5)), Some(FrameId(0)));
        assert_eq!(hints.get(PageId(6)), Some(FrameId(MAX_FRAMES as u32 - 1)));
        let other = PageId(5 + 1024);
        assert_eq!(hints.get(other), None, "the page's own bits differ");
        hints.set(other, FrameId(7));
        assert_eq!((hints.get(other), hints.get(PageId(5))), (Some(FrameId(7)), None));
    }
}
