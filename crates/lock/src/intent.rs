//! Table intents without a contended cache line. Every transaction requests IS or IX on its tables, and
//! intents are compatible with each other. So an intent is noted with its owner and not in the shared table,
//! unless a transaction requests S, SIX or X.
//!
//! The idea is PostgreSQL's fast-path locking. The steps are:
//!
//! 1. An intent locks its owner's small mutex (a line that no other transaction uses), reads the table's
//!    *strong count*, and if it is 0 stores a note with tree and mode there.
//! 2. A request for a strong mode first raises the strong count. Then, under the latch of the table's stripe,
//!    it visits all owners' notes and turns each intent on this tree into an ordinary held request. Then it
//!    queues as usual.
//! 3. While the count is not 0, intents go to the shared table like other requests.
//! 4. At its end a transaction empties its notes. Notes that were turned into requests are released as
//!    requests.
//!
//! - **INTENT-1** While a strong request on a tree waits or holds, every intent on that tree is a request in
//!   the shared table. So the queue's rules and the deadlock search include all holders.
//! - **INTENT-2** The owner alone can remove a note that was not turned into a request: no request waits for
//!   it.
//!
//! *Progress.* A transaction that stalls at any step of adding or removing a note blocks only transactions
//! that request the whole table. `eval/sim/tests/lock_table.rs` stops threads at every access.
//!
//! Proof of INTENT-1: intent A and strong request B both lock the mutex of A's owner. If A comes first, B's
//! visit finds A's note. If B comes first, A reads the count inside the mutex after B has raised it, so A
//! uses the shared table. An owner added after B counted the owners is ordered after B by the `grow` mutex of
//! `owner`. The count is shared by many trees (it is an array by hash): a false positive only costs the use
//! of the shared table.

use azekura_base::TreeId;
use azekura_base::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use azekura_base::zeroed::ZeroedArray;

use crate::id::LockId;
use crate::mode_bits::ModeBits;
use crate::owner::Owners;
use crate::stripe::{NONE, Stripe};

/// Number of notes stored beside the owner's mutex, so that transactions of few tables access no other
/// memory.
const NEAR: usize = 8;
/// Number of tables that a transaction can use at once without the shared table: enough for a schema, and a
/// bound of 4 KiB on an owner's memory.
const MOST: usize = 256;

/// One intent of one owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note {
    pub(crate) tree: TreeId,
    /// The bits of the mode; 0 for an empty note.
    pub(crate) mode_bits: ModeBits,
    /// The request that the note was turned into, or [`NONE`].
    pub(crate) request: u32,
}

const EMPTY: Note = Note { tree: TreeId(0), mode_bits: 0, request: NONE };

/// The notes of one owner, under the owner's mutex.
#[derive(Debug)]
pub(crate) struct Intents {
    near: [Note; NEAR],
    /// Notes beyond the first [`NEAR`], numbered consecutively; as many as the owner's transactions ever had
    /// at once.
    more: Vec<Note>,
    /// Total number of intents noted here.
    pub(crate) acquisitions: u64,
}

impl Intents {
    pub(crate) const fn new() -> Self {
        Self { near: [EMPTY; NEAR], more: Vec::new(), acquisitions: 0 }
    }

    fn all(&self) -> impl Iterator<Item = &Note> {
        self.near.iter().chain(&self.more)
    }

    fn note(&mut self, number: u32) -> &mut Note {
        let number = number as usize;
        if number < NEAR { &mut self.near[number] } else { &mut self.more[number - NEAR] }
    }

    /// Returns the number of an empty note, or `None` if the limit is reached.
    fn free(&mut self) -> Option<u32> {
        let count = NEAR + self.more.len();
        let free = self.all().position(|n| n.mode_bits == 0).unwrap_or(count);
        if free == MOST {
            return None;
        }
        if free == count {
            self.more.push(EMPTY);
        }
        Some(free as u32)
    }

