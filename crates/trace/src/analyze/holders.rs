//! The holders of objects, and the division of a wait among them.
//!
//! In a convoy each wait spans many holds, and each hold is spanned by many waits. A piece of an object's
//! time is the part of a hold that no earlier hold covers. The state of its holder is the same for all waits
//! that span the whole piece, so it is computed once, and summed up by holder. The sums of the pieces in a
//! wait are then differences of two sums, and only the pieces at the wait's borders are computed for it
//! alone.

use super::blame::{BlameSums, Holder, Rows, WAKE_UP_NS};
use super::by_object::{ByObject, Held};
use super::nearby::partition_point_from;
use super::pair::{HoldSpan, ThreadSpans, WaitSpan};
use super::quick::QuickMap;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

/// A release counts up to this time after the wait's end, because the holder may record it a moment late.
const LATE_NS: u64 = 50_000;

/// Largest number of pieces in a wait that are added one by one.
const FEW: usize = 4;

/// A part of an object's time, and its holder.
#[derive(Debug, Clone, Copy)]
struct Piece {
    thread: usize,
    operation: u16,
    begin: u64,
    end: u64,
    /// Index of the thread's hold, if this is a whole hold.
    hold: Option<u32>,
}

/// The state of a thread during one of its holds.
#[derive(Debug, Clone, Copy)]
struct State {
    /// CPU time.
    ran: u64,
    /// Index of the first wait during the hold; `u32::MAX` if there is none.
    first_wait: u32,
}

/// A site and an object.
type Instance = (u32, u64);

/// A wait that is not inside another one, without the data that a search does not need.
#[derive(Debug, Clone, Copy)]
struct Outermost {
    begin: u64,
    end: u64,
    instance: Instance,
}

/// The recorded holders of all objects.
pub(super) struct Holders<'t> {
    threads: &'t [ThreadSpans],
    hold_sampling: u32,
    by_tag: QuickMap<u32, usize>,
    by_object: &'t ByObject,
    /// By number of the object.
    objects: Vec<Object>,
    /// By thread: its ended waits that are not inside another wait, in order of time.
    waits: Vec<Vec<Outermost>>,
    /// By thread: positions of the last lookups in its waits and its CPU time.
    cursors: RefCell<Vec<(usize, usize)>>,
    /// By thread: its state during each of its holds. They are computed in order of time, so that lookups are
    /// near each other.
    states: Vec<OnceCell<Vec<State>>>,
}

/// An object with holds.
#[derive(Default)]
struct Object {
    is_shared: bool,
    pieces: OnceCell<Vec<Piece>>,
    /// Numbers of the first piece and of the one after the last piece in the last wait.
    near: Cell<(usize, usize)>,
    sums: OnceCell<Sums>,
}

/// Sums over the pieces of an object, by holder.
#[derive(Debug, Default)]
struct Sums {
    by_holder: BTreeMap<Holder, OfHolder>,
    /// Time with an unknown holder in the gaps before the first pieces, by their number.
    unknown: Vec<u64>,
}

/// The pieces of one holder.
#[derive(Debug, Default)]
struct OfHolder {
    /// Their numbers.
    numbers: Vec<u32>,
    /// Sums over all of them up to each one, without `via`.
    sums: Vec<BlameSums>,
    /// By site: numbers of the pieces in which the holder waited there, and the time up to each one.
    via: BTreeMap<u32, (Vec<u32>, Vec<u64>)>,
}

