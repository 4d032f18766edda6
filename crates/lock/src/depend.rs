//! Commit LSNs of released locks, for early lock release (hazards W8, W9).
//!
//! A committing transaction releases its locks when its commit record is in the log buffer, before it is on
//! disk. The next holder of such a lock may read data that is not durable yet, so the grant returns the
//! commit LSN that it depends on. A writer ignores this LSN, because its own commit LSN is larger. A reader
//! returns its result only after the LSN is durable.
//!
//! Keys share an array of slots by hash: a slot may return the LSN of another key, but never one older than
//! the key's own. A table has two records. Commits that held IX or SIX write to a cache line of their thread;
//! a transaction that locks the whole table reads the maximum of these lines. Commits that held X (perhaps
//! without locks on the keys that they wrote) write to one slot, which changes rarely. Each transaction that
//! locks the table in any mode reads this slot.
//!
//! - **DEPEND-1** A slot is raised before the lock is released, and read after the lock is granted. All
//!   accesses are Relaxed: release and grant use the same latch (or the strong count, see `intent`), which
//!   orders them.
//! - **DEPEND-2** The values of slots only grow.

use azekura_base::striped::{line_count, thread_stripe};
use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_base::zeroed::ZeroedArray;
use azekura_base::{CachePadded, Lsn, TreeId};

use crate::id::{LockId, LockName};
use crate::mode::{GapMode, RecordMode, TableMode};
use crate::mode_bits::{self, Family, ModeBits};

/// Largest number of rows for intents.
const MOST_LINES: usize = if cfg!(loom) { 1 } else { 16 };
/// Number of slots in a row, so that rows share no cache line.
const TABLES: usize = if cfg!(loom) { 1 } else { size_of::<CachePadded<u64>>() / size_of::<u64>() };

#[derive(Debug)]
pub(crate) struct Dependencies {
    /// One row of `TABLES` slots for whole tables, `lines` rows for intents, then the slots of keys.
    slots: ZeroedArray<AtomicU64>,
    lines: usize,
}

fn raise(slot: &AtomicU64, lsn: Lsn) {
    // Read first: a slot with a sufficient LSN is not written (DEPEND-2). Relaxed: DEPEND-1.
    if slot.load(Relaxed) < lsn.0 {
        slot.fetch_max(lsn.0, Relaxed);
    }
}

/// Returns `true` if a key mode with these mode bits permits changes that other transactions can read.
fn writes_key(mode_bits: ModeBits) -> bool {
    let mode = mode_bits::key_mode(mode_bits);
    mode.record == RecordMode::X || matches!(mode.gap, GapMode::I | GapMode::X)
}

impl Dependencies {
    /// Returns slots without LSNs. `slots` is the number of slots for keys, a power of two.
    pub(crate) fn new(slots: usize) -> Self {
        let lines = line_count().min(MOST_LINES);
        Self { slots: ZeroedArray::new((1 + lines) * TABLES + slots, || AtomicU64::new(0)), lines }
    }

    fn key(&self, id: LockId) -> &AtomicU64 {
        let keys = &self.slots[(1 + self.lines) * TABLES..];
        &keys[(id.spread() >> 16) as usize & (keys.len() - 1)]
    }

    fn intent(&self, line: usize, tree: TreeId) -> &AtomicU64 {
        &self.slots[(1 + line) * TABLES + tree.0 as usize % TABLES]
    }

    fn whole(&self, tree: TreeId) -> &AtomicU64 {
        &self.slots[tree.0 as usize % TABLES]
    }

    /// Stores the commit LSN of a transaction that is about to release a lock.
    pub(crate) fn leave(&self, id: LockId, mode_bits: ModeBits, lsn: Lsn) {
        match id.name() {
            LockName::Table(tree) => self.leave_table(tree, mode_bits, lsn),
            LockName::Key { .. } | LockName::End(_) => {
                if writes_key(mode_bits) {
                    raise(self.key(id), lsn);
                }
            }
        }
    }

    fn leave_table(&self, tree: TreeId, mode_bits: ModeBits, lsn: Lsn) {
        match mode_bits::table_mode(mode_bits) {
            Some(TableMode::IX | TableMode::SIX) => {
                raise(self.intent(thread_stripe() % self.lines, tree), lsn)
            }
            Some(TableMode::X) => raise(self.whole(tree), lsn),
            Some(TableMode::IS | TableMode::S) | None => {}
        }
    }

    /// Returns the commit LSN that a new holder of this lock may depend on; `Lsn(0)` if there is none.
    pub(crate) fn find(&self, id: LockId, mode_bits: ModeBits) -> Lsn {
        debug_assert_eq!(id.family() == Family::Table, matches!(id.name(), LockName::Table(_)));
        Lsn(match id.name() {
            LockName::Key { .. } | LockName::End(_) => self.key(id).load(Relaxed),
            LockName::Table(tree) => {
                let whole = self.whole(tree).load(Relaxed);
                match mode_bits::table_mode(mode_bits) {
                    Some(TableMode::S | TableMode::SIX | TableMode::X) => (0..self.lines)
                        .map(|line| self.intent(line, tree).load(Relaxed))
                        .fold(whole, u64::max),
                    _ => whole,
                }
            }
        })
    }
}
