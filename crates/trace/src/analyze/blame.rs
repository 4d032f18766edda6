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

use super::nearby::partition_point_from;
use super::pair::{HoldSpan, ThreadSpans, WaitSpan};
use super::quick::QuickMap;
use crate::WaitClass;
use std::collections::BTreeMap;

/// A release counts up to this time after the wait's end, because the holder may record it a moment late.
const LATE_NS: u64 = 50_000;

/// Longest gap between two recorded holds that counts as a handover, and longest time from the end of a hold
/// to the end of the wait that it ended, if holds are sampled.
pub(crate) const WAKE_UP_NS: u64 = 50_000;

/// Key of a row: the waiter's operation, the site, and the holder (`None`: unknown).
pub(crate) type BlameKey = (u16, u32, Option<Holder>);

/// Holder of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
}

/// The sums of all rows.
pub(crate) type Blame = QuickMap<BlameKey, BlameSums>;

/// Adds a window's waits for locks, and for I/O of another thread. If a wait began in the previous window,
/// the holder at its start is unknown.
pub(crate) fn blame(threads: &[ThreadSpans], hold_sampling: u32, rows: &mut Blame) {
    let holders = Holders::new(threads);
    let outermost: Vec<Vec<&WaitSpan>> = threads.iter().map(outermost_waits).collect();
    for (index, thread) in threads.iter().enumerate() {
        let mut cursors = vec![Cursors::default(); threads.len()];
        for wait in &thread.waits {
            let is_counted = is_for_somebody(wait) && !is_in_endless(thread, wait);
            let Some(end) = wait.end.filter(|_| is_counted) else { continue };
            let operation = wait.op.map_or(0, |op| thread.ops[op as usize].operation);
            let pieces = holders.of(index, wait, end);
            let (mut at, mut unknown) = (wait.begin, 0);
            for (i, piece) in pieces.iter().enumerate() {
                let holder = match piece.operation {
                    0 => Holder::Thread(threads[piece.thread].tag),
                    operation => Holder::In(operation),
                };
                let row = rows.entry((operation, wait.site, Some(holder))).or_default();
                row.count += u64::from(i + 1 == pieces.len());
                let before = if i > 0 { piece.begin - at } else { 0 };
                let after = if i + 1 == pieces.len() { end - piece.end } else { 0 };
                for gap in [before, after] {
                    if hold_sampling > 1 && gap > WAKE_UP_NS {
                        unknown += gap;
                    } else {
                        row.hand_over(gap);
                    }
                }
                let held = (&threads[piece.thread], &*outermost[piece.thread]);
                row.add(piece, wait, held, &mut cursors[piece.thread]);
                at = piece.end;
            }
            // Time before the first recorded hold, or the whole wait.
            unknown += pieces.first().map_or(end, |p| p.begin) - wait.begin;
            if unknown > 0 || pieces.is_empty() {
                let row = rows.entry((operation, wait.site, None)).or_default();
                row.count += u64::from(pieces.is_empty());
                row.waited += unknown;
            }
        }
    }
}

/// Returns `true` if another thread causes the wait. This holds for each wait for a lock, and for a wait for
/// I/O that names a thread, as a commit names the thread that flushes for it.
fn is_for_somebody(wait: &WaitSpan) -> bool {
    match wait.kind.class() {
        WaitClass::Lock => true,
        WaitClass::Io => wait.holder != 0,
        WaitClass::Idle => false,
    }
}

/// Returns `true` if the operation around a wait had not ended when the recording ended: no table has its
/// waits.
fn is_in_endless(thread: &ThreadSpans, wait: &WaitSpan) -> bool {
    wait.op.is_some_and(|op| thread.ops[op as usize].end.is_none() && !thread.is_ongoing(op))
}

/// Positions of the last lookups in the waits and the CPU time of a holder.
#[derive(Debug, Clone, Copy, Default)]
struct Cursors {
    wait: usize,
    cpu: usize,
}

/// A part of a wait, and its holder. Pieces of one wait do not overlap.
#[derive(Debug, Clone, Copy)]
struct Piece {
    thread: usize,
    operation: u16,
    begin: u64,
    end: u64,
}

impl BlameSums {
    /// Adds time of a handover, without a recorded holder.
    fn hand_over(&mut self, ns: u64) {
        self.waited += ns;
        self.handover += ns;
    }

