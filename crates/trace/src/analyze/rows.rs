//! Rows of the report tables, sorted and with names.

use super::Work;
use super::attribute::{OperationSums, Sums};
use super::blame::{BlameSums, Holder};
use super::call_paths::StackRow;
use super::pair::OpenSpan;
use super::what_if::{Limit, Setting, what_if};
use crate::WaitKind;
use crate::file::{CpuQuota, Switches};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Number of instances reported for each site.
const INSTANCES: usize = 5;
/// Number of open spans reported.
const OPEN: usize = 20;

/// Properties of the recording: duration, size, reliability, and cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recorded {
    /// The user's label.
    pub label: String,
    /// Duration of the recording.
    pub duration_ns: u64,
    /// Number of threads that recorded events.
    pub threads: u64,
    /// Number of processors that the process could use.
    pub processors: u32,
    /// Number of events in the trace.
    pub events: u64,
    /// Number of events that were lost because their ring was full (hazard T2), or no ring was free.
    pub lost: u64,
    /// Number of threads without a recording, because no ring was free.
    pub unrecorded_threads: u64,
    /// Number of begins and ends without a partner because of lost events.
    pub unmatched: u64,
    /// Offset of the last complete block's end, if the writer did not finish the file.
    pub cut_short_at: Option<u64>,
    /// The parts of the file that could not be read; `None` if there are none.
    pub damage: Option<DamageRow>,
    /// `true` if stacks are the words of the waiters' memory that look like return addresses, as in a
    /// recording of a running process: frames may be missing or false.
    pub stacks_are_guesses: bool,
    /// The clock (hazard T3).
    pub clock: &'static str,
    /// Number of threads with CPU time by restartable sequences.
    pub cpu_by_rseq: u64,
    /// Number of threads with CPU time read at each event.
    pub cpu_by_thread_clock: u64,
    /// Number of threads with CPU time from the kernel's records of switches.
    pub cpu_by_switches: u64,
    /// Number of threads with unknown CPU time.
    pub cpu_unknown: u64,
    /// Number of segments between two switches with interpolated CPU time.
    pub interpolated_segments: u64,
    /// Source of the distinction between preempted and blocked time off the processor.
    pub switches: Preemption,
    /// CPU time of the process.
    pub process_cpu_ns: u64,
    /// CPU time of all processes on the processors that the process could use; `None` if unknown.
    pub machine_cpu_ns: Option<u64>,
    /// The CPU quota of the process's control group; `None` if it has none, or if this is unknown.
    pub quota: Option<CpuQuota>,
    /// CPU time of the recorded threads between their first and last events.
    pub traced_cpu_ns: u64,
    /// Cost of an event, measured at the start.
    pub event_cost_ns: f64,
    /// Number of events times the cost of an event (hazard T1).
    pub own_cost_ns: u64,
    /// `own_cost_ns` as a fraction of the process's CPU time.
    pub own_cost_of_cpu: Option<f64>,
}

/// The damaged parts of a trace file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DamageRow {
    /// Offset of the first damaged part.
    pub offset: u64,
    /// Number of damaged parts.
    pub parts: u64,
    /// Number of bytes in them.
    pub bytes: u64,
    /// Number of events in them.
    pub events: u64,
    /// `true` if `events` is exact, `false` if there may be more.
    pub is_exact: bool,
    /// Time before these events, since the start of the recording.
    pub from_ns: u64,
    /// Time after these events.
    pub to_ns: u64,
}

/// Source of the distinction between preempted and blocked time: the kernel's records of context switches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "source", rename_all = "snake_case")]
pub enum Preemption {
    /// No distinction: the records were not requested.
    NotAsked,
    /// The kernel recorded switches.
    Kernel {
        /// Number of recorded intervals off the processor.
        stretches: u64,
        /// Number of lost records.
        lost: u64,
    },
    /// No distinction: the records were not available.
    Unavailable {
        /// The reason.
        reason: String,
    },
}

impl Preemption {
    pub(super) fn of(switches: &Switches, stretches: u64) -> Self {
        match switches {
            Switches::NotAsked => Self::NotAsked,
            Switches::Recorded { lost } => Self::Kernel { stretches, lost: *lost },
            Switches::Unavailable { reason } => Self::Unavailable { reason: reason.clone() },
        }
    }
}

/// Cost of the recording in throughput (Table 4 of the paper).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Slowdown {
    /// Executions per second without recording, given by the user.
    pub baseline_per_second: f64,
    /// Executions per second in this recording.
    pub recorded_per_second: f64,
    /// Lost fraction of the throughput.
    pub slowdown: f64,
}

