//! Handmade traces with known results. A tick is a nanosecond.
#![allow(dead_code, reason = "each test file uses only some of the helpers")]

pub(crate) mod simulator;

use azekura_trace::WaitKind;
use azekura_trace::event::{Event, EventKind, SAMPLED, SWITCHED};
use azekura_trace::file::{
    ClockSample, CpuSource, Ending, Name, SessionInfo, Switches, ThreadTrace, TimeSource, Trace,
};

/// A builder of one thread's events, in order.
#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) events: Vec<Event>,
    ops: Vec<u16>,
}

impl Script {
    fn push(mut self, ticks: u64, kind: EventKind, site: u32, object: u64, argument: u64) -> Self {
        let operation = self.ops.last().copied().unwrap_or(0);
        self.events.push(Event { operation, site, object, argument, ..Event::new(ticks, kind) });
        self
    }

    pub(crate) fn enter(mut self, ticks: u64, operation: u16) -> Self {
        self.ops.push(operation);
        self.push(ticks, EventKind::Enter, 0, 0, 0)
    }

    pub(crate) fn exit(self, ticks: u64) -> Self {
        let mut after = self.push(ticks, EventKind::Exit, 0, 0, 0);
        after.ops.pop();
        after
    }

    pub(crate) fn begin(self, ticks: u64, site: u32, object: u64, kind: WaitKind) -> Self {
        self.begin_for(ticks, site, object, kind, 0)
    }

    pub(crate) fn begin_for(self, ticks: u64, site: u32, object: u64, kind: WaitKind, holder: u32) -> Self {
        let argument = kind as u64 | u64::from(holder) << 32;
        self.push(ticks, EventKind::WaitBegin, site, object, argument)
    }

    pub(crate) fn end(self, ticks: u64, site: u32, object: u64) -> Self {
        self.push(ticks, EventKind::WaitEnd, site, object, 0)
    }

    pub(crate) fn hold(self, ticks: u64, site: u32, object: u64, length: u64) -> Self {
        self.push(ticks, EventKind::Hold, site, object, length)
    }

    pub(crate) fn release(self, ticks: u64, site: u32, object: u64) -> Self {
        self.push(ticks, EventKind::Release, site, object, 0)
    }

    pub(crate) fn anchor(self, ticks: u64, cpu: u64) -> Self {
        self.push(ticks, EventKind::Anchor, 0, cpu, 0)
    }

    pub(crate) fn lost(self, ticks: u64, events: u64) -> Self {
        self.push(ticks, EventKind::Lost, 0, events, 0)
    }

    /// Marks the last event as the first one after a switch.
    pub(crate) fn switched(mut self) -> Self {
        self.events.last_mut().expect("an event").flags |= SWITCHED;
        self
    }

    /// Marks the last event, a hold, as sampled at random.
    pub(crate) fn sampled(mut self) -> Self {
        self.events.last_mut().expect("an event").flags |= SAMPLED;
        self
    }
}

/// Returns a name with this line.
pub(crate) fn name(name: &str, line: u32) -> Name {
    Name { name: name.into(), file: "crates/store/src/cache.rs".into(), line }
}

/// Returns a trace of these threads with a duration of `duration` ns. Operations and sites are numbered from
/// 1; the line of a name is ten times its number.
pub(crate) fn trace(duration: u64, operations: &[&str], sites: &[&str], threads: Vec<Script>) -> Trace {
    let thread = |(i, script): (usize, Script)| ThreadTrace {
        tag: i as u32 + 1,
        os_id: i as u32 + 1001,
        name: format!("worker {}", i + 1),
        cpu: CpuSource::Rseq,
        lost: script.events.iter().filter(|e| e.kind == EventKind::Lost).map(|e| e.object).sum(),
        off: Vec::new(),
        events: script.events,
    };
    let named = |names: &[&str]| -> Vec<Name> {
        names.iter().enumerate().map(|(i, n)| name(n, 10 * (i as u32 + 1))).collect()
    };
    Trace {
        session: SessionInfo {
            time: TimeSource::Monotonic,
            cpu: CpuSource::Rseq,
            hold_sampling: 1,
            event_cost_ps: 10_000,
            ticks_per_second: 1_000_000_000,
            process_id: 1,
            processors: 64,
            started_wall_ns: 0,
            label: "synthetic".into(),
        },
        begin: ClockSample { ticks: 0, monotonic_ns: 0, process_cpu_ns: 0 },
        end: ClockSample { ticks: duration, monotonic_ns: duration, process_cpu_ns: 0 },
        sites: (1..).zip(named(sites)).collect(),
        operations: (1..).zip(named(operations)).collect(),
        threads: threads.into_iter().enumerate().map(thread).collect(),
        modules: Vec::new(),
        machine_cpu_ns: None,
        quota: None,
        switches: Switches::NotAsked,
        samples: Vec::new(),
        blocked: Vec::new(),
        faults: Vec::new(),
        unrecorded_threads: 0,
        frames: std::collections::BTreeMap::new(),
        stacks: std::collections::BTreeMap::new(),
        ending: Ending::Complete,
        damage: None,
    }
}

/// Returns the label of the `n`-th site of [`trace`] in reports.
pub(crate) fn label(site: &str, n: u32) -> String {
    format!("{site} (src/cache.rs:{})", n * 10)
}
