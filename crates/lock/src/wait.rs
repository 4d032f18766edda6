//! Waits for a lock: enqueue, search for cycles, sleep, wake-up.
//!
//! | ends by | thread | under |
//! |---|---|---|
//! | grant | the thread that released a lock or withdrew a request | the stripe's latch |
//! | deadlock | the thread that closed the cycle | waits latch, then stripe's latch |
//! | timeout, interruption | the waiter itself | waits latch, then stripe's latch |
//! | closing | the thread that closes waits | waits latch, then stripe's latch |
//!
//! - **SLEEP-1** The state word changes from `WAITING` exactly once per wait, under the stripe's latch,
//!   together with the removal of the request from the waiters. So a timed-out waiter checks under the same
//!   latch that no grant came first.
//! - **SLEEP-2** The word is changed before the wake-up is sent, and the sleeper passes the value that it
//!   read to the kernel: no wake-up is lost. A late wake-up reaches an owner that runs, or a wait that checks
//!   again.

use azekura_base::sync::atomic::Ordering::Relaxed;
use azekura_base::sync::time::Instant;
use std::time::Duration;

use azekura_base::{Lsn, TreeId, TxnId};
use azekura_trace::{Site, ThreadTag, WaitKind};

use crate::deadlock::{WaitPlace, Waits, find_cycle, youngest};
use crate::error::LockError;
use crate::id::KeyRef;
use crate::mode_bits::Family;
use crate::owner::{GRANTED, RUNNING, VICTIM, WAITING};
use crate::queue::{Demand, Wakes};
use crate::stripe::NONE;
use crate::table::LockTable;
use crate::txn::TxnLocks;

static KEY_LOCK: Site = Site::new("key lock");
static TABLE_LOCK: Site = Site::new("table lock");

/// Number of reads of the state word before a thread sleeps. A holder is often about to commit, so spinning
/// for a few hundred nanoseconds is worthwhile.
const SPINS: u32 = if cfg!(loom) { 0 } else { 100 };

/// Longest sleep between two calls of [`LockOptions::interrupt`](crate::LockOptions::interrupt).
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(100);

/// Longest wait of a thread that delays other work meanwhile (BLOCK-3 of `azekura_base::blocking`). A commit
/// in progress on another thread releases its locks sooner.
const DELAYING_WAIT: Duration = Duration::from_millis(50);

/// Result of enqueuing a request.
#[derive(Debug)]
pub(crate) enum Begun {
    /// The request was granted before it began to wait.
    Granted(u32),
    /// Waits are closed: see [`LockTable::close_waits`].
    Refused,
    /// The request waits (or is a victim already, according to the state word). The thread is the thread of
    /// its first blocker.
    Waiting(u32, ThreadTag),
}

