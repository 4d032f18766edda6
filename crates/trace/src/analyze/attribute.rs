//! Attribution of each operation's time to CPU, waits and the rest (Tables 2 and 3 of the paper), and to
//! sites (Figures 5 and 6).
//!
//! For one execution: `elapsed = cpu + lock wait + I/O wait + idle + other - cpu while waiting`. *Other* is
//! time off the processor without a probe: preemption, or blocking outside of probes. CPU time and waits
//! overlap while a thread spins (hazard T5); `cpu while waiting` is that overlap.
//!
//! A nested wait (hazard T4) counts as gross time of both sites, and as net time of the inner one only, so
//! the net times of all sites add up to the time spent waiting.
//!
//! Nested operations: each row has the whole time of its executions, including inner operations. The total
//! has outermost executions only. For a recursive operation each execution counts, but its time counts once.
//!
//! Only some executions of short operations are timed
//! ([`Event::executions`](crate::event::Event::executions)). The time of a timed execution *between* its
//! waits is multiplied by its weight; waits are recorded in all executions and count once.

use super::bounded::Bounded;
use super::nearby::partition_point_from;
use super::pair::{HoldSpan, ThreadSpans, WaitSpan};
use super::quick::QuickMap;
use super::spread::Spread;
use crate::{WaitClass, WaitKind};
use std::collections::BTreeMap;

/// Largest number of executions of which each is a sample, if too few slices have the end of one.
const FEW: usize = 1024;
/// If a thread waits again within this time, it has only checked the lock.
const AT_ONCE_NS: u64 = 50_000;
/// Number of time slices of a recording. The variation between slices distinguishes a difference from noise.
pub(crate) const SLICES: usize = 32;

/// Division of a recording's duration into slices.
#[derive(Debug)]
struct Slices {
    duration: u64,
}

impl Slices {
    fn new(duration: u64) -> Self {
        Self { duration: duration.max(1) }
    }

    /// Returns the slice of an instant.
    fn at(&self, ns: u64) -> usize {
        let slice = match ns.checked_mul(SLICES as u64) {
            Some(product) => product / self.duration,
            None => ns / (self.duration / SLICES as u64).max(1),
        };
        (slice as usize).min(SLICES - 1)
    }

    /// Returns the first instant of a slice.
    fn begin(&self, slice: usize) -> u64 {
        (u128::from(self.duration) * slice as u128).div_ceil(SLICES as u128) as u64
    }

    /// Divides the time `ns` of a span evenly among the slices `first..=last`, which it covers.
    fn spread(&self, (begin, end): (u64, u64), (first, last): (usize, usize), ns: u64, sums: &mut [u64]) {
        if first == last {
            sums[first] += ns;
            return;
        }
        let mut left = ns;
        for (slice, sum) in sums.iter_mut().enumerate().take(last + 1).skip(first) {
            let inside = self.begin(slice + 1).min(end).saturating_sub(self.begin(slice).max(begin));
            let part = u128::from(ns) * u128::from(inside) / u128::from(end - begin);
            // The last slice has what rounding left.
            let part = if slice == last { left } else { part as u64 };
            *sum += part;
            left -= part;
        }
    }
}

/// A wait that has ended, and the slices that it covers.
struct Placed<'w> {
    wait: &'w WaitSpan,
    end: u64,
    net: &'w Net,
    slices: &'w Slices,
    covered: (usize, usize),
}

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
    /// Time preempted outside of waits; 0 without the kernel's records.
    pub(crate) preempted: u64,
}

impl Sums {
    /// Returns the time off the processor without a recorded reason.
    pub(crate) fn other(&self) -> u64 {
        let explained = self.lock + self.io + self.idle + self.cpu.saturating_sub(self.cpu_in_wait);
        self.elapsed.saturating_sub(explained)
    }

    /// Returns the sums with the waits limited to an execution of this length. Without this limit, guards
    /// that are dropped in another order than they were created could count some time twice.
    fn within(&self, elapsed: u64, cpu: u64) -> Self {
        let lock = self.lock.min(elapsed);
        let io = self.io.min(elapsed - lock);
        let idle = self.idle.min(elapsed - lock - io);
        Self { lock, io, idle, cpu_in_wait: self.cpu_in_wait.min(cpu), ..*self }
    }

