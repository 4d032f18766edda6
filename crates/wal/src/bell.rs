//! The bell of a background thread: rung by whoever has work for it, at no cost while it is awake.
//!
//! | bell | the thread | who rings |
//! |---|---|---|
//! | awake | works, and will look for requests again before it rests | nobody |
//! | resting | sleeps for a bounded time | who requests something |
//! | asleep | sleeps until rung | who requests something, or appends the first record to an idle worker |
//!
//! - **BELL-1** The thread stores "resting" or "asleep", then looks for work once more; the ringer makes its
//!   work visible, then looks at the bell. Both put a sequentially consistent fence between the two steps, so
//!   at least one of them sees the other, and no work is slept over.
//!
//! Model: `tests/loom_bell.rs`.

use std::time::Duration;

use azekura_base::sync::WaitWord;
use azekura_base::sync::atomic::{AtomicBool, Ordering::*, fence};
use azekura_trace::{Site, WaitKind};

static IDLE: Site = Site::new("wal background idle");

const AWAKE: u32 = 0;
const RESTING: u32 = 1;
const ASLEEP: u32 = 2;

/// How a background thread is woken.
#[derive(Debug)]
pub struct Bell {
    word: WaitWord,
    /// Something is asked for. Set by requesters, cleared by the thread before it does the work.
    requested: AtomicBool,
}

impl Default for Bell {
    fn default() -> Self {
        Self::new()
    }
}

impl Bell {
    /// A bell of a thread that is awake.
    #[must_use]
    pub fn new() -> Self {
        Self { word: WaitWord::new(AWAKE), requested: AtomicBool::new(false) }
    }

    /// Asks the thread to do its work once more, from the start. Cheap when that is asked for already.
    ///
    /// What the work is about must be visible to who takes a latch that the caller held after making it so.
    pub fn request(&self) {
        // Acquire: if an older request is still there, the thread has not begun the work; it will see ours,
        // because it takes the latch of the buffer that we appended to after clearing the flag.
        if self.requested.load(Acquire) {
            return;
        }
        self.requested.store(true, Release);
        // BELL-1: pairs with the fence in `rest`.
        fence(SeqCst);
        if self.word.word().load(Relaxed) != AWAKE {
            self.ring();
        }
    }

    /// Tells a thread that sleeps without end that it had better rest for a bounded time only. The caller has
    /// made the reason visible.
    pub fn rouse(&self) {
        // BELL-1: pairs with the fence in `rest`.
        fence(SeqCst);
        if self.word.word().load(Relaxed) == ASLEEP {
            self.ring();
        }
    }

    /// Wakes the thread, whatever it does. Used at the end.
    pub fn ring(&self) {
        // AcqRel: whoever finds it awake leaves the system call to the one who woke it.
        if self.word.word().swap(AWAKE, AcqRel) != AWAKE {
            self.word.wake_one();
        }
    }

    /// Takes the request, if there is one; for the thread.
    pub fn take_request(&self) -> bool {
        // AcqRel: what was made visible before the request is visible to the work that follows.
        self.requested.load(Relaxed) && self.requested.swap(false, AcqRel)
    }

    /// Sleeps until rung, or for `limit`, unless there is a request or `has_work`; for the thread.
    pub fn rest(&self, limit: Option<Duration>, has_work: impl FnOnce() -> bool) {
        let state = if limit.is_some() { RESTING } else { ASLEEP };
        // A swap, not a store: it reads the last ring, so no ringer can mistake that ring for the newest
        // state.
        self.word.word().swap(state, AcqRel);
        // BELL-1: pairs with the fences in `request` and `rouse`.
        fence(SeqCst);
        if !self.requested.load(Relaxed) && !has_work() {
            let _idle = azekura_trace::wait(&IDLE, std::ptr::from_ref(self).addr(), WaitKind::Idle);
            self.word.wait(state, limit);
        }
        // Acquire: what the ringer did before is seen.
        self.word.word().swap(AWAKE, AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_request_made_while_awake_is_not_slept_over() {
        let bell = Bell::new();
        bell.request();
        bell.rest(None, || false);
        assert!(bell.take_request());
        assert!(!bell.take_request());
        bell.rest(None, || true);
    }

    #[test]
    fn a_request_wakes_a_sleeper_without_limit() {
        let bell = Bell::new();
        std::thread::scope(|s| {
            s.spawn(|| {
                while !bell.take_request() {
                    bell.rest(None, || false);
                }
            });
            bell.request();
        });
    }
}
