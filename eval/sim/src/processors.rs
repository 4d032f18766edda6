//! Assigns threads to processors: a queue of ready threads, and processors that take threads from it when
//! they are idle.
//!
//! | thread is | leaves this state |
//! |---|---|
//! | on a processor | when it sleeps or ends, or when its slice is over and others are ready |
//! | ready | when a processor is idle: woken threads first, then in order of readiness |
//! | asleep or stopped | when it is woken or released |
//!
//! A woken thread goes to its last processor if that is idle, otherwise to any idle one, otherwise to the
//! front of the queue. In the last case the thread on its last processor gives way, at the time that the
//! profile determines.

use crate::coherence::Time;
use std::collections::VecDeque;

/// The number of a thread.
pub type ThreadId = usize;

/// The assignment of a processor to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The thread.
    pub thread: ThreadId,
    /// The processor.
    pub processor: usize,
    /// The time from which the thread runs there.
    pub at: Time,
}

/// The result of a request for a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The thread has a processor.
    Granted(Start),
    /// The thread is ready and waits for a processor.
    Waits {
        /// The thread to interrupt: a woken thread goes before the thread on its last processor.
        instead_of: Option<ThreadId>,
    },
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
    /// Returns the processors of a machine, all idle.
    #[must_use]
    pub fn new(processors: usize, context_switch: Time) -> Self {
        Self { on: vec![None; processors], ready: VecDeque::new(), idle: processors, context_switch }
    }

    /// Returns `true` if a thread waits for a processor.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Requests a processor from time `at` on for `thread`, which was last on processor `last`. If one is
    /// idle, a woken thread runs `wake` later. `wake` is `None` if the thread was not asleep.
    pub fn wants(&mut self, thread: ThreadId, last: Option<usize>, at: Time, wake: Option<Time>) -> Wish {
        let idle = || self.on.iter().position(Option::is_none);
        let Some(processor) = last.filter(|&last| self.on[last].is_none()).or_else(idle) else {
            if wake.is_none() {
                self.ready.push_back((thread, at));
                return Wish::Waits { instead_of: None };
            }
            self.ready.push_front((thread, at));
            return Wish::Waits { instead_of: last.and_then(|last| self.on[last]) };
        };
        self.on[processor] = Some(thread);
        self.idle -= 1;
        Wish::Granted(Start { thread, processor, at: at + wake.unwrap_or(0) })
    }

    /// Takes the thread off `processor` at `now`; returns the next thread.
    pub fn leaves(&mut self, processor: usize, now: Time) -> Option<Start> {
        self.on[processor] = None;
        self.idle += 1;
        let (thread, ready_at) = self.ready.pop_front()?;
        self.on[processor] = Some(thread);
        self.idle -= 1;
        Some(Start { thread, processor, at: now.max(ready_at) + self.context_switch })
    }

    /// Returns the number of processors.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.on.len()
    }

    /// Returns the number of idle processors.
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
        let granted = |thread, processor, at| Wish::Granted(Start { thread, processor, at });
        assert_eq!(processors.wants(0, None, 5, None), granted(0, 0, 5));
        assert_eq!(processors.wants(1, None, 5, None), granted(1, 1, 5));
        assert_eq!(processors.wants(2, None, 6, None), Wish::Waits { instead_of: None });
        assert!(processors.has_ready());
        assert_eq!(processors.leaves(1, 20), Some(Start { thread: 2, processor: 1, at: 30 }));
        assert_eq!(processors.leaves(1, 40), None);
        assert_eq!(processors.leaves(0, 41), None);
        assert_eq!(processors.idle(), 2);
        assert_eq!(processors.wants(2, Some(1), 50, Some(3)), granted(2, 1, 53));
    }

    #[test]
    fn a_woken_thread_runs_before_a_thread_that_used_its_slice() {
        let mut processors = Processors::new(1, 10);
        assert!(matches!(processors.wants(0, None, 0, None), Wish::Granted(_)));
        assert_eq!(processors.wants(1, None, 1, None), Wish::Waits { instead_of: None });
        assert_eq!(processors.wants(2, Some(0), 2, Some(3)), Wish::Waits { instead_of: Some(0) });
        assert_eq!(processors.leaves(0, 20), Some(Start { thread: 2, processor: 0, at: 30 }));
        assert_eq!(processors.leaves(0, 40), Some(Start { thread: 1, processor: 0, at: 50 }));
    }
}
