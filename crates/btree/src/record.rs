//! Bodies of log records: the change, its inverse, and its page operations.
//!
//! | kind | head | meaning |
//! |---|---|---|
//! | 1 update | txn, undo entry | one change of a transaction |
//! | 2 compensate | txn | the transaction's newest entry not yet undone is now undone |
//! | 3 system | – | a structure change: belongs to no transaction, is never undone |
//! | 4 commit | txn, flags, … | committed; the flags are below |
//! | 5 end | txn | the transaction is complete |
//! | 6 free step | txn, index, next head | a part of the deferred frees of a committed transaction is done |
//! | 7 carry | txn, flags, undo entries | a copy of the transaction's undo log at this place: [`Carry`] |
//!
//! Flags of a commit: 1: deferred frees remain; 2: the time follows; 4: the number of the page store follows.
//!
//! A free step names the item `index` of the deferred frees. The next head is the first page of the rest of
//! the item's chain, or 0 if the whole item is free.
//!
//! The page operations follow, up to the record's end. Numbers are LEB128. Kinds from 32 on belong to the
//! crates that use this one.

use azekura_base::varint::{put_bytes, put_u64, take_bytes, take_u64};
use azekura_base::{PageId, TxnId};

use crate::change::{Ops, PageOp, put_op};
use crate::error::RecordError;
use crate::undo::UndoOp;

const UPDATE: u8 = 1;
const COMPENSATE: u8 = 2;
const SYSTEM: u8 = 3;
const COMMIT: u8 = 4;
const END: u8 = 5;
const FREE_STEP: u8 = 6;
const CARRY: u8 = 7;

const FLAG_DEFERRED: u64 = 1;
const FLAG_TIME: u64 = 2;
const FLAG_PAGES: u64 = 4;

const CARRY_FIRST: u64 = 1;
const CARRY_LAST: u64 = 2;
const CARRY_COMMITTED: u64 = 4;

/// A part of a copy of a transaction's undo log, which a checkpoint writes to the head of the log.
///
/// Once its last part is in the log, the copy replaces all earlier records of the transaction: a restart need
/// not read them. A copy without its last part is ignored. No other record of the transaction lies between
/// the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carry<'a> {
    /// `true` for the first part of the copy.
    pub is_first: bool,
    /// `true` for the last part of the copy.
    pub is_last: bool,
    /// `true` if the transaction has committed; the entries then contain only its deferred frees.
    pub is_committed: bool,
    /// Undo entries, oldest first, as [`UndoLog::parts`](crate::UndoLog::parts) gives them.
    pub entries: &'a [u8],
}

/// The content of a record besides its page operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head<'a> {
    /// A change of a transaction, with its inverse.
    Update {
        /// The transaction.
        txn: TxnId,
        /// The inverse of the change.
        undo: UndoOp<'a>,
    },
    /// The transaction's newest entry that is not yet undone is now undone.
    Compensate {
        /// The transaction.
        txn: TxnId,
    },
    /// A structure change.
    System,
    /// The transaction has committed.
    Commit {
        /// The transaction.
        txn: TxnId,
        /// Deferred frees remain ([`crate::UndoLog::deferred_frees`]); if not, this record is the
        /// transaction's last.
        has_deferred: bool,
        /// The commit time, in microseconds since 1970; 0 for none.
        time: u64,
        /// The number of the page store when the transaction's pages that are not in the log were durable; 0
        /// if all are in the log (UNLOGGED-1 in `overflow::unlogged`).
        last_finished: u64,
    },
    /// The transaction is complete: rolled back, or committed with all deferred frees done.
    End {
        /// The transaction.
        txn: TxnId,
    },
    /// A part of a committed transaction's deferred frees is done.
    FreeStep {
        /// The transaction.
        txn: TxnId,
        /// The item's position in [`crate::UndoLog::deferred_frees`].
        index: u64,
        /// Start of the rest of the chain; page 0 if the whole item is free.
        next_head: PageId,
    },
    /// A copy of the transaction's undo log, or a part of the copy.
    Carry {
        /// The transaction.
        txn: TxnId,
        /// The part.
        part: Carry<'a>,
    },
}

/// One record, borrowed from its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The kind of record, with its fields.
    pub head: Head<'a>,
    ops: Ops<'a>,
}

impl<'a> Record<'a> {
    /// Reads a record's head; its page operations are read as they are iterated.
    ///
    /// # Errors
    ///
    /// [`RecordError`] for anything that [`encode`] cannot have written.
    pub fn decode(body: &'a [u8]) -> Result<Self, RecordError> {
        let (&kind, mut rest) = body.split_first().ok_or(RecordError::Empty)?;
        let head = take_head(kind, &mut rest)?;
        Ok(Self { head, ops: Ops::new(rest) })
    }

    /// Returns the number that the page store must have reached, because the record relies on pages that are
    /// not in the log; 0 for none. See [`UndoOp::EmptyTree`].
    #[must_use]
    pub const fn last_finished(&self) -> u64 {
        match self.head {
            Head::Update { undo: UndoOp::EmptyTree { last_finished, .. }, .. }
            | Head::Commit { last_finished, .. } => last_finished,
            _ => 0,
        }
    }

    /// Returns the page operations, each with its page.
    #[must_use]
    pub const fn ops(&self) -> Ops<'a> {
        self.ops
    }
}

