//! Commit, rollback, and the cleanup after a failed call.

use azekura_base::sync::time::Instant;
use azekura_base::{Lsn, TxnId};
use azekura_btree::record::encode;
use azekura_btree::{Committed, Head, LeafBatch, UndoOp, Writer, roll_back_to};
use azekura_lock::{GapMode, KeyRef, LockError};

use super::{Direction, State, Transaction};
use crate::Error;
use crate::active::ActiveHandle;
use crate::archive::Archive;
use crate::bounds::ByteBounds;
use crate::catalog::CATALOG;
use crate::database::Shared;
use crate::deferred::{self, Attempt, Leftovers, Unfreed};
use crate::locking::ScanLocks;

impl Transaction {
    const fn writer(&self, state: &State) -> Writer {
        Writer { txn: self.id, log_buffer: state.log_buffer }
    }

    /// Adds the transaction to the active list before its first record (TXN-4).
    pub(super) fn listed(&self, state: &mut State) -> ActiveHandle {
        state.list(&self.db, self.id)
    }

    /// Runs one call that changes rows; if the call fails, undoes its partial changes (TXN-3).
    pub(super) fn statement<T>(
        &self,
        call: impl FnOnce(&Self, &mut State) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.check_writable()?;
        let mut state = self.state()?;
        let before = state.undo_len();
        let mut result = call(self, &mut state);
        if result.is_ok() {
            match state.note_undo(&self.db, self.id) {
                Ok(()) => return result,
                Err(full) => result = Err(full),
            }
        }
        drop(state);
        self.end_call(before, result)
    }

    /// Returns an error if the store is open for reading only, or can no longer write its pages.
    pub(super) fn check_writable(&self) -> Result<(), Error> {
        if self.db.options.read_only {
            return Err(Error::ReadOnly);
        }
        if self.db.pool.has_failed() { Err(self.db.pages_failed()) } else { Ok(()) }
    }

    /// Returns the number of entries of the undo log, for [`end_call`](Self::end_call).
    pub(crate) fn undo_len(&self) -> Result<usize, Error> {
        Ok(self.state()?.undo_len())
    }

    /// Ends a call that began with `before` entries in the undo log. If the call failed, undoes its changes
    /// (TXN-3).
    pub(crate) fn end_call<T>(&self, before: usize, result: Result<T, Error>) -> Result<T, Error> {
        let Ok(mut state) = self.state() else { return result };
        let error = match result {
            Ok(value) => match state.note_undo(&self.db, self.id) {
                Ok(()) => return Ok(value),
                Err(full) => full,
            },
            Err(error) => error,
        };
        if !error.is_retryable() {
            self.db.report_failed_change(&error);
        }
        let undone = if ends_transaction(&error) { Ok(()) } else { state.undo_to(&self.db, self.id, before) };
        drop(state);
        match undone {
            Ok(()) => Err(self.fail(error)),
            Err(_) => {
                // The undo failed midway, so the whole transaction must be rolled back, now or later.
                let _ = self.roll_back();
                Err(error)
            }
        }
    }

    /// Returns `error`; if that error ends the transaction, rolls it back first.
    pub(super) fn fail(&self, error: Error) -> Error {
        if ends_transaction(&error) {
            self.conflict.replace(error.copy_of_conflict());
            if let Err(stuck) = self.roll_back() {
                self.conflict.replace(None);
                return stuck;
            }
        }
        error.in_store(&self.db.path)
    }

    pub(super) fn lock_failed(&self, error: LockError) -> Error {
        match error {
            LockError::Deadlock { cycle, .. } => Error::Deadlock { txn: self.id, cycle },
            LockError::SelfDeadlock { holder, .. } => Error::SelfDeadlock { txn: self.id, holder },
            LockError::Timeout { waited, holders } => Error::LockTimeout {
                txn: self.id,
                waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
                holders,
            },
            LockError::WouldBlock => Error::WouldBlock { txn: self.id },
            LockError::Interrupted => Error::Interrupted,
            // A transaction that has written can be neither committed nor undone, because the log failed or
            // has no space.
            LockError::Closed => self.db.wal.failure().map_or_else(|| self.db.parked.pending(), Error::from),
            other => Error::other(other),
        }
    }

    /// Undoes all changes and releases the locks (TXN-2).
    pub(super) fn roll_back(&self) -> Result<(), Error> {
        let _rollback = crate::probe::rollback();
        if let Some(load) = self.state.borrow_mut().as_mut().and_then(|state| state.load.as_mut()) {
            load.is_doomed = true; // LOAD-4: `end_load` rolls back
            return Ok(());
        }
        let state = self.state.borrow_mut().take().ok_or(Error::Aborted { txn: self.id })?;
        if let Err(forked) = self.db.lifetime.check_process() {
            std::mem::forget(state); // LIFE-3: its locks and records belong to the parent
            return Err(forked);
        }
        self.db.roll_back(self.id, state)
    }

