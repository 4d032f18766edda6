//! A latch in one word: a version for optimistic readers, a count of shared holders, and an exclusive lock.
//!
//! | bits | meaning | changed by |
//! |---|---|---|
//! | 63 | exclusive | the thread that acquires it sets it; the holder clears it |
//! | 62 | parked: threads sleep | a waiter sets it; the releasing thread clears it and wakes |
//! | 48..62 | number of shared holders | each shared holder |
//! | 0..48 | version | the exclusive holder at its release; any thread, by [`HybridLatch::invalidate`] |
//!
//! - **LATCH-1** While the exclusive bit is set there are no shared holders, and only the exclusive holder
//!   changes the data that the latch protects.
//! - **LATCH-2** An exclusive hold that changed data ends with a version that was never used before (48 bits:
//!   nine years at a million changes per second).
//! - **LATCH-3** If an optimistic reader validates, it read no value that was stored after it took its
//!   version. So all values that it read belong to one state, that of its version.
//!
//! LATCH-3 follows from the argument for sequence locks (Boehm, "Can seqlocks get along with programming
//! language memory models?", MSPC 2012). The writer has a Release fence between setting the exclusive bit and
//! its first store. The reader has an Acquire fence between its last load and its second load of the word. If
//! any load returned a stored value, the fences order the setting of the bit before the second load of the
//! word, which then finds the bit or a later version.
//!
//! *Progress.* Optimistic reads, validation and every `try_…` finish even if other threads stall at any
//! step. A stalled optimistic reader blocks no thread. Only lock acquisition waits for the holder. The test
//! `eval/sim/tests/latch.rs` stops threads at every access.
//!
//! Waiters spin, yield, then sleep. The latch is not fair: a stream of shared holders can keep a writer
//! waiting.

use azekura_base::Backoff;
use azekura_base::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};
use azekura_trace::{HoldGuard, HoldMode, Site, WaitKind};

use crate::park::Bucket;

const EXCLUSIVE: u64 = 1 << 63;
const PARKED: u64 = 1 << 62;
const SHARED_ONE: u64 = 1 << 48;
const SHARED: u64 = PARKED - SHARED_ONE;
const VERSION: u64 = SHARED_ONE - 1;

/// Trace site of all waits for latches of this kind, and of their holds.
static PAGE_LATCH: Site = Site::new("page latch");

/// The version at the start of an optimistic read, for [`HybridLatch::validate`] on the same latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Version(u64);

/// The latch. The owner of the latch defines the protected data, and guards with destructors.
#[derive(Debug)]
pub struct HybridLatch(AtomicU64);

impl Default for HybridLatch {
    fn default() -> Self {
        Self::new()
    }
}

impl HybridLatch {
    /// Returns a latch without holders.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns the version for an optimistic read; `None` while a thread holds the latch exclusively. Writes
    /// nothing.
    #[inline]
    #[track_caller]
    pub fn optimistic(&self) -> Option<Version> {
        // Acquire: pairs with the Release of `unlock_exclusive`, so the stores of that holder are visible.
        let word = self.0.load(Acquire);
        (word & EXCLUSIVE == 0).then_some(Version(word & VERSION))
    }

