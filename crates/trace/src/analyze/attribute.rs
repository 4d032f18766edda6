//! Where the time of each operation went (Tables 2 and 3 of the paper), and at which site (Figures 5 and 6).
//!
//! For one execution: `elapsed = cpu + lock wait + I/O wait + idle + other - cpu while waiting`. *Other* is time
//! off the processor that no probe explains: preempted, or blocked where there is no probe. CPU time and
//! waits overlap where a thread spins (hazard T5); `cpu while waiting` is that overlap.
//!
//! A wait inside a wait (hazard T4) is told twice as gross time, once for each site, but its net time goes to
//! the inner one only, so net times of all sites add up to the time spent waiting.
//!
//! Operations inside operations: each row has the whole of its executions, inner operations included. The
//! total has outermost executions only. An operation inside itself counts its executions but its time once.
//!
//! Of short operations some executions were drawn by lot to be timed ([`Event::executions`](crate::event::Event::executions)). What
//! such a one does *between* its waits counts as often as it stands for; waits are there of all executions and count once.

use super::pair::{ThreadSpans, WaitSpan};
use super::quick::QuickMap;
use crate::{WaitClass, WaitKind};
use std::collections::BTreeMap;

/// The recording is cut into so many slices of time, so that a difference can be told from noise.
pub(crate) const SLICES: usize = 32;

/// Sums over executions of an operation, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) executions: u64,
    pub(crate) elapsed: u64,
    pub(crate) cpu: u64,
    pub(crate) lock: u64,
    pub(crate) io: u64,
    pub(crate) idle: u64,
    pub(crate) cpu_in_wait: u64,
    /// Preempted outside of waits; 0 where the kernel's records are missing.
    pub(crate) preempted: u64,
}

impl Sums {
    /// Off the processor, and no probe says why.
    pub(crate) fn other(&self) -> u64 {
        let explained = self.lock + self.io + self.idle + self.cpu.saturating_sub(self.cpu_in_wait);
        self.elapsed.saturating_sub(explained)
    }

    /// The waits, cut to what an execution of this length can hold: guards dropped in another order than they
    /// were made could overlap so that some time counts twice.
    fn within(&self, elapsed: u64, cpu: u64) -> Self {
        let lock = self.lock.min(elapsed);
        let io = self.io.min(elapsed - lock);
        let idle = self.idle.min(elapsed - lock - io);
        Self { lock, io, idle, cpu_in_wait: self.cpu_in_wait.min(cpu), ..*self }
    }

    /// An execution's sums as those of so many of its kind, of which only this one's waits are meant.
    fn standing_for(&self, weight: u32) -> Self {
        if weight == 1 {
            return *self;
        }
        let weight = u64::from(weight);
        let waits = self.lock + self.io + self.idle;
        Self {
            executions: weight,
            elapsed: waits + weight.saturating_mul(self.elapsed.saturating_sub(waits)),
            cpu: self.cpu_in_wait + weight.saturating_mul(self.cpu.saturating_sub(self.cpu_in_wait)),
            preempted: weight.saturating_mul(self.preempted),
            ..*self
        }
    }

    fn add(&mut self, more: &Self) {
        self.executions += more.executions;
        self.elapsed += more.elapsed;
        self.cpu += more.cpu;
        self.lock += more.lock;
        self.io += more.io;
        self.idle += more.idle;
        self.cpu_in_wait += more.cpu_in_wait;
        self.preempted += more.preempted;
    }
}

/// An operation's sums, in all, per slice, and how its executions spread.
#[derive(Debug, Clone, Default)]
pub(crate) struct OperationSums {
    pub(crate) all: Sums,
    pub(crate) slices: Vec<Sums>,
    /// Executions that were timed.
    pub(crate) timed: u64,
    /// Elapsed time of each of those, and what it stands for, until `spread` is known.
    durations: Vec<(u64, u32)>,
    /// What half of them, 99 of 100, and all do not exceed.
    pub(crate) spread: [u64; 3],
    /// Threads that executed it.
    pub(crate) threads: u64,
}

/// Waits at one site, inside one operation.
#[derive(Debug, Clone, Default)]
pub(crate) struct WaitSums {
    pub(crate) kind: Option<WaitKind>,
    pub(crate) count: u64,
    /// Without the waits inside.
    pub(crate) net: u64,
    /// With the waits inside.
    pub(crate) gross: u64,
    /// CPU time burnt in the net time.
    pub(crate) cpu: u64,
    pub(crate) longest: u64,
    /// Net time per slice.
    pub(crate) slices: Vec<u64>,
}

