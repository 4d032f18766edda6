//! Owners: the state of a locking transaction that other threads read.
//!
//! An owner is an entry of a growing array; every request contains the number of its owner. Later
//! transactions reuse entries, and entries are never freed, so an index can be followed without reference
//! counts.
//!
//! | `word` | state | set by |
//! |---|---|---|
//! | 0 | running | – |
//! | 1 | waiting | its own thread, when it enqueues its one waiting request |
//! | 2 | granted | the thread that granted the request, under the stripe's latch |
//! | 3 | victim | the thread that broke a deadlock, under the waits latch |
//! | 0 | running | its own thread, when its wait timed out, under the waits latch |
//!
//! - **OWNER-1** A transaction waits for at most one lock at a time.
//! - **HOME-1** `home` is the number of the thread that made the owner's last request. It is set from the
//!   owner's first request to its release. It is 0 otherwise, and for a transaction that was detached from
//!   threads. Only the transaction's own thread writes it.
//! - **OWNER-2** Another transaction reuses an entry only after the old one holds nothing and waits for
//!   nothing.

use std::cell::Cell;
use std::sync::OnceLock;

use azekura_base::sync::Mutex;
use azekura_base::sync::WaitWord;
use azekura_base::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use azekura_base::{CachePadded, TxnId};
use azekura_trace::ThreadTag;

use crate::intent::Intents;
use crate::range::Ranges;

pub(crate) const RUNNING: u32 = 0;
pub(crate) const WAITING: u32 = 1;
pub(crate) const GRANTED: u32 = 2;
pub(crate) const VICTIM: u32 = 3;

#[derive(Debug)]
pub(crate) struct Owner {
    txn: AtomicU64,
    /// The thread that began the transaction, for the trace.
    thread: AtomicU32,
    /// `true` if another transaction began to wait for this owner: otherwise the owner cannot be part of a
    /// cycle. May be a false positive.
    has_waiters: AtomicBool,
    /// The number of the thread that last used the transaction; see HOME-1.
    home: AtomicU32,
    word: WaitWord,
    pub(crate) intents: Mutex<Intents>,
    /// `true` if `ranges` may have entries. Written by the owner's own thread.
    has_ranges: AtomicBool,
    pub(crate) ranges: Mutex<Ranges>,
}

// Number of owners in all tables with this thread as home; too high if other threads have released some of
// them.
azekura_base::per_thread! {
    static AT_HOME: Cell<u32> = const { Cell::new(0) };
}

/// Returns the calling thread's number for [`Owner::home`]; 0 in models, because all their threads have one
/// number.
#[inline]
fn this_thread() -> u32 {
    if cfg!(loom) { 0 } else { azekura_base::striped::thread_stripe() as u32 + 1 }
}

impl Owner {
    fn new() -> Self {
        Self {
            txn: AtomicU64::new(0),
            thread: AtomicU32::new(0),
            has_waiters: AtomicBool::new(false),
            home: AtomicU32::new(0),
            word: WaitWord::new(RUNNING),
            intents: Mutex::new(Intents::new()),
            has_ranges: AtomicBool::new(false),
            ranges: Mutex::new(Ranges::new()),
        }
    }

    /// Sets the entry's new transaction; called by its own thread before any request.
    pub(crate) fn begin(&self, txn: TxnId) {
        // Relaxed, all four: another thread finds this owner in a request or an intent. That was added later
        // than this, under a latch that the other thread holds when it finds it.
        self.txn.store(txn.0, Relaxed);
        self.thread.store(azekura_trace::thread_tag().0, Relaxed);
        self.has_waiters.store(false, Relaxed);
        self.word.word().store(RUNNING, Relaxed);
    }

    /// Sets the home to the calling thread; `known` is the home so far. Returns the new home.
    #[inline]
    pub(crate) fn set_home(&self, known: u32) -> u32 {
        let here = this_thread();
        if known != here {
            AT_HOME.with(|count| count.set(count.get() + 1));
            self.home.store(here, Relaxed); // Relaxed: see `home`
        }
        here
    }

    /// Clears the home.
    pub(crate) fn leave_home(&self, known: u32) {
        if known == 0 {
            return;
        }
        if known == this_thread() {
            AT_HOME.with(|count| count.set(count.get().saturating_sub(1)));
        }
        self.home.store(0, Relaxed); // Relaxed: see `home`
    }

    pub(crate) fn home(&self) -> u32 {
        // Relaxed: read by the home thread itself, which wrote it, or for an owner that was found in a
        // request. The request was added after `set_home`, under a latch that the reader holds. A later
        // change is a move to another thread, which is equivalent to a change after the read.
        self.home.load(Relaxed)
    }

    pub(crate) fn txn(&self) -> TxnId {
        TxnId(self.txn.load(Relaxed)) // Relaxed: see `begin`
    }

    pub(crate) fn thread(&self) -> ThreadTag {
        ThreadTag(self.thread.load(Relaxed)) // Relaxed: see `begin`
    }

