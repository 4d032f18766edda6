//! Clusters: the pages around a missed page that are fetched with it by the same request.
//!
//! A *cluster* is an aligned group of [`Plan::cluster`](super::Plan::cluster) pages inside a block. Pages are
//! small, so that a random access transfers one page. If the program soon accesses the pages around it, each
//! of them would cause one more miss.
//!
//! A miss is *near* if another page of its cluster was missed shortly before, so that fetching the cluster
//! would have avoided the miss. Otherwise the miss is *far*. Each block has a counter for the misses that
//! fetch a single page: plus [`NEAR`] for a near miss and minus one for a far miss, between -[`MOST`] and
//! [`MOST`]. Clusters of the block are fetched whole while the counter is at least [`ENOUGH`]. That is the
//! case if there is more than one near miss for two far misses. A block with a counter of 0 uses the counter
//! of all blocks.
//!
//! Pages that are fetched together cause no faults, so it is unknown which of them were used. So one of
//! [`PROBE`] misses fetches only its page, as a probe: a near miss after it shows that the cluster is still
//! useful.

use super::{Core, State};
use crate::sparse::Sparse;
use std::ops::Range;

/// Interval of probes in blocks that fetch whole clusters: one of this many misses fetches only its page.
const PROBE: u32 = 8;
/// Amount by which a near miss raises the counter.
const NEAR: i8 = 2;
/// Least counter with which clusters are fetched whole, and largest absolute value of a counter. With these
/// values, two near misses by chance do not suffice after many far misses.
const ENOUGH: i8 = 4;
const MOST: i8 = 8;
/// Divisor of the number of local pages. A miss is near only within that many misses after another miss of
/// the cluster. For a program with uniformly random accesses and half of its pages local, a fifth of the
/// misses is near.
const RECENT_PART: usize = 8;

/// The latest recorded miss of a cluster.
#[derive(Clone, Copy, Debug, Default)]
struct Latest {
    /// Value of the miss counter at that miss; 0 if there was none.
    misses: u32,
    page: u32,
}

/// Decides which misses fetch a whole cluster; see the [module](self).
#[derive(Debug)]
pub(super) struct Clusters {
    /// Number of pages of a cluster; `block`: number of pages of a block.
    pages: u32,
    block: u32,
    recent: u32,
    /// Number of misses so far.
    misses: u32,
    latest: Sparse<Latest>,
    /// Counter of each block.
    counts: Sparse<i8>,
    /// Counter of all blocks.
    count: i8,
}

impl Clusters {
    /// Creates the state for a region of `pages` pages, of which `limit` may be local.
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

    /// Returns the number of pages that a miss of this page fetches: those of a cluster, or one.
    pub(super) fn unit(&self, page: u32) -> u32 {
        let is_whole = is_whole(self.counts[(page / self.block) as usize], self.count);
        if is_whole { self.pages } else { 1 }
    }

    /// Records a miss. Returns `true` if the whole cluster is to be fetched.
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

/// Returns `true` if the clusters of a block with this counter are fetched whole. `all` is the counter of all
/// blocks.
fn is_whole(count: i8, all: i8) -> bool {
    (if count == 0 { all } else { count }) >= ENOUGH
}

impl Core {
    /// Returns a missed page and the adjacent pages to fetch with it. All are in the same state, and in
    /// ascending order. There is a free frame for the missed page.
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

    /// Misses the pages of a cluster one by one until it is fetched whole. Returns the number of misses.
    fn visit(clusters: &mut Clusters, cluster: u32, pages: u32) -> u32 {
        (0..pages).position(|page| clusters.missed(4 * cluster + page)).map_or(pages, |page| page as u32 + 1)
    }

    #[test]
    fn clusters_come_whole_where_their_pages_are_used_together_and_there_only() {
        let mut clusters = clusters_of_4();
        let order = |round: u32| (0..PAGES / 8).map(move |at| (at * 37 + round) % (PAGES / 8));
        // The program uses whole clusters in the lower half of the region, and single pages in the upper
        // half.
        let whole = |clusters: &mut Clusters, round| {
            let whole = |&cluster: &u32| clusters.missed(PAGES / 2 + 4 * cluster + round % 4);
            order(round).filter(whole).count()
        };
        for round in 0..3 {
            let together: u32 = order(round).map(|cluster| visit(&mut clusters, cluster, 4)).sum();
            assert!((512..512 * 4 / 3).contains(&together) || round == 0, "{together} misses");
            assert!(whole(&mut clusters, round) == 0 || round == 0);
        }
        // When the program uses only single pages of the clusters, the probes detect it.
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
