//! Chooses the next thread if virtual time does not decide: the same thread continues, except at
//! interruptions.
//!
//! A schedule is its list of interruptions. Between them, a thread continues until it sleeps, spins or ends;
//! then the thread with the next number runs. So a few numbers describe a schedule, and they can be
//! enumerated, and removed one by one.

use crate::processors::ThreadId;
use crate::random::Random;
use azekura_base::sync::machine::Access;
use std::collections::VecDeque;
use std::panic::Location;

/// An interruption of the running thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Preemption {
    /// The step of the run before which the thread is interrupted, from 0.
    pub step: u64,
    /// The thread that runs instead.
    pub to: ThreadId,
}

/// The way of choosing the next thread.
#[derive(Clone, Debug, Default)]
pub enum Schedule {
    /// The thread with the earliest clock runs next.
    #[default]
    ByTime,
    /// Threads are interrupted at these steps, which must be sorted.
    Preempted(Vec<Preemption>),
    /// Threads are interrupted at random steps.
    Random {
        /// The seed.
        seed: u64,
        /// The average number of steps for one interruption.
        one_in: u64,
    },
}

/// An access to shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The thread that made the access.
    pub thread: ThreadId,
    /// The kind of access.
    pub access: Access,
    /// Its place in the source.
    pub place: &'static Location<'static>,
}

/// A schedule in progress.
#[derive(Debug)]
pub(crate) struct Chooser {
    planned: VecDeque<Preemption>,
    random: Option<(Random, u64)>,
    pub(crate) taken: Vec<Preemption>,
    pub(crate) next: Option<ThreadId>,
}

impl Chooser {
    pub(crate) fn of(schedule: Schedule) -> Option<Self> {
        let (planned, random) = match schedule {
            Schedule::ByTime => return None,
            Schedule::Preempted(planned) => (planned.into(), None),
            Schedule::Random { seed, one_in } => (VecDeque::new(), Some((Random::new(seed), one_in))),
        };
        Some(Self { planned, random, taken: Vec::new(), next: None })
    }

    /// Returns `true` if the running thread is interrupted before this step; `others` are the threads that
    /// can run instead.
    pub(crate) fn preempts(&mut self, step: u64, others: &[ThreadId]) -> bool {
        let mut to = None;
        while let Some(planned) = self.planned.pop_front_if(|planned| planned.step <= step) {
            // An interruption is dropped if its step has passed, or if its thread cannot run.
            to = Some(planned.to).filter(|to| planned.step == step && others.contains(to));
        }
        if let Some((random, one_in)) = &mut self.random
            && !others.is_empty()
            && random.below(*one_in) == 0
        {
            to = Some(others[random.below(others.len() as u64) as usize]);
        }
        if let Some(to) = to {
            self.taken.push(Preemption { step, to });
            self.next = Some(to);
        }
        to.is_some()
    }
}