    /// Records that another transaction now waits for this owner.
    pub(crate) fn note_waiter(&self) {
        // Relaxed: set under the waits latch, by the owner's own thread, or before the owner is woken. The
        // owner reads it under the waits latch, after all of these.
        if !self.has_waiters.load(Relaxed) {
            self.has_waiters.store(true, Relaxed);
        }
    }

    pub(crate) fn has_waiters(&self) -> bool {
        self.has_waiters.load(Relaxed) // Relaxed: see `note_waiter`
    }

    pub(crate) fn set_has_ranges(&self, has: bool) {
        // Release: pairs with the Acquire in `has_ranges`. A requester that reads `false` comes after the
        // scans that have ended. The fences of `range` ensure that `true` is read (KEYRANGE-1).
        self.has_ranges.store(has, Release);
    }

    pub(crate) fn has_ranges(&self) -> bool {
        self.has_ranges.load(Acquire) // Acquire: see `set_has_ranges`
    }

    /// Announces a wait. Called by the owner's own thread, before its request is added to the waiters.
    pub(crate) fn set_waiting(&self) {
        // Relaxed: the thread that ends the wait finds the request later, under the stripe's latch.
        self.word.word().store(WAITING, Relaxed);
    }

    /// Ends the wait; a later [`Owner::wake`] wakes the sleeper, when no latch is held any more.
    pub(crate) fn end_wait(&self, how: u32) {
        // Release: pairs with the Acquire in `state`; the owner reads the writes of the former holder.
        self.word.word().store(how, Release);
    }

    pub(crate) fn state(&self) -> u32 {
        self.word.word().load(Acquire) // Acquire: pairs with the Release in `end_wait`
    }

    pub(crate) fn wake(&self) {
        self.word.wake_one();
    }

    /// Sleeps while the state is `WAITING`; may return early.
    pub(crate) fn sleep(&self, timeout: Option<std::time::Duration>) {
        self.word.wait(WAITING, timeout);
    }
}

/// Number of owners in the first chunk: an idle store had at most one transaction at once.
const FIRST_CHUNK: u32 = if cfg!(loom) { 2 } else { 1 };
const CHUNKS: usize = 31;

/// All owners; see the module head.
#[derive(Debug)]
pub(crate) struct Owners {
    chunks: [OnceLock<Box<[CachePadded<Owner>]>>; CHUNKS],
    len: AtomicU32,
    grow: Mutex<()>,
}

/// Returns the chunk of an owner and its position in the chunk: chunk `n` holds `FIRST_CHUNK << n` owners.
const fn locate(index: u32) -> (usize, usize) {
    let shifted = index / FIRST_CHUNK + 1;
    let chunk = shifted.ilog2();
    (chunk as usize, (index - FIRST_CHUNK * ((1 << chunk) - 1)) as usize)
}

impl Owners {
    pub(crate) fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS], len: AtomicU32::new(0), grow: Mutex::new(()) }
    }

    /// Adds a new owner and returns its number.
    pub(crate) fn add(&self) -> u32 {
        let _grow = self.grow.lock();
        let index = self.len.load(Relaxed);
        let (chunk, _) = locate(index);
        assert!(chunk < CHUNKS, "more than two thousand million transactions at once");
        self.chunks[chunk]
            .get_or_init(|| (0..FIRST_CHUNK << chunk).map(|_| CachePadded::new(Owner::new())).collect());
        // Release: pairs with the Acquire in `len_after_fence`. Its caller reads the owners below the number.
        self.len.store(index + 1, Release);
        index
    }

    /// Returns the number of owners. An owner added after this call reads all writes that the caller made
    /// before.
    pub(crate) fn len(&self) -> u32 {
        // Locked for the ordering, not for the load: the caller's closing of the fast path (see `intent`)
        // precedes every owner that is not included in this count.
        let _grow = self.grow.lock();
        self.len.load(Relaxed)
    }

    /// Returns the number of owners, without a lock. The caller has executed a sequentially consistent fence:
    /// the number includes each owner that was added before a fence that precedes it.
    pub(crate) fn len_after_fence(&self) -> u32 {
        self.len.load(Acquire) // Acquire: see `add`
    }

    /// Returns `true` if the home of this owner is the home of another owner, too. Reads every owner, unless
    /// the thread's own count shows that there is none.
    pub(crate) fn has_mates(&self, index: u32) -> bool {
        let home = self.get(index).home();
        home != 0
            && AT_HOME.with(Cell::get) > 1
            && (0..self.len()).any(|other| other != index && self.get(other).home() == home)
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> &Owner {
        let (chunk, place) = locate(index);
        &self.chunks[chunk].get().expect("an index names an owner that was added")[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_a_place_of_its_own() {
        let owners = Owners::new();
        for n in 0..1000 {
            assert_eq!(owners.add(), n);
            owners.get(n).begin(TxnId(u64::from(n) + 7));
        }
        assert_eq!(owners.len(), 1000);
        assert!((0..1000).all(|n| owners.get(n).txn() == TxnId(u64::from(n) + 7)));
    }
}
