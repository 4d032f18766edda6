//! Sizes of a stream's files, and limits of its buffers: both grow while the log is written.
//!
//! A log with few records takes little space: its first segments and its buffers' limits are small, and space
//! is reserved for a buffer only from its first record on. Each filled segment doubles the size of the next
//! one, up to the configured size. So the files' sizes follow the bytes written, and a busy log reaches the
//! full size after writing about twice as many bytes.
//!
//! - **SIZES-1** The scale `now` limits the buffers. It becomes the scale `next` only when the prepared
//!   segments have room for everything that buffers of that scale can hold (SEGMENT-2).

use crate::chunk;
use crate::options::{Admission, WalOptions};

/// A buffer's limit is this part of a segment's size, while segments are below their full size.
const BUFFER_PART: u64 = 8;

/// A size of segments, and the limit of buffers that belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    /// Bytes of a segment.
    pub(crate) segment: u64,
    /// Bytes that a buffer may hold.
    pub(crate) limit: usize,
}

impl Scale {
    /// Returns the bytes of a chunk with one full buffer.
    pub(crate) fn chunk(self) -> u64 {
        chunk::max_chunk_bytes(self.limit)
    }
}

/// The present and next sizes of a stream's segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// The scale of the buffers.
    pub(crate) now: Scale,
    /// The scale of the next new segment; not less than `now`.
    pub(crate) next: Scale,
    pub(crate) most: Scale,
    /// Number of buffers that may hold records.
    pub(crate) open: u64,
    /// Number of these buffers, including those that wait to be opened.
    pub(crate) wanted: u64,
    /// Bytes that only undo records may use; `None` if the scale determines them.
    pub(crate) reserve: Option<u64>,
}

impl Sizes {
    /// Returns sizes for segments and buffers that have their full size from the beginning.
    pub(crate) const fn fixed(segment: u64, limit: usize, buffers: u64) -> Self {
        let most = Scale { segment, limit };
        Self { now: most, next: most, most, open: buffers, wanted: buffers, reserve: None }
    }

    /// Returns the sizes for these options, for a stream of at most `buffers` log buffers.
    pub(crate) fn of(options: &WalOptions, buffers: usize) -> Self {
        let full = Self::fixed(options.segment_size(), options.buffer_bytes, buffers as u64);
        match options.first_segment() {
            Some(first) if first < full.most.segment => {
                let first = full.scale(first);
                Self { now: first, next: first, open: 0, wanted: 0, ..full }
            }
            Some(_) => Self { open: 0, wanted: 0, ..full },
            None => full,
        }
    }

    fn scale(&self, segment: u64) -> Scale {
        if segment >= self.most.segment {
            return self.most;
        }
        Scale { segment, limit: self.most.limit.min((segment / BUFFER_PART) as usize) }
    }

    /// Doubles the size of the next segments, up to the maximum.
    pub(crate) fn grow(&mut self) {
        self.next = self.scale(self.next.segment.saturating_mul(2));
    }

    /// Enlarges the next segments until a buffer may hold `bytes`.
    pub(crate) fn grow_for(&mut self, bytes: usize) {
        while self.next.limit < bytes && self.next != self.most {
            self.grow();
        }
    }

    /// Returns `true` if a buffer may hold `bytes` bytes, or already has its largest limit.
    pub(crate) fn takes(&self, bytes: usize) -> bool {
        self.now.limit >= bytes || self.now.limit == self.most.limit
    }

    fn reserve(&self, scale: Scale) -> u64 {
        // The bytes for which one segment always has room. Of a small segment only half, because only one is
        // prepared.
        let segment = if scale == self.most { scale.segment } else { scale.segment / 2 };
        self.reserve.unwrap_or_else(|| segment - scale.chunk())
    }

    /// Returns the bytes that must be prepared before the buffers admit all records at this scale, if
    /// `flushes` flushes need room.
    fn needed(&self, scale: Scale, open: u64, flushes: u64) -> u64 {
        flushes * open * scale.chunk() + self.reserve(scale)
    }

    /// Returns the bytes wanted in ready segments at all times: two whole flushes and the reserve, regardless
    /// of the rest of the current segment.
    pub(crate) fn wanted_bytes(&self) -> u64 {
        self.needed(self.next, self.wanted.max(self.open), 2)
    }

    /// Returns the bytes wanted in ready segments and in the rest of the current one, while the rest counts
    /// (SEGMENT-6). They include one more flush, so the next segment is requested before records are refused.
    pub(crate) fn wanted_with_rest(&self) -> u64 {
        self.needed(self.next, self.wanted.max(self.open), 3)
    }

