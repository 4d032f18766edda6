//! Rows of the report tables, sorted and with names.

use super::Work;
use super::attribute::{OperationSums, Sums};
use super::blame::{BlameSums, Holder};
use super::pair::OpenSpan;
use super::what_if::{Limit, Setting, what_if};
use crate::WaitKind;
use crate::file::Switches;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Instances reported for each site.
const INSTANCES: usize = 5;
/// Open spans reported.
const OPEN: usize = 20;

/// The recording: how long, how much, how trustworthy, how dear.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recorded {
    /// The user's label.
    pub label: String,
    /// Its duration.
    pub duration_ns: u64,
    /// Threads that recorded something.
    pub threads: u64,
    /// Processors the process could use.
    pub processors: u32,
    /// Events in the trace.
    pub events: u64,
    /// Events that found their ring full (hazard T2).
    pub lost: u64,
    /// Beginnings and ends that lost their partners with them.
    pub unmatched: u64,
    /// Offset of the file's end, if its writer did not finish it.
    pub cut_short_at: Option<u64>,
    /// The clock (hazard T3).
    pub clock: &'static str,
    /// Threads with CPU time from the kernel's sign of a switch.
    pub cpu_by_rseq: u64,
    /// Threads with CPU time read at each event.
    pub cpu_by_thread_clock: u64,
    /// Threads with CPU time from the kernel's records of switches.
    pub cpu_by_switches: u64,
    /// Threads with unknown CPU time.
    pub cpu_unknown: u64,
    /// Stretches between two switches with interpolated CPU time.
    pub interpolated_segments: u64,
    /// Source of the distinction of preempted and blocked time off the processor.
    pub switches: Preemption,
    /// CPU time of the process.
    pub process_cpu_ns: u64,
    /// CPU time of the whole machine, other processes included; `None`: unknown.
    pub machine_cpu_ns: Option<u64>,
    /// CPU time of the recorded threads between their first and last events.
    pub traced_cpu_ns: u64,
    /// Cost of an event, measured at the start.
    pub event_cost_ns: f64,
    /// Events times cost (hazard T1).
    pub own_cost_ns: u64,
    /// The same, of the process's CPU time.
    pub own_cost_of_cpu: Option<f64>,
}

/// Source of the distinction of preempted and blocked time: the kernel's records of context switches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "source", rename_all = "snake_case")]
pub enum Preemption {
    /// No distinction: the records were not requested.
    NotAsked,
    /// The kernel recorded switches.
    Kernel {
        /// Stretches off the processor that were recorded.
        stretches: u64,
        /// Records lost.
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
    /// Without recording; given by the user.
    pub baseline_per_second: f64,
    /// In this recording.
    pub recorded_per_second: f64,
    /// Part of the throughput that was lost.
    pub slowdown: f64,
}

/// The parts of an operation's time (Tables 2 and 3 of the paper).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OperationRow {
    /// Its name.
    pub name: String,
    /// The line that created it.
    pub place: String,
    /// Executions that began and ended in the recording.
    pub executions: u64,
    /// Of them timed: the others were left out at random, and their time is told by these. Waits are there
    /// of all.
    pub timed: u64,
    /// Threads that executed it.
    pub threads: u64,
    /// Their time from beginning to end.
    pub elapsed_ns: u64,
    /// CPU time, spinning included (hazard T5).
    pub cpu_ns: Option<u64>,
    /// Waiting for locks.
    pub lock_wait_ns: u64,
    /// Waiting for devices, network and log.
    pub io_wait_ns: u64,
    /// Waiting for work.
    pub idle_wait_ns: u64,
    /// Time off the processor without a recorded reason.
    pub other_ns: Option<u64>,
    /// Of it, preempted: another thread was given the processor. `None`: the kernel's records are missing.
    pub preempted_ns: Option<u64>,
    /// CPU time burnt in waits: counted in both `cpu_ns` and the waits.
    pub cpu_while_waiting_ns: Option<u64>,
    /// Half of the executions took no longer.
    pub p50_ns: u64,
    /// 99 of 100 took no longer.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    #[serde(skip)]
    pub(crate) slices: Vec<Sums>,
    /// The durations of the executions, if they are few: threads are one execution each.
    #[serde(skip)]
    pub(crate) few: Vec<u64>,
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
    /// Their number.
    pub count: u64,
    /// Without the waits inside (hazard T4): these add up.
    pub net_ns: u64,
    /// With the waits inside.
    pub gross_ns: u64,
    /// CPU time burnt meanwhile.
    pub cpu_ns: Option<u64>,
    /// The longest.
    pub longest_ns: u64,
    /// Net wait per execution of the operation.
    pub per_execution_ns: f64,
    #[serde(skip)]
    pub(crate) slices: Vec<u64>,
}

