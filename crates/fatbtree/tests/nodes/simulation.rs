//! Whole clusters in a seeded simulation. Every node runs searches and updates while leaves split, merge and
//! move, frames are late, reordered and lost, connections are cut and nodes crash (hazards B2 to B6). A seed
//! replays exactly.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use azekura_fatbtree::sim::{Cluster, ClusterOptions, Event, Faults, History, Seen};
use azekura_fatbtree::{Answer, Clock, Error, Key, KeyRange, Node, Placement, Rng, Target, Work};

/// Parameters of a run; all of them follow from its seed.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    pes: u16,
    placement: Placement,
    clients: usize,
    operations: usize,
    keys: usize,
    leaf_rows: usize,
    lose_one_in: usize,
    most_delay: Duration,
    store_delay: Duration,
    /// Longer than any operation, or shorter than the delay of a frame: then questions arrive before the
    /// frames that they ask about.
    remind_interval: Duration,
    moves: usize,
    crashes: usize,
    cuts: usize,
    /// Number of nodes that join, and number of attempts of nodes to leave.
    joins: u16,
    leaves: usize,
}

impl Plan {
    fn of(seed: u64) -> Self {
        let pick = |number, end| crate::chaos::pick(seed, number, end);
        let again = |number, end| crate::chaos::pick(seed + (1 << 40), number, end);
        let has_faults = pick(0, 4) > 0;
        Self {
            seed,
            pes: 2 + pick(1, 3) as u16,
            placement: [
                Placement::FatBtree,
                Placement::FatBtree,
                Placement::CopyWhole,
                Placement::SingleIndex,
            ][pick(2, 4) as usize],
            clients: 3 + pick(3, 4) as usize,
            operations: 60,
            keys: 20 + pick(4, 60) as usize,
            leaf_rows: 3 + pick(5, 4) as usize,
            lose_one_in: if has_faults { 20 + pick(6, 80) as usize } else { 0 },
            most_delay: Duration::from_micros(200 + pick(7, 20_000)),
            store_delay: Duration::from_micros(pick(8, 3_000)),
            remind_interval: Duration::from_millis(if pick(12, 2) == 0 { 1 } else { 50 }),
            // One run in four has very many moves.
            moves: if pick(11, 4) == 0 { 150 } else { 4 + pick(9, 12) as usize },
            crashes: if has_faults { pick(10, 4) as usize } else { 0 },
            cuts: if has_faults { pick(3, 3) as usize } else { 0 },
            joins: again(0, 3) as u16,
            leaves: again(1, 4) as usize,
        }
    }

    fn options(&self) -> ClusterOptions {
        let mut options = ClusterOptions::evenly(self.pes);
        options.spares = self.joins;
        options.node.placement = self.placement;
        options.node.leaf_rows = self.leaf_rows;
        options.node.index_entries = 4;
        options.node.request_timeout = Duration::from_secs(4);
        options.node.read_timeout = Duration::from_millis(300);
        options.node.move_timeout = Duration::from_millis(300);
        options.node.remind_interval = self.remind_interval;
        options.store_delay = self.store_delay;
        options.faults = Faults {
            least_delay: Duration::from_micros(50),
            most_delay: self.most_delay,
            lose_one_in: self.lose_one_in,
        };
        options
    }
}

/// Result of a run.
struct Ran {
    cluster: Cluster,
    history: History,
    answered: usize,
    unknown: usize,
    moved: usize,
    left: usize,
    /// Number of operations without a task of the node's thread.
    local: usize,
}

fn key(number: usize) -> Key {
    // Keys are spread over all first bytes, so that every PE has some.
    vec![(number * 37 % 256) as u8, (number / 256) as u8, number as u8]
}

type Shared<T> = Rc<RefCell<T>>;

