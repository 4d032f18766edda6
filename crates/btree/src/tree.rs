//! A tree's identity, and reading one key of it.

use azekura_base::{PageId, TreeId, TxnId};
use azekura_buffer::PageVersion;
use azekura_wal::LogBufferId;

use crate::descent::{Descent, Restart, Seek, walk};
use crate::env::{Env, Writer};
use crate::error::TreeError;
use crate::locks::KeyLocks;
use crate::node::{Cell, FLAG_OVERFLOW, Node, Position};
use crate::overflow;
use crate::scan::ValueRef;
use crate::undo::UndoLog;

/// A tree: its number and the page of its root. The root never moves to another page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tree {
    /// The tree's id in locks and page headers.
    pub id: TreeId,
    /// The root page.
    pub root: PageId,
}

/// A leaf of a tree, and the version of its page at a read or a change (LAST-1 in `write`).
#[derive(Clone, Copy, Debug)]
pub struct LeafVersion {
    pub(crate) tree: Tree,
    pub(crate) version: PageVersion,
}

/// The context of a write: its transaction, log buffer, undo log and locks.
pub struct WriteCtx<'a> {
    /// The transaction.
    pub txn: TxnId,
    /// The transaction's log buffer.
    pub log_buffer: LogBufferId,
    /// The transaction's undo log: receives the inverse of each change, after its log record was appended.
    pub undo: &'a mut UndoLog,
    /// The transaction's locks.
    pub locks: &'a mut dyn KeyLocks,
}

impl std::fmt::Debug for WriteCtx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteCtx")
            .field("txn", &self.txn)
            .field("log_buffer", &self.log_buffer)
            .finish_non_exhaustive()
    }
}

impl WriteCtx<'_> {
    pub(crate) const fn writer(&self) -> Writer {
        Writer { txn: self.txn, log_buffer: self.log_buffer }
    }
}

impl Tree {
    /// Reads the value of `key` into `out`, replacing its content; returns whether the key is present.
    ///
    /// The caller holds the lock that it needs on the key. Pages in the pool are neither latched nor pinned,
    /// and no shared cache line is written. Pages outside the pool are read in.
    ///
    /// # Errors
    ///
    /// [`TreeError::Fix`] or [`TreeError::Corrupt`].
    pub fn get(&self, env: &Env, key: &[u8], out: &mut Vec<u8>) -> Result<bool, TreeError> {
        Ok(self.get_in_leaf(env, key, out)?.0)
    }

    /// Reads the value of `key` as [`get`](Self::get) does. Also returns the leaf, for
    /// [`UndoLog::note_read`]; `None` if the leaf had to be latched.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn get_in_leaf(
        &self,
        env: &Env,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(bool, Option<LeafVersion>), TreeError> {
        let (found, seen) = self.read_cell(env, key, out)?;
        if let Some(flags) = found {
            load_if_large(env, flags, out)?;
        }
        Ok((found.is_some(), seen.map(|version| LeafVersion { tree: *self, version })))
    }

    /// Reads the content of the cell of `key` into `out`, replacing its content, and returns the cell's
    /// flags; `None` if the key is not present.
    ///
    /// Works as [`Self::get`], but does not read the pages of a large value: see
    /// [`ValueRef::of_cell`](crate::ValueRef::of_cell).
    ///
    /// # Errors
    ///
    /// [`TreeError::Fix`] or [`TreeError::Corrupt`].
    pub fn get_cell(&self, env: &Env, key: &[u8], out: &mut Vec<u8>) -> Result<Option<u16>, TreeError> {
        Ok(self.read_cell(env, key, out)?.0)
    }

    #[inline]
    fn read_cell(
        &self,
        env: &Env,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(Option<u16>, Option<PageVersion>), TreeError> {
        let mut descent = Descent::new(env, *self);
        loop {
            let leaf = descent.leaf(Seek::Covering(key))?;
            let node = leaf.node();
            out.clear();
            let found = match node.search(key) {
                Position::Found(i) => {
                    let slot = node.slot(i);
                    node.value_into(slot, out);
                    Some(slot.flags)
                }
                Position::Absent(_) => None,
            };
            if leaf.is_valid() {
                return Ok((found, leaf.page_version()));
            }
            descent.changed()?;
        }
    }

    /// Returns whether `key` is present. Works as [`Self::get`], but does not copy the value.
    ///
    /// # Errors
    ///
    /// [`TreeError::Fix`] or [`TreeError::Corrupt`].
    pub fn contains(&self, env: &Env, key: &[u8]) -> Result<bool, TreeError> {
        let mut descent = Descent::new(env, *self);
        loop {
            let leaf = descent.leaf(Seek::Covering(key))?;
            let found = matches!(leaf.node().search(key), Position::Found(_));
            if leaf.is_valid() {
                return Ok(found);
            }
            descent.changed()?;
        }
    }

    /// Returns the first page on the way to `key` that is not in the pool, usually the leaf. Returns `None`
    /// if all pages are resident, or if the tree changes meanwhile. Reads no page in, and counts no use of
    /// the leaf.
    #[must_use]
    pub fn absent_page(&self, env: &Env, key: &[u8]) -> Option<PageId> {
        let seek = Seek::Covering(key);
        match walk(env.pool(), *self, seek, 1) {
            Ok(at) => {
                let node = Node::new(at.page.words());
                let leaf = (node.level() == Some(1)).then(|| node.child(seek.slot(node)))?;
                (at.page.is_valid() && !env.pool().is_resident(leaf)).then_some(leaf)
            }
            Err(Restart::Absent(page_id, _)) => Some(page_id),
            Err(_) => None,
        }
    }
}

/// Replaces the reference to a large value in `out` by that value; leaves an inline value unchanged.
pub(crate) fn load_if_large(env: &Env, flags: u16, out: &mut Vec<u8>) -> Result<(), TreeError> {
    if flags & FLAG_OVERFLOW == 0 {
        return Ok(());
    }
    if let ValueRef::Large(reference) = ValueRef::of_cell(Cell { flags, value: out })? {
        out.clear();
        overflow::read(env, reference, out)?;
    }
    Ok(())
}
