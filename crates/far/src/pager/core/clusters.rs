//! Clusters: the pages around a missed page that come with it by the same request.
//!
//! A *cluster* is [`Plan::cluster`](super::Plan::cluster) pages that begin at a multiple of as many, part
//! of a block. Pages are small, so that a touch at random brings one page. Where the program touches the
//! pages around it soon after, each of these would be one more miss.
//!
//! A miss is *near* if another page of its cluster was missed shortly before, so that the cluster would have
//! saved it, and *far* otherwise. Each block counts its misses that bring only their page: [`NEAR`] up for a
//! near one, one down for a far one, within [`MOST`]. Its clusters come whole while the count is at least
//! [`ENOUGH`], so where there is more than one near miss for two far ones. A block with a count of 0 follows
//! the count of all blocks.
//!
//! Pages that came together cause no faults, so nothing tells which of them were used. So one miss of
//! [`PROBE`] brings its page only: a near miss after it tells.

use super::{Core, State};
use crate::sparse::Sparse;
use std::ops::Range;

/// One miss of so many brings only its page, where clusters come whole.
const PROBE: u32 = 8;
/// Weight of a near miss.
const NEAR: i8 = 2;
/// The least count with which clusters come whole, so that two near misses by chance do not suffice later on,
/// and the largest count, in either direction.
const ENOUGH: i8 = 4;
const MOST: i8 = 8;
/// The misses that count as short before are the local pages divided by this number. Of a uniformly random
/// program that has half of its pages local, a fifth of the misses is near.
const RECENT_PART: usize = 8;

/// The latest miss of a cluster.
#[derive(Clone, Copy, Debug, Default)]
struct Latest {
    /// Misses until then; 0 if there was none.
    misses: u32,
    page: u32,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Clusters {
    /// Pages of a cluster, and of a block.
    pages: u32,
    block: u32,
    recent: u32,
    /// Misses so far.
    misses: u32,
    latest: Sparse<Latest>,
    /// Of each block.
    counts: Sparse<i8>,
    /// Of all blocks.
    count: i8,
}

impl Clusters {
    /// Clusters of a region of so many pages, of which `limit` may be local.
    #[expect(clippy::cast_possible_truncation, reason = "a block is at most some hundred pages")]
    pub(super) fn new(cluster: usize, block: usize, pages: usize, limit: usize) -> Self {
        Self {
            pages: cluster as u32,
            block: block as u32,
            recent: (limit / RECENT_PART).clamp(1, u32::MAX as usize) as u32,
            misses: 0,
            latest: Sparse::new(Latest::default(), pages.div_ceil(cluster)),
            counts: Sparse::new(0, pages.div_ceil(block)),
            count: 0,
        }
    }

    fn around(&self, page: u32) -> Range<u32> {
        let first = page / self.pages * self.pages;
        first..first + self.pages
    }

    /// Pages that come for each miss of a page: a cluster's, or one.
    pub(super) fn unit(&self, page: u32) -> u32 {
        let is_whole = is_whole(self.counts[(page / self.block) as usize], self.count);
        if is_whole { self.pages } else { 1 }
    }

    /// Notes a miss. Returns `true` if its cluster is to come whole.
    pub(super) fn missed(&mut self, page: u32) -> bool {
        if self.pages == 1 {
            return false;
        }
        self.misses = self.misses.wrapping_add(1).max(1);
        let latest = &mut self.latest[(page / self.pages) as usize];
        let age = self.misses.wrapping_sub(latest.misses);
        let is_near = latest.misses > 0 && age <= self.recent && latest.page != page;
        let count = &mut self.counts[(page / self.block) as usize];
        let is_whole = is_whole(*count, self.count);
        let is_probe = is_whole && !is_near && self.misses.is_multiple_of(PROBE);
        if is_near || is_probe || !is_whole {
            for count in [count, &mut self.count] {
                *count = (*count + if is_near { NEAR } else { -1 }).clamp(-MOST, MOST);
            }
            *latest = Latest { misses: self.misses, page };
        }
        is_whole && !is_probe
    }
}

/// Returns `true` if the clusters of a block with this count come whole; `all`: the count of all blocks.
fn is_whole(count: i8, all: i8) -> bool {
    (if count == 0 { all } else { count }) >= ENOUGH
}

impl Core {
    /// A missed page and the pages beside it that come with it, all in the same state and in the order of
    /// their numbers. There is room for the page.
    pub(super) fn cluster(&mut self, page: u32) -> Vec<u32> {
        if !self.clusters.missed(page) {
            return vec![page];
        }
        let is_compressed = matches!(self.pages[page as usize].state, State::Compressed);
        let giver = self.giver(page);
        let joins = |other: u32| match self.pages[other as usize].state {
            State::Compressed => is_compressed,
            State::Away => !is_compressed && giver.is_some() && self.giver(other) == giver,
            _ => false,
        };
        let around = self.clusters.around(page);
        let last = around.end.min(u32::try_from(self.pages.len()).unwrap_or(u32::MAX));
        let mut pages = vec![page];
        pages.extend((page + 1..last).take_while(|&other| joins(other)));
        pages.extend((around.start..page).rev().take_while(|&other| joins(other)));
        pages.truncate(self.free_frames_for(pages.len(), page));
        pages.sort_unstable();
        pages
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PAGES: u32 = 4096;

    fn clusters_of_4() -> Clusters {
        Clusters::new(4, 64, PAGES as usize, 512)
    }

    /// Misses the pages of a cluster one by one until it comes whole; the misses.
    fn visit(clusters: &mut Clusters, cluster: u32, pages: u32) -> u32 {
        (0..pages).position(|page| clusters.missed(4 * cluster + page)).map_or(pages, |page| page as u32 + 1)
    }

    #[test]
    fn clusters_come_whole_where_their_pages_are_used_together_and_there_only() {
        let mut clusters = clusters_of_4();
        let order = |round: u32| (0..PAGES / 8).map(move |at| (at * 37 + round) % (PAGES / 8));
        // The lower half of the region is used by clusters, the upper half by single pages.
        let whole = |clusters: &mut Clusters, round| {
            let whole = |&cluster: &u32| clusters.missed(PAGES / 2 + 4 * cluster + round % 4);
            order(round).filter(whole).count()
        };
        for round in 0..3 {
            let together: u32 = order(round).map(|cluster| visit(&mut clusters, cluster, 4)).sum();
            assert!((512..512 * 4 / 3).contains(&together) || round == 0, "{together} misses");
            assert!(whole(&mut clusters, round) == 0 || round == 0);
        }
        // Once only single pages of the clusters are used, the probes tell.
        let mut alone =
            |round: u32| order(round).filter(|&cluster| clusters.missed(4 * cluster + round % 4)).count();
        let whole: Vec<usize> = (0..8).map(&mut alone).collect();
        assert!(whole[0] > 300 && whole[7] < 20, "{whole:?}");
    }

    #[test]
    fn a_new_block_follows_the_others_and_a_page_missed_twice_is_no_neighbor() {
        let mut clusters = clusters_of_4();
        assert!(!clusters.missed(3600));
        (0..40).for_each(|cluster| assert!(visit(&mut clusters, cluster, 4) > 0));
        assert!(clusters.count >= ENOUGH && (0..2).any(|page| clusters.missed(4000 + 4 * page)));
        assert!(!clusters.missed(3604), "a block with misses of its own");
        let mut same = clusters_of_4();
        assert!((0..100).all(|_| !same.missed(17)));
        let mut none = Clusters::new(1, 64, PAGES as usize, 512);
        assert!((0..100).all(|page| !none.missed(page)) && none.latest.written().count() == 0);
    }
}
