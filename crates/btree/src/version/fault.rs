//! Parts of the protocol that a test can omit, to show that the history checker finds the fault.

/// A part of the protocol that a test can omit; see `Builder::leave_out_of_snapshots`. The numbers are those
/// of the hazards.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionPart {
    /// V1: the clock. A transaction takes its commit LSN as its timestamp, an opener the largest of these.
    Clock,
    /// V2: the timestamp push by a reader that meets an active transaction.
    Push,
    /// V3: the order of the last lock and the timestamp. A transaction takes the time of its first change.
    LateTimestamp,
    /// V4: the timestamp of a transaction that the first opener has visited.
    VisitedStatus,
    /// V5: the validation of a leaf after the lookup of versions.
    LastValidation,
    /// V6: the version of a row that a transaction changes before and after a savepoint, when it rolls back
    /// to the savepoint.
    SavepointVersion,
    /// V7: the check that a snapshot has become too old.
    AgeCheck,
    /// V8: versions of rows outside of the first and last row of a leaf.
    OuterRows,
}
