//! Carrying undo forward, so that open transactions do not prevent the log from being trimmed.
//!
//! A restart undoes a transaction that has not ended, so it needs that transaction's undo log. The log cannot
//! be trimmed beyond the records of that undo log until the transaction ends. When such records hold back
//! much log, the checkpoint appends a copy of the undo log (`Head::Carry`) to the log. A restart then needs
//! only the copy and the records after it.
//!
//! - **CARRY-1** The copy is made under the mutex of the undo log and appended, under the same mutex, to the
//!   transaction's own log buffer. So the copy contains every record of the transaction with a smaller LSN,
//!   and no record with a larger LSN (ACTIVE-2).
//! - **CARRY-2** The transaction's first LSN moves to the first part of the copy only after the last part was
//!   appended. CONTROL moves to that LSN only after the copy is durable (CKPT-2). So a restart that does not
//!   read the old records reads the whole copy. A restart ignores a copy that a crash left incomplete
//!   (`restart::analysis`).
//! - **CARRY-3** A copy is made only when the log has grown by more than [`UNDO_FACTOR`] times the bytes of
//!   the copies since the transaction's first LSN. So copies are at most a fifth of the log. Open
//!   transactions hold back at most the given number of bytes of log plus a multiple of the size of their
//!   undo logs.
//!
//! The failed deferred frees of a committed transaction (`deferred`) are carried forward in the same way.

use azekura_base::sync::thread;
use azekura_base::sync::time::Instant;
use azekura_base::{Lsn, TxnId};
use azekura_btree::record::encode;
use azekura_btree::{Carry, Head, UndoLog};
use azekura_wal::{AppendError, LogBufferId, Order};

use crate::active::{Holder, TxnUndo};
use crate::database::Shared;

/// Bytes of undo entries in one record.
const PART_BYTES: usize = 32 << 10;
/// Bytes of log that must be written for each byte of a copy.
const UNDO_FACTOR: u64 = 4;
/// Size up to which a copy may use the log's reserve. The log space that the copy releases refills the
/// reserve.
const RESERVE_BYTES: usize = 64 << 10;
/// Number of attempts to lock an undo log. Its owner usually holds the mutex for one change of a page. A bulk
/// load holds the mutex while it waits for this checkpoint, so the checkpoint must not wait for the mutex.
const ATTEMPTS: usize = 100;

impl Shared {
    /// Carries open transactions forward if the records of one hold back at least `least` bytes of log
    /// (CARRY-3). Returns `true` if the log may be trimmed further. If the log has no space for the copy,
    /// nothing changes.
    pub(super) fn carry_open(&self, least: u64) -> bool {
        let log_bytes = self.wal.log_bytes_since_start();
        let holders = self.active.holders(Instant::now(), log_bytes, least / 2);
        let most = self.active.held_bytes(log_bytes);
        if self.active.len() == 0 || most < least {
            return false;
        }
        // The undo log may belong to the next transaction of its thread already.
        let undo_bytes = |holder: &Holder| {
            let undo = holder.undo.try_lock().filter(|undo| undo.owner == Some(holder.txn));
            undo.map_or(0, |undo| undo.log.bytes() as u64)
        };
        let copy_bytes = holders.iter().map(undo_bytes).sum::<u64>() + self.unfreed.lock().copy_bytes();
        if most < least + UNDO_FACTOR * copy_bytes {
            return false;
        }
        // The copies do not count as log that the transactions hold back (CARRY-3).
        let log_bytes = log_bytes + copy_bytes;
        let carried = holders.iter().filter(|holder| self.carry(holder, log_bytes)).count();
        carried + self.carry_unfreed(log_bytes) > 0
    }

    /// Carries one transaction forward, unless it has ended or its undo log stays locked.
    fn carry(&self, holder: &Holder, log_bytes: u64) -> bool {
        let lock = || {
            holder.undo.try_lock().or_else(|| {
                thread::yield_now();
                None
            })
        };
        let Some(undo) = (0..ATTEMPTS).find_map(|_| lock()) else { return false };
        let TxnUndo { log, owner: Some(owner) } = &*undo else { return false };
        if *owner != holder.txn {
            return false; // that transaction has ended, and another one has taken its undo log
        }
        let first = self.append_copy(holder.txn, holder.log_buffer, log, false);
        first.map(|first| self.active.carried(&holder.listed, first, log_bytes)).is_ok()
    }

    /// Appends a copy of an undo log; returns the LSN of its first part. The caller ensures that the
    /// transaction appends no other record meanwhile.
    pub(crate) fn append_copy(
        &self,
        txn: TxnId,
        log_buffer: LogBufferId,
        log: &UndoLog,
        is_committed: bool,
    ) -> Result<Lsn, AppendError> {
        let log_buffer = if log.bytes() <= RESERVE_BYTES { log_buffer.with_reserve() } else { log_buffer };
        let mut first = None;
        let mut body = Vec::new();
        let mut parts = log.parts(PART_BYTES).peekable();
        while let Some(entries) = parts.next() {
            let part =
                Carry { is_first: first.is_none(), is_last: parts.peek().is_none(), is_committed, entries };
            body.clear();
            encode(&mut body, &Head::Carry { txn, part }, std::iter::empty());
            let lsn = self.wal.append_in_order(log_buffer, &body, Order::After(Lsn(0)))?;
            first.get_or_insert(lsn);
        }
        Ok(first.expect("an undo log has at least one part"))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Database, TableDefinition};

    const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");

    /// CARRY-3 for the deferred frees of a committed transaction.
    #[test]
    fn copies_of_deferred_frees_are_a_small_part_of_the_log() {
        const LEAST: u64 = 1 << 10;
        let db = Database::builder().background(false).open_in_memory().expect("opens");
        let put = |value: &[u8]| {
            db.transact(|tx| (0..500).try_for_each(|key| tx.table(&ROWS)?.insert(&key, value)))
                .expect("puts");
        };
        put(&[1; 20_000]);
        let snapshot = db.snapshot().expect("opens");
        put(&[2; 20_000]);
        let (shared, mut copies) = (db.shared(), 0);
        let copy_bytes = shared.unfreed.lock().copy_bytes();
        let log_bytes = || shared.wal.log_bytes_since_start();
        shared.carry_open(LEAST); // begins to count the log
        let before = log_bytes();
        for n in 0..2000 {
            db.transact(|tx| tx.table(&ROWS)?.insert(&1000, &[n as u8; 100])).expect("puts");
            copies += u64::from(shared.carry_open(LEAST));
        }
        let written = log_bytes() - before;
        assert!(copies > 2 && copies * copy_bytes < written / 4, "{copies} of {copy_bytes} in {written}");
        drop(snapshot);
    }
}
