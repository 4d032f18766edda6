//! Which pages will be touched next: sequential and strided streams among the pages that were missed.
//!
//! Where pages are small a stream from one page to the next is taken for a stream of *runs*, as soon as it has gone on for some time: twice as many pages are guessed
//! each time, up to `depth` runs; but no more than each of the streams that go on can have of what may be fetched ahead of need. A stencil goes through a dozen arrays in
//! step: if one of them took all, it would be given up again for the next one before it is touched.

use std::ops::Range;

/// Streams that are followed at once: a stencil reads several arrays in step.
const STREAMS: usize = 16;
/// Two misses further apart than this are not taken for one stride.
const REACH: i64 = 64;
const MAX_DEPTH: u32 = 8;
/// A stream that was not touched for so many touches of others has ended.
const LIVES: u64 = 4 * STREAMS as u64;
/// Of a guess, as a power of two: more pages than any depth has.
const MOST_DOUBLED: u32 = 20;

#[derive(Clone, Copy, Debug)]
struct Stream {
    last: i64,
    stride: i64,
    confirmed: u32,
    used: u64,
}

/// Follows streams; how far it looks ahead follows from how often it was right.
#[derive(Debug)]
pub(super) struct Prefetch {
    streams: [Stream; STREAMS],
    clock: u64,
    /// Of runs, or of pages in strides.
    depth: u32,
    /// Pages of a run.
    run: u32,
    /// Pages that may be ahead of need at once.
    most: u32,
}

/// Pages that will probably be touched: `from + stride`, `from + 2·stride`, …, `depth` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guess {
    pub(super) from: i64,
    pub(super) stride: i64,
    pub(super) depth: u32,
}

impl Guess {
    /// The same behind pages that are here.
    pub(super) fn behind(self, pages: Range<u32>) -> Self {
        let from = match self.stride {
            1 => i64::from(pages.end) - 1,
            -1 => i64::from(pages.start),
            _ => self.from,
        };
        Self { from, ..self }
    }
}

impl Prefetch {
    /// For runs of so many pages, of which so many may be ahead of need at once.
    pub(super) fn new(run: u32, most: u32) -> Self {
        let nothing = Stream { last: i64::MIN / 2, stride: 1, confirmed: 0, used: 0 };
        Self { streams: [nothing; STREAMS], clock: 0, depth: 2, run, most }
    }

    /// A page was missed, or found where it had been fetched to.
    pub(super) fn touched(&mut self, page: u32) -> Option<Guess> {
        self.clock += 1;
        let page = i64::from(page);
        let clock = self.clock;
        let share = self.share();
        if let Some(stream) = self.streams.iter_mut().find(|s| s.last + s.stride == page) {
            *stream = Stream { last: page, confirmed: stream.confirmed + 1, used: clock, ..*stream };
            let depth = if self.run > 1 && stream.stride.abs() == 1 {
                (self.depth * self.run).min(1 << stream.confirmed.min(MOST_DOUBLED)).min(share)
            } else {
                self.depth
            };
            return Some(Guess { from: page, stride: stream.stride, depth });
        }
        let near = self
            .streams
            .iter_mut()
            .find(|s| s.confirmed == 0 && s.last != page && (s.last - page).abs() <= REACH);
        let stream = match near {
            Some(stream) => {
                stream.stride = page - stream.last;
                stream
            }
            None => {
                let oldest = self.streams.iter_mut().min_by_key(|s| s.used)?;
                oldest.stride = 1;
                oldest
            }
        };
        *stream = Stream { last: page, confirmed: 0, used: clock, ..*stream };
        None
    }

    /// Pages that each stream may have ahead of need.
    fn share(&self) -> u32 {
        let goes_on = |stream: &&Stream| stream.confirmed > 0 && self.clock - stream.used <= LIVES;
        #[expect(clippy::cast_possible_truncation, reason = "a few")]
        let streams = self.streams.iter().filter(goes_on).count() as u32;
        (self.most / streams.max(1)).max(2)
    }

    /// The page's neighbours came with it: the stream goes on behind them.
    pub(super) fn came_with(&mut self, page: u32, pages: Range<u32>) {
        let page = i64::from(page);
        for stream in self.streams.iter_mut().filter(|stream| stream.last == page) {
            let guess = Guess { from: page, stride: stream.stride, depth: 0 };
            stream.last = guess.behind(pages.clone()).from;
        }
    }

    pub(super) fn was_right(&mut self) {
        self.depth = (self.depth + 1).min(MAX_DEPTH);
    }

    pub(super) fn was_wrong(&mut self) {
        self.depth = (self.depth / 2).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_forwards_backwards_and_by_strides_are_seen_side_by_side() {
        let mut prefetch = Prefetch::new(1, 100);
        assert_eq!(prefetch.touched(10), None);
        assert_eq!(prefetch.touched(11), Some(Guess { from: 11, stride: 1, depth: 2 }));
        assert_eq!(prefetch.touched(5000), None);
        assert_eq!(prefetch.touched(4993), None);
        assert_eq!(prefetch.touched(4986), Some(Guess { from: 4986, stride: -7, depth: 2 }));
        prefetch.was_right();
        assert_eq!(prefetch.touched(12), Some(Guess { from: 12, stride: 1, depth: 3 }));
        prefetch.was_wrong();
        assert_eq!(prefetch.touched(4979), Some(Guess { from: 4979, stride: -7, depth: 1 }));
    }

    #[test]
    fn a_stream_of_small_pages_becomes_one_of_runs() {
        let mut prefetch = Prefetch::new(16, 1000);
        assert_eq!(prefetch.touched(100), None);
        let mut at = 100;
        for depth in [2, 4, 8, 16, 32, 32] {
            assert_eq!(prefetch.touched(at + 1), Some(Guess { from: i64::from(at) + 1, stride: 1, depth }));
            // What came with it is not touched.
            prefetch.came_with(at + 1, at + 1..at + 1 + depth);
            at += depth;
        }
        prefetch.came_with(7, 0..1000);
        assert_eq!(prefetch.touched(at + 1).unwrap().depth, 32);
        assert_eq!(prefetch.touched(5000), None);
        assert_eq!(prefetch.touched(4999), None);
        assert_eq!(prefetch.touched(4998), Some(Guess { from: 4998, stride: -1, depth: 2 }));
        prefetch.came_with(4998, 4990..4999);
        assert_eq!(prefetch.touched(4989), Some(Guess { from: 4989, stride: -1, depth: 4 }));
        assert_eq!(prefetch.touched(9000), None);
        assert_eq!(prefetch.touched(9003), None);
        assert_eq!(prefetch.touched(9006), Some(Guess { from: 9006, stride: 3, depth: 2 }));
    }

    #[test]
    fn streams_that_go_on_side_by_side_share_what_may_be_ahead() {
        let mut prefetch = Prefetch::new(64, 200);
        let depth = |prefetch: &mut Prefetch, streams: u32| {
            let last = (0..12).map(|step| {
                (0..streams).map(|stream| prefetch.touched(10_000 * stream + step).map(|g| g.depth)).last()
            });
            last.last().flatten().flatten()
        };
        assert_eq!(depth(&mut prefetch, 10), Some(20));
        // One that goes on alone has all of it, once the others have ended.
        let alone: Vec<_> = (12..200).filter_map(|step| prefetch.touched(step)).map(|g| g.depth).collect();
        assert_eq!((alone[0], alone[alone.len() - 1]), (20, 128));
    }
}
