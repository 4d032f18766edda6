//! Predicted throughput if a lock cost nothing, and the ceilings that locks impose.
//!
//! The unit of work is one execution of the chosen operation. The recording gives its throughput *X*, the
//! number *N* of threads that execute it, the cycle *N/X* of such a thread, and per execution the wait *W*
//! at each lock and the CPU time *D* of these threads. *W* and *D* include all operations of these threads:
//! a thread that waits in another operation cannot begin the next execution.
//!
//! A lock instance in use imposes a **ceiling**: see `stations`.
//!
//! **If a lock cost nothing**, its wait is zero and its holds overlap. Locks that were held while threads
//! waited for it are held for less time accordingly. The threads then queue at the remaining locks, according
//! to mean value analysis of the closed network (one queue per lock instance in use, and a delay for
//! everything else). The result is bounded by the ceilings of the other locks and by the processors, *m/D'*,
//! where *D'* is *D* without the time spent spinning at the lock and *m* is the number of processors not used
//! by other threads.
//!
//! Limits: service times are assumed to be exponential, though most have shorter tails. So between the knee
//! and saturation of the next lock the prediction is low by up to a few percent.

use super::pair::ThreadSpans;
use super::quick::QuickMap;
use super::stations::{Station, Uses, mean_value_analysis};
use crate::WaitClass;
use std::collections::{BTreeMap, BTreeSet};

/// The chosen operation's throughput and its limits.
#[derive(Debug, Clone, Default)]
pub(crate) struct WhatIf {
    /// Executions per second.
    pub(crate) throughput: f64,
    /// Number of threads that execute the operation.
    pub(crate) population: u64,
    /// Executions per second that the processors allow.
    pub(crate) cpu_ceiling: Option<f64>,
    pub(crate) locks: Vec<LockWhatIf>,
}

/// The prediction for one lock site.
#[derive(Debug, Clone)]
pub(crate) struct LockWhatIf {
    pub(crate) site: u32,
    /// Estimated fraction of the time in which the lock's busiest instance is in use.
    pub(crate) utilisation: f64,
    /// `true` if no hold was recorded, so that `utilisation` is inferred from the waits.
    pub(crate) is_inferred: bool,
    /// Executions per second that this instance allows.
    pub(crate) ceiling: f64,
    /// Executions per second if the lock cost nothing.
    pub(crate) if_free: f64,
    /// The next limit without the lock.
    pub(crate) limited_by: Limit,
}

/// Limit of a throughput.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// The processors.
    Cpu,
    /// Another lock.
    Lock(u32),
    /// Only the threads' own speed.
    Threads,
}

/// Facts of the recording that are not in the spans.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) duration_ns: u64,
    /// Number of processors that the process may use, at most its CPU quota.
    pub(crate) processors: f64,
    pub(crate) process_cpu_ns: u64,
}

/// Returns a prediction for each lock site at which the threads of the chosen operation waited.
pub(crate) fn what_if(threads: &[ThreadTotals], uses: &Uses, operation: u16, setting: Setting) -> WhatIf {
    let group = ThreadGroup::new(threads, operation);
    let seconds = setting.duration_ns.max(1) as f64 / 1e9;
    let throughput = group.executions as f64 / seconds;
    if throughput == 0.0 {
        return WhatIf::default();
    }
    let others = setting.process_cpu_ns.saturating_sub(group.cpu) as f64 / 1e9 / seconds;
    let model = Model {
        throughput,
        // At least the processor time that the threads used was available to them.
        processors: (setting.processors - others).max(group.cpu as f64 / 1e9 / seconds),
        stations: uses.stations(setting.duration_ns, throughput),
        group,
    };
    let mut locks: Vec<LockWhatIf> = model.group.waits.keys().map(|site| model.without(*site)).collect();
    locks.sort_by(|a, b| b.if_free.total_cmp(&a.if_free).then(a.site.cmp(&b.site)));
    WhatIf { throughput, population: model.group.threads, cpu_ceiling: model.cpu_ceiling(0.0), locks }
}

/// The threads that execute the chosen operation, and the sums of all their work, in nanoseconds.
#[derive(Debug, Default)]
struct ThreadGroup {
    threads: u64,
    executions: u64,
    cpu: u64,
    /// Net wait, and CPU time used in it, by lock site.
    waits: BTreeMap<u32, (u64, u64)>,
}