    /// Returns [`wanted_bytes`](Self::wanted_bytes) as a number of segments.
    pub(crate) fn ready_segments(&self) -> usize {
        self.wanted_bytes().div_ceil(self.next.segment - self.next.chunk()) as usize
    }

    /// Returns the records to admit if flushes have room for `usable` bytes, `flushes` flushes need room, and
    /// `open` buffers are open.
    pub(crate) fn admission(&self, usable: u64, open: u64, flushes: u64) -> Admission {
        if usable >= self.needed(self.now, open, flushes) {
            Admission::All
        } else if usable >= flushes * open * self.now.chunk() {
            Admission::Undo
        } else {
            Admission::None
        }
    }

    /// Moves the buffers to the scale `next` if `usable`, a function of a chunk's bytes, suffices (SIZES-1).
    /// Returns `true` if the scale changed.
    pub(crate) fn raise(&mut self, usable: impl FnOnce(u64) -> u64) -> bool {
        let changes =
            self.now != self.next && usable(self.next.chunk()) >= self.needed(self.next, self.open, 2);
        if changes {
            self.now = self.next;
        }
        changes
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FULL: u64 = 16 << 20;
    const BUFFER: usize = 512 << 10;

    fn growing(first: u64) -> Sizes {
        let options = WalOptions {
            segment_bytes: FULL,
            buffer_bytes: BUFFER,
            first_segment_bytes: Some(first),
            ..WalOptions::default()
        };
        Sizes::of(&options, 16)
    }

    #[test]
    fn enough_segments_are_ready_for_two_flushes() {
        let chunk = chunk::max_chunk_bytes(BUFFER);
        let sizes = Sizes { reserve: Some(0), ..Sizes::fixed(FULL, BUFFER, 3) };
        assert_eq!(sizes.ready_segments(), 1);
        let sizes = Sizes::fixed(FULL, BUFFER, 64);
        assert_eq!(sizes.ready_segments(), 6);
        let (enough, reserve) = (2 * 64 * chunk, FULL - chunk);
        assert_eq!(sizes.admission(enough - 1, 64, 2), Admission::None);
        assert_eq!(sizes.admission(enough, 64, 2), Admission::Undo);
        assert_eq!(sizes.admission(enough + reserve - 1, 64, 2), Admission::Undo);
        assert_eq!(sizes.admission(enough + reserve, 64, 2), Admission::All);
    }

    #[test]
    fn a_small_segment_and_a_ready_one_suffice_for_one_log_buffer_at_each_scale() {
        let mut sizes = growing(256 << 10);
        sizes.open = 1;
        let mut segments = vec![];
        while sizes.now.segment < FULL {
            segments.push(sizes.now.segment);
            assert_eq!(sizes.ready_segments(), 1, "{sizes:?}");
            sizes.grow();
            let (chunk, needed) = (sizes.next.chunk(), sizes.wanted_bytes());
            assert!(!sizes.raise(|of| needed - 1 + of - chunk));
            assert!(sizes.raise(|_| needed));
        }
        assert_eq!(segments, [256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20]);
        assert_eq!(sizes.now, Scale { segment: FULL, limit: BUFFER });
        sizes.grow();
        assert_eq!(sizes.next, sizes.now, "the size that is set is the end");
    }

    #[test]
    fn a_first_segment_needs_no_successor_until_an_eighth_of_it_is_used() {
        const FIRST: u64 = 256 << 10;
        let sizes = Sizes { open: 1, ..growing(FIRST) };
        let is_enough = |rest: u64| rest - sizes.next.chunk() >= sizes.wanted_with_rest();
        assert!(is_enough(FIRST - (16 << 10)) && !is_enough(FIRST - FIRST / 8), "{sizes:?}");
        assert_eq!(sizes.admission(sizes.wanted_with_rest(), 1, 2), Admission::All, "nobody waits");
        // With more log buffers, or segments of the full size, a successor is needed at once.
        let two = Sizes { wanted: 2, ..sizes };
        let fixed = Sizes::fixed(FULL, BUFFER, 1);
        for short in [two, fixed] {
            let usable = short.next.segment - short.next.chunk();
            assert!(usable < short.wanted_with_rest(), "{short:?}");
        }
    }

    #[test]
    fn a_large_record_makes_segments_large_enough_at_once() {
        let mut sizes = growing(256 << 10);
        sizes.grow_for(100 << 10);
        assert_eq!(sizes.next, Scale { segment: 1 << 20, limit: 128 << 10 });
        sizes.grow_for(usize::MAX);
        assert_eq!(sizes.next.limit, BUFFER);
    }
}
