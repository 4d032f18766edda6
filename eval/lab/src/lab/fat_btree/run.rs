//! One measurement: a cluster with the paper's data and costs, clients that send one request after another,
//! and the counts.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use azekura_fatbtree::sim::{Cluster, ClusterOptions, Executor, Faults, MakePages};
use azekura_fatbtree::{
    BuildOptions, Built, Clock, Key, PeId, Placement, Protocol, Rng, Target, Work, build,
};

use super::hardware::{Costs, Hardware};

/// Number of tuples of the Wisconsin relation.
pub const TUPLES: usize = 128 * 1024;
/// Tuples of a leaf: the initial and the largest number (Table 3).
pub const LEAF_TUPLES: (usize, usize) = (13, 19);
/// Keys of an index page: the initial and the largest number (Table 3).
pub const INDEX_KEYS: (usize, usize) = (351, 507);

/// Settings of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// Placement of the index pages.
    pub placement: Placement,
    /// Protocol for changes of index pages.
    pub protocol: Protocol,
    /// Requests go to the copy of an index page nearest to the leaf; otherwise to any copy, as in the paper.
    pub is_choice_by_range: bool,
    /// Number of PEs.
    pub pes: u16,
    /// Pages of each PE's cache.
    pub cache_pages: usize,
    /// Share of operations that insert.
    pub inserts: f64,
    /// Number of clients per PE; the paper does not state it.
    pub clients_per_pe: usize,
    /// Number of operations of the warm-up, and of the measurement.
    pub operations: (u64, u64),
    /// Seed of all random choices.
    pub seed: u64,
}

/// Results of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Operations per second of virtual time.
    pub per_s: f64,
    /// Percentage of page reads that were cache hits.
    pub hit_percent: f64,
    /// Percentage of page reads that were cache hits, at PE 0.
    pub hit_percent_first: f64,
    /// Page reads per operation.
    pub reads: f64,
    /// Requests that were forwarded to another PE, per operation.
    pub crossings: f64,
    /// Locks acquired at another PE, per 10,000 operations.
    pub remote_locks: f64,
    /// Number of leaf splits.
    pub splits: u64,
    /// 99th percentile of response times, in milliseconds.
    pub p99_ms: f64,
}

/// Counters at one time.
#[derive(Clone, Copy, Debug, Default)]
struct Snapshot {
    at: Duration,
    reads: (u64, u64),
    reads_first: (u64, u64),
    sent_on: u64,
    remote_locks: u64,
    splits: u64,
}

/// Returns an existing key. Initial keys are even, so that new keys fit between them.
fn key(number: usize) -> Key {
    (number as u32 * 2).to_be_bytes().to_vec()
}

/// Returns the number of tuples of each leaf: 13, as in the paper. If `is_split`, the sizes are random, with
/// the distribution of leaves that grew by splits: *j* tuples with a probability proportional to 1 / (*j*
/// (*j* + 1)). Splits are then as frequent from the beginning as in the long run.
fn leaf_sizes(executor: &Executor, is_split: bool) -> Vec<usize> {
    let (even, most) = LEAF_TUPLES;
    let least = most.div_ceil(2);
    let share = |size: usize| 1.0 / (size * (size + 1)) as f64;
    let whole: f64 = (least..=most).map(share).sum();
    let mut left = TUPLES;
    let mut sizes = Vec::new();
    while left > 0 {
        let size = if is_split {
            let mut lot = executor.below(1 << 20) as f64 / f64::from(1 << 20) * whole;
            (least..most).find(|size| {
                lot -= share(*size);
                lot < 0.0
            })
        } else {
            Some(even)
        };
        let size = size.unwrap_or(most).min(left);
        sizes.push(size);
        left -= size;
    }
    sizes
}

impl Setup {
    /// Runs the measurement.
    ///
    /// # Panics
    ///
    /// If an operation fails or never ends. No faults are injected, so this is an error in the program.
    #[must_use]
    pub fn run(&self) -> Outcome {
        let (cluster, hardware) = self.cluster();
        let shared = Rc::new(Shared {
            setup: *self,
            begun: Cell::default(),
            done: Cell::default(),
            first: Cell::default(),
            last: Cell::default(),
            times: std::cell::RefCell::default(),
        });
        let executor = cluster.executor().clone();
        let total = self.operations.0 + self.operations.1;
        for client in 0..self.clients_per_pe * usize::from(self.pes) {
            let task = one_client(cluster.clone(), hardware.clone(), Rc::clone(&shared), client);
            executor.spawn_in(executor.group(), Box::pin(task));
        }
        assert!(executor.run_until(|| shared.done.get() >= total), "{self:?}: all wait for each other");
        self.outcome(&shared)
    }

    fn cluster(&self) -> (Cluster, Hardware) {
        let executor = Executor::new(self.seed);
        let sizes = leaf_sizes(&executor, self.inserts > 0.0);
        let first_keys: Vec<Key> = sizes
            .iter()
            .scan(0, |next, size| {
                *next += size;
                Some(key(*next - size))
            })
            .collect();
        let shape = BuildOptions {
            pes: self.pes,
            placement: self.placement,
            index_fill: INDEX_KEYS.0,
            index_entries: INDEX_KEYS.1,
        };
        let parts = build(&first_keys, shape);
        let shares = (0..).map(PeId).zip(&parts).map(|(pe, part)| (part.low.clone(), pe)).collect();
        let costs = Costs::paper();
        let hardware = Hardware::new(executor.clone(), costs, self.cache_pages);
        let pages = hardware.clone();
        let make_pages: Box<MakePages> = Box::new(move |pe, _| pages.pages(pe));
        let cluster = Cluster::with(executor, self.options(shares, costs), None, Some(make_pages));
        self.fill(&cluster, &parts);
        cluster.give(parts);
        cluster.start_all();
        cluster.network().set_delivery(Rc::new(hardware.clone()));
        (cluster, hardware)
    }

