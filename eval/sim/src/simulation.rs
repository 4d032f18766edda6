//! One run: threads, a machine and a seed, and the result.

use crate::coherence::Time;
use crate::fiber::Fiber;
use crate::handle::{self, HANDLE};
use crate::lines::watch_frees;
use crate::processors::ThreadId;
use crate::profile::Profile;
use crate::schedule::{Chooser, Preemption, Schedule, Step};
use crate::stalls::PlaceStalls;
use crate::what_if::{Free, LineName};
use crate::world::{State, Stop, Thread, World};
use azekura_base::sync::machine::Enter;
use std::panic::Location;
use std::rc::Rc;
use std::time::Duration;

/// The reason why a simulation could not run or did not end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// The program was built without the feature `sim`.
    #[error(
        "this program runs on real processors only; build it with the feature: cargo build --release \
         --features sim"
    )]
    NotBuilt,
    /// The simulation has no processors, or more than the machine.
    #[error("{asked} processors asked for; the machine {profile} has {there}")]
    Processors {
        /// The requested number.
        asked: usize,
        /// The number of the machine.
        there: usize,
        /// The machine's name.
        profile: String,
    },
    /// The operating system has no memory for another stack.
    #[error("no stack for thread {thread}")]
    Stack {
        /// The thread.
        thread: ThreadId,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// Every thread that has not ended waits for another one.
    #[error("after {steps} steps no thread can continue: {}", waits(.blocked))]
    Blocked {
        /// Number of steps taken.
        steps: u64,
        /// The threads that have not ended, and their last accesses.
        blocked: Vec<Blocked>,
    },
    /// No accessed object has the name of a line that was to cost nothing.
    #[error("no accessed line has the name {name}; reports list the names")]
    NoSuchLine {
        /// The name of the line.
        name: LineName,
    },
    /// The run took more steps than the caller allowed.
    #[error("{steps} steps were not enough: {}", waits(.running))]
    Steps {
        /// Number of steps taken.
        steps: u64,
        /// The threads that have not ended, and their last accesses.
        running: Vec<Blocked>,
    },
}

/// A thread that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The thread.
    pub thread: ThreadId,
    /// Place of its last access.
    pub place: Option<&'static Location<'static>>,
}

fn waits(blocked: &[Blocked]) -> String {
    let each = blocked.iter().map(|b| match b.place {
        Some(place) => format!("thread {} after {}:{}", b.thread, place.file(), place.line()),
        None => format!("thread {} at its beginning", b.thread),
    });
    each.collect::<Vec<_>>().join("; ")
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Time on the machine when the last thread ended.
    pub time: Duration,
    /// Number of accesses and of spin iterations.
    pub steps: u64,
    /// Number of lines touched.
    pub lines: u32,
    /// Places at which threads waited for lines, the costliest first.
    pub stalls: Vec<PlaceStalls>,
    /// Place of the last access of the stopped thread before its stop, if the thread reached the stop.
    pub stopped_at: Option<&'static Location<'static>>,
    /// Set if the thread reached its stop.
    pub has_stopped: bool,
    /// All accesses in order, if requested.
    pub trace: Vec<Step>,
    /// The interruptions, if virtual time did not decide.
    pub preemptions: Vec<Preemption>,
}

/// A simulation to run: a machine and threads.
///
/// All threads run on the calling operating-system thread, each on a stack of its own, in the order of their
/// virtual clocks. A thread must not block the operating-system thread: all waits must go through
/// `azekura_base::sync`.
pub struct Simulation {
    profile: Rc<Profile>,
    processors: usize,
    seed: u64,
    bodies: Vec<Box<dyn FnOnce()>>,
    between_accesses: Option<f64>,
    stop: Option<Stop>,
    max_steps: u64,
    schedule: Schedule,
    traces: bool,
    stack_bytes: usize,
    free: Vec<LineName>,
}

/// Default size of a thread's stack.
const STACK_BYTES: usize = 256 << 10;

impl std::fmt::Debug for Simulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulation")
            .field("profile", &self.profile.name)
            .field("processors", &self.processors)
            .field("threads", &self.bodies.len())
            .finish_non_exhaustive()
    }
}

impl Simulation {
    /// Returns a simulation on this number of processors of a machine. The seed decides between threads with
    /// equal clocks, and varies the lengths of computations.
    #[must_use]
    pub fn new(profile: Rc<Profile>, processors: usize, seed: u64) -> Self {
        Self {
            profile,
            processors,
            seed,
            bodies: Vec::new(),
            between_accesses: None,
            stop: None,
            max_steps: u64::MAX,
            schedule: Schedule::ByTime,
            traces: false,
            stack_bytes: STACK_BYTES,
            free: Vec::new(),
        }
    }

    /// Sets lines that cost nothing: an access to them takes the time of a line that only one thread uses.
    #[must_use]
    pub fn without(mut self, lines: &[LineName]) -> Self {
        self.free = lines.into();
        self
    }

    /// Sets the bytes of each thread's stack (default: 256 KiB).
    #[must_use]
    pub const fn stack_bytes(mut self, bytes: usize) -> Self {
        self.stack_bytes = bytes;
        self
    }

    /// Sets the time of the computation between two accesses, in nanoseconds (default: the profile's).
    #[must_use]
    pub const fn between_accesses(mut self, nanoseconds: f64) -> Self {
        self.between_accesses = Some(nanoseconds);
        self
    }

    /// Sets the choice of the next thread.
    #[must_use]
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Records all accesses in order: [`Outcome::trace`].
    #[must_use]
    pub const fn traced(mut self) -> Self {
        self.traces = true;
        self
    }

