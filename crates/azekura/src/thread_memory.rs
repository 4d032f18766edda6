//! Memory that each thread keeps for its next reads. Without it, a scan of fifty rows would need about
//! fifteen allocations, because a batch grows by doubling, and programs often open a snapshot for each read.
//!
//! A read takes the memory until it ends, so a nested read allocates its own memory.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use azekura_btree::LeafBatch;

use crate::transaction::TypesOf;

/// Size of the largest batch that a thread keeps, in bytes; the rows of a leaf of the largest pages fit.
const KEPT_BATCH_BYTES: usize = 128 << 10;
/// Size of the largest buffer that a thread keeps, in bytes.
const KEPT_BUFFER_BYTES: usize = 64 << 10;

/// Memory of one thread that no read is using.
struct Kept {
    rows: Cell<Option<LeafBatch>>,
    buffers: Cell<Option<Buffers>>,
    checked: Cell<Option<CheckedRow>>,
}

/// Buffers for an encoded key and for a value.
#[derive(Default)]
struct Buffers {
    key: Vec<u8>,
    value: Vec<u8>,
}

/// A catalog row with the types that were compared with it.
struct CheckedRow {
    row: Vec<u8>,
    types: TypesOf,
}

azekura_base::per_thread! {
    static KEPT: Kept =
        const { Kept { rows: Cell::new(None), buffers: Cell::new(None), checked: Cell::new(None) } };
}

/// Takes one kind of memory, if the thread has it. Returns `None` in a thread that is ending.
fn take<T>(kind: impl FnOnce(&Kept) -> &Cell<Option<T>>) -> Option<T> {
    KEPT.try_with(|kept| kind(kept).take()).ok().flatten()
}

fn keep<T>(memory: T, kind: impl FnOnce(&Kept) -> &Cell<Option<T>>) {
    let _ = KEPT.try_with(|kept| kind(kept).set(Some(memory)));
}

/// A batch of rows, in memory that is reused from this thread's last scan if no other scan uses it.
#[derive(Debug)]
pub(crate) struct ScanRows(LeafBatch);

impl ScanRows {
    /// Returns a batch without rows.
    pub(crate) fn new() -> Self {
        Self(take(|kept| &kept.rows).unwrap_or_default())
    }
}

impl Default for ScanRows {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for ScanRows {
    fn drop(&mut self) {
        let mut rows = std::mem::take(&mut self.0);
        if (1..=KEPT_BATCH_BYTES).contains(&rows.memory_bytes()) {
            rows.clear();
            keep(rows, |kept| &kept.rows);
        }
    }
}

impl Deref for ScanRows {
    type Target = LeafBatch;
    #[inline]
    fn deref(&self) -> &LeafBatch {
        &self.0
    }
}

impl DerefMut for ScanRows {
    #[inline]
    fn deref_mut(&mut self) -> &mut LeafBatch {
        &mut self.0
    }
}

/// Lends buffers for a key and for a value, both empty, to `read`.
pub(crate) fn with_buffers<T>(read: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>) -> T) -> T {
    let mut buffers = take(|kept| &kept.buffers).unwrap_or_default();
    let result = read(&mut buffers.key, &mut buffers.value);
    if buffers.key.capacity().max(buffers.value.capacity()) <= KEPT_BUFFER_BYTES {
        buffers.key.clear();
        buffers.value.clear();
        keep(buffers, |kept| &kept.buffers);
    }
    result
}

/// Returns `true` if this catalog row is the last one that this thread has [recorded](note_checked), with the
/// same types. In that case the names of the types need not be compared.
pub(crate) fn is_checked(row: &[u8], types: TypesOf) -> bool {
    let Some(last) = take(|kept| &kept.checked) else { return false };
    let is_same = last.types.is(types) && last.row == row;
    keep(last, |kept| &kept.checked);
    is_same
}

/// Records that a catalog row has these types.
pub(crate) fn note_checked(row: &[u8], types: TypesOf) {
    keep(CheckedRow { row: row.to_vec(), types }, |kept| &kept.checked);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Database, Error, Limit, TableDefinition};

    #[test]
    fn a_scan_uses_the_memory_of_the_one_before() -> Result<(), Error> {
        const ROWS: TableDefinition<u32, [u8]> = TableDefinition::new("rows");
        let db = Database::in_memory()?;
        db.transact(|tx| {
            let rows = tx.table(&ROWS)?;
            (0..50).try_for_each(|key| rows.insert(&key, &[7; 100]))
        })?;
        let by_snapshot = || db.read(|snapshot| Ok(snapshot.table(&ROWS)?.range(Limit(.., 50)).count()));
        let by_locks = || db.transact(|tx| Ok(tx.table(&ROWS)?.range(Limit(.., 50)).count()));
        assert_eq!(by_snapshot()?, 50);
        let kept = ScanRows::new();
        assert!(kept.is_empty() && kept.memory_bytes() > 50 * 100);
        assert_eq!(ScanRows::new().memory_bytes(), 0, "two scans at once");
        let memory = kept.memory_bytes();
        drop(kept);
        for _ in 0..3 {
            assert_eq!((by_locks()?, by_snapshot()?), (50, 50));
            assert_eq!(ScanRows::new().memory_bytes(), memory);
        }
        Ok(())
    }
}