/// Runs a client: one operation after the other, on random keys and through random nodes.
async fn client(cluster: Cluster, plan: Plan, number: usize, ran: Shared<Ran>) {
    let clock = cluster.executor().clone();
    for operation in 0..plan.operations {
        clock.sleep(Duration::from_micros(clock.below(20_000) as u64)).await;
        let members = cluster.members();
        let Some(node) = cluster.node(members[clock.below(members.len())]) else { continue };
        let key = key(clock.below(plan.keys));
        let value = vec![number as u8, operation as u8];
        let (work, mut seen) = match clock.below(10) {
            0..4 => (Work::Get, Seen::Read(None)),
            4..7 => (Work::Put(value.clone()), Seen::Wrote { value: Some(value), existed: None }),
            7 => (Work::Insert(value.clone()), Seen::Inserted { value, existed: None }),
            _ => (Work::Delete, Seen::Wrote { value: None, existed: None }),
        };
        let began = clock.now();
        let place = ran.borrow_mut().begin(&key, began, &seen);
        // A client of a crashed node gets no answer: its task ends with an error after the timeout.
        let done = ask(&node, &key, work, clock.below(2) == 0, &ran).await.map(|answer| match answer {
            Answer::Value(value) => seen = Seen::Read(value),
            Answer::Done { existed: reported } => match &mut seen {
                Seen::Wrote { existed, .. } | Seen::Inserted { existed, .. } => *existed = Some(reported),
                Seen::Read(_) => {}
            },
            other => panic!("{plan:?}: {other:?}"),
        });
        let took = clock.now() - began;
        assert!(took < Duration::from_secs(5), "{plan:?}: a request hung for {took:?}");
        ran.borrow_mut().end(&key, place, clock.now(), seen, done);
    }
}

/// Runs an operation; with `is_local` without the node's thread if possible (LOCAL-1).
async fn ask(node: &Node, key: &Key, work: Work, is_local: bool, ran: &Shared<Ran>) -> Result<Answer, Error> {
    if is_local && let Some(done) = node.serve_one_here(key.clone(), work.clone()).await {
        ran.borrow_mut().local += 1;
        return done;
    }
    node.call(Target::At(key.clone()), work).await.map(|(answer, _)| answer)
}

impl Ran {
    fn begin(&mut self, key: &Key, began: Duration, seen: &Seen) -> usize {
        // The operation counts as unanswered until its answer arrives.
        self.history.add(key.clone(), Event { began, ended: None, seen: seen.clone() })
    }

    fn end(&mut self, key: &Key, place: usize, now: Duration, seen: Seen, done: Result<(), Error>) {
        match done {
            Ok(()) => {
                self.answered += 1;
                self.history.complete(key, place, Some((now, seen)));
            }
            Err(Error::Unknown { .. }) => self.unknown += 1,
            // The operation had no effect.
            Err(_) => self.history.complete(key, place, None),
        }
    }
}

fn run(plan: Plan) -> Ran {
    let cluster = Cluster::new(plan.seed, plan.options());
    cluster.start_all();
    let ran = Rc::new(RefCell::new(Ran {
        cluster: cluster.clone(),
        history: History::default(),
        answered: 0,
        unknown: 0,
        moved: 0,
        left: 0,
        local: 0,
    }));
    let moved = Rc::new(Cell::new(0));
    let mut tasks: Vec<std::pin::Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
    for number in 0..plan.clients {
        tasks.push(Box::pin(client(cluster.clone(), plan, number, Rc::clone(&ran))));
    }
    tasks.push(Box::pin(crate::chaos::mover(cluster.clone(), plan.moves, Rc::clone(&moved))));
    tasks.push(Box::pin(crate::chaos::nemesis(cluster.clone(), plan.crashes, plan.cuts)));
    tasks.push(Box::pin(crate::chaos::joiner(cluster.clone(), usize::from(plan.joins))));
    let left = Rc::new(Cell::new(0));
    for leaver in 0..2 {
        let leaves = (plan.leaves + leaver) / 2;
        tasks.push(Box::pin(crate::chaos::leaver(cluster.clone(), leaves, Rc::clone(&left))));
    }
    crate::chaos::run_all(&cluster, &plan, tasks);
    let ran = Rc::into_inner(ran).expect("all tasks have ended").into_inner();
    Ran { moved: moved.get(), left: left.get(), ..ran }
}

