//! The status of one writing transaction, as read by snapshots.
//!
//! | state | content | left by |
//! |---|---|---|
//! | active | `min`: the commit timestamp will be at least this | the end of the transaction |
//! | committed | the commit timestamp | – |
//! | rolled back | – | – |
//!
//! - **STATUS-1** A reader of snapshot *e* that finds an active transaction raises its `min` to *e* + 1 (a
//!   *timestamp push*). The transaction then commits after the snapshot. So the answer "not visible" is
//!   final, and no thread waits.
//! - **STATUS-2** A transaction reads the clock after it has acquired its last lock and appended its commit
//!   record, and fixes its timestamp before it releases its first lock.

use azekura_base::Lsn;
use azekura_base::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::SeqCst};
use azekura_base::sync::thread;

use super::{VersionPart, Versions};

/// The two low bits of the word.
const ACTIVE: u64 = 0;
const COMMITTED: u64 = 1;
const ROLLED_BACK: u64 = 2;
const BITS: u32 = 2;

/// The visibility of one version to one snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visibility {
    /// The change of this writer is visible to the snapshot.
    Visible,
    /// The state before this writer is visible to the snapshot.
    Hidden,
    /// The writer undid its change: the row after the change equals the row before it.
    RolledBack,
}

/// The status word of a transaction.
#[derive(Debug)]
pub(crate) struct Status {
    word: AtomicU64,
}

impl Status {
    /// Returns the status of an active transaction; `least` is its least commit timestamp.
    pub(crate) fn active(least: u64) -> Self {
        Self { word: AtomicU64::new(least << BITS | ACTIVE) }
    }

    /// Returns the visibility as [`visibility`](Self::visibility) does, but without the push (V2).
    pub(crate) fn visibility_without_push(&self, timestamp: u64) -> Visibility {
        match self.ended() {
            Some(0) => Visibility::RolledBack,
            Some(number) if number <= timestamp => Visibility::Visible,
            _ => Visibility::Hidden,
        }
    }

    /// Commits as [`commit`](Self::commit) does, with a part of the protocol left out.
    #[cold]
    pub(super) fn commit_without(&self, part: VersionPart, versions: &Versions, commit_lsn: Lsn) {
        let now = match part {
            VersionPart::Clock => {
                versions.clock.fetch_max(commit_lsn.0, SeqCst); // SeqCst, also below: no weaker order
                versions.note_commit(commit_lsn.0);
                commit_lsn.0
            }
            VersionPart::LateTimestamp => 0,
            _ => versions.commit_timestamp(0),
        };
        if part == VersionPart::Push {
            thread::yield_now(); // A test opens a snapshot and reads here.
        }
        let timestamp = now.max(self.word.load(SeqCst) >> BITS);
        versions.note_commit(timestamp);
        self.word.swap(timestamp << BITS | COMMITTED, SeqCst);
    }

    /// Returns the visibility of this transaction's changes to snapshot `timestamp`; the answer is final
    /// (STATUS-1).
    pub(crate) fn visibility(&self, timestamp: u64) -> Visibility {
        // Acquire: pairs with the AcqRel in `commit` and `roll_back`. The page changes of the transaction
        // happen before the later validation of a leaf that the reader copied.
        let mut word = self.word.load(Acquire);
        loop {
            let number = word >> BITS;
            match word & ((1 << BITS) - 1) {
                COMMITTED if number <= timestamp => return Visibility::Visible,
                COMMITTED => return Visibility::Hidden,
                ACTIVE if number > timestamp => return Visibility::Hidden,
                ACTIVE => {
                    let pushed = (timestamp + 1) << BITS | ACTIVE;
                    // AcqRel: pairs with the AcqRel in `commit`, which then fails and uses the pushed
                    // minimum.
                    match self.word.compare_exchange(word, pushed, AcqRel, Acquire) {
                        Ok(_) => return Visibility::Hidden,
                        Err(now) => word = now,
                    }
                }
                _ => return Visibility::RolledBack,
            }
        }
    }

    /// Returns the commit timestamp; `None` while the transaction is active, 0 if it rolled back.
    pub(crate) fn ended(&self) -> Option<u64> {
        // Acquire: pairs with the AcqRel in `commit`.
        let word = self.word.load(Acquire);
        match word & ((1 << BITS) - 1) {
            ACTIVE => None,
            COMMITTED => Some(word >> BITS),
            _ => Some(0),
        }
    }

    /// Commits with the present value of the clock, or a larger one if a reader has pushed the timestamp. The
    /// caller holds all locks of the transaction (STATUS-2).
    pub(super) fn commit(&self, versions: &Versions) {
        // Acquire: as in `visibility`.
        let mut word = self.word.load(Acquire);
        loop {
            let timestamp = versions.commit_timestamp(word >> BITS);
            // AcqRel: pairs with `visibility`. Either the push comes first and this step fails, or the reader
            // reads the timestamp. A thread that reads the timestamp also reads the last commit timestamp
            // (VERSION-8).
            match self.word.compare_exchange(word, timestamp << BITS | COMMITTED, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn commit_at(&self, timestamp: u64) {
        self.word.swap(timestamp << BITS | COMMITTED, AcqRel); // AcqRel: as in `commit`
    }

    /// Sets the status to rolled back, after all changes are undone.
    pub(crate) fn roll_back(&self) {
        // AcqRel: pairs with the Acquire in `visibility`.
        self.word.swap(ROLLED_BACK, AcqRel);
    }
}