    /// Performs step 1: adds a note for a new intent, if the fast path is open and a note is free. Returns
    /// the note's number.
    pub(crate) fn add(&mut self, tree: TreeId, mode_bits: ModeBits, strong: &StrongCounts) -> Option<u32> {
        if strong.is_raised(tree) {
            return None;
        }
        let free = self.free()?;
        *self.note(free) = Note { tree, mode_bits, request: NONE };
        self.acquisitions += 1;
        Some(free)
    }

    /// Strengthens a noted intent (IS to IX), if it is still only a note. The strong count need not be read:
    /// a strong request that has not visited this note yet will find it in its new mode.
    pub(crate) fn strengthen(&mut self, note: u32, mode_bits: ModeBits) -> bool {
        let note = self.note(note);
        if note.request != NONE {
            return false;
        }
        note.mode_bits = mode_bits;
        self.acquisitions += 1;
        true
    }

    /// Empties one note and returns it.
    pub(crate) fn take(&mut self, note: u32) -> Note {
        std::mem::replace(self.note(note), EMPTY)
    }

    /// Returns every intent noted here.
    pub(crate) fn notes(&self) -> impl Iterator<Item = &Note> {
        self.all().filter(|n| n.mode_bits != 0)
    }

    /// Performs step 2 for one owner: turns its intent on `tree` into a request of `stripe`. The caller holds
    /// the stripe's latch.
    fn share(&mut self, tree: TreeId, owner: u32, stripe: &mut Stripe) {
        let mut all = self.near.iter_mut().chain(&mut self.more);
        let found = all.find(|n| n.mode_bits != 0 && n.tree == tree && n.request == NONE);
        if let Some(note) = found {
            note.request = stripe.insert_holder(LockId::table(tree), owner, note.mode_bits);
        }
    }
}

/// Turns one owner's intent on `tree` into a request; the caller holds the latch of the table's stripe.
pub(crate) fn share_own(owners: &Owners, owner: u32, tree: TreeId, stripe: &mut Stripe) {
    owners.get(owner).intents.lock().share(tree, owner, stripe);
}

/// Turns every owner's intent on `tree` into a request; the caller holds the latch of the table's stripe and
/// has raised the strong count.
pub(crate) fn share_all(owners: &Owners, tree: TreeId, stripe: &mut Stripe) {
    for owner in 0..owners.len() {
        share_own(owners, owner, tree, stripe);
    }
}

const COUNTS: usize = if cfg!(loom) { 1 } else { 64 };

/// Numbers of strong requests that wait or hold, by hash of the tree. Counts share cache lines: they rarely
/// change, because a strong request visits the notes of all owners.
#[derive(Debug)]
pub(crate) struct StrongCounts(ZeroedArray<AtomicU32>);

impl StrongCounts {
    pub(crate) fn new() -> Self {
        Self(ZeroedArray::new(COUNTS, || AtomicU32::new(0)))
    }

    fn count(&self, tree: TreeId) -> &AtomicU32 {
        &self.0[tree.0 as usize % COUNTS]
    }

    fn is_raised(&self, tree: TreeId) -> bool {
        // Acquire: pairs with the Release in `lower`. A thread that reads the count as 0 reads the writes of
        // the strong holder, as if it had received the lock from it. (The mutexes ensure that a raised count
        // is read.)
        self.count(tree).load(Acquire) != 0
    }

    /// Raises the count at the start of step 2.
    pub(crate) fn raise(&self, tree: TreeId) {
        // Relaxed: ordered by the owners' mutexes, which the caller locks next.
        self.count(tree).fetch_add(1, Relaxed);
    }

    /// Lowers the count, because the strong request has ended.
    pub(crate) fn lower(&self, tree: TreeId) {
        // Release: pairs with the Acquire in `is_raised`. Read-modify-writes keep earlier releases visible.
        let before = self.count(tree).fetch_sub(1, Release);
        debug_assert!(before > 0, "a count is lowered as often as it was raised");
    }
}
