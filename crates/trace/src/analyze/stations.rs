//! Lock instances as stations of a closed queueing network: the service time of each, and the queues of
//! threads at them.
//!
//! An instance is in use for a fraction *U* of the time, estimated from recorded holds: holds after a wait
//! are all recorded, and each other recorded hold counts with its weight. *U* is at least the fraction *B* of
//! the time in which a thread waits for the instance, because the instance is then held or handed over.
//! Without a recorded hold, *U* is the square root of *B*: in a queue with random arrivals and services a
//! thread is served with probability *U* and a thread waits with probability *U* squared. (With constant
//! times fewer threads wait and the estimate of *U* is too low; recorded holds do not have that error.)
//!
//! **Hand-over.** When sleepers wait for a lock, the lock is free but unusable from its release until the
//! next thread has woken up. So an instance serves its threads more slowly *in a row* than *alone*, by the
//! median of that time per hold. The recording shows this time at locks with queues. A lock without a queue
//! is assumed to need the same time if it gets a queue, because wake-up time is a property of the machine.
//! The assumed time is at most the mean hold: if holds are shorter than a wake-up, running threads acquire
//! the lock repeatedly while a sleeper wakes up. The **ceiling** is the throughput of service in a row.
//!
//! Queue lengths follow from mean value analysis, with one station per instance: its service takes `alone`
//! for a single thread and `in_a_row` for more.

use super::attribute::Net;
use super::bounded::{Bounded, Instance, Size};
use super::by_object::{ByObject, Held};
use super::nearby::partition_point_from;
use super::pair::{ThreadSpans, WaitSpan};
use super::quick::QuickMap;
use crate::WaitClass;
use std::collections::{BTreeMap, BTreeSet};

/// Smallest utilization of an instance that is modeled as a queue.
const LEAST_USE: f64 = 0.01;
/// Largest number of threads in the recursion. More threads do not change the result noticeably.
const MOST_CUSTOMERS: u64 = 100_000;
/// Smallest number of waits from which the handover time is estimated.
const LEAST_HANDOVERS: usize = 16;
/// A hold may be recorded up to this time after the next thread has the lock.
const LATE_NS: u64 = 50_000;

/// A lock instance as a station of the network.
#[derive(Debug, Clone)]
pub(crate) struct Station {
    pub(crate) site: u32,
    /// Fraction of the time in which the instance is in use.
    pub(crate) utilisation: f64,
    /// `true` if no hold was recorded, so that all values are inferred from the waits.
    pub(crate) is_inferred: bool,
    /// Seconds of use per execution of the chosen operation, without waits.
    pub(crate) alone: f64,
    /// Seconds of use per execution if other threads wait, including the handover.
    pub(crate) in_a_row: f64,
    /// Fraction of the holds in which the holder itself waited, by the site of that wait.
    waiting: BTreeMap<u32, f64>,
}

impl Station {
    /// Returns the executions per second that the station allows.
    pub(crate) fn ceiling(&self) -> f64 {
        if self.in_a_row > 0.0 { 1.0 / self.in_a_row } else { f64::INFINITY }
    }

    /// Returns the station without waits at `site`: a wait there under this lock takes no time.
    pub(crate) fn without(&self, site: u32) -> Self {
        let gone = self.alone * self.waiting.get(&site).copied().unwrap_or(0.0);
        let left = if self.alone > 0.0 { 1.0 - gone / self.alone } else { 1.0 };
        Self {
            utilisation: self.utilisation * left,
            alone: self.alone - gone,
            in_a_row: self.in_a_row - gone,
            ..self.clone()
        }
    }
}

