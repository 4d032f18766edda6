//! Costs of this machine: medians of small measurements, each repeated in every round.

use azekura_sim::Profile;
use azekura_sim::profile::{Constant, Source};
use std::io;

use super::runs::Runs;
use super::{caches, constants, scheduling, transfers};

/// Bytes of memory for the measurement of main memory: more than the last-level cache of any usual processor.
const MEMORY_BYTES: usize = 256 << 20;

/// Results of the small measurements: one per call of [`Costs::measure`].
#[derive(Debug, Default)]
pub(super) struct Costs {
    load_hit: Runs,
    store: Runs,
    swap: Runs,
    pause: Runs,
    copy_byte: Runs,
    shared_hit: Runs,
    memory: Runs,
    transfer: Runs,
    contended: Runs,
    system_call: Runs,
    wake_call: Runs,
    wake: Runs,
    context_switch: Runs,
    alarm: Runs,
    wake_busy: Runs,
    alarm_busy: Runs,
    alarm_set: Runs,
    alarm_missed: Runs,
    interrupt: Runs,
    undisturbed: Runs,
    slice: Runs,
}

pub(super) const fn measured(value: f64) -> Constant {
    Constant { value, source: Source::Measured }
}

impl Costs {
    /// Runs each measurement once, which takes one or two seconds in all.
    pub(super) fn measure(&mut self) -> io::Result<()> {
        self.load_hit.run(|| io::Result::Ok(constants::load_hit()))?;
        self.store.run(|| io::Result::Ok(constants::store()))?;
        self.swap.run(|| io::Result::Ok(constants::swap()))?;
        self.pause.run(|| io::Result::Ok(constants::pause()))?;
        self.copy_byte.run(|| io::Result::Ok(constants::copy_byte()))?;
        self.shared_hit.run(|| io::Result::Ok(constants::chase(2 * caches::own().bytes)))?;
        self.memory.run(|| io::Result::Ok(constants::chase(MEMORY_BYTES)))?;
        self.transfer.run(transfers::transfer)?;
        self.contended.run(transfers::contended)?;
        self.system_call.run(|| io::Result::Ok(constants::system_call()))?;
        self.measure_scheduling()
    }

    fn measure_scheduling(&mut self) -> io::Result<()> {
        let system_call = self.system_call.median();
        let mut wake = 0.0;
        self.wake_call.run(|| {
            let (call, after) = scheduling::wake()?;
            wake = after;
            io::Result::Ok(call)
        })?;
        self.wake.run_beside(&self.wake_call, wake);
        self.context_switch.run(|| scheduling::context_switch(system_call))?;
        self.alarm.run(scheduling::alarm)?;
        let alarm = self.alarm.median();
        // The next two measurements include a context switch, which the profile counts separately.
        let switch = self.context_switch.median();
        let mut interrupt = 0.0;
        self.wake_busy.run(|| {
            let (after, lost) = scheduling::wake_busy()?;
            // The loss includes a switch to the sleeper and one back, and the sleeper's two system calls.
            interrupt = (lost - 2.0 * switch - 2.0 * system_call).max(0.0);
            io::Result::Ok((after - switch).max(0.0))
        })?;
        self.interrupt.run_beside(&self.wake_busy, interrupt);
        let mut missed = 0.0;
        self.alarm_set.run(|| {
            let (set, over) = scheduling::alarm_set()?;
            missed = (over - system_call).max(0.0);
            io::Result::Ok((set - system_call).max(0.0))
        })?;
        self.alarm_missed.run_beside(&self.alarm_set, missed);
        let mut late = 0.0;
        self.undisturbed.run(|| {
            let (undisturbed, alarm) = scheduling::undisturbed(alarm)?;
            late = (alarm - switch).max(0.0);
            io::Result::Ok(undisturbed)
        })?;
        self.alarm_busy.run_beside(&self.undisturbed, late);
        self.slice.run(scheduling::slice)
    }

    /// Returns a profile of this machine: equal processors on one socket, with one last-level cache.
    pub(super) fn profile(&self) -> Profile {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut profile = Profile::two_sockets();
        profile.name = "here".into();
        profile.describes = format!("this machine, {cores} processors, as measured");
        let topology = &mut profile.topology;
        (topology.sockets, topology.clusters_per_socket, topology.cores_per_cluster) = (1, 1, cores);
        (topology.threads_per_core, topology.pipes_per_core) = (1, 1);
        (topology.private_lines, topology.shared_lines) = (caches::own().lines(), caches::last().lines());
        let costs = &mut profile.costs;
        costs.other_socket.value = 0.0;
        for (constant, runs) in [
            (&mut costs.load_hit, &self.load_hit),
            (&mut costs.store, &self.store),
            (&mut costs.swap, &self.swap),
            (&mut costs.pause, &self.pause),
            (&mut costs.copy_byte, &self.copy_byte),
            (&mut costs.shared_hit, &self.shared_hit),
            (&mut costs.memory, &self.memory),
            (&mut costs.transfer_in_cluster, &self.transfer),
            (&mut costs.transfer_in_socket, &self.transfer),
            (&mut costs.system_call, &self.system_call),
            (&mut costs.wake_call, &self.wake_call),
            (&mut costs.wake, &self.wake),
            (&mut costs.context_switch, &self.context_switch),
            (&mut costs.alarm, &self.alarm),
            (&mut costs.wake_busy, &self.wake_busy),
            (&mut costs.alarm_busy, &self.alarm_busy),
            (&mut costs.alarm_set, &self.alarm_set),
            (&mut costs.alarm_missed, &self.alarm_missed),
            (&mut costs.interrupt, &self.interrupt),
            (&mut costs.undisturbed, &self.undisturbed),
            (&mut costs.slice, &self.slice),
        ] {
            *constant = measured(runs.median());
        }
        let way = self.transfer.median() + self.swap.median();
        costs.transfer_occupancy = measured((self.contended.median() / way).min(1.0));
        profile
    }
}
