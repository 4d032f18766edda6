//! The running thread, its processor, and the next thread.

use crate::coherence::{Time, picoseconds};
use crate::processors::{Start, ThreadId, Wish};
use crate::profile::Constant;
use azekura_base::sync::machine::Work;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::World;
use super::thread::{State, Thread};

/// Threads on processors other than the running one: clock, a random number that decides between equal
/// clocks, and number of the thread.
#[derive(Default)]
pub(super) struct Queue(BinaryHeap<Reverse<(Time, u32, ThreadId)>>);

impl Queue {
    pub(super) fn earliest(&self) -> Option<Time> {
        self.0.peek().map(|Reverse((time, ..))| *time)
    }

    fn ids(&self) -> impl Iterator<Item = ThreadId> + '_ {
        self.0.iter().map(|Reverse((.., id))| *id)
    }

    /// Inserts a thread and removes the first one, with one pass through the heap instead of two.
    fn exchange(&mut self, entry: (Time, u32, ThreadId)) -> Option<ThreadId> {
        let mut first = self.0.peek_mut()?;
        let Reverse((.., id)) = std::mem::replace(&mut *first, Reverse(entry));
        Some(id)
    }
}

/// Times from a wake-up until the thread runs on an idle processor, and until a computing thread gives way to
/// it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wake {
    idle: Time,
    busy: Time,
}

impl Wake {
    pub(super) fn of(idle: &Constant, busy: &Constant) -> Self {
        Self { idle: picoseconds(idle.value), busy: picoseconds(busy.value) }
    }
}

impl World {
    /// Makes a thread ready at `at`. `wake` has the times of its wake-up, if it slept.
    pub(super) fn make_ready(&mut self, thread: ThreadId, at: Time, wake: Option<Wake>) {
        let last = self.threads[thread].last_processor;
        self.threads[thread].state = State::Ready;
        match self.processors.wants(thread, last, at, wake.map(|wake| wake.idle)) {
            Wish::Granted(start) => self.start(start),
            // A woken thread goes before a computing one. The thread on its processor gives way `busy` later,
            // or when it has had the processor for the undisturbed time.
            Wish::Waits { instead_of: Some(busy) } => {
                let (busy, noticed) = (&mut self.threads[busy], at + wake.map_or(0, |wake| wake.busy));
                busy.slice_end = busy.slice_end.min(noticed.max(busy.since + self.undisturbed));
                busy.lost = self.interrupt;
            }
            Wish::Waits { instead_of: None } => {}
        }
    }

    fn start(&mut self, Start { thread: id, processor, at }: Start) {
        let thread = &mut self.threads[id];
        thread.state = State::OnProcessor(processor);
        thread.last_processor = Some(processor);
        thread.time = thread.time.max(at) + std::mem::take(&mut thread.lost);
        thread.slice_end = thread.time + self.slice;
        thread.since = thread.time;
        let time = thread.time;
        self.pipes[self.places[processor].pipe] += 1;
        self.enqueue(id, time);
    }

    pub(super) fn enqueue(&mut self, id: ThreadId, time: Time) {
        let lot = self.random.next() as u32;
        self.queue.0.push(Reverse((time, lot, id)));
    }

    /// Takes the running thread off its processor.
    pub(super) fn leave(&mut self, state: State) {
        let (processor, now) = (self.processor(), self.threads[self.current].time);
        let me = self.me();
        me.state = state;
        me.had += now - me.since;
        self.pipes[self.places[processor].pipe] -= 1;
        if let Some(start) = self.processors.leaves(processor, now) {
            self.start(start);
        }
    }

    /// Starts a thread. Its stack is allocated when it first runs.
    pub(crate) fn spawn(&mut self, body: Box<dyn FnOnce()>) -> ThreadId {
        self.work(Work::SystemCall);
        let now = self.me().time;
        self.newborn.push(body);
        self.add_thread(now)
    }

