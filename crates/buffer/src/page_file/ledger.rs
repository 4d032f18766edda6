//! `Ledger`: the owners of the slots, the batches that a sync has covered, and the first failure.
//!
//! | slot | meaning | left by |
//! |---|---|---|
//! | idle, its batch covered | may be written | any thread, by taking it |
//! | idle, its batch not covered | its copies may be needed | the sync that covers its batch |
//! | owned | being written, or its pages are | its owner, when the pages are in the page file |
//!
//! A batch is *finished* when its pages are written to the page file. A sync *covers* the batches that were
//! finished when it began. There is one sync at a time, for two reasons. Threads that arrive meanwhile share
//! the next sync. And the kernel reports a lost write to only one of several callers, so a second caller
//! could treat the data as durable.
//!
//! Each batch also has a *sequence number* from its start, which is written with its copies.
//! [`Ledger::wait_finished`] waits until all batches that have begun are finished. Then a checkpoint's
//! sync covers all batches up to one sequence number.
//!
//! The mutex is held for a few instructions and never during I/O.

use std::collections::BTreeSet;
use std::sync::Arc;

use azekura_base::PageBuf;
use azekura_base::sync::{Condvar, Mutex};

use crate::store::StoreError;

/// The exclusive right to a slot (DW-1); returned by [`Ledger::finish`].
///
/// A drop without that call leaves the slot owned permanently: correct after a failure, which ends all writes
/// anyway.
#[derive(Debug)]
#[must_use]
pub(super) struct OwnedSlot {
    pub(super) index: usize,
    pub(super) sequence: u64,
    /// Memory for the slot's bytes; empty if there was no spare buffer.
    pub(super) buffer: PageBuf,
}

/// The answer to a request for a slot.
#[derive(Debug)]
pub(super) enum Taken {
    Slot(OwnedSlot),
    /// All idle slots wait for a sync that covers at least this batch.
    SyncFirst(u64),
}

#[derive(Debug)]
enum Slot {
    Idle { batch: u64 },
    Owned,
}

#[derive(Debug)]
struct State {
    slots: Vec<Slot>,
    /// Buffers of released slots: as many as slots were owned at once, and not one per slot.
    spare_buffers: Vec<PageBuf>,
    next_sequence: u64,
    /// Sequence numbers of batches that have begun and are not finished.
    begun: BTreeSet<u64>,
    /// Number of finished batches.
    finished: u64,
    /// Number of finished batches that a sync has covered.
    covered: u64,
    syncing: bool,
    repaired: bool,
    failure: Option<Arc<StoreError>>,
}

/// The owners of the slots, and the progress of batches; see the module head.
#[derive(Debug)]
pub(super) struct Ledger {
    state: Mutex<State>,
    /// Notified when a slot was released, a sync ended, or the store failed.
    changed: Condvar,
}

