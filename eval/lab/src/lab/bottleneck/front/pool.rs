//! `buf_pool` of InnoDB 5.0: one mutex over the page table and the LRU list.
//!
//! The store has its own page cache without such a mutex. This module only counts the page accesses that an
//! engine like InnoDB would make. Each takes the mutex, looks the page up and counts the use; every eighth
//! use also moves the page to the young end of the LRU list. (InnoDB instead moves a page that has not been
//! moved for some time.)

use azekura_baselines::SyncMutex;
use azekura_trace::Site;

/// Lock site of the mutex in recordings and reports.
pub static BUF_POOL: Site = Site::new("buf_pool mutex");

/// A page, identified by its table and its number in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Page {
    /// Number of the table.
    pub table: u8,
    /// Number of the page in the table; inner pages have the highest numbers.
    pub number: u64,
}

impl Page {
    fn fold(self) -> u64 {
        (self.number ^ u64::from(self.table) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// The page table and the LRU list.
#[derive(Debug)]
pub struct Pool {
    pages: SyncMutex<Pages>,
    /// Right shift from a page's hash to its chain in the page table.
    shift: u32,
}

const NONE: u32 = u32::MAX;

/// Number of uses of a page per move to the young end of the LRU list; the first use inserts the page there.
const USES_PER_MOVE: u64 = 8;

#[derive(Debug)]
struct Pages {
    /// First block of each hash chain, by the upper bits of the page's hash.
    chains: Vec<u32>,
    blocks: Vec<Block>,
    youngest: u32,
    oldest: u32,
    capacity: usize,
}

#[derive(Debug)]
struct Block {
    page: Page,
    next_in_chain: u32,
    /// Number of uses since the page was inserted.
    uses: u64,
    younger: u32,
    older: u32,
}

impl Pool {
    /// Returns an empty pool with room for `capacity` pages.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(2, NONE as usize / 2);
        let chains = capacity.next_power_of_two();
        let pages = Pages {
            chains: vec![NONE; chains],
            blocks: Vec::with_capacity(capacity),
            youngest: NONE,
            oldest: NONE,
            capacity,
        };
        Self { pages: SyncMutex::new(&BUF_POOL, pages), shift: 64 - chains.trailing_zeros() }
    }

    /// Counts a use of a page, and inserts the page if it is missing. Returns whether it was in the pool.
    pub fn get(&self, page: Page) -> bool {
        let chain = self.chain(page);
        let mut pages = self.pages.lock();
        match pages.find(chain, page) {
            Some(at) => {
                pages.use_again(at);
                true
            }
            None => {
                pages.bring_in(chain, page, |page| self.chain(page));
                false
            }
        }
    }

    /// Counts a use of each of these pages, in order.
    pub fn use_all<const N: usize>(&self, pages: [Page; N]) {
        for page in pages {
            self.get(page);
        }
    }

    fn chain(&self, page: Page) -> usize {
        usize::try_from(page.fold() >> self.shift).unwrap_or(0)
    }
}

impl Pages {
    fn find(&self, chain: usize, page: Page) -> Option<u32> {
        let mut at = self.chains[chain];
        while at != NONE && self.blocks[at as usize].page != page {
            at = self.blocks[at as usize].next_in_chain;
        }
        (at != NONE).then_some(at)
    }

    fn use_again(&mut self, at: u32) {
        let block = &mut self.blocks[at as usize];
        block.uses += 1;
        if block.uses.is_multiple_of(USES_PER_MOVE) && at != self.youngest {
            self.unlink(at);
            self.link_youngest(at);
        }
    }

    fn bring_in(&mut self, chain: usize, page: Page, chain_of: impl Fn(Page) -> usize) {
        let at = match u32::try_from(self.blocks.len()) {
            Ok(at) if self.blocks.len() < self.capacity => {
                let next_in_chain = NONE;
                self.blocks.push(Block { page, next_in_chain, uses: 0, younger: NONE, older: NONE });
                at
            }
            _ => self.evict(chain_of),
        };
        let first = std::mem::replace(&mut self.chains[chain], at);
        let block = &mut self.blocks[at as usize];
        (block.page, block.uses, block.next_in_chain) = (page, 1, first);
        self.link_youngest(at);
    }

    /// Removes the oldest block from its chain and from the list, and returns its index.
    fn evict(&mut self, chain_of: impl Fn(Page) -> usize) -> u32 {
        let at = self.oldest;
        self.unlink(at);
        let (chain, next) = (chain_of(self.blocks[at as usize].page), self.blocks[at as usize].next_in_chain);
        if self.chains[chain] == at {
            self.chains[chain] = next;
        } else {
            let mut before = self.chains[chain];
            while self.blocks[before as usize].next_in_chain != at {
                before = self.blocks[before as usize].next_in_chain;
            }
            self.blocks[before as usize].next_in_chain = next;
        }
        at
    }

    fn unlink(&mut self, at: u32) {
        let Block { younger, older, .. } = self.blocks[at as usize];
        match younger {
            NONE => self.youngest = older,
            younger => self.blocks[younger as usize].older = older,
        }
        match older {
            NONE => self.oldest = younger,
            older => self.blocks[older as usize].younger = younger,
        }
    }

    fn link_youngest(&mut self, at: u32) {
        let before = std::mem::replace(&mut self.youngest, at);
        let block = &mut self.blocks[at as usize];
        (block.younger, block.older) = (NONE, before);
        match before {
            NONE => self.oldest = at,
            before => self.blocks[before as usize].younger = at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_that_was_not_moved_for_longest_goes_first() {
        // The model is a plain list of pages with their uses, youngest first.
        let pool = Pool::new(4);
        let mut list: Vec<(u64, u64)> = Vec::new();
        let mut found = 0;
        for i in 0..20_000u64 {
            // Some pages are used far more often than others.
            let number = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56).leading_zeros().into();
            let place = list.iter().position(|&(n, _)| n == number);
            let uses = place.map_or(1, |at| list[at].1 + 1);
            let was_there = place.is_some();
            match place {
                Some(at) if !uses.is_multiple_of(USES_PER_MOVE) => list[at].1 = uses,
                _ => {
                    list.retain(|&(n, _)| n != number);
                    list.insert(0, (number, uses));
                    list.truncate(4);
                }
            }
            assert_eq!(pool.get(Page { table: 1, number }), was_there, "step {i}");
            found += u32::from(was_there);
        }
        assert!((100..19_900).contains(&found), "{found} found: both ways were taken");
    }
}