    /// Returns the sums of an execution that represents `weight` executions; its waits count once.
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

/// An operation's sums, in total and per slice, and the distribution of its executions' durations.
#[derive(Debug, Clone, Default)]
pub(crate) struct OperationSums {
    pub(crate) all: Sums,
    pub(crate) slices: Vec<Sums>,
    /// Number of timed executions.
    pub(crate) timed: u64,
    /// Durations of the timed executions.
    durations: Spread,
    /// Duration and CPU time of each timed execution, if there are at most [`FEW`] and each represents
    /// itself only.
    few: Vec<(u64, u64)>,
    /// Number of threads that executed the operation.
    pub(crate) threads: u64,
}

/// Waits at one site, inside one operation.
#[derive(Debug, Clone, Default)]
pub(crate) struct WaitSums {
    pub(crate) kind: Option<WaitKind>,
    pub(crate) count: u64,
    /// Number of these waits that ended in vain; counted by site only.
    pub(crate) vain: u64,
    /// Time without the waits inside.
    pub(crate) net: u64,
    /// Time with the waits inside.
    pub(crate) gross: u64,
    /// CPU time used in the net time.
    pub(crate) cpu: u64,
    pub(crate) longest: u64,
    /// Net time per slice.
    pub(crate) slices: Vec<u64>,
    /// Count and net time of the waits with a recorded stack, by stack.
    pub(crate) stacks: BTreeMap<u32, (u64, u64)>,
}

/// The times of all threads, by operation and site.
#[derive(Debug, Default)]
pub(crate) struct Attribution {
    pub(crate) operations: BTreeMap<u16, OperationSums>,
    /// Sums of the outermost executions of all operations.
    pub(crate) total: OperationSums,
    /// Time of the outermost executions, by operation.
    pub(crate) outermost: BTreeMap<u16, u64>,
    accounts: Accounts,
}

/// State of an operation of a thread that continues in the next window.
#[derive(Debug, Default)]
pub(crate) struct Ongoing {
    /// Waits inside the operation so far.
    inside: Sums,
    /// These waits by site, which are reported when the operation ends.
    waits: BTreeMap<u32, WaitSums>,
    /// The operations directly inside it so far. If the operation never ends, these are outermost ones.
    instead: OperationSums,
}

/// State of a thread between two windows of a recording.
#[derive(Debug, Default)]
pub(crate) struct ThreadAccount {
    ongoing: Vec<Ongoing>,
    /// Operations that the thread has executed.
    executed: Vec<u16>,
}

impl ThreadAccount {
    pub(crate) fn has_executed(&self, operation: u16) -> bool {
        self.executed.contains(&operation)
    }
}

/// Net time of a wait, without nested waits.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) ns: u64,
    pub(crate) cpu: u64,
    /// `true` if other waits are inside.
    pub(crate) is_outer: bool,
}

impl Attribution {
    /// Adds one thread's spans of a window.
    pub(crate) fn add(&mut self, thread: &ThreadSpans, account: &mut ThreadAccount, duration: u64) {
        let slices = Slices::new(duration);
        // Operations that continue from the previous window have the first indexes.
        let mut ongoing: BTreeMap<u32, Ongoing> = (0..).zip(account.ongoing.drain(..)).collect();
        thread.ongoing.iter().for_each(|op| _ = ongoing.entry(*op).or_default());
        let inside = self.accounts.add_waits(thread, &mut ongoing, &slices);
        self.add_operations(thread, &inside, account, &mut ongoing, &slices);
        for op in &thread.ongoing {
            let more = Ongoing { inside: inside[*op as usize], ..ongoing.remove(op).unwrap_or_default() };
            account.ongoing.push(more);
        }
        // The other operations have ended, or will never end.
        for (op, more) in ongoing {
            let span = &thread.ops[op as usize];
            if span.end.is_some() {
                for (site, sums) in more.waits {
                    self.accounts.waits.entry((span.operation, site)).or_default().merge(&sums);
                }
            } else if span.parent.is_none_or(|p| thread.ops[p as usize].end.is_none()) {
                self.total.merge(more.instead);
            }
        }
        self.accounts.instances.prune();
    }