    /// Returns `true` if nothing has changed since `seen` was taken, so that the reads were consistent
    /// (LATCH-3). Writes nothing. Shared holders do not affect the result.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn validate(&self, seen: Version) -> bool {
        // Acquire fence: pairs with the Release fence in `entered`.
        fence(Acquire);
        // Relaxed: ordered by the fence.
        self.0.load(Relaxed) & (EXCLUSIVE | VERSION) == seen.0
    }

    /// Acquires the latch exclusively if nothing has changed since `seen` and there is no other holder. Never
    /// waits.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn try_upgrade(&self, seen: Version) -> bool {
        // Acquire: pairs with the Release of the previous holder.
        let taken = self.0.compare_exchange(seen.0, seen.0 | EXCLUSIVE, Acquire, Relaxed).is_ok();
        taken && Self::entered()
    }

    /// Acquires the latch exclusively if there is no holder. Never waits.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn try_lock_exclusive(&self) -> bool {
        let word = self.0.load(Relaxed); // Relaxed: a guess; the CAS decides
        word & (EXCLUSIVE | SHARED) == 0
            // Acquire: as in `try_upgrade`.
            && self.0.compare_exchange(word, word | EXCLUSIVE, Acquire, Relaxed).is_ok()
            && Self::entered()
    }

    /// Waits until no thread holds the latch exclusively, without acquiring it: it may be held again at the
    /// next attempt. Writes only the parked bit, so that waiters do not slow down the holder.
    #[inline]
    #[track_caller]
    pub fn wait_until_open(&self) {
        if self.optimistic().is_none() {
            self.wait_for(EXCLUSIVE, |latch| latch.optimistic().is_some());
        }
    }

    /// Acquires the latch exclusively. Blocks while there is a holder.
    #[inline]
    #[track_caller]
    pub fn lock_exclusive(&self) {
        if !self.try_lock_exclusive() {
            self.wait_for(EXCLUSIVE | SHARED, |latch| latch.try_lock_exclusive());
        }
    }

    /// Executes the writer's fence of LATCH-3.
    #[inline]
    fn entered() -> bool {
        // Release fence: no store of this holder becomes visible before the exclusive bit. Pairs with
        // `validate`.
        fence(Release);
        true
    }

    /// Returns the version that [`unlock_exclusive`](Self::unlock_exclusive) will set. The caller holds the
    /// latch exclusively.
    #[inline]
    pub fn version_after(&self) -> Version {
        // Relaxed: only the holder changes the version; other threads change other bits.
        Version((self.0.load(Relaxed) + 1) & VERSION)
    }

    /// Releases an exclusive hold after a change: optimistic readers start over.
    #[inline]
    #[track_caller]
    pub fn unlock_exclusive(&self) {
        self.leave_exclusive(1);
    }

    /// Releases an exclusive hold without a change: optimistic readers can still validate.
    #[inline]
    #[track_caller]
    pub fn unlock_exclusive_unchanged(&self) {
        self.leave_exclusive(0);
    }

    #[inline]
    #[track_caller]
    fn leave_exclusive(&self, step: u64) {
        let word = self.0.load(Relaxed);
        debug_assert!(word & EXCLUSIVE != 0, "released without being held");
        let version = (word + step) & VERSION;
        // A swap, because a waiter may set the parked bit meanwhile. Release: pairs with the Acquire of the
        // next holder.
        if self.0.swap(version, Release) & PARKED != 0 {
            self.wake_waiters();
        }
    }

    /// Acquires the latch shared if no thread holds it exclusively. Never waits.
    ///
    /// # Panics
    ///
    /// With more than 16,383 shared holders at once.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn try_lock_shared(&self) -> bool {
        let mut word = self.0.load(Relaxed); // Relaxed: a guess; the CAS decides
        while word & EXCLUSIVE == 0 {
            if word & SHARED == SHARED {
                return false; // there are 16,383 holders: the next one waits
            }
            // Acquire: pairs with the Release of the previous exclusive holder.
            match self.0.compare_exchange_weak(word, word + SHARED_ONE, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Acquires the latch shared. Blocks while a thread holds it exclusively.
    #[inline]
    #[track_caller]
    pub fn lock_shared(&self) {
        if !self.try_lock_shared() {
            self.wait_for(EXCLUSIVE, |latch| latch.try_lock_shared());
        }
    }

    /// Releases a shared hold.
    #[inline]
    #[track_caller]
    pub fn unlock_shared(&self) {
        // Release: the loads of this holder come before the stores of a later exclusive holder (its CAS is
        // Acquire).
        let before = self.0.fetch_sub(SHARED_ONE, Release);
        debug_assert!(before & SHARED != 0, "released without being held");
        if before & SHARED == SHARED_ONE && before & PARKED != 0 {
            // Relaxed: only the bit is cleared; the bucket's count provides the ordering of PARK-1.
            if self.0.fetch_and(!PARKED, Relaxed) & PARKED != 0 {
                self.wake_waiters();
            }
        }
    }

    /// Advances the version without holding the latch: values that were read before do not validate any more.
    ///
    /// The caller must know by other means that no thread holds the latch exclusively (for example, a frame
    /// without pins). Never waits. A later store in this thread, or in a thread that synchronized with it, is
    /// ordered after the change of the version, as LATCH-3 requires.
    #[inline]
    #[track_caller]
    pub fn invalidate(&self) {
        // A CAS and not an addition: the version must not overflow into the count of shared holders. Release
        // and the fence: as at the start of an exclusive hold.
        let mut word = self.0.load(Relaxed);
        loop {
            debug_assert!(word & EXCLUSIVE == 0, "an exclusive holder moves the version itself");
            let moved = word & !VERSION | (word + 1) & VERSION;
            match self.0.compare_exchange_weak(word, moved, Release, Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        fence(Release);
    }

    /// Records a hold in the trace, until the returned guard is dropped just after the release. The latch's
    /// word has no bits that identify the holder, so the trace records the holder.
    ///
    /// Costs one relaxed load while tracing is off.
    #[inline]
    pub fn hold(&self, mode: HoldMode) -> HoldGuard {
        azekura_trace::hold(&PAGE_LATCH, std::ptr::from_ref(self) as usize, mode)
    }

    /// Wakes sleeping threads, and records the releasing thread, because its hold may not be in the sample.
    #[cold]
    fn wake_waiters(&self) {
        self.bucket().wake();
        azekura_trace::released(&PAGE_LATCH, std::ptr::from_ref(self) as usize);
    }

    fn bucket(&self) -> Bucket {
        Bucket::of(std::ptr::from_ref(self) as usize)
    }

    /// Waits until `take` succeeds. `in_the_way` are the bits that prevent it from succeeding.
    #[cold]
    #[track_caller]
    fn wait_for(&self, in_the_way: u64, take: impl Fn(&Self) -> bool) {
        let _waiting = azekura_trace::wait(&PAGE_LATCH, std::ptr::from_ref(self) as usize, WaitKind::Latch);
        let mut backoff = Backoff::new();
        while !take(self) {
            // Models sleep at once, because spinning shows nothing more.
            if cfg!(loom) || backoff.is_exhausted() {
                self.sleep_while(in_the_way);
            } else {
                backoff.pause();
            }
        }
    }

    fn sleep_while(&self, in_the_way: u64) {
        let bucket = self.bucket();
        let count = bucket.count();
        // Relaxed: the load of `count` was Acquire, so this load is not older than the wake-up that changed
        // the count.
        let word = self.0.load(Relaxed);
        if word & in_the_way == 0 {
            return;
        }
        // Relaxed: only the bit itself matters; on failure the caller checks again.
        if word & PARKED != 0 || self.0.compare_exchange(word, word | PARKED, Relaxed, Relaxed).is_ok() {
            bucket.sleep(count);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn shared_holders_leave_the_version_alone_and_keep_writers_out() {
        let latch = HybridLatch::new();
        let seen = latch.optimistic().unwrap();
        latch.lock_shared();
        assert!(latch.try_lock_shared());
        assert!(latch.validate(seen) && !latch.try_lock_exclusive() && !latch.try_upgrade(seen));
        latch.unlock_shared();
        latch.unlock_shared();
        assert!(latch.try_upgrade(seen) && !latch.validate(seen) && !latch.try_lock_shared());
        latch.unlock_exclusive_unchanged();
        assert!(latch.validate(seen));
        latch.lock_exclusive();
        latch.unlock_exclusive();
        assert!(!latch.validate(seen) && !latch.try_upgrade(seen));
    }

    #[test]
    fn an_invalidation_moves_the_version_and_nothing_else() {
        let latch = HybridLatch::new();
        let seen = latch.optimistic().unwrap();
        latch.lock_shared();
        latch.invalidate();
        latch.unlock_shared();
        assert!(!latch.validate(seen) && !latch.try_upgrade(seen));
        assert!(latch.try_lock_exclusive());
    }

    #[test]
    fn a_waiter_for_an_open_latch_continues_without_taking_it() {
        let latch = HybridLatch::new();
        latch.wait_until_open();
        latch.lock_exclusive();
        std::thread::scope(|s| {
            let waiters: Vec<_> = (0..4).map(|_| s.spawn(|| latch.wait_until_open())).collect();
            latch.unlock_exclusive();
            waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        });
        assert!(latch.try_lock_exclusive(), "nobody is in");
    }

    #[test]
    fn sleepers_are_woken_by_exclusive_and_by_shared_holders() {
        let latch = HybridLatch::new();
        let inside = AtomicU32::new(0);
        std::thread::scope(|s| {
            for thread in 0..8 {
                let (latch, inside) = (&latch, &inside);
                s.spawn(move || {
                    for i in 0..200 {
                        if (i + thread) % 3 == 0 {
                            latch.lock_exclusive();
                            assert_eq!(inside.swap(1, Relaxed), 0);
                            if i % 10 == 0 {
                                // Longer than any thread spins, so that the other threads sleep.
                                std::thread::sleep(std::time::Duration::from_micros(200));
                            }
                            inside.store(0, Relaxed);
                            latch.unlock_exclusive();
                        } else {
                            latch.lock_shared();
                            assert_eq!(inside.load(Relaxed), 0);
                            latch.unlock_shared();
                        }
                    }
                });
            }
        });
        assert!(latch.try_lock_exclusive());
    }
}