impl<'t> Holders<'t> {
    pub(super) fn new(threads: &'t [ThreadSpans], by_object: &'t ByObject, hold_sampling: u32) -> Self {
        let object = |number| {
            let holds = by_object.holds(number);
            // A semaphore's holders have shares without the flag. Clocks of two threads may differ a little.
            let overlap = |pair: &[Held]| pair[1].begin + WAKE_UP_NS < pair[0].end;
            let is_shared = holds.iter().any(|held| held.shared) || holds.windows(2).any(overlap);
            Object { is_shared, ..Object::default() }
        };
        let outermost = |thread: &'t ThreadSpans| {
            let waits = thread.waits.iter().filter(|w| w.parent.is_none());
            let ended = waits.filter_map(|w| {
                let instance = (w.site, w.object);
                w.end.map(|end| Outermost { begin: w.begin, end, instance })
            });
            ended.collect()
        };
        Self {
            threads,
            hold_sampling,
            by_tag: threads.iter().enumerate().map(|(i, t)| (t.tag, i)).collect(),
            by_object,
            objects: (0..by_object.len()).map(object).collect(),
            waits: threads.iter().map(outermost).collect(),
            cursors: RefCell::new(vec![(0, 0); threads.len()]),
            states: threads.iter().map(|_| OnceCell::new()).collect(),
        }
    }

    /// Divides a wait of the thread `waiter` among the holders of its object, which has this number,
    /// meanwhile. Returns the time with an unknown holder.
    pub(super) fn divide(
        &self,
        (waiter, wait, end): (usize, &WaitSpan, u64),
        number: usize,
        rows: &mut Rows<'_>,
    ) -> u64 {
        let (begin, instance) = (wait.begin, (wait.site, wait.object));
        let whole = |thread, operation| Piece { thread, operation, begin, end, hold: None };
        if let Some(&index) = self.by_tag.get(&wait.holder).filter(|&&i| i != waiter) {
            let operation = match wait.holder_in {
                0 => self.threads[index].operation_at(begin),
                operation => operation,
            };
            return self.add_all(&[whole(index, operation)], None, (begin, end), instance, rows);
        }
        let none = Object::default();
        let (object, holds) = (self.objects.get(number).unwrap_or(&none), self.by_object.holds(number));
        let pieces = object.pieces.get_or_init(|| pieces(holds, None));
        let (mut near, mut near_end) = object.near.get();
        let mut first = partition_point_from(pieces, &mut near, |piece| piece.end <= begin);
        let mut last = partition_point_from(pieces, &mut near_end, |piece| piece.begin < end);
        object.near.set((near, near_end));
        let from = || holds.partition_point(|held| held.end < begin);
        if object.is_shared && pieces[first..last].iter().any(|piece| piece.thread == waiter) {
            // The thread has a share itself, which does not delay it, but covers other holds.
            let others = pieces_of_others(&holds[from()..], waiter, begin, end);
            if !others.is_empty() {
                return self.add_all(&others, None, (begin, end), instance, rows);
            }
            last = first;
        }
        // The thread's own holds before and after the wait.
        while first < last && pieces[first].thread == waiter {
            first += 1;
        }
        while first < last && pieces[last - 1].thread == waiter {
            last -= 1;
        }
        if first < last {
            let sums = (last - first > FEW)
                .then(|| (object.sums.get_or_init(|| Sums::new(self, pieces, instance)), first));
            return self.add_all(&pieces[first..last], sums, (begin, end), instance, rows);
        }
        let releases = holds[from()..].iter().take_while(|held| held.end <= end + LATE_NS);
        let nearest = releases
            .filter(|held| held.thread as usize != waiter && held.begin == held.end)
            .min_by_key(|held| held.end.abs_diff(end));
        if let Some(held) = nearest {
            return self.add_all(
                &[whole(held.thread as usize, held.operation)],
                None,
                (begin, end),
                instance,
                rows,
            );
        }
        rows.of(None).count += 1;
        end - begin
    }

    /// Adds the pieces of a wait, with the gaps between and after them. `sums` are those of the object, with
    /// the number of the first piece there. Returns the time with an unknown holder.
    fn add_all(
        &self,
        pieces: &[Piece],
        sums: Option<(&Sums, usize)>,
        (begin, end): (u64, u64),
        instance: Instance,
        rows: &mut Rows<'_>,
    ) -> u64 {
        let clipped = |piece: &Piece| {
            let is_inside = begin <= piece.begin && piece.end <= end;
            let hold = piece.hold.filter(|_| is_inside);
            Piece { begin: piece.begin.max(begin), end: piece.end.min(end), hold, ..*piece }
        };
        let Some((first, others)) = pieces.split_first() else { return end - begin };
        let first = clipped(first);
        self.add(&first, instance, rows.of(Some(self.holder(&first))));
        let (mut unknown, mut at, mut last) = (first.begin - begin, first.end, first);
        let mut others = others;
        if let Some((sums, number)) = sums
            && let Some((border, inner)) = others.split_last()
            && sums.by_holder.len() * 2 <= inner.len()
        {
            unknown += sums.add(number + 1..number + 1 + inner.len(), rows);
            at = inner.last().map_or(at, |piece| piece.end);
            others = std::slice::from_ref(border);
        }
        for piece in others {
            last = clipped(piece);
            let row = rows.of(Some(self.holder(&last)));
            unknown += self.add_gap(last.begin - at, row);
            self.add(&last, instance, row);
            at = last.end;
        }
        let row = rows.of(Some(self.holder(&last)));
        row.count += 1;
        unknown + self.add_gap(end - at, row)
    }

    fn holder(&self, piece: &Piece) -> Holder {
        match piece.operation {
            0 => Holder::Thread(self.threads[piece.thread].tag),
            operation => Holder::In(operation),
        }
    }

    /// Adds a piece of waits for `instance`, and the state of its holder meanwhile.
    fn add(&self, piece: &Piece, instance: Instance, sums: &mut BlameSums) {
        let (begin, end) = (piece.begin, piece.end);
        let (holder, waits) = (&self.threads[piece.thread], &self.waits[piece.thread]);
        let state = piece.hold.map(|hold| self.states(piece.thread)[hold as usize]);
        let mut cursors = self.cursors.borrow_mut();
        let (near_wait, near_cpu) = &mut cursors[piece.thread];
        sums.waited += end - begin;
        let mut waited = 0;
        let first = match state {
            Some(state) => (state.first_wait as usize).min(waits.len()),
            None => partition_point_from(waits, near_wait, |w| w.end <= begin),
        };
        for wait in waits[first..].iter().take_while(|w| w.begin < end) {
            let overlap = wait.end.min(end) - wait.begin.max(begin);
            waited += overlap;
            if wait.instance == instance {
                sums.handover += overlap; // the holder has the lock and is still waking up
            } else {
                sums.holder_waited += overlap;
                *sums.via.entry(wait.instance.0).or_default() += overlap;
            }
        }
        if holder.cpu.is_known() {
            let rest = end - begin - waited.min(end - begin);
            let ran =
                state.map_or_else(|| holder.cpu.between(begin, end, near_cpu), |state| state.ran).min(rest);
            sums.holder_ran += ran;
            sums.holder_off += rest - ran;
            sums.holder_preempted += holder.off.between(begin, end).min(rest - ran);
        }
    }

    /// Returns a thread's state during each of its holds.
    fn states(&self, thread: usize) -> &[State] {
        self.states[thread].get_or_init(|| {
            let (spans, waits) = (&self.threads[thread], &self.waits[thread]);
            let (mut near_wait, mut near_cpu) = (0, 0);
            let state = |hold: &HoldSpan| {
                let first = partition_point_from(waits, &mut near_wait, |w| w.end <= hold.begin);
                let has_wait = waits.get(first).is_some_and(|wait| wait.begin < hold.end);
                let first_wait = if has_wait { first as u32 } else { u32::MAX };
                State { ran: spans.cpu.between(hold.begin, hold.end, &mut near_cpu), first_wait }
            };
            spans.holds.iter().map(state).collect()
        })
    }

    /// Adds a gap before or after a piece: a handover, or time with an unknown holder, which is returned.
    fn add_gap(&self, gap: u64, sums: &mut BlameSums) -> u64 {
        if self.hold_sampling > 1 && gap > WAKE_UP_NS {
            return gap;
        }
        sums.waited += gap;
        sums.handover += gap;
        0
    }
}

