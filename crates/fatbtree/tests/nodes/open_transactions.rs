//! Open transactions in a seeded simulation: their nodes crash, frames are lost, their leaves split, merge
//! and move, and clients disappear. The replies to all clients must be strictly serializable. No reply may
//! show a change without a commit request, and no transaction may stay open (hazard B5).
//!
//! Readers of several nodes read each node at a different moment (OPEN-6). So all transactions together with
//! any single reader must be serializable, and a reader must see all transactions that had ended when it
//! began.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::lists::{Lists, Locks};
use azekura_fatbtree::sim::{Cluster, ClusterOptions, Faults};
use azekura_fatbtree::{Answer, Clock, Error, Key, KeyRange, Node, PeId, Rng, Target, Work};
use azekura_history::{History, Level, Op, Status, Transaction, check};

/// Longest wait for a lock. It ends deadlocks.
const LOCK_WAIT: Duration = Duration::from_millis(40);
const OPEN_TIMEOUT: Duration = Duration::from_millis(400);
const KEYS: u64 = 12;

/// Parameters of a run; all of them follow from its seed.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    clients: usize,
    transactions: usize,
    readers: usize,
    lose_one_in: usize,
    most_delay: Duration,
    store_delay: Duration,
    /// Number of rows that are added and removed in addition to the lists, so that leaves split and merge
    /// continually.
    churn: usize,
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
        let has_faults = pick(0, 4) > 0;
        Self {
            seed,
            clients: 3 + pick(1, 4) as usize,
            transactions: 20,
            readers: 1 + pick(11, 2) as usize,
            lose_one_in: if has_faults { 20 + pick(2, 80) as usize } else { 0 },
            most_delay: Duration::from_micros(200 + pick(3, 10_000)),
            store_delay: Duration::from_micros(pick(4, 3_000)),
            churn: 80,
            moves: if pick(5, 4) == 0 { 150 } else { 4 + pick(6, 12) as usize },
            crashes: if has_faults { pick(7, 4) as usize } else { 0 },
            cuts: if has_faults { pick(8, 3) as usize } else { 0 },
            joins: pick(9, 2) as u16,
            leaves: pick(10, 2) as usize,
        }
    }

    fn options(&self) -> ClusterOptions {
        let mut options = ClusterOptions::evenly(3);
        options.spares = self.joins;
        options.node.leaf_rows = 4;
        options.node.index_entries = 4;
        options.node.request_timeout = Duration::from_secs(2);
        options.node.read_timeout = Duration::from_millis(300);
        options.node.move_timeout = Duration::from_millis(300);
        options.node.remind_interval = Duration::from_millis(50);
        options.node.open_timeout = OPEN_TIMEOUT;
        options.node.reader_timeout = OPEN_TIMEOUT;
        options.store_delay = self.store_delay;
        options.faults = Faults {
            least_delay: Duration::from_micros(50),
            most_delay: self.most_delay,
            lose_one_in: self.lose_one_in,
        };
        options
    }
}

/// Returns a key. The keys are spread over all first bytes, in the order of their numbers.
fn key(number: u64) -> Key {
    vec![(number * 256 / KEYS) as u8]
}

fn list(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(8).map(|number| u64::from_le_bytes(number.try_into().expect("eight bytes"))).collect()
}

/// Observations of clients, and counts of outcomes.
#[derive(Default)]
struct Seen {
    history: History,
    now: u64,
    value: u64,
    ended: usize,
    elsewhere: usize,
    /// Number of ended transactions with a leaf that had moved to the node of the next key.
    followed: usize,
    vanished: usize,
    /// Number of transactions without a leaf lock.
    here: usize,
    readers: Vec<Transaction>,
    /// Number of readers that were refused because a leaf had moved.
    outdated: usize,
}

impl Seen {
    /// Returns the next logical time.
    fn now(&mut self) -> u64 {
        self.now += 1;
        self.now
    }
}

type Shared = Rc<RefCell<Seen>>;

/// Draws a key and an operation on it: a read, or an append.
fn draw(clock: &impl Rng, seen: &Shared, half: u64) -> (u64, Option<u64>) {
    let number = (half + clock.below(3) as u64) % KEYS;
    let appended = (clock.below(2) == 0).then(|| {
        seen.borrow_mut().value += 1;
        seen.borrow().value
    });
    (number, appended)
}

fn note(ops: &mut Vec<Op>, key: u64, appended: Option<u64>, before: &[u8]) {
    // An append also reads the list before it.
    ops.push(Op::Read { key, list: list(before) });
    ops.extend(appended.map(|value| Op::Append { key, value }));
}

fn bytes_of(appended: Option<u64>) -> Vec<u8> {
    appended.map_or_else(Vec::new, |value| value.to_le_bytes().to_vec())
}

