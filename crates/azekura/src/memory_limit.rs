//! Defaults of settings that depend on the memory limit of this process ([`azekura_base::memory::limit`]). If
//! the limit is at least 64 MiB, the whole process uses at most three quarters of it.

// The atomic type of std: no protocol depends on the budget, and a simulated machine has no step for it.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use azekura_base::page;
use azekura_wal::default_log_buffer_count;

use crate::options::MIN_FRAMES;

/// Returns the number of bytes of memory that this process may use; `None` if the system does not report it.
///
/// The first call reads a few small files below `/proc` and `/sys/fs/cgroup`; later calls return its result.
pub(crate) fn memory_limit() -> Option<u64> {
    static LIMIT: OnceLock<Option<u64>> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        #[cfg(test)]
        if let Some(limit) = peak_tests::limit_of_child() {
            return Some(limit);
        }
        azekura_base::memory::limit()
    })
}

/// Largest default capacity of the page cache.
const DEFAULT_CACHE_BYTES: u64 = 256 << 20;
/// Divisor of the default cache: the default is this part of the memory that the process may use. Most pages
/// of the cache are also in the system's page cache, which uses the rest. Measured in control groups of 64
/// MiB. Uniform reads of rows with half the size of the memory read 0.0 bytes from the device per requested
/// byte with an eighth, 0.4 with a quarter, and 6.5 with half and direct pages. With random inserts of rows
/// of 2 and 8 times the memory, an eighth writes 1.05 times the bytes of a quarter.
const DEFAULT_CACHE_SHARE: u64 = 8;
/// Memory per log buffer: with the default size of 512 KiB, the buffers use a sixteenth of the memory. During
/// a flush there are also the buffers that replace the full ones, and the chunk into which full buffers are
/// copied; in total, up to four times as much.
const MEMORY_PER_LOG_BUFFER: u64 = 8 << 20;
/// Page cache per log buffer, if there are more than [`FEWEST_LOG_BUFFERS`]. Each buffer has half a KiB of
/// state, which is much for one of a thousand stores.
const CACHE_PER_LOG_BUFFER: usize = 192 << 10;
const FEWEST_LOG_BUFFERS: usize = 8;

/// Returns the default capacity of the page cache for this limit on the process's memory.
pub(crate) fn default_cache_bytes(limit: Option<u64>) -> usize {
    let share = limit.map_or(DEFAULT_CACHE_BYTES, |limit| limit / DEFAULT_CACHE_SHARE);
    // At least the number of frames that a store with the largest pages needs.
    let least = (MIN_FRAMES * page::MAX_PAGE_SIZE) as u64;
    usize::try_from(share.clamp(least, DEFAULT_CACHE_BYTES)).unwrap_or(usize::MAX)
}

/// The memory of a process for the page caches of stores with the default capacity. Each store reserves half
/// of the remaining bytes, within the bounds of [`default_cache_bytes`]. So one store gets an eighth of the
/// process's memory. All stores together get at most a quarter, plus the least capacity of each.
#[derive(Debug)]
struct CacheBudget {
    left: AtomicU64,
}

impl CacheBudget {
    fn new(limit: Option<u64>) -> Self {
        let bytes = match limit {
            Some(limit) => limit / (DEFAULT_CACHE_SHARE / 2),
            None => u64::MAX,
        };
        Self { left: AtomicU64::new(bytes) }
    }

    /// Returns the budget of this process. The budget has no lock, so that a forked process can open stores.
    fn of_process() -> &'static Self {
        static BUDGET: OnceLock<CacheBudget> = OnceLock::new();
        BUDGET.get_or_init(|| Self::new(memory_limit()))
    }

    /// Reserves the cache of one store.
    fn reserve(&'static self) -> CacheShare {
        let bytes_of = |left: u64| default_cache_bytes(Some(left.saturating_mul(DEFAULT_CACHE_SHARE / 2)));
        let mut left = self.left.load(Relaxed); // Relaxed: an estimate; the exchange verifies it
        loop {
            let bytes = bytes_of(left);
            let reserved = (bytes as u64).min(left);
            // Relaxed: only the number is shared.
            match self.left.compare_exchange_weak(left, left - reserved, Relaxed, Relaxed) {
                Ok(_) => return CacheShare { bytes, reserved, budget: self },
                Err(now) => left = now,
            }
        }
    }
}