/// Checks that all nodes return the same values, that scans in both directions agree with them, and that one
/// serial order explains all results.
fn judge(plan: Plan, mut ran: Ran) -> Ran {
    let cluster = ran.cluster.clone();
    let clock = cluster.executor().clone();
    let mut rows: Option<BTreeMap<Key, Vec<u8>>> = None;
    for pe in cluster.members() {
        let node = cluster.running(pe);
        for number in 0..plan.keys {
            let (node, key, began) = (Rc::clone(&node), key(number), clock.now());
            let for_task = key.clone();
            let value = clock.block_on(async move { node.get(for_task).await }).expect("it ends");
            let value = value.unwrap_or_else(|error| panic!("{plan:?}: {key:?} by {pe}: {error}"));
            let event = Event { began, ended: Some(clock.now()), seen: Seen::Read(value) };
            ran.history.add(key, event);
        }
        for reverse in [false, true] {
            let node = Rc::clone(&node);
            let scanned =
                clock.block_on(async move { node.scan(KeyRange::all(), reverse, usize::MAX).await });
            let mut scanned = scanned.expect("it ends").expect("all nodes answer").rows;
            if reverse {
                scanned.reverse();
            }
            let is_ordered = scanned.is_sorted_by(|one, two| one.0 < two.0);
            assert!(is_ordered, "{plan:?}: each key once and in order");
            let scanned: BTreeMap<_, _> = scanned.into_iter().collect();
            let same = rows.get_or_insert_with(|| scanned.clone());
            assert_eq!(*same, scanned, "{plan:?}: {pe}, reverse: {reverse}");
        }
    }
    let violations = ran.history.violations();
    assert!(violations.is_empty(), "{plan:?}: {}", violations[0]);
    let (rows, stored) = (
        rows.map_or(0, |rows| rows.len()),
        cluster.members().iter().map(|pe| cluster.disk(*pe).rows()).sum::<usize>(),
    );
    assert_eq!(rows, stored, "{plan:?}: no row is left where its leaf went away");
    ran
}

fn seeds() -> std::ops::Range<u64> {
    crate::chaos::seeds(150)
}

#[test]
fn every_acknowledged_write_is_found_from_every_node_under_all_faults() {
    let (mut answered, mut unknown, mut moved, mut splits, mut merges, mut right, mut sent) =
        (0, 0, 0, 0, 0, 0, 0);
    let (mut left, mut local) = (0, 0);
    for seed in seeds() {
        let plan = Plan::of(seed);
        let ran = judge(plan, run(plan));
        answered += ran.answered;
        unknown += ran.unknown;
        moved += ran.moved;
        left += ran.left;
        local += ran.local;
        for pe in ran.cluster.members() {
            let counts = ran.cluster.running(pe).counts();
            splits += counts.splits;
            merges += counts.merges;
            right += counts.right_moves;
            sent += counts.sent_on;
        }
    }
    println!(
        "{answered} answered, {unknown} unknown, {moved} moves, {splits} splits, {merges} merges, {right} \
         right moves, {sent} sent on, {left} left, {local} local"
    );
    assert!(
        seeds().count() == 1
            || (answered > unknown * 5
                && local > answered / 10
                && moved > 0
                && left > 0
                && splits > 0
                && merges > 0
                && right > 0)
    );
}

#[test]
fn a_seed_replays_exactly() {
    for seed in [3, 11, 42] {
        let plan = Plan::of(seed);
        let trace =
            |ran: &Ran| (ran.cluster.network().trace(), ran.cluster.executor().events(), ran.answered);
        assert_eq!(trace(&run(plan)), trace(&run(plan)), "{plan:?}");
    }
    let other = |seed| run(Plan::of(seed)).cluster.network().trace();
    assert_ne!(other(3), other(4));
}
