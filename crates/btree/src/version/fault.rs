//! Parts of the snapshot protocol that a test can leave out, to show that the history checker finds the
//! fault.

/// A part of the protocol that a test can leave out; see `Builder::leave_out_of_snapshots`. The numbers V1 to
/// V8 are the numbers in `docs/hazards.md`.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionPart {
    /// V1: the clock. A transaction uses its commit LSN as its timestamp, and an opener the largest of these.
    Clock,
    /// V2: the timestamp push by a reader that finds an active transaction.
    Push,
    /// V3: the order of the last lock and the timestamp. A transaction uses the time of its first change.
    LateTimestamp,
    /// V4: the timestamp of a transaction that the first opener has visited.
    VisitedStatus,
    /// V5: the validation of a leaf after the look-up of versions.
    LastValidation,
    /// V6: the version of a row that a transaction changed before and after a savepoint. It is dropped when
    /// the transaction rolls back to the savepoint.
    SavepointVersion,
    /// V7: the check that a snapshot has become too old.
    AgeCheck,
    /// V8: versions of rows that sort before the first or after the last row of a leaf.
    OuterRows,
}
