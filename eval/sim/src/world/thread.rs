//! A thread of the machine, as the machine knows it: its clock, what it is doing, its thread-locals.

use crate::coherence::Time;
use crate::processors::ThreadId;
use std::any::Any;
use std::panic::Location;
use std::rc::Rc;

/// State of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    OnProcessor(usize),
    Ready,
    Asleep {
        address: usize,
    },
    /// For ever, by the wish of a test.
    Stopped,
    Ended,
}

pub(crate) struct Thread {
    pub(crate) state: State,
    pub(crate) time: Time,
    pub(super) last_processor: Option<usize>,
    pub(super) slice_end: Time,
    /// Time on processors, up to the last time that it left one, and when it came to the one that it is on.
    pub(super) had: Time,
    pub(super) since: Time,
    /// Time that it loses when it next gets a processor: by the interrupt that took its processor, by the
    /// alarm that it takes back.
    pub(super) lost: Time,
    /// The thread sleeps with an alarm that had to be set.
    pub(super) has_alarm: bool,
    /// Time at which all its stores are done.
    pub(super) drained: Time,
    /// Naps of a thread have numbers, so that a timer knows whether it is still meant.
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

    /// Time for which it has had processors.
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

    /// Leaves its thread-locals where they are, for ever.
    pub(crate) fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.locals));
    }
}

/// Place at which a thread is to stop for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop {
    pub(crate) thread: ThreadId,
    /// Before this access of its, from 0.
    pub(crate) access: u64,
}