/// Returns the throughput of `customers` threads that think for `delay` seconds and then pass all stations,
/// by the recursion over the number of threads for one class. Exact for exponential service times.
///
/// A station serves a thread in time `s1` if the thread is alone, and in `s2` if threads are served in a row.
/// A thread that finds `j` others stays for `(j + 1) * s2`, but for `s1` if it finds none. So in addition to
/// the mean, the recursion needs the probability that the station is empty.
pub(crate) fn mean_value_analysis(customers: u64, delay: f64, stations: &[&Station]) -> f64 {
    // (mean number of threads at the station, probability of none)
    let mut queues = vec![(0.0, 1.0); stations.len()];
    let mut throughput = 0.0;
    for n in 1..=customers.min(MOST_CUSTOMERS) {
        let stay = |(s, (queue, none)): (&&Station, &(f64, f64))| {
            s.in_a_row * (1.0 + queue) - (s.in_a_row - s.alone) * none
        };
        let stays: Vec<f64> = stations.iter().zip(&queues).map(stay).collect();
        let cycle = delay + stays.iter().sum::<f64>();
        if cycle <= 0.0 {
            return f64::INFINITY;
        }
        throughput = n as f64 / cycle;
        for ((station, queue), stay) in stations.iter().zip(&mut queues).zip(&stays) {
            let (s1, s2) = (station.alone, station.in_a_row);
            let busy = throughput * (s2 - (s2 - s1) * queue.1);
            *queue = (throughput * stay, (1.0 - busy).clamp(0.0, 1.0));
        }
    }
    throughput
}

/// Sums over the windows of a recording for its lock instances.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    waited: Bounded<Waited>,
    used: Bounded<Used>,
    gaps: Bounded<Gaps>,
}

impl Uses {
    /// Adds a window's spans.
    pub(super) fn add(&mut self, threads: &[ThreadSpans], by_object: &ByObject) {
        self.add_waits(threads);
        threads.iter().for_each(|thread| self.add_holds(thread));
        self.add_handovers(threads, by_object);
        self.waited.prune();
        self.used.prune();
        self.gaps.prune();
    }

    /// Returns the lock instances with a noticeable utilization, in order of site and object.
    pub(crate) fn stations(&self, duration: u64, throughput: f64) -> Vec<Station> {
        let usual = self.usual_handover();
        let seconds = duration.max(1) as f64 / 1e9;
        let part = |ns: f64| (ns / duration.max(1) as f64).min(1.0);
        // In order of site and object, so that the same trace gives the same sums.
        let waited = self.waited.iter().map(|(instance, _)| *instance);
        let instances: BTreeSet<Instance> =
            waited.chain(self.used.iter().map(|(instance, _)| *instance)).collect();
        instances
            .into_iter()
            .map(|instance| {
                let waited = part(self.waited.get(&instance).map_or(0, |w| w.length) as f64);
                let Some(used) = self.used.get(&instance).filter(|used| used.holds > 0.0) else {
                    let demand = waited.sqrt() / throughput;
                    return Station {
                        site: instance.0,
                        utilisation: waited.sqrt(),
                        is_inferred: true,
                        alone: demand,
                        in_a_row: demand,
                        waiting: BTreeMap::new(),
                    };
                };
                let held = part(used.held);
                let own = self.gaps.get(&instance).and_then(Gaps::usual);
                let handover = own.unwrap_or(usual).min(used.held / used.holds);
                let handing_over = used.holds / seconds * handover / 1e9;
                Station {
                    site: instance.0,
                    utilisation: held.max(waited),
                    is_inferred: false,
                    alone: held / throughput,
                    in_a_row: (held + handing_over).min(1.0).max(waited) / throughput,
                    waiting: used.parts(),
                }
            })
            .filter(|station| station.utilisation >= LEAST_USE)
            .collect()
    }

    /// Adds the time in which a thread waited for each instance.
    fn add_waits(&mut self, threads: &[ThreadSpans]) {
        let mut spans: QuickMap<Instance, Vec<(u64, u64)>> = QuickMap::default();
        for thread in threads {
            for (wait, net) in thread.waits.iter().zip(thread.nets()) {
                if let Some(end) = proven(wait, net) {
                    spans.entry((wait.site, wait.object)).or_default().push((wait.begin, end));
                }
            }
        }
        spans.into_iter().for_each(|(instance, spans)| self.waited.entry(instance).add(spans));
    }

