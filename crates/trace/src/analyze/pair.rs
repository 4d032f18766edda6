//! Converts one thread's events to spans: operations, waits, and holds, each with begin, end and CPU time.
//!
//! A stack pairs each enter with its exit, and the begin of each wait with its end. An event without a
//! partner makes no span. This happens to spans that were open at the start of the recording, or are open at
//! its end (listed as [`OpenSpan`]), and to spans that were open when events were lost (hazard T2).
//!
//! A long recording is read in windows of time. Spans that are open at a window's end are [`Carried`] into
//! the next one, where they precede all others.

use super::attribute::{Net, net_times};
use super::cpu_curve::{CpuCarried, CpuCurve};
use super::off_curve::OffCurve;
use crate::WaitKind;
use crate::event::{DAMAGED, Event, EventKind, SHARED, UNWOKEN};
use crate::file::{Calibration, ThreadTrace};
use std::sync::OnceLock;

/// One execution of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpSpan {
    pub(crate) operation: u16,
    /// The operation around this one, as an index into [`ThreadSpans::ops`].
    pub(crate) parent: Option<u32>,
    pub(crate) begin: u64,
    /// End; `None` if the end was not recorded.
    pub(crate) end: Option<u64>,
    pub(crate) cpu: u64,
    /// Number of executions that this one represents; 0 if it was not timed and is kept only for its waits.
    pub(crate) weight: u32,
}

/// One wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WaitSpan {
    pub(crate) site: u32,
    pub(crate) object: u64,
    pub(crate) kind: WaitKind,
    /// Tag of the thread that holds the resource, 0 for unknown.
    pub(crate) holder: u32,
    /// The holder's operation at the begin of the wait, 0 for unknown.
    pub(crate) holder_in: u16,
    /// The innermost operation around the wait.
    pub(crate) op: Option<u32>,
    /// The wait around this one (hazard T4).
    pub(crate) parent: Option<u32>,
    pub(crate) begin: u64,
    /// End; `None` if the end was not recorded.
    pub(crate) end: Option<u64>,
    pub(crate) cpu: u64,
    /// `true` if a wake-up ended the wait, according to the event.
    pub(crate) is_woken: bool,
    /// Time and CPU time of the inner waits that ended in earlier windows.
    pub(crate) inside: (u64, u64),
    /// The wait's stack; 0 if it was not recorded.
    pub(crate) stack: u32,
}

#[cfg(test)]
impl WaitSpan {
    /// Returns a wait for a latch with an unknown holder, outside of operations and other waits.
    pub(crate) const fn for_latch((site, object): (u32, u64), begin: u64, end: u64) -> Self {
        Self {
            site,
            object,
            kind: WaitKind::Latch,
            holder: 0,
            holder_in: 0,
            op: None,
            parent: None,
            begin,
            end: Some(end),
            cpu: 0,
            is_woken: true,
            inside: (0, 0),
            stack: 0,
        }
    }
}

/// One recorded hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HoldSpan {
    pub(crate) site: u32,
    pub(crate) object: u64,
    pub(crate) operation: u16,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    /// Number of holds that this one represents; 0 for a release.
    pub(crate) weight: u32,
    pub(crate) shared: bool,
}

/// The spans of a thread. All times are in nanoseconds since the start of the recording.
#[derive(Debug, Default)]
pub(crate) struct ThreadSpans {
    pub(crate) tag: u32,
    pub(crate) ops: Vec<OpSpan>,
    pub(crate) waits: Vec<WaitSpan>,
    /// Holds, and releases as holds without length.
    pub(crate) holds: Vec<HoldSpan>,
    /// Changes of the innermost operation: (time, operation); 0 for none.
    pub(crate) op_changes: Vec<(u64, u16)>,
    pub(crate) cpu: CpuCurve,
    pub(crate) off: OffCurve,
    /// Times of the first and the last event.
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Number of begins and ends without a partner, for other reasons than the recording's own begin and end.
    pub(crate) unmatched: u64,
    /// Executions and waits open at the end of the thread's events.
    pub(crate) open: Vec<OpenSpan>,
    /// Indexes of the operations that continue in the next window, in ascending order.
    pub(crate) ongoing: Vec<u32>,
    /// Indexes of the waits that continue in the next window.
    pub(crate) ongoing_waits: Vec<u32>,
    pub(super) nets: OnceLock<Vec<Net>>,
}

