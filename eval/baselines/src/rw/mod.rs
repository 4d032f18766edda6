//! The reader–writer latch of InnoDB 5.0, with its state guarded by a mutex or in one word.
//!
//! From T. Horikawa's study of lock contention by event tracing (IPSJ TOD 2010): the mutex inside the latch
//! limited the scalability of MySQL, and a word changed by compare-and-swap removed the limit (section 5.1,
//! Figs 7 to 9). [`StateCell`] has both variants; admission, spinning, sleeping and waking are the same code
//! for both. The store itself uses [`HybridLatch`](azekura_latch::HybridLatch).
//!
//! To enter:
//! 1. Change the state to one that includes this thread. Without conflict this is sufficient.
//! 2. Spin for a while, reading the state without changing it; yield; try again.
//! 3. Set the waiters bit, sleep until a release wakes the thread, then continue with step 2.
//!
//! A writer that finds readers in step 1 claims the next turn, which excludes new readers.
//!
//! - **RW-1** While the state has a writer that holds the latch, there are no readers, and only that writer
//!   uses the value exclusively. While the state counts readers, no thread uses the value exclusively.
//! - **RW-2** A sleeping thread has read the bucket's count before it set the waiters bit. The thread that
//!   clears the bit increments the count afterward (PARK-1). The bit is cleared whenever the latch becomes
//!   free.

mod cell;
mod state;

pub use cell::{Accounted, Guarded, Movement, OneWord, StateCell};
pub use state::{MOST_READERS, State, Turn, Writer};

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use azekura_trace::{HoldGuard, HoldMode, Site, WaitKind, hold, thread_tag, wait_for};

use crate::sync_mutex::spin_while;
use azekura_latch::park::Bucket;

/// A reader–writer latch around a value.
///
/// Waiting writers go before new readers. The latch is not reentrant: a holder that locks again may deadlock
/// with itself.
///
/// ```
/// use azekura_baselines::rw::{OneWord, RwLatch};
/// use azekura_trace::Site;
/// static TABLE: Site = Site::new("table");
/// static TABLE_WORD: Site = Site::new("word of table");
///
/// let latch = RwLatch::<OneWord, _>::new(&TABLE, &TABLE_WORD, vec![1]);
/// let (a, b) = (latch.shared(), latch.shared());
/// assert_eq!(a.len() + b.len(), 2);
/// drop((a, b));
/// latch.exclusive().push(2);
/// assert_eq!(*latch.shared(), [1, 2]);
/// ```
#[derive(Debug)]
pub struct RwLatch<S, T> {
    cell: S,
    site: &'static Site,
    value: UnsafeCell<T>,
    /// Lets a model detect that two threads use the value without an order between them.
    #[cfg(loom)]
    witness: loom::cell::UnsafeCell<()>,
}

// SAFETY: RW-1 lets one thread change the value (so it must be Send) or several read it (so it must be Sync).
unsafe impl<S: StateCell, T: Send + Sync> Sync for RwLatch<S, T> {}

impl<S: StateCell, T> RwLatch<S, T> {
    /// Creates a free latch around `value`. Its waits are traced under `site`, those for the mutex or word
    /// inside under `inside`.
    #[must_use]
    pub fn new(site: &'static Site, inside: &'static Site, value: T) -> Self {
        Self {
            cell: S::new(inside),
            site,
            value: UnsafeCell::new(value),
            #[cfg(loom)]
            witness: loom::cell::UnsafeCell::new(()),
        }
    }

    /// Returns the cell with the state.
    pub fn cell(&self) -> &S {
        &self.cell
    }

