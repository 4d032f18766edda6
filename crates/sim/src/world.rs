//! The state of a machine that runs: clocks of threads, processors, lines, sleepers.
//!
//! Time is that of the thread furthest behind: it goes first. So all accesses happen in order of virtual time, whatever they cost.
//!
//! - **WORLD-1** The running thread is on a processor and not in `queue`; every other thread that is on a processor is in `queue` once.
//! - **WORLD-2** Nothing here switches threads: what must give way says so to its caller.

use crate::coherence::{Directory, Served, Time, picoseconds};
use crate::lines::{Lines, Map};
use crate::processors::{Processors, Start, ThreadId};
use crate::profile::Profile;
use crate::random::Random;
use crate::schedule::{Chooser, Step};
use crate::stalls::Stalls;
use azekura_base::sync::machine::{Access, Work};
use std::any::Any;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::panic::Location;
use std::rc::Rc;

/// What a thread is doing.
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
    last_processor: Option<usize>,
    slice_end: Time,
    /// Time on processors, up to the last time that it left one, and when it came to the one that it is on.
    had: Time,
    since: Time,
    /// When all its stores are done.
    drained: Time,
    /// Naps of a thread have numbers, so that a timer knows whether it is still meant.
    nap: u64,
    locals: Vec<(usize, Rc<dyn Any>)>,
    accesses: u64,
    pub(crate) last_place: Option<&'static Location<'static>>,
}

impl Thread {
    /// Leaves its thread-locals where they are, for ever.
    pub(crate) fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.locals));
    }
}

/// Where one sleeps until a thread ends: no address of anything.
const fn end_of(thread: ThreadId) -> usize {
    usize::MAX - thread
}

/// Where a thread is to stop for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop {
    pub(crate) thread: ThreadId,
    /// Before this access of its, from 0.
    pub(crate) access: u64,
}

pub(crate) struct World {
    pub(crate) threads: Vec<Thread>,
    /// Bodies of the newest threads, which have no stacks yet.
    pub(crate) newborn: Vec<Box<dyn FnOnce()>>,
    pub(crate) current: ThreadId,
    queue: BinaryHeap<Reverse<(Time, u32, ThreadId)>>,
    timers: BinaryHeap<Reverse<(Time, ThreadId, u64)>>,
    asleep: Map<usize, VecDeque<ThreadId>>,
    processors: Processors,
    /// Threads on processors, by pipe of a core.
    pipes: Vec<u32>,
    pub(crate) directory: Directory,
    pub(crate) lines: Lines,
    pub(crate) stalls: Stalls,
    random: Random,
    pub(crate) steps: u64,
    /// Who goes next, if that is not a matter of time.
    pub(crate) chooser: Option<Chooser>,
    /// What was done, if that is wanted.
    pub(crate) trace: Option<Vec<Step>>,
    pub(crate) stop: Option<Stop>,
    profile: Rc<Profile>,
    gap: Time,
}

impl World {
    pub(crate) fn new(profile: Rc<Profile>, processors: usize, seed: u64) -> Self {
        let costs = &profile.costs;
        Self {
            threads: Vec::new(),
            newborn: Vec::new(),
            current: 0,
            queue: BinaryHeap::new(),
            timers: BinaryHeap::new(),
            asleep: Map::default(),
            processors: Processors::new(processors, picoseconds(costs.context_switch.value)),
            pipes: vec![0; profile.topology.cores() * profile.topology.pipes_per_core],
            directory: Directory::new(&profile),
            lines: Lines::default(),
            stalls: Stalls::default(),
            random: Random::new(seed),
            steps: 0,
            chooser: None,
            trace: None,
            stop: None,
            gap: picoseconds(costs.between_accesses.value),
            profile,
        }
    }

    pub(crate) fn set_gap(&mut self, gap: Time) {
        self.gap = gap;
    }

