//! A thread's events with their times, and the thread's CPU time at each of them.
//!
//! The hot path of an event reads the clock, checks that the thread has not left its CPU, and writes 32
//! bytes. Everything else is in [`Track::record_switched`].
//!
//! **Anchors.** A *segment* is a sequence of a thread's events without a switch between them. Its first event
//! has the flag [`SWITCHED`]. One anchor anywhere in a segment gives the CPU time of all its events. So the
//! 200 ns of an anchor need not delay a critical section: the end of a wait, which begins one, only notes
//! that an anchor is owed ([`When::Later`]). The anchor is taken at a later event. If the thread leaves its
//! CPU before that, the segment stays without an anchor, and the analyzer interpolates.
//!
//! Nothing here allocates or takes a lock.

use super::clock;
use super::cpu::SwitchWord;
use crate::event::{Event, EventKind, SWITCHED};
use crate::file::{CpuSource, TimeSource};
use crate::ring::{Memory, Producer, Ring};
use std::sync::Arc;

/// Largest number of tries to record an event or anchor between two switches. Without a limit, a thread that
/// leaves its CPU after each instruction (in a debugger) would try forever.
const MOST_TRIES: usize = 4;

/// The moment at which an event may take an anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Before the event: the anchor's cost is not part of the span that begins with the event.
    Before,
    /// After the event: the anchor's cost is not part of the span that ended.
    After,
    /// Later, because other threads may wait for this one.
    Later,
}

/// One thread's events before they are in its ring.
#[derive(Debug)]
pub struct Track<M: Memory = Arc<Ring>> {
    time: TimeSource,
    cpu: CpuSource,
    switch: SwitchWord,
    /// `true` if this segment has no anchor yet.
    owed: bool,
    /// `true` if this segment's first event, which gets the flag [`SWITCHED`], was not pushed yet.
    unsigned: bool,
    /// Ticks of the last pushed event.
    last: u64,
    producer: Producer<M>,
}

impl<M: Memory> Track<M> {
    /// Returns the track of the calling thread.
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

    /// Returns the source of this thread's CPU time.
    #[must_use]
    pub fn cpu_source(&self) -> CpuSource {
        self.cpu
    }

    /// Returns the clock's current reading.
    #[must_use]
    pub fn ticks(&self) -> u64 {
        clock::ticks(self.time)
    }

    /// Returns the ticks of the last pushed event.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Pushes an event with its time already set.
    #[inline]
    pub fn push(&mut self, event: Event) {
        self.last = event.ticks;
        self.producer.push(event);
    }

    /// Returns `true` if the thread has not left its CPU since the last event and no anchor is owed.
    #[inline]
    pub(super) fn is_steady(&self) -> bool {
        self.switch.is_armed() && !self.owed
    }

