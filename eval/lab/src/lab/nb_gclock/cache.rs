//! The interface of the compared caches, and a list of them.

use azekura_base::PageId;
use azekura_base::durable::NoLog;
use azekura_base::sync::{hint, thread};
use azekura_buffer::{BufferPool, FixError, HandKind, Peek, Policy, PoolOptions};
use std::sync::Arc;

use super::device::{Device, PAGE_BYTES};
use super::locked::Locked;
use super::policy::{Gclock, Lru, S3Fifo, TwoQ};

/// A page cache of the lab.
pub trait PageCache: Send + Sync {
    /// Fixes a page, reads the word that contains its number, and unfixes it.
    fn visit(&self, page: u64) -> u64;

    /// Returns the counts so far.
    fn tally(&self) -> Tally;
}

/// Counts since the cache was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of pages read from the device.
    pub misses: u64,
    /// Number of these pages that another thread had installed first: failed CAS in the paper's Table 2.
    pub duplicate_reads: u64,
}

/// A compared cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// LRU under a lock.
    Lru,
    /// 2Q under a lock.
    TwoQ,
    /// GCLOCK under a lock.
    Gclock,
    /// S3-FIFO under a lock.
    S3Fifo,
    /// Nb-GCLOCK with one atomic clock hand.
    NbAtomic,
    /// Nb-GCLOCK with a striped clock hand.
    NbStriped,
    /// The store's buffer pool with its two rings.
    TwoRings,
    /// The store's buffer pool with its two rings; hits are read optimistically, without a pin.
    TwoRingsPeek,
}

impl Kind {
    /// All compared caches.
    pub const ALL: [Self; 8] = [
        Self::Lru,
        Self::TwoQ,
        Self::Gclock,
        Self::S3Fifo,
        Self::NbAtomic,
        Self::NbStriped,
        Self::TwoRings,
        Self::TwoRingsPeek,
    ];

    /// Returns the name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::TwoQ => "2q",
            Self::Gclock => "gclock",
            Self::S3Fifo => "s3-fifo",
            Self::NbAtomic => "nb-gclock (atomic)",
            Self::NbStriped => "nb-gclock (stripe)",
            Self::TwoRings => "two rings",
            Self::TwoRingsPeek => "two rings (peek)",
        }
    }

    /// Creates a cache of this kind.
    ///
    /// # Panics
    ///
    /// If `frames` is 0, or larger than a pool can have.
    #[must_use]
    pub fn build(self, frames: usize, device: Device) -> Box<dyn PageCache> {
        let pool = |policy, device, peeks| -> Box<dyn PageCache> {
            Box::new(Pool::new(frames, policy, device, peeks))
        };
        match self {
            Self::Lru => Box::new(Locked::<Lru>::new(frames, device)),
            Self::TwoQ => Box::new(Locked::<TwoQ>::new(frames, device)),
            Self::Gclock => Box::new(Locked::<Gclock>::new(frames, device)),
            Self::S3Fifo => Box::new(Locked::<S3Fifo>::new(frames, device)),
            Self::NbAtomic => pool(Policy::NbGclock(HandKind::Atomic), device, false),
            Self::NbStriped => pool(Policy::NbGclock(HandKind::Striped), device, false),
            Self::TwoRings => pool(Policy::TwoRings, device, false),
            Self::TwoRingsPeek => pool(Policy::TwoRings, device, true),
        }
    }
}

/// The store's buffer pool.
struct Pool {
    pool: BufferPool,
    peeks: bool,
}

impl Pool {
    fn new(frames: usize, policy: Policy, device: Device, peeks: bool) -> Self {
        let options = PoolOptions { page_size: PAGE_BYTES, capacity_bytes: frames * PAGE_BYTES, policy };
        let pool =
            BufferPool::new(options, Arc::new(device), Arc::new(NoLog)).expect("a pool of the lab's size");
        Self { pool, peeks }
    }

    fn fix(&self, page: u64) -> u64 {
        loop {
            match self.pool.fix(PageId(page)) {
                // The page is pinned, so it cannot be evicted; and the pages of the lab never change.
                Ok(guard) => match guard.peek() {
                    Some(page) => return page.words().word(1),
                    None => hint::spin_loop(),
                },
                Err(FixError::PoolExhausted { .. }) => thread::yield_now(),
                Err(error) => panic!("the lab's file can be read: {error}"),
            }
        }
    }
}

impl PageCache for Pool {
    fn visit(&self, page: u64) -> u64 {
        if self.peeks
            && let Peek::Page(seen) = self.pool.peek(PageId(page))
        {
            let word = seen.words().word(1);
            if seen.is_valid() {
                return word;
            }
        }
        self.fix(page)
    }

    fn tally(&self) -> Tally {
        let stats = self.pool.stats();
        Tally { misses: stats.misses, duplicate_reads: stats.duplicate_reads }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::nb_gclock::zipf::{References, Skew};

    #[test]
    fn under_threads_every_cache_gives_the_page_asked_for_and_counts_its_misses() {
        for kind in Kind::ALL {
            let cache = kind.build(200, Device::memory());
            std::thread::scope(|s| {
                for seed in 0..4 {
                    let cache = &cache;
                    s.spawn(move || {
                        for page in References::new(5_000, Skew::NAMED_80_20, seed).take(10_000) {
                            assert_eq!(cache.visit(page), page, "{}", kind.name());
                        }
                    });
                }
            });
            let tally = cache.tally();
            assert!((5_000..40_000).contains(&tally.misses), "{}: {tally:?}", kind.name());
        }
    }

    /// Concurrent threads with few frames evict each other's pages all the time. As in the stress tests of
    /// the pool, each visit must still return the right page, with every cache and every method of reading.
    #[test]
    fn under_threads_and_with_few_frames_every_way_of_reading_gives_the_page_asked_for() {
        use crate::lab::nb_gclock::device::Reading;
        let dir = tempfile::tempdir().unwrap();
        for kind in Kind::ALL {
            for reading in [Reading::Memory, Reading::Blocking, Reading::Optimistic] {
                let cache = kind.build(8, Device::file(dir.path(), 1 << 20, reading).unwrap());
                let visits = 1_000;
                std::thread::scope(|s| {
                    for seed in 0..4 {
                        let cache = &cache;
                        s.spawn(move || {
                            for page in References::new(40, Skew::NAMED_45_20, seed).take(visits) {
                                assert_eq!(cache.visit(page), page, "{}, {reading:?}", kind.name());
                            }
                        });
                    }
                });
                let Tally { misses, duplicate_reads } = cache.tally();
                let (all, kind) = (4 * visits as u64, kind.name());
                assert!(misses > all / 4 && misses <= all, "{kind}, {reading:?}: {misses} misses");
                assert!(
                    duplicate_reads < misses,
                    "{kind}, {reading:?}: {duplicate_reads} of {misses} in vain"
                );
            }
        }
    }
}
