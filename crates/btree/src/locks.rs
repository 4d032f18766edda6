//! What the tree asks of whoever keeps the locks, at the moments when only the tree knows the next key.
//!
//! A lock is only *tried* here: the calls come while a leaf is latched exclusively (writes), or between
//! reading a leaf and validating its version (reads). So what is locked is what was looked at: no key slips
//! between the look and the lock. When a lock cannot be had, the operation returns [`Outcome::Blocked`] with
//! nothing changed and no latch held; the caller waits for that lock and calls again.
//!
//! A *read* may ask for a lock, find that the leaf has changed, and ask again for other keys: the locks of
//! the first attempt are held for nothing until the transaction ends.

use azekura_base::TreeId;

use crate::scan::LeafBatch;

/// The first key above a place in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextKey<'a> {
    /// This key.
    Key(&'a [u8]),
    /// There is none: the end of the tree.
    End,
}

/// What is about to happen in the gap below the next key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapWant {
    /// A scan relies on the gap having no keys but those it saw.
    Read,
    /// A key is about to appear in the gap.
    Insert,
    /// The key below the gap is about to go, which makes the gap longer.
    Delete,
    /// As [`Self::Delete`], tested and not kept: the key may go later.
    TestDelete,
}

/// Rules of a scan for records with locks that cannot be had at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockedRecords {
    /// The scan comes back with [`Outcome::Blocked`].
    #[default]
    Stop,
    /// The scan leaves the record out.
    PassOver,
    /// The scan leaves the record out, also if [`GapWant::TestDelete`] of the gap above it is refused.
    PassOverUnlessRemovable,
}

/// The lock cannot be had at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked;

/// The keeper of locks as the tree sees it.
pub trait KeyLocks {
    /// Whether the calls below do anything. If not (the whole table is locked), the tree looks for no next
    /// key.
    fn is_needed(&self) -> bool {
        true
    }

    /// The rule for records that [`Self::try_scan`] refuses.
    fn blocked_records(&self) -> BlockedRecords {
        BlockedRecords::Stop
    }

    /// Tries to lock the gap below `next` for `want`.
    ///
    /// # Errors
    ///
    /// [`Blocked`]: not without waiting; the keeper remembers for what.
    fn try_gap(&mut self, tree: TreeId, next: NextKey<'_>, want: GapWant) -> Result<(), Blocked>;

    /// Tries to lock `key` and the gap below it for a scan.
    ///
    /// # Errors
    ///
    /// As [`Self::try_gap`].
    fn try_scan(&mut self, tree: TreeId, key: &[u8]) -> Result<(), Blocked>;

    /// Tries to lock all keys of `run`, each with the gap below it, for a scan: the keys that exist from
    /// `from` to below `to`, in the order of the scan.
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

/// No locks at all: the caller has the whole table locked, or the tree to itself.
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
    /// It is done.
    Done(T),
    /// A lock could not be had at once; nothing was changed. Wait for the lock and call again.
    Blocked,
}

impl<T> Outcome<T> {
    /// The result, if the operation is done.
    pub fn done(self) -> Option<T> {
        match self {
            Self::Done(value) => Some(value),
            Self::Blocked => None,
        }
    }
}
