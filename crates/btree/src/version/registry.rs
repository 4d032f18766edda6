//! The snapshots that are open, spread over the threads that opened them.
//!
//! Each stripe of threads has some slots on a separate cache line, and more slots if its threads keep many
//! snapshots open. An opening writes only its slot, and the clock if a transaction has committed since the
//! clock's last advance.
//!
//! | word of a slot | the slot | left by |
//! |---|---|---|
//! | 0 | is free | an opener that claims it |
//! | timestamp, `OPEN` | has an open snapshot, or one that is being opened | its last handle; a writer |
//! | bytes, `TOO_OLD` | has one that is too old: the memory of all versions at that time | its last handle |
//!
//! - **SNAP-1** An opener stores its timestamp in a slot *before* it reads the last commit timestamp. It uses
//!   a newer timestamp if the last commit timestamp is larger. A thread that drops versions reads the last
//!   commit timestamp *before* it reads the slots. So a snapshot that this thread does not find has at least
//!   the last commit timestamp that the thread has read (VERSION-6).
//! - **SNAP-2** An opener stores its timestamp, and then reads whether openers are admitted. A thread that
//!   turns versions off stops the admission, and then looks for open snapshots. Either this thread finds the
//!   snapshot, or the opener is not admitted and waits until the mode has changed.
//! - **SNAP-3** The tree bound of a free slot is the largest number. It changes to the bound of the snapshot
//!   after the slot was claimed. So a reader of the slot never uses the bound of an earlier snapshot for a
//!   later one.
//!
//! In SNAP-1 and SNAP-2 both sides access one word, and then read another one. On both sides a sequentially
//! consistent fence lies between the two accesses: [`Slot::publish`] of the opener, and
//! [`Registry::for_each`] of the thread that reads the slots.

use std::sync::OnceLock;
// The atomic type of std: no protocol of snapshots depends on the count, and a model has no step for it.
use std::sync::atomic::AtomicU64 as ClosedCount;
use std::time::Duration;

use azekura_base::striped::{stripe_count, thread_stripe};
use azekura_base::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release, Ordering::SeqCst, fence,
};
use azekura_base::sync::time::Instant;
use azekura_base::{CachePadded, Lsn, TreeId};

/// The two low bits of a slot's word.
const OPEN: u64 = 1;
const TOO_OLD: u64 = 2;
const BITS: u32 = 2;
/// Number of slots on the line of a stripe: few threads have more snapshots open at once. Two in a model.
const FIRST: usize = if cfg!(loom) { 2 } else { 4 };

/// A slot for one open snapshot.
#[derive(Debug)]
pub(super) struct Slot {
    word: AtomicU64,
    /// Time of the opening, in nanoseconds since the registry was made.
    opened: AtomicU64,
    /// Bound of the tree ids: no tree that is visible to the snapshot has this id or a larger one (SNAP-3).
    next_tree: AtomicU32,
    /// Number of handles of the snapshot.
    handles: AtomicU32,
}

impl Slot {
    #[cfg_attr(not(loom), expect(clippy::missing_const_for_fn, reason = "a model's atomics are not const"))]
    fn free() -> Self {
        Self {
            word: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            next_tree: AtomicU32::new(u32::MAX),
            handles: AtomicU32::new(0),
        }
    }

    /// Claims the slot if it is free.
    fn claim(&self, timestamp: u64) -> bool {
        // Relaxed: the exchange decides.
        self.word.load(Relaxed) == 0
            // AcqRel: pairs with the Release in `release`. A thread that finds the slot then reads its bound
            // (SNAP-3). Relaxed on failure: another thread has claimed the slot.
            && self.word.compare_exchange(0, timestamp << BITS | OPEN, AcqRel, Relaxed).is_ok()
    }

    /// Executes the fence of SNAP-1, SNAP-2 and VERSION-3. Either threads that read the slots from now on
    /// find this slot, or this thread's next reads find the writes of those threads.
    pub(super) fn publish(&self) {
        // SeqCst: pairs with the fence of `Registry::for_each`, and with the fence of a committing
        // transaction.
        fence(SeqCst);
    }

    /// Replaces the timestamp of a snapshot that is being opened.
    pub(super) fn move_to(&self, timestamp: u64) {
        // Release: keeps the slot's tree bound visible together with its word (SNAP-3).
        self.word.store(timestamp << BITS | OPEN, Release);
    }

    /// Returns the timestamp, if the slot has an open snapshot that is not too old.
    fn timestamp(&self) -> Option<u64> {
        let word = self.word.load(Acquire); // Acquire: pairs with the AcqRel in `claim` (SNAP-3)
        (word & OPEN != 0).then_some(word >> BITS)
    }

