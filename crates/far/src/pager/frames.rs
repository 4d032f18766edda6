//! The free frames. A frame that already has memory is reused before memory is requested from the system. The
//! frames of a run are adjacent if possible, because then one system call transfers the run. Correctness does
//! not depend on this.

/// Set of free frames of one kind, as a bitmap.
#[derive(Debug)]
struct Free {
    words: Vec<u64>,
    len: usize,
    /// Index of the first word that may have a set bit.
    first: usize,
}

/// All free frames: `full` frames have memory, `empty` frames have none.
#[derive(Debug)]
pub(super) struct Frames {
    full: Free,
    empty: Free,
}

impl Frames {
    pub(super) fn new(frames: u32) -> Self {
        let mut empty = Free::none(frames);
        (0..frames).for_each(|frame| empty.give(frame));
        Self { full: Free::none(frames), empty }
    }

    /// Takes a frame to write into, with or without memory.
    pub(super) fn take(&mut self) -> u32 {
        self.full
            .take()
            .or_else(|| self.empty.take())
            .expect("there are frames for all pages that may be local or leaving")
    }

    /// Takes this number of frames, adjacent if possible.
    pub(super) fn take_run(&mut self, frames: usize) -> Vec<u32> {
        let run = self.full.take_run(frames).or_else(|| {
            // Scattered frames with memory are preferred to adjacent frames without memory.
            if self.full.len >= frames { None } else { self.empty.take_run(frames) }
        });
        run.unwrap_or_else(|| (0..frames).map(|_| self.take()).collect())
    }

    /// Takes a frame without memory, as the destination of a move. `empty` releases the memory of a frame.
    pub(super) fn take_empty(&mut self, empty: impl FnOnce(u32)) -> u32 {
        self.empty.take().unwrap_or_else(|| {
            let frame = self.take();
            empty(frame);
            frame
        })
    }

    /// Takes this number of frames without memory, adjacent if possible.
    pub(super) fn take_empty_run(&mut self, frames: usize, mut empty: impl FnMut(u32)) -> Vec<u32> {
        let run = self.empty.take_run(frames);
        run.unwrap_or_else(|| (0..frames).map(|_| self.take_empty(&mut empty)).collect())
    }

    pub(super) fn give_full(&mut self, frame: u32) {
        self.full.give(frame);
    }

    pub(super) fn give_empty(&mut self, frame: u32) {
        self.empty.give(frame);
    }

    /// Returns the number of free frames with memory.
    pub(super) fn full(&self) -> usize {
        self.full.len
    }

    /// Returns all free frames.
    #[cfg(all(test, not(loom)))]
    pub(super) fn free(&self) -> impl Iterator<Item = u32> + '_ {
        let of = |free: &Free| {
            let words = free.words.clone();
            (0..words.len() as u32 * 64)
                .filter(move |&frame| words[frame as usize / 64] >> (frame % 64) & 1 == 1)
        };
        of(&self.full).chain(of(&self.empty))
    }

    /// Takes a frame with memory, so that the caller can release the memory.
    pub(super) fn surplus(&mut self) -> Option<u32> {
        self.full.take()
    }
}

impl Free {
    fn none(frames: u32) -> Self {
        Self { words: vec![0; (frames as usize).div_ceil(64)], len: 0, first: 0 }
    }

    fn give(&mut self, frame: u32) {
        let word = frame as usize / 64;
        self.words[word] |= 1 << (frame % 64);
        self.len += 1;
        self.first = self.first.min(word);
    }

    fn take(&mut self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        while self.words[self.first] == 0 {
            self.first += 1;
        }
        Some(self.take_from(self.first, self.words[self.first].trailing_zeros()))
    }

    fn take_from(&mut self, word: usize, bit: u32) -> u32 {
        self.words[word] &= !(1 << bit);
        self.len -= 1;
        #[expect(clippy::cast_possible_truncation, reason = "frames are numbered with 32 bits")]
        let first = word as u32 * 64;
        first + bit
    }

    /// Takes this number of frames; adjacent frames of one word if there are at most 64.
    fn take_run(&mut self, frames: usize) -> Option<Vec<u32>> {
        if self.len < frames {
            return None;
        }
        if frames > 64 {
            return Some((0..frames).filter_map(|_| self.take()).collect());
        }
        let fits = |&word: &usize| bits_in_a_row(self.words[word], frames) != 0;
        let word = (self.first..self.words.len()).find(fits)?;
        let bit = bits_in_a_row(self.words[word], frames).trailing_zeros();
        #[expect(clippy::cast_possible_truncation, reason = "at most 64")]
        let end = bit + frames as u32;
        Some((bit..end).map(|bit| self.take_from(word, bit)).collect())
    }
}

/// Returns the bits at which a row of `many` set bits begins.
fn bits_in_a_row(word: u64, many: usize) -> u64 {
    let (mut starts, mut known) = (word, 1);
    while known < many {
        let more = known.min(many - known);
        starts &= starts >> more;
        known += more;
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_set_bits_are_found_at_each_length() {
        for word in [0, 1, u64::MAX, 0b0111_0110, u64::MAX << 61, 0xf0f0_0000_0000_0ff7] {
            for many in 1..=64 {
                let starts = (0..=64 - many).filter(|at| (0..many).all(|bit| word >> (at + bit) & 1 == 1));
                let expected = starts.fold(0_u64, |starts, at| starts | 1 << at);
                assert_eq!(bits_in_a_row(word, many), expected, "{word:#x}, {many}");
            }
        }
    }

    #[test]
    fn a_run_has_frames_side_by_side_if_there_are_and_any_if_not() {
        let mut frames = Frames::new(100);
        assert_eq!(frames.take_run(64), (0..64).collect::<Vec<_>>());
        assert_eq!(frames.take_run(36), (64..100).collect::<Vec<_>>());
        [3, 4, 5, 70, 71].iter().for_each(|&frame| frames.give_full(frame));
        [10, 12].iter().for_each(|&frame| frames.give_empty(frame));
        assert_eq!(frames.take_run(2), [3, 4]);
        assert_eq!(frames.take_empty_run(2, |_| unreachable!("there are two")), [10, 12]);
        let mut emptied = Vec::new();
        assert_eq!(frames.take_empty_run(2, |frame| emptied.push(frame)), [5, 70]);
        assert_eq!((emptied, frames.full(), frames.take()), (vec![5, 70], 1, 71));
    }
}
