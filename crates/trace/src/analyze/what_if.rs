//! What would be if a lock cost nothing, and what the locks allow at most.
//!
//! The unit of work is one execution of the chosen operation; the recording gives its throughput *X*, the
//! threads *N* that execute it, the cycle *N/X* of such a thread, and per execution the wait *W* at each lock and
//! the CPU time *D* of these threads. Both are taken over all they do, not over the chosen operation alone: a
//! thread that waits in the operations between cannot begin the next one.
//!
//! A lock instance that is in use for the part *U* of the time sets a **ceiling** of *X/U*. The holds drawn by lot tell
//! *U*; but never less than the part *B* of the time in which somebody waits for it, for then it is certainly held.
//! Where no hold was recorded, *U* is taken as the square root of *B*: in a queue of random arrivals and random
//! services somebody is served with probability *U* and somebody waits with *U* squared. (Where all times are
//! fixed, fewer wait and the lock looks too free; recorded holds do not have that fault.)
//!
//! **If a lock cost nothing**, its wait goes away and its hold goes on beside others. Locks under which it was waited for
//! are held for so much less. The threads then meet at
//! the remaining locks; how they queue there is told by mean value analysis of the closed network (one queue
//! per lock instance in use, all else a delay). The answer is bounded by the ceilings of the other locks and by the
//! processors, *m/D'*, where *D'* is *D* without what is burnt spinning at the lock and *m* what other threads
//! leave of the processors.
//!
//! Departures: service times are taken as exponential, though most are shorter tailed; so between the knee and
//! saturation of the next lock the prediction is low by up to a few per cent.

use super::attribute::net_times;
use super::pair::{HoldSpan, ThreadSpans, WaitSpan};
use crate::WaitClass;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Instances used less than this are no queues worth a look.
const LEAST_USE: f64 = 0.01;
/// More threads than this change nothing but the time the recursion takes.
const MOST_CUSTOMERS: u64 = 100_000;

/// The chosen operation's throughput and what stands in its way.
#[derive(Debug, Clone, Default)]
pub(crate) struct WhatIf {
    /// Executions per second.
    pub(crate) throughput: f64,
    /// Threads that execute it.
    pub(crate) population: u64,
    /// What the processors allow.
    pub(crate) cpu_ceiling: Option<f64>,
    pub(crate) locks: Vec<LockWhatIf>,
}

/// One lock site.
#[derive(Debug, Clone)]
pub(crate) struct LockWhatIf {
    pub(crate) site: u32,
    /// Part of the time its busiest instance is in use, estimated.
    pub(crate) utilisation: f64,
    /// No hold was recorded: `utilisation` is inferred from the waits.
    pub(crate) is_inferred: bool,
    /// Executions per second that this instance allows.
    pub(crate) ceiling: f64,
    /// Executions per second if the lock cost nothing.
    pub(crate) if_free: f64,
    /// What would be in the way then.
    pub(crate) limited_by: Limit,
}

/// What bounds a throughput.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// The processors.
    Cpu,
    /// Another lock.
    Lock(u32),
    /// Only the threads' own pace.
    Threads,
}

/// A lock instance as a station of the network.
#[derive(Debug, Clone)]
struct Station {
    site: u32,
    utilisation: f64,
    is_inferred: bool,
    /// Seconds of use per execution of the chosen operation.
    demand: f64,
    /// By site: the part of its holds in which the holder itself waited there.
    waiting: BTreeMap<u32, f64>,
}

impl Station {
    /// The station when nobody waits at `site` any more: what was a wait there under this lock is gone.
    fn without(&self, site: u32) -> Self {
        let left = 1.0 - self.waiting.get(&site).copied().unwrap_or(0.0);
        Self { utilisation: self.utilisation * left, demand: self.demand * left, ..self.clone() }
    }
}

/// What the recording tells that is not in the spans.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) duration_ns: u64,
    pub(crate) hold_sampling: u32,
    pub(crate) processors: u32,
    pub(crate) process_cpu_ns: u64,
}

/// Predicts for each lock site at which the threads of the chosen operation waited.
pub(crate) fn what_if(threads: &[ThreadSpans], operation: u16, setting: Setting) -> WhatIf {
    let crew = Crew::new(threads, operation);
    let seconds = setting.duration_ns.max(1) as f64 / 1e9;
    let throughput = crew.executions as f64 / seconds;
    if throughput == 0.0 {
        return WhatIf::default();
    }
    let others = setting.process_cpu_ns.saturating_sub(crew.cpu) as f64 / 1e9 / seconds;
    let model = Model {
        throughput,
        // Others cannot take all processors: ours got some.
        processors: (f64::from(setting.processors.max(1)) - others).max(crew.cpu as f64 / 1e9 / seconds),
        stations: stations(threads, setting.duration_ns, setting.hold_sampling, throughput),
        crew,
    };
    let mut locks: Vec<LockWhatIf> = model.crew.waits.keys().map(|site| model.without(*site)).collect();
    locks.sort_by(|a, b| b.if_free.total_cmp(&a.if_free).then(a.site.cmp(&b.site)));
    WhatIf { throughput, population: model.crew.threads, cpu_ceiling: model.cpu_ceiling(0.0), locks }
}