/// Span of a thread that was open when the recording ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenSpan {
    Op { operation: u16, since: u64 },
    Wait { site: u32, object: u64, operation: u16, since: u64 },
}

impl ThreadSpans {
    /// Returns the innermost operation at an instant, 0 for none.
    pub(crate) fn operation_at(&self, ns: u64) -> u16 {
        let after = self.op_changes.partition_point(|c| c.0 <= ns);
        after.checked_sub(1).map_or(0, |i| self.op_changes[i].1)
    }

    /// Returns the net times of the waits.
    pub(crate) fn nets(&self) -> &[Net] {
        self.nets.get_or_init(|| net_times(&self.waits))
    }

    /// Returns `true` if an operation that has not ended may still end.
    pub(crate) fn is_ongoing(&self, op: u32) -> bool {
        self.ongoing.contains(&op) // at most as many as the stack is deep
    }
}

/// State of a thread between two windows of a recording.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    /// Open operations, outermost first, each with the CPU time at its beginning. Their parents are indexes
    /// in this list.
    ops: Vec<(OpSpan, u64)>,
    /// Open waits, each with the CPU time at its beginning.
    waits: Vec<(WaitSpan, u64)>,
    gaps: Gaps,
    /// Numbers of operations, waits and holds of the last window, for which the next one reserves memory.
    counts: [usize; 3],
    /// Time of the last event.
    last: u64,
    has_begun: bool,
    cpu: CpuCarried,
}

/// The effects of earlier events on the next ones.
#[derive(Debug, Clone, Copy, Default)]
struct Gaps {
    /// Events were lost.
    lost_yet: bool,
    /// The outermost operation continues after missing events, in which it may have ended.
    may_have_ended: bool,
    /// The stack of the next wait, or 0.
    stack: u32,
}

/// Pairs one thread's events of a window. `is_last` means that no other window follows.
pub(crate) fn pair(
    thread: &ThreadTrace,
    events: &[Event],
    calibration: &Calibration,
    carried: &mut Carried,
    is_last: bool,
) -> ThreadSpans {
    let cpu = CpuCurve::new(events, calibration, &mut carried.cpu);
    let mut pairing = Pairing::new(thread, cpu, carried);
    let mut last = carried.last;
    for (i, event) in events.iter().enumerate() {
        // A thread's clock never decreases; two events of one nanosecond keep their order.
        let before = last;
        last = calibration.ns(event.ticks).max(last);
        if event.kind == EventKind::Lost {
            pairing.lost(i, event.flags & DAMAGED != 0, (before, last));
        } else {
            pairing.take(i, event, last, calibration);
        }
    }
    let first = events.first().map_or(carried.last, |e| calibration.ns(e.ticks));
    pairing.spans.first = if carried.has_begun { carried.last } else { first };
    pairing.spans.last = last;
    if is_last {
        return pairing.finish();
    }
    pairing.carry(carried);
    carried.has_begun |= !events.is_empty();
    carried.last = last;
    pairing.spans
}

struct Pairing {
    spans: ThreadSpans,
    /// Open operations: index into `spans.ops`, and the CPU time at their beginning.
    ops: Vec<(u32, u64)>,
    /// Open waits: index into `spans.waits`, and the CPU time at their beginning.
    waits: Vec<(u32, u64)>,
    gaps: Gaps,
}

impl Pairing {
    fn new(thread: &ThreadTrace, cpu: CpuCurve, carried: &mut Carried) -> Self {
        let off = OffCurve::new(&thread.off);
        let mut spans = ThreadSpans { tag: thread.tag, cpu, off, ..ThreadSpans::default() };
        let [ops, waits, holds] = carried.counts;
        spans.ops.reserve(ops);
        spans.op_changes.reserve(2 * ops);
        spans.waits.reserve(waits);
        spans.holds.reserve(holds);
        let (mut ops, mut waits) = (Vec::new(), Vec::new());
        for (span, cpu) in carried.ops.drain(..) {
            ops.push((spans.ops.len() as u32, cpu));
            spans.ops.push(span);
        }
        for (span, cpu) in carried.waits.drain(..) {
            waits.push((spans.waits.len() as u32, cpu));
            spans.waits.push(span);
        }
        if let Some((index, _)) = ops.last() {
            spans.op_changes.push((carried.last, spans.ops[*index as usize].operation));
        }
        Self { spans, ops, waits, gaps: carried.gaps }
    }

