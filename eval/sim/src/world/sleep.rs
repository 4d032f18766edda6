//! Sleeping threads, and the timers that wake them.
//!
//! - **SLEEP-1** A sleeper with a time limit has one timer, with the number of its current sleep. A thread
//!   that is woken earlier leaves an obsolete timer, recognized by its number. Obsolete timers are removed
//!   when there are too many of them, so there are never more than a few for each thread.

use crate::coherence::{Time, picoseconds};
use crate::lines::Map;
use crate::processors::ThreadId;
use azekura_base::sync::machine::Work;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::World;
use super::thread::{State, Thread};

#[derive(Default)]
pub(super) struct Sleepers {
    /// Sleeping threads by the address at which they can be woken, in the order in which they fell asleep.
    at: Map<usize, VecDeque<ThreadId>>,
    timers: Timers,
}

/// Timers: time, thread, and number of the thread's sleep.
#[derive(Default)]
struct Timers(BinaryHeap<Reverse<(Time, ThreadId, u64)>>);

/// Obsolete timers are removed when there are more than [`FEW_TIMERS`] and this number for each thread.
const TIMERS_PER_THREAD: usize = 4;
const FEW_TIMERS: usize = 64;

/// Returns the address at which other threads wait for the end of a thread. No object has this address.
const fn end_of(thread: ThreadId) -> usize {
    usize::MAX - thread
}

impl Timers {
    fn set(&mut self, timer: (Time, ThreadId, u64), threads: &[Thread]) {
        self.0.push(Reverse(timer));
        if self.0.len() > FEW_TIMERS + TIMERS_PER_THREAD * threads.len() {
            self.0.retain(|Reverse((_, id, nap))| is_meant(&threads[*id], *nap)); // SLEEP-1
        }
    }

    /// Returns `true` if a timer fires before `until` for one of these threads.
    fn any_before(&self, until: Time, threads: &[Thread], is_one: impl Fn(&ThreadId) -> bool) -> bool {
        self.0.iter().any(|Reverse((at, id, nap))| *at < until && is_one(id) && is_meant(&threads[*id], *nap))
    }

    fn earliest(&self) -> Option<Time> {
        self.0.peek().map(|Reverse((at, ..))| *at)
    }
}

fn is_meant(thread: &Thread, nap: u64) -> bool {
    matches!(thread.state, State::Asleep { .. }) && thread.nap == nap
}

impl Sleepers {
    /// Returns the time of the first timer, which may be obsolete.
    pub(super) fn first_timer(&self) -> Option<Time> {
        self.timers.earliest()
    }
}

impl World {
    /// Puts the running thread to sleep at `address` (0: no thread will wake it) for at most `time`. Returns
    /// `false` if that time has passed when the alarm is set; the thread does not sleep then.
    pub(crate) fn sleep(&mut self, address: usize, time: Option<Time>) -> bool {
        self.work(Work::SystemCall);
        let until = time.map(|time| self.me().time + time);
        if until.is_some_and(|until| self.set_alarm(until)) {
            return false;
        }
        let me = self.current;
        let thread = &mut self.threads[me];
        thread.nap += 1;
        let nap = thread.nap;
        if address != 0 {
            self.sleepers.at.entry(address).or_default().push_back(me);
        }
        self.leave(State::Asleep { address });
        if let Some(until) = until {
            self.sleepers.timers.set((until, me, nap), &self.threads);
        }
        true
    }

    /// Adds the time for setting the alarm, if it is the first one of its processor. Returns `true` if the
    /// alarm has then passed.
    fn set_alarm(&mut self, until: Time) -> bool {
        let (set, missed, processor) = (self.alarm_set, self.alarm_missed, self.processor());
        let of_here = |id: &ThreadId| self.threads[*id].last_processor == Some(processor);
        if set == 0 || self.sleepers.timers.any_before(until, &self.threads, of_here) {
            return false;
        }
        let me = self.me();
        me.has_alarm = me.time + set < until;
        me.time += if me.has_alarm { set } else { missed.max(set) };
        !me.has_alarm
    }

