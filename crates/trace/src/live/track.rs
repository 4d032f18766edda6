//! A thread's events with their times, and the thread's CPU time at each of them.
//!
//! The hot path of an event: read the clock, see that the thread has not left its CPU, write 32 bytes. All
//! else is in [`Track::record_switched`].
//!
//! **Anchors.** A *segment* is a stretch of a thread's events without a switch between them; the first
//! carries [`SWITCHED`]. One anchor anywhere in a segment tells the CPU time of all its events. So the 200 ns
//! of an anchor need not be paid where they hurt: the end of a wait begins a critical section, and there we
//! only note that an anchor is owed ([`When::Later`]) and take it at the next event that is outside. If the
//! thread leaves its CPU before that, the segment stays without an anchor and the analyzer interpolates.
//!
//! Nothing here allocates or takes a lock.

use super::clock;
use super::cpu::SwitchWord;
use crate::event::{Event, EventKind, SWITCHED};
use crate::file::{CpuSource, TimeSource};
use crate::ring::{Memory, Producer, Ring};
use std::sync::Arc;

/// Tries to record something between two switches. A thread that leaves its CPU after each instruction, as
/// one does that a debugger steps through, would try for ever.
const MOST_TRIES: usize = 4;

/// The moment at which an event may pay for an anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Before the event: its cost does not count for the span that begins with it.
    Before,
    /// After the event: its cost does not count for the span that ended.
    After,
    /// Not now: others wait for this thread.
    Later,
}

/// One thread's events before they are in its ring.
#[derive(Debug)]
pub struct Track<M: Memory = Arc<Ring>> {
    time: TimeSource,
    cpu: CpuSource,
    switch: SwitchWord,
    /// This segment has no anchor yet.
    owed: bool,
    /// This segment's first event, which is to carry the sign, was not pushed yet.
    unsigned: bool,
    /// Ticks of the last event pushed.
    last: u64,
    producer: Producer<M>,
}

impl<M: Memory> Track<M> {
    /// The calling thread's.
    #[must_use]
    pub fn new(time: TimeSource, cpu: CpuSource, producer: Producer<M>) -> Self {
        let rseq = if cpu == CpuSource::Rseq { SwitchWord::of_thread() } else { None };
        let (cpu, switch) = match (cpu, rseq) {
            (CpuSource::Rseq, Some(word)) => (CpuSource::Rseq, word),
            (CpuSource::None, _) => (CpuSource::None, SwitchWord::never_left()),
            _ => (CpuSource::ThreadClock, SwitchWord::always_left()),
        };
        Self { time, cpu, switch, owed: false, unsigned: false, last: 0, producer }
    }

    /// The source of this thread's CPU time.
    #[must_use]
    pub fn cpu_source(&self) -> CpuSource {
        self.cpu
    }

    /// The clock now.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        clock::ticks(self.time)
    }

    /// Ticks of the last event pushed.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Pushes an event that has its time.
    #[inline]
    pub fn push(&mut self, event: Event) {
        self.last = event.ticks;
        self.producer.push(event);
    }

    /// Answers whether the thread has not left its CPU since the last event, and owes no anchor.
    #[inline]
    pub(super) fn is_steady(&self) -> bool {
        self.switch.is_armed() && !self.owed
    }

    /// Records `event`, with the time now as its ticks.
    #[inline]
    pub fn record(&mut self, when: When, mut event: Event) {
        // The clock first: a switch between it and the look is then seen, and the clock read again.
        event.ticks = self.ticks();
        if self.is_steady() {
            self.push(event);
        } else {
            self.record_switched(when, event);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn record_switched(&mut self, when: When, event: Event) {
        if !self.switch.is_rseq() {
            return self.record_by_thread_clock(when, event);
        }
        match when {
            When::Before => {
                self.anchor();
                self.push_in_segment(event);
            }
            When::After => {
                self.push_in_segment(event);
                if self.owed {
                    self.anchor();
                }
            }
            When::Later => self.push_in_segment(event),
        }
    }

    /// Returns this instant, so that [`Track::has_left`] can determine whether the thread left its CPU since;
    /// `None` if the kernel gives no sign.
    #[inline]
    pub fn watch(&mut self) -> Option<u64> {
        if !self.switch.is_rseq() {
            return None;
        }
        if !self.switch.is_armed() {
            self.switch.arm();
            (self.owed, self.unsigned) = (true, true);
        }
        Some(self.ticks())
    }

    /// Answers whether the thread left its CPU since the last [`Track::watch`].
    #[inline]
    #[must_use]
    pub fn has_left(&self) -> bool {
        !self.switch.is_armed()
    }

    /// Records a span that began at the instant of the last [`Track::watch`], which `begin` carries, and ends
    /// now.
    pub fn record_past(&mut self, mut begin: Event, end: Event) {
        begin.flags |= self.sign();
        self.push(begin);
        self.record(When::After, end);
    }

    /// The sign of a switch, if the segment's first event still has to carry it.
    fn sign(&mut self) -> u8 {
        if std::mem::take(&mut self.unsigned) { SWITCHED } else { 0 }
    }

    /// Pushes the event; if the thread left its CPU, as the first of a new segment.
    fn push_in_segment(&mut self, mut event: Event) {
        event.ticks = self.ticks();
        event.flags |= self.sign();
        for _ in 0..MOST_TRIES {
            if self.switch.is_armed() {
                break;
            }
            self.switch.arm();
            event.flags |= SWITCHED;
            self.owed = true;
            // Again: the event belongs after the switch. A switch since `arm` shows in the next look.
            event.ticks = self.ticks();
        }
        self.push(event);
    }

    /// Takes the anchor that is owed, if one is: for a thread's end, so that its last waits keep their CPU
    /// time.
    pub fn settle(&mut self) {
        if self.owed {
            self.anchor();
        }
    }

    /// Reads the thread clock for this segment. Gives up when disturbed again and again; then it stays owed.
    fn anchor(&mut self) {
        let mut flags = self.sign();
        for _ in 0..MOST_TRIES {
            if !self.switch.is_armed() {
                self.switch.arm();
                flags = SWITCHED;
                self.owed = true;
            }
            let before = self.ticks();
            let object = clock::thread_cpu_ns();
            let ticks = before + self.ticks().saturating_sub(before) / 2;
            if self.switch.is_armed() {
                self.push(Event { flags, object, ..Event::new(ticks, EventKind::Anchor) });
                self.owed = false;
                return;
            }
        }
        self.unsigned = flags != 0;
    }

    /// Without switch detection every event is a segment of its own, with its own anchor.
    fn record_by_thread_clock(&mut self, when: When, mut event: Event) {
        let object = clock::thread_cpu_ns();
        let mut anchor = Event { object, ..Event::new(self.ticks(), EventKind::Anchor) };
        if when == When::Before {
            anchor.flags = SWITCHED;
            event.ticks = anchor.ticks;
            self.push(anchor);
            self.push(event);
        } else {
            event.flags |= SWITCHED;
            anchor.ticks = event.ticks;
            self.push(event);
            self.push(anchor);
        }
    }
}
