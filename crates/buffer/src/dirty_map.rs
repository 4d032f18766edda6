//! The set of dirty frames as one bit per frame, so that the cleaner and the checkpoint visit only dirty
//! frames. The set may contain clean frames. Every frame with a change that is in no image on disk has its
//! bit set.
//!
//! - **DIRTY-1** The bit is set by the thread that changes the page, under the exclusive latch, before the
//!   frame's recovery LSN is stored and the change's LSN is drawn. It is cleared by the page's writer, under
//!   the shared latch, after the image is on disk. So the latch orders the two. The argument of RECOVERY-1
//!   (see `frame`) applies to the bit as to the recovery LSN. If a scan finds the bit clear after the LSN was
//!   drawn, the scan comes after the write that cleared the bit.

use azekura_base::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use azekura_base::zeroed::ZeroedArray;

use crate::count::shared_rmw;
use crate::frame::{FrameId, nth_frame, turn_of};

const BITS: usize = 64;

/// The map of dirty frames: a bit per frame.
#[derive(Debug)]
pub(crate) struct DirtyMap {
    words: ZeroedArray<AtomicU64>,
    frames: usize,
}

impl DirtyMap {
    pub(crate) fn new(frames: usize) -> Self {
        Self { words: ZeroedArray::new(frames.div_ceil(BITS), || AtomicU64::new(0)), frames }
    }

    /// Returns the memory of the map, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// Sets the bit of a frame that becomes dirty; see DIRTY-1.
    pub(crate) fn set(&self, frame: FrameId) {
        shared_rmw();
        // Relaxed: ordered by the fences of `Frame::set_dirty` and `look_fence`.
        let (word, bit) = self.place(frame);
        word.fetch_or(bit, Relaxed);
    }

    /// Clears the bit of a clean frame; see DIRTY-1.
    pub(crate) fn clear(&self, frame: FrameId) {
        shared_rmw();
        // Release: pairs with the Acquire in `iter`, so that a thread that finds the bit clear may sync and
        // rely on the image.
        let (word, bit) = self.place(frame);
        word.fetch_and(!bit, Release);
    }

    /// Returns the word and the bit of a frame; bits are in the order in which the clock visits the frames.
    fn place(&self, frame: FrameId) -> (&AtomicU64, u64) {
        let turn = turn_of(frame, self.frames);
        (&self.words[turn / BITS], bit(turn))
    }

    /// Returns `true` if the frame's bit is set.
    pub(crate) fn contains(&self, frame: FrameId) -> bool {
        let (word, bit) = self.place(frame);
        word.load(Relaxed) & bit != 0 // Relaxed: a hint for the cleaner
    }

    /// Returns the frames with set bits, in the order of the clock from turn `start` on (modulo their
    /// number), once around. A word is read when the iteration reaches it; 8 bytes per 64 frames.
    pub(crate) fn iter_from(&self, start: u64) -> impl Iterator<Item = FrameId> {
        let start = (start % self.frames as u64) as usize;
        let first = start / BITS;
        let below = bit(start) - 1; // Bits of the first word that come last.
        let around = (first..self.words.len()).chain(0..first);
        let masked =
            around.map(move |at| (at, if at == first { !below } else { !0 })).chain([(first, below)]);
        masked.flat_map(move |(at, mask)| {
            // Acquire: pairs with the Release in `clear`.
            let bits = Bits(self.words[at].load(Acquire) & mask);
            bits.map(move |n| nth_frame(at * BITS + n as usize, self.frames))
        })
    }

    /// Returns the frames with set bits.
    pub(crate) fn iter(&self) -> impl Iterator<Item = FrameId> {
        self.iter_from(0)
    }
}

const fn bit(turn: usize) -> u64 {
    1 << (turn % BITS)
}

/// An iterator over the numbers of the set bits of a word.
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
        let frame = |turn: u32| nth_frame(turn as usize, 192);
        set.iter().for_each(|&turn| map.set(frame(turn)));
        map.set(frame(70));
        map.clear(frame(70));
        assert!(map.contains(frame(64)) && !map.contains(frame(70)));
        for start in 0..192 {
            let found: Vec<usize> = map.iter_from(start.into()).map(|f| turn_of(f, 192)).collect();
            let expected: Vec<usize> = set
                .iter()
                .filter(|&&n| n >= start)
                .chain(set.iter().filter(|&&n| n < start))
                .map(|&turn| turn as usize)
                .collect();
            assert_eq!(found, expected, "from {start}");
        }
        assert_eq!(map.iter().count(), set.len());
    }
}