/// Runs a transaction of a single request.
async fn single(node: &Node, wanted: (u64, Option<u64>), ops: &mut Vec<Op>) -> Status {
    let (number, appended) = wanted;
    let work = Work::Run { is_write: true, others: Vec::new(), bytes: bytes_of(appended) };
    match node.call(Target::At(key(number)), work).await {
        Ok((Answer::Ran(before), _)) => {
            note(ops, number, appended, &before);
            Status::Committed
        }
        Err(Error::Unknown { .. }) => {
            // The append may have been executed.
            ops.extend(appended.map(|value| Op::Append { key: number, value }));
            Status::Unknown
        }
        Ok(other) => panic!("{other:?}"),
        Err(_) => Status::Aborted,
    }
}

/// Appends to two lists in one transaction, as a thread that needs no leaf lock (LOCAL-1). Returns `None` if
/// the keys are not at this node.
async fn both_here(node: &Node, seen: &Shared, number: u64, ops: &mut Vec<Op>) -> Option<Status> {
    seen.borrow_mut().value += 1;
    let value = seen.borrow().value;
    let other = (number + 1) % KEYS;
    let (first, second) = (number.min(other), number.max(other));
    let done = node.run_here(&[key(first), key(second)], bytes_of(Some(value))).await?;
    seen.borrow_mut().here += 1;
    Some(match done {
        Ok(before) => {
            note(ops, first, Some(value), &before);
            ops.push(Op::Append { key: second, value });
            Status::Committed
        }
        Err(Error::Unknown { .. }) => {
            ops.extend([first, second].map(|key| Op::Append { key, value }));
            Status::Unknown
        }
        Err(_) => Status::Aborted,
    })
}

/// Runs a transaction of several requests.
async fn several(cluster: &Cluster, node: &Node, seen: &Shared, ops: &mut Vec<Op>) -> Status {
    let clock = cluster.executor();
    let (id, base) = (node.new_transaction(), clock.below(KEYS as usize) as u64);
    let mut coordinator: Option<(PeId, Key)> = None;
    for _ in 0..1 + clock.below(4) {
        let (number, appended) = draw(clock, seen, base);
        let work = Work::Step {
            id,
            coordinator: coordinator.as_ref().map(|(pe, _)| *pe),
            is_write: true,
            others: Vec::new(),
            bytes: bytes_of(appended),
        };
        match node.call(Target::At(key(number)), work).await {
            Ok((Answer::Ran(before), Some(route_entry))) => {
                note(ops, number, appended, &before);
                coordinator.get_or_insert((route_entry.pe, key(number)));
            }
            Err(Error::Elsewhere) => match &coordinator {
                None => panic!("a transaction of one key begins where that is"),
                Some((pe, first)) => match node.goes_on(id, *pe, first.clone()).await {
                    Ok(()) => seen.borrow_mut().elsewhere += 1,
                    Err(Error::Ended { .. }) => {
                        seen.borrow_mut().followed += 1;
                        return Status::Aborted;
                    }
                    Err(_) => return Status::Aborted,
                },
            },
            Err(Error::Ended { .. }) => {
                seen.borrow_mut().ended += 1;
                return Status::Aborted;
            }
            Ok(other) => panic!("{other:?}"),
            // Any step may fail. No commit has been requested yet.
            Err(_) => return Status::Aborted,
        }
        clock.sleep(Duration::from_micros(clock.below(30_000) as u64)).await;
    }
    let Some((coordinator, first)) = coordinator else { return Status::Aborted };
    let is_commit = match clock.below(10) {
        0 => false,
        1 => {
            seen.borrow_mut().vanished += 1;
            return Status::Aborted;
        }
        _ => true,
    };
    match node.call(Target::At(first), Work::End { id, coordinator, is_commit }).await {
        Ok(_) if is_commit => Status::Committed,
        Err(Error::Unknown { .. }) if is_commit => Status::Unknown,
        Err(Error::Ended { .. }) => {
            seen.borrow_mut().ended += 1;
            Status::Aborted
        }
        _ => Status::Aborted,
    }
}

async fn client(cluster: Cluster, plan: Plan, seen: Shared) {
    let clock = cluster.executor().clone();
    for _ in 0..plan.transactions {
        clock.sleep(Duration::from_micros(clock.below(20_000) as u64)).await;
        let members = cluster.members();
        let Some(node) = cluster.node(members[clock.below(members.len())]) else { continue };
        let began = seen.borrow_mut().now();
        let mut ops = Vec::new();
        let status = match clock.below(4) {
            0 => {
                let number = clock.below(KEYS as usize) as u64;
                match both_here(&node, &seen, number, &mut ops).await {
                    Some(status) => status,
                    None => single(&node, draw(&clock, &seen, number), &mut ops).await,
                }
            }
            _ => several(&cluster, &node, &seen, &mut ops).await,
        };
        let mut seen = seen.borrow_mut();
        let ended = seen.now();
        let ended = (status != Status::Unknown).then_some(ended);
        seen.history.transactions.push(Transaction { began, ended, status, ops });
    }
}

