//! The compressed tier: pages that left the region and stay, compressed, in memory of this machine.
//!
//! A page that is paged out is compressed if the tier has enough memory and the page becomes at least a
//! quarter smaller. A later miss of the page decompresses it under the pager's lock: without a request, and
//! waking only the thread that waits. Other pages are paged out as without the tier. A page stays in the tier
//! until it is touched or discarded: a full tier accepts no page, and moves no page to a server.
//!
//! - **TIER-1** The tier is part of the program's budget: `limit` is smaller by the pages that its bytes take
//!   ([`set_limit`](Core::set_limit)). The tier takes at most half of the budget, and leaves at least
//!   [`LEAST`] local pages.
//! - **TIER-2** A `Compressed` page's bytes are in the tier and in no frame. Its holders, if it has any, have
//!   bytes with the same digest.
//! - **TIER-3** The tier is halved if its memory would save more time as local pages ([`Size`]).

use super::Core;
use super::unmanaged::LEAST;
use crate::compression::Compression;
use crate::pager::prefetch::Guess;
use crate::pager::state::{State, Touch};
use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};
use std::collections::HashMap;

/// Bytes of a page in the tier beyond its compressed bytes: its map entry and the allocator's header.
const ENTRY: usize = 48;

/// Compressed pages.
#[derive(Debug)]
pub(super) struct Tier {
    compression: Compression,
    page_bytes: usize,
    pages: HashMap<u32, Box<[u8]>>,
    /// Size of all compressed pages in bytes, including their entries.
    bytes: usize,
    size: Size,
    /// Output buffer of a compression, before its length is known.
    output: Vec<u8>,
}