/// The parts of an operation's time (Tables 2 and 3 of the paper).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OperationRow {
    /// Name of the operation.
    pub name: String,
    /// The line that created the operation.
    pub place: String,
    /// Executions that began and ended in the recording.
    pub executions: u64,
    /// Number of timed executions, a random sample that represents the times of the others. Waits are
    /// recorded in all executions.
    pub timed: u64,
    /// Number of threads that executed the operation.
    pub threads: u64,
    /// Time of the executions from begin to end.
    pub elapsed_ns: u64,
    /// CPU time, including spinning (hazard T5).
    pub cpu_ns: Option<u64>,
    /// Time in waits for locks.
    pub lock_wait_ns: u64,
    /// Time in waits for devices, network and log.
    pub io_wait_ns: u64,
    /// Time in waits for work.
    pub idle_wait_ns: u64,
    /// Time off the processor without a recorded reason.
    pub other_ns: Option<u64>,
    /// The part of `other_ns` in which the thread was preempted; `None` without the kernel's records.
    pub preempted_ns: Option<u64>,
    /// CPU time used in waits: counted in both `cpu_ns` and the waits.
    pub cpu_while_waiting_ns: Option<u64>,
    /// Median duration of an execution.
    pub p50_ns: u64,
    /// 99th percentile of the executions' durations.
    pub p99_ns: u64,
    /// Longest duration of an execution.
    pub max_ns: u64,
    #[serde(skip)]
    pub(crate) slices: Vec<Sums>,
    /// Duration and CPU time of each execution, if there are few, as with threads that are one execution
    /// each.
    #[serde(skip)]
    pub(crate) few: Vec<(u64, u64)>,
}

/// Waits at a site inside an operation (Figures 5 and 6 of the paper).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WaitRow {
    /// The operation, or `(outside)`.
    pub operation: String,
    /// The site's label: name, file, line.
    pub site: String,
    /// Kind of the wait.
    pub kind: Option<WaitKind>,
    /// Number of waits.
    pub count: u64,
    /// Time without the waits inside (hazard T4): the net times of all rows add up.
    pub net_ns: u64,
    /// Time with the waits inside.
    pub gross_ns: u64,
    /// CPU time used during the waits.
    pub cpu_ns: Option<u64>,
    /// Longest wait.
    pub longest_ns: u64,
    /// Net wait per execution of the operation.
    pub per_execution_ns: f64,
    /// Call stacks of a sample of the waits, in descending order of time.
    pub stacks: Vec<StackRow>,
    #[serde(skip)]
    pub(crate) slices: Vec<u64>,
}

/// Waits at a site, in all operations.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SiteRow {
    /// Label of the site: name, file and line.
    pub label: String,
    /// Name of the site.
    pub name: String,
    /// Source file of the site.
    pub file: String,
    /// Source line of the site.
    pub line: u32,
    /// Kind of the wait.
    pub kind: Option<WaitKind>,
    /// Number of waits.
    pub count: u64,
    /// Number of waits for a lock after which the thread waited for the lock again at once, without holding
    /// it.
    pub vain: u64,
    /// Time without the waits inside.
    pub net_ns: u64,
    /// Time with the waits inside.
    pub gross_ns: u64,
    /// CPU time used during the waits.
    pub cpu_ns: Option<u64>,
    /// Longest wait.
    pub longest_ns: u64,
    /// Number of instances with waits.
    pub instances: u64,
    /// The instances with the longest waits.
    pub worst: Vec<InstanceRow>,
    /// Call stacks of a sample of the waits, in descending order of time.
    pub stacks: Vec<StackRow>,
}

/// One instance of a site.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InstanceRow {
    /// The object as given to the probe.
    pub object: u64,
    /// Number of waits.
    pub count: u64,
    /// Net time of the waits.
    pub net_ns: u64,
}

/// Waits by the thread that held the resource.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BlameRow {
    /// The waiter's operation.
    pub operation: String,
    /// The site's label.
    pub site: String,
    /// The holder's operation, or its thread's name if it was in no operation; `None` if the holder is
    /// unknown.
    pub holder: Option<String>,
    /// Number of waits.
    pub count: u64,
    /// Gross time of the waits.
    pub wait_ns: u64,
    /// Part of `wait_ns` in which the holder ran.
    pub holder_ran_ns: u64,
    /// Part of `wait_ns` in which the holder itself waited.
    pub holder_waited_ns: u64,
    /// Part of `wait_ns` in which the holder was off its processor for another reason, most likely preempted.
    pub holder_off_ns: u64,
    /// Part of `holder_off_ns` in which the kernel recorded a preemption; `None` without the kernel's
    /// records.
    pub holder_preempted_ns: Option<u64>,
    /// Part of `wait_ns` without a holder: the next thread was waking up (or a hold was not recorded).
    pub handover_ns: u64,
    /// Site at which the holder waited most.
    pub via: Option<String>,
}