/// All threads' times, by operation and site.
#[derive(Debug, Default)]
pub(crate) struct Attribution {
    pub(crate) operations: BTreeMap<u16, OperationSums>,
    /// Outermost executions of any operation.
    pub(crate) total: OperationSums,
    /// (operation, site); operation 0 is "outside of any".
    pub(crate) waits: BTreeMap<(u16, u32), WaitSums>,
    /// By site, wherever the waits happened.
    pub(crate) sites: BTreeMap<u32, WaitSums>,
    /// By instance: (site, object), count and net time.
    pub(crate) instances: BTreeMap<(u32, u64), (u64, u64)>,
}

/// What a wait adds, waits inside taken off.
pub(crate) struct Net {
    pub(crate) ns: u64,
    pub(crate) cpu: u64,
}

/// Adds up all threads.
pub(crate) fn attribute(threads: &[ThreadSpans], duration: u64) -> Attribution {
    let mut attribution = Attribution::default();
    let mut sums = Accounts::default();
    let slice =
        |ns: u64| ((u128::from(ns) * SLICES as u128 / u128::from(duration.max(1))) as usize).min(SLICES - 1);
    for thread in threads {
        let inside = sums.add_waits(thread, &slice);
        attribution.add_operations(thread, &inside, &slice);
    }
    attribution.waits = sums.waits.into_iter().collect();
    attribution.sites = sums.sites.into_iter().collect();
    attribution.instances = sums.instances.into_iter().collect();
    for sums in attribution.operations.values_mut().chain([&mut attribution.total]) {
        sums.spread = spread(std::mem::take(&mut sums.durations));
    }
    attribution
}

/// As in [`Attribution`], while they grow.
#[derive(Debug, Default)]
struct Accounts {
    waits: QuickMap<(u16, u32), WaitSums>,
    sites: QuickMap<u32, WaitSums>,
    instances: QuickMap<(u32, u64), (u64, u64)>,
}

impl Accounts {
    /// Adds the thread's waits to sites and cells; answers the waiting sums inside each of its executions.
    fn add_waits(&mut self, thread: &ThreadSpans, slice: &impl Fn(u64) -> usize) -> Vec<Sums> {
        let mut inside = vec![Sums::default(); thread.ops.len()];
        let nets = net_times(&thread.waits);
        let mut seen = Vec::new();
        for (wait, net) in thread.waits.iter().zip(&nets) {
            let Some(end) = wait.end else { continue };
            let at = slice(end);
            self.sites.entry(wait.site).or_default().add(wait, end, net, at);
            let instance = self.instances.entry((wait.site, wait.object)).or_default();
            *instance = (instance.0 + 1, instance.1 + net.ns);
            seen.clear();
            // Here: preempted inside of waits.
            let preempted = if wait.parent.is_none() { thread.off.between(wait.begin, end) } else { 0 };
            let mut op = wait.op;
            if op.is_none() {
                self.waits.entry((0, wait.site)).or_default().add(wait, end, net, at);
            }
            while let Some(index) = op {
                let span = &thread.ops[index as usize];
                let sums = &mut inside[index as usize];
                // A guard may outlive its operation; what comes after belongs to it no more.
                let inside = span.end.map_or(net.ns, |end| net.ns.min(end.saturating_sub(wait.begin)));
                *sums.of_class(wait.kind.class()) += inside;
                sums.cpu_in_wait += net.cpu;
                sums.preempted += preempted;
                if span.end.is_some() && !seen.contains(&span.operation) {
                    seen.push(span.operation);
                    self.waits.entry((span.operation, wait.site)).or_default().add(wait, end, net, at);
                }
                op = span.parent;
            }
        }
        inside
    }
}

impl Attribution {
    fn add_operations(&mut self, thread: &ThreadSpans, inside: &[Sums], slice: &impl Fn(u64) -> usize) {
        let mut done = Vec::new();
        for (span, inside) in thread.ops.iter().zip(inside) {
            let Some(end) = span.end else { continue };
            let elapsed = end - span.begin;
            let mut sums = Sums { executions: 1, elapsed, cpu: span.cpu, ..inside.within(elapsed, span.cpu) };
            let preempted = thread.off.between(span.begin, end).saturating_sub(inside.preempted);
            sums.preempted = preempted.min(sums.other());
            sums = sums.standing_for(span.weight);
            if span.parent.is_none_or(|p| thread.ops[p as usize].end.is_none()) {
                self.total.add(&sums, slice(end));
                self.total.time(elapsed, span.weight);
            }
            let row = self.operations.entry(span.operation).or_default();
            if !done.contains(&span.operation) {
                done.push(span.operation);
                row.threads += 1;
            }
            row.time(elapsed, span.weight);
            if is_inside_itself(thread, span.parent, span.operation) {
                sums = Sums { executions: span.weight.into(), ..Sums::default() };
            }
            row.add(&sums, slice(end));
        }
        self.total.threads += u64::from(!done.is_empty());
    }
}

