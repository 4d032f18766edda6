//! Storage of a reader–writer latch's state, and its changes: the two variants of the paper's Fig. 9.

use std::time::{Duration, Instant};

use azekura_base::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Relaxed};
use azekura_trace::{Site, ThreadTag, WaitKind, thread_tag};

use super::State;
use crate::SyncMutex;

/// Entry or exit of the calling thread in a change of state, for a cell that records holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movement {
    /// No entry and no exit.
    None,
    /// The calling thread enters, shared or exclusively.
    Enters,
    /// The calling thread leaves.
    Leaves,
}

/// A place for a [`State`] that threads change one after another.
///
/// - **CELL-1** Each change is applied to the state that the change before it left.
/// - **CELL-2** The effects of a thread before a change are visible to each thread that applies a later one.
pub trait StateCell: Send + Sync {
    /// Creates a cell without holders. `inside` names its mutex or word in traces.
    fn new(inside: &'static Site) -> Self;

    /// The state as it was a moment ago. Orders nothing.
    fn peek(&self) -> State;

    /// Applies `change`, which may run several times; its last result counts. It also returns the movement.
    fn update<R>(&self, change: impl FnMut(&mut State) -> (R, Movement)) -> R;
}

/// The state guarded by a mutex, as InnoDB 5.0 had it (Fig. 9a): two turns of the mutex for each hold of the
/// latch.
#[derive(Debug)]
pub struct Guarded {
    mutex: SyncMutex<()>,
    /// Changed only with the mutex held; peeked at without, as `writer` is there.
    state: AtomicU64,
}

impl StateCell for Guarded {
    fn new(mutex: &'static Site) -> Self {
        Self { mutex: SyncMutex::new(mutex, ()), state: AtomicU64::new(0) }
    }

    fn peek(&self) -> State {
        State::unpack(self.state.load(Relaxed))
    }

    fn update<R>(&self, mut change: impl FnMut(&mut State) -> (R, Movement)) -> R {
        // CELL-1, CELL-2: by the mutex. Relaxed: the same.
        let _turn = self.mutex.lock();
        let mut state = State::unpack(self.state.load(Relaxed));
        let (result, _) = change(&mut state);
        self.state.store(state.pack(), Relaxed);
        result
    }
}

/// The state in one word, changed by compare-and-swap (Fig. 9b): no mutex.
///
/// Under contention a compare-and-swap fails when another thread was faster, and is repeated. This costs
/// processor time and holds no lock. The trace records it as a wait of the kind [`WaitKind::Retry`], from the
/// first failure to the success.
#[derive(Debug)]
pub struct OneWord {
    word: AtomicU64,
    site: &'static Site,
}

impl StateCell for OneWord {
    fn new(inside: &'static Site) -> Self {
        Self { word: AtomicU64::new(0), site: inside }
    }

    fn peek(&self) -> State {
        State::unpack(self.word.load(Relaxed))
    }

    fn update<R>(&self, mut change: impl FnMut(&mut State) -> (R, Movement)) -> R {
        let mut old = self.word.load(Relaxed); // a guess; the CAS decides
        let mut retrying = None;
        loop {
            let mut state = State::unpack(old);
            let (result, _) = change(&mut state);
            let new = state.pack();
            // Nothing to change: a refusal, which reads nothing that the latch guards.
            if new == old {
                return result;
            }
            // AcqRel: CELL-2, both sides; pairs with itself.
            match self.word.compare_exchange_weak(old, new, AcqRel, Relaxed) {
                Ok(_) => return result,
                Err(now) => old = now,
            }
            retrying.get_or_insert_with(|| {
                let address = std::ptr::from_ref(&self.word).addr();
                azekura_trace::wait(self.site, address, WaitKind::Retry)
            });
        }
    }
}

/// As [`Guarded`], and the mutex also guards a list of holders with their start times, as in InnoDB's debug
/// build (`rw_lock_debug_t`): the mutex is held for longer.
#[derive(Debug)]
pub struct Accounted {
    mutex: SyncMutex<Account>,
    /// As in [`Guarded`].
    state: AtomicU64,
}

/// Holders of a latch.
#[derive(Debug, Default)]
struct Account {
    #[expect(
        clippy::vec_box,
        reason = "each is a piece of memory of its own there, taken and freed under the mutex"
    )]
    holders: Vec<Box<Holder>>,
    longest: Duration,
}

#[derive(Debug)]
struct Holder {
    thread: ThreadTag,
    since: Instant,
}

impl Account {
    fn note(&mut self, movement: Movement) {
        let me = thread_tag();
        match movement {
            Movement::None => {}
            Movement::Enters => self.holders.push(Box::new(Holder { thread: me, since: Instant::now() })),
            Movement::Leaves => {
                if let Some(at) = self.holders.iter().position(|h| h.thread == me) {
                    let held = self.holders.swap_remove(at).since.elapsed();
                    self.longest = self.longest.max(held);
                }
            }
        }
    }
}

impl Accounted {
    /// Threads that are in, and the longest hold that has ended.
    #[must_use]
    pub fn account(&self) -> (usize, Duration) {
        let account = self.mutex.lock();
        (account.holders.len(), account.longest)
    }
}

impl StateCell for Accounted {
    fn new(mutex: &'static Site) -> Self {
        Self { mutex: SyncMutex::new(mutex, Account::default()), state: AtomicU64::new(0) }
    }

    fn peek(&self) -> State {
        State::unpack(self.state.load(Relaxed))
    }

    fn update<R>(&self, mut change: impl FnMut(&mut State) -> (R, Movement)) -> R {
        // CELL-1, CELL-2: by the mutex. Relaxed: the same.
        let mut account = self.mutex.lock();
        let mut state = State::unpack(self.state.load(Relaxed));
        let (result, movement) = change(&mut state);
        account.note(movement);
        self.state.store(state.pack(), Relaxed);
        result
    }
}
