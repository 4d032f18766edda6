//! Notifier: wakes a background thread that sleeps, and costs nothing while the thread runs.
//!
//! | state | the thread | woken by |
//! |---|---|---|
//! | awake | works, and looks for requests again before it rests | |
//! | resting | sleeps for a bounded time | a request |
//! | asleep | sleeps without a time limit | a request, or the first record in an idle log buffer |
//!
//! - **NOTIFY-1** The thread stores "resting" or "asleep", then looks for work once more. The requester makes
//!   its work visible, then looks at the state. Both put a sequentially consistent fence between the two
//!   steps, so at least one of them sees the other, and no wake-up is lost.
//!
//! Model: `tests/loom_notifier.rs`.

use std::time::Duration;

use azekura_base::sync::WaitWord;
use azekura_base::sync::atomic::{AtomicBool, Ordering::*, fence};
use azekura_trace::{Site, WaitKind};

static IDLE: Site = Site::new("wal background idle");

const AWAKE: u32 = 0;
const RESTING: u32 = 1;
const ASLEEP: u32 = 2;

/// Wakes one background thread.
#[derive(Debug)]
pub struct Notifier {
    word: WaitWord,
    /// A request is open. Set by requesters, cleared by the thread before it does the work.
    requested: AtomicBool,
}

impl Default for Notifier {
    fn default() -> Self {
        Self::new()
    }
}

impl Notifier {
    /// Returns the notifier of a thread that is awake.
    #[must_use]
    pub fn new() -> Self {
        Self { word: WaitWord::new(AWAKE), requested: AtomicBool::new(false) }
    }

    /// Asks the thread to do its work once more, from the start. Cheap if a request is open already.
    ///
    /// The work must be visible to a thread that takes a latch that the caller held after it made the work.
    pub fn request(&self) {
        // Acquire: if an older request is still open, the thread has not begun the work. It will see the
        // caller's, because it takes the latch of the buffer that the caller appended to after it clears the
        // flag.
        if self.requested.load(Acquire) {
            return;
        }
        self.requested.store(true, Release);
        // NOTIFY-1: pairs with the fence in `rest`.
        fence(SeqCst);
        if self.word.word().load(Relaxed) != AWAKE {
            self.wake();
        }
    }

    /// Wakes a thread that sleeps without a time limit, so that it rests for a bounded time instead. The
    /// caller has made the reason visible.
    pub fn wake_from_sleep(&self) {
        // NOTIFY-1: pairs with the fence in `rest`.
        fence(SeqCst);
        if self.word.word().load(Relaxed) == ASLEEP {
            self.wake();
        }
    }

    /// Wakes the thread, resting or asleep.
    pub fn wake(&self) {
        // AcqRel: a caller that finds the thread awake leaves the system call to the caller that woke it.
        if self.word.word().swap(AWAKE, AcqRel) != AWAKE {
            self.word.wake_one();
        }
    }

    /// Takes the open request, if there is one. Called by the thread.
    pub fn take_request(&self) -> bool {
        // AcqRel: what was made visible before the request is visible to the work that follows.
        self.requested.load(Relaxed) && self.requested.swap(false, AcqRel)
    }

    /// Sleeps until woken, or for `limit`, unless a request is open or `has_work` returns `true`. Called by
    /// the thread.
    pub fn rest(&self, limit: Option<Duration>, has_work: impl FnOnce() -> bool) {
        let state = if limit.is_some() { RESTING } else { ASLEEP };
        // A swap, not a store: it reads the last wake-up, so no requester can take that wake-up for the
        // newest state.
        self.word.word().swap(state, AcqRel);
        // NOTIFY-1: pairs with the fences in `request` and `wake_from_sleep`.
        fence(SeqCst);
        if !self.requested.load(Relaxed) && !has_work() {
            let _idle = azekura_trace::wait(&IDLE, std::ptr::from_ref(self).addr(), WaitKind::Idle);
            self.word.wait(state, limit);
        }
        // Acquire: what the waking thread did before is visible.
        self.word.word().swap(AWAKE, AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_request_made_while_awake_is_not_lost() {
        let notifier = Notifier::new();
        notifier.request();
        notifier.rest(None, || false);
        assert!(notifier.take_request());
        assert!(!notifier.take_request());
        notifier.rest(None, || true);
    }

    #[test]
    fn a_request_wakes_a_sleeper_without_limit() {
        let notifier = Notifier::new();
        std::thread::scope(|s| {
            s.spawn(|| {
                while !notifier.take_request() {
                    notifier.rest(None, || false);
                }
            });
            notifier.request();
        });
    }
}
