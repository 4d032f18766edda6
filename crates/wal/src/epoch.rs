//! Epochs: a commit is acknowledged when all of its epoch is durable (Silo, section 4.10; the P-WAL paper's
//! section 6.3).
//!
//! 1. Every `interval` the epoch job **ends** the epoch: it reads the LSN counter, and the value becomes the
//!    epoch's boundary.
//! 2. The epoch job requests a flush of every stream up to the boundary, all at the same time.
//! 3. Once everything below the boundary is durable in every stream, the epoch is **published**: its commits
//!    are acknowledged.
//!
//! Silo's workers store the epoch number at a commit's serialization point, and its loggers report the epoch
//! up to which they have written. Here an LSN below the boundary replaces the epoch number in the record. A
//! commit's LSN is above those of the commits that released its locks (RANGE-3), so no epoch depends on a
//! later one. (A log buffer that has drawn LSNs ahead may give a commit an LSN below the boundary after the
//! epoch has ended. That commit belongs to the epoch and is published with it.) Recovery is the same as for
//! the other protocols: the log is cut at the first missing LSN, which no published epoch contains.
//!
//! | `published` | state | left by |
//! |---|---|---|
//! | `boundary - 1` | the ended epochs are durable | the thread that ends the next one: raises `boundary` |
//! | less | the last ended epoch is in flight | the thread that finds it durable: raises `published` |
//!
//! - **EPOCH-1** A commit is acknowledged only once `published` has reached its LSN, and `published` moves
//!   from one boundary to the next: no commit of an epoch is acknowledged before the whole epoch is durable.
//! - **EPOCH-2** An epoch ends only after the previous one is published. So under any load the flushes that
//!   begin after the end of an epoch make it durable, and no commit starves.
//! - **EPOCH-3** A waiter increments the count, executes a fence, and reads `published`. A publisher raises
//!   `published`, executes a fence, and reads the count. At least one of the two reads the other's value, so
//!   no waiter sleeps after its epoch is published.
//!
//! Model: `tests/loom_epoch.rs`.

use azekura_base::sync::WaitWord;
use azekura_base::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};
use azekura_base::{CachePadded, Lsn};
use azekura_trace::{Site, WaitKind};

use crate::durable_lsn::DurableHorizon;
use crate::notifier::Notifier;

static EPOCH_WAIT: Site = Site::new("wal epoch");

/// The epochs of one log.
#[derive(Debug)]
pub struct EpochClock {
    /// The first LSN that does not belong to an ended epoch. Raised by the thread that ends an epoch, read by
    /// publishers.
    boundary: CachePadded<AtomicU64>,
    /// Everything up to this LSN is durable and acknowledged. Raised by publishers, read by all threads.
    published: CachePadded<AtomicU64>,
    /// Number of ended epochs.
    ended: AtomicU64,
    /// Number of threads that wait, or are about to.
    waiting: AtomicU32,
    /// Changes with every published epoch that has waiters.
    word: WaitWord,
    /// Wakes the job that ends epochs.
    pub(crate) notifier: Notifier,
}

impl EpochClock {
    /// Returns a clock with `first_lsn` as the first LSN of the first epoch.
    #[must_use]
    pub fn new(first_lsn: Lsn) -> Self {
        Self {
            boundary: CachePadded::new(AtomicU64::new(first_lsn.0)),
            published: CachePadded::new(AtomicU64::new(first_lsn.0.saturating_sub(1))),
            ended: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            word: WaitWord::new(0),
            notifier: Notifier::new(),
        }
    }

    /// Ends the epoch, unless the previous one is still in flight to disk (EPOCH-2). Returns `true` if an
    /// ended epoch is in flight after the call.
    pub fn end(&self, horizon: &DurableHorizon) -> bool {
        // Relaxed: the boundary is only compared; no data is read through it.
        let boundary = self.boundary.load(Relaxed);
        if self.published.load(Relaxed) + 1 < boundary {
            return true;
        }
        // `next_lsn` is an Acquire load: every LSN below the value was drawn before (HORIZON-2).
        let next = horizon.next_lsn().0;
        if next <= boundary {
            return false;
        }
        // Relaxed: a publisher relies on the horizon, not on the boundary. If a publisher misses this
        // boundary, the thread that ended the epoch publishes after its own fence and reads the publisher's
        // marks. If two threads end the epoch, one exchange succeeds; the other thread's LSNs belong to the
        // next epoch.
        if self.boundary.compare_exchange(boundary, next, Relaxed, Relaxed).is_ok() {
            self.ended.fetch_add(1, Relaxed);
        }
        true
    }

