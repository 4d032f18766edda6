//! Tables by name: lookup, creation, removal, and table locks.

use std::sync::Arc;

use azekura_btree::{Env, Tree, TreeError, UndoOp, WriteCtx};
use azekura_lock::TableMode;

use super::state::{OpenTree, State, TableSlot, TypesOf};
use super::{NextRow, Transaction, WriteKind};
use crate::Error;
use crate::catalog::{self, CATALOG, Entry, TableInfo, TableTypes};
use crate::locking::OperationLocks;

impl Transaction {
    /// Changes a tree that this transaction has locked exclusively, so its keys need no locks.
    fn change_whole<T>(
        &self,
        state: &mut State,
        change: impl FnOnce(&Env, &mut WriteCtx<'_>) -> Result<T, TreeError>,
    ) -> Result<T, Error> {
        let (locks, undo, log_buffer) = state.parts();
        let wal = (&*self.db.wal, log_buffer);
        let mut held = OperationLocks::new(&self.db.locks, wal, locks, None, Some(TableMode::X));
        let undo = &mut undo.lock().log;
        let mut ctx = WriteCtx { txn: self.id, log_buffer, undo, locks: &mut held };
        change(&self.db.env, &mut ctx).map_err(Error::from)
    }

    pub(super) fn open_tree(&self, name: &str, types: Option<TypesOf>) -> Result<OpenTree, Error> {
        catalog::check_name(name)?;
        self.check_time()?;
        let mut state = self.state()?;
        let slot = match state.slots.find(name) {
            Some(slot) => slot,
            None => state.slots.push(name.into(), TableSlot::default()),
        };
        Ok(OpenTree { slot, name: Arc::clone(state.slots.key(slot)), types })
    }

    /// Returns the tree of a table, locked at least in `mode`; `None` if there is no such table. An absent
    /// table stays absent until the transaction ends, because its catalog row is locked. The rows have the
    /// types with which the table is open.
    pub(super) fn resolve(&self, open: &OpenTree, mode: TableMode) -> Result<Option<Tree>, Error> {
        self.check_time()?;
        let (known, is_checked) = {
            let state = self.state()?;
            let slot = state.slots.at(open.slot);
            (slot.tree, slot.is_checked(open.types))
        };
        if let Some(tree) = known
            && is_checked
        {
            self.lock_table(tree, mode)?;
            return Ok(Some(tree));
        }
        let Some(tree) = self.find(open, mode)? else { return Ok(None) };
        self.check_types(open)?;
        Ok(Some(tree))
    }

    /// Returns an error if the table is open with types that differ from those of its rows.
    fn check_types(&self, open: &OpenTree) -> Result<(), Error> {
        let Some(types) = open.types else { return Ok(()) };
        let mut state = self.state()?;
        let slot = state.slots.at_mut(open.slot);
        let (asked, stored) = (types.names(), slot.types.as_deref());
        if let Some(stored) = stored
            && *stored != asked
        {
            let (table, stored, asked) = (open.name.to_string(), stored.clone().into(), asked.into());
            return Err(Error::TableTypeMismatch { table, stored, asked });
        }
        slot.checked = Some(types);
        Ok(())
    }

    fn find(&self, open: &OpenTree, mode: TableMode) -> Result<Option<Tree>, Error> {
        let (known, hint, is_dropped) = {
            let state = self.state()?;
            let slot = state.slots.at(open.slot);
            (slot.tree, slot.hint, state.dropped.contains(&open.name))
        };
        if let Some(tree) = known {
            self.lock_table(tree, mode)?;
            return Ok(Some(tree));
        }
        // The hint and the cache still contain a table that this transaction itself dropped.
        if !is_dropped {
            if let Some(hint) = hint {
                self.lock_table(hint.tree, mode)?;
                if self.db.catalog.is_current(hint) {
                    self.state()?.slots.at_mut(open.slot).tree = Some(hint.tree);
                    return Ok(Some(hint.tree));
                }
            }
            if let Some(entry) = self.db.catalog.cached(&open.name) {
                self.lock_table(entry.tree, mode)?;
                if self.db.catalog.cached(&open.name).is_some_and(|now| now.tree == entry.tree) {
                    return self.found(open, entry);
                }
            }
        }
        self.lock_table(CATALOG, TableMode::IS)?;
        let Some(row) = self.read_from(CATALOG, open.name.as_bytes())? else { return Ok(None) };
        let entry = catalog::decode(&row).ok_or_else(|| catalog::corrupt_row(&open.name))?;
        self.lock_table(entry.tree, mode)?;
        // A table that this transaction itself created must not be visible to others before the commit.
        if self.has_written_catalog(&open.name)? {
            let mut state = self.state()?;
            let slot = state.slots.at_mut(open.slot);
            slot.tree = Some(entry.tree);
            slot.hint = None; // the hint belongs to another table
            slot.set_types(entry.types);
            return Ok(Some(entry.tree));
        }
        self.db.catalog.remember(&open.name, entry.clone());
        self.found(open, entry)
    }

    /// Records a table that exists and is locked.
    fn found(&self, open: &OpenTree, entry: Entry) -> Result<Option<Tree>, Error> {
        let mut state = self.state()?;
        let slot = state.slots.at_mut(open.slot);
        slot.tree = Some(entry.tree);
        slot.hint = Some(self.db.catalog.hint(entry.tree));
        slot.set_types(entry.types);
        Ok(Some(entry.tree))
    }

    /// Returns `true` if this transaction changed the catalog's row of `name`.
    fn has_written_catalog(&self, name: &str) -> Result<bool, Error> {
        let is_row = |op: UndoOp<'_>| match op {
            UndoOp::RemoveKey { tree, key } => tree == CATALOG && key == name.as_bytes(),
            _ => false,
        };
        Ok(self.state()?.has_undo(is_row))
    }

