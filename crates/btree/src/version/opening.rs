//! Opens and closes snapshots, and turns versions on and off.

use std::time::Duration;

use azekura_base::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use azekura_base::sync::time::Instant;
use azekura_base::{Lsn, TreeId};

use super::{GRACE, SPARSE_AFTER, SnapshotId, VersionPart, Versions};

/// Time for which openers use the same all-visible LSN. An older LSN is valid too (VERSION-5), and computing
/// it locks each stripe of the list of active transactions. An opening takes about 0.1 µs, so about 1,000
/// openings share the cost.
const ALL_VISIBLE_FOR: Duration = Duration::from_micros(if cfg!(loom) { 0 } else { 100 });

impl Versions {
    /// Opens a snapshot to which every committed transaction is visible. If versions are off, or during a
    /// sparse period, calls `visit`, which passes each active transaction to [`backfill`](Self::backfill).
    /// `all_visible` returns an LSN below all changes of transactions that are active or begin later
    /// (VERSION-5). `next_tree` returns an id above the ids of all trees, and is called last.
    ///
    /// Otherwise the call writes only memory of its own stripe of threads. It also writes the clock
    /// if a transaction has committed since the clock's last advance.
    ///
    /// # Errors
    ///
    /// The errors of `visit`; no snapshot is open then.
    pub fn open<E>(
        &self,
        visit: impl FnOnce(&Self) -> Result<(), E>,
        all_visible: impl FnOnce() -> Lsn,
        next_tree: impl FnOnce() -> TreeId,
    ) -> Result<SnapshotId, E> {
        let opened = Instant::now();
        // Read before the timestamp is drawn (VERSION-5).
        let all_visible = self.all_visible(opened, all_visible);
        let admitted = self.admits().then(|| self.register(all_visible, opened)).filter(|id| {
            // SNAP-2: after the slot was claimed.
            let is_admitted = self.admits();
            if !is_admitted {
                self.registry.release(id);
            }
            is_admitted
        });
        let id = match admitted {
            Some(id) => id,
            None => self.turn_on(visit, || self.register(all_visible, opened))?,
        };
        self.registry.set_next_tree(&id, next_tree());
        Ok(id)
    }

    fn admits(&self) -> bool {
        self.mode.admits.load(Acquire) // Acquire: pairs with the Release in `turn_on`
    }

    /// Turns versions on, if they are off, or ends a sparse period. Opens a snapshot while no other thread
    /// changes the mode.
    #[cold]
    fn turn_on<E>(
        &self,
        visit: impl FnOnce(&Self) -> Result<(), E>,
        register: impl FnOnce() -> SnapshotId,
    ) -> Result<SnapshotId, E> {
        let _switching = self.switching.lock();
        if self.is_sparse() {
            self.end_sparse(visit)?;
            self.mode.admits.store(true, Release); // Release: as below
        } else if !self.is_on() {
            // The Release in `change_mode` publishes hints and slots.
            self.store.make();
            self.registry.make();
            self.change_mode();
            if let Err(error) = visit(self) {
                drop(self.switch_off());
                return Err(error);
            }
            // Release: pairs with the Acquire in `admits`. An admitted opener reads the images that the visit
            // has stored.
            self.mode.admits.store(true, Release);
        }
        Ok(register())
    }

    /// Returns the all-visible LSN that openers share. Computes it with `compute` if it is not recent and no
    /// other thread computes it.
    fn all_visible(&self, now: Instant, compute: impl FnOnce() -> Lsn) -> Lsn {
        let shared = &self.all_visible;
        let now = self.registry.nanoseconds(now).max(1);
        // Relaxed: decides which opener computes, and orders nothing.
        let computed = shared.computed.load(Relaxed);
        if (computed == 0 || now.saturating_sub(computed) >= ALL_VISIBLE_FOR.as_nanos() as u64)
            && let Some(_computing) = shared.computing.try_lock()
        {
            let lsn = compute();
            // Relaxed load: written under `computing`. Release: pairs with the Acquire below.
            if shared.lsn.load(Relaxed) < lsn.0 {
                shared.lsn.store(lsn.0, Release);
            }
            shared.computed.store(now, Relaxed); // Relaxed: as above
        }
        // Acquire: if a transaction was not active when the LSN was computed, its end is visible to the reads
        // of `register` (VERSION-5).
        Lsn(shared.lsn.load(Acquire))
    }