fn take_head<'a>(kind: u8, rest: &mut &'a [u8]) -> Result<Head<'a>, RecordError> {
    let bad = RecordError::BadHead { kind };
    let number = |rest: &mut &'a [u8]| take_u64(rest).ok_or(bad.clone());
    Ok(match kind {
        UPDATE => {
            let txn = TxnId(number(rest)?);
            let undo = UndoOp::decode(rest, |behind| Some(Ops::new(behind).next()?.ok()?.1))?;
            Head::Update { txn, undo }
        }
        COMPENSATE => Head::Compensate { txn: TxnId(number(rest)?) },
        SYSTEM => Head::System,
        COMMIT => {
            let txn = TxnId(number(rest)?);
            let flags = number(rest)?;
            if flags > FLAG_DEFERRED | FLAG_TIME | FLAG_PAGES {
                return Err(bad);
            }
            let time = if flags & FLAG_TIME != 0 { number(rest)? } else { 0 };
            let last_finished = if flags & FLAG_PAGES != 0 { number(rest)? } else { 0 };
            Head::Commit { txn, has_deferred: flags & FLAG_DEFERRED != 0, time, last_finished }
        }
        END => Head::End { txn: TxnId(number(rest)?) },
        FREE_STEP => Head::FreeStep {
            txn: TxnId(number(rest)?),
            index: number(rest)?,
            next_head: PageId(number(rest)?),
        },
        CARRY => {
            let (txn, flags) = (TxnId(number(rest)?), number(rest)?);
            if flags > CARRY_FIRST | CARRY_LAST | CARRY_COMMITTED {
                return Err(bad);
            }
            let entries = take_bytes(rest).ok_or(bad.clone())?;
            let has = |flag| flags & flag != 0;
            let (is_first, is_last) = (has(CARRY_FIRST), has(CARRY_LAST));
            Head::Carry {
                txn,
                part: Carry { is_first, is_last, is_committed: has(CARRY_COMMITTED), entries },
            }
        }
        _ => return Err(RecordError::UnknownKind { kind }),
    })
}

/// Appends a record with this head and these page operations to `out`.
pub fn encode<'o>(out: &mut Vec<u8>, head: &Head<'_>, ops: impl Iterator<Item = (PageId, &'o PageOp<'o>)>) {
    let mut ops = ops.peekable();
    match *head {
        Head::Update { txn, ref undo } => {
            start(out, UPDATE, &[txn.0]);
            undo.encode_beside(out, ops.peek().map(|(_, op)| *op));
        }
        Head::Compensate { txn } => start(out, COMPENSATE, &[txn.0]),
        Head::System => start(out, SYSTEM, &[]),
        Head::Commit { txn, has_deferred, time, last_finished } => {
            let flag = |is_set, flag| if is_set { flag } else { 0 };
            let flags = flag(has_deferred, FLAG_DEFERRED)
                | flag(time != 0, FLAG_TIME)
                | flag(last_finished != 0, FLAG_PAGES);
            start(out, COMMIT, &[txn.0, flags]);
            [time, last_finished].into_iter().filter(|&n| n != 0).for_each(|n| put_u64(out, n));
        }
        Head::End { txn } => start(out, END, &[txn.0]),
        Head::FreeStep { txn, index, next_head } => start(out, FREE_STEP, &[txn.0, index, next_head.0]),
        Head::Carry { txn, part } => {
            let flag = |is_set, flag| if is_set { flag } else { 0 };
            let flags = flag(part.is_first, CARRY_FIRST)
                | flag(part.is_last, CARRY_LAST)
                | flag(part.is_committed, CARRY_COMMITTED);
            start(out, CARRY, &[txn.0, flags]);
            put_bytes(out, part.entries);
        }
    }
    ops.for_each(|(page_id, op)| put_op(out, page_id, op));
}

fn start(out: &mut Vec<u8>, kind: u8, numbers: &[u64]) {
    out.push(kind);
    numbers.iter().for_each(|&n| put_u64(out, n));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;
    use azekura_base::TreeId;

    #[test]
    fn a_small_update_with_its_commit_stays_well_under_64_bytes() {
        let tree = Tree { id: TreeId(3), root: PageId(5_000) };
        let (key, diff) = (0x1234_5678_u64.to_be_bytes(), 0xdead_beef_u32.to_le_bytes());
        let txn = TxnId(10_000_000);
        let op = PageOp::Flip { slot: 200, at: 0, diff: &diff };
        let undo = UndoOp::Flip { tree, key: &key, at: 0, diff: &diff };
        let mut log = Vec::new();
        encode(&mut log, &Head::Update { txn, undo }, [(PageId(1_000_000), &op)].into_iter());
        let update = log.len();
        let decoded = Record::decode(&log).expect("own bytes");
        assert_eq!(decoded.head, Head::Update { txn, undo });
        assert_eq!(decoded.ops().collect::<Result<Vec<_>, _>>(), Ok(vec![(PageId(1_000_000), op)]));
        encode(
            &mut log,
            &Head::Commit { txn, has_deferred: false, time: 0, last_finished: 0 },
            std::iter::empty(),
        );
        assert_eq!((update, log.len()), (30, 36), "bytes of the update, and with its commit");
    }
}