impl Ledger {
    /// Returns the ledger of a store that was just opened. Writes of earlier processes count as batch 1,
    /// finished and not covered.
    pub(super) fn new(slots: usize) -> Self {
        let slots = (0..slots).map(|_| Slot::Idle { batch: 1 }).collect();
        let state = State {
            slots,
            spare_buffers: Vec::new(),
            next_sequence: 1,
            begun: BTreeSet::new(),
            finished: 1,
            covered: 0,
            syncing: false,
            repaired: false,
            failure: None,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Takes an idle slot that may be written (DW-3); waits while every slot is owned.
    pub(super) fn take(&self) -> Result<Taken, StoreError> {
        let mut state = self.state.lock();
        loop {
            state.check()?;
            // The first slot, so that the area is only as long as the number of used slots requires.
            if let Some(index) = state.first_covered() {
                return Ok(Taken::Slot(state.own(index)));
            }
            match state.oldest_idle() {
                Some((_, batch)) => return Ok(Taken::SyncFirst(batch)),
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Releases a slot: the pages of its batch are written to the page file.
    pub(super) fn finish(&self, slot: OwnedSlot) {
        let mut state = self.state.lock();
        state.begun.remove(&slot.sequence);
        state.finished += 1;
        state.slots[slot.index] = Slot::Idle { batch: state.finished };
        state.spare_buffers.push(slot.buffer);
        self.changed.notify_all();
    }

    /// Begins a batch without copies in a slot; returns its sequence number.
    pub(super) fn begin_without_slot(&self) -> Result<u64, StoreError> {
        let mut state = self.state.lock();
        state.check()?;
        Ok(state.begin())
    }

    /// Finishes a batch without copies in a slot, which then waits for a sync like any other batch. Must be
    /// called even if its pages could not be written.
    pub(super) fn finish_without_slot(&self, sequence: u64) {
        let mut state = self.state.lock();
        state.begun.remove(&sequence);
        state.finished += 1;
        self.changed.notify_all();
    }

    /// Counts a write to the page file that belongs to no batch: the next sync covers it.
    pub(super) fn wrote(&self) {
        self.state.lock().finished += 1;
    }

    /// Returns the largest sequence number of all batches that have begun.
    pub(super) fn last_begun(&self) -> u64 {
        self.state.lock().next_sequence - 1
    }

    /// Waits until every batch with a sequence number up to `last` is finished.
    pub(super) fn wait_finished(&self, last: u64) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        loop {
            state.check()?;
            if state.begun.first().is_none_or(|&sequence| sequence > last) {
                return Ok(());
            }
            self.changed.wait(&mut state);
        }
    }

    /// Stores the first failure (DW-7), and returns `error`.
    pub(super) fn fail(&self, error: StoreError) -> StoreError {
        self.state.lock().failure.get_or_insert_with(|| Arc::new(error.clone()));
        self.changed.notify_all();
        error
    }

    /// Returns [`StoreError::Failed`] if the store has failed.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.state.lock().check()
    }

    /// Returns the number of the batch that finished last.
    pub(super) fn finished(&self) -> u64 {
        self.state.lock().finished
    }

    /// Waits until a sync has covered this finished batch; calls `sync` if no other thread does.
    pub(super) fn cover(
        &self,
        batch: u64,
        sync: impl FnOnce() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        loop {
            state.check()?;
            if state.covered >= batch {
                return Ok(());
            }
            if !state.syncing {
                break;
            }
            self.changed.wait(&mut state);
        }
        state.syncing = true;
        let covers = state.finished;
        drop(state);
        let result = sync();
        let mut state = self.state.lock();
        state.syncing = false;
        match &result {
            Ok(()) => state.covered = covers,
            Err(error) => drop(state.failure.get_or_insert_with(|| Arc::new(error.clone()))),
        }
        self.changed.notify_all();
        result
    }

    /// Returns `true` if slots may be written (DW-6).
    pub(super) fn is_repaired(&self) -> bool {
        self.state.lock().repaired
    }

    /// Permits writes of slots, with sequence numbers above `max_sequence` (DW-5).
    pub(super) fn set_repaired(&self, max_sequence: u64) {
        let mut state = self.state.lock();
        state.repaired = true;
        state.next_sequence = max_sequence + 1;
    }
}

impl State {
    fn check(&self) -> Result<(), StoreError> {
        match &self.failure {
            Some(first) => Err(StoreError::Failed { first: Arc::clone(first) }),
            None => Ok(()),
        }
    }

    /// Returns the first idle slot with a covered batch.
    fn first_covered(&self) -> Option<usize> {
        let is_covered = |slot: &Slot| matches!(slot, Slot::Idle { batch } if *batch <= self.covered);
        self.slots.iter().position(is_covered)
    }

    /// Returns the idle slot with the oldest batch, and that batch.
    fn oldest_idle(&self) -> Option<(usize, u64)> {
        let idle = self.slots.iter().enumerate().filter_map(|(i, slot)| match slot {
            Slot::Idle { batch } => Some((i, *batch)),
            Slot::Owned => None,
        });
        idle.min_by_key(|&(_, batch)| batch)
    }

    fn begin(&mut self) -> u64 {
        assert!(self.repaired, "DW-6: pages are written before the repair");
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.begun.insert(sequence);
        sequence
    }

    fn own(&mut self, index: usize) -> OwnedSlot {
        let sequence = self.begin();
        match std::mem::replace(&mut self.slots[index], Slot::Owned) {
            Slot::Idle { .. } => {
                let buffer = self.spare_buffers.pop().unwrap_or_else(|| PageBuf::zeroed(0));
                OwnedSlot { index, sequence, buffer }
            }
            Slot::Owned => unreachable!("DW-1: an owned slot is taken"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use azekura_base::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::path::Path;

    fn slot(ledger: &Ledger) -> OwnedSlot {
        match ledger.take() {
            Ok(Taken::Slot(slot)) => slot,
            other => panic!("{other:?}"),
        }
    }

    fn ready(slots: usize) -> Ledger {
        let ledger = Ledger::new(slots);
        ledger.cover(1, || Ok(())).unwrap();
        ledger.set_repaired(10);
        ledger
    }

    fn error() -> StoreError {
        StoreError::Refused { path: Path::new("pages").into(), what: "test", found: 1, expected: 2 }
    }

    #[test]
    fn a_slot_is_taken_again_only_after_a_sync_that_began_after_its_batch_was_finished() {
        let ledger = ready(2);
        let (a, b) = (slot(&ledger), slot(&ledger));
        assert_eq!((a.sequence, b.sequence), (11, 12), "above what the area holds");
        ledger.finish(a);
        let batch = ledger.finished();
        ledger
            .cover(batch, || {
                ledger.finish(b); // Too late for this sync.
                Ok(())
            })
            .unwrap();
        let again = slot(&ledger);
        assert_eq!(again.index, 0);
        assert!(matches!(ledger.take(), Ok(Taken::SyncFirst(3))));
    }

    #[test]
    fn slots_that_are_owned_one_after_the_other_share_one_buffer() {
        let ledger = ready(8);
        let mut first = slot(&ledger);
        first.buffer = PageBuf::zeroed(4096);
        ledger.finish(first);
        for index in 1..8 {
            let next = slot(&ledger);
            assert_eq!((next.index, next.buffer.len()), (index, 4096));
            ledger.finish(next);
        }
    }

    #[test]
    fn a_batch_without_a_slot_is_covered_like_any_other() {
        let ledger = ready(1);
        ledger.finish_without_slot(ledger.begin_without_slot().unwrap());
        let mut syncs = 0;
        for _ in 0..2 {
            let sync = || {
                syncs += 1;
                Ok(())
            };
            ledger.cover(ledger.finished(), sync).unwrap();
        }
        assert_eq!(syncs, 1);
    }

    #[test]
    fn a_checkpoint_waits_for_the_batches_that_have_begun_and_for_no_later_one() {
        let ledger = ready(3);
        assert_eq!(ledger.last_begun(), 10);
        ledger.wait_finished(10).unwrap();
        let (first, second) = (slot(&ledger), slot(&ledger));
        let last = ledger.last_begun();
        let later = slot(&ledger);
        ledger.finish(second);
        std::thread::scope(|scope| {
            let last_finished = scope.spawn(|| ledger.wait_finished(last));
            // Enough turns for a wrong implementation to fail.
            for _ in 0..10_000 {
                std::thread::yield_now();
            }
            assert!(!last_finished.is_finished(), "the first batch is not in its places");
            ledger.finish(first);
            last_finished.join().unwrap().unwrap();
        });
        drop(later);
    }

    #[test]
    fn a_covered_batch_costs_no_sync() {
        let ledger = ready(1);
        ledger.cover(1, || panic!("synced already")).unwrap();
    }

    #[test]
    fn w10_no_write_starts_after_the_first_failure() {
        let ledger = ready(2);
        ledger.finish(slot(&ledger));
        assert!(ledger.cover(2, || Err(error())).is_err());
        for result in [ledger.take().map(drop), ledger.cover(2, || panic!("a second sync")), ledger.check()] {
            assert!(matches!(result, Err(StoreError::Failed { .. })));
        }
    }

    #[test]
    fn a_waiter_for_a_slot_gets_the_failure() {
        let ledger = ready(1);
        let owned = slot(&ledger);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| ledger.take().map(drop));
            let _ = ledger.fail(error());
            assert!(waiter.join().unwrap().is_err());
        });
        drop(owned);
    }

    #[test]
    fn requests_during_a_sync_share_the_next_sync() {
        let ledger = ready(4);
        ledger.finish(slot(&ledger));
        let syncs = Mutex::new(0);
        std::thread::scope(|scope| {
            let mut waiters = Vec::new();
            ledger
                .cover(2, || {
                    ledger.finish(slot(&ledger));
                    for _ in 0..4 {
                        waiters.push(scope.spawn(|| {
                            ledger.cover(3, || {
                                *syncs.lock() += 1;
                                Ok(())
                            })
                        }));
                    }
                    Ok(())
                })
                .unwrap();
            waiters.into_iter().for_each(|w| w.join().unwrap().unwrap());
        });
        assert_eq!(*syncs.lock(), 1);
    }

    #[test]
    fn one_sync_runs_at_a_time() {
        let ledger = ready(4);
        ledger.finish(slot(&ledger));
        let overlapped = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let first = ledger.cover(2, || {
                scope.spawn(|| {
                    ledger.cover(2, || {
                        overlapped.store(true, SeqCst);
                        Ok(())
                    })
                });
                // Enough turns for a wrong implementation to fail; a correct one needs none.
                for _ in 0..10_000 {
                    std::thread::yield_now();
                }
                Err(error())
            });
            assert!(first.is_err());
        });
        assert!(!overlapped.load(SeqCst), "a second sync ran during the first one");
    }
}
