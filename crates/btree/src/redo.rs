//! Redo: applies a record to the pages that do not contain it yet.

use azekura_base::{Lsn, PageId};
use azekura_buffer::ExclusiveGuard;

use crate::change::{Ops, apply};
use crate::env::Env;
use crate::error::{RecordError, TreeError};
use crate::record::Record;

/// The change of one page by one record: the unit of redo. The changes of one page must be redone in LSN
/// order. Changes of different pages need no order, even those of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageChange<'a> {
    page_id: PageId,
    /// Encoded operations, all of them on `page_id`.
    ops: &'a [u8],
}

impl<'a> PageChange<'a> {
    /// Returns the change of `page_id` with these [`bytes`](Self::bytes).
    #[must_use]
    pub const fn from_bytes(page_id: PageId, bytes: &'a [u8]) -> Self {
        Self { page_id, ops: bytes }
    }

    /// Returns the page.
    #[must_use]
    pub const fn page_id(&self) -> PageId {
        self.page_id
    }

    /// Returns the change's operations, encoded as in the log.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.ops
    }

    /// Applies the change of a record with this LSN, unless the page contains it already. Returns whether the
    /// change was applied.
    ///
    /// Idempotent. A page that is rewritten whole is not read first: if it is newer on disk, all later
    /// changes are in the log after this record and are redone. (Loaded pages are an exception: none of their
    /// earlier records is redone, LOAD-2 of `load`.) Blocks for the page's read and for its latch.
    ///
    /// # Errors
    ///
    /// [`TreeError`]: a page that cannot be read, an operation that cannot be decoded, or one that
    /// contradicts its page.
    pub fn redo(&self, env: &Env, lsn: Lsn) -> Result<bool, TreeError> {
        let mut ops = Ops::new(self.ops).peekable();
        let is_whole = matches!(ops.peek(), Some(Ok((_, op))) if op.is_whole_page());
        let mut guard = self.latch(env, is_whole)?;
        if guard.words().lsn() >= lsn {
            return Ok(false);
        }
        guard.will_change(lsn);
        for op in ops {
            let (_, op) = op?;
            apply(&op, &mut guard.page_mut(), self.page_id)?;
        }
        guard.page_mut().set_lsn(lsn);
        Ok(true)
    }

    fn latch<'e>(&self, env: &'e Env, is_whole: bool) -> Result<ExclusiveGuard<'e>, TreeError> {
        Ok(if is_whole {
            env.pool().fix_new(self.page_id)?
        } else {
            env.pool().fix(self.page_id)?.exclusive()
        })
    }
}

/// The changes of a record, page by page. The operations on one page are adjacent and applied together,
/// because the page's LSN cannot distinguish them.
#[derive(Clone, Copy, Debug)]
pub struct PageChanges<'a> {
    rest: Ops<'a>,
}

impl<'a> Record<'a> {
    /// Returns the changes of the record, page by page.
    #[must_use]
    pub const fn page_changes(&self) -> PageChanges<'a> {
        PageChanges { rest: self.ops() }
    }
}

impl<'a> Iterator for PageChanges<'a> {
    type Item = Result<PageChange<'a>, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        let whole = self.rest.as_bytes();
        let page_id = match self.rest.next()? {
            Ok((page_id, _)) => page_id,
            Err(error) => return Some(Err(error)),
        };
        let mut behind = self.rest;
        while let Some(Ok((next, _))) = behind.next() {
            if next != page_id {
                break;
            }
            self.rest = behind;
        }
        let len = whole.len() - self.rest.as_bytes().len();
        Some(Ok(PageChange { page_id, ops: &whole[..len] }))
    }
}

/// Redoes a whole record; returns the number of changed pages. See [`PageChange::redo`].
///
/// # Errors
///
/// As [`PageChange::redo`].
pub fn redo(env: &Env, lsn: Lsn, record: &Record<'_>) -> Result<usize, TreeError> {
    let mut applied = 0;
    for change in record.page_changes() {
        applied += usize::from(change?.redo(env, lsn)?);
    }
    Ok(applied)
}