/// Predictions for the chosen operation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WhatIfRows {
    /// Executions per second in the recording.
    pub throughput_per_second: f64,
    /// Number of threads that execute the operation.
    pub threads: u64,
    /// Executions per second that the processors allow.
    pub cpu_ceiling_per_second: Option<f64>,
    /// The locks of the operation, in descending order of gain.
    pub locks: Vec<LockRow>,
}

/// A lock: its limit of the throughput, and the prediction without it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LockRow {
    /// The site's label.
    pub site: String,
    /// Fraction of the time in which the lock's busiest instance is in use.
    pub utilisation: f64,
    /// `true` if no hold of the lock was recorded: then `utilisation`, and so the ceiling, is inferred from
    /// the waits.
    pub is_inferred: bool,
    /// Executions per second that this instance allows; `None` if it was rarely used.
    pub ceiling_per_second: Option<f64>,
    /// Executions per second if the lock cost nothing.
    pub if_free_per_second: f64,
    /// `if_free_per_second` divided by the measured throughput, minus 1.
    pub gain: f64,
    /// The next limit: `cpu`, `threads`, or a site's label.
    pub then_limited_by: String,
}

/// Open span of a thread at the end of the recording.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpenRow {
    /// The thread's number in traces.
    pub thread: u32,
    /// The operation, or `(outside)`.
    pub operation: String,
    /// The site at which the thread waits; `None` if it was executing.
    pub site: Option<String>,
    /// The instance at which the thread waits.
    pub object: u64,
    /// Duration of the span so far.
    pub so_far_ns: u64,
}

