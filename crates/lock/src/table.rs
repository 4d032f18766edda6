//! The lock table: stripes, owners, and the steps of a request.
//!
//! ```text
//! lock ── covered by held locks? ── yes ─▶ done, no shared memory was accessed
//!   │ no
//!   ├─ table, IS or IX ─▶ note it with the owner (`intent`) ─▶ done
//!   ▼
//! stripe latch ─ attempt ─ granted ─▶ remember it in `TxnLocks`
//!   │ refused: open the latch
//!   ├─ try_…: `WouldBlock`
//!   ▼
//! waits latch ─ stripe latch ─ attempt again ─ enqueue ─ search for cycles ─ sleep (`wait`)
//! ```
//!
//! The second attempt is needed because the first latch was released: the lock may be free by now.
//!
//! Latch order: waits latch, one stripe's latch, one owner's intents or the list of owners. No latch is held
//! while a thread sleeps or wakes another.

use std::time::Duration;

use azekura_base::striped::stripe_count;
use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::AtomicU64;
use azekura_base::{CachePadded, Lsn, PerStripe, TreeId, TxnId};
use azekura_latch::TracedMutex;
use azekura_trace::Site;

use crate::cell::{StripeCell, Stripes};
use crate::deadlock::Waits;
use crate::depend::Dependencies;
use crate::error::{LockError, WouldBlock};
use crate::id::{KeyRef, LockId};
use crate::intent::{self, StrongCounts};
use crate::mode::{GapMode, KeyMode, TableMode};
use crate::mode_bits::{self, Family, ModeBits};
use crate::owner::Owners;
use crate::queue::{Demand, Wakes};
use crate::range::RangeCounts;
use crate::stripe::NONE;
use crate::txn::{Held, TxnLocks};

/// Number of locks that a transaction releases before it wakes waiters: a wake-up is a system call, which
/// would delay the release of the other locks.
const RELEASED_AT_ONCE: usize = 64;

static WAITS: Site = Site::new("lock table waits");

/// The sizes of a [`LockTable`], and the default bound of waits.
#[derive(Clone, Debug)]
pub struct LockOptions {
    /// Number of parts of the table with separate latches; rounded up to a power of two. More parts reduce
    /// contention. A part has 128 bytes, allocated at the first request for a lock of the part or of its
    /// neighbors.
    pub stripes: usize,
    /// Number of slots for commit LSNs of released keys; rounded up to a power of two; 8 bytes each. With
    /// more slots, fewer readers wait for a commit that they did not read from.
    pub dependency_slots: usize,
    /// Bound of each wait; [`TxnLocks::set_timeout`] overrides it. With `None` only deadlocks end waits.
    pub timeout: Option<Duration>,
    /// A function that a waiting thread calls about every 100 ms, without latches; `true` ends the wait with
    /// [`LockError::Interrupted`](crate::LockError::Interrupted).
    pub interrupt: Option<fn() -> bool>,
    /// Seed of the hash over keys. Default: random, so that a client cannot choose colliding keys.
    pub seed: u64,
}

impl Default for LockOptions {
    fn default() -> Self {
        let seed = azekura_base::sync::random();
        Self { stripes: 1024, dependency_slots: 16 * 1024, timeout: None, interrupt: None, seed }
    }
}

/// All locks of one database.
#[derive(Debug)]
pub struct LockTable {
    pub(crate) stripes: Stripes,
    pub(crate) owners: Owners,
    pub(crate) waits: TracedMutex<Waits>,
    /// Total time of the waits, in microseconds. Each wait adds once, which is cheap beside its system call.
    pub(crate) wait_micros: AtomicU64,
    strong: StrongCounts,
    pub(crate) depend: Dependencies,
    pub(crate) range_counts: RangeCounts,
    pools: PerStripe<Box<CachePadded<Mutex<Vec<TxnLocks>>>>>,
    timeout: Option<Duration>,
    pub(crate) interrupt: Option<fn() -> bool>,
    seed: u64,
}

impl LockTable {
    /// Returns an empty table.
    #[must_use]
    pub fn new(options: LockOptions) -> Self {
        let stripes = options.stripes.max(1).next_power_of_two();
        let pools = if cfg!(loom) { 1 } else { stripe_count() };
        let slots = options.dependency_slots.max(1).next_power_of_two();
        Self {
            stripes: Stripes::new(stripes),
            owners: Owners::new(),
            waits: TracedMutex::new(&WAITS, Waits::default()),
            wait_micros: AtomicU64::new(0),
            strong: StrongCounts::new(),
            depend: Dependencies::new(slots),
            range_counts: RangeCounts::new(),
            pools: PerStripe::new(pools),
            timeout: options.timeout,
            interrupt: options.interrupt,
            seed: options.seed,
        }
    }

