//! The work of the running thread, and its time.

use crate::coherence::{Served, Time, picoseconds};
use crate::schedule::Step;
use azekura_base::sync::machine::{Access, Work};
use std::panic::Location;

use super::World;

/// Result of a thread's arrival at an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The thread may make the access.
    Goes,
    /// Another thread goes first.
    GivesWay,
    /// The thread is stopped here. It arrives again when all others have ended.
    Stops,
}

impl World {
    /// Adds the computation since the running thread's last access, and decides whether it may make the next
    /// one.
    pub(crate) fn arrive(&mut self) -> Arrival {
        if self.stop.is_some() && self.stops_here() {
            return Arrival::Stops;
        }
        self.compute();
        if self.must_give_way() { Arrival::GivesWay } else { Arrival::Goes }
    }

    /// Adds the time of the computation since the last access, on the core's pipe.
    fn compute(&mut self) {
        let gap = self.gap;
        if gap == 0 {
            return;
        }
        // Varied by a quarter: real times vary, and threads in lockstep would be an artifact.
        let gap = gap * 3 / 4 + self.random.below(gap / 2 + 1);
        self.occupy_pipe(gap);
    }

    /// Adds computing time on the core's pipe. It takes longer if other threads of the pipe compute too.
    fn occupy_pipe(&mut self, time: Time) {
        let others = self.pipes[self.places[self.processor()].pipe] - 1;
        let more = time as f64 * f64::from(others) * self.profile.costs.pipe_share.value;
        self.me().time += time + more as Time;
    }

    /// Makes an access. If `writes` is set, the line's value changes; a compare-and-swap that fails does not
    /// change it.
    pub(crate) fn access(
        &mut self,
        address: usize,
        access: Access,
        writes: bool,
        place: &'static Location<'static>,
    ) -> u32 {
        let core = self.places[self.processor()].core;
        let line = self.lines.number(address, core);
        let me = &mut self.threads[self.current];
        let began = me.time;
        let served: Served = if self.free.has(place) {
            self.directory.alone(line, access, me.time, me.drained)
        } else {
            self.directory.access(core, line, access, me.time, me.drained)
        };
        if writes {
            self.directory.wrote(line);
        }
        me.time = served.until;
        me.drained = me.drained.max(served.done);
        me.accesses += 1;
        me.last_place = Some(place);
        self.steps += 1;
        if (self.counting.from..self.counting.until).contains(&began) {
            self.counting.steps += 1;
            self.counting.stalls.add(line, place, &served);
        }
        if let Some(trace) = &mut self.trace {
            trace.push(Step { thread: self.current, access, place });
        }
        line
    }

    pub(crate) fn needs_loop(&mut self, access: Access, place: &'static Location<'static>) -> bool {
        access == Access::Add && !self.profile.adds_in_one_step && !self.free.has(place)
    }

    pub(crate) fn full_fence(&mut self) {
        let me = self.me();
        me.time = me.time.max(me.drained);
    }

    pub(crate) fn work(&mut self, work: Work) {
        let costs = &self.profile.costs;
        let nanoseconds = match work {
            Work::Copy(bytes) => costs.copy_byte.value * bytes as f64,
            Work::SystemCall => costs.system_call.value,
            Work::Nanoseconds(nanoseconds) => nanoseconds as f64,
        };
        self.me().time += picoseconds(nanoseconds);
    }

    /// Adds one iteration of a spin loop; returns `true` if the running thread must give way.
    pub(crate) fn pause(&mut self) -> bool {
        let pause = picoseconds(self.profile.costs.pause.value);
        self.occupy_pipe(pause);
        self.steps += 1;
        self.is_in_turn()
    }
}