    fn options(&self, shares: Vec<(Key, PeId)>, costs: Costs) -> ClusterOptions {
        let mut options = ClusterOptions::evenly(self.pes);
        options.shares = shares;
        options.node.placement = self.placement;
        options.node.protocol = self.protocol;
        options.node.is_choice_by_range = self.is_choice_by_range;
        options.node.leaf_rows = LEAF_TUPLES.1;
        options.node.index_entries = INDEX_KEYS.1;
        // With SIB, requests queue at PE 0. The measurement includes this queue, so requests must not time
        // out.
        options.node.request_timeout = Duration::from_secs(3600);
        options.node.read_timeout = Duration::from_secs(3600);
        options.faults = Faults { least_delay: costs.wire, most_delay: costs.wire, lose_one_in: 0 };
        options
    }

    fn fill(&self, cluster: &Cluster, parts: &[Built]) {
        let mut rows = (0..TUPLES).map(|number| (key(number), Vec::new())).peekable();
        for (pe, part) in (0..).map(PeId).zip(parts) {
            let high = part.heads.last().and_then(|head| head.range.high.clone());
            let mut own = Vec::new();
            while let Some(row) = rows.next_if(|(key, _)| high.as_ref().is_none_or(|high| key < high)) {
                own.push(row);
            }
            cluster.disk(pe).build(own, Vec::new());
        }
    }

    fn outcome(&self, shared: &Shared) -> Outcome {
        let (first, last) = (shared.first.get(), shared.last.get());
        let counted = self.operations.1 as f64;
        let hits = |last: (u64, u64), first: (u64, u64)| {
            100.0 * (last.1 - first.1) as f64 / ((last.0 - first.0) as f64).max(1.0)
        };
        let mut times = shared.times.take();
        times.sort_unstable();
        Outcome {
            per_s: counted / (last.at - first.at).as_secs_f64(),
            hit_percent: hits(last.reads, first.reads),
            hit_percent_first: hits(last.reads_first, first.reads_first),
            reads: (last.reads.0 - first.reads.0) as f64 / counted,
            crossings: (last.sent_on - first.sent_on) as f64 / counted,
            remote_locks: (last.remote_locks - first.remote_locks) as f64 / counted * 1e4,
            splits: last.splits - first.splits,
            p99_ms: times.get(times.len() * 99 / 100).map_or(0.0, |time| time.as_secs_f64() * 1e3),
        }
    }
}

struct Shared {
    setup: Setup,
    begun: Cell<u64>,
    done: Cell<u64>,
    first: Cell<Snapshot>,
    last: Cell<Snapshot>,
    times: std::cell::RefCell<Vec<Duration>>,
}

impl Shared {
    fn finish(&self, cluster: &Cluster, hardware: &Hardware, began: Duration) {
        let (warm, counted) = self.setup.operations;
        self.done.set(self.done.get() + 1);
        let now = cluster.executor().now();
        if self.done.get() == warm {
            self.first.set(snapshot(cluster, hardware));
        } else if self.done.get() > warm {
            self.times.borrow_mut().push(now - began);
        }
        if self.done.get() == warm + counted {
            self.last.set(snapshot(cluster, hardware));
        }
    }
}

fn snapshot(cluster: &Cluster, hardware: &Hardware) -> Snapshot {
    let mut now = Snapshot {
        at: cluster.executor().now(),
        reads: hardware.reads(None),
        reads_first: hardware.reads(Some(PeId(0))),
        ..Snapshot::default()
    };
    for pe in cluster.members() {
        let counts = cluster.node(pe).expect("all run").counts();
        now.sent_on += counts.sent_on;
        now.remote_locks += counts.remote_locks;
        now.splits += counts.splits;
    }
    now
}

/// Sends one request after another, each to a random PE, or to PE 0 if only that one has an index.
async fn one_client(cluster: Cluster, hardware: Hardware, shared: Rc<Shared>, client: usize) {
    let (setup, clock) = (shared.setup, cluster.executor().clone());
    clock.sleep(Duration::from_micros(clock.below(1000) as u64)).await;
    let total = setup.operations.0 + setup.operations.1;
    while shared.begun.get() < total + setup.clients_per_pe as u64 * u64::from(setup.pes) {
        let number = shared.begun.get();
        shared.begun.set(number + 1);
        let began = clock.now();
        let pe = match setup.placement {
            Placement::SingleIndex => Placement::INDEX_PE,
            _ => PeId(clock.below(usize::from(setup.pes)) as u16),
        };
        let mut at = key(clock.below(TUPLES));
        let is_insert = (clock.below(1 << 20) as f64) < setup.inserts * f64::from(1 << 20);
        let work = if is_insert {
            // The new key follows a random existing key and is unique.
            at.extend([1, client as u8]);
            at.extend((number as u32).to_be_bytes());
            Work::Insert(Vec::new())
        } else {
            Work::Get
        };
        let node = cluster.node(pe).expect("all run");
        let (_, route_entry) = node.call(Target::At(at), work).await.expect("no faults");
        // If the leaf is at the requested PE, the answer to the client costs a message. Otherwise the leaf's
        // PE has answered the requested node, and that node has paid for the message.
        if route_entry.is_some_and(|route_entry| route_entry.pe == pe) {
            hardware.answer(pe).await;
        }
        shared.finish(&cluster, &hardware, began);
    }
}
