//! Prediction of the next pages: sequential and strided streams among the missed pages.
//!
//! A stream is a series of misses:
//!
//! - **an array**: each miss is at the next page. With small pages the stream becomes one of *runs*: the
//!   number of predicted pages doubles, from twice the `unit` of a miss up to `depth` runs.
//! - **an array that is partly resident**: as before. Resident pages cause no fault, and the stream continues
//!   behind them.
//! - **several arrays in step**, as in a stencil: one stream for each. Each stream has its share of the
//!   prefetched pages; otherwise one stream would evict the pages of the next before they are touched.
//! - **two planes of a grid in step**: one stream for each, although they are close to each other. A page
//!   begins a strided stream without ending the stream that the previous page may have begun.
//! - **the columns of a matrix**: a strided and *thick* stream, in which the program returns for the next
//!   page of each row. If *n* pages before the touched page are still resident, up to 2·*n* pages are
//!   predicted behind it and behind each predicted page.

use std::ops::Range;

/// Largest number of streams that are tracked. A stencil reads several arrays in step.
const STREAMS: usize = 16;
/// Largest distance in pages of two misses that can begin a strided stream.
const REACH: i64 = 64;
const MAX_DEPTH: u32 = 8;
/// Number of touches of other streams after which an untouched stream has ended.
const LIVES: u64 = 4 * STREAMS as u64;
/// Largest exponent for doubling the predicted pages of a stream. Its result is more than any depth.
const MOST_DOUBLED: u32 = 20;

#[derive(Clone, Copy, Debug)]
struct Stream {
    last: i64,
    stride: i64,
    confirmed: u32,
    used: u64,
}

impl Stream {
    /// Returns `true` if the stream can be at this page now, after it passed resident pages without a fault.
    fn reaches(&self, page: i64, run: i64, is_passed: impl Fn(u32) -> bool) -> bool {
        let next = self.last + self.stride;
        let ahead = (page - next) * self.stride;
        let is_passed = |step: i64| u32::try_from(next + step * self.stride).is_ok_and(&is_passed);
        self.confirmed > 0 && self.stride.abs() == 1 && (1..run).contains(&ahead) && (0..ahead).all(is_passed)
    }
}

/// Tracks streams. The prediction depth adapts to the success of earlier predictions.
#[derive(Debug)]
pub(super) struct Prefetch {
    streams: [Stream; STREAMS],
    clock: u64,
    /// Prediction depth: in runs, or in pages for strided streams.
    depth: u32,
    /// Number of pages of a run.
    run: u32,
    /// Largest number of prefetched pages that are not yet touched.
    most: u32,
}

/// Pages that will probably be touched: `from + stride`, `from + 2·stride`, …, `depth` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guess {
    pub(super) from: i64,
    pub(super) stride: i64,
    pub(super) depth: u32,
    /// Number of pages behind the touched page, and behind each predicted page, that are fetched with it.
    pub(super) thick: u32,
}

impl Guess {
    /// Returns the prediction for a stream that has already moved past `pages`.
    pub(super) fn behind(self, pages: Range<u32>) -> Self {
        let from = match self.stride {
            1 => i64::from(pages.end) - 1,
            -1 => i64::from(pages.start),
            _ => self.from,
        };
        Self { from, ..self }
    }

    /// Returns the pages in the order in which they are expected. In a thick strided stream the pages behind
    /// the touched one are first.
    pub(super) fn pages(self) -> impl Iterator<Item = i64> {
        let of = move |step: i64| {
            (0..=i64::from(self.thick)).map(move |more| self.from + self.stride * step + more)
        };
        of(0).skip(1).chain((1..=i64::from(self.depth)).flat_map(of))
    }
}

impl Prefetch {
    /// Returns a predictor for runs of `run` pages, with at most `most` prefetched pages that are not yet
    /// touched.
    pub(super) fn new(run: u32, most: u32) -> Self {
        let nothing = Stream { last: i64::MIN / 2, stride: 1, confirmed: 0, used: 0 };
        Self { streams: [nothing; STREAMS], clock: 0, depth: 2, run, most }
    }

    /// Records a fault: a miss, the first touch of a prefetched page, or the first touch of an empty page.
    /// Returns the predicted pages. `is_passed` returns `true` for a page that a stream passes without a
    /// fault. `unit` is the number of pages that each miss fetches there.
    pub(super) fn touched(&mut self, page: u32, unit: u32, is_passed: impl Fn(u32) -> bool) -> Option<Guess> {
        self.clock += 1;
        let page = i64::from(page);
        let clock = self.clock;
        let (depth, run, share) = (self.depth, self.run, self.share());
        let Some(stream) = self.at(page, &is_passed) else {
            self.begin(page);
            return None;
        };
        *stream = Stream { last: page, confirmed: stream.confirmed + 1, used: clock, ..*stream };
        let Stream { stride, confirmed, .. } = *stream;
        if run > 1 && stride.abs() == 1 {
            let pages = (depth * run).min(unit << confirmed.min(MOST_DOUBLED)).min(share);
            return Some(Guess { from: page, stride, depth: pages, thick: 0 });
        }
        let thick = self.thickness(page, stride, is_passed);
        Some(Guess { from: page, stride, depth: depth.min(share / (thick + 1)).max(1), thick })
    }