    /// Undoes all changes after a position in the undo log. If the undo fails midway, the transaction is
    /// over.
    pub(super) fn return_to(&self, undo_len: usize) -> Result<(), Error> {
        let mut state = self.state()?;
        self.pass_on_gaps(&mut state, undo_len)?;
        let undone = state.undo_to(&self.db, self.id, undo_len);
        drop(state);
        undone.inspect_err(|_| {
            let _ = self.roll_back();
        })
    }

    /// Appends the commit record and releases the locks; returns the LSN that must be durable before the
    /// commit is acknowledged.
    pub(super) fn commit_record(&self) -> Result<Lsn, Error> {
        self.db.lifetime.check_process()?;
        self.check_time()?;
        let Some(mut state) = self.state.borrow_mut().take() else {
            // The conflict that rolled the transaction back, because the caller may have ignored it.
            return Err(self.take_conflict().unwrap_or(Error::Aborted { txn: self.id }));
        };
        if state.listed.is_none() || state.undo_len() == 0 {
            // There is nothing to make durable, but the commits that the transaction has read may not be
            // durable yet (W8).
            let depends_on = state.depends_on;
            return self.db.roll_back(self.id, state).map(|()| depends_on);
        }
        let mut undo = state.undo();
        let values = std::mem::take(&mut undo.log.values);
        let mut leftovers = Leftovers::of(&undo.log);
        drop(undo); // a checkpoint may copy the log during the sync
        let last_finished = match values.make_durable(&self.db.env) {
            Ok(number) => number,
            Err(error) => return Err(self.not_committed(state, error.into())),
        };
        let has_deferred = !leftovers.is_empty();
        let gate = has_deferred.then(|| self.db.leftovers_gate.read());
        let writer = self.writer(&state);
        let (archive_gate, time) = self.db.archive.as_ref().map(Archive::commit_gate).unzip();
        let body = &mut state.key_buf;
        body.clear();
        let head = Head::Commit { txn: self.id, has_deferred, time: time.unwrap_or(0), last_finished };
        encode(body, &head, std::iter::empty());
        let body = std::mem::take(body);
        let mut undo = state.undo();
        let appended = self.db.wal.append_commit(writer.log_buffer, &body);
        let mut committed = Committed::default();
        if let Ok(commit) = appended {
            if self.db.env.versions().has_status(&undo.log) {
                self.db.locks.announce(&state.locks, commit); // SEEN-2
            }
            undo.owner = None; // ACTIVE-2: no copy follows the last record
            committed = self.db.env.versions().commit(&mut undo.log, commit);
        }
        drop(undo);
        drop(archive_gate);
        state.key_buf = body;
        let commit = match appended {
            Ok(commit) => {
                self.db.report_room();
                commit
            }
            Err(error) => {
                drop(gate);
                return Err(self.not_committed(state, error.into()));
            }
        };
        for name in &state.dropped {
            self.db.catalog.forget(name);
        }
        if !has_deferred {
            self.db.end(state, Some(commit));
            return Ok(commit);
        }
        let listed = state.listed.take();
        self.db.end(state, Some(commit));
        listed.iter().for_each(|listed| self.db.active.committed(listed));
        let closed_snapshots = self.db.env.versions().closed_snapshots();
        let freed = leftovers.free(&self.db.env, writer, &committed);
        if let Ok(true) = freed {
            listed.into_iter().for_each(|listed| self.db.active.remove(listed));
        } else {
            // The transaction is committed. The checkpointer frees the rest, after the error or when the
            // snapshots close.
            let attempt = Attempt { closed_snapshots, has_failed: freed.is_err() };
            self.db.unfreed.lock().push(Unfreed { writer, leftovers, listed, committed, attempt });
        }
        if let Err(error) = freed {
            self.db.note_background_error(error, "release of pages");
        }
        drop(gate);
        Ok(commit)
    }

    /// Rolls the transaction back after its commit failed; returns the error.
    fn not_committed(&self, state: Box<State>, error: Error) -> Error {
        self.db.report_failed_change(&error);
        *self.state.borrow_mut() = Some(state);
        self.roll_back().err().unwrap_or(error)
    }