    /// Returns the waits by operation and site; operation 0 stands for "outside of any operation".
    pub(crate) fn waits(&self) -> BTreeMap<(u16, u32), &WaitSums> {
        self.accounts.waits.iter().map(|(key, sums)| (*key, sums)).collect()
    }

    /// Returns the waits by site, for all operations together.
    pub(crate) fn sites(&self) -> BTreeMap<u32, &WaitSums> {
        self.accounts.sites.iter().map(|(key, sums)| (*key, sums)).collect()
    }

    /// Returns the instances of a site, in no order: object, count, and net time. Also returns the minimum
    /// number of further instances.
    pub(crate) fn instances(&self, site: u32) -> (Vec<(u64, u64, u64)>, u64) {
        let of_site = self.accounts.instances.iter().filter(|((of, _), _)| *of == site);
        let rows = of_site.map(|((_, object), (count, net))| (*object, *count, *net)).collect();
        (rows, self.accounts.instances.left_out(site))
    }
}

/// Sums of waits by operation, site and instance.
#[derive(Debug, Default)]
struct Accounts {
    waits: QuickMap<(u16, u32), WaitSums>,
    sites: QuickMap<u32, WaitSums>,
    /// Count and net time of the waits, by (site, object).
    instances: Bounded<(u64, u64)>,
}

impl Accounts {
    /// Adds the thread's waits to the sums. Returns the sums of the waits inside each of its executions.
    fn add_waits(
        &mut self,
        thread: &ThreadSpans,
        ongoing: &mut BTreeMap<u32, Ongoing>,
        slices: &Slices,
    ) -> Vec<Sums> {
        let mut inside = vec![Sums::default(); thread.ops.len()];
        ongoing.iter().for_each(|(op, before)| inside[*op as usize] = before.inside);
        let nets = thread.nets();
        let (mut seen, mut near) = (Vec::new(), 0);
        for (index, (wait, net)) in thread.waits.iter().zip(nets).enumerate() {
            let Some(end) = wait.end else { continue };
            let wait_in = Placed { wait, end, net, slices, covered: (slices.at(wait.begin), slices.at(end)) };
            let site = self.sites.entry(wait.site).or_default();
            site.add(&wait_in);
            site.vain += u64::from(is_vain(thread, index, end, &mut near));
            let instance = self.instances.entry((wait.site, wait.object));
            *instance = (instance.0 + 1, instance.1 + net.ns);
            seen.clear();
            // In these sums, `preempted` is the time preempted inside of waits.
            let preempted = if wait.parent.is_none() { thread.off.between(wait.begin, end) } else { 0 };
            let mut op = wait.op;
            if op.is_none() {
                self.waits.entry((0, wait.site)).or_default().add(&wait_in);
            }
            while let Some(index) = op {
                let span = &thread.ops[index as usize];
                let sums = &mut inside[index as usize];
                // A wait's guard may be dropped after its operation has ended. The time after that end does
                // not belong to the operation.
                let inside = span.end.map_or(net.ns, |end| net.ns.min(end.saturating_sub(wait.begin)));
                *sums.of_class(wait.kind.class()) += inside;
                sums.cpu_in_wait += net.cpu;
                sums.preempted += preempted;
                if !seen.contains(&span.operation) {
                    let sums = match ongoing.get_mut(&index) {
                        Some(ongoing) => Some(ongoing.waits.entry(wait.site).or_default()),
                        None if span.end.is_none() => None, // the operation never ends
                        None => Some(self.waits.entry((span.operation, wait.site)).or_default()),
                    };
                    if let Some(sums) = sums {
                        seen.push(span.operation);
                        sums.add(&wait_in);
                    }
                }
                op = span.parent;
            }
        }
        inside
    }
}

