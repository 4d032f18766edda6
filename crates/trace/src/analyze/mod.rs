//! The analysis of a trace: the cost of each lock in each operation.
//!
//! | step | module |
//! |---|---|
//! | CPU time at each event, from anchors | `cpu_curve` |
//! | preempted time, from the kernel's records | `off_curve` |
//! | operations, waits and holds from events | `pair` |
//! | time by operation and by site | `attribute` |
//! | holds by object | `by_object` |
//! | holders that threads waited for | `blame` |
//! | the division of a wait among holders | `holders` |
//! | call stacks of waits | `call_paths` |
//! | CPU time in spin loops | `spins` |
//! | page faults that waited for a device | `faults` |
//! | waits outside of probes | `blocked` |
//! | lock instances as queues, and throughput ceilings | `stations` |
//! | throughput without a lock | `what_if` |
//! | sums over the windows of a long recording | `fold` |
//! | the verdict in one sentence | [`verdict`] |
//! | activity of each thread over time | [`timeline`] |
//!
//! The same trace gives the same [`Analysis`], byte for byte.

mod attribute;
mod blame;
mod blocked;
mod bounded;
mod by_object;
mod call_paths;
mod cpu_curve;
mod faults;
mod fold;
mod holders;
mod nearby;
mod off_curve;
mod pair;
mod quick;
mod rows;
mod spins;
mod spread;
mod stations;
pub mod timeline;
pub mod verdict;
mod what_if;

pub use blocked::BlockedRow;
pub use call_paths::StackRow;
pub use faults::FaultRow;
pub use rows::{
    BlameRow, DamageRow, InstanceRow, LockRow, OpenRow, OperationRow, Preemption, Recorded, SiteRow,
    Slowdown, WaitRow, WhatIfRows,
};
pub use spins::SpinRow;
pub use verdict::Verdict;

use crate::error::ReadError;
use crate::event::Event;
use crate::file::{Calibration, CpuSource, Ending, Name, Outline, TimeSource, Trace};
use attribute::Attribution;
use fold::{Frame, Totals};
use pair::ThreadSpans;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use timeline::Timeline;

pub(crate) use attribute::{SLICES, Sums};
pub(crate) use blame::WAKE_UP_NS;

/// Options of an analysis.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AnalyzeOptions {
    /// The operation for which waits are reported per execution and throughput is predicted. `None` selects
    /// the outermost operation with the largest time that is not idle. If no operation uses a tenth of its
    /// time, it is that with the largest time.
    pub operation: Option<String>,
    /// Executions per second of that operation without a recording, for the measured slowdown (Table 4).
    pub baseline_per_second: Option<f64>,
}

/// The error for an operation that is not in the trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnalyzeError {
    /// No such operation was recorded.
    #[error("no operation {name:?} in the trace; it has {}", known.join(", "))]
    UnknownOperation {
        /// The requested name.
        name: String,
        /// Names of the recorded operations.
        known: Vec<String>,
    },
}

/// The content of a report. Times are nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Analysis {
    /// Properties of the recording.
    pub recorded: Recorded,
    /// The chosen operation; empty if no operation was recorded.
    pub operation: String,
    /// The bottleneck.
    pub verdict: Verdict,
    /// Cost of the recording, if a baseline was given.
    pub slowdown: Option<Slowdown>,
    /// CPU time of the process, as a fraction of its processors' time.
    pub cpu_utilisation: Option<f64>,
    /// CPU time of all processes, as a fraction of the time of the processors that the process could use.
    pub machine_utilisation: Option<f64>,
    /// One row per operation, in descending order of time.
    pub operations: Vec<OperationRow>,
    /// Sums of all outermost executions.
    pub total: OperationRow,
    /// One row per operation and site, by operation, then in descending order of wait.
    pub waits: Vec<WaitRow>,
    /// One row per site, in descending order of wait.
    pub sites: Vec<SiteRow>,
    /// Spin loops, in descending order of CPU time.
    pub spins: Vec<SpinRow>,
    /// Page faults that waited for a device, in descending order of their number.
    pub faults: Vec<FaultRow>,
    /// Waits outside of probes of the threads that executed the chosen operation, in descending order of
    /// samples.
    pub blocked: Vec<BlockedRow>,
    /// Holders for which threads waited, in descending order of wait.
    pub blame: Vec<BlameRow>,
    /// Predictions for the chosen operation.
    pub what_if: WhatIfRows,
    /// Spans that were open at the end of the recording, longest first.
    pub open: Vec<OpenRow>,
    /// Activity of each thread over time.
    #[serde(skip)]
    pub timeline: Timeline,
}