/// The reserved cache of one store; dropping it returns the bytes.
#[derive(Debug)]
pub(crate) struct CacheShare {
    bytes: usize,
    reserved: u64,
    budget: &'static CacheBudget,
}

/// The capacity of a store's page cache.
#[derive(Clone, Debug)]
pub(crate) enum CacheCapacity {
    /// The default, before a store has reserved its part.
    Default,
    Set(usize),
    /// The reserved default of an open store.
    Reserved(Arc<CacheShare>),
}

impl CacheCapacity {
    /// Reserves the capacity of a store that is being opened.
    pub(crate) fn reserved(self) -> Self {
        match self {
            Self::Set(bytes) => Self::Set(bytes),
            Self::Default | Self::Reserved(_) => {
                Self::Reserved(Arc::new(CacheBudget::of_process().reserve()))
            }
        }
    }

    /// Returns the capacity in bytes; for a default that is not reserved yet, the largest possible capacity.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Default => default_cache_bytes(memory_limit()),
            Self::Set(bytes) => *bytes,
            Self::Reserved(share) => share.bytes,
        }
    }
}

impl Drop for CacheShare {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.reserved, Relaxed); // Relaxed: only the number is shared
    }
}

/// Returns the default number of log buffers for this limit on the process's memory, and this page cache.
pub(crate) fn default_log_buffers(limit: Option<u64>, cache_bytes: usize) -> usize {
    let most = limit.map_or(u64::MAX, |limit| limit / MEMORY_PER_LOG_BUFFER);
    let of_cache = (cache_bytes / CACHE_PER_LOG_BUFFER).max(FEWEST_LOG_BUFFERS);
    default_log_buffer_count().min(of_cache).min(usize::try_from(most).unwrap_or(usize::MAX)).max(1)
}

#[cfg(test)]
mod peak_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_cache_follows_a_small_limit_of_memory() {
        let of = |limit: u64| default_cache_bytes(Some(limit)) as u64;
        assert_eq!(of(24 << 30), 256 << 20);
        assert_eq!(of(256 << 20), 32 << 20);
        assert_eq!(of(64 << 20), 8 << 20);
        assert_eq!(of(1 << 20), 24 * 65536, "a store must open at all");
        assert_eq!(default_cache_bytes(None), 256 << 20);
    }

    #[test]
    fn default_caches_share_a_quarter_of_the_memory_and_give_it_back() {
        const LEAST: usize = 24 * 65536;
        for limit in [Some(1 << 20), Some(64 << 20), Some(1 << 30), Some(24 << 30), None] {
            let budget: &CacheBudget = Box::leak(Box::new(CacheBudget::new(limit)));
            for stores in [1, 3, 1000] {
                let shares: Vec<_> = (0..stores).map(|_| budget.reserve()).collect();
                assert_eq!(shares[0].bytes, default_cache_bytes(limit), "one store has what it had");
                assert!(shares.iter().all(|share| (LEAST..=256 << 20).contains(&share.bytes)));
                let sum: u64 = shares.iter().map(|share| share.bytes as u64).sum();
                assert!(limit.is_none_or(|limit| sum <= limit / 4 + (stores * LEAST) as u64), "{sum}");
                drop(shares);
            }
            assert_eq!(budget.left.load(Relaxed), limit.map_or(u64::MAX, |limit| limit / 4)); // one thread
        }
    }

    #[test]
    fn the_default_number_of_log_buffers_follows_a_small_limit_of_memory_and_a_small_cache() {
        assert_eq!(default_log_buffers(Some(1 << 20), 1 << 30), 1);
        assert_eq!(default_log_buffers(Some(64 << 20), 1 << 30), 8);
        assert_eq!(default_log_buffers(Some(64 << 30), 1 << 30), default_log_buffer_count());
        assert_eq!(default_log_buffers(None, 1 << 30), default_log_buffer_count());
        assert_eq!(default_log_buffers(None, 24 << 16), 8);
    }
}
