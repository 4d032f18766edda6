//! Merges the kernel's records into the threads of a trace, on the trace's clock.

use super::functions::Function;
use super::watch::{Call, Off, Watched};
use azekura_trace::event::{Event, EventKind, SWITCHED};
use azekura_trace::file::{CpuSample, CpuSource, Name, OffCpu, Switches, ThreadTrace, Trace};
use std::collections::{BTreeMap, HashMap};

impl Watched {
    /// Adds the records to the threads of `trace`: the times off the processors, and the calls of `functions`
    /// as operations.
    pub fn add_to(&self, trace: &mut Trace, functions: &[Function]) {
        let first = trace.operations.keys().next_back().copied().unwrap_or(0);
        let mut operations = BTreeMap::new();
        for (number, function) in (0_u16..).zip(functions) {
            if let Some(id) = first.checked_add(number + 1) {
                let file = function.file.display().to_string();
                trace.operations.insert(id, Name { name: function.name.clone(), file, line: 0 });
                operations.insert(u32::from(number), id);
            }
        }
        let clock = Clock::of(trace);
        for thread in &mut trace.threads {
            let off = self.off.get(&thread.os_id).map_or(&[][..], Vec::as_slice);
            if let Some(calls) = self.calls.get(&thread.os_id) {
                add_calls(thread, calls, off, &operations, &clock);
            }
        }
        trace.samples = counts(&trace.threads, &self.samples);
        trace.faults = counts(&trace.threads, &self.faults);
        if self.has_switches {
            add_off(trace, &self.off);
            trace.switches = Switches::Recorded { lost: self.lost };
        }
    }
}

/// Returns the counts by address of the threads of a trace.
fn counts(threads: &[ThreadTrace], counted: &HashMap<u32, HashMap<u64, u64>>) -> Vec<CpuSample> {
    let of_thread = |thread: &ThreadTrace| {
        let (tag, counts) = (thread.tag, counted.get(&thread.os_id));
        let sample = move |(address, count): (&u64, &u64)| CpuSample {
            tag,
            address: *address,
            site: 0,
            count: *count,
        };
        counts.into_iter().flatten().map(sample)
    };
    let mut samples: Vec<CpuSample> = threads.iter().flat_map(of_thread).collect();
    samples.sort_unstable();
    samples
}

/// Adds the times off the processor to each thread.
pub(super) fn add_off(trace: &mut Trace, off: &HashMap<u32, Vec<Off>>) {
    let clock = Clock::of(trace);
    for thread in &mut trace.threads {
        let off = off.get(&thread.os_id).map_or(&[][..], Vec::as_slice);
        thread.off = off.iter().filter_map(|off| clock.off(off)).collect();
    }
}

/// Converts `CLOCK_MONOTONIC` to the clocks of a trace.
#[derive(Debug, Clone, Copy)]
struct Clock {
    begin_ns: u64,
    end_ns: u64,
    begin_ticks: u64,
    ticks_per_ns: f64,
}

impl Clock {
    fn of(trace: &Trace) -> Self {
        let ns = trace.end.monotonic_ns.saturating_sub(trace.begin.monotonic_ns);
        let ticks = trace.end.ticks.saturating_sub(trace.begin.ticks);
        let by_samples = ticks as f64 / ns.max(1) as f64;
        // As in `Calibration`: two samples less than 1 ms apart give no usable rate.
        let ticks_per_ns = if ns < 1_000_000 || ticks == 0 {
            trace.session.ticks_per_second as f64 / 1e9
        } else {
            by_samples
        };
        Self {
            begin_ns: trace.begin.monotonic_ns,
            end_ns: trace.end.monotonic_ns,
            begin_ticks: trace.begin.ticks,
            ticks_per_ns,
        }
    }

    fn ticks(&self, monotonic_ns: u64) -> u64 {
        self.begin_ticks + (monotonic_ns.saturating_sub(self.begin_ns) as f64 * self.ticks_per_ns) as u64
    }

    fn monotonic_ns(&self, ticks: u64) -> u64 {
        let ticks = ticks.saturating_sub(self.begin_ticks) as f64;
        self.begin_ns + (ticks / self.ticks_per_ns.max(f64::MIN_POSITIVE)) as u64
    }

    /// Returns the part of the interval that lies in the recording.
    fn off(&self, off: &Off) -> Option<OffCpu> {
        let (begin, end) = (off.begin.max(self.begin_ns), off.end.min(self.end_ns));
        let since = |ns: u64| ns - self.begin_ns;
        (begin < end).then(|| OffCpu { begin_ns: since(begin), end_ns: since(end), preempted: off.preempted })
    }
}