    fn add(
        &mut self,
        piece: &Piece,
        waiter: &WaitSpan,
        (holder, waits): (&ThreadSpans, &[&WaitSpan]),
        cursors: &mut Cursors,
    ) {
        let (begin, end) = (piece.begin, piece.end);
        self.waited += end - begin;
        let mut waited = 0;
        let first = partition_point_from(waits, &mut cursors.wait, |w| w.end.unwrap_or(w.begin) <= begin);
        for wait in waits[first..].iter().take_while(|w| w.begin < end) {
            let overlap = wait.end.unwrap_or(wait.begin).min(end) - wait.begin.max(begin);
            waited += overlap;
            if (wait.site, wait.object) == (waiter.site, waiter.object) {
                self.handover += overlap; // the holder has the lock and is still waking up
            } else {
                self.holder_waited += overlap;
                *self.via.entry(wait.site).or_default() += overlap;
            }
        }
        if holder.cpu.is_known() {
            let rest = end - begin - waited.min(end - begin);
            let before = holder.cpu.at(begin, &mut cursors.cpu);
            let ran = (holder.cpu.at(end, &mut cursors.cpu) - before).min(rest);
            self.holder_ran += ran;
            self.holder_off += rest - ran;
            self.holder_preempted += holder.off.between(begin, end).min(rest - ran);
        }
    }
}

/// Returns the thread's ended waits that are not inside another wait, in order of time.
fn outermost_waits(thread: &ThreadSpans) -> Vec<&WaitSpan> {
    thread.waits.iter().filter(|w| w.parent.is_none() && w.end.is_some()).collect()
}

/// The recorded holders of all objects.
struct Holders<'t> {
    threads: &'t [ThreadSpans],
    by_tag: QuickMap<u32, usize>,
    /// (thread, hold) by object, in order of the holds' ends.
    holds: QuickMap<(u32, u64), Vec<(usize, &'t HoldSpan)>>,
}

impl<'t> Holders<'t> {
    fn new(threads: &'t [ThreadSpans]) -> Self {
        let mut holds: QuickMap<_, Vec<_>> = QuickMap::default();
        for (index, thread) in threads.iter().enumerate() {
            for hold in &thread.holds {
                holds.entry((hold.site, hold.object)).or_default().push((index, hold));
            }
        }
        holds.values_mut().for_each(|h| h.sort_by_key(|(thread, hold)| (hold.end, *thread)));
        let by_tag = threads.iter().enumerate().map(|(i, t)| (t.tag, i)).collect();
        Self { threads, by_tag, holds }
    }

    /// Returns the holders of the object during the wait, in order of time.
    fn of(&self, waiter: usize, wait: &WaitSpan, end: u64) -> Vec<Piece> {
        let whole = |thread, operation| vec![Piece { thread, operation, begin: wait.begin, end }];
        if let Some(&index) = self.by_tag.get(&wait.holder).filter(|&&i| i != waiter) {
            let operation = match wait.holder_in {
                0 => self.threads[index].operation_at(wait.begin),
                operation => operation,
            };
            return whole(index, operation);
        }
        let Some(holds) = self.holds.get(&(wait.site, wait.object)) else { return Vec::new() };
        let from = holds.partition_point(|(_, h)| h.end < wait.begin);
        let pieces = pieces(&holds[from..], waiter, wait.begin, end);
        if !pieces.is_empty() {
            return pieces;
        }
        let releases = holds[from..].iter().take_while(|(_, h)| h.end <= end + LATE_NS);
        let nearest = releases
            .filter(|(t, h)| *t != waiter && h.begin == h.end)
            .min_by_key(|(_, h)| h.end.abs_diff(end));
        nearest.map_or_else(Vec::new, |(thread, h)| whole(*thread, h.operation))
    }
}

/// Returns the parts of `begin..end` that other threads' holds cover. Overlapping shared holds count in the
/// order of their ends.
fn pieces(holds: &[(usize, &HoldSpan)], waiter: usize, begin: u64, end: u64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut covered = begin;
    for (thread, hold) in holds.iter().take_while(|(_, h)| h.begin < end) {
        let (from, to) = (hold.begin.max(covered), hold.end.min(end));
        if *thread != waiter && from < to {
            pieces.push(Piece { thread: *thread, operation: hold.operation, begin: from, end: to });
            covered = to;
        }
    }
    pieces
}