    /// Returns the stream that continues with this page.
    fn at(&mut self, page: i64, is_passed: impl Fn(u32) -> bool) -> Option<&mut Stream> {
        let run = i64::from(self.run);
        let find = |is_it: &dyn Fn(&Stream) -> bool| self.streams.iter().position(is_it);
        let index = find(&|stream| stream.last + stream.stride == page)
            .or_else(|| find(&|stream| stream.confirmed == 0 && stream.last + 1 == page))
            .or_else(|| find(&|stream| stream.reaches(page, run, &is_passed)))?;
        let stream = &mut self.streams[index];
        if stream.confirmed == 0 && stream.last + 1 == page {
            stream.stride = 1;
        }
        Some(stream)
    }

    /// Returns the number of additional pages per predicted page: twice the number of resident pages before
    /// this one. A stride has been seen three times by then, which is rarely by chance.
    fn thickness(&self, page: i64, stride: i64, is_passed: impl Fn(u32) -> bool) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "at most the pages of a run")]
        let most = (stride.abs() - 1).min(i64::from(self.run) - 1).min(i64::from(self.share())) as u32;
        let before =
            (1..=i64::from(most)).take_while(|step| u32::try_from(page - step).is_ok_and(&is_passed));
        #[expect(clippy::cast_possible_truncation, reason = "at most the pages of a run")]
        let before = before.count() as u32;
        (2 * before).min(most)
    }

    /// Records a page that no stream predicted. It may begin a stream, or be the second page of a strided
    /// stream. A stream that an earlier page may have begun is kept.
    fn begin(&mut self, page: i64) {
        let is_near = |s: &&mut Stream| s.confirmed == 0 && s.last != page && (s.last - page).abs() <= REACH;
        let near = self.streams.iter_mut().filter(is_near).max_by_key(|s| s.used);
        let stride = near.as_ref().map_or(1, |before| page - before.last);
        let begun = Stream { last: page, stride, confirmed: 0, used: self.clock };
        match near {
            Some(before) if stride == -1 => *before = begun,
            _ => {
                self.streams.iter_mut().min_by_key(|s| s.used).into_iter().for_each(|oldest| *oldest = begun)
            }
        }
    }

    /// Returns the number of pages that each stream may have prefetched.
    fn share(&self) -> u32 {
        let goes_on = |stream: &&Stream| stream.confirmed > 0 && self.clock - stream.used <= LIVES;
        #[expect(clippy::cast_possible_truncation, reason = "at most STREAMS")]
        let streams = self.streams.iter().filter(goes_on).count() as u32;
        (self.most / streams.max(1)).max(2)
    }

    /// Records that these neighbors of a page were fetched with it: the stream continues behind them.
    pub(super) fn came_with(&mut self, page: u32, pages: Range<u32>) {
        let page = i64::from(page);
        for stream in self.streams.iter_mut().filter(|stream| stream.last == page) {
            let guess = Guess { from: page, stride: stream.stride, depth: 0, thick: 0 };
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

    impl Prefetch {
        /// Records a miss with no resident pages around it.
        fn missed(&mut self, page: u32) -> Option<Guess> {
            self.touched(page, 1, |_| false)
        }
    }

    #[test]
    fn sequences_forwards_backwards_and_by_strides_are_seen_side_by_side() {
        let mut prefetch = Prefetch::new(1, 100);
        assert_eq!(prefetch.missed(10), None);
        assert_eq!(prefetch.missed(11), Some(Guess { from: 11, stride: 1, depth: 2, thick: 0 }));
        assert_eq!(prefetch.missed(5000), None);
        assert_eq!(prefetch.missed(4993), None);
        assert_eq!(prefetch.missed(4986), Some(Guess { from: 4986, stride: -7, depth: 2, thick: 0 }));
        prefetch.was_right();
        assert_eq!(prefetch.missed(12), Some(Guess { from: 12, stride: 1, depth: 3, thick: 0 }));
        prefetch.was_wrong();
        assert_eq!(prefetch.missed(4979), Some(Guess { from: 4979, stride: -7, depth: 1, thick: 0 }));
    }

    #[test]
    fn a_stream_of_small_pages_becomes_one_of_runs() {
        let mut prefetch = Prefetch::new(16, 1000);
        assert_eq!(prefetch.missed(100), None);
        let mut at = 100;
        for depth in [2, 4, 8, 16, 32, 32] {
            assert_eq!(
                prefetch.missed(at + 1),
                Some(Guess { from: i64::from(at) + 1, stride: 1, depth, thick: 0 })
            );
            // Pages that were fetched with the missed page cause no fault.
            prefetch.came_with(at + 1, at + 1..at + 1 + depth);
            at += depth;
        }
        prefetch.came_with(7, 0..1000);
        assert_eq!(prefetch.missed(at + 1).unwrap().depth, 32);
        assert_eq!(prefetch.missed(5000), None);
        assert_eq!(prefetch.missed(4999), None);
        assert_eq!(prefetch.missed(4998), Some(Guess { from: 4998, stride: -1, depth: 2, thick: 0 }));
        prefetch.came_with(4998, 4990..4999);
        assert_eq!(prefetch.missed(4989), Some(Guess { from: 4989, stride: -1, depth: 4, thick: 0 }));
        assert_eq!(prefetch.missed(9000), None);
        assert_eq!(prefetch.missed(9003), None);
        assert_eq!(prefetch.missed(9006), Some(Guess { from: 9006, stride: 3, depth: 2, thick: 0 }));
    }

    #[test]
    fn a_stream_of_clusters_begins_with_two_clusters() {
        let mut prefetch = Prefetch::new(64, 1000);
        let mut depth = |page| prefetch.touched(page, 4, |_| false).map(|guess| guess.depth);
        assert_eq!([100, 101, 102, 103].map(&mut depth), [None, Some(8), Some(16), Some(32)]);
    }

    #[test]
    fn parallel_streams_share_the_prefetch_limit() {
        let mut prefetch = Prefetch::new(64, 200);
        let depth = |prefetch: &mut Prefetch, streams: u32| {
            let last = (0..12).map(|step| {
                (0..streams).map(|stream| prefetch.missed(10_000 * stream + step).map(|g| g.depth)).last()
            });
            last.last().flatten().flatten()
        };
        assert_eq!(depth(&mut prefetch, 10), Some(20));
        // A stream that continues alone gets the whole share after the other streams have ended.
        let alone: Vec<_> = (12..200).filter_map(|step| prefetch.missed(step)).map(|g| g.depth).collect();
        assert_eq!((alone[0], alone[alone.len() - 1]), (20, 128));
    }

    #[test]
    fn adjacent_streams_are_distinguished() {
        // As for the planes of a grid, of which two are read in step.
        let mut prefetch = Prefetch::new(64, 1000);
        let guessed =
            [0, 8, 1, 9, 2, 10].map(|page| prefetch.missed(page).map(|guess| (guess.stride, guess.depth)));
        assert_eq!(guessed, [None, None, Some((1, 2)), Some((1, 2)), Some((1, 4)), Some((1, 4))]);
    }

    #[test]
    fn a_stream_continues_behind_unreported_pages_only() {
        let mut prefetch = Prefetch::new(64, 1000);
        assert!((100..104).filter_map(|page| prefetch.missed(page)).count() > 0);
        assert_eq!(prefetch.touched(110, 1, |page| page != 107), None);
        assert_eq!(
            prefetch.touched(108, 1, |page| (104..108).contains(&page)).map(|guess| guess.depth),
            Some(16)
        );
        assert_eq!(prefetch.touched(109 + 64, 1, |_| true), None, "too far");
        let mut downwards = Prefetch::new(64, 1000);
        assert!([203, 202, 201, 200].into_iter().filter_map(|page| downwards.missed(page)).count() > 0);
        let guess = downwards.touched(190, 1, |page| (191..200).contains(&page));
        assert_eq!(guess, Some(Guess { from: 190, stride: -1, depth: 8, thick: 0 }));
    }

    #[test]
    fn a_thick_stream_has_so_many_pages_at_each_stride() {
        let pages = |thick| Guess { from: 50, stride: -10, depth: 2, thick }.pages().collect::<Vec<_>>();
        assert_eq!(pages(0), [40, 30]);
        assert_eq!(pages(2), [51, 52, 40, 41, 42, 30, 31, 32]);
    }

    #[test]
    fn column_accesses_prefetch_as_many_pages_per_row_as_are_resident() {
        let guess_at = |run, most, before: u32| {
            let mut prefetch = Prefetch::new(run, most);
            assert_eq!((prefetch.missed(100), prefetch.missed(133)), (None, None));
            prefetch
                .touched(166, 1, |page| (166 - before..166).contains(&page))
                .map(|guess| (guess.depth, guess.thick))
        };
        assert_eq!([0, 1, 3].map(|before| guess_at(64, 1000, before)), [(2, 0), (2, 2), (2, 6)].map(Some));
        // The thickness is limited by the distance of two rows, by the length of a run, and by the share of
        // the stream. A thicker stream predicts fewer rows.
        assert_eq!(guess_at(64, 1000, 30), Some((2, 32)));
        assert_eq!(guess_at(16, 1000, 30), Some((2, 15)));
        assert_eq!(guess_at(64, 10, 3), Some((1, 6)));
    }
}
