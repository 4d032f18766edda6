//! The holds of a window by object, and its waits in order of time, which blame and the lock instances share.

use super::bounded::Instance;
use super::pair::{ThreadSpans, WaitSpan};
use super::quick::QuickMap;
use crate::WaitClass;
use std::ops::Range;

/// One hold of an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub(super) begin: u64,
    pub(super) end: u64,
    /// Index of the thread.
    pub(super) thread: u32,
    /// Index of the hold among those of its thread.
    pub(super) hold: u32,
    pub(super) operation: u16,
    pub(super) shared: bool,
}

impl Held {
    /// Returns `true` for an exclusive hold that is not empty.
    pub(super) fn is_exclusive(&self) -> bool {
        !self.shared && self.begin < self.end
    }
}

/// A wait that has ended. The order of the fields is the order in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ended {
    begin: u64,
    /// Index of the thread.
    pub(super) thread: u32,
    /// Index of the wait among those of its thread.
    pub(super) wait: u32,
    /// Number of the object; [`ByObject::len`] without holds.
    pub(super) number: u32,
}

/// The holds of all threads by object.
#[derive(Debug, Default)]
pub(super) struct ByObject {
    /// Numbers of the objects.
    numbers: QuickMap<Instance, u32>,
    /// By number: the object's range in `holds`.
    ranges: Vec<Range<usize>>,
    /// In each range, in order of the ends, then of the threads.
    holds: Vec<Held>,
    /// The ended waits that another thread causes, in order of their begins. So successive lookups in the
    /// data of a thread or an object are near each other.
    pub(super) waits: Vec<Ended>,
}

impl ByObject {
    pub(super) fn new(threads: &[ThreadSpans]) -> Self {
        let mut by_object = Self::default();
        let all = || threads.iter().flat_map(|thread| &thread.holds);
        let mut counts: Vec<usize> = Vec::new();
        let mut numbers: Vec<u32> = Vec::with_capacity(threads.iter().map(|thread| thread.holds.len()).sum());
        for hold in all() {
            let next = counts.len() as u32;
            let number = *by_object.numbers.entry((hold.site, hold.object)).or_insert(next);
            if number == next {
                counts.push(0);
            }
            counts[number as usize] += 1;
            numbers.push(number);
        }
        let mut begin = 0;
        for count in counts {
            by_object.ranges.push(begin..begin);
            begin += count;
        }
        let none = Held { begin: 0, end: 0, thread: 0, hold: 0, operation: 0, shared: false };
        by_object.holds.resize(numbers.len(), none);
        let mut numbers = numbers.into_iter();
        for (thread, spans) in (0..).zip(threads) {
            for ((hold, span), number) in (0..).zip(&spans.holds).zip(&mut numbers) {
                let place = &mut by_object.ranges[number as usize].end;
                let (begin, end, operation, shared) = (span.begin, span.end, span.operation, span.shared);
                by_object.holds[*place] = Held { begin, end, thread, hold, operation, shared };
                *place += 1;
            }
        }
        for range in &by_object.ranges {
            by_object.holds[range.clone()].sort_by_key(|held| (held.end, held.thread));
        }
        for (thread, spans) in (0..).zip(threads) {
            for (wait, span) in (0..).zip(&spans.waits).filter(|(_, span)| is_for_somebody(span)) {
                let number = by_object.numbers.get(&(span.site, span.object)).copied();
                let number = number.unwrap_or(by_object.ranges.len() as u32);
                by_object.waits.push(Ended { begin: span.begin, thread, wait, number });
            }
        }
        by_object.waits.sort(); // each thread's are in order, which this sort uses
        by_object
    }

    /// Returns the number of an object with holds. Numbers are below [`ByObject::len`].
    #[cfg(test)]
    pub(super) fn number(&self, instance: Instance) -> Option<usize> {
        self.numbers.get(&instance).map(|number| *number as usize)
    }

    /// Returns the number of objects.
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns the holds of an object, none for other numbers, in order of the ends, then of the threads.
    pub(super) fn holds(&self, number: usize) -> &[Held] {
        self.ranges.get(number).map_or(&[], |range| &self.holds[range.clone()])
    }
}

/// Returns `true` if the wait has ended and another thread causes it. This holds for each wait for a lock,
/// and for a wait for I/O that names a thread, as a commit names the thread that flushes for it.
fn is_for_somebody(wait: &WaitSpan) -> bool {
    wait.end.is_some()
        && match wait.kind.class() {
            WaitClass::Lock => true,
            WaitClass::Io => wait.holder != 0,
            WaitClass::Idle => false,
        }
}
