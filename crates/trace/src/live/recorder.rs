//! The recording state of one thread: its ring, its clock, its operation stack, and its source of CPU time.
//! [`Track`] assigns times to events. [`Strides`] selects the executions that are timed; most executions of
//! short operations write nothing. [`Stack`] makes a timed execution without inner events a single event.

use super::sample_counts::SampleCounts;
use super::sampler::Sampler;
use super::stack::{Level, Stack};
use super::stride::Strides;
use super::thread_state::ThreadState;
use super::track::{Track, When};
use crate::event::{Event, EventKind, UNTIMED, WAITED};
use crate::file::{CpuSource, TimeSource};
use crate::ring::Producer;
use std::sync::Arc;

/// Data that all recorders of a session share.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) session: u32,
    pub(super) time: TimeSource,
    pub(super) cpu: CpuSource,
    /// One of this number of holds is sampled.
    pub(super) hold_sampling: u32,
    /// Largest length of a stride of executions.
    pub(super) operation_sampling: u32,
    /// Ticks of an operation that is always timed.
    pub(super) long: u64,
    /// Counts of samples of all threads.
    pub(super) drawn: Arc<SampleCounts>,
}

/// One thread's recorder in one session.
#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) session: u32,
    track: Track,
    stack: Stack,
    strides: Strides,
    state: ThreadState,
    sampler: Sampler,
    /// Site and object of the last wait: the hold that follows it is recorded.
    pub(super) waited: (u32, u64),
}

impl Recorder {
    /// Returns the recorder of the thread with this number.
    pub(super) fn new(common: Common, tag: u32, producer: Producer) -> Self {
        Self {
            session: common.session,
            track: Track::new(common.time, common.cpu, producer),
            stack: Stack::new(),
            strides: Strides::new(
                common.operation_sampling,
                common.long,
                super::sampler::mixed(tag),
                Arc::clone(&common.drawn),
            ),
            state: ThreadState::of(tag),
            sampler: Sampler::new(common.hold_sampling, tag, common.drawn),
            waited: (0, 0),
        }
    }

    /// Returns the source of this thread's CPU time.
    pub(super) fn cpu_source(&self) -> CpuSource {
        self.track.cpu_source()
    }

    pub(super) fn ticks(&self) -> u64 {
        self.track.ticks()
    }

    pub(super) fn operation(&self) -> u16 {
        self.stack.innermost()
    }

    /// Begins an execution if it is not timed. Returns its depth, for [`Recorder::leave`]. `None`: the caller
    /// must call [`Recorder::enter`].
    #[inline]
    pub(super) fn enter_silently(&mut self, operation: u16) -> Option<usize> {
        let depth = self.stack.depth();
        if !self.strides.passes_over(operation) || !self.stack.enter(operation) {
            return None;
        }
        self.state.is_within(operation);
        Some(depth)
    }

    /// Begins an operation. Returns its depth, for [`Recorder::leave`]; `None` if the stack is too deep.
    pub(super) fn enter(&mut self, operation: u16) -> Option<usize> {
        if self.strides.is_drawn(operation) {
            return self.enter_drawn(operation);
        }
        let depth = self.stack.depth();
        if !self.stack.enter(operation) {
            return None;
        }
        self.state.is_within(operation);
        Some(depth)
    }

    /// Begins an execution that is timed. Its event is deferred until the next event.
    fn enter_drawn(&mut self, operation: u16) -> Option<usize> {
        let depth = self.stack.depth();
        let flags = self.strides.draw(operation);
        self.tell(); // STACK-1, also for the single event at its end
        if !self.stack.enter(operation) {
            return None;
        }
        // The clock is read first, as in `record_event`.
        let ticks = self.ticks();
        if self.track.is_steady() {
            self.stack.begin(ticks, flags);
            self.state.is_in_unrecorded(operation, ticks);
        } else {
            let event = Event { flags, operation, ..Event::new(ticks, EventKind::Enter) };
            self.track.record_switched(When::Before, event);
            self.stack.begin(self.track.last(), flags);
            self.stack.tell();
            self.state.is_in(operation);
        }
        Some(depth)
    }

    /// Ends the operation that was begun at `depth` if it is not recorded. Returns `false` otherwise.
    #[inline]
    pub(super) fn leave_silently(&mut self, depth: usize) -> bool {
        let is_silent = self.stack.leave_silently(depth);
        if is_silent {
            self.state.is_within(self.stack.innermost());
        }
        is_silent
    }