    /// Sets the number of steps after which the run fails.
    #[must_use]
    pub const fn max_steps(mut self, steps: u64) -> Self {
        self.max_steps = steps;
        self
    }

    /// Stops a thread before its `access`-th access, from 0, until all other threads have ended.
    #[must_use]
    pub const fn stop(mut self, thread: ThreadId, access: u64) -> Self {
        self.stop = Some(Stop { thread, access });
        self
    }

    /// Adds a thread. Threads are numbered from 0.
    pub fn thread(&mut self, body: impl FnOnce() + 'static) {
        self.bodies.push(Box::new(body));
    }

    /// Runs all threads to their ends.
    ///
    /// # Errors
    ///
    /// [`SimulationError`]. Threads that cannot end are abandoned, and the memory that they own is leaked.
    ///
    /// # Panics
    ///
    /// If a thread panics, or if the caller is a thread of a machine.
    pub fn run(self) -> Result<Outcome, SimulationError> {
        if !cfg!(feature = "sim") {
            return Err(SimulationError::NotBuilt);
        }
        let there = self.profile.topology.processors();
        if self.processors == 0 || self.processors > there {
            let profile = self.profile.name.clone();
            return Err(SimulationError::Processors { asked: self.processors, there, profile });
        }
        let mut world = World::new(Rc::clone(&self.profile), self.processors, self.seed);
        if let Some(nanoseconds) = self.between_accesses {
            world.set_gap(crate::coherence::picoseconds(nanoseconds));
        }
        world.stop = self.stop;
        world.max_steps = self.max_steps;
        world.free = Free::new(self.free);
        world.chooser = Chooser::of(self.schedule);
        world.trace = self.traces.then(Vec::new);
        let mut fibers = Vec::new();
        for (thread, body) in self.bodies.into_iter().enumerate() {
            let fiber = Fiber::new(body, self.stack_bytes)
                .map_err(|source| SimulationError::Stack { thread, source })?;
            fibers.push(Some(fiber));
            world.add_thread(0);
        }
        Running::begin(world, fibers, self.stack_bytes).run(self.max_steps)
    }
}

/// A machine in progress; it ends when dropped.
struct Running {
    fibers: Vec<Option<Fiber>>,
    stack_bytes: usize,
    stopped: Option<Option<&'static Location<'static>>>,
    _inside: Enter,
}

impl Running {
    fn begin(world: World, fibers: Vec<Option<Fiber>>, stack_bytes: usize) -> Self {
        let inside = Enter::new(&HANDLE);
        drop(handle::replace(Some(world)));
        watch_frees(Some(handle::freed));
        Self { fibers, stack_bytes, stopped: None, _inside: inside }
    }

    fn run(mut self, max_steps: u64) -> Result<Outcome, SimulationError> {
        loop {
            while let Some(id) = handle::with(World::next) {
                self.make_stacks()?;
                let fiber = self.fibers[id].as_mut().expect("a thread that has not ended");
                if fiber.resume() {
                    handle::with(World::end);
                    self.fibers[id] = None;
                }
                let steps = handle::with(|world| world.steps);
                if steps > max_steps {
                    return Err(SimulationError::Steps { steps, running: Self::unended() });
                }
            }
            let stopped = handle::with(|world| {
                world.threads.iter().find(|t| t.state == State::Stopped).map(|t| t.last_place)
            });
            let others_ended = handle::with(|world| {
                world.threads.iter().all(|t| matches!(t.state, State::Ended | State::Stopped))
            });
            match stopped {
                Some(place) if others_ended => {
                    self.stopped = Some(place);
                    handle::with(World::release_stopped);
                }
                None if others_ended => return self.outcome(),
                _ => {
                    let steps = handle::with(|world| world.steps);
                    return Err(SimulationError::Blocked { steps, blocked: Self::unended() });
                }
            }
        }
    }

    fn make_stacks(&mut self) -> Result<(), SimulationError> {
        for body in handle::with(|world| std::mem::take(&mut world.newborn)) {
            let thread = self.fibers.len();
            let fiber = Fiber::new(body, self.stack_bytes)
                .map_err(|source| SimulationError::Stack { thread, source })?;
            self.fibers.push(Some(fiber));
        }
        Ok(())
    }

    fn unended() -> Vec<Blocked> {
        handle::with(|world| {
            let all = world.threads.iter().enumerate();
            let unended = all.filter(|(_, t)| t.state != State::Ended);
            unended.map(|(thread, t)| Blocked { thread, place: t.last_place }).collect()
        })
    }

    fn outcome(&self) -> Result<Outcome, SimulationError> {
        handle::with(|world| {
            if let Some(name) = world.free.unmet() {
                return Err(SimulationError::NoSuchLine { name: name.clone() });
            }
            let time: Time = world.threads.iter().map(|t| t.time).max().unwrap_or(0);
            Ok(Outcome {
                time: Duration::from_nanos(time / 1000),
                steps: world.steps,
                lines: world.lines.count(),
                stalls: world.counting.stalls.by_place(),
                stopped_at: self.stopped.flatten(),
                has_stopped: self.stopped.is_some(),
                trace: world.trace.clone().unwrap_or_default(),
                preemptions: world.chooser.as_ref().map(|chooser| chooser.taken.clone()).unwrap_or_default(),
            })
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        watch_frees(None);
        // The destructors would run in the middle of operations, after the machine has ended. This includes
        // those of thread-locals.
        self.fibers.drain(..).flatten().for_each(Fiber::abandon);
        if let Some(mut world) = handle::replace(None) {
            handle::keep_last(&mut world);
            world.threads.iter_mut().for_each(Thread::abandon);
        }
    }
}