    pub(crate) fn unpark(&mut self, address: usize, at_most: usize) -> usize {
        let Some(sleepers) = self.sleepers.at.get_mut(&address) else { return 0 };
        let woken: Vec<ThreadId> = sleepers.drain(..at_most.min(sleepers.len())).collect();
        if sleepers.is_empty() {
            self.sleepers.at.remove(&address);
        }
        let (call, wake) = (picoseconds(self.profile.costs.wake_call.value), self.wake);
        if !woken.is_empty() {
            self.me().time += call;
        }
        let now = self.me().time;
        for &id in &woken {
            if std::mem::take(&mut self.threads[id].has_alarm) {
                self.threads[id].lost = self.alarm_set;
            }
            self.make_ready(id, now, Some(wake));
        }
        woken.len()
    }

    /// Returns `true` if the running thread must wait for the end of another thread; it then sleeps.
    pub(crate) fn must_join(&mut self, thread: ThreadId) -> bool {
        self.threads[thread].state != State::Ended && self.sleep(end_of(thread), None)
    }

    pub(crate) fn end(&mut self) {
        self.unpark(end_of(self.current), usize::MAX);
        self.leave(State::Ended);
    }

    /// Wakes threads with timers before the next thread's clock. Without a next thread, wakes the first
    /// sleeper.
    pub(super) fn fire_timers(&mut self) {
        while let Some(&Reverse((at, id, nap))) = self.sleepers.timers.0.peek() {
            if self.queue.earliest().is_some_and(|now| at > now) {
                return;
            }
            self.sleepers.timers.0.pop();
            let State::Asleep { address } = self.threads[id].state else { continue };
            if self.threads[id].nap != nap {
                continue;
            }
            self.forget_sleeper(address, id);
            self.threads[id].has_alarm = false;
            self.make_ready(id, at, Some(self.alarm));
        }
    }

    fn forget_sleeper(&mut self, address: usize, id: ThreadId) {
        if let Some(sleepers) = self.sleepers.at.get_mut(&address) {
            sleepers.retain(|&sleeper| sleeper != id);
            if sleepers.is_empty() {
                self.sleepers.at.remove(&address);
            }
        }
    }

    /// Returns the number of timers, including obsolete ones.
    #[cfg(test)]
    fn timers(&self) -> usize {
        self.sleepers.timers.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;
    use std::rc::Rc;

    /// Returns a world with two ready threads on two processors.
    fn two() -> World {
        let mut world = World::new(Rc::new(Profile::t2()), 2, 1);
        world.add_thread(0);
        world.add_thread(0);
        world
    }

    fn run(world: &mut World, id: ThreadId) {
        while world.next() != Some(id) {
            world.me().time += 1 << 30; // longer than a wake-up takes
            let time = world.me().time;
            world.enqueue(world.current, time);
        }
    }

    #[test]
    fn timers_of_naps_that_were_cut_short_do_not_pile_up() {
        let mut world = two();
        for _ in 0..10_000 {
            run(&mut world, 1);
            world.sleep(8, Some(1 << 60));
            assert_eq!(world.next(), Some(0));
            assert_eq!(world.unpark(8, 1), 1);
            let time = world.me().time;
            world.enqueue(0, time);
        }
        assert!(world.timers() <= FEW_TIMERS + 2 * TIMERS_PER_THREAD, "{}", world.timers());
    }

    #[test]
    fn a_sweep_of_timers_keeps_those_that_will_wake_a_thread() {
        let mut world = two();
        run(&mut world, 1);
        world.sleep(8, Some(1 << 40));
        for late in 0..1000 {
            world.sleepers.timers.set(((1 << 40) + late, 0, 77), &world.threads);
        }
        assert_eq!(world.next(), Some(0));
        world.leave(State::Ended);
        assert_eq!(world.next(), Some(1), "nobody else is left, so its timer fires");
        assert!(world.me().time > 1 << 40);
    }

    #[test]
    fn a_thread_that_timed_out_cannot_be_woken_and_leaves_no_address() {
        let mut world = two();
        run(&mut world, 1);
        world.sleep(8, Some(5));
        assert_eq!(world.next(), Some(0));
        world.me().time += 1 << 40;
        let time = world.me().time;
        world.enqueue(0, time);
        assert_eq!(world.next(), Some(1));
        assert_eq!((world.unpark(8, 1), world.sleepers.at.len()), (0, 0));
    }
}
