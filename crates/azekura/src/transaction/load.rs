//! Bulk loads: fill an empty table in key order, with pages that are not logged (`azekura_btree::Loader`).

use azekura_base::{DurableLog, Lsn};
use azekura_btree::{
    ChainWriter, LoadOptions, LoadedPages, Loader, NoLocks, OverflowRef, Tree, TreeError, UndoOp, WriteCtx,
};
use azekura_lock::TableMode;

use super::state::LoadMark;
use super::{OpenTree, Transaction, WriteKind};
use crate::database::Shared;
use crate::{Error, RowSorter, SortedRows};

/// A function that writes the encoded key and value of the next row into two empty buffers. After
/// [`Next::Part`] the next call writes the next part of the row's value, and leaves the key empty.
pub(crate) type NextRow<'a> = &'a mut dyn FnMut(&mut Vec<u8>, &mut Vec<u8>) -> Result<Next, Error>;

/// Result of a call for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A whole row, or the last part of its value.
    Row,
    /// A row or a further part of its value, which the next call continues.
    Part,
    /// No row is left.
    End,
}

/// Largest number of checkpoints for one load. More than one is needed only if other transactions change
/// pages of an old log record meanwhile.
const MOST_CHECKPOINTS: usize = 8;

/// Number of bytes of a key that an error shows.
const SHOWN_BYTES: usize = 32;

impl Transaction {
    /// Fills an empty table; returns the number of rows. See [`Table::bulk_load`](crate::Table::bulk_load).
    pub(crate) fn bulk_load(&self, open: &OpenTree, next: NextRow<'_>) -> Result<u64, Error> {
        let _load = crate::probe::bulk_load();
        self.check_writable()?;
        let scope = LoadScope::begin(self, open)?;
        // The loader is dropped, and all its page writes have ended, before the load is undone (LOAD-4).
        let loaded = self.load_rows(open, next);
        let rows = scope.end(loaded)?;
        self.state()?.write_count += 1; // cursors on the table assume that it is empty
        Ok(rows)
    }

    /// Returns a sorter of rows in the store's directory.
    pub(crate) fn row_sorter(&self, memory_bytes: usize) -> RowSorter {
        RowSorter::new(&self.db, memory_bytes)
    }

    /// Stores sorted rows; returns their number. An empty table is bulk-loaded; a table with rows gets the
    /// rows one by one. See [`Table::bulk_load_unsorted`](crate::Table::bulk_load_unsorted).
    pub(crate) fn load_sorted(
        &self,
        open: &OpenTree,
        mut rows: SortedRows,
        is_empty: bool,
    ) -> Result<u64, Error> {
        if is_empty {
            return self.bulk_load(open, &mut |key, value| {
                let Some(row) = rows.next().transpose()? else { return Ok(Next::End) };
                (*key, *value) = row;
                Ok(Next::Row)
            });
        }
        let mut written = 0;
        for row in rows {
            let (key, value) = row?;
            self.write(open, &key, &value, WriteKind::Put)?;
            written += 1;
        }
        Ok(written)
    }

    fn load_rows(&self, open: &OpenTree, next: NextRow<'_>) -> Result<u64, Error> {
        let there = self.resolve(open, TableMode::X)?;
        let mut first = Row::default();
        let writes = self.write_count();
        let has_rows = first.read(next)? != Next::End;
        if self.write_count() != writes {
            return Err(changed_by_rows(open));
        }
        let tree = match there {
            Some(tree) => tree,
            None if has_rows => self.resolve_or_create(open)?,
            None => return Ok(0),
        };
        self.lock_table(tree, TableMode::X)?;
        self.listed(&mut *self.state()?);
        if self.db.archive.is_some() || self.may_be_read_as_before(tree)? {
            return self.load_logged(open, tree, has_rows.then_some(first), next);
        }
        let mut load = Load { tx: self, open, past: Past::new(&self.db), writes_seen: 0, rows: 0 };
        load.run(tree, has_rows.then_some(first), next)?;
        Ok(load.rows)
    }

