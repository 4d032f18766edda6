//! Parts of the lock protocol that a test disables, to show that the isolation tests detect the missing part.
//!
//! Without the feature `test-faults` no part can be disabled, and the functions here compile to no code.

use azekura_lock::KeyMode;
#[cfg(feature = "test-faults")]
use azekura_lock::RecordMode;

/// The part of the lock protocol that is disabled, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeftOut {
    #[cfg(feature = "test-faults")]
    pub(crate) part: Option<LockPart>,
}

impl LeftOut {
    /// Returns `mode` without the disabled part; `None` if no lock remains.
    #[inline]
    pub(crate) fn rest_of(self, mode: KeyMode) -> Option<KeyMode> {
        #[cfg(feature = "test-faults")]
        if let Some(part) = self.part {
            return part.strip(mode);
        }
        Some(mode)
    }

    /// Returns `true` if the inheritance of a gap mode by an inserted key is disabled.
    #[inline]
    pub(crate) fn is_inherited_gap(self) -> bool {
        #[cfg(feature = "test-faults")]
        return self.part == Some(LockPart::InheritedGap);
        #[cfg(not(feature = "test-faults"))]
        false
    }

    /// Returns `true` if the gap locks that a rollback to a savepoint takes are disabled.
    #[inline]
    pub(crate) fn is_undone_next(self) -> bool {
        #[cfg(feature = "test-faults")]
        return self.part == Some(LockPart::UndoneNext);
        #[cfg(not(feature = "test-faults"))]
        false
    }
}

/// A cell of the table of locks in `locking`, which a test can disable; see `Builder::leave_out`.
#[cfg(feature = "test-faults")]
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockPart {
    /// The record lock S of `get`.
    GetRecord,
    /// The record lock S on each key of a scan.
    ScanRecord,
    /// The gap lock S of each key of a scan.
    ScanGap,
    /// The gap lock S on the first key beyond a scan.
    ScanNext,
    /// The record lock X of update, insert and delete.
    WriteRecord,
    /// The gap lock I on an inserted key.
    InsertGap,
    /// The test of gap I on the key after an inserted key.
    InsertTest,
    /// The gap mode that an inserted key inherits from the next key.
    InheritedGap,
    /// The gap lock X on a deleted key.
    DeleteGap,
    /// The gap lock X on the key after a deleted key.
    DeleteNext,
    /// The gap lock S on the key after an inserted key, before a rollback to a savepoint undoes the
    /// insertion.
    UndoneNext,
}

#[cfg(feature = "test-faults")]
impl LockPart {
    /// Returns `mode` without this part, or `None` if no lock remains. The modes of the table are all
    /// different, so a mode identifies the operation that requests it.
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
    /// Disables a lock, which breaks isolation. Only for tests that verify that the isolation tests detect
    /// this.
    #[doc(hidden)]
    #[must_use]
    pub fn leave_out(mut self, part: LockPart) -> Self {
        self.left_out.part = Some(part);
        self
    }

    /// Disables a part of the snapshot protocol. Only for tests that verify that the isolation tests detect
    /// this.
    #[doc(hidden)]
    #[must_use]
    pub fn leave_out_of_snapshots(mut self, part: azekura_btree::VersionPart) -> Self {
        self.left_out_of_snapshots = Some(part);
        self
    }
}