/// The threads that execute the chosen operation, and all they do, ns.
#[derive(Debug, Default)]
struct Crew {
    threads: u64,
    executions: u64,
    cpu: u64,
    /// By lock site: net wait, and CPU time burnt in it.
    waits: BTreeMap<u32, (u64, u64)>,
}

impl Crew {
    fn new(threads: &[ThreadSpans], operation: u16) -> Self {
        let mut crew = Self::default();
        for thread in threads {
            let executed = thread.ops.iter().filter(|s| s.operation == operation && s.end.is_some());
            let executions = executed.count() as u64;
            if executions > 0 {
                crew.threads += 1;
                crew.executions += executions;
                crew.cpu += thread.cpu.total();
                crew.add_waits(&thread.waits);
            }
        }
        crew
    }

    fn add_waits(&mut self, waits: &[WaitSpan]) {
        for (wait, net) in waits.iter().zip(net_times(waits)) {
            if wait.kind.class() == WaitClass::Lock && net.ns > 0 {
                let sums = self.waits.entry(wait.site).or_default();
                *sums = (sums.0 + net.ns, sums.1 + net.cpu);
            }
        }
    }

    /// Seconds per execution.
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
    crew: Crew,
}

impl Model {
    /// What the processors allow when so much CPU time per execution is saved.
    fn cpu_ceiling(&self, saved: f64) -> Option<f64> {
        let demand = self.crew.per_execution(self.crew.cpu) - saved;
        (demand > 0.0).then(|| self.processors / demand)
    }

    fn without(&self, site: u32) -> LockWhatIf {
        let (own, others): (Vec<&Station>, Vec<&Station>) =
            self.stations.iter().partition(|s| s.site == site);
        let others: Vec<Station> = others.into_iter().map(|s| s.without(site)).collect();
        let others: Vec<&Station> = others.iter().collect();
        let by_use = |a: &&&Station, b: &&&Station| a.utilisation.total_cmp(&b.utilisation);
        let (utilisation, is_inferred) =
            own.iter().max_by(by_use).map_or((0.0, true), |s| (s.utilisation, s.is_inferred));
        let mut if_free = mean_value_analysis(self.crew.threads, self.delay(site, &others), &others);
        let mut limited_by = Limit::Threads;
        // Near the ceiling of another lock, that lock is in the way.
        if let Some(tightest) = others.iter().max_by(by_use) {
            let ceiling = self.throughput / tightest.utilisation;
            if if_free >= 0.8 * ceiling {
                (if_free, limited_by) = (if_free.min(ceiling), Limit::Lock(tightest.site));
            }
        }
        let burnt = self.crew.per_execution(self.crew.waits.get(&site).map_or(0, |w| w.1));
        if let Some(ceiling) = self.cpu_ceiling(burnt).filter(|ceiling| if_free > *ceiling) {
            (if_free, limited_by) = (ceiling, Limit::Cpu);
        }
        let ceiling = if utilisation > 0.0 { self.throughput / utilisation } else { f64::INFINITY };
        let if_free = if_free.max(self.throughput);
        LockWhatIf { site, utilisation, is_inferred, ceiling, if_free, limited_by }
    }

    /// Seconds of a thread's cycle that are spent neither waiting nor being served at one of the other locks.
    /// This lock's own hold is part of it; its wait is gone.
    fn delay(&self, site: u32, others: &[&Station]) -> f64 {
        let sites: BTreeSet<u32> = others.iter().map(|s| s.site).collect();
        let waited: f64 = sites.into_iter().map(|s| self.crew.wait_at(s)).sum();
        let served: f64 = others.iter().map(|s| s.demand).sum();
        let cycle = self.crew.threads as f64 / self.throughput;
        (cycle - self.crew.wait_at(site) - waited - served).max(0.0)
    }
}

/// Throughput of `customers` threads that think for `delay` seconds and then pass all stations: the exact
/// recursion for one class, over the number of threads.
fn mean_value_analysis(customers: u64, delay: f64, stations: &[&Station]) -> f64 {
    let mut queues = vec![0.0; stations.len()];
    let mut throughput = 0.0;
    for n in 1..=customers.min(MOST_CUSTOMERS) {
        let residence: Vec<f64> =
            stations.iter().zip(&queues).map(|(s, queue)| s.demand * (1.0 + queue)).collect();
        let cycle = delay + residence.iter().sum::<f64>();
        if cycle <= 0.0 {
            return f64::INFINITY;
        }
        throughput = n as f64 / cycle;
        for (queue, residence) in queues.iter_mut().zip(&residence) {
            *queue = throughput * residence;
        }
    }
    throughput
}

