//! The machine's record of a thread: its clock, its state, its thread-locals.

use crate::coherence::Time;
use crate::processors::ThreadId;
use std::any::Any;
use std::panic::Location;
use std::rc::Rc;

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    OnProcessor(usize),
    Ready,
    Asleep {
        address: usize,
    },
    /// Stopped by a test.
    Stopped,
    Ended,
}

pub(crate) struct Thread {
    pub(crate) state: State,
    pub(crate) time: Time,
    pub(super) last_processor: Option<usize>,
    pub(super) slice_end: Time,
    /// Time on processors until the thread last left one. `since` is the time at which it got its current
    /// one.
    pub(super) had: Time,
    pub(super) since: Time,
    /// Time that the thread loses when it gets a processor again: for the interrupt that took its processor,
    /// or for the alarm that it cancels.
    pub(super) lost: Time,
    /// Set if the thread sleeps with an alarm that had to be set.
    pub(super) has_alarm: bool,
    /// Time at which all the thread's stores are done.
    pub(super) drained: Time,
    /// The number of the thread's current sleep, by which obsolete timers are recognized.
    pub(super) nap: u64,
    locals: Vec<(usize, Rc<dyn Any>)>,
    pub(super) accesses: u64,
    pub(crate) last_place: Option<&'static Location<'static>>,
}

impl Thread {
    pub(super) const fn ready(at: Time) -> Self {
        Self {
            state: State::Ready,
            time: at,
            last_processor: None,
            slice_end: 0,
            had: 0,
            since: 0,
            lost: 0,
            has_alarm: false,
            drained: 0,
            nap: 0,
            locals: Vec::new(),
            accesses: 0,
            last_place: None,
        }
    }

    /// Returns the time that the thread has spent on processors.
    pub(super) fn processor_time(&self) -> Time {
        match self.state {
            State::OnProcessor(_) => self.had + (self.time - self.since),
            _ => self.had,
        }
    }

    pub(super) fn local(&self, key: usize) -> Option<Rc<dyn Any>> {
        let found = self.locals.iter().find(|(at, _)| *at == key);
        found.map(|(_, value)| Rc::clone(value))
    }

    pub(super) fn take_local(&mut self) -> Option<Rc<dyn Any>> {
        self.locals.pop().map(|(_, value)| value)
    }

    pub(super) fn set_local(&mut self, key: usize, value: Rc<dyn Any>) {
        self.locals.push((key, value));
    }

    /// Leaks the thread-locals without dropping them.
    pub(crate) fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.locals));
    }
}

/// The access before which a thread stops.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop {
    pub(crate) thread: ThreadId,
    /// The number of the thread's access, from 0.
    pub(crate) access: u64,
}