    /// Ends the operation that was begun at `depth`, and inner operations that never ended.
    pub(super) fn leave(&mut self, depth: usize) {
        if !self.leave_silently(depth) {
            self.leave_drawn(depth);
        }
    }

    fn leave_drawn(&mut self, depth: usize) {
        let Some((level, is_recorded)) = self.stack.cut_to(depth) else { return };
        if is_recorded {
            let event = Event { operation: level.operation, ..Event::new(0, EventKind::Exit) };
            self.record_event(When::After, event);
            if level.begin > 0 {
                self.strides.took(level.operation, self.track.last().saturating_sub(level.begin));
            }
        } else if level.begin > 0 {
            self.leave_held_back(level);
        }
        self.stack.leave();
        self.state.is_within(self.stack.innermost());
    }

    /// Ends an operation without inner events: writes one event if the thread did not leave its CPU.
    #[inline]
    fn leave_held_back(&mut self, level: Level) {
        let ticks = self.ticks();
        let argument = ticks.saturating_sub(level.begin);
        self.strides.took(level.operation, argument);
        let (operation, flags) = (level.operation, level.flags);
        if self.track.is_steady() {
            self.push(Event { operation, flags, argument, ..Event::new(ticks, EventKind::Ran) });
        } else {
            self.tell();
            self.track
                .record_switched(When::After, Event { operation, ..Event::new(ticks, EventKind::Exit) });
        }
        self.state.is_in(operation);
    }

    /// Records all open operations of the thread (STACK-1).
    #[inline]
    fn tell(&mut self) {
        if !self.stack.is_recorded() {
            self.tell_all();
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_all(&mut self) {
        while let Some(level) = self.stack.tell() {
            // An operation that was not sampled is recorded with the last known time. The next event reports
            // a switch since then.
            let (ticks, flags) =
                if level.begin > 0 { (level.begin, level.flags) } else { (self.track.last(), UNTIMED) };
            self.push(Event { flags, operation: level.operation, ..Event::new(ticks, EventKind::Enter) });
        }
        self.state.is_in(self.stack.innermost());
    }

    /// Records the operation that was held back, if there is one (STACK-2).
    #[inline]
    fn tell_held_back(&mut self) {
        if let Some(Level { operation, flags, begin }) = self.stack.tell_held_back() {
            self.push(Event { flags, operation, ..Event::new(begin, EventKind::Enter) });
            self.state.is_in(self.stack.innermost());
        }
    }

    #[inline]
    fn push(&mut self, event: Event) {
        self.track.push(event);
    }

    /// Records an event with the current time.
    #[inline]
    pub(super) fn record(&mut self, when: When, kind: EventKind, site: u32, object: u64, argument: u64) {
        let operation = self.operation();
        let event = Event { ticks: 0, kind, flags: 0, operation, site, object, argument };
        self.record_event(when, event);
    }

    /// Records a hold or a release, after the object was released.
    pub(super) fn record_let_go(&mut self, event: Event) {
        self.tell_held_back();
        self.record_told(When::After, event);
    }

    /// Sets the ticks of `event` and records it.
    #[inline]
    fn record_event(&mut self, when: When, event: Event) {
        self.tell();
        self.record_told(when, event);
    }

    #[inline]
    fn record_told(&mut self, when: When, event: Event) {
        self.track.record(when, event);
    }

    /// Returns the number of holds up to and including the next sampled one.
    pub(super) fn holds_left(&self) -> u32 {
        self.sampler.until()
    }

    /// Begins a hold; `waited` if the thread waited for its object. `left` is what remains of
    /// [`Recorder::holds_left`] (0: no hold was counted yet). Returns the begin and the flags of the hold if
    /// it is recorded.
    pub(super) fn begin_hold(&mut self, left: u32, waited: bool) -> Option<(u64, u8)> {
        if left > 0 {
            self.sampler.wind_to(left);
        }
        let flags = self.sampler.draw_next() | if waited { WAITED } else { 0 };
        (flags != 0).then(|| (self.ticks(), flags))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        while let Some(innermost) = self.stack.depth().checked_sub(1) {
            // The thread ends inside an operation without dropping its guard (`pthread_exit`).
            self.leave(innermost);
        }
        self.track.take_owed_anchor();
    }
}