    /// Returns `true` if a snapshot may read rows that the table, now empty, had before. A bulk load would
    /// hide these rows, because the table is empty in each snapshot to which its load is not visible. The
    /// caller has locked the table exclusively, so only this transaction can add changes.
    fn may_be_read_as_before(&self, tree: Tree) -> Result<bool, Error> {
        let mut is_changed = false;
        for op in self.state()?.undo().log.iter() {
            match op {
                UndoOp::DropTree { tree: of } if of.id == tree.id => return Ok(false), // made here
                UndoOp::RemoveKey { tree: of, .. }
                | UndoOp::PutBack { tree: of, .. }
                | UndoOp::Flip { tree: of, .. } => is_changed |= of.id == tree.id,
                _ => {}
            }
        }
        Ok(is_changed || self.db.env.versions().has_images(tree.id))
    }

    /// Fills an empty table by logged writes (ARCHIVE-4).
    fn load_logged(
        &self,
        open: &OpenTree,
        tree: Tree,
        first: Option<Row>,
        next: NextRow<'_>,
    ) -> Result<u64, Error> {
        let mut load = Load { tx: self, open, past: Past::new(&self.db), writes_seen: 0, rows: 0 };
        // Returns an error if the table is not empty.
        drop(self.with_writer(|ctx, _| {
            let options = LoadOptions { threads: false };
            Loader::begin(&self.db.env, ctx, tree, options).map_err(|error| load.explain(error))
        })?);
        let Some(mut row) = first else { return Ok(0) };
        let mut last: Option<Vec<u8>> = None;
        loop {
            if last.as_ref().is_some_and(|last| row.key <= *last) {
                return Err(load.explain(TreeError::NotAscending { key: row.key }));
            }
            row.complete(usize::MAX, next)?;
            self.write_to(tree, &row.key, &row.value, WriteKind::Put)?;
            load.rows += 1;
            let writes = self.write_count();
            last.get_or_insert_default().clone_from(&row.key);
            let is_row = row.read(next)? != Next::End;
            if self.write_count() != writes {
                return Err(changed_by_rows(open));
            }
            if !is_row {
                return Ok(load.rows);
            }
        }
    }

    /// Ends a load that began with `before` entries in the undo log. A rollback that was requested during the
    /// load runs now, because page writes were in flight before (LOAD-4).
    fn end_load<T>(&self, before: usize, loaded: Result<T, Error>) -> Result<T, Error> {
        let load = self.state.borrow_mut().as_mut().and_then(|state| state.load.take());
        if load.is_some_and(|load| load.is_doomed) {
            let rolled_back = self.roll_back().inspect_err(|_| drop(self.conflict.take()));
            return rolled_back.and(loaded);
        }
        self.end_call(before, loaded)
    }

    /// Runs one step of a load with the transaction's log buffer and undo log.
    pub(super) fn with_writer<T>(
        &self,
        step: impl FnOnce(&mut WriteCtx<'_>, &mut u64) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut state = self.state()?;
        let mut writes = state.write_count;
        let mut undo = state.undo();
        // The table is locked exclusively, so its keys need no locks.
        let mut ctx =
            WriteCtx { txn: self.id, log_buffer: state.log_buffer, undo: &mut undo.log, locks: &mut NoLocks };
        let result = step(&mut ctx, &mut writes);
        drop(undo);
        state.write_count = writes;
        result
    }
}

/// The scope of a load. If the caller's rows panic, dropping the scope undoes the load as after an error.
pub(super) struct LoadScope<'t> {
    tx: &'t Transaction,
    before: usize,
}

impl<'t> LoadScope<'t> {
    pub(super) fn begin(tx: &'t Transaction, open: &OpenTree) -> Result<Self, Error> {
        tx.check_time()?;
        let mut state = tx.state()?;
        if state.load.is_some() {
            return Err(changed_by_rows(open));
        }
        let before = state.undo_len();
        state.load = Some(LoadMark { undo_len: before, is_doomed: false });
        Ok(Self { tx, before })
    }

