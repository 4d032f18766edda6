//! Which frames are dirty: one bit per frame, so that cleaner and checkpoint look at dirty frames only and not at all of them.
//!
//! A hint that errs on one side: a frame whose page has a change that is in no image on disk has its bit set.
//!
//! - **DIRTY-1** The bit is set by the changer, latched exclusively, before the frame's recovery LSN is stored and the change's LSN is drawn; it is cleared
//!   by the page's writer, latched shared, after the image is on disk. So the latch orders the two, and the argument of RECOVERY-1 (see `frame`) holds for
//!   the bit as it does for the recovery LSN: a look that finds the bit clear, and has seen the LSN drawn, comes after the write that cleared it.

use azekura_base::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use crate::count::shared_rmw;
use crate::frame::FrameId;

const BITS: usize = 64;

/// A bit per frame.
#[derive(Debug)]
pub(crate) struct DirtyMap {
    words: Box<[AtomicU64]>,
    frames: usize,
}

impl DirtyMap {
    pub(crate) fn new(frames: usize) -> Self {
        Self { words: (0..frames.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect(), frames }
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// The frame turns dirty; see DIRTY-1.
    pub(crate) fn set(&self, frame: FrameId) {
        shared_rmw();
        // Relaxed: ordered by the fences of `Frame::set_dirty` and `look_fence`.
        self.word(frame).fetch_or(bit(frame), Relaxed);
    }

    /// The frame is clean; see DIRTY-1.
    pub(crate) fn clear(&self, frame: FrameId) {
        shared_rmw();
        // Release: pairs with the Acquire in `iter`, so that who finds the bit clear may sync and count on the image.
        self.word(frame).fetch_and(!bit(frame), Release);
    }

    fn word(&self, frame: FrameId) -> &AtomicU64 {
        &self.words[frame.0 as usize / BITS]
    }

    /// Whether the frame's bit is set.
    pub(crate) fn contains(&self, frame: FrameId) -> bool {
        self.word(frame).load(Relaxed) & bit(frame) != 0 // a hint for the cleaner
    }

    /// The frames whose bits are set, from frame `start` (modulo their number) once around. A word is read when the iteration comes
    /// to it; 8 bytes per 64 frames.
    pub(crate) fn iter_from(&self, start: u64) -> impl Iterator<Item = FrameId> {
        let start = FrameId((start % self.frames as u64) as u32);
        let first = start.0 as usize / BITS;
        let below = bit(start) - 1; // of the first word: these come last
        let around = (first..self.words.len()).chain(0..first);
        let masked =
            around.map(move |at| (at, if at == first { !below } else { !0 })).chain([(first, below)]);
        masked.flat_map(|(at, mask)| {
            // Acquire: pairs with the Release in `clear`.
            Bits(self.words[at].load(Acquire) & mask).map(move |n| FrameId((at * BITS) as u32 + n))
        })
    }

    /// The frames whose bits are set, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = FrameId> {
        self.iter_from(0)
    }
}

const fn bit(frame: FrameId) -> u64 {
    1 << (frame.0 as usize % BITS)
}

/// The numbers of the bits of a word that are set.
struct Bits(u64);

impl Iterator for Bits {
    type Item = u32;
    fn next(&mut self) -> Option<u32> {
        let n = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (n < u64::BITS).then_some(n)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_frames_that_are_set_come_once_each_beginning_at_any_place() {
        let set = [0u32, 1, 63, 64, 100, 127, 128, 191];
        let map = DirtyMap::new(192);
        set.iter().for_each(|&n| map.set(FrameId(n)));
        map.set(FrameId(70));
        map.clear(FrameId(70));
        for start in 0..192 {
            let found: Vec<u32> = map.iter_from(start.into()).map(|f| f.0).collect();
            let expected: Vec<u32> = set
                .iter()
                .filter(|&&n| n >= start)
                .chain(set.iter().filter(|&&n| n < start))
                .copied()
                .collect();
            assert_eq!(found, expected, "from {start}");
        }
        assert_eq!(map.iter().count(), set.len());
    }
}