    /// Locks the latch shared. Blocks while a writer holds it or has claimed the next turn.
    #[inline]
    pub fn shared(&self) -> SharedGuard<'_, S, T> {
        let mut attempt = |state: &mut State| match state.enter_shared() {
            true => (true, Movement::Enters),
            false => (false, Movement::None),
        };
        if !self.cell.update(&mut attempt) {
            self.wait(&mut attempt, |state| state.writer() != Writer::None);
        }
        #[cfg(loom)]
        self.witness.with(|_| ());
        SharedGuard { latch: self, _hold: hold(self.site, self.address(), HoldMode::Shared) }
    }

    /// Locks the latch exclusively. Blocks while another thread holds it.
    #[inline]
    pub fn exclusive(&self) -> ExclusiveGuard<'_, S, T> {
        let me = thread_tag();
        let mut has_claimed = false;
        // The change may run several times. Only its last run is effective, so the claim is taken from the
        // result.
        let enter = |has_claimed: bool| {
            move |state: &mut State| {
                let turn = state.enter_exclusive(has_claimed, me);
                (turn, if turn == Turn::Mine { Movement::Enters } else { Movement::None })
            }
        };
        let turn = self.cell.update(enter(false));
        if turn != Turn::Mine {
            has_claimed |= turn == Turn::Next;
            self.wait_exclusive(has_claimed, enter);
        }
        #[cfg(loom)]
        self.witness.with_mut(|_| ());
        ExclusiveGuard { latch: self, _hold: hold(self.site, self.address(), HoldMode::Exclusive) }
    }

    #[cold]
    fn wait_exclusive<F: FnMut(&mut State) -> (Turn, Movement)>(
        &self,
        mut has_claimed: bool,
        enter: impl Fn(bool) -> F,
    ) {
        let _waiting = self.waiting();
        let bucket = Bucket::of(self.address());
        loop {
            spin_while(|| {
                let state = self.cell.peek();
                state.readers() > 0 || !has_claimed && state.writer() != Writer::None
            });
            let turn = self.cell.update(enter(has_claimed));
            has_claimed |= turn == Turn::Next;
            if turn == Turn::Mine {
                return;
            }
            let count = bucket.count();
            let turn = self.cell.update(|state| {
                let (turn, movement) = enter(has_claimed)(state);
                if turn != Turn::Mine {
                    state.note_waiter(); // RW-2
                }
                (turn, movement)
            });
            has_claimed |= turn == Turn::Next;
            if turn == Turn::Mine {
                return;
            }
            bucket.sleep(count);
        }
    }

    #[cold]
    fn wait(
        &self,
        attempt: &mut impl FnMut(&mut State) -> (bool, Movement),
        is_in_the_way: impl Fn(State) -> bool,
    ) {
        let _waiting = self.waiting();
        let bucket = Bucket::of(self.address());
        loop {
            spin_while(|| is_in_the_way(self.cell.peek()));
            if self.cell.update(&mut *attempt) {
                return;
            }
            let count = bucket.count();
            let entered = self.cell.update(|state| {
                let (entered, movement) = attempt(state);
                if !entered {
                    state.note_waiter(); // RW-2
                }
                (entered, movement)
            });
            if entered {
                return;
            }
            bucket.sleep(count);
        }
    }

    fn waiting(&self) -> azekura_trace::WaitGuard {
        wait_for(self.site, self.address(), WaitKind::Latch, self.cell.peek().writer_thread())
    }

    fn address(&self) -> usize {
        &raw const *self as *const u8 as usize
    }

    fn leave(&self, mut leave: impl FnMut(&mut State) -> bool) {
        if self.cell.update(|state| (leave(state), Movement::Leaves)) {
            Bucket::of(self.address()).wake();
        }
    }

    /// Returns the value through the exclusive reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// Shared access to the value of an [`RwLatch`].
#[derive(Debug)]
#[must_use]
pub struct SharedGuard<'a, S: StateCell, T> {
    latch: &'a RwLatch<S, T>,
    /// Dropped after the latch is released.
    _hold: HoldGuard,
}

impl<S: StateCell, T> Deref for SharedGuard<'_, S, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: RW-1: this guard is one of the readers in the state.
        unsafe { &*self.latch.value.get() }
    }
}

impl<S: StateCell, T> Drop for SharedGuard<'_, S, T> {
    #[inline]
    fn drop(&mut self) {
        self.latch.leave(State::leave_shared);
    }
}

/// Exclusive access to the value of an [`RwLatch`].
#[derive(Debug)]
#[must_use]
pub struct ExclusiveGuard<'a, S: StateCell, T> {
    latch: &'a RwLatch<S, T>,
    /// Dropped after the latch is released.
    _hold: HoldGuard,
}

impl<S: StateCell, T> Deref for ExclusiveGuard<'_, S, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: RW-1: this guard is the writer in the state.
        unsafe { &*self.latch.value.get() }
    }
}

impl<S: StateCell, T> DerefMut for ExclusiveGuard<'_, S, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: RW-1; the guard is borrowed exclusively, so this is the only reference.
        unsafe { &mut *self.latch.value.get() }
    }
}

impl<S: StateCell, T> Drop for ExclusiveGuard<'_, S, T> {
    #[inline]
    fn drop(&mut self) {
        self.latch.leave(State::leave_exclusive);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    static SITE: Site = Site::new("test latch");
    static MUTEX: Site = Site::new("mutex of test latch");

    fn shared_together_exclusive_alone<S: StateCell>() {
        // A writer changes the two halves one after the other. A reader that runs concurrently would find
        // different halves.
        let latch = RwLatch::<S, _>::new(&SITE, &MUTEX, (0u64, 0u64));
        std::thread::scope(|s| {
            for thread in 0..8u64 {
                let latch = &latch;
                s.spawn(move || {
                    for i in 0..1_000 {
                        if (i + thread) % 4 == 0 {
                            let mut value = latch.exclusive();
                            value.0 += 1;
                            if i % 100 == 0 {
                                // Longer than a thread spins, so that the other threads sleep.
                                std::thread::sleep(std::time::Duration::from_micros(200));
                            }
                            value.1 += 1;
                        } else {
                            let value = latch.shared();
                            assert_eq!(value.0, value.1);
                        }
                    }
                });
            }
        });
        assert_eq!(*latch.shared(), (2_000, 2_000));
        assert_eq!(latch.cell().peek(), State::default());
    }

    #[test]
    fn readers_share_and_writers_exclude_with_the_state_under_a_mutex() {
        shared_together_exclusive_alone::<Guarded>();
    }

    #[test]
    fn readers_share_and_writers_exclude_with_the_state_in_one_word() {
        shared_together_exclusive_alone::<OneWord>();
    }

    #[test]
    fn readers_share_and_writers_exclude_with_an_account_of_holders() {
        shared_together_exclusive_alone::<Accounted>();
    }

    #[test]
    fn the_account_lists_the_holders() {
        let latch = RwLatch::<Accounted, _>::new(&SITE, &MUTEX, ());
        let (a, b) = (latch.shared(), latch.shared());
        assert_eq!(latch.cell().account().0, 2);
        drop((a, b));
        let writer = latch.exclusive();
        assert_eq!(latch.cell().account().0, 1);
        drop(writer);
        assert_eq!(latch.cell().account().0, 0);
    }
}