impl Work<'_> {
    fn has_switches(&self) -> bool {
        matches!(self.trace.switches, Switches::Recorded { .. })
    }

    pub(super) fn operation_rows(&self) -> Vec<OperationRow> {
        let rows = self.totals.attribution.operations.iter();
        let mut rows: Vec<_> = rows
            .map(|(id, sums)| {
                self.operation_row(self.names.operation(*id), self.names.operation_place(*id), sums)
            })
            .collect();
        rows.sort_by(|a, b| (Reverse(a.elapsed_ns), &a.name).cmp(&(Reverse(b.elapsed_ns), &b.name)));
        rows
    }

    pub(super) fn operation_row(&self, name: String, place: String, sums: &OperationSums) -> OperationRow {
        let all = &sums.all;
        let known = self.cpu_known();
        let [p50_ns, p99_ns, max_ns] = sums.spread();
        OperationRow {
            name,
            place,
            executions: all.executions,
            timed: sums.timed,
            threads: sums.threads,
            elapsed_ns: all.elapsed,
            cpu_ns: known.then_some(all.cpu),
            lock_wait_ns: all.lock,
            io_wait_ns: all.io,
            idle_wait_ns: all.idle,
            other_ns: known.then(|| all.other()),
            preempted_ns: (known && self.has_switches()).then_some(all.preempted),
            cpu_while_waiting_ns: known.then_some(all.cpu_in_wait),
            p50_ns,
            p99_ns,
            max_ns,
            slices: sums.slices.clone(),
            few: sums.few(),
        }
    }

    pub(super) fn wait_rows(&self) -> Vec<WaitRow> {
        let known = self.cpu_known();
        let mut rows: Vec<_> = self
            .totals
            .attribution
            .waits()
            .into_iter()
            .map(|((operation, site), waits)| {
                let executions =
                    self.totals.attribution.operations.get(&operation).map_or(0, |o| o.all.executions);
                WaitRow {
                    operation: self.names.operation(operation),
                    site: self.names.site(site),
                    kind: waits.kind,
                    count: waits.count,
                    net_ns: waits.net,
                    gross_ns: waits.gross,
                    cpu_ns: known.then_some(waits.cpu),
                    longest_ns: waits.longest,
                    per_execution_ns: waits.net as f64 / executions.max(1) as f64,
                    stacks: self.stack_rows(&waits.stacks),
                    slices: waits.slices.clone(),
                }
            })
            .collect();
        rows.sort_by(|a, b| {
            (&a.operation, Reverse(a.net_ns), &a.site).cmp(&(&b.operation, Reverse(b.net_ns), &b.site))
        });
        rows
    }

    pub(super) fn site_rows(&self) -> Vec<SiteRow> {
        let known = self.cpu_known();
        let mut rows: Vec<_> = self
            .totals
            .attribution
            .sites()
            .into_iter()
            .map(|(id, waits)| {
                let name = self.names.site_name(id);
                let (instances, worst) = self.instances(id);
                SiteRow {
                    label: self.names.site(id),
                    name: name.name,
                    file: name.file,
                    line: name.line,
                    kind: waits.kind,
                    count: waits.count,
                    vain: waits.vain,
                    net_ns: waits.net,
                    gross_ns: waits.gross,
                    cpu_ns: known.then_some(waits.cpu),
                    longest_ns: waits.longest,
                    instances,
                    worst,
                    stacks: self.stack_rows(&waits.stacks),
                }
            })
            .collect();
        rows.sort_by(|a, b| (Reverse(a.net_ns), &a.label).cmp(&(Reverse(b.net_ns), &b.label)));
        rows
    }

    fn instances(&self, site: u32) -> (u64, Vec<InstanceRow>) {
        let (instances, left_out) = self.totals.attribution.instances(site);
        let mut rows: Vec<_> = instances
            .into_iter()
            .map(|(object, count, net_ns)| InstanceRow { object, count, net_ns })
            .collect();
        let all = rows.len() as u64 + left_out;
        rows.sort_by_key(|r| (Reverse(r.net_ns), r.object));
        rows.truncate(INSTANCES);
        (all, rows)
    }

    pub(super) fn blame_rows(&self) -> Vec<BlameRow> {
        // Threads with the same name, and ids of the same operation, are one holder.
        let mut by_name: BTreeMap<(u16, u32, Option<String>), BlameSums> = BTreeMap::new();
        for ((operation, site, holder), sums) in &self.totals.blame {
            let holder = holder.map(|holder| self.holder(holder));
            by_name.entry((*operation, *site, holder)).or_default().merge(sums);
        }
        let mut rows: Vec<_> = by_name
            .into_iter()
            .map(|((operation, site, holder), sums)| BlameRow {
                operation: self.names.operation(operation),
                site: self.names.site(site),
                holder,
                count: sums.count,
                wait_ns: sums.waited,
                holder_ran_ns: sums.holder_ran,
                holder_waited_ns: sums.holder_waited,
                holder_off_ns: sums.holder_off,
                holder_preempted_ns: self.has_switches().then_some(sums.holder_preempted),
                handover_ns: sums.handover,
                via: sums.via.iter().max_by_key(|(_, ns)| **ns).map(|(site, _)| self.names.site(*site)),
            })
            .collect();
        rows.sort_by(|a, b| {
            let key = |r: &BlameRow| (r.operation.clone(), r.site.clone(), r.holder.clone());
            b.wait_ns.cmp(&a.wait_ns).then_with(|| key(a).cmp(&key(b)))
        });
        rows
    }

    /// Returns the name of a holder in reports: its operation, or the thread's name if it is in no operation.
    fn holder(&self, holder: Holder) -> String {
        match holder {
            Holder::In(operation) => self.names.operation(operation),
            Holder::Thread(tag) => {
                let thread = self.trace.threads.iter().find(|t| t.tag == tag).filter(|t| !t.name.is_empty());
                thread.map_or_else(|| self.names.operation(0), |t| format!("thread {}", t.name))
            }
        }
    }

    pub(super) fn what_if(&self) -> WhatIfRows {
        let trace = self.trace;
        let quota = trace.quota.map_or(f64::INFINITY, |quota| quota.millis as f64 / 1e3);
        let setting = Setting {
            duration_ns: self.duration,
            processors: f64::from(trace.session.processors.max(1)).min(quota),
            process_cpu_ns: trace.end.process_cpu_ns.saturating_sub(trace.begin.process_cpu_ns),
        };
        let what_if = what_if(&self.totals.thread_totals, &self.totals.uses, self.chosen, setting);
        let locks = what_if.locks.iter().map(|lock| LockRow {
            site: self.names.site(lock.site),
            utilisation: lock.utilisation,
            is_inferred: lock.is_inferred,
            ceiling_per_second: lock.ceiling.is_finite().then_some(lock.ceiling),
            if_free_per_second: lock.if_free,
            gain: lock.if_free / what_if.throughput - 1.0,
            then_limited_by: match lock.limited_by {
                Limit::Cpu => "cpu".into(),
                Limit::Threads => "threads".into(),
                Limit::Lock(site) => self.names.site(site),
            },
        });
        WhatIfRows {
            throughput_per_second: what_if.throughput,
            threads: what_if.population,
            cpu_ceiling_per_second: what_if.cpu_ceiling,
            locks: locks.collect(),
        }
    }

    pub(super) fn open_rows(&self) -> Vec<OpenRow> {
        let end = self.calibration.ns(self.trace.end.ticks);
        let mut rows: Vec<_> = self
            .totals
            .open
            .iter()
            .map(|&(thread, open)| {
                let (operation, site, object, since) = match open {
                    OpenSpan::Op { operation, since } => (operation, None, 0, since),
                    OpenSpan::Wait { site, object, operation, since } => {
                        (operation, Some(self.names.site(site)), object, since)
                    }
                };
                let operation = self.names.operation(operation);
                OpenRow { thread, operation, site, object, so_far_ns: end.saturating_sub(since) }
            })
            .collect();
        rows.sort_by_key(|r| (Reverse(r.so_far_ns), r.thread, r.site.is_none()));
        rows.truncate(OPEN);
        rows
    }
}