    fn pool(&self) -> &Mutex<Vec<TxnLocks>> {
        self.pools.own(Box::default).1
    }

    /// Returns an empty list of locks for a transaction. Running transactions have different numbers. A
    /// transaction with a larger number is younger, and the youngest one of a deadlock is the victim.
    pub fn begin(&self, txn: TxnId) -> TxnLocks {
        let pooled = self.pool().lock().pop();
        let mut locks = pooled.unwrap_or_else(|| TxnLocks::new(self.owners.add()));
        self.begin_again(&mut locks, txn);
        locks
    }

    /// Begins a transaction as [`begin`](Self::begin) does, with a list that [`release`](Self::release) has
    /// emptied. Accesses no shared memory.
    pub fn begin_again(&self, locks: &mut TxnLocks, txn: TxnId) {
        debug_assert!(locks.is_empty(), "a list in use");
        locks.txn = txn;
        locks.timeout = self.timeout;
        locks.is_nowait = false;
        locks.is_detached = false;
        self.owners.get(locks.owner).begin(txn);
    }

    /// Stores the thread that uses the transaction (HOME-1).
    #[inline]
    pub(crate) fn set_home(&self, t: &mut TxnLocks) {
        if !t.is_detached {
            t.home = self.owners.get(t.owner).set_home(t.home);
        }
    }

    /// Declares that the transaction may continue in any thread. If a thread that has used it waits for its
    /// locks, this is then not treated as a deadlock.
    pub fn detach(&self, t: &mut TxnLocks) {
        t.is_detached = true;
        self.owners.get(t.owner).leave_home(std::mem::take(&mut t.home));
    }

    /// Locks a whole table, waiting if necessary. Returns the commit LSN that this transaction now depends on
    /// (W8), or `Lsn(0)` if there is none, or if held locks already cover `mode`.
    ///
    /// IS and IX access no line that other transactions write, unless S, SIX or X is held or requested.
    ///
    /// # Errors
    ///
    /// [`LockError`]. All earlier locks are still held: after a deadlock or a timeout, roll back,
    /// [`release_all`](Self::release_all), start again.
    pub fn lock_table(&self, t: &mut TxnLocks, tree: TreeId, mode: TableMode) -> Result<Lsn, LockError> {
        match self.attempt_table(t, tree, mode) {
            Attempt::Granted(lsn) => Ok(lsn),
            Attempt::Refused(demand) => {
                let waited = self.wait(t, &demand, (tree, KeyRef::End));
                if waited.is_err() {
                    self.abandon_strong(t, tree, mode);
                }
                waited
            }
        }
    }

    /// Locks a whole table as [`lock_table`](Self::lock_table) does, if that is possible at once.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`]: nothing changed.
    pub fn try_lock_table(&self, t: &mut TxnLocks, tree: TreeId, mode: TableMode) -> Result<Lsn, WouldBlock> {
        match self.attempt_table(t, tree, mode) {
            Attempt::Granted(lsn) => Ok(lsn),
            Attempt::Refused(_) => {
                self.abandon_strong(t, tree, mode);
                Err(WouldBlock)
            }
        }
    }

    /// Locks a key, waiting if necessary. Returns the commit LSN that this transaction now depends on (W8),
    /// or `Lsn(0)` if there is none, or if held locks (on the key or the table) already cover `mode`.
    ///
    /// The caller holds a matching intent on the table, and no page latch. Uncontended cost, with the
    /// release: about 60 ns (bench `lock`).
    ///
    /// # Errors
    ///
    /// [`LockError`]. All earlier locks are still held: after a deadlock or a timeout, roll back,
    /// [`release_all`](Self::release_all), start again.
    pub fn lock_key(
        &self,
        t: &mut TxnLocks,
        tree: TreeId,
        key: KeyRef<'_>,
        mode: KeyMode,
    ) -> Result<Lsn, LockError> {
        match self.attempt_key(t, tree, key, mode, false) {
            Attempt::Granted(lsn) => Ok(lsn),
            Attempt::Refused(demand) => self.wait(t, &demand, (tree, key)),
        }
    }