impl Analysis {
    /// Analyzes a trace in memory. Makes one pass over the events of each thread, and takes about three times
    /// the memory of the events.
    ///
    /// # Errors
    ///
    /// [`AnalyzeError`]: the requested operation does not exist.
    pub fn new(trace: &Trace, options: &AnalyzeOptions) -> Result<Self, AnalyzeError> {
        let names = Names::new(trace);
        let calibration = trace.calibration();
        let events: Vec<&[Event]> = trace.threads.iter().map(|t| t.events.as_slice()).collect();
        // A truncated file lasts until its last event.
        let last = events.iter().flat_map(|e| e.iter()).map(|e| e.ticks).fold(trace.end.ticks, u64::max);
        let duration = calibration.ns(last);
        let mut totals = Totals::default();
        totals.add(&Frame { trace, names: &names, calibration, duration }, &events, true);
        let chosen = choose(&totals.attribution, &names, options)?;
        let count = trace.event_count();
        Ok(Work { trace, names, count, totals, duration, chosen, calibration }.analysis(options))
    }

    /// Analyzes a trace file: a small one as [`Analysis::new`] does, a larger one in windows of
    /// `window_events` or a little more, so that memory does not grow with the file. In that case rows of
    /// very many lock instances, and quantiles of very many executions, are approximate, and the holder of a
    /// lock is unknown beyond the border of a window.
    ///
    /// Needs some hundred bytes for each event of a window, and reads the file twice.
    ///
    /// # Errors
    ///
    /// [`ReadError`], and [`AnalyzeError`] inside.
    pub fn of_file(
        path: impl AsRef<Path>,
        window_events: usize,
        options: &AnalyzeOptions,
    ) -> Result<Result<Self, AnalyzeError>, ReadError> {
        let outline = Outline::read(path.as_ref())?;
        if outline.events() <= window_events as u64 {
            return Ok(Self::new(&outline.read_trace()?, options));
        }
        Self::of_windows(&outline, window_events, options)
    }

    /// Analyzes a file in windows, as [`Analysis::of_file`] does for a large file.
    ///
    /// # Errors
    ///
    /// The errors of [`Analysis::of_file`].
    pub fn of_windows(
        outline: &Outline,
        window_events: usize,
        options: &AnalyzeOptions,
    ) -> Result<Result<Self, AnalyzeError>, ReadError> {
        let trace = outline.trace();
        let names = Names::new(trace);
        let calibration = trace.calibration();
        let duration = calibration.ns(outline.last_ticks());
        let frame = Frame { trace, names: &names, calibration, duration };
        let mut totals = Totals::default();
        let mut windows = outline.windows(window_events)?;
        while let Some(is_last) = windows.advance()? {
            let events: Vec<&[Event]> = windows.events().iter().map(Vec::as_slice).collect();
            totals.add(&frame, &events, is_last);
        }
        let chosen = match choose(&totals.attribution, &names, options) {
            Ok(chosen) => chosen,
            Err(error) => return Ok(Err(error)),
        };
        let duration = duration.max(totals.last);
        let count = outline.events();
        Ok(Ok(Work { trace, names, count, totals, duration, chosen, calibration }.analysis(options)))
    }

    /// Returns the chosen operation's row.
    #[must_use]
    pub fn chosen(&self) -> Option<&OperationRow> {
        self.operations.iter().find(|o| o.name == self.operation)
    }
}

/// Shortest duration for which the machine's CPU time is used, because the kernel counts it in steps of 10 ms
/// per processor.
const MACHINE_CLOCK_TELLS_NS: u64 = 100_000_000;

/// The data from which the rows are made.
pub(crate) struct Work<'t> {
    pub(crate) trace: &'t Trace,
    pub(crate) names: Names<'t>,
    /// Number of events.
    pub(crate) count: u64,
    pub(crate) totals: Totals,
    pub(crate) duration: u64,
    pub(crate) chosen: u16,
    pub(crate) calibration: Calibration,
}