/// Inserts the calls between the thread's events. The first call after a switch gets an anchor with the CPU
/// time that the records imply.
fn add_calls(
    thread: &mut ThreadTrace,
    calls: &[Call],
    off: &[Off],
    operations: &BTreeMap<u32, u16>,
    clock: &Clock,
) {
    let cpu = CpuBetween::new(&thread.events, off, clock);
    let old = std::mem::take(&mut thread.events);
    let mut merged = Merged { events: Vec::with_capacity(old.len() + 2 * calls.len()), open: Vec::new() };
    let (mut old, mut before) = (old.into_iter().peekable(), 0);
    for call in calls.iter().filter(|c| (clock.begin_ns..=clock.end_ns).contains(&c.ns)) {
        let ticks = clock.ticks(call.ns);
        while let Some(event) = old.next_if(|event| event.ticks <= ticks) {
            before = before.max(clock.monotonic_ns(event.ticks));
            merged.take(event);
        }
        let switched = off.partition_point(|o| o.end <= call.ns) > off.partition_point(|o| o.end <= before);
        let anchor = if switched && thread.cpu != CpuSource::None { cpu.at(call.ns) } else { None };
        if let Some(object) = anchor {
            merged.events.push(Event { object, flags: SWITCHED, ..Event::new(ticks, EventKind::Anchor) });
            // The segment continues in the next event, after this anchor.
        }
        if let Some(&operation) = operations.get(&call.function) {
            let kind = if call.returns { EventKind::Exit } else { EventKind::Enter };
            merged.take(Event { operation, ..Event::new(ticks, kind) });
        }
        before = before.max(call.ns);
    }
    old.for_each(|event| merged.take(event));
    thread.events = merged.events;
}

/// Collects events, and assigns each one to the operation that is open at its time.
struct Merged {
    events: Vec<Event>,
    open: Vec<u16>,
}

impl Merged {
    fn take(&mut self, mut event: Event) {
        match event.kind {
            EventKind::Enter => self.open.push(event.operation),
            EventKind::Exit => {
                if let Some(depth) = self.open.iter().rposition(|o| *o == event.operation) {
                    self.open.truncate(depth);
                }
            }
            EventKind::Lost => self.open.clear(),
            EventKind::Hold | EventKind::WaitBegin | EventKind::WaitEnd | EventKind::Release => {
                event.operation = self.open.last().copied().unwrap_or(event.operation);
            }
            _ => {}
        }
        self.events.push(event);
    }
}

/// The CPU time of a thread between two anchors: it grows while the thread is on a processor.
pub(super) struct CpuBetween {
    /// (ns, CPU ns) of each anchor of the thread.
    anchors: Vec<(u64, u64)>,
    off: Vec<(u64, u64, u64)>,
}

impl CpuBetween {
    fn new(events: &[Event], off: &[Off], clock: &Clock) -> Self {
        let anchors = events.iter().filter(|e| e.kind == EventKind::Anchor);
        let anchors = anchors.map(|e| (clock.monotonic_ns(e.ticks), e.object)).collect();
        Self { anchors, off: with_sums(off) }
    }

    /// Uses two readings as anchors, each (ns, CPU ns).
    pub(super) fn between(first: (u64, u64), last: (u64, u64), off: &[Off]) -> Self {
        Self { anchors: vec![first, (last.0 + 1, last.1)], off: with_sums(off) }
    }

    /// Returns the CPU time at `ns`; `None` outside of the anchors.
    pub(super) fn at(&self, ns: u64) -> Option<u64> {
        let after = self.anchors.partition_point(|a| a.0 <= ns);
        let (before, after) = (self.anchors.get(after.checked_sub(1)?)?, self.anchors.get(after)?);
        let on = |from: u64, to: u64| {
            (to - from).saturating_sub(off_until(&self.off, to) - off_until(&self.off, from))
        };
        let (part, whole) = (on(before.0, ns), on(before.0, after.0).max(1));
        let grew = after.1.saturating_sub(before.1);
        Some(before.1 + (u128::from(grew) * u128::from(part) / u128::from(whole)) as u64)
    }
}

/// Returns the intervals, each with the total length of the earlier ones.
fn with_sums(off: &[Off]) -> Vec<(u64, u64, u64)> {
    let mut sum = 0;
    let stretch = |off: &Off| {
        let before = sum;
        sum += off.end.saturating_sub(off.begin);
        (off.begin, off.end, before)
    };
    off.iter().map(stretch).collect()
}

