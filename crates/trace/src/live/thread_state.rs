//! The current state of each thread, readable by other threads: its innermost operation, and an operation
//! that has begun and is not recorded yet. Each thread writes its own line of a fixed table, selected by the
//! thread's number, with plain stores.
//!
//! A waiting thread records the current operation of the holder that it waits for (blame). At the end, the
//! collector reports the operations that threads were still in.
//!
//! - **WHERE-1** Threads with numbers that share a line write the same line, and the line contains the number
//!   of its writer. A reader that finds another number has no information. So with more than [`LINES`]
//!   threads some are not visible, and none is taken for another.
//! - **WHERE-2** `now` is written before `since`. A reader that finds `now` unchanged around `since` may
//!   still pair them wrongly if the thread began the same operation again meanwhile; the time is then wrong
//!   by one execution. Relaxed: hints.

use crate::ThreadTag;
use azekura_base::CachePadded;
use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};

const LINES: usize = 1024;

static TABLE: [CachePadded<Line>; LINES] = [const { CachePadded::new(Line::new()) }; LINES];

#[derive(Debug)]
struct Line {
    /// The thread's number, the operation that is not recorded yet (0 for none), and the innermost operation.
    now: AtomicU64,
    /// Ticks of the begin of the operation that is not recorded yet.
    since: AtomicU64,
}

impl Line {
    const fn new() -> Self {
        Self { now: AtomicU64::new(0), since: AtomicU64::new(0) }
    }
}

/// A thread's own line.
#[derive(Debug)]
pub(super) struct ThreadState {
    line: &'static Line,
    /// The thread's number and the operation that is not recorded yet, as in [`Line::now`].
    outside: u64,
}

/// An open operation that its thread has not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unrecorded {
    pub(super) operation: u16,
    pub(super) since: u64,
}

impl ThreadState {
    pub(super) fn of(tag: u32) -> Self {
        let state = Self { line: line(tag), outside: u64::from(tag) << 32 };
        // Clears the state of an earlier simulated thread of the same number that never ended.
        state.is_within(0);
        state
    }

    /// Records that the thread is in `operation`, and that all its open operations are recorded.
    #[inline]
    pub(super) fn is_in(&mut self, operation: u16) {
        self.outside = self.tag();
        self.is_within(operation);
    }

    /// Records that the thread is in `operation` since `since`, and that this operation is not recorded yet.
    #[inline]
    pub(super) fn is_in_unrecorded(&mut self, operation: u16, since: u64) {
        self.outside = self.tag() | u64::from(operation) << 16;
        self.is_within(operation);
        self.line.since.store(since, Relaxed); // WHERE-2
    }

    /// Sets the innermost operation; the rest of the recorded state has not changed.
    #[inline]
    pub(super) fn is_within(&self, innermost: u16) {
        self.line.now.store(self.outside | u64::from(innermost), Relaxed);
    }

    fn tag(&self) -> u64 {
        self.outside >> 32 << 32
    }
}

impl Drop for ThreadState {
    fn drop(&mut self) {
        if self.line.now.load(Relaxed) >> 32 == self.outside >> 32 {
            self.line.now.store(0, Relaxed);
        }
    }
}

fn line(tag: u32) -> &'static Line {
    &TABLE[tag as usize % LINES]
}

/// Returns the innermost operation of a thread; 0 if there is none or it is unknown.
pub(super) fn operation_of(tag: ThreadTag) -> u16 {
    let now = line(tag.0).now.load(Relaxed);
    if tag != ThreadTag::NONE && now >> 32 == u64::from(tag.0) { now as u16 } else { 0 }
}

/// Returns the operation that a thread has begun and not recorded.
pub(super) fn unrecorded(tag: u32) -> Option<Unrecorded> {
    let line = line(tag);
    for _ in 0..8 {
        let now = line.now.load(Relaxed);
        let (operation, since) = ((now >> 16) as u16, line.since.load(Relaxed));
        if now >> 32 != u64::from(tag) || operation == 0 {
            return None;
        }
        if line.now.load(Relaxed) == now {
            return Some(Unrecorded { operation, since });
        }
    }
    None // the thread is busy, and its next events are recorded
}

#[cfg(test)]
mod tests {
    use super::*;

    // Numbers that no thread of this process draws.
    const ONE: u32 = 0x7000_0001;
    const OTHER: u32 = ONE + LINES as u32;

    #[test]
    fn a_thread_is_seen_where_it_is_and_never_for_another() {
        let mut one = ThreadState::of(ONE);
        assert_eq!((operation_of(ThreadTag(ONE)), unrecorded(ONE)), (0, None));
        one.is_in_unrecorded(5, 99);
        one.is_within(7);
        assert_eq!(operation_of(ThreadTag(ONE)), 7);
        assert_eq!(unrecorded(ONE), Some(Unrecorded { operation: 5, since: 99 }));
        one.is_in(7);
        assert_eq!((operation_of(ThreadTag(ONE)), unrecorded(ONE)), (7, None));
        let mut other = ThreadState::of(OTHER);
        other.is_in(9);
        assert_eq!((operation_of(ThreadTag(ONE)), operation_of(ThreadTag(OTHER))), (0, 9));
        drop(one);
        assert_eq!(operation_of(ThreadTag(OTHER)), 9, "the line is another's now");
        drop(other);
        assert_eq!(operation_of(ThreadTag(OTHER)), 0);
        assert_eq!(operation_of(ThreadTag::NONE), 0);
    }
}
