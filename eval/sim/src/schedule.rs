//! Choice of the next thread, if time does not decide: the same thread, except at interruptions.
//!
//! A schedule is its list of interruptions. Between them a thread goes on until it sleeps, spins or ends, and
//! then the next one in turn does. So a few numbers describe a schedule, and they can be left out one by one
//! and enumerated.

use crate::processors::ThreadId;
use crate::random::Random;
use azekura_base::sync::machine::Access;
use std::collections::VecDeque;
use std::panic::Location;

/// An interruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Preemption {
    /// Before this step of the run, from 0.
    pub step: u64,
    /// The thread that goes on instead.
    pub to: ThreadId,
}

/// Choice of the next thread.
#[derive(Clone, Debug, Default)]
pub enum Schedule {
    /// The thread with the earliest clock.
    #[default]
    ByTime,
    /// These interruptions, in order of steps.
    Preempted(Vec<Preemption>),
    /// An interruption at every step with a chance of one in so many, from a seed.
    Random {
        /// The seed.
        seed: u64,
        /// One in how many.
        one_in: u64,
    },
}

/// An access that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// By which thread.
    pub thread: ThreadId,
    /// The access.
    pub access: Access,
    /// Its place in the source.
    pub place: &'static Location<'static>,
}

/// A schedule under way.
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

    /// Returns whether the running thread is interrupted before this step; `others` could go on.
    pub(crate) fn preempts(&mut self, step: u64, others: &[ThreadId]) -> bool {
        let mut to = None;
        while let Some(planned) = self.planned.pop_front_if(|planned| planned.step <= step) {
            // One that came too late, or to a thread that cannot go on, is no interruption.
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
