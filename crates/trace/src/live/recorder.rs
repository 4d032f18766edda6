//! What one thread needs to record: its ring, its clock, its operation, and its way to know its CPU time.
//!
//! The hot path of an event: read the clock, see that the thread has not left its CPU, write 32 bytes. All else
//! is in [`Recorder::record_switched`].
//!
//! **Anchors.** A *segment* is a stretch of a thread's events without a switch between them; the first carries
//! [`SWITCHED`]. One anchor anywhere in a segment tells the CPU time of all its events. So the 200 ns of an
//! anchor need not be paid where they hurt: the end of a wait begins a critical section, and there we only note
//! that an anchor is owed ([`When::Later`]) and take it at the next event that is outside. If the thread leaves
//! its CPU before that, the segment stays without an anchor and the analyzer interpolates.

use super::clock;
use super::cpu::SwitchWord;
use super::lot::Lot;
use crate::event::{Event, EventKind, SWITCHED, WAITED};
use crate::file::{CpuSource, TimeSource};
use crate::ring::Producer;

/// When an event may pay for an anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// Before the event: its own time is not to be charged to what begins with it.
    Before,
    /// After it: not to be charged to what ended.
    After,
    /// Not now: others wait for this thread.
    Later,
}

/// One thread's recorder in one session.
#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) session: u32,
    time: TimeSource,
    cpu: CpuSource,
    switch: SwitchWord,
    /// This segment has no anchor yet.
    owed: bool,
    /// This segment's first event, which is to carry the sign, was not pushed yet.
    unsigned: bool,
    /// The innermost operation, 0 for none.
    operation: u16,
    producer: Producer,
    lot: Lot,
    /// Where the last wait ended: the hold that follows is recorded.
    pub(super) waited: (u32, u64),
}

impl Recorder {
    pub(super) fn new(
        session: u32,
        time: TimeSource,
        cpu: CpuSource,
        sample_every: u32,
        seed: u32,
        producer: Producer,
    ) -> Self {
        let rseq = if cpu == CpuSource::Rseq { SwitchWord::of_thread() } else { None };
        let (cpu, switch) = match (cpu, rseq) {
            (CpuSource::Rseq, Some(word)) => (CpuSource::Rseq, word),
            (CpuSource::None, _) => (CpuSource::None, SwitchWord::never_left()),
            _ => (CpuSource::ThreadClock, SwitchWord::always_left()),
        };
        Self {
            session,
            time,
            cpu,
            switch,
            owed: false,
            unsigned: false,
            operation: 0,
            producer,
            lot: Lot::new(sample_every, seed),
            waited: (0, 0),
        }
    }

    /// How this thread's CPU time is known.
    pub(super) fn cpu_source(&self) -> CpuSource {
        self.cpu
    }

    pub(super) fn ticks(&self) -> u64 {
        clock::ticks(self.time)
    }

    pub(super) fn operation(&self) -> u16 {
        self.operation
    }

    /// Makes `operation` the innermost one; returns the one before.
    #[inline]
    pub(super) fn set_operation(&mut self, operation: u16) -> u16 {
        std::mem::replace(&mut self.operation, operation)
    }

    /// Records an event of this instant.
    #[inline]
    pub(super) fn record(&mut self, when: When, kind: EventKind, site: u32, object: u64, argument: u64) {
        let flags = 0;
        let event = Event { ticks: 0, kind, flags, operation: self.operation, site, object, argument };
        self.record_event(when, event);
    }

    /// Records `event`, whose ticks are filled in here.
    #[inline]
    pub(super) fn record_event(&mut self, when: When, mut event: Event) {
        // The clock first: a switch between it and the look is then seen, and the clock read again.
        event.ticks = self.ticks();
        if self.switch.is_armed() && !self.owed {
            self.producer.push(event);
        } else {
            self.record_switched(when, event);
        }
    }

    #[cold]
    #[inline(never)]
    fn record_switched(&mut self, when: When, event: Event) {
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

    /// This instant, so that [`Recorder::has_left`] can tell whether the thread left its CPU since; `None` where
    /// the kernel gives no sign.
    #[inline]
    pub(super) fn watch(&mut self) -> Option<u64> {
        if !self.switch.is_rseq() {
            return None;
        }
        if !self.switch.is_armed() {
            self.switch.arm();
            (self.owed, self.unsigned) = (true, true);
        }
        Some(self.ticks())
    }

    /// Whether the thread left its CPU since the last [`Recorder::watch`].
    #[inline]
    pub(super) fn has_left(&self) -> bool {
        !self.switch.is_armed()
    }

    /// Records a wait that began at `begin`, the instant of the last [`Recorder::watch`], and ends now.
    pub(super) fn record_past_wait(&mut self, begin: u64, site: u32, object: u64, argument: u64) {
        let flags = self.sign();
        let operation = self.operation;
        self.producer.push(Event {
            ticks: begin,
            kind: EventKind::WaitBegin,
            flags,
            operation,
            site,
            object,
            argument,
        });
        self.record(When::After, EventKind::WaitEnd, site, object, 0);
    }

    /// The sign of a switch, if the segment's first event still has to carry it.
    fn sign(&mut self) -> u8 {
        if std::mem::take(&mut self.unsigned) { SWITCHED } else { 0 }
    }

    /// Pushes the event; if the thread left its CPU, as the first of a new segment.
    fn push_in_segment(&mut self, mut event: Event) {
        event.ticks = self.ticks();
        event.flags |= self.sign();
        while !self.switch.is_armed() {
            self.switch.arm();
            event.flags |= SWITCHED;
            self.owed = true;
            // Again: the event belongs after the switch. A switch since `arm` shows in the next look.
            event.ticks = self.ticks();
        }
        self.producer.push(event);
    }

    /// Reads the thread clock for this segment. Gives up when disturbed again and again; then it stays owed.
    fn anchor(&mut self) {
        let mut flags = self.sign();
        for _ in 0..4 {
            if !self.switch.is_armed() {
                self.switch.arm();
                flags = SWITCHED;
                self.owed = true;
            }
            let before = self.ticks();
            let object = clock::thread_cpu_ns();
            let ticks = before + self.ticks().saturating_sub(before) / 2;
            if self.switch.is_armed() {
                self.producer.push(Event { flags, object, ..Event::new(ticks, EventKind::Anchor) });
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
            self.producer.push(anchor);
            self.producer.push(event);
        } else {
            event.flags |= SWITCHED;
            anchor.ticks = event.ticks;
            self.producer.push(event);
            self.producer.push(anchor);
        }
    }

    /// Whether the next hold is recorded, of an object that this thread waited for or not: then since when, and its flags.
    #[inline]
    pub(super) fn begin_hold(&mut self, waited: bool) -> Option<(u64, u8)> {
        let flags = self.lot.next() | if waited { WAITED } else { 0 };
        (flags != 0).then(|| (self.ticks(), flags))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.operation != 0 {
            // The thread ends inside an operation whose guard was never dropped (`pthread_exit`).
            self.record(When::After, EventKind::Exit, 0, 0, 0);
        }
        if self.owed {
            self.anchor(); // the thread's last waits keep their CPU time
        }
    }
}
