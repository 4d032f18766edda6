//! The compared caches, all behind the evaluation's `PageCache` trait, with one 8-KiB page as value.
//!
//! A hit looks up the page, reads the word with the page's number, and releases the page. A miss reads the
//! page from the device and inserts it. Other caches hold an `Arc<Page>`, which a hit clones; Azekura's
//! caches lend the page. All caches with a configurable hasher use the same one.

use std::sync::Arc;

use ahash::RandomState;
use azekura_base::durable::NoLog;
use azekura_base::{Lsn, PageId, StripedCounter};
use azekura_baselines::general_cache::{Cache, CacheOptions};
use azekura_buffer::{BufferPool, PageStore, PoolOptions};
use azekura_lab::lab::nb_gclock::cache::{Kind, PageCache, Tally};
use azekura_lab::lab::nb_gclock::device::{Device, PAGE_BYTES};

/// A page as a value.
pub(super) type Page = [u8; PAGE_BYTES];

/// A cache of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// A cache of `azekura-lab`.
    Lab(Kind),
    /// The general cache of `azekura_baselines`.
    General,
    Moka,
    QuickCache,
    Foyer,
}

impl Which {
    pub(super) const ALL: [Self; 9] = [
        Self::Lab(Kind::TwoRingsPeek),
        Self::Lab(Kind::TwoRings),
        Self::Lab(Kind::NbStriped),
        Self::General,
        Self::QuickCache,
        Self::Foyer,
        Self::Moka,
        Self::Lab(Kind::Lru),
        Self::Lab(Kind::Gclock),
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Lab(Kind::TwoRingsPeek) => "azekura pool, peek",
            Self::Lab(Kind::TwoRings) => "azekura pool, fix",
            Self::Lab(Kind::NbStriped) => "azekura pool, plain nb-gclock",
            Self::Lab(kind) => kind.name(),
            Self::General => "azekura cache",
            Self::Moka => "moka",
            Self::QuickCache => "quick_cache",
            Self::Foyer => "foyer (s3-fifo)",
        }
    }

    /// Returns `true` if this is a policy under one lock.
    pub(super) const fn is_locked(self) -> bool {
        matches!(self, Self::Lab(Kind::Lru | Kind::TwoQ | Kind::Gclock | Kind::S3Fifo))
    }

    /// Returns `true` if this is a cache of Azekura.
    pub(super) const fn is_ours(self) -> bool {
        matches!(self, Self::General | Self::Lab(Kind::TwoRingsPeek | Kind::TwoRings | Kind::NbStriped))
    }

    pub(super) fn build(self, frames: usize, device: Device) -> Box<dyn PageCache> {
        let (misses, hasher) = (StripedCounter::new(), RandomState::with_seed(1));
        match self {
            Self::Lab(kind) => kind.build(frames, device),
            Self::General => {
                let cache =
                    Cache::with(frames, CacheOptions::default(), hasher).expect("a capacity in bounds");
                Box::new(General { cache, device, misses })
            }
            Self::Moka => {
                let cache =
                    moka::sync::Cache::builder().max_capacity(frames as u64).build_with_hasher(hasher);
                Box::new(GetAndPut {
                    get: Box::new({
                        let cache: moka::sync::Cache<u64, Arc<Page>, RandomState> = cache.clone();
                        move |page| cache.get(&page).map(|value| number(&value))
                    }),
                    put: Box::new(move |page, value| cache.insert(page, value)),
                    device,
                    misses,
                })
            }
            Self::QuickCache => {
                let cache: Arc<quick_cache::sync::Cache<u64, Arc<Page>, _, RandomState>> =
                    Arc::new(quick_cache::sync::Cache::with(
                        frames,
                        frames as u64,
                        quick_cache::UnitWeighter,
                        hasher,
                        quick_cache::sync::DefaultLifecycle::default(),
                    ));
                let for_put = Arc::clone(&cache);
                Box::new(GetAndPut {
                    get: Box::new(move |page| cache.get(&page).map(|value| number(&value))),
                    put: Box::new(move |page, value| for_put.insert(page, value)),
                    device,
                    misses,
                })
            }
            Self::Foyer => {
                let cache: foyer_memory::Cache<u64, Arc<Page>, RandomState> =
                    foyer_memory::CacheBuilder::new(frames)
                        .with_shards(8)
                        .with_eviction_config(foyer_memory::S3FifoConfig::default())
                        .with_hash_builder(hasher)
                        .build();
                let for_put = cache.clone();
                Box::new(GetAndPut {
                    get: Box::new(move |page| cache.get(&page).map(|entry| number(entry.value()))),
                    put: Box::new(move |page, value| drop(for_put.insert(page, value))),
                    device,
                    misses,
                })
            }
        }
    }
}