/// Returns the pieces of the holds, which are in the order of their ends; an overlap of shared holds counts
/// for the one that ends first.
fn pieces(holds: &[Held], without: Option<usize>) -> Vec<Piece> {
    let (mut pieces, mut covered) = (Vec::new(), 0);
    for held in holds.iter().filter(|held| Some(held.thread as usize) != without) {
        let (begin, end) = (held.begin.max(covered), held.end);
        if begin < end {
            let (thread, operation) = (held.thread as usize, held.operation);
            let hold = (begin == held.begin).then_some(held.hold);
            pieces.push(Piece { thread, operation, begin, end, hold });
            covered = end;
        }
    }
    pieces
}

/// Returns the pieces between two times without the holds of one thread.
fn pieces_of_others(holds: &[Held], waiter: usize, begin: u64, end: u64) -> Vec<Piece> {
    let until = holds.iter().take_while(|held| held.begin < end).count();
    let mut pieces = pieces(&holds[..until], Some(waiter));
    pieces.retain(|piece| piece.end > begin && piece.begin < end);
    pieces
}

impl Sums {
    fn new(holders: &Holders<'_>, pieces: &[Piece], instance: Instance) -> Self {
        let mut all = Self { unknown: Vec::with_capacity(pieces.len() + 1), ..Self::default() };
        let (mut unknown, mut at) = (0_u64, 0);
        for (number, piece) in (0..).zip(pieces) {
            all.unknown.push(unknown);
            let mut sums = BlameSums::default();
            unknown += holders.add_gap(piece.begin - at, &mut sums);
            holders.add(piece, instance, &mut sums);
            at = piece.end;
            let of = all.by_holder.entry(holders.holder(piece)).or_default();
            for (site, ns) in std::mem::take(&mut sums.via) {
                let (numbers, until) = of.via.entry(site).or_default();
                numbers.push(number);
                until.push(until.last().copied().unwrap_or(0) + ns);
            }
            if let Some(before) = of.sums.last() {
                sums.merge(before);
            }
            of.numbers.push(number);
            of.sums.push(sums);
        }
        all.unknown.push(unknown);
        all
    }