    pub(super) fn end<T>(self, loaded: Result<T, Error>) -> Result<T, Error> {
        let (tx, before) = (self.tx, self.before);
        std::mem::forget(self); // the load ends here, so the drop must not end it again
        tx.end_load(before, loaded)
    }
}

impl Drop for LoadScope<'_> {
    fn drop(&mut self) {
        let panicked = Error::Invalid("the caller's rows or source panicked".into());
        // The panic continues in the caller. If the load cannot be undone, the transaction is rolled back.
        let _ = self.tx.end_load::<()>(self.before, Err(panicked));
    }
}

/// A row with encoded key and value.
#[derive(Default)]
struct Row {
    key: Vec<u8>,
    /// The value, or the part of it that is in memory.
    value: Vec<u8>,
    /// `true` if the value has further parts.
    has_more: bool,
}

impl Row {
    fn read(&mut self, next: NextRow<'_>) -> Result<Next, Error> {
        self.key.clear();
        self.value.clear();
        let found = next(&mut self.key, &mut self.value)?;
        self.has_more = found == Next::Part;
        Ok(found)
    }

    /// Reads parts of the value until `bytes` bytes are in memory, or the value is complete.
    fn complete(&mut self, bytes: usize, next: NextRow<'_>) -> Result<(), Error> {
        let (mut key, mut part) = (Vec::new(), Vec::new());
        while self.has_more && self.value.len() < bytes {
            self.has_more = next(&mut key, &mut part)? == Next::Part;
            self.value.append(&mut part);
        }
        Ok(())
    }
}

/// A bulk load in progress.
struct Load<'t> {
    tx: &'t Transaction,
    open: &'t OpenTree,
    past: Past<'t>,
    /// The transaction's write count at the last check.
    writes_seen: u64,
    rows: u64,
}

impl Load<'_> {
    fn run(&mut self, tree: Tree, first: Option<Row>, next: NextRow<'_>) -> Result<(), Error> {
        let options = LoadOptions { threads: self.tx.db.options.has_jobs() };
        let tx = self.tx;
        let mut loader = tx.with_writer(|ctx, writes| {
            *writes += 1;
            self.writes_seen = *writes;
            Loader::begin(&tx.db.env, ctx, tree, options).map_err(|error| self.explain(error))
        })?;
        let Some(mut row) = first else { return Ok(()) };
        loop {
            let chain = if row.has_more { self.write_parts(&mut loader, &mut row, next)? } else { None };
            // Most rows need no step.
            let is_pushed = match chain {
                Some(_) => Ok(false),
                None => loader.try_push(&row.key, &row.value),
            };
            if !is_pushed.map_err(|error| self.explain_row(error, &row.key))? {
                self.step(|ctx, load| {
                    let is_past = &mut |lsn| load.past.is_past(lsn);
                    let pushed = match chain {
                        Some(chain) => loader.push_chain(ctx, &row.key, chain, is_past),
                        None => loader.push(ctx, &row.key, &row.value, is_past),
                    };
                    pushed.map_err(|error| load.explain_row(error, &row.key))
                })?;
            }
            self.rows += 1;
            if row.read(next)? == Next::End {
                break;
            }
        }
        let pages = self.step(|ctx, load| {
            let done = loader.complete(ctx, &mut |lsn| load.past.is_past(lsn));
            done.map_err(|error| load.explain(error))
        })?;
        self.switch(pages)
    }

    /// Writes a large value that is not complete in memory. Returns `None` if the rest of the value is short,
    /// and is in memory now.
    fn write_parts(
        &mut self,
        loader: &mut Loader<'_>,
        row: &mut Row,
        next: NextRow<'_>,
    ) -> Result<Option<OverflowRef>, Error> {
        let env = &self.tx.db.env;
        let piece_bytes = ChainWriter::piece_bytes(env.page_size());
        row.complete(piece_bytes, next)?;
        if !row.has_more && row.value.len() <= piece_bytes {
            return Ok(None);
        }
        let mut chain = ChainWriter::new();
        while row.has_more || !row.value.is_empty() {
            row.complete(piece_bytes, next)?;
            let piece = row.value.len().min(piece_bytes);
            self.step(|ctx, load| {
                let is_past = &mut |lsn| load.past.is_past(lsn);
                let appended = loader.append(ctx, &mut chain, &row.value[..piece], is_past);
                appended.map_err(|error| load.explain_row(error, &row.key))
            })?;
            row.value.drain(..piece);
        }
        Ok(Some(chain.finish()))
    }

    fn switch(&mut self, pages: LoadedPages) -> Result<(), Error> {
        self.past.insist(pages.last_freed())?;
        self.step(|ctx, load| pages.switch(&load.tx.db.env, ctx).map_err(Error::from))
    }

    /// Runs a step of the load. Returns an error if the caller's iterator wrote in this transaction, because
    /// the load's undo entries must be contiguous.
    fn step<T>(
        &mut self,
        step: impl FnOnce(&mut WriteCtx<'_>, &mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let tx = self.tx;
        tx.with_writer(|ctx, writes| {
            if *writes != self.writes_seen {
                return Err(changed_by_rows(self.open));
            }
            step(ctx, self)
        })
    }

    fn explain(&self, error: TreeError) -> Error {
        let table = || self.open.name().to_owned();
        match error {
            TreeError::NotEmpty { .. } => Error::NotEmpty { table: table() },
            TreeError::NotAscending { key } => {
                Error::NotAscending { table: table(), row: self.rows + 1, key }
            }
            other => other.into(),
        }
    }

    /// Returns the error of a row, with the table and the beginning of the key if the row is too long.
    fn explain_row(&self, error: TreeError, key: &[u8]) -> Error {
        match error {
            TreeError::KeyTooLong { .. } | TreeError::ValueTooLong { .. } => Error::Invalid(format!(
                "row {} of table {:?} cannot be stored (its key begins with \"{}\"): {error}",
                self.rows + 1,
                self.open.name(),
                key[..key.len().min(SHOWN_BYTES)].escape_ascii()
            )),
            other => self.explain(other),
        }
    }
}

