//! Which thread has which processor: a queue of the ready, and processors that take from it when they have nothing to do.
//!
//! | thread is | leaves it |
//! |---|---|
//! | on a processor | when it sleeps or ends, or its slice is over and others are ready |
//! | ready | when a processor has nothing else to do, in order of readiness |
//! | neither: asleep, stopped, ended | when it is woken: to its last processor if that is idle, to any idle one, to the queue |

use crate::coherence::Time;
use std::collections::VecDeque;

/// A thread's number.
pub type ThreadId = usize;

/// A processor was given to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Which thread.
    pub thread: ThreadId,
    /// On which processor.
    pub processor: usize,
    /// From when on.
    pub at: Time,
}

/// The processors of a machine.
#[derive(Debug)]
pub struct Processors {
    on: Vec<Option<ThreadId>>,
    ready: VecDeque<(ThreadId, Time)>,
    idle: usize,
    context_switch: Time,
}

impl Processors {
    /// So many, all idle.
    #[must_use]
    pub fn new(processors: usize, context_switch: Time) -> Self {
        Self { on: vec![None; processors], ready: VecDeque::new(), idle: processors, context_switch }
    }

    /// Whether somebody waits for a processor.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// `thread`, which last had the processor `last`, wants one from `at` on. An idle one is there `wake` later.
    pub fn wants(&mut self, thread: ThreadId, last: Option<usize>, at: Time, wake: Time) -> Option<Start> {
        let idle = || self.on.iter().position(Option::is_none);
        let Some(processor) = last.filter(|&last| self.on[last].is_none()).or_else(idle) else {
            self.ready.push_back((thread, at));
            return None;
        };
        self.on[processor] = Some(thread);
        self.idle -= 1;
        Some(Start { thread, processor, at: at + wake })
    }

    /// The thread on `processor` leaves it at `now`; who is next?
    pub fn leaves(&mut self, processor: usize, now: Time) -> Option<Start> {
        self.on[processor] = None;
        self.idle += 1;
        let (thread, ready_at) = self.ready.pop_front()?;
        self.on[processor] = Some(thread);
        self.idle -= 1;
        Some(Start { thread, processor, at: now.max(ready_at) + self.context_switch })
    }

    /// Processors.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.on.len()
    }

    /// Processors with nothing to do.
    #[must_use]
    pub const fn idle(&self) -> usize {
        self.idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_wait_in_line_for_a_processor_and_wake_on_their_last_one() {
        let mut processors = Processors::new(2, 10);
        assert_eq!(processors.wants(0, None, 5, 0), Some(Start { thread: 0, processor: 0, at: 5 }));
        assert_eq!(processors.wants(1, None, 5, 0), Some(Start { thread: 1, processor: 1, at: 5 }));
        assert_eq!((processors.wants(2, None, 6, 0), processors.has_ready()), (None, true));
        assert_eq!(processors.leaves(1, 20), Some(Start { thread: 2, processor: 1, at: 30 }));
        assert_eq!(processors.leaves(1, 40), None);
        assert_eq!(processors.leaves(0, 41), None);
        assert_eq!(processors.idle(), 2);
        assert_eq!(processors.wants(2, Some(1), 50, 3), Some(Start { thread: 2, processor: 1, at: 53 }));
    }
}