    /// Adds the thread's exclusive holds, and its waits for locks inside them.
    fn add_holds(&mut self, thread: &ThreadSpans) {
        let (nets, mut near) = (thread.nets(), 0);
        for hold in thread.holds.iter().filter(|h| !h.shared) {
            let used = self.used.entry((hold.site, hold.object));
            used.holds += f64::from(hold.weight);
            used.held += f64::from(hold.weight) * (hold.end - hold.begin) as f64;
            if hold.begin == hold.end {
                continue;
            }
            used.recorded += hold.end - hold.begin;
            let first = partition_point_from(&thread.waits, &mut near, |w| w.begin < hold.begin);
            let inside = thread.waits[first..].iter().zip(&nets[first..]);
            for (wait, net) in inside.take_while(|(w, _)| w.begin < hold.end) {
                if wait.kind.class() == WaitClass::Lock && wait.end.is_some_and(|end| end <= hold.end) {
                    *used.waited.entry(wait.site).or_default() += net.ns;
                }
            }
        }
    }

    /// Adds the handover times: from the release by a holder until the waiting thread has the lock.
    fn add_handovers(&mut self, threads: &[ThreadSpans], by_object: &ByObject) {
        let has_ends = |number| by_object.holds(number).iter().any(Held::is_exclusive);
        let has_ends: Vec<bool> = (0..by_object.len()).map(has_ends).collect();
        // By object: position of the last search among its holds.
        let mut near = vec![0; by_object.len()];
        let mut gaps: Vec<Vec<(Instance, u64)>> = vec![Vec::new(); threads.len()];
        for ended in &by_object.waits {
            let (thread, number) = (&threads[ended.thread as usize], ended.number as usize);
            let wait = &thread.waits[ended.wait as usize];
            if has_ends.get(number) == Some(&true)
                && let Some(end) = proven(wait, &thread.nets()[ended.wait as usize])
                && let Some(gap) =
                    handover((wait.begin, end), ended.thread, by_object.holds(number), &mut near[number])
            {
                gaps[ended.thread as usize].push(((wait.site, wait.object), gap));
            }
        }
        gaps.into_iter().flatten().for_each(|(instance, gap)| self.gaps.entry(instance).add(gap));
    }

    /// Returns the median handover time of all instances together.
    fn usual_handover(&self) -> f64 {
        // Each kept value has the weight by which its instance's values were thinned.
        let mut all: Vec<(u64, u64)> = Vec::new();
        for (_, gaps) in self.gaps.iter() {
            all.extend(gaps.kept.iter().map(|gap| (*gap, gaps.one_of)));
        }
        let weight: u64 = all.iter().map(|g| g.1).sum();
        if weight < LEAST_HANDOVERS as u64 {
            return 0.0;
        }
        all.sort_unstable();
        let mut before = 0;
        let median = all.iter().find(|(_, one_of)| {
            before += one_of;
            before > weight / 2
        });
        median.map_or(0.0, |(gap, _)| *gap as f64)
    }
}

/// The time in which at least one thread waited for an instance.
#[derive(Debug, Default)]
struct Waited {
    length: u64,
    /// Time up to which `length` is counted.
    reached: u64,
}

impl Size for Waited {
    fn size(&self) -> u64 {
        self.length
    }
}

impl Waited {
    /// Adds a window's waits: the union of intervals. (Of a wait that began in the previous window, the time
    /// before the last counted instant is treated as counted.)
    fn add(&mut self, mut spans: Vec<(u64, u64)>) {
        spans.sort_unstable();
        for (begin, end) in spans {
            self.length += end.max(self.reached) - begin.max(self.reached);
            self.reached = self.reached.max(end);
        }
    }
}

/// Exclusive use of an instance.
#[derive(Debug, Default)]
struct Used {
    /// Number of holds, and nanoseconds held; weights represent the holds that were not recorded.
    holds: f64,
    held: f64,
    /// Nanoseconds of recorded holds, and of the waits inside them by site.
    recorded: u64,
    waited: BTreeMap<u32, u64>,
}

impl Size for Used {
    fn size(&self) -> u64 {
        self.held as u64
    }
}