/// Sums of a thread over all windows.
#[derive(Debug, Default)]
pub(crate) struct ThreadTotals {
    executions: QuickMap<u16, u64>,
    pub(crate) cpu: u64,
    /// Net wait and CPU time by lock site, as in [`ThreadGroup`].
    waits: QuickMap<u32, (u64, u64)>,
}

impl ThreadTotals {
    /// Adds the spans of a window.
    pub(crate) fn add(&mut self, thread: &ThreadSpans) {
        for span in thread.ops.iter().filter(|s| s.end.is_some()) {
            *self.executions.entry(span.operation).or_default() += u64::from(span.weight);
        }
        self.cpu += thread.cpu.total();
        for (wait, net) in thread.waits.iter().zip(thread.nets()) {
            if wait.kind.class() == WaitClass::Lock && net.ns > 0 {
                let sums = self.waits.entry(wait.site).or_default();
                *sums = (sums.0 + net.ns, sums.1 + net.cpu);
            }
        }
    }
}

impl ThreadGroup {
    fn new(threads: &[ThreadTotals], operation: u16) -> Self {
        let mut group = Self::default();
        for thread in threads {
            let executions = thread.executions.get(&operation).copied().unwrap_or(0);
            if executions > 0 {
                group.threads += 1;
                group.executions += executions;
                group.cpu += thread.cpu;
                for (site, waits) in &thread.waits {
                    let sums = group.waits.entry(*site).or_default();
                    *sums = (sums.0 + waits.0, sums.1 + waits.1);
                }
            }
        }
        group
    }

    /// Returns nanoseconds as seconds per execution.
    fn per_execution(&self, ns: u64) -> f64 {
        ns as f64 / 1e9 / self.executions as f64
    }

    fn wait_at(&self, site: u32) -> f64 {
        self.per_execution(self.waits.get(&site).map_or(0, |w| w.0))
    }
}

struct Model {
    throughput: f64,
    processors: f64,
    stations: Vec<Station>,
    group: ThreadGroup,
}

impl Model {
    /// Returns the limit of the processors if `saved` CPU time per execution is saved.
    fn cpu_ceiling(&self, saved: f64) -> Option<f64> {
        let demand = self.group.per_execution(self.group.cpu) - saved;
        (demand > 0.0).then(|| self.processors / demand)
    }

    fn without(&self, site: u32) -> LockWhatIf {
        let (own, others): (Vec<&Station>, Vec<&Station>) =
            self.stations.iter().partition(|s| s.site == site);
        let others: Vec<Station> = others.into_iter().map(|s| s.without(site)).collect();
        let others: Vec<&Station> = others.iter().collect();
        let by_use = |a: &&&Station, b: &&&Station| a.in_a_row.total_cmp(&b.in_a_row);
        let busiest = own.iter().max_by(by_use);
        let (utilisation, is_inferred) = busiest.map_or((0.0, true), |s| (s.utilisation, s.is_inferred));
        let ceiling = busiest.map_or(f64::INFINITY, |s| s.ceiling());
        let mut if_free = mean_value_analysis(self.group.threads, self.delay(site, &others), &others);
        let mut limited_by = Limit::Threads;
        // Near the ceiling of another lock, that lock is the limit.
        if let Some(tightest) = others.iter().max_by(by_use) {
            let ceiling = tightest.ceiling();
            if if_free >= 0.8 * ceiling {
                (if_free, limited_by) = (if_free.min(ceiling), Limit::Lock(tightest.site));
            }
        }
        let burnt = self.group.per_execution(self.group.waits.get(&site).map_or(0, |w| w.1));
        if let Some(ceiling) = self.cpu_ceiling(burnt).filter(|ceiling| if_free > *ceiling) {
            (if_free, limited_by) = (ceiling, Limit::Cpu);
        }
        let if_free = if_free.max(self.throughput);
        LockWhatIf { site, utilisation, is_inferred, ceiling, if_free, limited_by }
    }

    /// Returns the seconds of a thread's cycle outside of waits and of service at the other locks. Includes
    /// this lock's own hold, but not its wait.
    fn delay(&self, site: u32, others: &[&Station]) -> f64 {
        let sites: BTreeSet<u32> = others.iter().map(|s| s.site).collect();
        let waited: f64 = sites.into_iter().map(|s| self.group.wait_at(s)).sum();
        let served: f64 = others.iter().map(|s| s.alone).sum();
        let cycle = self.group.threads as f64 / self.throughput;
        (cycle - self.group.wait_at(site) - waited - served).max(0.0)
    }
}