/// Lock instances in use for a noticeable part of the time, in order of site and object.
fn stations(threads: &[ThreadSpans], duration: u64, sampling: u32, throughput: f64) -> Vec<Station> {
    let mut waited: HashMap<(u32, u64), Vec<(u64, u64)>> = HashMap::new();
    let mut held: HashMap<(u32, u64), u64> = HashMap::new();
    let mut inside: HashMap<(u32, u64), Inside> = HashMap::new();
    for thread in threads {
        for (hold, waits) in waits_in_holds(thread) {
            let inside = inside.entry((hold.site, hold.object)).or_default();
            inside.held += hold.end - hold.begin;
            for (site, ns) in waits {
                *inside.waited.entry(site).or_default() += ns;
            }
        }
        for (wait, end) in proofs(&thread.waits) {
            waited.entry((wait.site, wait.object)).or_default().push((wait.begin, end));
        }
        for hold in thread.holds.iter().filter(|h| h.sampled && !h.shared) {
            *held.entry((hold.site, hold.object)).or_default() += hold.end - hold.begin;
        }
    }
    let part = |ns: u64| (ns as f64 / duration.max(1) as f64).min(1.0);
    let waited: HashMap<_, _> = waited.into_iter().map(|(i, spans)| (i, part(union_length(spans)))).collect();
    // In order of site and object, so that the same trace gives the same sums.
    let instances: BTreeSet<(u32, u64)> = waited.keys().chain(held.keys()).copied().collect();
    instances
        .into_iter()
        .map(|instance| {
            let waited = waited.get(&instance).copied().unwrap_or(0.0);
            let held = held.get(&instance).map(|ns| part(ns.saturating_mul(u64::from(sampling))));
            (instance, held.is_none(), held.map_or(waited.sqrt(), |held| held.max(waited)))
        })
        .filter(|(.., utilisation)| *utilisation >= LEAST_USE)
        .map(|(instance, is_inferred, utilisation)| {
            let demand = utilisation / throughput;
            let waiting = inside.get(&instance).map_or_else(BTreeMap::new, Inside::parts);
            Station { site: instance.0, utilisation, is_inferred, demand, waiting }
        })
        .collect()
}

/// What holders of an instance waited for while they held it.
#[derive(Debug, Default)]
struct Inside {
    held: u64,
    waited: BTreeMap<u32, u64>,
}

impl Inside {
    fn parts(&self) -> BTreeMap<u32, f64> {
        let part = |ns: u64| (ns as f64 / self.held.max(1) as f64).min(1.0);
        self.waited.iter().map(|(site, ns)| (*site, part(*ns))).collect()
    }
}

/// The thread's recorded exclusive holds, each with its own waits for locks inside of it, by site.
fn waits_in_holds(thread: &ThreadSpans) -> impl Iterator<Item = (&HoldSpan, Vec<(u32, u64)>)> {
    let nets = net_times(&thread.waits);
    thread.holds.iter().filter(|h| !h.shared && h.begin < h.end).map(move |hold| {
        let first = thread.waits.partition_point(|w| w.begin < hold.begin);
        let inside = thread.waits[first..].iter().zip(&nets[first..]).take_while(|(w, _)| w.begin < hold.end);
        let locks =
            inside.filter(|(w, _)| w.kind.class() == WaitClass::Lock && w.end.is_some_and(|e| e <= hold.end));
        (hold, locks.map(|(w, net)| (w.site, net.ns)).collect())
    })
}

/// Which waits prove that somebody held what they waited for. A wait with waits inside (hazard T4) does not: between
/// them it does work of its own, and a rw_lock would seem in use whenever its mutex is.
fn proofs(waits: &[WaitSpan]) -> impl Iterator<Item = (&WaitSpan, u64)> {
    let mut is_outer = vec![false; waits.len()];
    waits.iter().filter_map(|w| w.parent).for_each(|parent| is_outer[parent as usize] = true);
    let plain = waits.iter().zip(is_outer).filter(|(w, outer)| !outer && w.kind.class() == WaitClass::Lock);
    plain.filter_map(|(wait, _)| wait.end.map(|end| (wait, end)))
}

/// Length of the union of intervals.
fn union_length(mut spans: Vec<(u64, u64)>) -> u64 {
    spans.sort_unstable();
    let (mut length, mut reached) = (0, 0);
    for (begin, end) in spans {
        length += end.max(reached) - begin.max(reached);
        reached = reached.max(end);
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_that_overlap_count_once() {
        assert_eq!(union_length(vec![(5, 9), (0, 4), (3, 6), (20, 21), (5, 6)]), 10);
        assert_eq!(union_length(Vec::new()), 0);
    }

    #[test]
    fn the_recursion_meets_its_two_limits() {
        let waiting = BTreeMap::new();
        let station = |demand| Station {
            site: 1,
            utilisation: 0.0,
            is_inferred: false,
            demand,
            waiting: waiting.clone(),
        };
        let (slow, quick) = (station(0.01), station(0.001));
        // One thread: no queue. Many: the slowest station's rate.
        let one = mean_value_analysis(1, 0.089, &[&slow, &quick]);
        assert!((one - 10.0).abs() < 1e-9);
        let many = mean_value_analysis(500, 0.089, &[&slow, &quick]);
        assert!((many - 100.0).abs() < 1e-6, "{many}");
        assert!(mean_value_analysis(3, 0.0, &[]).is_infinite());
    }
}