    /// A new thread, ready at this time.
    pub(crate) fn add_thread(&mut self, at: Time) -> ThreadId {
        let id = self.threads.len();
        self.threads.push(Thread {
            state: State::Ready,
            time: at,
            last_processor: None,
            slice_end: 0,
            had: 0,
            since: 0,
            drained: 0,
            nap: 0,
            locals: Vec::new(),
            accesses: 0,
            last_place: None,
        });
        self.make_ready(id, at, 0);
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

    // Who runs.

    fn make_ready(&mut self, thread: ThreadId, at: Time, wake: Time) {
        let last = self.threads[thread].last_processor;
        self.threads[thread].state = State::Ready;
        if let Some(start) = self.processors.wants(thread, last, at, wake) {
            self.start(start);
        }
    }

    fn start(&mut self, Start { thread: id, processor, at }: Start) {
        let slice = picoseconds(self.profile.costs.slice.value);
        let thread = &mut self.threads[id];
        thread.state = State::OnProcessor(processor);
        thread.last_processor = Some(processor);
        thread.time = thread.time.max(at);
        thread.slice_end = thread.time + slice;
        thread.since = thread.time;
        let time = thread.time;
        let pipe = self.pipe_of(processor);
        self.pipes[pipe] += 1;
        self.enqueue(id, time);
    }

    fn enqueue(&mut self, id: ThreadId, time: Time) {
        let tie = self.random.next() as u32;
        self.queue.push(Reverse((time, tie, id)));
    }

    /// The running thread, which does not go on now, leaves its processor.
    fn leave(&mut self, state: State) {
        let (processor, now) = (self.processor(), self.threads[self.current].time);
        let me = self.me();
        me.state = state;
        me.had += now - me.since;
        let pipe = self.pipe_of(processor);
        self.pipes[pipe] -= 1;
        if let Some(start) = self.processors.leaves(processor, now) {
            self.start(start);
        }
    }

    /// A thread that the running one starts. Its stack is made when it first runs.
    pub(crate) fn spawn(&mut self, body: Box<dyn FnOnce()>) -> ThreadId {
        self.work(Work::SystemCall);
        let now = self.me().time;
        self.newborn.push(body);
        self.add_thread(now)
    }

    /// Whether the running thread must give way until another has ended; it sleeps then.
    pub(crate) fn must_join(&mut self, thread: ThreadId) -> bool {
        let must_sleep = self.threads[thread].state != State::Ended;
        if must_sleep {
            self.sleep(end_of(thread), None);
        }
        must_sleep
    }

    pub(crate) fn end(&mut self) {
        self.unpark(end_of(self.current), usize::MAX);
        self.leave(State::Ended);
    }

    /// The next thread to run, if there is one.
    pub(crate) fn next(&mut self) -> Option<ThreadId> {
        let earliest = self.queue.peek().map(|Reverse((time, ..))| *time);
        if self.chooser.is_none() || earliest.is_none() {
            self.fire_timers(earliest);
        }
        let id = if self.chooser.is_some() { self.next_chosen()? } else { self.queue.pop()?.0.2 };
        self.current = id;
        Some(id)
    }

    /// Who was chosen, or the next one in turn.
    fn next_chosen(&mut self) -> Option<ThreadId> {
        let chosen = self.chooser.as_mut()?.next.take();
        let waiting = || self.queue.iter().map(|Reverse((.., id))| *id);
        let in_turn = || waiting().filter(|&id| id > self.current).min().or_else(|| waiting().min());
        let id = chosen.filter(|&chosen| waiting().any(|id| id == chosen)).or_else(in_turn)?;
        self.queue.retain(|Reverse((.., waiting))| *waiting != id);
        Some(id)
    }

    /// Whether the running thread is interrupted here, by choice.
    fn is_preempted(&mut self) -> bool {
        let (steps, me) = (self.steps, self.current);
        let mut others: Vec<ThreadId> = self.queue.iter().map(|Reverse((.., id))| *id).collect();
        others.sort_unstable();
        let Some(chooser) = &mut self.chooser else { return false };
        let is_preempted = chooser.preempts(steps, &others);
        if is_preempted {
            let time = self.threads[me].time;
            self.enqueue(me, time);
        }
        is_preempted
    }

    /// Wakes who slept long enough, as far as that comes before `now`; without one, whoever wakes first.
    fn fire_timers(&mut self, now: Option<Time>) {
        let mut now = now;
        while let Some(&Reverse((at, id, nap))) = self.timers.peek() {
            if now.is_some_and(|now| at > now) {
                return;
            }
            self.timers.pop();
            let State::Asleep { address } = self.threads[id].state else { continue };
            if self.threads[id].nap != nap {
                continue;
            }
            if let Some(sleepers) = self.asleep.get_mut(&address) {
                sleepers.retain(|&sleeper| sleeper != id);
            }
            self.wake(id, at);
            now = self.queue.peek().map(|Reverse((time, ..))| *time);
        }
    }

    fn wake(&mut self, id: ThreadId, at: Time) {
        let wake = picoseconds(self.profile.costs.wake.value);
        self.make_ready(id, at, wake);
    }

    /// Whether the running thread must give way before it does anything that others see: it is put where it belongs if so.
    pub(crate) fn must_give_way(&mut self) -> bool {
        if self.chooser.is_some() {
            return self.is_preempted();
        }
        let Thread { time, slice_end, .. } = self.threads[self.current];
        if time >= slice_end && self.processors.has_ready() {
            self.requeue();
            return true;
        }
        let first = self.queue.peek().is_some_and(|Reverse((other, ..))| *other < time)
            || self.timers.peek().is_some_and(|Reverse((at, ..))| *at <= time);
        if first {
            self.enqueue(self.current, time);
        }
        first
    }

    /// To the end of the line for a processor.
    fn requeue(&mut self) {
        let (me, now) = (self.current, self.me().time);
        self.leave(State::Ready);
        self.make_ready(me, now, 0);
    }

    // What it does.

    /// Whether the thread is to stop here for ever; it is stopped then.
    pub(crate) fn stops_here(&mut self) -> bool {
        let me = self.current;
        let is_here =
            self.stop.is_some_and(|stop| stop.thread == me && stop.access == self.threads[me].accesses);
        if is_here {
            self.leave(State::Stopped);
        }
        is_here
    }

    /// Lets the stopped thread go on.
    pub(crate) fn release_stopped(&mut self) {
        self.stop = None;
        let now = self.threads.iter().map(|thread| thread.time).max().unwrap_or(0);
        for id in 0..self.threads.len() {
            if self.threads[id].state == State::Stopped {
                self.make_ready(id, now, 0);
            }
        }
    }

    /// Time for which a thread, or all of them, have had processors.
    pub(crate) fn processor_time(&self, thread: Option<ThreadId>) -> Time {
        let of = |thread: &Thread| match thread.state {
            State::OnProcessor(_) => thread.had + (thread.time - thread.since),
            _ => thread.had,
        };
        match thread {
            Some(id) => self.threads.get(id).map_or(0, of),
            None => self.threads.iter().map(of).sum(),
        }
    }

    /// The number of the line at `address`.
    pub(crate) fn line(&mut self, address: usize) -> u32 {
        let core = self.profile.topology.core_of(self.processor());
        self.lines.number(address, core)
    }

    /// Plain computation since the last access, on the core's pipe.
    pub(crate) fn compute(&mut self) {
        let gap = self.gap;
        if gap == 0 {
            return;
        }
        // A quarter more or less: real gaps are not all alike, and threads in lockstep would be an artefact.
        let gap = gap * 3 / 4 + self.random.below(gap / 2 + 1);
        self.occupy_pipe(gap);
    }

    /// Computes on the core's pipe: longer, when other threads of the core compute there too.
    fn occupy_pipe(&mut self, time: Time) {
        let others = self.pipes[self.pipe_of(self.processor())] - 1;
        let more = time as f64 * f64::from(others) * self.profile.costs.pipe_share.value;
        self.me().time += time + more as Time;
    }

    fn pipe_of(&self, processor: usize) -> usize {
        let topology = &self.profile.topology;
        let strand = processor / topology.cores();
        topology.core_of(processor) * topology.pipes_per_core + strand % topology.pipes_per_core
    }

    /// A block was freed.
    pub(crate) fn freed(&mut self, address: usize, bytes: usize) {
        let core = match self.threads.get(self.current).map(|thread| thread.state) {
            Some(State::OnProcessor(processor)) => self.profile.topology.core_of(processor),
            _ => 0,
        };
        self.lines.forget(address, bytes, core);
    }

    pub(crate) fn access(
        &mut self,
        address: usize,
        access: Access,
        place: &'static Location<'static>,
    ) -> u32 {
        let core = self.profile.topology.core_of(self.processor());
        let line = self.lines.number(address, core);
        let me = &mut self.threads[self.current];
        let served: Served = self.directory.access(core, line, access, me.time, me.drained);
        me.time = served.until;
        me.drained = me.drained.max(served.done);
        me.accesses += 1;
        me.last_place = Some(place);
        self.steps += 1;
        self.stalls.add(line, place, &served);
        if let Some(trace) = &mut self.trace {
            trace.push(Step { thread: self.current, access, place });
        }
        line
    }

    pub(crate) fn needs_loop(&self, access: Access) -> bool {
        access == Access::Add && !self.profile.adds_in_one_step
    }

    pub(crate) fn full_fence(&mut self) {
        let me = self.me();
        me.time = me.time.max(me.drained);
    }

    /// Processors of this run.
    pub(crate) fn processor_count(&self) -> usize {
        self.processors.count()
    }

    /// A number from the run's seed.
    pub(crate) fn draw(&mut self) -> u64 {
        self.random.next()
    }

    pub(crate) fn spend(&mut self, nanoseconds: f64) {
        let time = picoseconds(nanoseconds);
        self.me().time += time;
    }

    pub(crate) fn work(&mut self, work: Work) {
        let costs = &self.profile.costs;
        let nanoseconds = match work {
            Work::Copy(bytes) => costs.copy_byte.value * bytes as f64,
            Work::SystemCall => costs.system_call.value,
            Work::Nanoseconds(nanoseconds) => nanoseconds as f64,
        };
        self.spend(nanoseconds);
    }

    /// A turn of a spin; whether another thread goes first.
    pub(crate) fn pause(&mut self) -> bool {
        let pause = picoseconds(self.profile.costs.pause.value);
        self.occupy_pipe(pause);
        self.steps += 1;
        self.is_in_turn()
    }

    /// Where time does not decide, whoever spins lets the others go on.
    fn is_in_turn(&mut self) -> bool {
        let is_chosen = self.chooser.is_some() && !self.queue.is_empty();
        if is_chosen {
            let (me, time) = (self.current, self.me().time);
            self.enqueue(me, time);
        }
        is_chosen
    }

    /// Gives the processor to who is ready; whether somebody was.
    pub(crate) fn yield_now(&mut self) -> bool {
        self.work(Work::SystemCall);
        self.steps += 1;
        if self.is_in_turn() {
            return true;
        }
        let is_wanted = self.processors.has_ready();
        if is_wanted {
            self.requeue();
        }
        is_wanted
    }

    /// The thread sleeps at `address` (0: nobody will wake it), for `time` at most.
    pub(crate) fn sleep(&mut self, address: usize, time: Option<Time>) {
        self.work(Work::SystemCall);
        let me = self.current;
        let thread = &mut self.threads[me];
        thread.nap += 1;
        if let Some(time) = time {
            self.timers.push(Reverse((thread.time + time, me, thread.nap)));
        }
        if address != 0 {
            self.asleep.entry(address).or_default().push_back(me);
        }
        self.leave(State::Asleep { address });
    }

    pub(crate) fn unpark(&mut self, address: usize, at_most: usize) -> usize {
        let Some(sleepers) = self.asleep.get_mut(&address) else { return 0 };
        let woken: Vec<ThreadId> = sleepers.drain(..at_most.min(sleepers.len())).collect();
        if sleepers.is_empty() {
            self.asleep.remove(&address);
        }
        if !woken.is_empty() {
            self.work(Work::SystemCall);
        }
        let now = self.me().time;
        woken.iter().for_each(|&id| self.wake(id, now));
        woken.len()
    }

    pub(crate) fn local(&mut self, key: usize) -> Option<Rc<dyn Any>> {
        let found = self.me().locals.iter().find(|(at, _)| *at == key);
        found.map(|(_, value)| Rc::clone(value))
    }

    pub(crate) fn take_local(&mut self) -> Option<Rc<dyn Any>> {
        self.me().locals.pop().map(|(_, value)| value)
    }

    pub(crate) fn set_local(&mut self, key: usize, value: Rc<dyn Any>) {
        self.me().locals.push((key, value));
    }
}