    /// Selects the next thread to run, if there is one.
    pub(crate) fn next(&mut self) -> Option<ThreadId> {
        if let Some(id) = self.successor.take() {
            self.current = id;
            return Some(id);
        }
        if self.chooser.is_none() || self.queue.0.is_empty() {
            self.fire_timers();
        }
        let id = if self.chooser.is_some() { self.next_chosen()? } else { self.queue.0.pop()?.0.2 };
        self.current = id;
        Some(id)
    }

    /// Returns the chosen thread; without a choice, the one with the next number.
    fn next_chosen(&mut self) -> Option<ThreadId> {
        let chosen = self.chooser.as_mut()?.next.take();
        let in_turn =
            || self.queue.ids().filter(|&id| id > self.current).min().or_else(|| self.queue.ids().min());
        let id = chosen.filter(|&chosen| self.queue.ids().any(|id| id == chosen)).or_else(in_turn)?;
        self.queue.0.retain(|Reverse((.., waiting))| *waiting != id);
        Some(id)
    }

    /// Returns `true` if the schedule interrupts the running thread here.
    fn is_preempted(&mut self) -> bool {
        let (steps, me) = (self.steps, self.current);
        let mut others: Vec<ThreadId> = self.queue.ids().collect();
        others.sort_unstable();
        let Some(chooser) = &mut self.chooser else { return false };
        let is_preempted = chooser.preempts(steps, &others);
        if is_preempted {
            let time = self.threads[me].time;
            self.enqueue(me, time);
        }
        is_preempted
    }

    /// Returns `true` if the running thread must give way before its next access; puts it into the queue in
    /// this case.
    pub(super) fn must_give_way(&mut self) -> bool {
        if self.steps > self.max_steps {
            // The thread is alone, and perhaps spins. It must return to the code that counts steps.
            self.enqueue(self.current, self.threads[self.current].time);
            return true;
        }
        if self.chooser.is_some() {
            return self.is_preempted();
        }
        let Thread { time, slice_end, .. } = self.threads[self.current];
        if time >= slice_end && self.processors.has_ready() {
            self.requeue();
            return true;
        }
        if self.sleepers.first_timer().is_some_and(|timer| timer <= time) {
            self.enqueue(self.current, time);
            return true;
        }
        // The common case: the clock of another thread is earlier, and no timer is.
        let is_behind = self.queue.earliest().is_some_and(|other| other < time);
        if is_behind {
            let lot = self.random.next() as u32;
            self.successor = self.queue.exchange((time, lot, self.current));
        }
        is_behind
    }

    /// Puts the running thread at the end of the queue for a processor.
    fn requeue(&mut self) {
        let (me, now) = (self.current, self.me().time);
        self.leave(State::Ready);
        self.make_ready(me, now, None);
    }

    /// Returns `true` if the running thread, which spins or yields, must give way to others by its schedule:
    /// time does not decide, and another thread can run.
    pub(super) fn is_in_turn(&mut self) -> bool {
        let is_chosen = self.chooser.is_some() && !self.queue.0.is_empty();
        if is_chosen {
            let (me, time) = (self.current, self.me().time);
            self.enqueue(me, time);
        }
        is_chosen
    }

    /// Gives the processor to a ready thread; returns `true` if the running thread must give way.
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

    /// Stops the running thread if its stop is here; returns `true` in this case.
    pub(super) fn stops_here(&mut self) -> bool {
        let me = self.current;
        let is_here =
            self.stop.is_some_and(|stop| stop.thread == me && stop.access == self.threads[me].accesses);
        if is_here {
            self.leave(State::Stopped);
        }
        is_here
    }

    /// Makes the stopped thread ready again.
    pub(crate) fn release_stopped(&mut self) {
        self.stop = None;
        let now = self.threads.iter().map(|thread| thread.time).max().unwrap_or(0);
        for id in 0..self.threads.len() {
            if self.threads[id].state == State::Stopped {
                self.make_ready(id, now, None);
            }
        }
    }
}