/// Reads all lists over a snapshot of each node. Returns `None` if a request was refused.
async fn read_all(cluster: &Cluster, node: &Node, seen: &Shared) -> Option<Vec<Op>> {
    let clock = cluster.executor();
    let (id, mut opened, mut ops) = (node.new_transaction(), Vec::<(PeId, Key)>::new(), Vec::new());
    for number in 0..KEYS {
        let names = opened.iter().map(|(pe, _)| *pe).collect();
        let (within, others) = (KeyRange::all(), Vec::new());
        let work = Work::Read { id, opened: names, within, others, bytes: Vec::new() };
        match node.call(Target::At(key(number)), work).await {
            Ok((Answer::Ran(bytes), Some(route_entry))) => {
                ops.push(Op::Read { key: number, list: list(&bytes) });
                if opened.iter().all(|(pe, _)| *pe != route_entry.pe) {
                    opened.push((route_entry.pe, key(number)));
                }
            }
            Err(error) => {
                seen.borrow_mut().outdated += usize::from(matches!(error, Error::Ended { .. }));
                return None;
            }
            Ok(other) => panic!("{other:?}"),
        }
        clock.sleep(Duration::from_micros(clock.below(10_000) as u64)).await;
    }
    for (coordinator, first) in opened {
        match node.call(Target::At(first), Work::End { id, coordinator, is_commit: true }).await {
            Ok(_) => {}
            Err(error) => {
                seen.borrow_mut().outdated += usize::from(matches!(error, Error::Ended { .. }));
                return None;
            }
        }
    }
    Some(ops)
}

async fn reader(cluster: Cluster, plan: Plan, seen: Shared) {
    let clock = cluster.executor().clone();
    for _ in 0..plan.transactions {
        clock.sleep(Duration::from_micros(clock.below(20_000) as u64)).await;
        let members = cluster.members();
        let Some(node) = cluster.node(members[clock.below(members.len())]) else { continue };
        let began = seen.borrow_mut().now();
        if let Some(ops) = read_all(&cluster, &node, &seen).await {
            let ended = Some(seen.borrow_mut().now());
            seen.borrow_mut().readers.push(Transaction { began, ended, status: Status::Committed, ops });
        }
    }
}

/// Checks that each single reader has a position in the order of the transactions, after all that had ended
/// when it began.
fn judge_readers(plan: Plan, seen: &Shared) {
    let seen = seen.borrow();
    for reader in &seen.readers {
        let mut history = seen.history.clone();
        history.transactions.push(reader.clone());
        let report = check(&history, Level::Serializable);
        assert!(report.is_clean(), "{plan:?}: {reader:?}: {report}");
        let before = seen.history.transactions.iter().filter(|one| {
            one.status == Status::Committed && one.ended.is_some_and(|ended| ended < reader.began)
        });
        for op in before.flat_map(|one| &one.ops) {
            let Op::Append { key, value } = op else { continue };
            let is_seen =
                |read: &Op| matches!(read, Op::Read { key: of, list } if of == key && list.contains(value));
            assert!(reader.ops.iter().any(is_seen), "{plan:?}: {reader:?} lacks {value} of {key}");
        }
    }
}

/// Adds rows next to the lists and removes them again. Only a few of them exist at a time.
async fn churner(cluster: Cluster, plan: Plan) {
    let clock = cluster.executor().clone();
    for turn in 0..plan.churn {
        clock.sleep(Duration::from_micros(clock.below(20_000) as u64)).await;
        let members = cluster.members();
        let Some(node) = cluster.node(members[clock.below(members.len())]) else { continue };
        let beside = [key(clock.below(KEYS as usize) as u64), vec![clock.below(4) as u8]].concat();
        // More rows are added than removed during half of the turns, fewer during the other half.
        let puts = if turn % 40 < 20 { 4 } else { 1 };
        let work = if clock.below(5) < puts { Work::Put(vec![0; 8]) } else { Work::Delete };
        let _ = node.write(beside, work).await;
    }
}

