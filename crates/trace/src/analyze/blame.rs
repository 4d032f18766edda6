//! Blame: operation × site × the holder's operation, and the holder's state meanwhile.
//!
//! The holder of a wait is the thread that the lock itself named ([`wait_for`](crate::wait_for)). Otherwise
//! the wait is divided among the threads with recorded holds ([`hold`](crate::hold)) of the same object
//! during the wait. In a convoy a thread waits for several holders in turn. Between two holders, and at the
//! end, it waits until the next thread has woken up (*handover*). In a recording with sampled holds, a longer
//! gap may be a hold that was not sampled, so its holder is unknown. Without recorded holds, the holder is
//! the thread that released the object nearest to the wait's end ([`released`](crate::released)). The rest of
//! the wait has an unknown holder. The count of a wait goes to the thread that released the object.
//!
//! During the wait, a holder ran, or waited itself (the site of that wait is reported, because the cause is
//! there), or was off its processor. On few processors the last part is often the largest: the holder was
//! preempted, and the lock is not the cause.

use super::by_object::ByObject;
use super::holders::Holders;
use super::pair::{ThreadSpans, WaitSpan};
use super::quick::QuickMap;
use std::collections::BTreeMap;

/// Longest gap between two recorded holds that counts as a handover, and longest time from the end of a hold
/// to the end of the wait that it ended, if holds are sampled.
pub(crate) const WAKE_UP_NS: u64 = 50_000;

/// Key of a row: the waiter's operation, the site, and the holder (`None`: unknown).
pub(crate) type BlameKey = (u16, u32, Option<Holder>);

/// Holder of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Holder {
    /// Any thread, in this operation.
    In(u16),
    /// This thread, outside of operations, such as a background thread that writes pages.
    Thread(u32),
}

/// Sums over waits, ns.
#[derive(Debug, Clone, Default)]
pub(crate) struct BlameSums {
    pub(crate) count: u64,
    pub(crate) waited: u64,
    pub(crate) holder_ran: u64,
    pub(crate) holder_waited: u64,
    pub(crate) holder_off: u64,
    /// The part of `holder_off` in which the holder was preempted.
    pub(crate) holder_preempted: u64,
    pub(crate) handover: u64,
    /// Time in which holders themselves waited, by site.
    pub(crate) via: BTreeMap<u32, u64>,
}

impl BlameSums {
    /// Adds the sums of another row.
    pub(crate) fn merge(&mut self, more: &Self) {
        self.count += more.count;
        self.waited += more.waited;
        self.holder_ran += more.holder_ran;
        self.holder_waited += more.holder_waited;
        self.holder_off += more.holder_off;
        self.holder_preempted += more.holder_preempted;
        self.handover += more.handover;
        more.via.iter().for_each(|(site, ns)| *self.via.entry(*site).or_default() += ns);
    }

    /// Subtracts sums that were added before, except `via`.
    pub(super) fn subtract(&mut self, less: &Self) {
        self.count -= less.count;
        self.waited -= less.waited;
        self.holder_ran -= less.holder_ran;
        self.holder_waited -= less.holder_waited;
        self.holder_off -= less.holder_off;
        self.holder_preempted -= less.holder_preempted;
        self.handover -= less.handover;
    }
}

/// The sums of all rows.
pub(crate) type Blame = QuickMap<BlameKey, BlameSums>;

/// Adds a window's waits for locks, and for I/O of another thread. If a wait began in the previous window,
/// the holder at its start is unknown.
pub(super) fn blame((threads, by_object): (&[ThreadSpans], &ByObject), hold_sampling: u32, rows: &mut Blame) {
    let holders = Holders::new(threads, by_object, hold_sampling);
    for ended in &by_object.waits {
        let thread = &threads[ended.thread as usize];
        let wait = &thread.waits[ended.wait as usize];
        let Some(end) = wait.end.filter(|_| !is_in_endless(thread, wait)) else { continue };
        let operation = wait.op.map_or(0, |op| thread.ops[op as usize].operation);
        let mut rows = Rows::new(rows, operation, wait.site);
        let unknown = holders.divide((ended.thread as usize, wait, end), ended.number as usize, &mut rows);
        if unknown > 0 {
            rows.of(None).waited += unknown;
        }
    }
}

/// The rows of the waits of one operation at one site.
pub(super) struct Rows<'r> {
    rows: &'r mut Blame,
    operation: u16,
    site: u32,
}

impl<'r> Rows<'r> {
    pub(super) fn new(rows: &'r mut Blame, operation: u16, site: u32) -> Self {
        Self { rows, operation, site }
    }

    pub(super) fn of(&mut self, holder: Option<Holder>) -> &mut BlameSums {
        self.rows.entry((self.operation, self.site, holder)).or_default()
    }
}

/// Returns `true` if the operation around a wait had not ended when the recording ended: no table has its
/// waits.
fn is_in_endless(thread: &ThreadSpans, wait: &WaitSpan) -> bool {
    wait.op.is_some_and(|op| thread.ops[op as usize].end.is_none() && !thread.is_ongoing(op))
}