    pub(super) fn next_tree(&self) -> TreeId {
        TreeId(self.next_tree.load(Acquire)) // Acquire: pairs with the Release in `release` (SNAP-3)
    }

    pub(super) fn is_open(&self) -> bool {
        self.timestamp().is_some()
    }

    /// Marks the snapshot as too old if it still has this timestamp.
    pub(super) fn make_too_old(&self, timestamp: u64, bytes: u64) -> bool {
        let (open, too_old) = (timestamp << BITS | OPEN, bytes << BITS | TOO_OLD);
        // Relaxed: versions are dropped under the mutexes of groups, or subtracted from a count with
        // Release. A reader that does not find the versions has acquired one of these, and so reads the mark.
        self.word.compare_exchange(open, too_old, Relaxed, Relaxed).is_ok()
    }

    /// Returns the memory of all versions when those of this snapshot were dropped.
    pub(super) fn too_old_at_bytes(&self) -> Option<u64> {
        let word = self.word.load(Relaxed); // Relaxed: as in `make_too_old`
        (word & TOO_OLD != 0).then_some(word >> BITS)
    }

    fn release(&self) {
        self.next_tree.store(u32::MAX, Release); // Release: pairs with the Acquire in `next_tree` (SNAP-3)
        // Release: pairs with the Acquire in `claim`, and is after all reads by the snapshot.
        self.word.store(0, Release);
    }
}

/// A block of further slots; each block has twice as many as the previous one.
#[derive(Debug)]
struct Block {
    slots: Box<[Slot]>,
    next: OnceLock<Box<Self>>,
}

impl Block {
    fn of(len: usize) -> Box<Self> {
        Box::new(Self { slots: (0..len).map(|_| Slot::free()).collect(), next: OnceLock::new() })
    }
}

/// The slots of a stripe of threads.
#[derive(Debug)]
pub(super) struct Stripe {
    first: [Slot; FIRST],
    /// Number of slots of `more` that are claimed or about to be claimed. A scan skips `more` if it is 0.
    in_more: AtomicUsize,
    more: OnceLock<Box<Block>>,
    /// Number of snapshots that were closed.
    closed: ClosedCount,
}

impl Default for Stripe {
    fn default() -> Self {
        Self {
            first: std::array::from_fn(|_| Slot::free()),
            in_more: AtomicUsize::new(0),
            more: OnceLock::new(),
            closed: ClosedCount::new(0),
        }
    }
}

impl Stripe {
    fn blocks(&self) -> impl Iterator<Item = &Block> {
        std::iter::successors(self.more.get(), |block| block.next.get()).map(|block| &**block)
    }

    /// Claims a slot; returns its number.
    fn claim(&self, timestamp: u64) -> usize {
        let first = self.first.iter().position(|slot| slot.claim(timestamp));
        first.unwrap_or_else(|| self.claim_more(timestamp))
    }

    #[cold]
    fn claim_more(&self, timestamp: u64) -> usize {
        let mut block = self.more.get_or_init(|| Block::of(2 * FIRST));
        // AcqRel: pairs with the Acquire in `for_each`, which then finds the block. The addition comes before
        // the fence of `publish`, like the claim (SNAP-1, SNAP-2).
        let others = self.in_more.fetch_add(1, AcqRel);
        let mut before = FIRST;
        loop {
            let len = block.slots.len();
            // Slots are filled in order, so the first free slot usually follows the claimed ones.
            let start = (others + FIRST).saturating_sub(before) % len;
            let free = (0..len).map(|i| (start + i) % len).find(|&i| block.slots[i].claim(timestamp));
            if let Some(free) = free {
                return before + free;
            }
            before += len;
            block = block.next.get_or_init(|| Block::of(2 * len));
        }
    }

    fn slot(&self, mut number: usize) -> &Slot {
        if let Some(slot) = self.first.get(number) {
            return slot;
        }
        number -= FIRST;
        for block in self.blocks() {
            if let Some(slot) = block.slots.get(number) {
                return slot;
            }
            number -= block.slots.len();
        }
        unreachable!("a claimed slot stays")
    }

    fn release(&self, number: usize) {
        self.slot(number).release();
        // Release: pairs with the Acquire in `closed`, after the slot is free.
        self.closed.fetch_add(1, Release);
        if number >= FIRST {
            self.in_more.fetch_sub(1, Release); // Release: pairs with `for_each`, after the slot is free
        }
    }