/// Returns the time off the processor before `ns`.
fn off_until(off: &[(u64, u64, u64)], ns: u64) -> u64 {
    let after = off.partition_point(|o| o.0 <= ns);
    after.checked_sub(1).map_or(0, |i| off[i].2 + ns.min(off[i].1).saturating_sub(off[i].0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use azekura_trace::WaitKind;
    use azekura_trace::analyze::{Analysis, AnalyzeOptions};
    use azekura_trace::file::{ClockSample, Ending, SessionInfo, TimeSource};

    /// A trace of one thread, number 77, in operation 1 from 0 to 1000 ns. A tick is half a nanosecond, and
    /// the monotonic clock starts at 5000 ns.
    fn trace() -> Trace {
        let sample =
            |ns: u64| ClockSample { ticks: 100 + 2 * ns, monotonic_ns: 5_000 + ns, process_cpu_ns: 0 };
        let at = |ns: u64, kind| Event { operation: 1, ..Event::new(100 + 2 * ns, kind) };
        let wait = |ns, kind, argument| Event { site: 1, object: 9, argument, ..at(ns, kind) };
        let anchor = |ns, cpu| Event { object: cpu, flags: SWITCHED, ..at(ns, EventKind::Anchor) };
        let events = vec![
            anchor(0, 0),
            at(0, EventKind::Enter),
            wait(400, EventKind::WaitBegin, WaitKind::Latch as u64),
            wait(500, EventKind::WaitEnd, 0),
            anchor(1_000, 700),
            at(1_000, EventKind::Exit),
        ];
        let cpu = CpuSource::Rseq;
        let thread =
            ThreadTrace { tag: 1, os_id: 77, name: String::new(), cpu, lost: 0, events, off: Vec::new() };
        let name = |name: &str| Name { name: name.into(), file: String::new(), line: 0 };
        Trace {
            session: SessionInfo {
                time: TimeSource::Tsc,
                cpu,
                hold_sampling: 1,
                event_cost_ps: 0,
                ticks_per_second: 2_000_000_000,
                process_id: 1,
                processors: 1,
                started_wall_ns: 0,
                label: String::new(),
            },
            begin: sample(0),
            end: sample(2_000_000),
            sites: [(1, name("row"))].into(),
            operations: [(1, name("thread"))].into(),
            threads: vec![thread],
            modules: Vec::new(),
            machine_cpu_ns: None,
            quota: None,
            switches: Switches::NotAsked,
            samples: Vec::new(),
            blocked: Vec::new(),
            faults: Vec::new(),
            unrecorded_threads: 0,
            frames: BTreeMap::new(),
            stacks: BTreeMap::new(),
            ending: Ending::Complete,
            damage: None,
        }
    }

    #[test]
    fn calls_become_operations_with_their_waits_and_their_cpu_time() {
        let call = |ns: u64, returns| Call { ns: 5_000 + ns, function: 0, returns };
        // Off the processor from 410 to 490 (blocked) and from 600 to 820 (preempted): 700 of 1000 ns on a
        // processor.
        let off = |begin: u64, end: u64, preempted| Off { begin: 5_000 + begin, end: 5_000 + end, preempted };
        let watched = Watched {
            off: [(77, vec![off(410, 490, false), off(600, 820, true)])].into(),
            calls: [(77, vec![call(100, false), call(900, true)]), (78, vec![call(1, false)])].into(),
            samples: [(77, [(0x5010, 4)].into()), (78, [(0x5010, 9)].into())].into(),
            faults: [(77, [(0x5020, 2)].into())].into(),
            has_switches: true,
            lost: 3,
        };
        let functions = [Function { name: "query".into(), file: "/bin/x".into(), offsets: vec![1] }];
        let mut trace = trace();
        watched.add_to(&mut trace, &functions);
        let options = AnalyzeOptions { operation: Some("query".into()), ..AnalyzeOptions::default() };
        let analysis = Analysis::new(&trace, &options).expect("the function is an operation");
        let row = analysis.operations.iter().find(|o| o.name == "query").expect("chosen");
        assert_eq!((row.executions, row.elapsed_ns, row.lock_wait_ns), (1, 800, 100));
        // 800 ns less 300 off.
        assert!(row.cpu_ns.expect("known").abs_diff(500) <= 2, "{row:?}");
        assert_eq!(row.preempted_ns, Some(220));
        assert_eq!(trace.switches, Switches::Recorded { lost: 3 });
        assert_eq!(trace.threads[0].off.len(), 2);
        let sample = CpuSample { tag: 1, address: 0x5010, site: 0, count: 4 };
        assert_eq!(trace.samples, [sample], "those of a thread of the trace");
        assert_eq!(trace.faults, [CpuSample { address: 0x5020, count: 2, ..sample }]);
    }

    #[test]
    fn spans_outside_of_the_recording_are_cut_off() {
        let clock = Clock::of(&trace());
        let off = |begin, end| Off { begin, end, preempted: true };
        assert_eq!(clock.off(&off(10, 4_999)), None);
        assert_eq!(clock.off(&off(10, 5_010)), Some(OffCpu { begin_ns: 0, end_ns: 10, preempted: true }));
        assert_eq!(clock.monotonic_ns(clock.ticks(6_000)), 6_000);
    }
}
