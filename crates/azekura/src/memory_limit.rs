//! Settings of memory, and their defaults. Defaults depend on the memory limit of this process
//! ([`azekura_base::memory::limit`]). If this limit is at least 64 MiB, the whole process uses at most three
//! quarters of it, except for the undo entries of open transactions, which have a limit of their own.

// The atomic type of std: no protocol depends on the budget, and a simulated machine has no step for it.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use azekura_base::page;
use azekura_wal::default_log_buffer_count;

use crate::options::MIN_FRAMES;
use crate::{Builder, Error};

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

/// Default capacity of the page cache if the memory of the process is not known.
const CACHE_OF_UNKNOWN_MEMORY: u64 = 256 << 20;
/// Largest page cache of a store that is filled only by bulk loads. A load writes each page once and does not
/// read it, and the system clears the memory of each frame at its first use. 16 to 64 MiB are equally fast; a
/// load has at most 6 MiB of pages in flight (decision 078).
const CACHE_OF_COPY: usize = 32 << 20;
/// Divisor of the default cache: the default is this part of the memory that the process may use. Most pages
/// of the cache are also in the system's page cache, which uses the rest. Measured in control groups of 64
/// MiB. Uniform reads of rows with half the size of the memory read 0.0 bytes from the device per requested
/// byte with an eighth, 0.4 with a quarter, and 6.5 with half and direct pages. With random inserts of rows
/// of 2 and 8 times the memory, an eighth writes 1.05 times the bytes of a quarter. On a machine of 24 GiB
/// with rows of 1.6 GB, reads are 3.3 times as fast as with 256 MiB, and scans 2.7 times.
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
    let share = limit.map_or(CACHE_OF_UNKNOWN_MEMORY, |limit| limit / DEFAULT_CACHE_SHARE);
    // At least the number of frames that a store with the largest pages needs.
    let least = (MIN_FRAMES * page::MAX_PAGE_SIZE) as u64;
    usize::try_from(share.max(least)).unwrap_or(usize::MAX)
}

/// The memory of a process for the page caches of stores with the default capacity. Each store reserves half
/// of the remaining bytes, at least what a store needs. So one store gets an eighth of the process's memory.
/// All stores together get at most a quarter, plus the least capacity of each.
#[derive(Debug)]
struct CacheBudget {
    left: AtomicU64,
}