    /// Adds the pieces with these numbers, with the gaps before them. Returns the time with an unknown
    /// holder.
    fn add(&self, numbers: Range<usize>, rows: &mut Rows<'_>) -> u64 {
        for (holder, of) in &self.by_holder {
            let within = place(&of.numbers, &numbers);
            if within.is_empty() {
                continue;
            }
            let row = rows.of(Some(*holder));
            row.merge(&of.sums[within.end - 1]);
            if let Some(before) = within.start.checked_sub(1).map(|before| &of.sums[before]) {
                row.subtract(before);
            }
            for (site, (pieces, until)) in &of.via {
                let within = place(pieces, &numbers);
                if !within.is_empty() {
                    let before = within.start.checked_sub(1).map_or(0, |before| until[before]);
                    *row.via.entry(*site).or_default() += until[within.end - 1] - before;
                }
            }
        }
        self.unknown[numbers.end] - self.unknown[numbers.start]
    }
}

/// Returns the range of the numbers that are in `wanted`.
fn place(numbers: &[u32], wanted: &Range<usize>) -> Range<usize> {
    let first = numbers.partition_point(|number| (*number as usize) < wanted.start);
    let count = numbers[first..].partition_point(|number| (*number as usize) < wanted.end);
    first..first + count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::blame::Blame;

    const LOCK: Instance = (1, 7);

    #[test]
    fn sums_of_pieces_give_what_the_pieces_give() {
        let mut state = 0x5eed_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut threads: Vec<ThreadSpans> =
            (1..=5).map(|tag| ThreadSpans { tag, ..ThreadSpans::default() }).collect();
        let mut at = 0;
        for _ in 0..400 {
            let begin = at + random(3) * random(60_000);
            at = begin + 1 + random(5_000);
            let thread = &mut threads[1 + random(4) as usize];
            let (site, object) = LOCK;
            let operation = random(3) as u16;
            let hold = HoldSpan { site, object, operation, begin, end: at, weight: 1, shared: false };
            thread.holds.push(hold);
            // The holder waits for a device, or is still waking up.
            let inner = if random(2) == 0 { LOCK } else { (2 + random(2) as u32, 9) };
            thread.waits.push(WaitSpan::for_latch(inner, begin, begin + (at - begin) / 2));
        }
        let by_object = ByObject::new(&threads);
        let holders = Holders::new(&threads, &by_object, 64);
        let number = by_object.number(LOCK).unwrap();
        let all = pieces(by_object.holds(number), None);
        for _ in 0..500 {
            let begin = random(at);
            let end = begin + 1 + random(400_000);
            let [mut by_sums, mut one_by_one] = [Blame::default(), Blame::default()];
            let mut rows = Rows::new(&mut by_sums, 1, LOCK.0);
            let unknown = holders.divide((0, &WaitSpan::for_latch(LOCK, begin, end), end), number, &mut rows);
            let during: Vec<Piece> =
                all.iter().filter(|piece| piece.end > begin && piece.begin < end).copied().collect();
            if during.is_empty() {
                continue;
            }
            let mut rows = Rows::new(&mut one_by_one, 1, LOCK.0);
            let expected = holders.add_all(&during, None, (begin, end), LOCK, &mut rows);
            let sorted = |rows: Blame| {
                let mut rows: Vec<_> = rows.into_iter().collect();
                rows.sort_by_key(|(key, _)| *key);
                format!("{rows:?}")
            };
            assert_eq!((unknown, sorted(by_sums)), (expected, sorted(one_by_one)), "{begin} to {end}");
        }
    }
}