impl Work<'_> {
    fn analysis(&self, options: &AnalyzeOptions) -> Analysis {
        let recorded = self.recorded();
        let offered = self.duration as f64 * f64::from(self.trace.session.processors.max(1));
        let what_if = self.what_if();
        let slowdown = options.baseline_per_second.map(|baseline| Slowdown {
            baseline_per_second: baseline,
            recorded_per_second: what_if.throughput_per_second,
            slowdown: 1.0 - what_if.throughput_per_second / baseline,
        });
        let mut analysis = Analysis {
            operation: self.names.operation(self.chosen),
            verdict: Verdict::Nothing,
            slowdown,
            cpu_utilisation: (recorded.process_cpu_ns > 0 && offered > 0.0)
                .then(|| recorded.process_cpu_ns as f64 / offered),
            machine_utilisation: recorded
                .machine_cpu_ns
                .filter(|_| self.duration >= MACHINE_CLOCK_TELLS_NS && offered > 0.0)
                .map(|ns| (ns as f64 / offered).min(1.0)),
            operations: self.operation_rows(),
            total: self.operation_row("(all)".into(), String::new(), &self.totals.attribution.total),
            waits: self.wait_rows(),
            sites: self.site_rows(),
            spins: self.spin_rows(),
            faults: self.fault_rows(),
            blocked: self.blocked_rows(),
            blame: self.blame_rows(),
            what_if,
            open: self.open_rows(),
            timeline: timeline::timeline(self.trace, self.totals.lines.iter(), self.duration),
            recorded,
        };
        analysis.verdict = Verdict::of(&analysis);
        analysis
    }

    fn recorded(&self) -> Recorded {
        let trace = self.trace;
        let by_source = |cpu: CpuSource| trace.threads.iter().filter(|t| t.cpu == cpu).count() as u64;
        let process_cpu_ns = trace.end.process_cpu_ns.saturating_sub(trace.begin.process_cpu_ns);
        let own_cost_ns = self.count.saturating_mul(trace.session.event_cost_ps) / 1000;
        Recorded {
            label: trace.session.label.clone(),
            duration_ns: self.duration,
            threads: trace.threads.len() as u64,
            processors: trace.session.processors,
            events: self.count,
            lost: trace.lost(),
            unrecorded_threads: trace.unrecorded_threads,
            unmatched: self.totals.unmatched,
            cut_short_at: match trace.ending {
                Ending::Complete => None,
                Ending::CutShort { offset } => Some(offset),
            },
            damage: trace.damage.map(|damage| DamageRow {
                offset: damage.offset,
                parts: damage.parts,
                bytes: damage.bytes,
                events: damage.events,
                is_exact: damage.is_exact,
                from_ns: self.calibration.ns(damage.between.0),
                to_ns: self.calibration.ns(damage.between.1),
            }),
            stacks_are_guesses: trace.session.cpu == CpuSource::Switches && !trace.stacks.is_empty(),
            clock: match trace.session.time {
                TimeSource::Tsc => "time-stamp counter",
                TimeSource::Monotonic => "CLOCK_MONOTONIC",
            },
            cpu_by_rseq: by_source(CpuSource::Rseq),
            cpu_by_thread_clock: by_source(CpuSource::ThreadClock),
            cpu_by_switches: by_source(CpuSource::Switches),
            cpu_unknown: by_source(CpuSource::None),
            interpolated_segments: self.totals.interpolated,
            switches: Preemption::of(&trace.switches, trace.threads.iter().map(|t| t.off.len() as u64).sum()),
            process_cpu_ns,
            machine_cpu_ns: self.machine_cpu_ns(),
            quota: trace.quota,
            traced_cpu_ns: self.totals.thread_totals.iter().map(|thread| thread.cpu).sum(),
            event_cost_ns: trace.session.event_cost_ps as f64 / 1000.0,
            own_cost_ns,
            own_cost_of_cpu: (process_cpu_ns > 0).then(|| own_cost_ns as f64 / process_cpu_ns as f64),
        }
    }

    /// Returns the CPU time of all processes during the recording, on the processors that the process could
    /// use, if it is known; at least that of the process.
    pub(crate) fn machine_cpu_ns(&self) -> Option<u64> {
        let process = self.trace.end.process_cpu_ns.saturating_sub(self.trace.begin.process_cpu_ns);
        let (first, last) = self.trace.machine_cpu_ns?;
        Some(last.saturating_sub(first).max(process))
    }

    /// Returns `true` if the CPU time of all threads is known.
    pub(crate) fn cpu_known(&self) -> bool {
        self.trace.threads.iter().all(|t| t.cpu != CpuSource::None)
    }
}

/// Chooses the operation to report in detail.
fn choose(
    attribution: &Attribution,
    names: &Names<'_>,
    options: &AnalyzeOptions,
) -> Result<u16, AnalyzeError> {
    if let Some(name) = &options.operation {
        let found = attribution.operations.keys().find(|id| names.operation(**id) == *name);
        return found.copied().ok_or_else(|| AnalyzeError::UnknownOperation {
            name: name.clone(),
            known: attribution.operations.keys().map(|id| names.operation(*id)).collect(),
        });
    }
    let used = |id: &u16| {
        let all = *attribution.outermost.get(id)?;
        let busy = all.saturating_sub(attribution.operations[id].all.idle);
        // Without a busy operation, the waits of the threads that exist longest are of interest, and not
        // those of the thread that waits for their ends.
        Some(if busy >= all / 10 { (true, busy) } else { (false, all) })
    };
    let candidates = attribution.operations.keys().copied();
    Ok(candidates.max_by_key(|id| (used(id), std::cmp::Reverse(*id))).unwrap_or(0))
}