impl Attribution {
    fn add_operations(
        &mut self,
        thread: &ThreadSpans,
        inside: &[Sums],
        account: &mut ThreadAccount,
        ongoing: &mut BTreeMap<u32, Ongoing>,
        slices: &Slices,
    ) {
        let is_first = account.executed.is_empty();
        for (span, inside) in thread.ops.iter().zip(inside) {
            let Some(end) = span.end else { continue };
            let (elapsed, at) = (end - span.begin, slices.at(end));
            let mut sums = Sums { executions: 1, elapsed, cpu: span.cpu, ..inside.within(elapsed, span.cpu) };
            let preempted = thread.off.between(span.begin, end).saturating_sub(inside.preempted);
            sums.preempted = preempted.min(sums.other());
            sums = sums.standing_for(span.weight);
            if let Some(total) = self.total_of(thread, span.parent, ongoing) {
                total.add(&sums, at);
                total.time(elapsed, span.cpu, span.weight);
            }
            if span.parent.is_none() {
                *self.outermost.entry(span.operation).or_default() += sums.elapsed;
            }
            let row = self.operations.entry(span.operation).or_default();
            if !account.executed.contains(&span.operation) {
                account.executed.push(span.operation);
                row.threads += 1;
            }
            row.time(elapsed, span.cpu, span.weight);
            if is_inside_itself(thread, span.parent, span.operation) {
                sums = Sums { executions: span.weight.into(), ..Sums::default() };
            }
            row.add(&sums, at);
        }
        self.total.threads += u64::from(is_first && !account.executed.is_empty());
    }

    /// Returns the total for an execution inside `parent`, if it counts as an outermost one.
    fn total_of<'a>(
        &'a mut self,
        thread: &ThreadSpans,
        parent: Option<u32>,
        ongoing: &'a mut BTreeMap<u32, Ongoing>,
    ) -> Option<&'a mut OperationSums> {
        let Some(parent) = parent else { return Some(&mut self.total) };
        match thread.ops[parent as usize].end {
            Some(_) => None,
            None if thread.is_ongoing(parent) => ongoing.get_mut(&parent).map(|o| &mut o.instead),
            None => Some(&mut self.total),
        }
    }
}

fn is_inside_itself(thread: &ThreadSpans, mut parent: Option<u32>, operation: u16) -> bool {
    while let Some(index) = parent {
        let span = &thread.ops[index as usize];
        if span.operation == operation && (span.end.is_some() || thread.is_ongoing(index)) {
            return true;
        }
        parent = span.parent;
    }
    false
}

/// Returns `true` if a wait for a lock was followed at once by another wait for the same lock, without a hold
/// in between: the thread was woken and did not get the lock. (A hold that follows a wait is always
/// recorded.) `near` is the position of the last search among the holds.
fn is_vain(thread: &ThreadSpans, index: usize, end: u64, near: &mut usize) -> bool {
    let wait = &thread.waits[index];
    let Some(next) = thread.waits.get(index + 1) else { return false };
    if (next.site, next.object) != (wait.site, wait.object)
        || wait.kind.class() != WaitClass::Lock
        || !wait.is_woken
        || next.begin.saturating_sub(end) > AT_ONCE_NS
    {
        return false;
    }
    let is_it = |hold: &HoldSpan| (hold.site, hold.object) == (wait.site, wait.object);
    let from = partition_point_from(&thread.holds, near, |hold| hold.end < end);
    !thread.holds[from..].iter().take_while(|hold| hold.end <= next.begin).any(is_it)
}