impl Tier {
    pub(super) fn new(compression: Compression, page_bytes: usize) -> Self {
        let most = if compression == Compression::None { 0 } else { get_maximum_output_size(page_bytes) };
        Self {
            compression,
            page_bytes,
            pages: HashMap::new(),
            bytes: 0,
            size: Size::default(),
            output: vec![0; most],
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of pages of the budget that the tier takes.
    pub(super) fn budget_pages(&self) -> usize {
        self.bytes.div_ceil(self.page_bytes)
    }

    /// Records a miss. `more` is the number of local pages that would have avoided it, if the page is
    /// sampled. `here` is `true` if the tier has the page.
    pub(super) fn missed(&mut self, more: Option<usize>, here: bool) {
        let pages = self.budget_pages();
        if let Some(more) = more.filter(|_| self.compression != Compression::None) {
            self.size.missed(more <= pages, here);
        }
    }

    /// Records the time of a fetch from a server, in nanoseconds.
    pub(super) fn fetched(&mut self, ns: u64) {
        mix(&mut self.size.fetch_ns, ns);
    }

    /// Records the time of a decompression, in nanoseconds.
    fn decompressed(&mut self, ns: u64) {
        mix(&mut self.size.hit_ns, ns);
    }

    /// Stores a page if it compresses well and the tier then takes at most `most` bytes. Returns `true` if
    /// the page was stored.
    fn put(&mut self, page: u32, bytes: &[u8], most: usize) -> bool {
        // If the tier has less memory left than a quarter of a page, the attempt is not worth its time.
        if self.compression == Compression::None || self.bytes + self.page_bytes / 4 > most {
            return false;
        }
        let Ok(length) = compress_into(bytes, &mut self.output) else { return false };
        let taken = length + ENTRY;
        if taken > self.page_bytes / 4 * 3 || self.bytes + taken > most {
            return false;
        }
        let old = self.pages.insert(page, self.output[..length].into());
        debug_assert!(old.is_none(), "TIER-2: page {page} is in the tier twice");
        self.bytes += taken;
        true
    }

    /// Moves a page out of the tier and decompresses it.
    fn take(&mut self, page: u32, into: &mut [u8]) {
        let length = self.remove(page).map(|packed| decompress_into(&packed, into));
        assert!(
            matches!(length, Some(Ok(length)) if length == into.len()),
            "TIER-2: page {page}: {length:?}"
        );
    }

    fn remove(&mut self, page: u32) -> Option<Box<[u8]>> {
        let packed = self.pages.remove(&page)?;
        self.bytes -= packed.len() + ENTRY;
        Some(packed)
    }
}

/// Number of sampled misses after which the size of the tier is adapted.
const WINDOW: u32 = 256;
/// Largest number of halvings. A tier of this size costs little, and its hits show whether a larger tier is
/// useful.
const MOST_HALVINGS: u32 = 6;
/// Times of a fetch and of a decompression, in nanoseconds, until some were measured.
const FETCH_NS: u64 = 200_000;
const HIT_NS: u64 = 20_000;

/// Adapts the size of the tier by the time that it saves. The tier turns some misses from fetches into
/// decompressions. Other misses would not occur at all if the tier's memory were local pages.
#[derive(Debug)]
struct Size {
    /// Number of times that the limit of the tier, half of the budget, is halved.
    halvings: u32,
    /// Sampled misses of the current window. `hits` counts the misses of pages in the tier, and `avoidable`
    /// the misses that local pages would avoid.
    misses: u32,
    hits: u32,
    avoidable: u32,
    /// Moving averages of the times of a fetch and of a decompression, in nanoseconds.
    fetch_ns: u64,
    hit_ns: u64,
}

impl Default for Size {
    fn default() -> Self {
        Self { halvings: 0, misses: 0, hits: 0, avoidable: 0, fetch_ns: FETCH_NS, hit_ns: HIT_NS }
    }
}

impl Size {
    fn missed(&mut self, is_avoidable: bool, here: bool) {
        self.misses += 1;
        self.hits += u32::from(here);
        self.avoidable += u32::from(is_avoidable);
        if self.misses < WINDOW {
            return;
        }
        let saved = u64::from(self.hits) * self.fetch_ns.saturating_sub(self.hit_ns);
        let lost = u64::from(self.avoidable) * self.fetch_ns;
        if lost > saved {
            self.halvings = (self.halvings + 1).min(MOST_HALVINGS);
        } else if self.hits > 0 && saved > lost + lost / 4 {
            self.halvings = self.halvings.saturating_sub(1);
        }
        (self.misses, self.hits, self.avoidable) = (0, 0, 0);
    }
}

/// Moves a moving average by a sixteenth of the distance to a value.
fn mix(average: &mut u64, value: u64) {
    *average = *average - *average / 16 + value / 16;
}

impl Core {
    /// Returns the largest size of the tier in bytes (TIER-1).
    fn most_tier_bytes(&self) -> usize {
        let pages = self.full_limit.saturating_sub(self.unmanaged);
        ((pages / 2) >> self.tier.size.halvings).min(pages.saturating_sub(LEAST)) * self.page_bytes
    }

    /// Moves a page from its frame into the tier. Returns `false` if the tier does not accept the page.
    pub(super) fn compress(&mut self, page: u32, frame: u32) -> bool {
        let most = self.most_tier_bytes();
        // SAFETY: FAULT-1: the frame has the page's last bytes, and no other thread uses the frame.
        let bytes = unsafe { std::slice::from_raw_parts(self.backend.frame(frame), self.page_bytes) };
        if !self.tier.put(page, bytes, most) {
            return false;
        }
        self.stats.compressed_outs += 1;
        self.pages[page as usize].state = State::Compressed;
        self.set_limit();
        self.free(frame);
        true
    }

    /// Makes a page of the tier resident, with the adjacent pages of the tier that are expected next.
    pub(super) fn touched_compressed(&mut self, page: u32, touch: Touch) {
        if !self.make_frame_free(Some(page)) {
            return self.waiting.push_back((page, touch));
        }
        let more = self.curve.missed(page);
        self.tier.missed(more, true);
        let guess = self.follow(page);
        let mut pages = self.cluster(page);
        if pages.len() == 1 {
            pages.extend(self.compressed_beside(page, guess));
            pages.truncate(self.free_frames_for(pages.len(), page));
            pages.sort_unstable();
        }
        let frames = self.frames.take_run(pages.len());
        for (&page, &frame) in pages.iter().zip(&frames) {
            // SAFETY: the frame is free, so only this thread uses it, and it is one page long.
            let into = unsafe { std::slice::from_raw_parts_mut(self.backend.frame(frame), self.page_bytes) };
            self.tier.take(page, into);
        }
        self.set_limit();
        self.local += pages.len();
        self.stats.compressed_ins += pages.len() as u64;
        let came = pages[0]..pages[pages.len() - 1] + 1;
        let pages: Vec<(u32, u32)> = pages.into_iter().zip(frames).collect();
        self.make_resident(&pages, page, touch.access);
        let waited = self.meter.came(touch.since);
        self.stats.swap_ns += waited;
        self.tier.decompressed(waited);
        if let Some(prefetch) = &mut self.prefetch {
            prefetch.came_with(page, came.clone());
        }
        self.look_ahead(guess.map(|guess| guess.behind(came)));
    }

    /// Returns the pages of the tier beside a page, in the order in which they are expected to be touched.
    fn compressed_beside(&self, page: u32, guess: Option<Guess>) -> Vec<u32> {
        let Some(guess) = guess.filter(|guess| self.run > 1 && guess.stride.abs() == 1) else {
            return Vec::new();
        };
        let is_compressed = |next: &u32| {
            self.is_of_same_block(page, *next)
                && matches!(self.pages[*next as usize].state, State::Compressed)
        };
        self.pages_of(guess).take(guess.depth as usize).take_while(is_compressed).collect()
    }

    /// Drops a page of the tier that the program has discarded.
    pub(super) fn drop_compressed(&mut self, page: u32) {
        self.tier.remove(page);
        self.set_limit();
    }
}

#[cfg(all(test, not(loom)))]
impl Core {
    /// Checks TIER-1 and TIER-2, as far as the counters show.
    pub(super) fn check_tier(&self) {
        let in_tier = |page: usize| self.tier.pages.contains_key(&(page as u32));
        let is_compressed = |page: usize| matches!(self.pages[page].state, State::Compressed);
        assert!((0..self.pages.len()).all(|page| in_tier(page) == is_compressed(page)), "TIER-2");
        let bytes: usize = self.tier.pages.values().map(|packed| packed.len() + ENTRY).sum();
        assert_eq!(bytes, self.tier.bytes, "TIER-1: bytes of the tier");
        let (taken, least) = (self.tier.budget_pages() + self.unmanaged, self.full_limit.min(LEAST));
        assert!(self.limit + taken <= self.full_limit || self.unmanaged > 0, "TIER-1: {taken} taken");
        assert!(self.limit >= least || self.unmanaged > 0, "TIER-1: {} are left", self.limit);
    }

    /// Returns `true` if the tier has the page with these bytes.
    pub(super) fn is_compressed_as(&self, page: u32, bytes: &[u8]) -> bool {
        let mut unpacked = vec![0; bytes.len()];
        let packed = self.tier.pages.get(&page);
        packed.is_some_and(|packed| decompress_into(packed, &mut unpacked).is_ok()) && unpacked == bytes
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_tier_is_smaller_where_its_memory_is_worth_more_as_local_pages() {
        let window = |size: &mut Size, avoidable: u32, hits: u32| {
            (0..WINDOW).for_each(|miss| size.missed(miss < avoidable, miss < hits));
            size.halvings
        };
        let mut size = Size::default();
        // Many misses would be avoided by local pages, as in a program that almost fits.
        assert_eq!((window(&mut size, 250, 256), window(&mut size, 250, 200)), (1, 2));
        assert_eq!((0..20).map(|_| window(&mut size, 100, 0)).last(), Some(MOST_HALVINGS));
        // Random accesses: local pages would avoid few misses, and each page in the tier saves a round trip.
        assert_eq!((window(&mut size, 10, 40), window(&mut size, 20, 100)), (5, 4));
        assert_eq!((0..20).map(|_| window(&mut size, 60, 250)).last(), Some(0));
        // The size stays if the tier has no hits, or saves about as much time as it costs.
        size.halvings = 3;
        assert_eq!((window(&mut size, 0, 0), window(&mut size, 100, 120)), (3, 3));
        // If decompression is as slow as a fetch, the tier saves nothing.
        (0..200).for_each(|_| mix(&mut size.hit_ns, FETCH_NS));
        assert_eq!(window(&mut size, 10, 256), 4);
    }
}