impl Used {
    fn parts(&self) -> BTreeMap<u32, f64> {
        let part = |ns: u64| (ns as f64 / self.recorded.max(1) as f64).min(1.0);
        self.waited.iter().map(|(site, ns)| (*site, part(*ns))).collect()
    }
}

/// Handover times at one instance, thinned if there are very many.
#[derive(Debug)]
struct Gaps {
    kept: Vec<u64>,
    one_of: u64,
    seen: u64,
}

impl Default for Gaps {
    fn default() -> Self {
        Self { kept: Vec::new(), one_of: 1, seen: 0 }
    }
}

impl Size for Gaps {
    fn size(&self) -> u64 {
        self.seen
    }
}

impl Gaps {
    /// Largest number of kept times.
    const MOST: usize = 1 << 12;

    fn add(&mut self, gap: u64) {
        if self.seen.is_multiple_of(self.one_of) {
            if self.kept.len() == Self::MOST {
                let mut odd = false;
                self.kept.retain(|_| {
                    odd = !odd;
                    odd
                });
                self.one_of *= 2;
            }
            self.kept.push(gap);
        }
        self.seen += 1;
    }

    /// Returns the median, if there are enough times. The mean would be wrong: a running thread may acquire
    /// the lock before the woken thread, and its hold may not be recorded.
    fn usual(&self) -> Option<f64> {
        let mut kept = self.kept.clone();
        kept.sort_unstable();
        (self.seen >= LEAST_HANDOVERS as u64).then(|| kept[kept.len() / 2] as f64)
    }
}

/// Returns the time from the end of another thread's hold to the end of a wait. Of these holds, the one that
/// ended nearest to the wait's end counts, and the time is 0 if it ended later. `near` is the position of the
/// last search.
fn handover((begin, end): (u64, u64), waiter: u32, holds: &[Held], near: &mut usize) -> Option<u64> {
    let is_other = |held: &&Held| held.thread != waiter && held.is_exclusive();
    let after = partition_point_from(holds, near, |held| held.end < end);
    let later = holds[after..].iter().take_while(|held| held.end <= end + LATE_NS).find(is_other);
    let mut within = holds[..after].iter().rev().take_while(|held| held.end >= begin);
    let earlier = within.find(is_other).map(|held| end - held.end);
    let later = later.map(|held| held.end - end);
    match (later, earlier) {
        (Some(late), gap) if gap.is_none_or(|gap| late <= gap) => Some(0),
        (_, gap) => gap,
    }
}