impl LockTable {
    /// Waits for a refused demand.
    #[cold]
    pub(crate) fn wait(
        &self,
        t: &mut TxnLocks,
        demand: &Demand,
        key: (TreeId, KeyRef<'_>),
    ) -> Result<Lsn, LockError> {
        if t.is_nowait {
            return Err(LockError::WouldBlock);
        }
        let began = Instant::now();
        let has_mates = self.owners.has_mates(demand.owner);
        match self.begin_wait(demand, key, has_mates) {
            Begun::Granted(request) => Ok(self.granted(t, demand, request)),
            Begun::Refused => Err(LockError::Closed),
            Begun::Waiting(request, holder) => {
                let site = if demand.id.family() == Family::Table { &TABLE_LOCK } else { &KEY_LOCK };
                let waiting = azekura_trace::wait_for(site, demand.id.0 as usize, WaitKind::Lock, holder);
                let ended = self.sleep(demand, request, began, t.timeout);
                drop(waiting);
                if has_mates {
                    self.waits.lock().with_mates.retain(|&(owner, _)| owner != demand.owner);
                }
                self.wait_micros.fetch_add(began.elapsed().as_micros() as u64, Relaxed); // Relaxed
                ended.map(|()| self.granted(t, demand, request))
            }
        }
    }

    /// Enqueues a demand, and breaks every cycle that this wait closes. `has_mates`: the thread has other
    /// open transactions.
    pub(crate) fn begin_wait(&self, demand: &Demand, key: (TreeId, KeyRef<'_>), has_mates: bool) -> Begun {
        let mut waits = self.waits.lock();
        let number = self.stripe_number(demand.id);
        let mut stripe = self.stripes.get(number).lock();
        let mut demand = *demand;
        if demand.id.family() == Family::Key {
            // Since the attempt, other transactions may have entered ranges, and a request may have been made
            // for the own range.
            if demand.own == NONE && self.owners.get(demand.owner).has_ranges() {
                demand.own = self.own_shared(&mut stripe, demand.owner, demand.id, 0);
            }
            self.share_ranges(&mut stripe, (demand.id, demand.owner, &[]), key, demand.want);
        }
        let demand = &demand;
        if let Some(request) = stripe.attempt(demand, &self.owners) {
            return Begun::Granted(request);
        }
        if waits.is_closed {
            return Begun::Refused;
        }
        let request = stripe.enqueue(demand, &self.owners);
        let holder =
            stripe.blockers(request).first().map_or(ThreadTag::NONE, |&b| self.owners.get(b).thread());
        drop(stripe);
        waits.begun += 1;
        waits.set_place(demand.owner, WaitPlace { stripe: number as u32, request });
        let mut wakes = Wakes::new();
        if has_mates {
            waits.with_mates.push((demand.owner, self.owners.get(demand.owner).home()));
        }
        if has_mates || self.owners.get(demand.owner).has_waiters() {
            self.break_cycles(&mut waits, demand.owner, &mut wakes);
        }
        drop(waits);
        self.wake(&mut wakes);
        Begun::Waiting(request, holder)
    }

    /// Ends waits of the youngest transactions until no cycle contains `owner`.
    fn break_cycles(&self, waits: &mut Waits, owner: u32, wakes: &mut Wakes) {
        while let Some(cycle) = find_cycle(owner, |node| self.blockers_of(waits, node)) {
            let idle = cycle.iter().position(|&node| !self.is_waiting(waits, node));
            let victim = match idle {
                Some(at) => cycle[(at + 1) % cycle.len()],
                None => youngest(&cycle, &self.owners),
            };
            match idle {
                Some(at) => waits.sentence_self(victim, cycle[at], &self.owners),
                None => waits.sentence(victim, &cycle, &self.owners),
            }
            let place = waits.place(victim).expect("a member of a cycle waits");
            let mut stripe = self.stripes.get(place.stripe as usize).lock();
            debug_assert!(stripe.is_waiting(place.request, victim), "a cycle that is found exists");
            stripe.cancel(place.request, &self.owners, wakes);
            self.owners.get(victim).end_wait(VICTIM); // SLEEP-1
            drop(stripe);
            if victim == owner {
                return;
            }
            wakes.push(victim);
        }
    }

    /// Ends every wait with [`LockError::Closed`], and rejects later waits, because a holder can no longer
    /// release its locks. Locks that can be granted at once are still granted.
    pub fn close_waits(&self) {
        let mut waits = self.waits.lock(); // WAIT-1
        if std::mem::replace(&mut waits.is_closed, true) {
            return;
        }
        let mut wakes = Wakes::new();
        for (owner, place) in waits.places() {
            let mut stripe = self.stripes.get(place.stripe as usize).lock();
            if stripe.is_waiting(place.request, owner) {
                waits.sentences.push((owner, LockError::Closed));
                stripe.cancel(place.request, &self.owners, &mut wakes);
                self.owners.get(owner).end_wait(VICTIM); // SLEEP-1
                wakes.push(owner);
            }
        }
        drop(waits);
        self.wake(&mut wakes);
    }

    /// Allows waits again after [`LockTable::close_waits`]: every holder will release its locks.
    pub fn open_waits(&self) {
        self.waits.lock().is_closed = false;
    }

    /// Returns the present edges of `owner` in the waits-for graph.
    fn blockers_of(&self, waits: &Waits, owner: u32) -> Vec<u32> {
        if let Some(place) = waits.place(owner) {
            let stripe = self.stripes.get(place.stripe as usize).lock();
            if stripe.is_waiting(place.request, owner) {
                return stripe.blockers(place.request);
            }
        }
        let home = self.owners.get(owner).home();
        let is_held_up = |&&(mate, at): &&(u32, u32)| at == home && self.is_waiting(waits, mate);
        waits.with_mates.iter().filter(is_held_up).map(|&(mate, _)| mate).collect()
    }

    fn is_waiting(&self, waits: &Waits, owner: u32) -> bool {
        let is_at = |place: WaitPlace| {
            self.stripes.get(place.stripe as usize).lock().is_waiting(place.request, owner)
        };
        waits.place(owner).is_some_and(is_at)
    }

    /// Sleeps until the wait ends.
    fn sleep(
        &self,
        demand: &Demand,
        request: u32,
        began: Instant,
        timeout: Option<Duration>,
    ) -> Result<(), LockError> {
        let owner = self.owners.get(demand.owner);
        let mut spins = 0;
        loop {
            match owner.state() {
                GRANTED => return Ok(()),
                VICTIM => return Err(self.waits.lock().take_sentence(demand.owner)),
                _ => {}
            }
            if spins < SPINS {
                spins += 1;
                azekura_base::sync::hint::spin_loop();
                continue;
            }
            let mut left = timeout.map(|t| t.saturating_sub(began.elapsed()));
            if left == Some(Duration::ZERO)
                && let Some(holders) = self.give_up(demand, request)
            {
                self.waits.lock().timeouts += 1;
                return Err(LockError::Timeout { waited: began.elapsed(), holders });
            }
            if !azekura_base::blocking::announce() {
                let rest = DELAYING_WAIT.saturating_sub(began.elapsed());
                if rest.is_zero() && self.give_up(demand, request).is_some() {
                    return Err(LockError::WouldBlock);
                }
                left = Some(left.map_or(rest, |left| left.min(rest)));
            }
            let Some(is_interrupted) = self.interrupt else {
                owner.sleep(left);
                continue;
            };
            owner.sleep(Some(left.map_or(INTERRUPT_INTERVAL, |left| left.min(INTERRUPT_INTERVAL))));
            // If the lock was granted meanwhile, the call succeeds.
            if owner.state() == WAITING && is_interrupted() && self.give_up(demand, request).is_some() {
                return Err(LockError::Interrupted);
            }
        }
    }

    /// Withdraws a waiting request and returns its blockers; `None` if the wait has ended in another way.
    pub(crate) fn give_up(&self, demand: &Demand, request: u32) -> Option<Vec<TxnId>> {
        let waits = self.waits.lock(); // WAIT-1
        let mut stripe = self.stripe(demand.id).lock();
        if self.owners.get(demand.owner).state() != WAITING {
            return None; // SLEEP-1
        }
        let mut holders: Vec<TxnId> =
            stripe.blockers(request).into_iter().map(|b| self.owners.get(b).txn()).collect();
        holders.sort_unstable();
        holders.dedup();
        let mut wakes = Wakes::new();
        stripe.cancel(request, &self.owners, &mut wakes);
        self.owners.get(demand.owner).end_wait(RUNNING); // SLEEP-1
        drop(stripe);
        drop(waits);
        self.wake(&mut wakes);
        Some(holders)
    }
}

#[cfg(test)]
mod tests {
    //! Tests of ranges and requests that arrive between a refused attempt and the wait.

    use super::*;
    use crate::mode::{GapMode, KeyMode, RecordMode};
    use crate::table::{Attempt, LockOptions};

    const TREE: TreeId = TreeId(3);
    const KEY: &[u8] = &[2];
    /// The keys from 1 to below 4.
    const RANGE: (&[u8], Option<&[u8]>) = (&[1], Some(&[4]));
    const WRITE: KeyMode = KeyMode { gap: GapMode::None, record: RecordMode::X };

    struct Three {
        table: LockTable,
        scanner: TxnLocks,
        writer: TxnLocks,
        third: TxnLocks,
    }

    impl Three {
        fn new() -> Self {
            let table = LockTable::new(LockOptions {
                stripes: 2,
                dependency_slots: 4,
                seed: 1,
                ..LockOptions::default()
            });
            let (scanner, writer) = (table.begin(TxnId(1)), table.begin(TxnId(2)));
            let third = table.begin(TxnId(3));
            Self { table, scanner, writer, third }
        }

        /// Scans the range, in which `keys` exist.
        fn scan(&mut self, keys: &[&[u8]]) {
            let keys = keys.iter().copied();
            let locked = self.table.try_lock_range(&mut self.scanner, TREE, RANGE, keys, KeyMode::SCAN);
            assert_eq!(locked, Ok(Lsn(0)));
        }

        fn begin_wait(&self, demand: &Demand) -> Begun {
            self.table.begin_wait(demand, (TREE, KeyRef::Key(KEY)), false)
        }

        fn end(self) {
            let Self { table, scanner, writer, third } = self;
            for locks in [scanner, writer, third] {
                table.release_all(locks, None);
            }
            assert_eq!(table.stats().locks, 0, "{:?}", table.dump());
        }
    }

    fn write(table: &LockTable, locks: &mut TxnLocks) -> Option<Demand> {
        match table.attempt_key(locks, TREE, KeyRef::Key(KEY), WRITE, false) {
            Attempt::Granted(_) => None,
            Attempt::Refused(demand) => Some(demand),
        }
    }

    #[test]
    fn a_wait_begins_behind_a_range_that_came_after_the_attempt() {
        let mut three = Three::new();
        let read = KeyMode { gap: GapMode::None, record: RecordMode::S };
        three.table.try_lock_key(&mut three.third, TREE, KeyRef::Key(KEY), read).unwrap();
        let demand = write(&three.table, &mut three.writer).expect("refused by the reader");
        three.scan(&[KEY]);
        three.table.release(&mut three.third, None);
        // The reader has released its lock; the range has no request on the key yet.
        let Begun::Waiting(request, _) = three.begin_wait(&demand) else { panic!("the scan has the key") };
        let blockers = three.table.stripe(demand.id).lock().blockers(request);
        assert_eq!(blockers, [three.scanner.owner]);
        three.table.release(&mut three.scanner, None);
        assert_eq!(three.table.owners.get(demand.owner).state(), GRANTED);
        three.table.granted(&mut three.writer, &demand, request);
        three.end();
    }

    #[test]
    fn a_scan_that_wants_more_takes_over_the_request_that_another_made_of_its_range() {
        let mut three = Three::new();
        assert!(write(&three.table, &mut three.third).is_none());
        // The third transaction removed the key: the range does not lock it (KEYRANGE-2).
        three.scan(&[]);
        let demand = write(&three.table, &mut three.scanner).expect("refused by the third transaction");
        assert_eq!(demand.own, NONE);
        three.table.release(&mut three.third, None);
        // Now the range locks the key, by the request that the writer makes for it.
        assert!(write(&three.table, &mut three.writer).is_some(), "refused by the range");
        match three.begin_wait(&demand) {
            Begun::Granted(request) => {
                three.table.granted(&mut three.scanner, &demand, request);
            }
            other => panic!("the scan waits for itself: {other:?}"),
        }
        three.end();
    }
}
