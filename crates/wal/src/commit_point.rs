//! What a commit rests on, and when it may be acknowledged though records with smaller LSNs are not durable
//! yet: *remote-flush avoidance*, after the idea of Haubenschild et al., *Rethinking Logging, Checkpoints,
//! and Recovery for High-Performance Storage Engines* (SIGMOD 2020), for
//! [`LogProtocol::Rfa`](crate::LogProtocol::Rfa).
//!
//! Elsewhere a commit waits for all before it in every log. Here each worker has one number beside its
//! buffer, `rests_on`: the largest LSN of another worker that anything appended to the buffer so far may rest
//! on. With *H* the durable horizon:
//!
//! | a record with LSN c of worker w that rests on r | durable? | may be acknowledged? |
//! |---|---|---|
//! | H >= c | with all before it | yes |
//! | H < c, all of w's records up to c written, H >= r | though some LSN before it is missing | yes |
//! | H < r, or c not written | | no: w's stream is flushed first, then whatever holds H below r |
//!
//! - **REST-1** Before a record is drawn, its worker's `rests_on` is at least each LSN of another worker's
//!   record that (a) changed last one of the pages that the record changes (page LSNs, looked at under their
//!   latches), or (b) committed and let go early of a lock that was since granted to the record's transaction
//!   (`azekura_lock`'s slots, W8); unless *H* had reached that LSN. An LSN that the worker drew itself is in
//!   its own log, before the record. The record's LSN is above all of these (RANGE-3), and so above what it
//!   rests on.
//! - **REST-2** `rests_on` never falls, and each record carries it. So of one worker's records those that
//!   rest on nothing above an LSN are a prefix.
//! - **REST-3** A commit is acknowledged when its worker's mark is above its LSN, and *H* has reached what it
//!   rests on.
//! - **REST-4** Recovery finds *H*, the last LSN before the first missing one, and of each worker the longest
//!   row of its records that rest on nothing above *H*. What counts is all up to *H*, and of each worker the
//!   records of that row ([`Tail`](crate::recovery::Tail)). So what was acknowledged counts: *H* only grows
//!   until the crash, and with REST-2 all of its worker's records before it count too.
//! - **REST-5** What counts is closed. By induction over LSNs: of a record that counts, the page's history
//!   before it ends with a record of the same worker, which is before it in the same row, or with one up to
//!   *H*. So each page has lost a tail of its changes and nothing in the midst, and a record of many pages (a
//!   split with parent and space map) is there on all of them or on none. What does not count could have come
//!   after all that does.
//! - **REST-6** A transaction appends to one worker as long as the log lives, so it has lost a tail of its
//!   records: undo goes by "the newest entry not yet undone" as ever. Losers hold exclusive locks on all that
//!   they changed, as ever: had somebody whose records count been granted one of them, then by (b) the
//!   loser's commit would count.
//! - **REST-7** The cut is in CONTROL, *H* and the tails, before anything is undone: a recovery of the
//!   recovery finds the same set, and must find all of it, else the log is damaged.
//!
//! A page that was read from disk needs no more than its LSN: it was durable everywhere before it got there
//! (W4). When the number of streams changes everything drawn so far is durable (ASSIGN-2), so a worker's
//! records above *H* are in one stream.
//!
//! A reader that wrote nothing waits for *H* as everywhere (W8); so do page writes (W4). A commit that rests
//! on nothing waits for its own log only.
//!
//! Model: `tests/loom_rests.rs`. Crash tests: `tests/rests.rs` here and in the store.

use azekura_base::Lsn;
use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A record, and what must be durable before it is acknowledged. An LSN alone, turned into one, stands for
/// all up to that LSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitPoint {
    lsn: Lsn,
    /// The worker whose log must be durable up to the record; `None`: all must be.
    own: Option<u32>,
    rests_on: Lsn,
}

impl From<Lsn> for CommitPoint {
    fn from(lsn: Lsn) -> Self {
        Self { lsn, own: None, rests_on: lsn }
    }
}

impl CommitPoint {
    /// A record of `worker` that rests on the others' records up to `rests_on`, which is below `lsn`.
    #[must_use]
    pub const fn of_worker(lsn: Lsn, worker: usize, rests_on: Lsn) -> Self {
        Self { lsn, own: Some(worker as u32), rests_on }
    }

    /// The record.
    #[must_use]
    pub const fn lsn(self) -> Lsn {
        self.lsn
    }

    /// The worker whose log alone must be durable up to the record; `None`: all of them.
    #[must_use]
    pub fn own(self) -> Option<usize> {
        self.own.map(|worker| worker as usize)
    }

    /// Up to where all logs must be durable.
    #[must_use]
    pub const fn rests_on(self) -> Lsn {
        self.rests_on
    }

    /// What may be acknowledged only when both may be.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let lsn = self.lsn.max(other.lsn);
        if self.own == other.own {
            // The same log, or both all.
            Self { lsn, own: self.own, rests_on: self.rests_on.max(other.rests_on) }
        } else {
            lsn.into()
        }
    }
}

/// What became of one worker's commits. Statistics (Relaxed).
#[derive(Debug, Default)]
pub(crate) struct CommitCounts {
    pub(crate) commits: AtomicU64,
    /// Those that rested on nothing that was not durable.
    pub(crate) alone: AtomicU64,
    /// Those whose committer went on while a record before them was not durable.
    pub(crate) above_a_hole: AtomicU64,
}

/// How many of its LSNs a worker remembers.
const REMEMBERED: usize = if cfg!(loom) { 4 } else { 1024 };

/// The LSNs that a worker drew, as far as it remembers: of one that it does not know it may well be the
/// drawer, and waits for others for no reason.
///
/// Accesses are Relaxed: who asks for an LSN has it from a page or lock that was changed after it was drawn
/// and noted, and took that page's latch or that lock.
#[derive(Debug)]
pub(crate) struct OwnLsns(Box<[AtomicU64]>);

impl OwnLsns {
    pub(crate) fn new() -> Self {
        Self((0..REMEMBERED).map(|_| AtomicU64::new(0)).collect())
    }

    fn place(&self, lsn: u64) -> &AtomicU64 {
        &self.0[lsn as usize % REMEMBERED]
    }

    pub(crate) fn note(&self, lsn: u64) {
        self.place(lsn).store(lsn, Relaxed);
    }

    /// Whether the worker certainly drew this LSN.
    pub(crate) fn contains(&self, lsn: u64) -> bool {
        self.place(lsn).load(Relaxed) == lsn
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn two_points_of_one_log_need_that_log_and_of_two_logs_all() {
        let a = CommitPoint::of_worker(Lsn(10), 1, Lsn(3));
        let b = CommitPoint::of_worker(Lsn(12), 1, Lsn(2));
        assert_eq!(a.and(b), CommitPoint::of_worker(Lsn(12), 1, Lsn(3)));
        let c = CommitPoint::of_worker(Lsn(11), 2, Lsn(0));
        assert_eq!(b.and(c), Lsn(12).into());
        assert_eq!(c.and(Lsn(20).into()), Lsn(20).into());
        assert_eq!(CommitPoint::from(Lsn(5)).and(Lsn(7).into()), Lsn(7).into());
    }

    #[test]
    fn a_worker_forgets_what_it_drew_and_never_claims_what_it_did_not() {
        let own = OwnLsns::new();
        for lsn in (1..5000).step_by(3) {
            own.note(lsn);
        }
        assert!(own.contains(4999) && own.contains(4996));
        assert!((1..6000).filter(|lsn| lsn % 3 != 1).all(|lsn| !own.contains(lsn)));
        assert!(!own.contains(1), "long ago");
    }
}