    /// Locks a key as [`lock_key`](Self::lock_key) does, if that is possible at once. May be called under a
    /// page latch: it never sleeps until another transaction releases a lock.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`]: nothing changed.
    pub fn try_lock_key(
        &self,
        t: &mut TxnLocks,
        tree: TreeId,
        key: KeyRef<'_>,
        mode: KeyMode,
    ) -> Result<Lsn, WouldBlock> {
        self.attempt_key(t, tree, key, mode, false).or_would_block()
    }

    /// Tests that the key could be locked at once, as if the lock were granted and released immediately. The
    /// transaction holds no more locks afterward than before. May be called under a page latch.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`]: another transaction blocks the request.
    pub fn try_test_key(
        &self,
        t: &mut TxnLocks,
        tree: TreeId,
        key: KeyRef<'_>,
        mode: KeyMode,
    ) -> Result<Lsn, WouldBlock> {
        self.attempt_key(t, tree, key, mode, true).or_would_block()
    }

    /// Waits until the key could be locked, and locks nothing. The caller tries again, and may have to wait
    /// again.
    ///
    /// # Errors
    ///
    /// [`LockError`], as for [`lock_key`](Self::lock_key).
    pub fn wait_test_key(
        &self,
        t: &mut TxnLocks,
        tree: TreeId,
        key: KeyRef<'_>,
        mode: KeyMode,
    ) -> Result<Lsn, LockError> {
        match self.attempt_key(t, tree, key, mode, true) {
            Attempt::Granted(lsn) => Ok(lsn),
            Attempt::Refused(demand) => self.wait(t, &demand, (tree, key)),
        }
    }

    /// Returns the mode that the transaction holds on a key, not including locks on the whole table. Keys
    /// with equal hashes share a lock, so the mode may be stronger than requested for this key.
    #[must_use]
    pub fn held_key_mode(&self, t: &TxnLocks, tree: TreeId, key: KeyRef<'_>) -> KeyMode {
        let mode_bits = t.mode_bits(self.key_id(tree, key)) | self.mode_bits_in_range(t, tree, key);
        mode_bits::key_mode(mode_bits::normal(Family::Key, mode_bits))
    }

    /// Returns the mode, S or X, in which the transaction holds the gap below a key; `None` if it does not.
    /// Cheaper than [`held_key_mode`](Self::held_key_mode) for a transaction without gap locks.
    #[must_use]
    pub fn closed_gap(&self, t: &TxnLocks, tree: TreeId, key: KeyRef<'_>) -> Option<GapMode> {
        let gap = if t.closes_gaps() { self.held_key_mode(t, tree, key).gap } else { GapMode::None };
        matches!(gap, GapMode::S | GapMode::X).then_some(gap)
    }

    /// Returns `true` if another transaction waits for this one, or has waited since its begin. May return a
    /// false positive. Costs one load.
    #[must_use]
    pub fn has_waiters(&self, t: &TxnLocks) -> bool {
        self.owners.get(t.owner).has_waiters()
    }

    /// Returns the mode that the transaction holds on a table.
    #[must_use]
    pub fn held_table_mode(&self, t: &TxnLocks, tree: TreeId) -> Option<TableMode> {
        mode_bits::table_mode(t.mode_bits(LockId::table(tree)))
    }

    /// Releases all locks of the transaction in reverse order, and grants them to waiters, which are woken in
    /// batches of 64. Acquire contended locks last, so that they are held briefly.
    ///
    /// With `commit_lsn` this is early lock release. The commit record is in the log buffer, and the next
    /// holder of a written lock gets its LSN as a dependency. Without `commit_lsn` the transaction wrote
    /// nothing, or its changes are undone (W9): undo first, then release.
    pub fn release_all(&self, mut t: TxnLocks, commit_lsn: Option<Lsn>) {
        self.release(&mut t, commit_lsn);
        self.pool().lock().push(t);
    }

    /// Stores the commit LSN for transactions that depend on the locks of this one, before the locks are
    /// released. Readers without locks need it ([`key_dependency`](Self::key_dependency)).
    pub fn announce(&self, t: &TxnLocks, commit_lsn: Lsn) {
        for held in t.held() {
            self.depend.leave(held.id, held.mode_bits, commit_lsn); // DEPEND-1
        }
    }

    /// Returns a commit LSN that is not below that of the last change of a key by a transaction that has
    /// [announced](Self::announce) its commit or released its locks. Costs two loads.
    #[must_use]
    pub fn key_dependency(&self, tree: TreeId, key: KeyRef<'_>) -> Lsn {
        let of_key = self.depend.find(self.key_id(tree, key), mode_bits::of_key(KeyMode::READ));
        let of_table = self.depend.find(LockId::table(tree), mode_bits::of_table(TableMode::IS));
        of_key.max(of_table)
    }