    /// Records `event` with the current time as its ticks.
    #[inline]
    pub fn record(&mut self, when: When, mut event: Event) {
        // The clock is read first: a switch between this reading and the check is then detected, and the
        // clock is read again.
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

    /// Returns the current time and makes [`Track::has_left`] detect later switches; `None` if the kernel
    /// does not report switches.
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

    /// Returns `true` if the thread left its CPU since the last [`Track::watch`].
    #[inline]
    #[must_use]
    pub fn has_left(&self) -> bool {
        !self.switch.is_armed()
    }

    /// Records a span that ends now and began at the last [`Track::watch`]; `begin` has the time of that
    /// call.
    pub fn record_past(&mut self, mut begin: Event, end: Event) {
        begin.flags |= self.sign();
        self.push(begin);
        self.record(When::After, end);
    }

    /// Returns the flag [`SWITCHED`] if the segment's first event was not pushed yet.
    fn sign(&mut self) -> u8 {
        if std::mem::take(&mut self.unsigned) { SWITCHED } else { 0 }
    }

    /// Pushes the event. If the thread left its CPU, the event is the first one of a new segment.
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
            // The clock is read again, because the event belongs after the switch. The next check detects a
            // switch since `arm`.
            event.ticks = self.ticks();
        }
        self.push(event);
    }

    /// Takes an owed anchor, if there is one. Called at a thread's end, so that its last waits have CPU time.
    pub fn take_owed_anchor(&mut self) {
        if self.owed {
            self.anchor();
        }
    }

    /// Reads the thread clock for this segment. After [`MOST_TRIES`] interrupted tries, the anchor may stay
    /// owed.
    fn anchor(&mut self) {
        self.anchor_by(clock::thread_cpu_ns);
    }

    /// Takes an anchor with a reading of the thread clock by `cpu_ns`.
    ///
    /// The system call that reads the clock also updates the account of the thread's time slice, so slices
    /// often end there. The reading is then an anchor of the segment that ended, because the thread clock
    /// stands still while the thread is off the CPU. The loop continues with the next segment.
    fn anchor_by(&mut self, mut cpu_ns: impl FnMut() -> u64) {
        let mut flags = self.sign();
        for _ in 0..MOST_TRIES {
            if !self.switch.is_armed() {
                self.switch.arm();
                flags = SWITCHED;
                self.owed = true;
            }
            let before = self.ticks();
            let begins_in_segment = self.switch.is_armed();
            let object = cpu_ns();
            let ticks = before + self.ticks().saturating_sub(before) / 2;
            let ends_in_segment = self.switch.is_armed();
            if begins_in_segment {
                let ticks = if ends_in_segment { ticks } else { before };
                self.push(Event { flags, object, ..Event::new(ticks, EventKind::Anchor) });
                (flags, self.owed) = (0, false);
            }
            if ends_in_segment {
                return;
            }
        }
        self.unsigned = flags != 0;
    }

    /// Records an event without switch detection: every event is a segment with its own anchor.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::ring;

    /// Records an operation that a switch interrupts. The system calls that read the thread clock return
    /// `readings`; a switch follows each one except the last. Returns the kind, the flags and the object of
    /// each event.
    fn recorded(when: When, readings: &[u64]) -> Vec<(EventKind, u8, u64)> {
        let (producer, mut consumer) = ring(16);
        let mut word = 0;
        let word = &raw mut word;
        let mut track = Track {
            time: TimeSource::Monotonic,
            cpu: CpuSource::Rseq,
            switch: SwitchWord::of_test(word),
            owed: false,
            unsigned: false,
            last: 0,
            producer,
        };
        let mut left = readings.iter();
        let cpu_ns = || {
            let reading = *left.next().expect("a further reading");
            if !left.as_slice().is_empty() {
                // SAFETY: the word is alive, and only this thread uses it.
                unsafe { word.write_volatile(0) };
            }
            reading
        };
        let event = Event::new(0, EventKind::Exit);
        if when == When::Before {
            track.anchor_by(cpu_ns);
            track.push_in_segment(event);
        } else {
            track.push_in_segment(event);
            track.anchor_by(cpu_ns);
        }
        assert!(track.is_steady());
        let mut events = Vec::new();
        consumer.drain(|event| events.push(event));
        assert!(events.is_sorted_by_key(|event| event.ticks), "{events:?}");
        events.iter().map(|event| (event.kind, event.flags, event.object)).collect()
    }

    #[test]
    fn a_switch_while_the_thread_clock_is_read_leaves_no_segment_without_an_anchor() {
        use EventKind::{Anchor, Exit};
        assert_eq!(recorded(When::After, &[10]), [(Exit, SWITCHED, 0), (Anchor, 0, 10)]);
        assert_eq!(
            recorded(When::After, &[10, 11]),
            [(Exit, SWITCHED, 0), (Anchor, 0, 10), (Anchor, SWITCHED, 11)]
        );
        assert_eq!(
            recorded(When::Before, &[10, 11]),
            [(Anchor, SWITCHED, 10), (Anchor, SWITCHED, 11), (Exit, 0, 0)]
        );
    }
}