/// Returns each wait's time and CPU time, without those of the waits inside it.
pub(super) fn net_times(waits: &[WaitSpan]) -> Vec<Net> {
    let own = |w: &WaitSpan| {
        let ns = w.end.map_or(0, |end| end - w.begin);
        let (ns, cpu) = (ns.saturating_sub(w.inside.0), w.cpu.saturating_sub(w.inside.1));
        Net { ns, cpu, is_outer: false }
    };
    let mut nets: Vec<Net> = waits.iter().map(own).collect();
    for inner in waits {
        let Some(parent) = inner.parent else { continue };
        let outer = &mut nets[parent as usize];
        outer.is_outer = true;
        if let (Some(end), Some(outer_end)) = (inner.end, waits[parent as usize].end) {
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

    /// Adds a timed execution of this duration, with this weight.
    fn time(&mut self, elapsed: u64, cpu: u64, weight: u32) {
        if weight > 0 {
            if weight == 1 && self.few.len() as u64 == self.timed && self.few.len() < FEW {
                self.few.push((elapsed, cpu));
            }
            self.timed += 1;
            self.durations.add(elapsed, weight);
        }
    }

    fn merge(&mut self, more: Self) {
        if self.slices.is_empty() {
            self.slices = more.slices;
        } else {
            self.slices.iter_mut().zip(&more.slices).for_each(|(slice, more)| slice.add(more));
        }
        self.all.add(&more.all);
        if self.few.len() as u64 == self.timed && self.few.len() + more.few.len() <= FEW {
            self.few.extend(more.few);
        }
        self.timed += more.timed;
        self.durations.merge(more.durations);
    }

    /// Returns the duration and the CPU time of each execution, if there are few.
    pub(crate) fn few(&self) -> Vec<(u64, u64)> {
        if self.few.len() as u64 == self.timed { self.few.clone() } else { Vec::new() }
    }

    /// Returns the median, the 99th percentile and the maximum of the executions' durations.
    pub(crate) fn spread(&self) -> [u64; 3] {
        self.durations.clone().quantiles()
    }
}

impl WaitSums {
    fn add(&mut self, placed: &Placed<'_>) {
        let Placed { wait, end, net, slices, covered } = *placed;
        if self.slices.is_empty() {
            self.slices = vec![0; SLICES];
        }
        self.kind.get_or_insert(wait.kind);
        self.count += 1;
        self.net += net.ns;
        self.gross += end - wait.begin;
        self.cpu += net.cpu;
        self.longest = self.longest.max(end - wait.begin);
        slices.spread((wait.begin, end), covered, net.ns, &mut self.slices);
        if wait.stack != 0 {
            let (count, ns) = self.stacks.entry(wait.stack).or_default();
            (*count, *ns) = (*count + 1, *ns + net.ns);
        }
    }

    fn merge(&mut self, more: &Self) {
        if self.slices.is_empty() {
            self.slices = vec![0; SLICES];
        }
        self.kind = self.kind.or(more.kind);
        self.count += more.count;
        self.vain += more.vain;
        self.net += more.net;
        self.gross += more.gross;
        self.cpu += more.cpu;
        self.longest = self.longest.max(more.longest);
        self.slices.iter_mut().zip(&more.slices).for_each(|(slice, more)| *slice += more);
        for (stack, more) in &more.stacks {
            let (count, ns) = self.stacks.entry(*stack).or_default();
            (*count, *ns) = (*count + more.0, *ns + more.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_divided_among_the_slices_that_it_covers() {
        for duration in [1, 31, 32, 100, 3_200, 999_999_937, u64::MAX / 2] {
            let slices = Slices::new(duration);
            let mut at_begin: Vec<usize> = (0..SLICES).map(|slice| slices.at(slices.begin(slice))).collect();
            at_begin.dedup();
            assert!(duration < 32 || at_begin == (0..SLICES).collect::<Vec<_>>(), "{duration}: {at_begin:?}");
            for (begin, end) in [(0, duration), (duration / 3, duration / 2), (duration / 7, duration + 9)] {
                let mut sums = vec![0; SLICES];
                let covered = (slices.at(begin), slices.at(end));
                slices.spread((begin, end), covered, end - begin, &mut sums);
                assert_eq!(sums.iter().sum::<u64>(), end - begin, "{duration}: {begin} to {end}");
            }
        }
        let mut sums = vec![0; SLICES];
        Slices::new(3_200).spread((150, 320), (1, 3), 85, &mut sums);
        assert_eq!((&sums[..4], sums[4..].iter().sum()), (&[0, 25, 50, 10][..], 0_u64));
    }

    #[test]
    fn a_sampled_execution_is_scaled_but_its_waits_are_not() {
        let one = Sums { executions: 1, elapsed: 100, cpu: 70, lock: 40, cpu_in_wait: 15, ..Sums::default() };
        let four = one.standing_for(4);
        assert_eq!((four.executions, four.elapsed, four.lock), (4, 40 + 4 * 60, 40));
        assert_eq!((four.cpu, four.other()), (15 + 4 * 55, 4 * one.other()));
        let none = one.standing_for(0);
        assert_eq!((none.executions, none.elapsed, none.cpu, none.other()), (0, 40, 15, 0));
    }
}