    /// Returns the commit LSN as [`key_dependency`](Self::key_dependency) does, for all keys of a table.
    #[must_use]
    pub fn table_dependency(&self, tree: TreeId) -> Lsn {
        self.depend.find(LockId::table(tree), mode_bits::of_table(TableMode::S))
    }

    /// Releases all locks as [`release_all`](Self::release_all) does, for a caller that keeps the list for
    /// its next transaction.
    pub fn release(&self, t: &mut TxnLocks, commit_lsn: Option<Lsn>) {
        if let Some(lsn) = commit_lsn {
            self.announce(t, lsn);
        }
        let mut wakes = Wakes::new();
        for some in t.held().rchunks(RELEASED_AT_ONCE) {
            some.iter().rev().for_each(|held| self.release_one(t, held, &mut wakes));
            self.wake(&mut wakes);
        }
        if t.has_ranges() {
            self.release_ranges(t, &mut wakes);
        }
        self.owners.get(t.owner).leave_home(std::mem::take(&mut t.home));
        t.reset();
    }

    fn release_one(&self, t: &TxnLocks, held: &Held, wakes: &mut Wakes) {
        let request = if held.is_note {
            self.owners.get(t.owner).intents.lock().take(held.request).request
        } else {
            held.request
        };
        if request != NONE {
            self.stripe(held.id).lock().release(request, &self.owners, wakes);
        }
        if held.is_strong {
            self.strong.lower(TreeId(held.id.0 as u32));
        }
    }

    pub(crate) fn wake(&self, wakes: &mut Wakes) {
        for owner in wakes.drain(..) {
            self.owners.get(owner).wake(); // QUEUE-3: no latch is held here
        }
    }

    pub(crate) fn key_id(&self, tree: TreeId, key: KeyRef<'_>) -> LockId {
        LockId::key(self.seed, tree, key)
    }

    pub(crate) fn stripe_number(&self, id: LockId) -> usize {
        (id.spread() >> 40) as usize & (self.stripes.count() - 1)
    }

    pub(crate) fn stripe(&self, id: LockId) -> &StripeCell {
        self.stripes.get(self.stripe_number(id))
    }

    #[inline]
    pub(crate) fn attempt_key(
        &self,
        t: &mut TxnLocks,
        tree: TreeId,
        key: KeyRef<'_>,
        mode: KeyMode,
        instant: bool,
    ) -> Attempt {
        let in_range = self.mode_bits_in_range(t, tree, key);
        self.attempt_id(t, tree, key, (self.key_id(tree, key), in_range), (mode, instant))
    }

    /// Attempts a lock as [`attempt_key`](Self::attempt_key) does, given the key's name and the mode bits of
    /// the transaction's ranges on the key.
    #[inline]
    pub(crate) fn attempt_id(
        &self,
        t: &mut TxnLocks,
        tree: TreeId,
        key: KeyRef<'_>,
        (id, in_range): (LockId, ModeBits),
        (mode, instant): (KeyMode, bool),
    ) -> Attempt {
        let own = t.get(id).copied();
        let held = own.map_or(0, |h| h.mode_bits);
        let want = mode_bits::normal(id.family(), held | mode_bits::of_key(mode));
        if want == held || self.table_covers(t, tree, mode) {
            return Attempt::Granted(Lsn(0));
        }
        let with_range = mode_bits::normal(id.family(), held | in_range);
        // KEYRANGE-2: if a conflicting request exists, only a request of this transaction shows that it holds
        // the key.
        if mode_bits::normal(id.family(), with_range | want) == with_range && !self.stripe(id).has_exclusive()
        {
            return Attempt::Granted(self.depend.find(id, want)); // DEPEND-1
        }
        self.set_home(t);
        let mut stripe = self.stripe(id).lock();
        let shared = if t.has_ranges() { self.own_shared(&mut stripe, t.owner, id, in_range) } else { NONE };
        let own = own.map_or(shared, |held| held.request);
        self.share_ranges(&mut stripe, (id, t.owner, &t.range_places), (tree, key), want);
        let demand = Demand { id, owner: t.owner, own, want, instant };
        let granted = stripe.attempt(&demand, &self.owners);
        drop(stripe);
        granted
            .map_or(Attempt::Refused(demand), |request| Attempt::Granted(self.granted(t, &demand, request)))
    }