    /// Locks the gap above each inserted key before the undo removes the key, if this transaction has read
    /// the gap below it (see `locking`).
    pub(super) fn pass_on_gaps(&self, state: &mut State, undo_len: usize) -> Result<(), Error> {
        if self.db.options.left_out.is_undone_next() {
            return Ok(());
        }
        let mut inserted = Vec::new();
        let undo = state.undo();
        for entry in (undo_len..undo.log.len()).filter_map(|i| undo.log.get(i)) {
            if let UndoOp::RemoveKey { tree, key } = entry {
                inserted.push((tree, key.to_vec()));
            }
        }
        drop(undo);
        // In ascending order: the next key may itself be an inserted key, and the lock on its gap is then
        // passed on in turn.
        inserted.sort_unstable_by(|(a, k), (b, l)| (a.id, k).cmp(&(b.id, l)));
        inserted.dedup();
        for (tree, key) in inserted {
            let held = self.db.locks.held_key_mode(&state.locks, tree.id, KeyRef::Key(&key));
            if matches!(held.gap, GapMode::S | GapMode::X) {
                let above = ByteBounds::right_above(key);
                let mut found = LeafBatch::new();
                crate::scan::batch(
                    self,
                    (tree, ScanLocks::default()),
                    &mut above.scan(tree),
                    Direction::Forward,
                    1,
                    state,
                    &mut found,
                )?;
            }
        }
        Ok(())
    }
}

impl State {
    /// Records the number of undo entries for checkpoints, and their memory. If the memory of all open
    /// transactions exceeds [`Builder::undo_bytes`](crate::Builder::undo_bytes), returns an error; the caller
    /// then undoes the call that needed the memory.
    fn note_undo(&mut self, db: &Shared, id: TxnId) -> Result<(), Error> {
        let undo = self.undo();
        let (entries, bytes) = (undo.log.len(), undo.log.memory());
        drop(undo);
        let Some(listed) = &mut self.listed else { return Ok(()) };
        db.active.note_undo(listed, entries);
        let limit = || db.options.undo_bytes_limit();
        if db.active.note_undo_memory(listed, bytes, limit) {
            return Ok(());
        }
        Err(Error::UndoMemoryExhausted { txn: id, limit_bytes: limit() })
    }

    /// Undoes the newest entries until `len` entries remain, each with a compensation record.
    fn undo_to(&mut self, db: &Shared, id: TxnId, len: usize) -> Result<(), Error> {
        let before = self.undo_len();
        if before <= len {
            return Ok(());
        }
        self.write_count += 1;
        let began = Instant::now();
        let undone = self.undo_in_steps(db, id, len);
        db.undo_pace.rolled_back((before - self.undo_len()) as u64, began.elapsed());
        let _ = self.note_undo(db, id); // less memory than before the undo: no error of this call
        self.forget_undone_savepoints();
        undone?;
        // The undo may have removed or restored a table, so each tree is looked up again at its next use. The
        // catalog's cache forgets a dropped table at commit, so `dropped` keeps only the drops that were not
        // undone.
        for slot in self.slots.values_mut() {
            slot.tree = None;
        }
        if !self.dropped.is_empty() {
            // Reads the whole undo log, so not after each rollback of a long transaction.
            let is_kept = |op: &UndoOp<'_>| matches!(op, UndoOp::PutBack { tree, .. } if *tree == CATALOG);
            let kept = self.undo().log.iter().filter(is_kept).count();
            self.dropped.truncate(kept);
        }
        Ok(())
    }

    /// Undoes all changes and logs the end; continues after an earlier attempt.
    pub(super) fn undo_all(&mut self, db: &Shared, id: TxnId) -> Result<(), Error> {
        if self.listed.is_none() {
            return Ok(());
        }
        self.undo_to(db, id, 0)?;
        let mut undo = self.undo();
        deferred::append_end(&db.env, self.undoer(id))?;
        undo.owner = None; // ACTIVE-2: no copy follows the last record
        db.env.versions().roll_back(&mut undo.log);
        Ok(())
    }

    /// Undoes [`UNDO_STEP`] entries at a time, so that a checkpoint can lock the undo log between the steps.
    fn undo_in_steps(&self, db: &Shared, id: TxnId, len: usize) -> Result<(), Error> {
        loop {
            let mut undo = self.undo();
            let next = undo.log.len().saturating_sub(UNDO_STEP).max(len);
            roll_back_to(&db.env, self.undoer(id), &mut undo.log, next)?;
            if undo.log.len() <= len {
                return Ok(());
            }
        }
    }

    /// Returns a writer for undo records, which may use the log's reserve when the disk is full.
    const fn undoer(&self, txn: TxnId) -> Writer {
        Writer { txn, log_buffer: self.log_buffer.with_reserve() }
    }
}

impl Shared {
    /// Releases the locks, after the last record of the transaction was appended to the log.
    pub(super) fn end(&self, mut state: Box<State>, commit_lsn: Option<Lsn>) {
        self.locks.release(&mut state.locks, commit_lsn);
        if let Some(listed) = state.listed.take() {
            self.active.remove(listed);
        }
        state.retire(self);
    }
}

/// Number of entries undone while the undo log stays locked.
const UNDO_STEP: usize = 64;

/// Returns `true` if a transaction cannot continue after this error.
fn ends_transaction(error: &Error) -> bool {
    error.is_retryable() || matches!(error, Error::Log(_))
}
