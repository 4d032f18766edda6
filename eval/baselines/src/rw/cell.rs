//! Storage and changes of a reader–writer latch's state: the two variants of the paper's Fig. 9, and a third
//! one.

use std::time::{Duration, Instant};

use azekura_base::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Relaxed};
use azekura_trace::{Site, ThreadTag, WaitKind, thread_tag};

use super::State;
use crate::SyncMutex;

/// The movement of the calling thread in a change of state, for a cell that records holders.
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
/// - **CELL-1** Each change is applied to the result of the previous change.
/// - **CELL-2** A thread's effects before its change are visible to each thread that applies a later change.
pub trait StateCell: Send + Sync {
    /// Creates a cell without holders. `inside` names its mutex or word in traces.
    fn new(inside: &'static Site) -> Self;

    /// Returns a recent state. Relaxed: orders nothing.
    fn peek(&self) -> State;

    /// Applies `change`, which may run several times; the result of its last run is returned. `change` also
    /// returns the movement.
    fn update<R>(&self, change: impl FnMut(&mut State) -> (R, Movement)) -> R;
}

/// The state guarded by a mutex, as in InnoDB 5.0 (Fig. 9a): the mutex is locked twice for each hold of the
/// latch.
#[derive(Debug)]
pub struct Guarded {
    mutex: SyncMutex<()>,
    /// Changed only with the mutex held, but read without it by `peek`, as InnoDB reads its member `writer`.
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
        // CELL-1, CELL-2: by the mutex. Relaxed: the mutex orders the accesses.
        let _turn = self.mutex.lock();
        let mut state = State::unpack(self.state.load(Relaxed));
        let (result, _) = change(&mut state);
        self.state.store(state.pack(), Relaxed);
        result
    }
}

/// The state in one word, changed by compare-and-swap (Fig. 9b), without a mutex.
///
/// A compare-and-swap fails if another thread was faster, and is repeated. This costs processor time and
/// holds no lock. The trace records it as a wait of kind [`WaitKind::Retry`], from the first failure to the
/// success.
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
        let mut old = self.word.load(Relaxed); // Relaxed: a hint; the CAS decides
        let mut retrying = None;
        loop {
            let mut state = State::unpack(old);
            let (result, _) = change(&mut state);
            let new = state.pack();
            // No change, as in a failed attempt, which reads nothing that the latch protects.
            if new == old {
                return result;
            }
            // AcqRel: CELL-2; pairs with the same operation of other threads.
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

/// The state guarded by a mutex as in [`Guarded`]. The mutex also guards a list of holders with their start
/// times, as in InnoDB's debug build (`rw_lock_debug_t`), so it is held for longer.
#[derive(Debug)]
pub struct Accounted {
    mutex: SyncMutex<Account>,
    /// Changed only with the mutex held, but read without it by `peek`.
    state: AtomicU64,
}

/// The holders of a latch.
#[derive(Debug, Default)]
struct Account {
    #[expect(clippy::vec_box, reason = "as in InnoDB, each entry is allocated and freed under the mutex")]
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
    /// Returns the number of holders, and the longest hold that has ended.
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
        // CELL-1, CELL-2: by the mutex. Relaxed: the mutex orders the accesses.
        let mut account = self.mutex.lock();
        let mut state = State::unpack(self.state.load(Relaxed));
        let (result, movement) = change(&mut state);
        account.note(movement);
        self.state.store(state.pack(), Relaxed);
        result
    }
}