pub(super) fn changed_by_rows(open: &OpenTree) -> Error {
    Error::Invalid(format!(
        "the rows or the source that are stored in table {:?} wrote in the same transaction; write in \
         another one, or before",
        open.name()
    ))
}

/// Decides whether a restart would redo records up to an LSN (LOAD-2).
struct Past<'t> {
    db: &'t Shared,
    has_tried: bool,
}

impl<'t> Past<'t> {
    const fn new(db: &'t Shared) -> Self {
        Self { db, has_tried: false }
    }

    /// Returns `true` if a restart would redo no record up to `lsn`. Takes at most one checkpoint per load to
    /// achieve this, which saves writing the pages twice. If other transactions free pages continuously, a
    /// second checkpoint would not help for long.
    fn is_past(&mut self, lsn: Lsn) -> bool {
        let is_past = self.db.redo_lsn() > lsn;
        if is_past || std::mem::replace(&mut self.has_tried, true) {
            return is_past;
        }
        // An error is ignored here; `insist` reports it if the checkpoint is required.
        self.db.checkpoint_past(lsn).is_ok() && self.db.redo_lsn() > lsn
    }

    /// Takes checkpoints until a restart would redo no record up to `lsn`; fails after [`MOST_CHECKPOINTS`].
    fn insist(&self, lsn: Lsn) -> Result<(), Error> {
        for _ in 0..MOST_CHECKPOINTS {
            if self.db.redo_lsn() > lsn {
                return Ok(());
            }
            self.db.checkpoint_past(lsn)?;
        }
        Err(Error::PageIo {
            source: format!(
                "after {MOST_CHECKPOINTS} checkpoints a restart would still read log record {lsn}; load again"
            )
            .into(),
        })
    }
}

impl Shared {
    fn redo_lsn(&self) -> Lsn {
        self.control.current().redo_lsn
    }

    /// Makes the log durable up to `lsn` and takes a checkpoint. Pages that become dirty meanwhile have
    /// larger LSNs.
    fn checkpoint_past(&self, lsn: Lsn) -> Result<(), Error> {
        self.wal.make_durable(lsn)?;
        self.checkpoint_fully()
    }
}
