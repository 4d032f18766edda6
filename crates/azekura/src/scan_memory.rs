//! The memory of a scan's rows, which each thread keeps for its next scan: a batch grows by doubling, so
//! without it a scan of fifty rows makes about fifteen allocations.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use azekura_btree::LeafBatch;

/// Most memory that a thread keeps. The rows of a leaf of the largest pages fit.
const KEPT_BYTES: usize = 128 << 10;

azekura_base::per_thread! {
    static KEPT: Cell<Option<LeafBatch>> = const { Cell::new(None) };
}

/// A batch of rows in memory that this thread's last scan has left, if no other scan uses it.
#[derive(Debug)]
pub(crate) struct ScanRows(LeafBatch);

impl ScanRows {
    /// A batch without rows.
    pub(crate) fn new() -> Self {
        // A thread that is ending keeps nothing.
        Self(KEPT.try_with(Cell::take).ok().flatten().unwrap_or_default())
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
        if (1..=KEPT_BYTES).contains(&rows.memory_bytes()) {
            rows.clear();
            let _ = KEPT.try_with(|kept| kept.set(Some(rows)));
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