/// A site, whatever the operation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SiteRow {
    /// Name, file, line in one.
    pub label: String,
    /// Name.
    pub name: String,
    /// File.
    pub file: String,
    /// Line.
    pub line: u32,
    /// Kind of the wait.
    pub kind: Option<WaitKind>,
    /// Number of waits.
    pub count: u64,
    /// Waits for a lock after which the thread waited for it again at once and had not held it.
    pub vain: u64,
    /// Without the waits inside.
    pub net_ns: u64,
    /// With them.
    pub gross_ns: u64,
    /// CPU time burnt meanwhile.
    pub cpu_ns: Option<u64>,
    /// The longest.
    pub longest_ns: u64,
    /// Instances waited for.
    pub instances: u64,
    /// The most waited for.
    pub worst: Vec<InstanceRow>,
}

/// One instance of a site.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InstanceRow {
    /// The object as given to the probe.
    pub object: u64,
    /// Waits.
    pub count: u64,
    /// Their net time.
    pub net_ns: u64,
}

/// Waits by the thread waited for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BlameRow {
    /// The waiter's operation.
    pub operation: String,
    /// The site's label.
    pub site: String,
    /// The holder's operation, or its thread's name if it was in none; `None` when the holder is not known.
    pub holder: Option<String>,
    /// Waits.
    pub count: u64,
    /// Their gross time.
    pub wait_ns: u64,
    /// Of it, the holder was running.
    pub holder_ran_ns: u64,
    /// Of it, the holder was waiting itself.
    pub holder_waited_ns: u64,
    /// Of it, the holder was off its processor otherwise: preempted, most likely.
    pub holder_off_ns: u64,
    /// Of that, preempted for certain; `None`: the kernel's records are missing.
    pub holder_preempted_ns: Option<u64>,
    /// Of it, nobody ran with the lock: the next one was waking up (or a hold was not recorded).
    pub handover_ns: u64,
    /// Site at which the holder waited most.
    pub via: Option<String>,
}

/// Predictions for the chosen operation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WhatIfRows {
    /// Executions per second in the recording.
    pub throughput_per_second: f64,
    /// Threads that execute it.
    pub threads: u64,
    /// Executions per second that the processors allow.
    pub cpu_ceiling_per_second: Option<f64>,
    /// Its locks, most gain first.
    pub locks: Vec<LockRow>,
}

/// A lock: its limit of the throughput, and the prediction without it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LockRow {
    /// The site's label.
    pub site: String,
    /// Part of the time its busiest instance is in use.
    pub utilisation: f64,
    /// No hold of it was recorded: `utilisation`, and so the ceiling, is inferred from the waits.
    pub is_inferred: bool,
    /// Executions per second that this instance allows; `None` when it was hardly used.
    pub ceiling_per_second: Option<f64>,
    /// Executions per second if it cost nothing.
    pub if_free_per_second: f64,
    /// The same over the throughput measured, minus 1.
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
    /// The site it waits at; `None`: it was executing.
    pub site: Option<String>,
    /// The instance.
    pub object: u64,
    /// Its duration so far.
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
        // Threads of one name, and numbers of one operation, are one holder.
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

    /// A holder as reports call it: its operation, or the thread's name if it is in none.
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
        let setting = Setting {
            duration_ns: self.duration,
            processors: trace.session.processors,
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