/// Names by id. Several ids with the same name and line (arrays of statics, generic code) become one.
pub(crate) struct Names<'t> {
    sites: BTreeMap<u32, &'t Name>,
    operations: BTreeMap<u16, &'t Name>,
    same_site: BTreeMap<u32, u32>,
    same_operation: BTreeMap<u16, u16>,
    /// Operation names that occur at several lines; these are reported with their line.
    ambiguous: Vec<&'t str>,
}

impl<'t> Names<'t> {
    fn new(trace: &'t Trace) -> Self {
        let same_operation = same(&trace.operations);
        let mut names: Vec<&str> = trace
            .operations
            .iter()
            .filter(|(id, _)| same_operation[id] == **id)
            .map(|(_, n)| n.name.as_str())
            .collect();
        names.sort_unstable();
        let ambiguous = names.windows(2).filter(|w| w[0] == w[1]).map(|w| w[0]).collect();
        Self {
            sites: trace.sites.iter().map(|(id, n)| (*id, n)).collect(),
            operations: trace.operations.iter().map(|(id, n)| (*id, n)).collect(),
            same_site: same(&trace.sites),
            same_operation,
            ambiguous,
        }
    }

    /// Returns the spans with one id per name.
    fn merged(&self, mut spans: ThreadSpans) -> ThreadSpans {
        let is_plain = self.same_site.iter().all(|(id, first)| id == first)
            && self.same_operation.iter().all(|(id, first)| id == first);
        if is_plain {
            return spans; // the usual case
        }
        let site = |id: &mut u32| *id = self.same_site.get(id).copied().unwrap_or(*id);
        let operation = |id: &mut u16| *id = self.same_operation.get(id).copied().unwrap_or(*id);
        spans.ops.iter_mut().for_each(|s| operation(&mut s.operation));
        spans.op_changes.iter_mut().for_each(|c| operation(&mut c.1));
        spans.waits.iter_mut().for_each(|w| site(&mut w.site));
        for hold in &mut spans.holds {
            site(&mut hold.site);
            operation(&mut hold.operation);
        }
        for open in &mut spans.open {
            match open {
                pair::OpenSpan::Op { operation: id, .. } => operation(id),
                pair::OpenSpan::Wait { site: at, operation: id, .. } => {
                    site(at);
                    operation(id);
                }
            }
        }
        spans
    }

    pub(crate) fn operation(&self, id: u16) -> String {
        match (id, self.operations.get(&id)) {
            (0, _) => "(outside)".into(),
            (_, Some(n)) if self.ambiguous.contains(&n.name.as_str()) => {
                format!("{} ({}:{})", n.name, short(&n.file), n.line)
            }
            (_, Some(n)) => n.name.clone(),
            (_, None) => format!("operation {id}"),
        }
    }

    pub(crate) fn operation_place(&self, id: u16) -> String {
        let name = self.operations.get(&id).filter(|n| !n.file.is_empty());
        name.map_or_else(String::new, |n| format!("{}:{}", n.file, n.line))
    }

    /// Returns the label of a site in reports: name and line, as in the paper.
    pub(crate) fn site(&self, id: u32) -> String {
        match self.sites.get(&id) {
            Some(n) if n.line > 0 => format!("{} ({}:{})", n.name, short(&n.file), n.line),
            Some(n) if !n.file.is_empty() => format!("{} ({})", n.name, short(&n.file)),
            Some(n) => n.name.clone(),
            None => format!("site {id}"),
        }
    }

    /// Returns the label of a frame of a stack: function and line.
    pub(crate) fn frame(name: &Name) -> String {
        match name.line {
            0 => name.name.clone(),
            line => format!("{} ({}:{line})", name.name, short(&name.file)),
        }
    }

    pub(crate) fn site_name(&self, id: u32) -> Name {
        let unknown = || Name { name: format!("site {id}"), file: String::new(), line: 0 };
        self.sites.get(&id).map_or_else(unknown, |n| (*n).clone())
    }
}

/// Returns, for each id, the first id with the same name and line.
fn same<I: Copy + Ord>(names: &BTreeMap<I, Name>) -> BTreeMap<I, I> {
    let mut first: BTreeMap<&Name, I> = BTreeMap::new();
    names.iter().map(|(id, name)| (*id, *first.entry(name).or_insert(*id))).collect()
}

/// Returns the last two components of a path.
fn short(file: &str) -> &str {
    let from = file.rmatch_indices('/').nth(1).map_or(0, |(i, _)| i + 1);
    &file[from..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_shortened_to_their_last_two_parts() {
        assert_eq!(short("crates/latch/src/hybrid.rs"), "src/hybrid.rs");
        assert_eq!(short("hybrid.rs"), "hybrid.rs");
        assert_eq!(short("src/hybrid.rs"), "src/hybrid.rs");
    }
}