    pub(super) fn resolve_or_create(&self, open: &OpenTree) -> Result<Tree, Error> {
        let types = open.types.unwrap_or(TypesOf::Program(TableTypes::of::<[u8], [u8]>));
        self.resolve_or_create_as(open, || types.names())
    }

    /// Creates a table with types that this program need not have, and bulk-loads it.
    pub(crate) fn create_and_load(&self, table: &TableInfo, next: NextRow<'_>) -> Result<u64, Error> {
        let open = self.open_tree(&table.name, None)?;
        self.resolve_or_create_as(&open, || table.types.clone())?;
        self.bulk_load(&open, next)
    }

    fn resolve_or_create_as(
        &self,
        open: &OpenTree,
        types: impl FnOnce() -> TableTypes,
    ) -> Result<Tree, Error> {
        if let Some(tree) = self.resolve(open, TableMode::IX)? {
            return Ok(tree);
        }
        let id = self.db.catalog.new_id()?;
        // The lock is exclusive from the start: no other transaction can see the table yet, and its keys need
        // no locks.
        self.lock_table(CATALOG, TableMode::IX)?;
        let tree = self.statement(|tx, state| {
            tx.db.locks.lock_table(&mut state.locks, id, TableMode::X).map_err(|e| tx.lock_failed(e))?;
            state.note_table_mode(id, TableMode::X);
            tx.listed(state);
            tx.change_whole(state, |env, ctx| Tree::create(env, ctx, id))
        })?;
        let types = Arc::new(types());
        let row = catalog::encode(&Entry { tree, types: Arc::clone(&types) });
        if self.write_to(CATALOG, open.name.as_bytes(), &row, WriteKind::InsertIfAbsent)?.is_some() {
            return Err(Error::Invalid(format!(
                "table {:?} was created by another transaction meanwhile; run this one again",
                open.name
            )));
        }
        let mut state = self.state()?;
        let slot = state.slots.at_mut(open.slot);
        (slot.tree, slot.hint) = (Some(tree), None);
        slot.set_types(types);
        slot.checked = open.types;
        Ok(tree)
    }

    pub(super) fn lock_table(&self, tree: Tree, mode: TableMode) -> Result<(), Error> {
        let mut state = self.state()?;
        if state.table_mode(tree.id).is_some_and(|m| m.covers(mode)) {
            return Ok(());
        }
        match self.db.locks.lock_table(&mut state.locks, tree.id, mode) {
            Ok(depends_on) => {
                state.depend_on(&self.db, depends_on);
                state.note_table_mode(tree.id, mode);
                Ok(())
            }
            Err(error) => {
                drop(state);
                Err(self.fail(self.lock_failed(error)))
            }
        }
    }

    /// Returns `true` if there is a table with this name.
    ///
    /// # Errors
    ///
    /// The errors of reading a row.
    pub fn table_exists(&self, table: impl AsRef<str>) -> Result<bool, Error> {
        let open = self.open_tree(table.as_ref(), None)?;
        Ok(self.resolve(&open, TableMode::IS)?.is_some())
    }

