//! Notifier: starts or wakes a background job. While the job runs, a request makes no system call.
//!
//! | state | the job | left by |
//! |---|---|---|
//! | awake | runs, or is being started; checks for requests again before it rests | the job itself |
//! | resting | sleeps in its thread for a bounded time | a request |
//! | asleep | has ended | a request, or the first record in an idle log buffer: starts the job |
//!
//! - **NOTIFY-1** The job stores "resting" or "asleep", then checks for work once more. The requester makes
//!   its work visible, then reads the state. Both execute a sequentially consistent fence between the two
//!   steps. So at least one of them reads the other's write, and no request is lost.
//! - **NOTIFY-2** At most one job is awake or resting: the exchange that ends the state "asleep" starts a
//!   job. A job that stored "asleep" and then finds work continues only if its own exchange ends that state.
//!
//! Model: `tests/loom_notifier.rs`.

use std::time::Duration;

use azekura_base::background::Starter;
use azekura_base::sync::WaitWord;
use azekura_base::sync::atomic::{AtomicBool, Ordering::*, fence};
use azekura_trace::{Site, WaitKind};

static IDLE: Site = Site::new("wal background idle");

const AWAKE: u32 = 0;
const RESTING: u32 = 1;
const ASLEEP: u32 = 2;

/// Starts and wakes one background job.
#[derive(Debug)]
pub struct Notifier {
    word: WaitWord,
    /// `true` while a request is open. Set by requesters, cleared by the job before it does the work.
    requested: AtomicBool,
    starter: Starter,
}

impl Default for Notifier {
    fn default() -> Self {
        Self::new()
    }
}

impl Notifier {
    /// Returns the notifier of a job that is not started.
    #[must_use]
    pub fn new() -> Self {
        Self { word: WaitWord::new(ASLEEP), requested: AtomicBool::new(false), starter: Starter::default() }
    }

    /// Returns a notifier in the state of a running job, so that its owner can set the start function
    /// ([`starts`](Self::starts)) first and then let the job [`sleep`](Self::sleep) or
    /// [`restart`](Self::restart) it.
    #[must_use]
    pub fn awake() -> Self {
        Self { word: WaitWord::new(AWAKE), ..Self::new() }
    }

    /// Sets the function that starts the job. The job must call [`sleep`](Self::sleep) before it ends.
    pub fn starts(&self, start: impl Fn() + Send + Sync + 'static) {
        self.starter.set(start);
    }

    /// Requests that the job does its work once more, from the start. Costs one load if a request is open
    /// already.
    ///
    /// The caller must have made the work visible under a latch that the job takes to find it.
    pub fn request(&self) {
        // Acquire: if an older request is still open, the job has not begun the work. After it clears the
        // flag, the job takes the latch of the buffer to which the caller appended, and so finds the caller's
        // work.
        if self.requested.load(Acquire) {
            return;
        }
        self.requested.store(true, Release);
        // NOTIFY-1: pairs with the fence in `store_state`.
        fence(SeqCst);
        if self.word.word().load(Relaxed) != AWAKE {
            self.wake();
        }
    }

    /// Starts the job if it has ended; a resting job continues to rest. The caller has made the reason
    /// visible.
    pub fn wake_from_sleep(&self) {
        // NOTIFY-1: pairs with the fence in `store_state`.
        fence(SeqCst);
        if self.word.word().load(Relaxed) == ASLEEP {
            self.wake();
        }
    }

    /// Wakes the job, resting or asleep.
    pub fn wake(&self) {
        // AcqRel: a caller that finds the job awake leaves the start, or the system call, to the caller that
        // woke it.
        match self.word.word().swap(AWAKE, AcqRel) {
            RESTING => self.word.wake_one(),
            ASLEEP => self.starter.start(), // NOTIFY-2
            _ => {}
        }
    }

    /// Queues the job again. The calling job, which is awake, then ends and so yields its thread to other
    /// jobs.
    pub fn restart(&self) {
        self.starter.start();
    }

    /// Takes the open request, if there is one. Called by the job.
    pub fn take_request(&self) -> bool {
        // AcqRel: the job's work sees everything that the requester wrote before the request.
        self.requested.load(Relaxed) && self.requested.swap(false, AcqRel)
    }

    /// Sleeps in the thread for `limit`, or until woken, unless a request is open or `has_work` returns
    /// `true`. Called by the job.
    pub fn rest(&self, limit: Duration, has_work: impl FnOnce() -> bool) {
        self.store_state(RESTING);
        if !self.requested.load(Relaxed) && !has_work() {
            let _idle = azekura_trace::wait(&IDLE, std::ptr::from_ref(self).addr(), WaitKind::Idle);
            self.word.wait(RESTING, Some(limit));
        }
        // AcqRel: Acquire makes the waking thread's earlier writes visible.
        self.word.word().swap(AWAKE, AcqRel);
    }

    /// Stores "asleep". Returns `true` if the job must end now: a request starts it again, or has already
    /// done so. Returns `false` if the job must continue: a request is open, or `has_work` returned `true`.
    /// Called by the job.
    #[must_use]
    pub fn sleep(&self, has_work: impl FnOnce() -> bool) -> bool {
        self.store_state(ASLEEP);
        if !self.requested.load(Relaxed) && !has_work() {
            return true;
        }
        // NOTIFY-2. AcqRel: Acquire makes the requester's earlier writes visible.
        self.word.word().swap(AWAKE, AcqRel) != ASLEEP
    }

    fn store_state(&self, state: u32) {
        // AcqRel. A swap instead of a store: it reads the last wake-up, so no requester can take that wake-up
        // for the newest state.
        self.word.word().swap(state, AcqRel);
        // NOTIFY-1: pairs with the fences in `request` and `wake_from_sleep`.
        fence(SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_request_made_while_awake_is_not_lost() {
        let notifier = Notifier::new();
        notifier.request();
        notifier.rest(LONG, || false);
        assert!(!notifier.sleep(|| false));
        assert!(notifier.take_request());
        assert!(!notifier.take_request());
        notifier.rest(LONG, || true);
        assert!(!notifier.sleep(|| true));
        assert!(notifier.sleep(|| false));
    }

    #[test]
    fn a_request_wakes_a_job_that_rests() {
        let notifier = Notifier::new();
        notifier.wake(); // the job's start
        std::thread::scope(|s| {
            s.spawn(|| {
                while !notifier.take_request() {
                    notifier.rest(LONG, || false);
                }
            });
            notifier.request();
        });
    }

    #[test]
    fn a_job_that_sleeps_is_started_once_however_many_ask_for_it() {
        let (notifier, started) = (Notifier::new(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&started);
        notifier.starts(move || {
            count.fetch_add(1, Relaxed); // one thread
        });
        let starts = || started.load(Relaxed); // one thread
        for round in 1..=3 {
            notifier.request();
            notifier.request();
            notifier.wake_from_sleep();
            assert_eq!(starts(), round);
            assert!(notifier.take_request());
            assert!(notifier.sleep(|| false));
        }
        notifier.wake_from_sleep();
        assert_eq!((starts(), notifier.take_request()), (4, false));
        // A request between the job's store and its check starts another job: this one must end.
        let comes = || {
            notifier.wake_from_sleep();
            true
        };
        assert!(notifier.sleep(comes));
        assert_eq!(starts(), 5);
    }
}
