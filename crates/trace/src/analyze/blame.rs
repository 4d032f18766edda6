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

use super::convoy::{Convoy, LEAST_HOLDS};
use super::nearby::partition_point_from;
use super::pair::{HoldSpan, ThreadSpans, WaitSpan};
use super::quick::QuickMap;
use crate::WaitClass;
use std::cell::OnceCell;
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
    blame_with(threads, hold_sampling, LEAST_HOLDS, rows);
}

/// Adds a window's waits; for a wait with more than `least_holds` holds, from the sums over them.
pub(super) fn blame_with(threads: &[ThreadSpans], hold_sampling: u32, least_holds: usize, rows: &mut Blame) {
    let holders = Holders::new(threads, hold_sampling, least_holds);
    for (index, thread) in threads.iter().enumerate() {
        let mut cursors = vec![Cursors::default(); threads.len()];
        for wait in &thread.waits {
            let is_counted = is_for_somebody(wait) && !is_in_endless(thread, wait);
            let Some(end) = wait.end.filter(|_| is_counted) else { continue };
            let operation = wait.op.map_or(0, |op| thread.ops[op as usize].operation);
            let mut row = |holder: Option<Holder>, add: &mut dyn FnMut(&mut BlameSums)| {
                add(rows.entry((operation, wait.site, holder)).or_default());
            };
            let unknown = match holders.convoy(index, wait, end) {
                Some((convoy, first, last)) => {
                    let clipped = |at: usize| {
                        let piece = convoy.piece(at);
                        Piece { begin: piece.begin.max(wait.begin), end: piece.end.min(end), ..piece }
                    };
                    let mut unknown = convoy.unknown(first + 1, last);
                    convoy.for_each_holder(first + 1, last, &mut |holder, sums: &BlameSums| {
                        row(Some(holder), &mut |row| row.merge(sums));
                    });
                    unknown += holders.add(wait, clipped(first), 0, &mut cursors, &mut row);
                    let (piece, gap) = (clipped(last), convoy.piece(last).begin - convoy.piece(last - 1).end);
                    unknown += holders.add(wait, piece, gap, &mut cursors, &mut row);
                    unknown += holders.finish(piece, end, &mut row);
                    unknown + (clipped(first).begin - wait.begin)
                }
                None => {
                    let pieces = holders.of(index, wait, end);
                    let (mut at, mut unknown) = (wait.begin, 0);
                    for (i, piece) in pieces.iter().enumerate() {
                        let gap = if i > 0 { piece.begin - at } else { 0 };
                        unknown += holders.add(wait, *piece, gap, &mut cursors, &mut row);
                        at = piece.end;
                    }
                    // Time before the first recorded hold, or the whole wait.
                    unknown += pieces.first().map_or(end, |p| p.begin) - wait.begin;
                    match pieces.last() {
                        Some(last) => unknown += holders.finish(*last, end, &mut row),
                        None => row(None, &mut |row| row.count += 1),
                    }
                    unknown
                }
            };
            if unknown > 0 {
                row(None, &mut |row| row.waited += unknown);
            }
        }
    }
}

/// Calls its second argument with the row of a holder.
type Row<'r> = &'r mut dyn FnMut(Option<Holder>, &mut dyn FnMut(&mut BlameSums));