/// Returns the end of a wait if the wait proves that its object was held. A wait with inner waits (hazard T4)
/// is no proof: between the inner waits the thread works, and a rw_lock would seem in use whenever its mutex
/// is.
fn proven(wait: &WaitSpan, net: &Net) -> Option<u64> {
    wait.end.filter(|_| !net.is_outer && wait.kind.class() == WaitClass::Lock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::pair::HoldSpan;

    fn of(threads: &[ThreadSpans]) -> Vec<Station> {
        let mut uses = Uses::default();
        uses.add(threads, &ByObject::new(threads));
        uses.stations(40 * 1_060_000, 1_000.0)
    }

    fn station(alone: f64, in_a_row: f64) -> Station {
        Station { site: 1, utilisation: 0.0, is_inferred: false, alone, in_a_row, waiting: BTreeMap::new() }
    }

    #[test]
    fn intervals_that_overlap_count_once() {
        let mut waited = Waited::default();
        waited.add(vec![(5, 9), (0, 4), (3, 6), (20, 21), (5, 6)]);
        assert_eq!(waited.length, 10);
        waited.add(vec![(20, 25), (30, 31)]);
        assert_eq!(waited.length, 15, "another window goes on where the one before ended");
    }

    #[test]
    fn the_recursion_meets_its_two_limits() {
        let (slow, quick) = (station(0.01, 0.01), station(0.001, 0.001));
        // One thread has no queue. Many threads reach the rate of the slowest station.
        let one = mean_value_analysis(1, 0.089, &[&slow, &quick]);
        assert!((one - 10.0).abs() < 1e-9);
        let many = mean_value_analysis(500, 0.089, &[&slow, &quick]);
        assert!((many - 100.0).abs() < 1e-6, "{many}");
        assert!(mean_value_analysis(3, 0.0, &[]).is_infinite());
    }

    /// Checks the result against the stationary distribution. With k of n threads at the station, it serves
    /// at rate 1/s1 (k = 1) or 1/s2, and each of the other threads arrives at rate 1/z.
    #[test]
    fn a_station_that_serves_more_slowly_in_a_row_is_exact() {
        let (s1, s2, z) = (0.004, 0.007, 0.030);
        let station = station(s1, s2);
        for n in [1_u32, 2, 3, 8, 40] {
            let mut weights = vec![1.0];
            for k in 1..=n {
                let service = if k == 1 { s1 } else { s2 };
                weights.push(weights[k as usize - 1] * f64::from(n - k + 1) * service / z);
            }
            let total: f64 = weights.iter().sum();
            let exact = weights[1] / total / s1 + weights[2..].iter().sum::<f64>() / total / s2;
            let found = mean_value_analysis(n.into(), z, &[&station]);
            assert!((found / exact - 1.0).abs() < 1e-6, "{n}: {found} and not {exact}");
        }
    }

    #[test]
    fn a_lock_held_for_nothing_is_not_charged_the_wake_ups_that_another_needs() {
        const LOG: u32 = 1;
        const COUNTER: u32 = 2;
        let hold = |site, begin, end| HoldSpan {
            site,
            object: 0,
            operation: 0,
            begin,
            end,
            weight: 1,
            shared: false,
        };
        // Two threads take turns. Each holds the log's lock for a millisecond, with a handover of 60 µs,
        // while the other one holds the counter's lock 300 times for 20 ns.
        let mut threads = [ThreadSpans::default(), ThreadSpans::default()];
        for turn in 0..40_u64 {
            let begin = turn * 1_060_000;
            let (mine, other) = ((turn % 2) as usize, (1 - turn % 2) as usize);
            threads[mine].holds.push(hold(LOG, begin, begin + 1_000_000));
            threads[other].waits.push(WaitSpan::for_latch((LOG, 0), begin + 1_000, begin + 1_060_000));
            threads[other]
                .holds
                .extend((0..300).map(|n| hold(COUNTER, begin + n * 100, begin + n * 100 + 20)));
        }
        let found = of(&threads);
        let [log] = &found[..] else {
            panic!("the counter's lock is in use for 0.6 % of the time: {found:?}")
        };
        assert_eq!(log.site, LOG);
        assert!(log.in_a_row > 1.05 * log.alone, "its own wake-ups count: {log:?}");
        threads.iter_mut().flat_map(|t| &mut t.holds).filter(|h| h.site == COUNTER).for_each(|h| h.end += 60);
        let found = of(&threads);
        let counter = found.iter().find(|s| s.site == COUNTER).expect("in use for 2 %");
        assert!(counter.in_a_row <= 2.0 * counter.alone + 1e-12, "{counter:?}");
    }

    #[test]
    fn a_few_long_gaps_do_not_count_and_few_gaps_give_no_result() {
        let of = |gaps: &[u64]| {
            let mut kept = Gaps::default();
            gaps.iter().for_each(|gap| kept.add(*gap));
            kept
        };
        let mut gaps = vec![10; 12];
        gaps.extend([1_000_000; 8]);
        assert_eq!(of(&gaps).usual(), Some(10.0));
        assert_eq!(of(&[10; LEAST_HANDOVERS - 1]).usual(), None);
        let many = of(&(0..100_000).map(|i| i * 7919 % 1_000).collect::<Vec<_>>());
        assert!(many.kept.len() <= Gaps::MOST && many.kept.len() as u64 * many.one_of >= 100_000);
        assert!(many.usual().is_some_and(|usual| (usual - 500.0).abs() < 25.0), "{:?}", many.usual());
    }
}