    fn for_each<'a>(&'a self, mut visit: impl FnMut(&'a Slot, u64)) {
        let mut visit = |slot: &'a Slot| slot.timestamp().into_iter().for_each(|at| visit(slot, at));
        self.first.iter().for_each(&mut visit);
        // Acquire: pairs with the AcqRel in `claim_more`.
        if self.in_more.load(Acquire) > 0 {
            self.blocks().flat_map(|block| block.slots.iter()).for_each(visit);
        }
    }
}

/// All open snapshots of a store.
#[derive(Debug)]
pub(super) struct Registry {
    /// The slots, allocated by the first opener.
    stripes: OnceLock<Box<[CachePadded<Stripe>]>>,
    made: Instant,
}

/// The position of a snapshot's slot in the registry.
#[derive(Clone, Copy, Debug)]
struct Place {
    stripe: u32,
    slot: u32,
}

impl Registry {
    pub(super) fn new() -> Self {
        Self { stripes: OnceLock::new(), made: Instant::now() }
    }

    /// Returns the slots; allocates them if necessary.
    pub(super) fn make(&self) -> &[CachePadded<Stripe>] {
        let count = if cfg!(loom) { 1 } else { stripe_count() };
        self.stripes.get_or_init(|| (0..count).map(|_| CachePadded::default()).collect())
    }

    /// Claims a slot for a snapshot that is being opened.
    pub(super) fn claim(&self, timestamp: u64, all_visible: Lsn, opened: Instant) -> SnapshotId {
        let stripes = self.make();
        let stripe = thread_stripe() % stripes.len();
        let slot = stripes[stripe].claim(timestamp);
        let place = Place { stripe: stripe as u32, slot: slot as u32 };
        let id = SnapshotId { timestamp, all_visible, opened, place };
        let slot = self.slot(&id);
        // Relaxed, both: the time is a statistic, and only handles of this snapshot change the number of
        // handles.
        slot.opened.store(self.nanoseconds(opened), Relaxed);
        slot.handles.store(1, Relaxed);
        id
    }

    /// Returns the time since the registry was made, in nanoseconds.
    pub(super) fn nanoseconds(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.made).as_nanos() as u64
    }

    fn stripe(&self, id: &SnapshotId) -> &Stripe {
        let stripes = self.stripes.get().expect("the snapshot has claimed a slot");
        &stripes[id.place.stripe as usize]
    }

    pub(super) fn slot(&self, id: &SnapshotId) -> &Slot {
        self.stripe(id).slot(id.place.slot as usize)
    }

    /// Returns another handle of a snapshot, unless it is too old.
    pub(super) fn share(&self, id: &SnapshotId) -> Option<SnapshotId> {
        let slot = self.slot(id);
        slot.is_open().then(|| {
            slot.handles.fetch_add(1, Relaxed); // Relaxed: `id` keeps the slot
            SnapshotId { ..*id }
        })
    }

    /// Stores the bound of the trees that can be visible to the snapshot.
    pub(super) fn set_next_tree(&self, id: &SnapshotId, tree: TreeId) {
        // Relaxed: until other threads read the store, the bound is the largest number (SNAP-3).
        self.slot(id).next_tree.store(tree.0, Relaxed);
    }

    /// Drops a handle. Returns `true` if it was the last one, which frees the slot.
    pub(super) fn release(&self, id: &SnapshotId) -> bool {
        let stripe = self.stripe(id);
        // Acquire load: a single remaining handle frees the slot after all uses by former handles. AcqRel:
        // the last of several handles frees the slot after all uses by the others.
        let handles = &self.slot(id).handles;
        let is_last = handles.load(Acquire) == 1 || handles.fetch_sub(1, AcqRel) == 1;
        if is_last {
            stripe.release(id.place.slot as usize);
        }
        is_last
    }

    /// Visits each open snapshot that is not too old, with its timestamp.
    pub(super) fn for_each<'a>(&'a self, mut visit: impl FnMut(&'a Slot, u64)) {
        fence(SeqCst); // SeqCst: pairs with the fence in `Slot::publish` (SNAP-1, SNAP-2)
        let stripes = self.stripes.get().map_or(&[][..], |stripes| stripes);
        stripes.iter().for_each(|stripe| stripe.for_each(&mut visit));
    }

    /// Returns the number of snapshots that were closed.
    pub(super) fn closed(&self) -> u64 {
        let stripes = self.stripes.get().map_or(&[][..], |stripes| stripes);
        // Acquire: pairs with the Release in `release`. The caller then finds the slots free.
        stripes.iter().map(|stripe| stripe.closed.load(Acquire)).sum()
    }

    pub(super) fn is_any_open(&self) -> bool {
        let mut any = false;
        self.for_each(|_, _| any = true);
        any
    }

    /// Returns the timestamps of all open snapshots, in ascending order.
    pub(super) fn timestamps(&self) -> Vec<u64> {
        let mut timestamps = Vec::new();
        self.for_each(|_, timestamp| timestamps.push(timestamp));
        timestamps.sort_unstable();
        timestamps
    }

    /// Returns the number of open snapshots, and the timestamp and age of the oldest.
    pub(super) fn oldest(&self) -> (usize, Option<(u64, Duration)>) {
        let (mut open, mut oldest) = (0, None);
        self.for_each(|slot, timestamp| {
            open += 1;
            let opened = slot.opened.load(Relaxed); // Relaxed: a statistic
            oldest = oldest.into_iter().chain([(timestamp, opened)]).min();
        });
        let now = self.nanoseconds(Instant::now());
        let age = |opened: u64| Duration::from_nanos(now.saturating_sub(opened));
        (open, oldest.map(|(timestamp, opened)| (timestamp, age(opened))))
    }
}