    /// Publishes the ended epoch if it is durable by `horizon`, and wakes the waiters. Returns the last
    /// acknowledged LSN. Each thread that has moved marks or ended an epoch executes a fence and then calls
    /// this function, so the last of these threads publishes.
    pub fn publish(&self, horizon: &DurableHorizon) -> Lsn {
        // Relaxed: see `end`.
        let boundary = self.boundary.load(Relaxed);
        if self.published.load(Relaxed) + 1 < boundary && horizon.has_reached(Lsn(boundary - 1)) {
            // AcqRel: a thread that reads this epoch as published also sees the writes that the computation
            // of the horizon saw. Pairs with `published`.
            let before = self.published.fetch_max(boundary - 1, AcqRel);
            // EPOCH-3: pairs with the fence in `wait`.
            fence(SeqCst);
            if before + 1 < boundary && self.waiting.load(Relaxed) > 0 {
                self.wake_everyone();
            }
        }
        self.published()
    }

    /// Returns the LSN up to which commits are acknowledged: one load.
    #[must_use]
    pub fn published(&self) -> Lsn {
        // Acquire: pairs with the Release in `publish`.
        Lsn(self.published.load(Acquire))
    }

    /// Returns the first LSN that does not belong to an ended epoch.
    #[must_use]
    pub fn boundary(&self) -> Lsn {
        Lsn(self.boundary.load(Acquire))
    }

    /// Returns `true` if LSNs were drawn that are not in a published epoch.
    #[must_use]
    pub fn has_unpublished(&self, horizon: &DurableHorizon) -> bool {
        self.published().0 + 1 < horizon.next_lsn().0
    }

    /// Returns the number of ended epochs.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.ended.load(Relaxed)
    }

    /// Sleeps until an epoch is published, unless `lsn` is acknowledged or the log `has_failed`. May return
    /// early.
    pub fn wait(&self, lsn: Lsn, has_failed: impl FnOnce() -> bool) {
        self.waiting.fetch_add(1, Relaxed);
        // Acquire: orders the checks below after this load.
        let expected = self.word.word().load(Acquire);
        // EPOCH-3: pairs with the fences in `publish` and in `Log::fail`.
        fence(SeqCst);
        if self.published() < lsn && !has_failed() {
            let _wait = azekura_trace::wait(&EPOCH_WAIT, std::ptr::from_ref(self).addr(), WaitKind::Log);
            azekura_base::blocking::announce();
            self.word.wait(expected, None);
        }
        self.waiting.fetch_sub(1, Relaxed);
    }

    /// Wakes all waiters to check again.
    pub fn wake_everyone(&self) {
        self.word.word().fetch_add(1, Release);
        self.word.wake_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_published_as_a_whole_and_the_next_ends_after_it() {
        let horizon = DurableHorizon::new(2, Lsn(1));
        let clock = EpochClock::new(Lsn(1));
        assert!(!clock.end(&horizon), "nothing was logged");
        horizon.draw(0);
        horizon.draw(1);
        assert!(clock.end(&horizon));
        assert_eq!((clock.boundary(), clock.ended()), (Lsn(3), 1));
        horizon.draw(0);
        horizon.mark_durable(0, None);
        assert_eq!(horizon.compute(), Lsn(1));
        assert_eq!(clock.publish(&horizon), Lsn(0), "1 is durable, but 2 is of its epoch");
        assert!(clock.end(&horizon), "still on its way");
        assert_eq!(clock.boundary(), Lsn(3), "EPOCH-2");
        horizon.mark_durable(1, None);
        assert_eq!(horizon.compute(), Lsn(3));
        assert_eq!(clock.publish(&horizon), Lsn(2), "3 is durable, but its epoch has not ended");
        assert!(clock.has_unpublished(&horizon));
        assert!(clock.end(&horizon));
        assert_eq!((clock.publish(&horizon), clock.ended()), (Lsn(3), 2));
        assert!(!clock.has_unpublished(&horizon));
    }
}
