//! The interface to the lock manager, for locks on keys that only the tree can determine.
//!
//! The tree only *tries* locks, and never waits for one. A write calls while a leaf is latched exclusively. A
//! read calls between reading a leaf and validating its version. So no key can appear between the read and
//! the lock. If a lock cannot be granted at once, the operation returns [`Outcome::Blocked`] with nothing
//! changed and no latch held. The caller waits for that lock and calls again.
//!
//! A *read* may lock a key, find that the leaf has changed, and lock other keys. The locks of the first
//! attempt are then unnecessary; they are held until the transaction ends.

use azekura_base::TreeId;

use crate::scan::LeafBatch;

/// The first key above a position in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextKey<'a> {
    /// This key.
    Key(&'a [u8]),
    /// No key: the end of the tree.
    End,
}

/// The intended use of the gap below the next key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapWant {
    /// A scan relies on the absence of other keys in the gap.
    Read,
    /// A key will be inserted in the gap.
    Insert,
    /// The key below the gap will be removed, which extends the gap.
    Delete,
    /// Like [`Self::Delete`], but only tested: the lock is not kept. The caller may remove the key later.
    TestDelete,
}

/// A scan's rule for records with locks that cannot be granted at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockedRecords {
    /// The scan returns [`Outcome::Blocked`].
    #[default]
    Stop,
    /// The scan leaves the record out.
    PassOver,
    /// The scan leaves the record out, also if [`GapWant::TestDelete`] of the gap above it is refused.
    PassOverUnlessRemovable,
}

/// The lock cannot be granted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked;

/// The part of the lock manager that trees need.
pub trait KeyLocks {
    /// Returns `true` if the methods below acquire locks. If it returns `false` (the whole table is locked),
    /// the tree does not look up next keys.
    fn is_needed(&self) -> bool {
        true
    }

    /// Returns the rule for records that [`Self::try_scan`] refuses.
    fn blocked_records(&self) -> BlockedRecords {
        BlockedRecords::Stop
    }

    /// Tries to lock the gap below `next` for `want`.
    ///
    /// # Errors
    ///
    /// [`Blocked`]: the caller would have to wait for the lock. The implementation remembers this lock.
    fn try_gap(&mut self, tree: TreeId, next: NextKey<'_>, want: GapWant) -> Result<(), Blocked>;

    /// Tries to lock `key` and the gap below it for a scan.
    ///
    /// # Errors
    ///
    /// As [`Self::try_gap`].
    fn try_scan(&mut self, tree: TreeId, key: &[u8]) -> Result<(), Blocked>;

    /// Tries to lock all keys of `run`, each with the gap below it, for a scan. These are the existing keys
    /// from `from` to below `to`, in the order of the scan.
    ///
    /// # Errors
    ///
    /// As [`Self::try_gap`].
    fn try_scan_run(
        &mut self,
        tree: TreeId,
        (_from, _to): (&[u8], Option<&[u8]>),
        run: &LeafBatch,
    ) -> Result<(), Blocked> {
        (0..run.len()).try_for_each(|i| self.try_scan(tree, run.key(i)))
    }
}

/// An implementation without locks: the caller has locked the whole table, or has exclusive use of the tree.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLocks;

impl KeyLocks for NoLocks {
    fn is_needed(&self) -> bool {
        false
    }

    fn try_gap(&mut self, _: TreeId, _: NextKey<'_>, _: GapWant) -> Result<(), Blocked> {
        Ok(())
    }

    fn try_scan(&mut self, _: TreeId, _: &[u8]) -> Result<(), Blocked> {
        Ok(())
    }
}

/// Result of an operation that requests locks during its descent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome<T> {
    /// The operation is done.
    Done(T),
    /// A lock could not be granted at once; nothing was changed. Wait for the lock and call again.
    Blocked,
}

impl<T> Outcome<T> {
    /// Returns the result if the operation is done.
    pub fn done(self) -> Option<T> {
        match self {
            Self::Done(value) => Some(value),
            Self::Blocked => None,
        }
    }
}