    /// Returns `true` if the lock on the whole table covers this mode on one of its keys.
    #[inline]
    pub(crate) fn table_covers(&self, t: &TxnLocks, tree: TreeId, mode: KeyMode) -> bool {
        t.has_strong() && self.held_table_mode(t, tree).is_some_and(|table| table.covers_key(mode))
    }

    pub(crate) fn attempt_table(&self, t: &mut TxnLocks, tree: TreeId, mode: TableMode) -> Attempt {
        let id = LockId::table(tree);
        let own = t.get(id).copied();
        let held = own.map_or(0, |h| h.mode_bits);
        let want = mode_bits::normal(id.family(), held | mode_bits::of_table(mode));
        if want == held {
            return Attempt::Granted(Lsn(0));
        }
        self.set_home(t);
        let is_intent = mode_bits::table_mode(want).is_some_and(TableMode::is_intent);
        if is_intent && self.note_intent(t, own, tree, want) {
            return Attempt::Granted(self.depend.find(id, want));
        }
        if !is_intent && !own.is_some_and(|h| h.is_strong) {
            self.strong.raise(tree);
        }
        let mut stripe = self.stripe(id).lock();
        if is_intent {
            intent::share_own(&self.owners, t.owner, tree, &mut stripe);
        } else {
            intent::share_all(&self.owners, tree, &mut stripe);
        }
        let request = own.map_or(NONE, |h| self.own_request(t, h));
        let demand = Demand { id, owner: t.owner, own: request, want, instant: false };
        let granted = stripe.attempt(&demand, &self.owners);
        drop(stripe);
        granted
            .map_or(Attempt::Refused(demand), |request| Attempt::Granted(self.granted(t, &demand, request)))
    }

    /// Tries the fast path of IS and IX; returns `false` if it is closed.
    fn note_intent(&self, t: &mut TxnLocks, own: Option<Held>, tree: TreeId, want: ModeBits) -> bool {
        let mut intents = self.owners.get(t.owner).intents.lock();
        let note = match own {
            None => intents.add(tree, want, &self.strong),
            Some(held) if held.is_note && intents.strengthen(held.request, want) => Some(held.request),
            Some(_) => None,
        };
        drop(intents);
        if let Some(note) = note {
            let id = LockId::table(tree);
            t.put(Held { id, request: note, mode_bits: want, is_note: true, is_strong: false });
        }
        note.is_some()
    }

    /// Returns the request of a lock on a table. If a note has been turned into a request, that becomes an
    /// ordinary held lock.
    fn own_request(&self, t: &mut TxnLocks, held: Held) -> u32 {
        if !held.is_note {
            return held.request;
        }
        let note = self.owners.get(t.owner).intents.lock().take(held.request);
        debug_assert_ne!(note.request, NONE, "shared under the latch that is still held");
        t.put(Held { request: note.request, is_note: false, ..held });
        note.request
    }

    /// Stores a grant; returns the commit LSN that the transaction now depends on.
    #[inline]
    pub(crate) fn granted(&self, t: &mut TxnLocks, demand: &Demand, request: u32) -> Lsn {
        if !demand.instant {
            if t.has_ranges() {
                self.take_over_shared(t, demand.id);
            }
            let is_strong = demand.id.family() == mode_bits::Family::Table
                && !mode_bits::table_mode(demand.want).is_some_and(TableMode::is_intent);
            t.put(Held { id: demand.id, request, mode_bits: demand.want, is_note: false, is_strong });
        }
        self.depend.find(demand.id, demand.want) // DEPEND-1
    }

    /// Lowers the strong count after a strong mode was not granted, unless the transaction holds a strong
    /// mode already.
    pub(crate) fn abandon_strong(&self, t: &TxnLocks, tree: TreeId, mode: TableMode) {
        let held = t.get(LockId::table(tree));
        let want = held.and_then(|h| mode_bits::table_mode(h.mode_bits)).map_or(mode, |h| h.supremum(mode));
        if !want.is_intent() && !held.is_some_and(|h| h.is_strong) {
            self.strong.lower(tree);
        }
    }
}

/// The result of a request that does not wait.
pub(crate) enum Attempt {
    Granted(Lsn),
    /// The request must wait, with this demand.
    Refused(Demand),
}

impl Attempt {
    pub(crate) fn or_would_block(self) -> Result<Lsn, WouldBlock> {
        match self {
            Self::Granted(lsn) => Ok(lsn),
            Self::Refused(_) => Err(WouldBlock),
        }
    }
}