    /// Returns a timestamp at which no more transactions commit, except for transactions that readers find
    /// active.
    fn draw_timestamp(&self) -> u64 {
        loop {
            // Acquire: pairs with the AcqRel below; the fence of `register` extends it to later reads
            // (VERSION-3).
            let clock = self.clock.load(Acquire);
            if self.leaves_out(VersionPart::Clock) {
                return clock;
            }
            // Relaxed: the end of a transaction that had committed before happens before this (VERSION-8).
            if self.last_commit.load(Relaxed) < clock {
                return clock - 1; // No transaction has committed since another opener drew it.
            }
            // AcqRel: pairs with the loads here and in `commit_timestamp`. Relaxed on failure: the clock is
            // read again.
            if self.clock.compare_exchange(clock, clock + 1, AcqRel, Relaxed).is_ok() {
                return clock;
            }
        }
    }

    /// Draws a timestamp and lists it (SNAP-1). Repeats only if a transaction commits in between.
    fn register(&self, all_visible: Lsn, opened: Instant) -> SnapshotId {
        let mut id = self.registry.claim(self.draw_timestamp(), all_visible, opened);
        let slot = self.registry.slot(&id);
        slot.publish();
        // Relaxed: SNAP-1, ordered by the fence of `publish`.
        while self.last_commit.load(Relaxed) > id.timestamp && !self.leaves_out(VersionPart::Clock) {
            id.timestamp = self.draw_timestamp();
            slot.move_to(id.timestamp);
            slot.publish();
        }
        id
    }

    /// Returns another handle of an open snapshot; `None` if it is too old.
    #[must_use]
    pub fn open_same(&self, of: &SnapshotId) -> Option<SnapshotId> {
        self.registry.share(of)
    }

    /// Drops a handle of a snapshot; the last handle closes it. If versions that no other snapshot needs have
    /// become many, this call drops some of them. Later calls, calls of [`turn_off`](Self::turn_off), and
    /// later changes of their rows drop the others.
    pub fn close(&self, id: &SnapshotId) {
        if self.registry.release(id) {
            self.sweep_after(id.timestamp);
        }
    }

    /// Returns the number of snapshots that were closed or became too old. While this number is unchanged, a
    /// deferred free that waits for a snapshot still has to wait for it.
    #[must_use]
    pub fn closed_snapshots(&self) -> u64 {
        // Acquire: pairs with the Release in `shrink`. The caller then reads that the snapshot is too old.
        self.registry.closed() + self.too_old.load(Acquire)
    }

    /// Returns the memory of all versions at the moment when the versions that the snapshot needs were
    /// dropped; `None` if they were not dropped. Call it after each read, before the result is used.
    #[must_use]
    pub fn too_old_at_bytes(&self, id: &SnapshotId) -> Option<u64> {
        self.registry.slot(id).too_old_at_bytes()
    }

    /// Turns versions off if no snapshot is open and none was opened for [`GRACE`], so that writers stop
    /// storing images. Begins a sparse period if a snapshot is open and none was opened for [`SPARSE_AFTER`],
    /// so that writers store fewer images. Continues a sweep that the [close](Self::close) of a snapshot has
    /// begun. Cheap if there is nothing to do; call it periodically.
    pub fn turn_off(&self) {
        if self.is_sweeping() {
            self.sweep_some(None);
        }
        if !self.is_on() {
            return;
        }
        let computed = self.all_visible.computed.load(Relaxed); // Relaxed: a time that orders nothing
        let now = self.registry.nanoseconds(Instant::now());
        // An opening after at least these times would have computed the all-visible LSN again.
        let is_past = |time: Duration| now.saturating_sub(computed) >= time.as_nanos() as u64;
        if !self.registry.is_any_open() {
            if is_past(GRACE) {
                self.turn_off_now();
            }
        } else if is_past(SPARSE_AFTER) && !self.is_sparse() {
            self.begin_sparse();
        }
    }

    /// Turns versions off, unless a snapshot is open or another thread changes the mode.
    pub(super) fn turn_off_now(&self) {
        // Only tried: a thread that holds the mutex may wait for the undo log of this thread's transaction.
        let Some(switching) = self.switching.try_lock() else { return };
        let versions = (self.is_on() && self.stop_admission()).then(|| self.switch_off());
        drop(switching);
        drop(versions);
    }

    /// Returns `true` if writers store more images than necessary: [`turn_off`](Self::turn_off) may turn
    /// versions off, or begin a sparse period.
    #[must_use]
    pub fn can_turn_off(&self) -> bool {
        self.is_on() && (!self.is_sparse() || !self.registry.is_any_open())
    }

    /// Stops the admission of openers, unless a snapshot is open or being opened (SNAP-2). The caller holds
    /// `switching`.
    fn stop_admission(&self) -> bool {
        self.mode.admits.store(false, Relaxed); // Relaxed: the fence of `is_any_open` orders it (SNAP-2)
        let is_unused = !self.registry.is_any_open();
        if !is_unused && !self.is_sparse() {
            self.mode.admits.store(true, Release); // Release: as in `turn_on`
        }
        is_unused
    }
}