fn is_inside_itself(thread: &ThreadSpans, mut parent: Option<u32>, operation: u16) -> bool {
    while let Some(index) = parent {
        let span = &thread.ops[index as usize];
        if span.operation == operation && span.end.is_some() {
            return true;
        }
        parent = span.parent;
    }
    false
}

/// Each wait's time and CPU time without those of the waits inside it.
pub(crate) fn net_times(waits: &[WaitSpan]) -> Vec<Net> {
    let mut nets: Vec<Net> =
        waits.iter().map(|w| Net { ns: w.end.map_or(0, |end| end - w.begin), cpu: w.cpu }).collect();
    for inner in waits {
        if let (Some(end), Some(parent)) = (inner.end, inner.parent)
            && let Some(outer_end) = waits[parent as usize].end
        {
            let outer = &mut nets[parent as usize];
            outer.ns = outer.ns.saturating_sub(end.min(outer_end) - inner.begin);
            outer.cpu = outer.cpu.saturating_sub(inner.cpu);
        }
    }
    nets
}

impl Sums {
    fn of_class(&mut self, class: WaitClass) -> &mut u64 {
        match class {
            WaitClass::Lock => &mut self.lock,
            WaitClass::Io => &mut self.io,
            WaitClass::Idle => &mut self.idle,
        }
    }
}

impl OperationSums {
    fn add(&mut self, sums: &Sums, slice: usize) {
        if self.slices.is_empty() {
            self.slices = vec![Sums::default(); SLICES];
        }
        self.all.add(sums);
        self.slices[slice].add(sums);
    }

    /// An execution took so long and stands for so many.
    fn time(&mut self, elapsed: u64, weight: u32) {
        if weight > 0 {
            self.timed += 1;
            self.durations.push((elapsed, weight));
        }
    }
}

/// The values that half, 99 of 100, and all do not exceed, each value standing for some; sorting is avoided where all stand for
/// one alone.
fn spread(mut values: Vec<(u64, u32)>) -> [u64; 3] {
    let Some(&(longest, _)) = values.iter().max_by_key(|v| v.0) else { return [0; 3] };
    let all: u64 = values.iter().map(|v| u64::from(v.1)).sum();
    let index = |part: f64| ((all as f64 * part).ceil() as u64).saturating_sub(1);
    let (half, most) = (index(0.5), index(0.99));
    if all == values.len() as u64 {
        let (below, &mut (p99, _), _) = values.select_nth_unstable(most as usize);
        let p50 = if half < most { below.select_nth_unstable(half as usize).1.0 } else { p99 };
        return [p50, p99, longest];
    }
    values.sort_unstable();
    let at = |index: u64| {
        let mut before = 0;
        let of = values.iter().find(|v| {
            before += u64::from(v.1);
            before > index
        });
        of.map_or(longest, |v| v.0)
    };
    [at(half), at(most), longest]
}

impl WaitSums {
    fn add(&mut self, wait: &WaitSpan, end: u64, net: &Net, slice: usize) {
        if self.slices.is_empty() {
            self.slices = vec![0; SLICES];
        }
        self.kind.get_or_insert(wait.kind);
        self.count += 1;
        self.net += net.ns;
        self.gross += end - wait.begin;
        self.cpu += net.cpu;
        self.longest = self.longest.max(end - wait.begin);
        self.slices[slice] += net.ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_execution_stands_for_others_but_its_waits_do_not() {
        let one = Sums { executions: 1, elapsed: 100, cpu: 70, lock: 40, cpu_in_wait: 15, ..Sums::default() };
        let four = one.standing_for(4);
        assert_eq!((four.executions, four.elapsed, four.lock), (4, 40 + 4 * 60, 40));
        assert_eq!((four.cpu, four.other()), (15 + 4 * 55, 4 * one.other()));
        let none = one.standing_for(0);
        assert_eq!((none.executions, none.elapsed, none.cpu, none.other()), (0, 40, 15, 0));
    }

    #[test]
    fn the_spread_is_that_of_the_sorted_values() {
        assert_eq!(spread(Vec::new()), [0; 3]);
        for n in 1..300_u64 {
            let values: Vec<u64> = (0..n).map(|i| i * 7919 % 1000).collect();
            let mut sorted = values.clone();
            sorted.sort_unstable();
            let at = |part: f64| sorted[((n as f64 * part).ceil() as usize).saturating_sub(1)];
            let expected = [at(0.5), at(0.99), at(1.0)];
            assert_eq!(spread(values.iter().map(|v| (*v, 1)).collect()), expected, "{n}");
            // Every value three times is every value standing for three.
            let thrice: Vec<u64> = values.iter().flat_map(|v| [*v; 3]).collect();
            let expected = spread(thrice.into_iter().map(|v| (v, 1)).collect());
            assert_eq!(spread(values.into_iter().map(|v| (v, 3)).collect()), expected, "{n}");
        }
    }
}
