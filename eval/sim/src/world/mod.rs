//! The state of a running machine: clocks of threads, processors, lines, sleepers.
//!
//! The thread with the earliest clock runs next. So all accesses happen in order of virtual time, whatever
//! they cost.
//!
//! - **WORLD-1** The running thread is on a processor and not in `queue`. Every other thread on a processor
//!   is in `queue` once.
//! - **WORLD-2** No code here switches threads: functions return to their callers whether the thread must
//!   give way.
//!
//! | module | content |
//! |---|---|
//! | `thread` | a thread of the machine |
//! | `turn` | the running thread, its processor, and the next thread |
//! | `sleep` | sleepers, and the timers that wake them |
//! | `work` | work of the running thread, and its time |

mod sleep;
mod thread;
mod turn;
mod work;

pub(crate) use thread::{State, Stop, Thread};
pub(crate) use work::Arrival;

use crate::coherence::{Directory, Time, picoseconds};
use crate::lines::Lines;
use crate::measure::Counting;
use crate::processors::{Processors, ThreadId};
use crate::profile::Profile;
use crate::random::Random;
use crate::schedule::{Chooser, Step};
use crate::what_if::Free;
use sleep::Sleepers;
use std::any::Any;
use std::rc::Rc;
use turn::{Queue, Wake};

pub(crate) struct World {
    pub(crate) threads: Vec<Thread>,
    /// Functions of the newest threads, which have no stacks yet.
    pub(crate) newborn: Vec<Box<dyn FnOnce()>>,
    pub(crate) current: ThreadId,
    queue: Queue,
    /// The thread that runs next, if it is already known.
    successor: Option<ThreadId>,
    sleepers: Sleepers,
    processors: Processors,
    /// Number of threads on the processors of each pipe.
    pipes: Vec<u32>,
    /// The core and the pipe of each processor.
    places: Vec<Place>,
    pub(crate) directory: Directory,
    pub(crate) lines: Lines,
    pub(crate) counting: Counting,
    random: Random,
    pub(crate) steps: u64,
    /// Chooses the next thread, if virtual time does not decide.
    pub(crate) chooser: Option<Chooser>,
    /// The accesses, if they are recorded.
    pub(crate) trace: Option<Vec<Step>>,
    pub(crate) stop: Option<Stop>,
    /// Number of steps after which a thread gives way even if it is alone, so that the run can end with an
    /// error.
    pub(crate) max_steps: u64,
    /// The lines that cost nothing.
    pub(crate) free: Free,
    profile: Rc<Profile>,
    gap: Time,
    slice: Time,
    undisturbed: Time,
    interrupt: Time,
    alarm_set: Time,
    alarm_missed: Time,
    wake: Wake,
    alarm: Wake,
}

/// The core and the pipe of a processor; computed once, because each step needs it.
#[derive(Clone, Copy, Debug)]
struct Place {
    core: usize,
    pipe: usize,
}

impl World {
    pub(crate) fn new(profile: Rc<Profile>, processors: usize, seed: u64) -> Self {
        let (costs, topology) = (&profile.costs, &profile.topology);
        let place = |processor| {
            let (core, strand) = (topology.core_of(processor), processor / topology.cores());
            Place { core, pipe: core * topology.pipes_per_core + strand % topology.pipes_per_core }
        };
        Self {
            threads: Vec::new(),
            newborn: Vec::new(),
            current: 0,
            queue: Queue::default(),
            successor: None,
            sleepers: Sleepers::default(),
            processors: Processors::new(processors, picoseconds(costs.context_switch.value)),
            pipes: vec![0; topology.cores() * topology.pipes_per_core],
            places: (0..processors).map(place).collect(),
            directory: Directory::new(&profile),
            lines: Lines::default(),
            counting: Counting::default(),
            random: Random::new(seed),
            steps: 0,
            chooser: None,
            trace: None,
            stop: None,
            free: Free::default(),
            max_steps: u64::MAX,
            gap: picoseconds(costs.between_accesses.value),
            slice: picoseconds(costs.slice.value),
            undisturbed: picoseconds(costs.undisturbed.value),
            interrupt: picoseconds(costs.interrupt.value),
            alarm_set: picoseconds(costs.alarm_set.value),
            alarm_missed: picoseconds(costs.alarm_missed.value),
            wake: Wake::of(&costs.wake, &costs.wake_busy),
            alarm: Wake::of(&costs.alarm, &costs.alarm_busy),
            profile,
        }
    }

    pub(crate) fn set_gap(&mut self, gap: Time) {
        self.gap = gap;
    }

    /// Adds a thread that is ready at this time.
    pub(crate) fn add_thread(&mut self, at: Time) -> ThreadId {
        let id = self.threads.len();
        self.threads.push(Thread::ready(at));
        self.make_ready(id, at, None);
        id
    }

    pub(crate) fn me(&mut self) -> &mut Thread {
        &mut self.threads[self.current]
    }

    fn processor(&self) -> usize {
        match self.threads[self.current].state {
            State::OnProcessor(processor) => processor,
            state => unreachable!("the running thread is {state:?} (WORLD-1)"),
        }
    }

    /// Returns the core that the current thread is on; core 0 if it is on no processor.
    fn core(&self) -> usize {
        match self.threads.get(self.current).map(|thread| thread.state) {
            Some(State::OnProcessor(processor)) => self.places[processor].core,
            _ => 0,
        }
    }

    /// Returns the number of processors of this run.
    pub(crate) fn processor_count(&self) -> usize {
        self.processors.count()
    }

    /// Returns a random number from the run's seed.
    pub(crate) fn draw(&mut self) -> u64 {
        self.random.next()
    }

    /// Returns the number of the line at `address`.
    pub(crate) fn line(&mut self, address: usize) -> u32 {
        let core = self.core();
        self.lines.number(address, core)
    }

    /// Frees the line numbers of a freed block.
    pub(crate) fn freed(&mut self, address: usize, bytes: usize) {
        let core = self.core();
        self.lines.forget(address, bytes, core);
    }

    /// Returns the time that a thread, or all threads together, have spent on processors.
    pub(crate) fn processor_time(&self, thread: Option<ThreadId>) -> Time {
        match thread {
            Some(id) => self.threads.get(id).map_or(0, Thread::processor_time),
            None => self.threads.iter().map(Thread::processor_time).sum(),
        }
    }

    pub(crate) fn local(&mut self, key: usize) -> Option<Rc<dyn Any>> {
        self.me().local(key)
    }

    pub(crate) fn take_local(&mut self) -> Option<Rc<dyn Any>> {
        self.me().take_local()
    }

    pub(crate) fn set_local(&mut self, key: usize, value: Rc<dyn Any>) {
        self.me().set_local(key, value);
    }
}