/// A handle of an open snapshot; pass it to [`Versions::close`](super::Versions::close).
#[derive(Debug)]
pub struct SnapshotId {
    pub(super) timestamp: u64,
    pub(super) all_visible: Lsn,
    opened: Instant,
    place: Place,
}

impl SnapshotId {
    /// Returns the snapshot's position in the order of transactions: transactions with this timestamp or a
    /// smaller one are visible to it. Two snapshots have the same timestamp if no transaction has committed
    /// between their openings.
    #[must_use]
    pub fn timestamp(&self) -> u64 {
        self.timestamp
    }

    /// Returns the all-visible LSN: every record up to it belongs to a transaction that is visible to the
    /// snapshot, or to one that was undone (VERSION-5).
    #[must_use]
    pub fn all_visible_lsn(&self) -> Lsn {
        self.all_visible
    }

    /// Returns the time since the snapshot was opened.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.opened.elapsed()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn many_snapshots_of_a_thread_have_slots_of_their_own() {
        let registry = Registry::new();
        let open = |timestamp| registry.claim(timestamp, Lsn(0), Instant::now());
        let mut ids: Vec<_> = (1..=1000).map(open).collect();
        assert_eq!(registry.timestamps(), (1..=1000).collect::<Vec<_>>());
        let again = registry.share(&ids[7]).expect("it is open");
        assert!(!registry.release(&again), "another handle is left");
        for id in ids.drain(..).filter(|id| id.timestamp % 2 == 0).collect::<Vec<_>>() {
            assert!(registry.release(&id));
        }
        let odd: Vec<_> = (1..=1000).step_by(2).collect();
        assert_eq!(registry.timestamps(), odd);
        // Freed slots are used again: the same number of snapshots needs no further block.
        let slots = |registry: &Registry| {
            let stripes = registry.stripes.get().expect("made");
            stripes.iter().flat_map(|stripe| stripe.blocks()).map(|block| block.slots.len()).sum::<usize>()
        };
        let before = slots(&registry);
        let even: Vec<_> = (2..=1000).step_by(2).map(open).collect();
        assert_eq!((registry.timestamps().len(), slots(&registry)), (1000, before));
        assert!(even.iter().all(|id| registry.release(id)));
        assert_eq!(registry.oldest().0, 500);
    }

    #[test]
    fn a_slot_forgets_the_trees_of_its_last_snapshot() {
        let registry = Registry::new();
        let bound = || {
            let mut bounds = Vec::new();
            registry.for_each(|slot, _| bounds.push(slot.next_tree()));
            bounds
        };
        let first = registry.claim(1, Lsn(0), Instant::now());
        registry.set_next_tree(&first, TreeId(5));
        assert_eq!(bound(), [TreeId(5)]);
        registry.release(&first);
        let second = registry.claim(2, Lsn(0), Instant::now());
        assert_eq!(bound(), [TreeId(u32::MAX)], "it may see every tree until it has reported");
        registry.release(&second);
    }

    #[test]
    fn a_snapshot_that_is_too_old_is_not_listed_and_keeps_its_slot() {
        let registry = Registry::new();
        let old = registry.claim(3, Lsn(0), Instant::now());
        assert!(!registry.slot(&old).make_too_old(2, 100), "another snapshot");
        assert!(registry.slot(&old).make_too_old(3, 100));
        assert_eq!((registry.timestamps(), registry.slot(&old).too_old_at_bytes()), (vec![], Some(100)));
        assert!(registry.share(&old).is_none() && registry.release(&old));
        let new = registry.claim(3, Lsn(0), Instant::now());
        assert_eq!(registry.slot(&new).too_old_at_bytes(), None);
    }
}
