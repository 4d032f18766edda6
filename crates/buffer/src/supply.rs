//! Supplies frames to misses that found no victim: the miss sleeps, and the cleaner frees frames and wakes
//! it.
//!
//! 1. A miss takes a frame from the free list, or searches for a victim among at most [`MISS_LOOKS`] frames.
//! 2. If the miss found no victim, it *registers*, checks the free list once more, calls the cleaner, and
//!    sleeps until the word changes.
//! 3. The cleaner writes batches of dirty pages. After each batch the thread that wrote it evicts pages by
//!    the policy's rule, puts their frames into the free list, and *notifies*.
//! 4. A round of the cleaner that could neither write nor free a page ends the wait as *stuck*: every frame
//!    is pinned or latched, or the device failed. The miss then searches all frames and writes a page itself.
//!    It finds a frame that was released meanwhile, or returns the error.
//!
//! - **SUPPLY-1** No wake-up is lost. The miss registers (a read-modify-write of the word) before it checks
//!   the free list; the cleaner pushes before it notifies (a read-modify-write too). If the registration
//!   comes first, the notification reads it, changes the word and wakes the miss. If the notification comes
//!   first, the registration acquires the push, and the check finds the frame.
//! - **SUPPLY-2** Each call of the cleaner is followed by a round that begins after the call: the cleaner
//!   clears the call before the round, not after it (see `cleaner`). A round with a registered miss ends with
//!   a notification.
//! - **SUPPLY-3** No miss sleeps without a cleaner: the end of the cleaner changes the word after
//!   `has_cleaner` was cleared.

use azekura_base::sync::WaitWord;
use azekura_base::sync::atomic::{
    AtomicBool, AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Largest number of frames that one search of a miss checks, if there is a cleaner.
pub(crate) const MISS_LOOKS: usize = 64;

/// Bit of the word: a miss is registered. The bits above count notifications.
const REGISTERED: u32 = 1;
const NOTIFICATION: u32 = 2;

/// The word on which misses wait for free frames.
#[derive(Debug)]
pub(crate) struct FrameSupply {
    word: WaitWord,
    /// Number of rounds of the cleaner that freed nothing for a registered miss.
    stuck: AtomicU32,
    has_cleaner: AtomicBool,
    /// `true` if a search found dirty frames since the last round of the cleaner.
    is_wanted: AtomicBool,
}

/// A registration: the value of the word at that moment.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Registration {
    word: u32,
    stuck: u32,
}

impl Default for FrameSupply {
    fn default() -> Self {
        Self {
            word: WaitWord::new(0),
            stuck: AtomicU32::new(0),
            has_cleaner: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
        }
    }
}

impl FrameSupply {
    /// Returns `true` if a cleaner frees frames.
    pub(crate) fn has_cleaner(&self) -> bool {
        self.has_cleaner.load(Relaxed) // Relaxed: SUPPLY-3 corrects an outdated answer
    }

    /// Records that a cleaner frees frames from now on.
    pub(crate) fn begin(&self) {
        self.has_cleaner.store(true, Relaxed); // Relaxed: a miss that reads the old value searches itself
    }

    /// Records that the cleaner has stopped, and wakes every miss (SUPPLY-3).
    pub(crate) fn end(&self) {
        self.has_cleaner.store(false, Relaxed); // Relaxed: published by the word
        self.notify();
    }

    /// Records that a search found dirty frames, so that the cleaner keeps some frames free for a while.
    pub(crate) fn want(&self) {
        // Relaxed, here and below: a hint; a miss that finds no frame registers.
        if !self.is_wanted.load(Relaxed) {
            self.is_wanted.store(true, Relaxed);
        }
    }

    /// Returns `true` if searches found dirty frames since the last round.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Relaxed)
    }

    /// Records the end of a round of the cleaner.
    pub(crate) fn end_round(&self) {
        self.is_wanted.store(false, Relaxed);
    }

    /// Registers the calling miss, which must then check the free list before it waits.
    pub(crate) fn register(&self) -> Registration {
        // AcqRel: acquires the pushes before earlier notifications; later notifications read the registration
        // (SUPPLY-1).
        let word = self.word.word().fetch_or(REGISTERED, AcqRel) | REGISTERED;
        Registration { word, stuck: self.stuck.load(Relaxed) } // Relaxed: ordered by the word
    }

    /// Sleeps until the next notification after the registration. Returns `false` if the cleaner is stuck or
    /// has stopped.
    pub(crate) fn wait(&self, registration: Registration) -> bool {
        while self.has_cleaner() {
            // Acquire: pairs with the Release of `notify`: its pushes, `stuck` and `has_cleaner` are visible.
            if self.word.word().load(Acquire) != registration.word {
                return self.stuck.load(Relaxed) == registration.stuck && self.has_cleaner();
            }
            self.word.wait(registration.word, None);
        }
        false
    }

    /// Returns `true` if a miss is registered and was not notified.
    pub(crate) fn is_awaited(&self) -> bool {
        self.word.word().load(Relaxed) & REGISTERED != 0 // Relaxed: a hint (see SUPPLY-2)
    }

    /// Wakes every registered miss, because frames were freed.
    pub(crate) fn notify(&self) {
        let word = self.word.word();
        let mut before = word.load(Relaxed);
        // Release: publishes the pushes before this call. Acquire: the earlier work of registered misses
        // (SUPPLY-1).
        while let Err(now) = word.compare_exchange_weak(
            before,
            (before & !REGISTERED).wrapping_add(NOTIFICATION),
            AcqRel,
            Relaxed, // Relaxed: the next attempt decides
        ) {
            before = now;
        }
        if before & REGISTERED != 0 {
            self.word.wake_all();
        }
    }

    /// Wakes every registered miss, because a round freed nothing; each miss then searches itself.
    pub(crate) fn notify_stuck(&self) {
        self.stuck.fetch_add(1, Release); // Release: published by the word as well
        self.notify();
    }
}
