//! Redo: doing again what a record says, on the pages that do not have it yet.

use azekura_base::{Lsn, PageId};
use azekura_buffer::ExclusiveGuard;

use crate::change::{PageOp, apply};
use crate::env::Env;
use crate::error::TreeError;
use crate::record::Record;

/// Applies the page operations of `record`, whose LSN is `lsn`, to every page that is older; says to how many.
///
/// Idempotent. A page that the operation rewrites whole is not read first: should it be newer on disk, all that made
/// it newer is in the log behind this record and is done again. Records may be redone in any order that keeps the
/// records of each page in LSN order.
///
/// # Errors
///
/// [`TreeError`]: a page that cannot be read, a record that cannot be decoded, or one that contradicts its page.
pub fn redo(env: &Env, lsn: Lsn, record: &Record<'_>) -> Result<usize, TreeError> {
    let mut applied = 0;
    let mut at: Option<Target<'_>> = None;
    for op in record.ops() {
        let (page_id, op) = op?;
        // Operations on one page stand side by side, and go together: the page's LSN cannot tell them apart.
        if at.as_ref().is_none_or(|target| target.guard.page_id() != page_id) {
            drop(at.take());
            let target = Target::latch(env, lsn, page_id, &op)?;
            applied += usize::from(target.is_older);
            at = Some(target);
        }
        if let Some(target) = at.as_mut().filter(|target| target.is_older) {
            let mut page = target.guard.page_mut();
            apply(&op, &mut page, page_id)?;
            page.set_lsn(lsn);
        }
    }
    Ok(applied)
}

/// A page of the record, latched.
struct Target<'e> {
    guard: ExclusiveGuard<'e>,
    /// Whether it does not have the record yet.
    is_older: bool,
}

impl<'e> Target<'e> {
    fn latch(env: &'e Env, lsn: Lsn, page_id: PageId, op: &PageOp<'_>) -> Result<Self, TreeError> {
        let mut guard = if op.is_whole_page() {
            env.pool().fix_new(page_id)?
        } else {
            env.pool().fix(page_id)?.exclusive()
        };
        let is_older = guard.words().lsn() < lsn;
        if is_older {
            guard.will_change(lsn);
        }
        Ok(Self { guard, is_older })
    }
}
