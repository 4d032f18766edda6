//! Parts of the lock protocol that a test leaves out, to show that the tests of isolation find the fault.
//!
//! Without the feature `test-faults` nothing can be left out, and all of this compiles to nothing.

use azekura_lock::KeyMode;
#[cfg(feature = "test-faults")]
use azekura_lock::RecordMode;

/// The lock that is left out, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeftOut {
    #[cfg(feature = "test-faults")]
    pub(crate) part: Option<LockPart>,
}

impl LeftOut {
    /// Returns the rest of `mode` without the part that is left out; `None` if nothing is left.
    #[inline]
    pub(crate) fn rest_of(self, mode: KeyMode) -> Option<KeyMode> {
        #[cfg(feature = "test-faults")]
        if let Some(part) = self.part {
            return part.strip(mode);
        }
        Some(mode)
    }

    /// Returns `true` if an inserted key takes over no mode from the gap that it splits.
    #[inline]
    pub(crate) fn is_inherited_gap(self) -> bool {
        #[cfg(feature = "test-faults")]
        return self.part == Some(LockPart::InheritedGap);
        #[cfg(not(feature = "test-faults"))]
        false
    }

    /// Returns `true` if a rollback to a savepoint passes on no gaps.
    #[inline]
    pub(crate) fn is_undone_next(self) -> bool {
        #[cfg(feature = "test-faults")]
        return self.part == Some(LockPart::UndoneNext);
        #[cfg(not(feature = "test-faults"))]
        false
    }
}

/// A cell of the table of locks in `locking`, which a test can leave out; see `Builder::leave_out`.
#[cfg(feature = "test-faults")]
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockPart {
    /// Record S of `get`.
    GetRecord,
    /// Record S of each key of a scan.
    ScanRecord,
    /// Gap S of each key of a scan.
    ScanGap,
    /// Gap S of the first key beyond a scan.
    ScanNext,
    /// Record X of update, insert and delete.
    WriteRecord,
    /// Gap I of an inserted key.
    InsertGap,
    /// The test of gap I on the key after an inserted one.
    InsertTest,
    /// The mode that an inserted key's gap takes over from the next key's.
    InheritedGap,
    /// Gap X of a deleted key.
    DeleteGap,
    /// Gap X of the key after a deleted one.
    DeleteNext,
    /// Gap S of the key after an inserted one, before a rollback to a savepoint undoes the insertion.
    UndoneNext,
}

#[cfg(feature = "test-faults")]
impl LockPart {
    /// The modes of the table are all different, so a mode identifies the operation that requests it.
    fn strip(self, mode: KeyMode) -> Option<KeyMode> {
        let rest = match (self, mode) {
            (Self::GetRecord, KeyMode::READ)
            | (Self::ScanNext, KeyMode::READ_GAP)
            | (Self::InsertTest, KeyMode::INSERT_TEST)
            | (Self::DeleteNext, KeyMode::DELETE_NEXT) => KeyMode::NONE,
            (Self::ScanRecord, KeyMode::SCAN) => KeyMode::READ_GAP,
            (Self::ScanGap, KeyMode::SCAN) => KeyMode::READ,
            (Self::WriteRecord, KeyMode { gap, record: RecordMode::X }) => {
                KeyMode::new(gap, RecordMode::None)
            }
            (Self::InsertGap, KeyMode::INSERT) | (Self::DeleteGap, KeyMode::DELETE) => KeyMode::UPDATE,
            _ => mode,
        };
        (rest != KeyMode::NONE).then_some(rest)
    }
}

#[cfg(feature = "test-faults")]
impl crate::Builder {
    /// Leaves a lock out, which breaks isolation: only for tests that show that they would notice.
    #[doc(hidden)]
    #[must_use]
    pub fn leave_out(mut self, part: LockPart) -> Self {
        self.left_out.part = Some(part);
        self
    }

    /// Leaves a part of the protocol of snapshots out: only for tests that show that they would notice.
    #[doc(hidden)]
    #[must_use]
    pub fn leave_out_of_snapshots(mut self, part: azekura_btree::VersionPart) -> Self {
        self.left_out_of_snapshots = Some(part);
        self
    }
}