    /// Returns the types of a table's rows; `None` if there is no such table. Reads one row of the catalog.
    ///
    /// # Errors
    ///
    /// The errors of reading a row.
    ///
    /// ```
    /// # use azekura::{Database, Error, TableDefinition};
    /// # fn main() -> Result<(), Error> {
    /// # let db = Database::in_memory()?;
    /// db.transact(|tx| tx.table(&TableDefinition::<str, u16>::new("t"))?.insert("rice", &7))?;
    /// let types = db.transact(|tx| tx.table_types("t"))?.expect("a table");
    /// assert_eq!((&*types.key, &*types.value), ("str", "u16"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn table_types(&self, table: impl AsRef<str>) -> Result<Option<TableTypes>, Error> {
        let open = self.open_tree(table.as_ref(), None)?;
        if self.resolve(&open, TableMode::IS)?.is_none() {
            return Ok(None);
        }
        Ok(self.state()?.slots.at(open.slot).types.as_deref().cloned())
    }

    /// Removes a table, given by its name or its definition, and everything in it; returns `false` if there
    /// was no such table. The table's pages are freed after the commit.
    ///
    /// Waits for every other transaction that uses the table.
    ///
    /// # Errors
    ///
    /// The errors of writing a row.
    pub fn drop_table(&self, table: impl AsRef<str>) -> Result<bool, Error> {
        let open = self.open_tree(table.as_ref(), None)?;
        let Some(tree) = self.resolve(&open, TableMode::X)? else { return Ok(false) };
        let before = self.state()?.undo_len();
        let kept = self.take_out_of_catalog(&open).and_then(|()| {
            self.statement(|tx, state| tx.change_whole(state, |env, ctx| tree.drop_at_commit(env, ctx)))
        });
        self.end_call(before, kept).map(|()| true)
    }

    /// Renames a table; returns `false` if there is no table with the old name. Both names are given as a
    /// string or as a definition.
    ///
    /// Waits for every other transaction that uses the table.
    ///
    /// # Errors
    ///
    /// [`Error::TableExists`]: there is a table with the new name. The errors of writing a row.
    pub fn rename_table(&self, table: impl AsRef<str>, to: impl AsRef<str>) -> Result<bool, Error> {
        let (old, new) = (self.open_tree(table.as_ref(), None)?, self.open_tree(to.as_ref(), None)?);
        let Some(tree) = self.resolve(&old, TableMode::X)? else { return Ok(false) };
        if self.resolve(&new, TableMode::IX)?.is_some() {
            return Err(Error::TableExists { name: new.name.to_string() });
        }
        // A table that exists has types.
        let Some(types) = self.state()?.slots.at(old.slot).types.clone() else { return Ok(false) };
        let row = catalog::encode(&Entry { tree, types: Arc::clone(&types) });
        let before = self.state()?.undo_len();
        let moved = self.take_out_of_catalog(&old).and_then(|()| {
            self.write_to(CATALOG, new.name.as_bytes(), &row, WriteKind::InsertIfAbsent).map(drop)
        });
        self.end_call(before, moved)?;
        let mut state = self.state()?;
        let slot = state.slots.at_mut(new.slot);
        (slot.tree, slot.hint) = (Some(tree), None);
        slot.set_types(types);
        Ok(true)
    }

    /// Removes the catalog's row of a table that is locked exclusively.
    fn take_out_of_catalog(&self, open: &OpenTree) -> Result<(), Error> {
        self.remove_from(CATALOG, open.name.as_bytes())?;
        let mut state = self.state()?;
        state.slots.at_mut(open.slot).tree = None;
        state.dropped.push(Arc::clone(&open.name));
        Ok(())
    }

    /// Locks every table for reading.
    pub(crate) fn lock_all_tables(&self) -> Result<(), Error> {
        self.lock_table(CATALOG, TableMode::S)?;
        let mut trees = Vec::new();
        crate::scan::unlocked(&self.db.env, CATALOG, &mut |_, value| {
            trees.extend(catalog::decode(value).map(|entry| entry.tree));
            Ok(())
        })?;
        trees.into_iter().try_for_each(|tree| self.lock_table(tree, TableMode::S))
    }

    /// Returns all tables, in byte order of their names.
    pub(crate) fn tables(&self) -> Result<Vec<TableInfo>, Error> {
        self.lock_table(CATALOG, TableMode::S)?;
        let mut tables = Vec::new();
        crate::scan::unlocked(&self.db.env, CATALOG, &mut |name, value| {
            let name = String::from_utf8_lossy(name).into_owned();
            let entry = catalog::decode(value).ok_or_else(|| catalog::corrupt_row(&name))?;
            tables.push(TableInfo { name, types: (*entry.types).clone() });
            Ok(())
        })?;
        Ok(tables)
    }
}