    /// Moves open spans into the next window.
    fn carry(&mut self, carried: &mut Carried) {
        let spans = &mut self.spans;
        carried.counts = [spans.ops.len(), spans.waits.len(), spans.holds.len()];
        spans.ongoing = self.ops.iter().map(|o| o.0).collect();
        spans.ongoing_waits = self.waits.iter().map(|w| w.0).collect();
        let place = |of: &[u32], index: Option<u32>| {
            index.and_then(|index| of.iter().position(|o| *o == index)).map(|at| at as u32)
        };
        carried.ops.extend(self.ops.iter().map(|(index, cpu)| {
            let span = spans.ops[*index as usize];
            (OpSpan { parent: place(&spans.ongoing, span.parent), ..span }, *cpu)
        }));
        carried.waits.extend(self.waits.iter().map(|(index, cpu)| {
            let span = spans.waits[*index as usize];
            let (op, parent) = (place(&spans.ongoing, span.op), place(&spans.ongoing_waits, span.parent));
            (WaitSpan { op, parent, ..span }, *cpu)
        }));
        // Waits that ended inside an open one.
        for inner in &spans.waits {
            if let (Some(end), Some(parent)) = (inner.end, inner.parent)
                && let Some(at) = place(&spans.ongoing_waits, Some(parent))
            {
                let inside = &mut carried.waits[at as usize].0.inside;
                *inside = (inside.0 + (end - inner.begin), inside.1 + inner.cpu);
            }
        }
        carried.gaps = self.gaps;
    }
}

impl Pairing {
    fn take(&mut self, i: usize, event: &Event, ns: u64, calibration: &Calibration) {
        let cpu = self.spans.cpu.at_event(i);
        match event.kind {
            EventKind::Enter => self.enter(event, ns, cpu),
            EventKind::Exit => self.exit(event.operation, ns, cpu),
            EventKind::WaitBegin => self.begin_wait(event, ns, cpu),
            EventKind::WaitEnd => self.end_wait(event, ns, cpu),
            EventKind::Hold => self.hold(event, ns, calibration.span_ns(event.argument)),
            EventKind::Release => self.hold(event, ns, 0),
            EventKind::Stack => self.gaps.stack = event.argument as u32,
            EventKind::Anchor | EventKind::Mark | EventKind::Ran | EventKind::Lost => {}
        }
    }

    fn enter(&mut self, event: &Event, ns: u64, cpu: u64) {
        let (operation, weight) = (event.operation, event.executions());
        if let [(outermost, _)] = self.ops[..]
            && std::mem::take(&mut self.gaps.may_have_ended)
            && self.spans.ops[outermost as usize].operation == operation
        {
            // It ended among the missing events.
            let span = &mut self.spans.ops[outermost as usize];
            (span.end, span.weight) = (Some(span.begin), 0);
            self.ops.clear();
        }
        let parent = self.ops.last().map(|o| o.0);
        self.ops.push((self.spans.ops.len() as u32, cpu));
        self.spans.ops.push(OpSpan { operation, parent, begin: ns, end: None, cpu: 0, weight });
        self.spans.op_changes.push((ns, operation));
    }

    fn exit(&mut self, operation: u16, ns: u64, cpu: u64) {
        let spans = &mut self.spans;
        let Some(depth) = self.ops.iter().rposition(|o| spans.ops[o.0 as usize].operation == operation)
        else {
            // The span began before the recording, or its begin was lost.
            spans.unmatched += u64::from(self.gaps.lost_yet);
            return;
        };
        spans.unmatched += (self.ops.len() - depth - 1) as u64;
        let (index, cpu_before) = self.ops[depth];
        let ended = &self.ops[depth..];
        // A wait ends with its operation at the latest: a canceled thread records no end of its wait.
        self.waits.retain(|&(wait, cpu_before)| {
            let wait = &mut spans.waits[wait as usize];
            let is_inside = wait.op.is_some_and(|op| ended.iter().any(|(of, _)| *of == op));
            if is_inside {
                (wait.end, wait.cpu, wait.is_woken) = (Some(ns), cpu - cpu_before, false);
            }
            !is_inside
        });
        self.ops.truncate(depth);
        self.gaps.may_have_ended &= depth > 0;
        let span = &mut spans.ops[index as usize];
        (span.end, span.cpu) = (Some(ns), cpu - cpu_before);
        let outer = self.ops.last().map_or(0, |o| spans.ops[o.0 as usize].operation);
        spans.op_changes.push((ns, outer));
    }