impl Holders<'_> {
    fn holder(&self, piece: &Piece) -> Holder {
        match piece.operation {
            0 => Holder::Thread(self.threads[piece.thread].tag),
            operation => Holder::In(operation),
        }
    }

    /// Returns the known and the unknown part of a gap between two holds.
    fn gap(&self, gap: u64) -> (u64, u64) {
        if self.hold_sampling > 1 && gap > WAKE_UP_NS { (0, gap) } else { (gap, 0) }
    }

    /// Adds a piece of a wait and the gap before it. Returns the unknown part of the gap.
    fn add(&self, wait: &WaitSpan, piece: Piece, gap: u64, cursors: &mut [Cursors], row: Row<'_>) -> u64 {
        let (handover, unknown) = self.gap(gap);
        let held = (&self.threads[piece.thread], &*self.outermost[piece.thread]);
        row(Some(self.holder(&piece)), &mut |row| {
            row.hand_over(handover);
            row.add(&piece, (wait.site, wait.object), held, &mut cursors[piece.thread]);
        });
        unknown
    }

    /// Adds the end of a wait after its last piece. Returns the unknown part of it.
    fn finish(&self, last: Piece, end: u64, row: Row<'_>) -> u64 {
        let (handover, unknown) = self.gap(end - last.end);
        row(Some(self.holder(&last)), &mut |row| {
            row.count += 1;
            row.hand_over(handover);
        });
        unknown
    }

    /// Returns the convoy during a wait with many holds, and the indexes of its first and its last piece.
    fn convoy(&self, waiter: usize, wait: &WaitSpan, end: u64) -> Option<(&Convoy, usize, usize)> {
        if self.by_tag.get(&wait.holder).is_some_and(|index| *index != waiter) {
            return None; // the lock named the holder
        }
        let held = self.holds.get(&(wait.site, wait.object))?;
        let from = held.holds.partition_point(|(_, h)| h.end < wait.begin);
        if held.holds.get(from.saturating_add(self.least_holds)).is_none_or(|(_, h)| h.end > end) {
            return None;
        }
        let convoy = held.convoy.get_or_init(|| self.new_convoy((wait.site, wait.object), &held.holds));
        let (first, after) = convoy.during(waiter, wait.begin, end)?;
        (after - first >= self.least_holds).then(|| (convoy, first, after - 1))
    }

    fn new_convoy(&self, object: (u32, u64), holds: &[(usize, &HoldSpan)]) -> Convoy {
        let mut convoy = Convoy::default();
        let mut cursors = vec![Cursors::default(); self.threads.len()];
        for (thread, hold) in holds {
            let (begin, end) = (hold.begin.max(convoy.end()), hold.end);
            if begin < end {
                let piece = Piece { thread: *thread, operation: hold.operation, begin, end };
                let (handover, unknown) = self.gap(begin - convoy.end());
                let held = (&self.threads[*thread], &*self.outermost[*thread]);
                let mut sums = BlameSums::default();
                sums.hand_over(handover);
                sums.add(&piece, object, held, &mut cursors[*thread]);
                convoy.push(piece, self.holder(&piece), &sums, unknown);
            }
        }
        convoy
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
pub(super) struct Piece {
    pub(super) thread: usize,
    pub(super) operation: u16,
    pub(super) begin: u64,
    pub(super) end: u64,
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
        object: (u32, u64),
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
            if (wait.site, wait.object) == object {
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
    hold_sampling: u32,
    least_holds: usize,
    by_tag: QuickMap<u32, usize>,
    holds: QuickMap<(u32, u64), Held<'t>>,
    /// The outermost waits of each thread.
    outermost: Vec<Vec<&'t WaitSpan>>,
}

/// The holds of one object.
#[derive(Default)]
struct Held<'t> {
    /// (thread, hold), in order of the holds' ends.
    holds: Vec<(usize, &'t HoldSpan)>,
    convoy: OnceCell<Convoy>,
}

impl<'t> Holders<'t> {
    fn new(threads: &'t [ThreadSpans], hold_sampling: u32, least_holds: usize) -> Self {
        let mut holds: QuickMap<_, Held<'t>> = QuickMap::default();
        for (index, thread) in threads.iter().enumerate() {
            for hold in &thread.holds {
                holds.entry((hold.site, hold.object)).or_default().holds.push((index, hold));
            }
        }
        holds.values_mut().for_each(|held| held.holds.sort_by_key(|(thread, hold)| (hold.end, *thread)));
        let outermost = threads.iter().map(outermost_waits).collect();
        let by_tag = threads.iter().enumerate().map(|(i, t)| (t.tag, i)).collect();
        Self { threads, hold_sampling, least_holds, by_tag, holds, outermost }
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
        let Some(Held { holds, .. }) = self.holds.get(&(wait.site, wait.object)) else { return Vec::new() };
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
