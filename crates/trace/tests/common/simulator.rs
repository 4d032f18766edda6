//! A small simulated machine with processors, locks and devices. It runs programs of steps and writes their
//! trace.
//!
//! The machine is deterministic: the same seed gives the same trace. Threads share processors in turns of a
//! quantum. Locks are first come, first served.

use super::{Script, trace};
use azekura_trace::WaitKind;
use azekura_trace::event::EventKind;
use azekura_trace::file::{ClockSample, Trace};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// A step of a thread's program. Times are nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Enter(u16),
    Exit,
    /// Uses a processor.
    Compute(Duration),
    /// Acquires an instance of a site's lock; waits blocked, or spinning on its processor.
    Lock {
        site: u32,
        object: u64,
        mode: Mode,
        kind: WaitKind,
        spin: bool,
    },
    /// Acquires the lock of a random instance among `instances`.
    LockOneOf {
        site: u32,
        instances: u64,
    },
    Unlock {
        site: u32,
    },
    /// Waits for a device.
    Device {
        site: u32,
        time: Duration,
    },
    /// Waits for work, with a probe.
    Idle {
        site: u32,
        time: Duration,
    },
    /// Sleeps without a probe.
    Sleep(Duration),
    /// Begins a wait that may contain other waits.
    WaitBegin(u32),
    WaitEnd(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Duration {
    Fixed(u64),
    Exponential(u64),
}

pub(crate) struct Machine {
    pub(crate) processors: usize,
    pub(crate) quantum: u64,
    pub(crate) seed: u64,
    /// Sites with locks that cost nothing.
    pub(crate) free: Vec<u32>,
}

impl Default for Machine {
    fn default() -> Self {
        Self { processors: 64, quantum: 1_000_000, seed: 0x9e37_79b9, free: Vec::new() }
    }
}

/// Result of a run.
pub(crate) struct Run {
    pub(crate) trace: Trace,
    /// Number of exits of operation 1 per second.
    pub(crate) throughput: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wake {
    /// The thread runs, or spins, on a processor.
    Running,
    /// The thread wants a processor.
    Ready,
}

struct Thread {
    program: Vec<Step>,
    at: usize,
    script: Script,
    /// Remaining time of the compute step.
    left: u64,
    /// Remaining time of the turn on the processor.
    turn: u64,
    cpu: u64,
    on_cpu_since: Option<u64>,
    /// `true` if the thread left its processor since its last event.
    switched: bool,
    /// The wait that is recorded when the thread runs again.
    waiting: Option<(u32, u64)>,
    held: Vec<(u32, u64, Mode, u64)>,
}

#[derive(Default)]
struct Lock {
    exclusive: bool,
    readers: u32,
    queue: VecDeque<(usize, Mode)>,
}

struct Simulation<'m> {
    machine: &'m Machine,
    now: u64,
    random: u64,
    threads: Vec<Thread>,
    locks: HashMap<(u32, u64), Lock>,
    spinning: Vec<usize>,
    ready: VecDeque<usize>,
    free_processors: usize,
    events: BinaryHeap<Reverse<(u64, u64, usize, Wake)>>,
    order: u64,
    exits: u64,
}

impl Machine {
    /// Runs one program per thread, repeatedly, for `duration` ns.
    pub(crate) fn run(
        &self,
        duration: u64,
        operations: &[&str],
        sites: &[&str],
        programs: Vec<Vec<Step>>,
    ) -> Run {
        let mut simulation = Simulation {
            machine: self,
            now: 0,
            random: self.seed | 1,
            threads: programs.into_iter().map(Thread::new).collect(),
            locks: HashMap::new(),
            spinning: Vec::new(),
            ready: VecDeque::new(),
            free_processors: self.processors,
            events: BinaryHeap::new(),
            order: 0,
            exits: 0,
        };
        (0..simulation.threads.len()).for_each(|t| simulation.wake(t, 0, Wake::Ready));
        while let Some(Reverse((time, _, thread, wake))) = simulation.events.pop() {
            if time > duration {
                break;
            }
            simulation.now = time;
            match wake {
                Wake::Ready => simulation.ready.push_back(thread),
                Wake::Running => simulation.turn_over(thread),
            }
            simulation.dispatch();
        }
        let throughput = simulation.exits as f64 / (duration as f64 / 1e9);
        let process_cpu_ns = simulation.threads.iter().map(|t| t.cpu_at(duration)).sum();
        let scripts = simulation.threads.into_iter().map(|t| t.script).collect();
        let mut trace = trace(duration, operations, sites, scripts);
        trace.end = ClockSample { ticks: duration, monotonic_ns: duration, process_cpu_ns };
        trace.session.processors = self.processors as u32;
        Run { trace, throughput }
    }
}

impl Thread {
    fn new(program: Vec<Step>) -> Self {
        Self {
            program,
            at: 0,
            script: Script::default(),
            left: 0,
            turn: 0,
            cpu: 0,
            on_cpu_since: None,
            switched: true,
            waiting: None,
            held: Vec::new(),
        }
    }

    fn cpu_at(&self, now: u64) -> u64 {
        self.cpu + self.on_cpu_since.map_or(0, |since| now.saturating_sub(since))
    }

    /// Writes an event, followed by an anchor if it is the first event since a switch.
    fn tell(&mut self, now: u64, write: impl FnOnce(Script) -> Script) {
        let cpu = self.cpu_at(now);
        let mut script = write(std::mem::take(&mut self.script));
        if std::mem::take(&mut self.switched) {
            script = script.switched().anchor(now, cpu);
        }
        self.script = script;
    }
}

impl Simulation<'_> {
    fn wake(&mut self, thread: usize, after: u64, wake: Wake) {
        self.order += 1;
        self.events.push(Reverse((self.now + after, self.order, thread, wake)));
    }

    fn draw(&mut self, duration: Duration) -> u64 {
        match duration {
            Duration::Fixed(ns) => ns,
            Duration::Exponential(mean) => {
                let uniform = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
                (-(1.0 - uniform).ln() * mean as f64) as u64
            }
        }
    }

    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Assigns free processors to ready threads.
    fn dispatch(&mut self) {
        while self.free_processors > 0
            && let Some(thread) = self.ready.pop_front()
        {
            self.free_processors -= 1;
            self.threads[thread].on_cpu_since = Some(self.now);
            self.threads[thread].turn = self.machine.quantum;
            self.go_on(thread);
        }
    }

    fn leave_processor(&mut self, thread: usize) {
        let t = &mut self.threads[thread];
        t.cpu = t.cpu_at(self.now);
        t.on_cpu_since = None;
        t.switched = true;
        self.free_processors += 1;
    }

    /// Runs steps of a thread with a processor until a step takes time.
    fn go_on(&mut self, thread: usize) {
        let now = self.now;
        if let Some((site, object)) = self.threads[thread].waiting.take() {
            self.threads[thread].tell(now, |s| s.end(now, site, object));
        }
        loop {
            if self.threads[thread].left > 0 {
                return self.compute(thread);
            }
            let t = &mut self.threads[thread];
            let step = t.program[t.at];
            t.at = (t.at + 1) % t.program.len();
            if !self.step(thread, step) {
                return;
            }
        }
    }

    /// Uses the processor until the end of the compute step or of the turn.
    fn compute(&mut self, thread: usize) {
        let t = &mut self.threads[thread];
        let ns = t.left.min(t.turn);
        t.left -= ns;
        t.turn -= ns;
        self.wake(thread, ns, Wake::Running);
    }

    /// Handles the end of a compute step or of a turn. At the end of a turn, other ready threads run first.
    fn turn_over(&mut self, thread: usize) {
        if self.threads[thread].turn == 0 {
            self.threads[thread].turn = self.machine.quantum;
            if !self.ready.is_empty() {
                self.leave_processor(thread);
                return self.ready.push_back(thread);
            }
        }
        self.go_on(thread);
    }

    /// Executes a step. Returns `false` if the step takes time.
    fn step(&mut self, thread: usize, step: Step) -> bool {
        let now = self.now;
        match step {
            Step::Enter(operation) => self.threads[thread].tell(now, |s| s.enter(now, operation)),
            Step::Exit => {
                let t = &mut self.threads[thread];
                t.tell(now, |s| s.exit(now));
                let exit = t.script.events.iter().rfind(|e| e.kind == EventKind::Exit);
                self.exits += u64::from(exit.is_some_and(|e| e.operation == 1));
            }
            Step::Compute(time) => self.threads[thread].left = self.draw(time),
            Step::Lock { site, object, mode, kind, spin } => {
                return self.lock(thread, (site, object), mode, kind, spin);
            }
            Step::LockOneOf { site, instances } => {
                let object = self.next() % instances;
                return self.lock(thread, (site, object), Mode::Exclusive, WaitKind::Latch, false);
            }
            Step::Unlock { site } => self.unlock(thread, site),
            Step::Device { site, time } => return self.away(thread, Some((site, WaitKind::Device)), time),
            Step::Idle { site, time } => return self.away(thread, Some((site, WaitKind::Idle)), time),
            Step::Sleep(time) => return self.away(thread, None, time),
            Step::WaitBegin(site) => {
                self.threads[thread].tell(now, |s| s.begin(now, site, 0, WaitKind::Latch));
            }
            Step::WaitEnd(site) => self.threads[thread].tell(now, |s| s.end(now, site, 0)),
        }
        true
    }

    fn away(&mut self, thread: usize, wait: Option<(u32, WaitKind)>, time: Duration) -> bool {
        let (now, ns) = (self.now, self.draw(time));
        if let Some((site, kind)) = wait {
            self.threads[thread].tell(now, |s| s.begin(now, site, 0, kind));
            self.threads[thread].waiting = Some((site, 0));
        }
        self.leave_processor(thread);
        self.wake(thread, ns, Wake::Ready);
        false
    }

    fn lock(&mut self, thread: usize, at: (u32, u64), mode: Mode, kind: WaitKind, spin: bool) -> bool {
        let now = self.now;
        if self.machine.free.contains(&at.0) {
            self.threads[thread].held.push((at.0, u64::MAX, mode, now));
            return true;
        }
        let lock = self.locks.entry(at).or_default();
        if lock.admits(mode) && lock.queue.is_empty() {
            lock.admit(mode);
            self.threads[thread].held.push((at.0, at.1, mode, now));
            return true;
        }
        lock.queue.push_back((thread, mode));
        let t = &mut self.threads[thread];
        t.tell(now, |s| s.begin(now, at.0, at.1, kind));
        t.waiting = Some(at);
        if spin {
            self.spinning.push(thread)
        } else {
            self.leave_processor(thread)
        }
        false
    }

    fn unlock(&mut self, thread: usize, site: u32) {
        let now = self.now;
        let t = &mut self.threads[thread];
        let index = t.held.iter().rposition(|h| h.0 == site).expect("held");
        let (_, object, mode, since) = t.held.remove(index);
        if object == u64::MAX {
            return; // a lock that costs nothing
        }
        if mode == Mode::Exclusive {
            t.tell(now, |s| s.hold(now, site, object, now - since).sampled());
        }
        let lock = self.locks.get_mut(&(site, object)).expect("locked");
        lock.dismiss(mode);
        let mut admitted = Vec::new();
        while let Some(&(next, mode)) = lock.queue.front()
            && lock.admits(mode)
        {
            lock.admit(mode);
            lock.queue.pop_front();
            admitted.push((next, mode));
        }
        for (next, mode) in admitted {
            self.threads[next].held.push((site, object, mode, now));
            match self.spinning.iter().position(|s| *s == next) {
                Some(i) => {
                    self.spinning.swap_remove(i);
                    self.wake(next, 0, Wake::Running);
                }
                None => self.wake(next, 0, Wake::Ready),
            }
        }
    }
}

impl Lock {
    fn admits(&self, mode: Mode) -> bool {
        !self.exclusive && (mode == Mode::Shared || self.readers == 0)
    }

    fn admit(&mut self, mode: Mode) {
        match mode {
            Mode::Exclusive => self.exclusive = true,
            Mode::Shared => self.readers += 1,
        }
    }

    fn dismiss(&mut self, mode: Mode) {
        match mode {
            Mode::Exclusive => self.exclusive = false,
            Mode::Shared => self.readers -= 1,
        }
    }
}