/// The pool under changes: every eighth page is changed when visited, so that evictions write pages back.
pub(super) struct ChangingPool(BufferPool);

impl ChangingPool {
    pub(super) const NAME: &str = "azekura pool, fix and change";

    pub(super) fn new(frames: usize) -> Self {
        let options = PoolOptions {
            page_size: PAGE_BYTES,
            capacity_bytes: frames * PAGE_BYTES,
            ..PoolOptions::default()
        };
        let pool = BufferPool::new(options, Arc::new(Device::memory()), Arc::new(NoLog));
        Self(pool.expect("a pool of the lab's size"))
    }
}

impl PageCache for ChangingPool {
    fn visit(&self, page: u64) -> u64 {
        let fixed = self.0.fix(PageId(page)).expect("frames are enough");
        if page.is_multiple_of(8) {
            // If another thread has latched the page, skip the change: a latch may wait for a stopped thread.
            if let Ok(mut latched) = fixed.try_exclusive() {
                latched.will_change(Lsn(1));
                latched.page_mut().set_word(2, 1);
                return latched.words().word(1);
            }
            return page;
        }
        fixed.peek().map_or(page, |seen| seen.words().word(1))
    }

    fn tally(&self) -> Tally {
        let stats = self.0.stats();
        Tally { misses: stats.misses, duplicate_reads: stats.duplicate_reads }
    }
}

/// Returns the word with the page's number.
fn number(page: &Page) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&page[8..16]);
    u64::from_le_bytes(word)
}

fn read(device: &Device, page: u64) -> Box<Page> {
    let mut value: Box<Page> = Box::new([0; PAGE_BYTES]);
    device.read_page(PageId(page), &mut *value).expect("the lab's file can be read");
    value
}

/// The general cache of `azekura_baselines`.
struct General {
    cache: Cache<u64, Box<Page>, RandomState>,
    device: Device,
    misses: StripedCounter,
}

impl PageCache for General {
    fn visit(&self, page: u64) -> u64 {
        if let Some(found) = self.cache.get(&page) {
            return number(&found);
        }
        self.misses.add(1);
        match self.cache.get_or_insert_with(page, || read(&self.device, page)) {
            Ok(value) => number(&value),
            Err(full) => number(&full.value),
        }
    }

    fn tally(&self) -> Tally {
        Tally { misses: self.misses.sum(), duplicate_reads: 0 }
    }
}

/// Another cache: looks up a page; on a miss, loads and inserts it. Each operation is one indirect call, as
/// with the trait objects of the other caches.
struct GetAndPut {
    get: Box<dyn Fn(u64) -> Option<u64> + Send + Sync>,
    put: Box<dyn Fn(u64, Arc<Page>) + Send + Sync>,
    device: Device,
    misses: StripedCounter,
}

impl PageCache for GetAndPut {
    fn visit(&self, page: u64) -> u64 {
        if let Some(found) = (self.get)(page) {
            return found;
        }
        self.misses.add(1);
        let value: Arc<Page> = read(&self.device, page).into();
        let found = number(&value);
        (self.put)(page, value);
        found
    }

    fn tally(&self) -> Tally {
        Tally { misses: self.misses.sum(), duplicate_reads: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cache_gives_the_page_asked_for_and_keeps_some() {
        for which in Which::ALL {
            let cache = which.build(64, Device::memory());
            for page in (0..200).chain(0..32).chain(0..32) {
                assert_eq!(cache.visit(page), page, "{}", which.name());
            }
            let misses = cache.tally().misses;
            assert!((200..264).contains(&misses), "{}: {misses} misses", which.name());
        }
    }

    #[test]
    fn the_changing_pool_writes_pages_back() {
        let cache = ChangingPool::new(64);
        for page in (0..1600).step_by(8).chain(0..200) {
            assert_eq!(cache.visit(page), page);
        }
        assert!(cache.0.stats().pages_written > 100, "{:?}", cache.0.stats());
    }
}