impl CacheBudget {
    fn new(limit: Option<u64>) -> Self {
        let bytes = match limit {
            Some(limit) => limit / (DEFAULT_CACHE_SHARE / 2),
            None => CACHE_OF_UNKNOWN_MEMORY * 2,
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

/// Smallest value of [`Builder::memory_bytes`]. Measured with 16 threads: with 16 MiB, the memory of threads
/// and locks exceeds the limit by a fifth.
const LEAST_MEMORY: u64 = 24 << 20;

/// Memory in bytes that is not divided: the C library's allocator keeps free memory in an arena of each
/// thread. Measured with 16 threads: 13 MB free where 8 MB are in use.
const MEMORY_OF_ARENAS: u64 = 8 << 20;

/// Memory of a record lock, in bytes.
const MEMORY_PER_LOCK: u64 = 200;

impl Builder {
    /// Sets the largest memory of the store in bytes, at least 24 MiB: page cache, log buffers, row versions
    /// and undo entries of open transactions together. Default: none; each of them has a default of its own.
    ///
    /// Of all but 8 MiB of it, the page cache gets three eighths. Row versions get a quarter of the cache,
    /// undo entries a sixteenth, and the log up to an eighth; the rest is for locks, threads and the
    /// allocator. If the row locks of a transaction take a sixteenth, it waits for a lock of the whole
    /// table. A part that is set by itself keeps its setting. Not included are values that the program
    /// holds, buffers of loads and backups, and the system's page cache
    /// ([`direct_pages`](Self::direct_pages)).
    ///
    /// ```
    /// # fn main() -> Result<(), azekura::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// let db = azekura::Database::builder().memory_bytes(64 << 20).open(dir.path().join("small.azk"))?;
    /// # db.close()
    /// # }
    /// ```
    #[must_use]
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = Some(bytes);
        self
    }

    /// Sets the capacity of the page cache in bytes. Default: an eighth of the memory that the process may
    /// use (machine, control group, `ulimit -v`, `-d`), 256 MiB if this is not known. The cache takes memory
    /// only for pages that were used; the system's page cache uses the rest of the memory. A page in both
    /// caches uses memory twice, so raise the capacity if all pages fit into it, or if you set
    /// [`direct_pages`](Self::direct_pages). Default stores of one process share a quarter of the memory:
    /// each reserves at most half of the rest, and at least 1.5 MiB.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.cache = CacheCapacity::Set(bytes);
        self
    }

    /// Sets the largest memory for the undo entries of all open transactions, in bytes. Default: a sixteenth
    /// of [`memory_bytes`](Self::memory_bytes) if that is set, otherwise a quarter of the memory that the
    /// process may use. An entry holds the key, and the old value of a changed or removed row; values of more
    /// than a quarter of a page stay on disk.
    ///
    /// A call that needs more memory is undone and fails with [`Error::UndoMemoryExhausted`]; its transaction
    /// remains open. Transactions with less than 64 KiB do not count.
    #[must_use]
    pub fn undo_bytes(mut self, bytes: u64) -> Self {
        self.undo_bytes = Some(bytes);
        self
    }

    /// Sets the largest memory for row versions, which writers keep while a snapshot is open. Default: a
    /// quarter of the page cache. If versions need more, the oldest snapshot fails with
    /// [`Error::SnapshotTooOld`]; writers never wait.
    #[must_use]
    pub fn version_bytes(mut self, bytes: u64) -> Self {
        self.version_bytes = Some(bytes);
        self
    }

    /// Returns the capacity of the page cache, which [`memory_bytes`](Self::memory_bytes) may determine.
    pub(crate) fn cache_of_memory(&self) -> CacheCapacity {
        match (&self.cache, self.memory_bytes) {
            (CacheCapacity::Default, Some(memory)) => {
                let divided = memory.saturating_sub(MEMORY_OF_ARENAS);
                CacheCapacity::Set(usize::try_from(divided / 8 * 3).unwrap_or(usize::MAX))
            }
            (cache, _) => cache.clone(),
        }
    }

    /// Limits the page cache for a store that is filled only by bulk loads.
    pub(crate) fn with_cache_of_copy(mut self) -> Self {
        self.cache = CacheCapacity::Set(self.cache_of_memory().bytes().min(CACHE_OF_COPY));
        self
    }

    /// Returns an error if [`memory_bytes`](Self::memory_bytes) is too small.
    pub(crate) fn check_memory(&self) -> Result<(), Error> {
        match self.memory_bytes {
            Some(bytes) if bytes < LEAST_MEMORY => Err(Error::Invalid(format!(
                "a store cannot work with {bytes} bytes of memory; use at least {LEAST_MEMORY} \
                 (`memory_bytes`, `--memory`)"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns an error if the page cache is too small for the pages of a store. Their size may differ from
    /// [`page_size`](Self::page_size).
    pub(crate) fn check_cache(&self, page_size: usize) -> Result<(), Error> {
        let least = MIN_FRAMES * page_size;
        if self.cache.bytes() >= least {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "a page cache of {} bytes is too small for pages of {page_size} bytes: one operation may need \
             {MIN_FRAMES} pages, which take {least} bytes; raise it (`cache_bytes`, `--cache`)",
            self.cache.bytes()
        )))
    }

    /// Returns the largest memory for row versions.
    pub(crate) fn version_bytes_limit(&self) -> u64 {
        self.version_bytes.unwrap_or(self.cache.bytes() as u64 / 4)
    }

    /// Returns the number of locks after which a transaction waits for a lock of the whole table.
    pub(crate) fn most_locks(&self) -> usize {
        let of_memory = |memory: u64| usize::try_from(memory / 16 / MEMORY_PER_LOCK).unwrap_or(usize::MAX);
        self.memory_bytes.map_or(usize::MAX, of_memory)
    }

    /// Returns the largest memory for undo entries.
    pub(crate) fn undo_bytes_limit(&self) -> u64 {
        let of_process = || memory_limit().map_or(u64::MAX, |limit| limit / 4);
        let default = || self.memory_bytes.map_or_else(of_process, |memory| memory / 16);
        self.undo_bytes.unwrap_or_else(default)
    }
}

#[cfg(test)]
mod peak_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_cache_is_an_eighth_of_the_memory() {
        let of = |limit: u64| default_cache_bytes(Some(limit)) as u64;
        assert_eq!(of(24 << 30), 3 << 30);
        assert_eq!(of(256 << 20), 32 << 20);
        assert_eq!(of(64 << 20), 8 << 20);
        assert_eq!(of(1 << 20), 24 * 65536, "a store must open at all");
        assert_eq!(default_cache_bytes(None), 256 << 20);
    }

    #[test]
    fn default_caches_share_a_quarter_of_the_memory_and_give_it_back() {
        const LEAST: usize = 24 * 65536;
        for limit in [Some(1 << 20), Some(64 << 20), Some(1 << 30), Some(24 << 30), None] {
            let all = limit.map_or(512 << 20, |limit| limit / 4);
            let budget: &CacheBudget = Box::leak(Box::new(CacheBudget::new(limit)));
            for stores in [1, 3, 1000] {
                let shares: Vec<_> = (0..stores).map(|_| budget.reserve()).collect();
                assert_eq!(shares[0].bytes, default_cache_bytes(limit), "one store has what it had");
                assert!(shares.iter().all(|share| (LEAST..=shares[0].bytes).contains(&share.bytes)));
                let sum: u64 = shares.iter().map(|share| share.bytes as u64).sum();
                assert!(sum <= all + (stores * LEAST) as u64, "{sum}");
                drop(shares);
            }
            assert_eq!(budget.left.load(Relaxed), all); // one thread
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