    fn begin_wait(&mut self, event: &Event, ns: u64, cpu: u64) {
        let span = WaitSpan {
            site: event.site,
            object: event.object,
            kind: WaitKind::from_number(event.argument as u8).unwrap_or(WaitKind::Other),
            holder: (event.argument >> 32) as u32,
            holder_in: (event.argument >> 8) as u16,
            op: self.ops.last().map(|o| o.0),
            parent: self.waits.last().map(|w| w.0),
            begin: ns,
            end: None,
            cpu: 0,
            is_woken: true,
            inside: (0, 0),
            stack: std::mem::take(&mut self.gaps.stack),
        };
        self.waits.push((self.spans.waits.len() as u32, cpu));
        self.spans.waits.push(span);
    }

    fn end_wait(&mut self, event: &Event, ns: u64, cpu: u64) {
        let is_it = |w: &(u32, u64)| {
            let span = &self.spans.waits[w.0 as usize];
            (span.site, span.object) == (event.site, event.object)
        };
        let Some(depth) = self.waits.iter().rposition(is_it) else {
            self.spans.unmatched += u64::from(self.gaps.lost_yet);
            return;
        };
        // The guard of an outer wait may be dropped first; the inner wait then continues.
        let (index, cpu_before) = self.waits.remove(depth);
        let span = &mut self.spans.waits[index as usize];
        (span.end, span.cpu) = (Some(ns), cpu - cpu_before);
        span.is_woken = event.flags & UNWOKEN == 0;
    }

    fn hold(&mut self, event: &Event, ns: u64, length: u64) {
        self.spans.holds.push(HoldSpan {
            site: event.site,
            object: event.object,
            operation: event.operation,
            begin: ns.saturating_sub(length),
            end: ns,
            weight: if event.kind == EventKind::Hold { event.stands_for() } else { 0 },
            shared: event.flags & SHARED != 0,
        });
    }

    /// Drops the open spans at the `i`-th event, before which events are missing between two times. If they
    /// were in a damaged part of the file, the outermost operation ends before them, and begins again after
    /// them: a thread of a recorded program is one operation.
    fn lost(&mut self, i: usize, is_damaged: bool, (before, after): (u64, u64)) {
        let outermost = self.ops.first().copied().filter(|_| is_damaged);
        self.gaps = Gaps { lost_yet: true, may_have_ended: outermost.is_some(), stack: 0 };
        self.spans.unmatched += (self.ops.len() + self.waits.len()) as u64;
        self.ops.clear();
        self.waits.clear();
        self.spans.op_changes.push((after, 0));
        if let Some((index, cpu_before)) = outermost {
            self.spans.unmatched -= 1;
            let cpu = self.spans.cpu.at_event(i.saturating_sub(1)).max(cpu_before);
            let span = &mut self.spans.ops[index as usize];
            (span.end, span.cpu) = (Some(before), cpu - cpu_before);
            let again = Event { operation: span.operation, ..Event::new(0, EventKind::Enter) };
            let cpu = self.spans.cpu.at_event(i).max(cpu);
            self.gaps.may_have_ended = false; // until it has begun again
            self.enter(&again, after, cpu);
            self.gaps.may_have_ended = true;
        }
    }

    fn finish(mut self) -> ThreadSpans {
        for (index, _) in &self.ops {
            let span = self.spans.ops[*index as usize];
            self.spans.open.push(OpenSpan::Op { operation: span.operation, since: span.begin });
        }
        for (index, _) in &self.waits {
            let span = self.spans.waits[*index as usize];
            let operation = span.op.map_or(0, |op| self.spans.ops[op as usize].operation);
            let (site, object, since) = (span.site, span.object, span.begin);
            self.spans.open.push(OpenSpan::Wait { site, object, operation, since });
        }
        self.spans
    }
}