/// Checks that every node returns the same lists. These reads are part of the history.
fn judge(cluster: &Cluster, plan: Plan, seen: &Shared) {
    for pe in cluster.members() {
        let node = cluster.running(pe);
        assert_eq!(node.open_transactions(), 0, "{plan:?}: one is open for ever at {pe}");
        let began = seen.borrow_mut().now();
        let mut ops = Vec::new();
        for number in 0..KEYS {
            let node = Rc::clone(&node);
            let work = Work::Run { is_write: false, others: Vec::new(), bytes: Vec::new() };
            let asked =
                cluster.executor().block_on(async move { node.call(Target::At(key(number)), work).await });
            let Some(Ok((Answer::Ran(bytes), _))) = asked else { panic!("{plan:?}: {asked:?}") };
            ops.push(Op::Read { key: number, list: list(&bytes) });
        }
        let mut seen = seen.borrow_mut();
        let ended = Some(seen.now());
        seen.history.transactions.push(Transaction { began, ended, status: Status::Committed, ops });
    }
    let report = check(&seen.borrow().history, Level::StrictSerializable);
    assert!(report.is_clean(), "{plan:?}: {report}");
}

fn run(plan: Plan) -> (Cluster, Shared, usize) {
    let cluster = Cluster::new(plan.seed, plan.options());
    cluster.set_application(Box::new(|world, store| {
        Rc::new(Lists::new(world.clone(), Rc::clone(store), Locks::default(), LOCK_WAIT))
    }));
    cluster.start_all();
    let (seen, moved) = (Shared::default(), Rc::new(Cell::new(0)));
    let mut tasks: Vec<std::pin::Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
    for _ in 0..plan.clients {
        tasks.push(Box::pin(client(cluster.clone(), plan, Rc::clone(&seen))));
    }
    for _ in 0..plan.readers {
        tasks.push(Box::pin(reader(cluster.clone(), plan, Rc::clone(&seen))));
    }
    for _ in 0..2 {
        tasks.push(Box::pin(churner(cluster.clone(), plan)));
    }
    tasks.push(Box::pin(crate::chaos::mover(cluster.clone(), plan.moves, Rc::clone(&moved))));
    tasks.push(Box::pin(crate::chaos::nemesis(cluster.clone(), plan.crashes, plan.cuts)));
    tasks.push(Box::pin(crate::chaos::joiner(cluster.clone(), usize::from(plan.joins))));
    tasks.push(Box::pin(crate::chaos::leaver(cluster.clone(), plan.leaves, Rc::new(Cell::new(0)))));
    crate::chaos::run_all(&cluster, &plan, tasks);
    (cluster, seen, moved.get())
}

#[test]
fn open_transactions_are_strictly_serializable_under_all_faults() {
    let (mut committed, mut unknown, mut ended, mut elsewhere, mut vanished, mut moved) = (0, 0, 0, 0, 0, 0);
    let mut here = 0;
    let (mut followed, mut splits, mut merges, mut readers, mut outdated) = (0, 0, 0, 0, 0);
    for seed in crate::chaos::seeds(100) {
        let plan = Plan::of(seed);
        let (cluster, seen, moves) = run(plan);
        judge(&cluster, plan, &seen);
        judge_readers(plan, &seen);
        let seen = seen.borrow();
        let count = |status| seen.history.transactions.iter().filter(|one| one.status == status).count();
        committed += count(Status::Committed);
        unknown += count(Status::Unknown);
        ended += seen.ended;
        elsewhere += seen.elsewhere;
        vanished += seen.vanished;
        here += seen.here;
        readers += seen.readers.len();
        outdated += seen.outdated;
        moved += moves;
        followed += seen.followed;
        for node in cluster.members().into_iter().filter_map(|pe| cluster.node(pe)) {
            splits += node.counts().splits;
            merges += node.counts().merges;
        }
    }
    println!(
        "{committed} committed, {unknown} unknown, {ended} ended, {elsewhere} steps elsewhere, {followed} \
         after their leaf, {vanished} vanished, {moved} moves, {splits} splits, {merges} merges, {readers} \
         readers, {outdated} readers refused, {here} without leaf locks"
    );
    let is_one = crate::chaos::seeds(100).count() == 1;
    assert!(is_one || [ended, elsewhere, followed, vanished, moved, unknown].iter().all(|count| *count > 0));
    assert!(is_one || [splits, merges].iter().all(|count| *count > 0));
    assert!(is_one || here > 0);
    assert!(is_one || readers > 0 && outdated > 0);
    assert!(is_one || committed > unknown * 5);
}

#[test]
fn a_seed_of_open_transactions_replays_exactly() {
    for seed in [2, 7] {
        let trace = |seed| {
            let (cluster, seen, _) = run(Plan::of(seed));
            let history = format!("{:?}", seen.borrow().history);
            (cluster.network().trace(), cluster.executor().events(), history)
        };
        assert_eq!(trace(seed), trace(seed), "{seed}");
    }
}
