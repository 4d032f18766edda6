//! Random clients on a few keys, and the history of the values that each client has read.
//!
//! A key's list is its value in `live`. *Append* writes the list back with one more value. *Remove* deletes
//! the row, and stores the list with a tombstone in `removed`, which is never scanned; the next append
//! continues that list. So every read returns the whole list, and only scans see removed keys as absent.

use std::thread;
use std::time::Duration;

use azekura::{
    Builder, Database, Durability, Error, ErrorKind, LockPart, Table, TableDefinition, Transaction,
    VersionPart,
};
use azekura_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use azekura_history::{History, Level, Op, Recorder, Report, Running, check};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

pub(crate) const LIVE: TableDefinition<u64, [u8]> = TableDefinition::new("live");
pub(crate) const REMOVED: TableDefinition<u64, [u8]> = TableDefinition::new("removed");
/// Table with rows that only fill the cache.
const BALLAST: TableDefinition<u64, [u8]> = TableDefinition::new("ballast");
const BALLAST_BYTES: usize = 1500;

/// Size and variety of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) threads: u64,
    pub(crate) txns_per_thread: usize,
    pub(crate) keys: u64,
    /// Number of bytes added to each value, so that few rows fit in a page.
    pub(crate) padding: usize,
    /// Number of ballast rows; each transaction reads or writes one of them.
    pub(crate) ballast: u64,
    pub(crate) page_size: usize,
    pub(crate) frames: usize,
    pub(crate) escalation: Option<usize>,
    /// Number of operations, of 16, that write.
    pub(crate) writes: u32,
    /// Number of transactions, of 16, that their client aborts.
    pub(crate) aborts: u32,
    /// Number of transactions, of 16, that read a snapshot.
    pub(crate) snapshots: u32,
    /// Limit of the memory for row versions, in bytes.
    pub(crate) version_bytes: Option<u64>,
}

/// The part of the store that a test disables.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeftOut {
    Nothing,
    Lock(LockPart),
    Version(VersionPart),
}

/// Counts of a run.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) committed: usize,
    pub(crate) aborted: usize,
    pub(crate) deadlocks: u64,
    pub(crate) scans: usize,
    pub(crate) dependencies: usize,
    pub(crate) evictions: u64,
    pub(crate) snapshots: usize,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.committed += other.committed;
        self.aborted += other.aborted;
        self.deadlocks += other.deadlocks;
        self.scans += other.scans;
        self.dependencies += other.dependencies;
        self.evictions += other.evictions;
        self.snapshots += other.snapshots;
    }
}

/// A finished run with its report.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) report: Report,
    pub(crate) counts: Counts,
    /// The first error that is unexpected in a correct store, if there was one.
    pub(crate) error: Option<Error>,
    pub(crate) db: Database,
}

/// The way in which a client reads a range.
#[derive(Clone, Copy, Debug)]
enum Walk {
    Forward,
    Backward,
    BothEnds,
}

#[derive(Clone, Debug)]
enum Step {
    Read(u64),
    /// An append that reads under a shared lock first, and then writes.
    Append(u64),
    /// An append that locks the row exclusively from the start.
    AppendBlind(u64),
    InsertIfAbsent(u64),
    Remove(u64),
    /// A scan that stops after a number of rows (the last field).
    Scan(u64, u64, Walk, usize),
    /// A rollback: these steps, then a rollback to a savepoint before them.
    RolledBack(Vec<Step>),
    Ballast(u64, bool),
    Pause,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Commit,
    CommitRelaxed,
    CommitAsync,
    Abort,
    Drop,
}

/// Runs the clients of `seed` on a store in memory and checks the history.
pub(crate) fn run(seed: u64, shape: Shape, left_out: LeftOut) -> Run {
    // The short timeout prevents a store with a disabled part from hanging the test; a correct store needs no
    // timeout.
    let is_sound = matches!(left_out, LeftOut::Nothing);
    let lock_timeout = if is_sound { Duration::from_secs(60) } else { Duration::from_millis(300) };
    let db = open(shape, left_out, lock_timeout).expect("a store in memory opens");
    let recorder = Recorder::new();
    let is_broken = AtomicBool::new(false);
    let snapshots = AtomicUsize::new(0);
    let fill = db.transact(|tx| {
        let mut session = Session::new(tx, &recorder, shape.padding)?;
        (0..shape.keys).step_by(2).try_for_each(|key| session.step(&Step::Append(key)))?;
        (0..shape.ballast).try_for_each(|key| session.step(&Step::Ballast(key, true)))?;
        Ok(session.ops)
    });
    record(recorder.begin(), fill.expect("nobody else is there")).committed();
    let results: Vec<Result<(), Error>> = thread::scope(|scope| {
        let client = |n| {
            let (db, recorder, is_broken, snapshots) = (&db, &recorder, &is_broken, &snapshots);
            move || {
                let result = client(db, recorder, (is_broken, snapshots), seed * 1000 + n, shape);
                is_broken.fetch_or(result.is_err(), Relaxed); // Relaxed: only asks the others to stop
                result
            }
        };
        let threads: Vec<_> = (0..shape.threads).map(|n| scope.spawn(client(n))).collect();
        threads.into_iter().map(|t| t.join().expect("no client panics")).collect()
    });
    let mut error = results.into_iter().find_map(Result::err);
    match read_everything(&db, &recorder, shape) {
        Ok(ops) => record(recorder.begin(), ops).committed(),
        Err(last) => error = error.or(Some(last)),
    }
    let history = recorder.finish();
    let report = check(&history, Level::StrictSerializable);
    let counts = Counts { snapshots: snapshots.into_inner(), ..counts(&history, &report, &db) };
    Run { counts, report, error, db }
}

fn open(shape: Shape, left_out: LeftOut, lock_timeout: Duration) -> Result<Database, Error> {
    let mut builder: Builder = Database::builder()
        .page_size(shape.page_size)
        .cache_bytes(shape.frames * shape.page_size)
        .log_buffers(2)
        .lock_timeout(lock_timeout);
    if let Some(records) = shape.escalation {
        builder = builder.lock_escalation(records);
    }
    if let Some(bytes) = shape.version_bytes {
        builder = builder.version_bytes(bytes);
    }
    builder = match left_out {
        LeftOut::Nothing => builder,
        LeftOut::Lock(part) => builder.leave_out(part),
        LeftOut::Version(part) => builder.leave_out_of_snapshots(part),
    };
    builder.open_in_memory()
}

/// A step of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Scan(u64, u64),
    Insert(u64),
    Remove(u64),
    /// An insert and a scan, then a rollback to a savepoint before them.
    InsertScanUndo(u64, u64, u64),
    Commit,
    Abort,
}

/// Runs the acts of up to three clients in exactly this order, on one thread. An act that has to wait for
/// another client ends its client's transaction. Returns the report, and the number of such conflicts.
pub(crate) fn stage(acts: &[(usize, Act)], left_out: Option<LockPart>) -> (Report, usize) {
    const SHAPE: Shape = Shape {
        threads: 0,
        txns_per_thread: 0,
        keys: 10,
        padding: 0,
        ballast: 0,
        page_size: 8192,
        frames: 256,
        escalation: None,
        writes: 0,
        aborts: 0,
        snapshots: 0,
        version_bytes: None,
    };
    let left_out = left_out.map_or(LeftOut::Nothing, LeftOut::Lock);
    let db = open(SHAPE, left_out, Duration::from_millis(20)).expect("a store in memory opens");
    let recorder = Recorder::new();
    let fill = db.transact(|tx| {
        let mut session = Session::new(tx, &recorder, 0)?;
        [0, 9].iter().try_for_each(|&key| session.step(&Step::Append(key)))?;
        Ok(session.ops)
    });
    record(recorder.begin(), fill.expect("nobody else is there")).committed();
    let mut clients: [Option<(Running<'_>, Transaction, Vec<Op>)>; 3] = std::array::from_fn(|_| {
        Some((recorder.begin(), db.begin().expect("a transaction begins"), Vec::new()))
    });
    let mut conflicts = 0;
    for &(who, act) in acts {
        let Some((running, tx, mut ops)) = clients[who].take() else { continue };
        let step = match act {
            Act::Scan(from, to) => Step::Scan(from, to, Walk::Forward, usize::MAX),
            Act::Insert(key) => Step::InsertIfAbsent(key),
            Act::Remove(key) => Step::Remove(key),
            Act::InsertScanUndo(key, from, to) => Step::RolledBack(vec![
                Step::InsertIfAbsent(key),
                Step::Scan(from, to, Walk::Forward, usize::MAX),
            ]),
            Act::Commit => {
                tx.commit().expect("a transaction that was not stopped commits");
                record(running, ops).committed();
                continue;
            }
            Act::Abort => {
                tx.abort().expect("a rollback");
                record(running, ops).aborted();
                continue;
            }
        };
        let mut session = Session::new(&tx, &recorder, 0).expect("the transaction is not over");
        let result = session.step(&step);
        ops.append(&mut session.ops);
        match result {
            Ok(()) => clients[who] = Some((running, tx, ops)),
            // All clients run in one thread, so waits fail with `SelfDeadlock`.
            Err(error) if error.is_retryable() || matches!(error, Error::SelfDeadlock { .. }) => {
                conflicts += 1;
                drop(tx);
                record(running, ops).aborted();
            }
            Err(error) => panic!("client {who}, {act:?}: {error}"),
        }
    }
    for (running, tx, ops) in clients.into_iter().flatten() {
        drop(tx);
        record(running, ops).aborted();
    }
    let ops = read_everything(&db, &recorder, SHAPE).expect("nobody else is there");
    record(recorder.begin(), ops).committed();
    (check(&recorder.finish(), Level::StrictSerializable), conflicts)
}

/// Reads all keys in a last transaction, so that every write is read by a transaction. One attempt is enough,
/// because no other client is active. In a store with a disabled part, locks may be left, and further
/// attempts would fail, too.
fn read_everything(db: &Database, recorder: &Recorder, shape: Shape) -> Result<Vec<Op>, Error> {
    let tx = db.begin()?;
    let mut session = Session::new(&tx, recorder, shape.padding)?;
    (0..shape.keys).try_for_each(|key| session.step(&Step::Read(key)))?;
    session.step(&Step::Scan(0, shape.keys, Walk::Forward, usize::MAX))?;
    let ops = session.ops;
    tx.commit()?;
    Ok(ops)
}

fn counts(history: &History, report: &Report, db: &Database) -> Counts {
    let of = |status| history.transactions.iter().filter(|t| t.status == status).count();
    let ops = history.transactions.iter().flat_map(|t| &t.ops);
    let stats = db.stats();
    Counts {
        committed: of(azekura_history::Status::Committed),
        aborted: of(azekura_history::Status::Aborted),
        deadlocks: stats.locks.deadlocks,
        scans: ops.filter(|op| matches!(op, Op::Scan { .. })).count(),
        dependencies: report.dependencies(),
        evictions: stats.cache.evictions,
        snapshots: 0,
    }
}

pub(crate) fn record(mut running: Running<'_>, ops: Vec<Op>) -> Running<'_> {
    for op in ops {
        match op {
            Op::Append { key, value } => running.append(key, value),
            Op::Remove { key, value } => running.remove(key, value),
            Op::Read { key, list } => running.read(key, list),
            Op::Scan { from, to, rows } => running.scan(from, to, rows),
        }
    }
    running
}

fn client(
    db: &Database,
    recorder: &Recorder,
    (is_broken, snapshots): (&AtomicBool, &AtomicUsize),
    seed: u64,
    shape: Shape,
) -> Result<(), Error> {
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..shape.txns_per_thread {
        if rng.random_ratio(shape.snapshots, 16) {
            super::snapshots::read(db, recorder, shape.keys, &mut rng)?;
            snapshots.fetch_add(1, Relaxed); // Relaxed: a count
            continue;
        }
        let plan = plan(&mut rng, shape);
        let end = end(&mut rng, shape);
        // Repeats the plan after a deadlock, with a limit.
        for _ in 0..8 {
            if is_broken.load(Relaxed) || attempt(db, recorder, shape, &plan, end)? {
                break;
            }
            thread::yield_now();
        }
    }
    Ok(())
}

fn plan(rng: &mut StdRng, shape: Shape) -> Vec<Step> {
    let mut plan = Vec::new();
    if shape.ballast > 0 {
        plan.push(Step::Ballast(rng.random_range(0..shape.ballast), rng.random_ratio(1, 4)));
    }
    let mut scanned = None;
    let most = if rng.random() { 2 } else { 6 };
    for _ in 0..rng.random_range(1..=most) {
        let next = match scanned {
            // Inserts into a range that the transaction has read itself.
            Some((from, to)) if rng.random_ratio(1, 3) => Step::InsertIfAbsent(rng.random_range(from..to)),
            _ => step(rng, shape, true),
        };
        if let Step::Scan(from, to, ..) = next {
            scanned = Some((from, to));
        }
        plan.push(next);
        plan.extend(rng.random_bool(0.7).then_some(Step::Pause));
    }
    // Rows that were read must not change, so reads the range again.
    if let Some((from, to)) = scanned
        && rng.random()
    {
        plan.extend([Step::Pause, Step::Scan(from, to, Walk::Forward, usize::MAX)]);
    }
    plan
}

fn step(rng: &mut StdRng, shape: Shape, may_nest: bool) -> Step {
    let key = rng.random_range(0..shape.keys);
    if rng.random_ratio(shape.writes, 16) {
        return match rng.random_range(0..9) {
            0 | 1 => Step::Append(key),
            2 => Step::AppendBlind(key),
            3 | 4 => Step::InsertIfAbsent(key),
            5..=7 => Step::Remove(key),
            _ if may_nest => {
                Step::RolledBack((0..rng.random_range(1..4)).map(|_| step(rng, shape, false)).collect())
            }
            _ => Step::Remove(key),
        };
    }
    if rng.random_ratio(1, 3) {
        return Step::Read(key);
    }
    let to = rng.random_range(key + 1..=shape.keys);
    let walk = [Walk::Forward, Walk::Backward, Walk::BothEnds][rng.random_range(0..3)];
    let limit = if rng.random_bool(0.5) { usize::MAX } else { rng.random_range(1..4) };
    Step::Scan(key, to, walk, limit)
}

fn end(rng: &mut StdRng, shape: Shape) -> End {
    if rng.random_ratio(shape.aborts, 16) {
        return if rng.random() { End::Abort } else { End::Drop };
    }
    [End::Commit, End::Commit, End::CommitRelaxed, End::CommitAsync][rng.random_range(0..4)]
}

/// Runs a plan once; returns `false` if the transaction was rolled back because of a conflict.
fn attempt(db: &Database, recorder: &Recorder, shape: Shape, plan: &[Step], end: End) -> Result<bool, Error> {
    let running = recorder.begin();
    let tx = db.begin()?;
    if matches!(end, End::CommitRelaxed) {
        tx.set_durability(Durability::Relaxed);
    }
    let (result, ops) = match Session::new(&tx, recorder, shape.padding) {
        Ok(mut session) => (plan.iter().try_for_each(|step| session.step(step)), session.ops),
        Err(error) => (Err(error), Vec::new()),
    };
    let running = record(running, ops);
    if let Err(error) = result {
        // After a deadlock, the transaction is rolled back already. If all frames are pinned (`Busy`), the
        // drop rolls it back.
        drop(tx);
        running.aborted();
        let is_usual = matches!(error, Error::Deadlock { .. }) || error.kind() == ErrorKind::Busy;
        return if is_usual { Ok(false) } else { Err(error) };
    }
    // After a failed commit, the end is unknown: `running` is dropped, which records this.
    match end {
        End::Commit | End::CommitRelaxed => tx.commit()?,
        End::CommitAsync => drop(tx.commit_async()?),
        End::Abort => tx.abort()?,
        End::Drop => drop(tx),
    }
    match end {
        End::Abort | End::Drop => running.aborted(),
        _ => running.committed(),
    }
    Ok(true)
}

/// One transaction of a client, and the operations that it has recorded.
struct Session<'a> {
    tx: &'a Transaction,
    live: Table<'a, u64, [u8]>,
    removed: Table<'a, u64, [u8]>,
    recorder: &'a Recorder,
    padding: usize,
    ops: Vec<Op>,
}

impl<'a> Session<'a> {
    fn new(tx: &'a Transaction, recorder: &'a Recorder, padding: usize) -> Result<Self, Error> {
        let (live, removed) = (tx.table(&LIVE)?, tx.table(&REMOVED)?);
        Ok(Self { tx, live, removed, recorder, padding, ops: Vec::new() })
    }

    fn step(&mut self, step: &Step) -> Result<(), Error> {
        match step {
            Step::Read(key) => self.read(*key).map(drop),
            Step::Append(key) => {
                let list = self.read(*key)?;
                self.append(*key, list)
            }
            Step::AppendBlind(key) => self.append_blind(*key),
            Step::InsertIfAbsent(key) => self.insert_if_absent(*key),
            Step::Remove(key) => self.remove(*key),
            Step::Scan(from, to, walk, limit) => self.scan(*from, *to, *walk, *limit),
            Step::RolledBack(steps) => self.rolled_back(steps),
            Step::Ballast(key, writes) => {
                let ballast = self.tx.table(&BALLAST)?;
                if *writes { ballast.insert(key, &[0xba; BALLAST_BYTES]) } else { ballast.get(key).map(drop) }
            }
            Step::Pause => {
                thread::yield_now();
                Ok(())
            }
        }
    }

    fn list_of_removed(&self, key: u64) -> Result<Vec<u64>, Error> {
        Ok(self.removed.get(&key)?.map(|bytes| decode(&bytes)).unwrap_or_default())
    }

    fn read(&mut self, key: u64) -> Result<Vec<u64>, Error> {
        let list = match self.live.get(&key)? {
            Some(bytes) => decode(&bytes),
            None => self.list_of_removed(key)?,
        };
        self.ops.push(Op::Read { key, list: list.clone() });
        Ok(list)
    }

    fn append(&mut self, key: u64, mut list: Vec<u64>) -> Result<(), Error> {
        let value = self.recorder.value();
        list.push(value);
        self.live.insert(&key, &encode(&list, self.padding))?;
        self.ops.push(Op::Append { key, value });
        Ok(())
    }

    fn append_blind(&mut self, key: u64) -> Result<(), Error> {
        let list = match self.live.replace(&key, &encode(&[], self.padding))? {
            Some(bytes) => decode(&bytes),
            None => self.list_of_removed(key)?,
        };
        self.ops.push(Op::Read { key, list: list.clone() });
        self.append(key, list)
    }

    fn insert_if_absent(&mut self, key: u64) -> Result<(), Error> {
        let mut list = self.list_of_removed(key)?;
        let value = self.recorder.value();
        list.push(value);
        if !self.live.insert_if_absent(&key, &encode(&list, self.padding))? {
            return self.read(key).map(drop);
        }
        list.pop();
        self.ops.push(Op::Scan { from: key, to: key + 1, rows: Vec::new() });
        self.ops.push(Op::Read { key, list });
        self.ops.push(Op::Append { key, value });
        Ok(())
    }

    fn remove(&mut self, key: u64) -> Result<(), Error> {
        let Some(bytes) = self.live.remove(&key)? else { return self.read(key).map(drop) };
        let mut list = decode(&bytes);
        self.ops.push(Op::Read { key, list: list.clone() });
        let value = self.recorder.value();
        list.push(value);
        self.removed.insert(&key, &encode(&list, self.padding))?;
        self.ops.push(Op::Remove { key, value });
        Ok(())
    }

    /// Scans a range. A scan that stops early has read the range only up to its last row.
    fn scan(&mut self, from: u64, to: u64, walk: Walk, limit: usize) -> Result<(), Error> {
        let mut range = self.live.range(from..to);
        let (mut front, mut back) = (Vec::new(), Vec::new());
        let mut is_complete = false;
        while front.len() + back.len() < limit {
            let is_back = match walk {
                Walk::Forward => false,
                Walk::Backward => true,
                Walk::BothEnds => front.len() > back.len(),
            };
            let (row, rows) =
                if is_back { (range.next_back(), &mut back) } else { (range.next(), &mut front) };
            let Some(row) = row else {
                is_complete = true;
                break;
            };
            let (key, bytes) = row?;
            rows.push((key, decode(&bytes)));
            if front.len() + back.len() == 2 {
                thread::yield_now();
            }
        }
        back.reverse();
        if is_complete {
            front.append(&mut back);
            self.ops.push(Op::Scan { from, to, rows: front });
            return Ok(());
        }
        if let Some(&(last, _)) = front.last() {
            self.ops.push(Op::Scan { from, to: last + 1, rows: front });
        }
        if let Some(&(first, _)) = back.first() {
            self.ops.push(Op::Scan { from: first, to, rows: back });
        }
        Ok(())
    }

    /// Runs the steps and rolls them back. Their reads are recorded, except those that saw the steps' own
    /// writes.
    fn rolled_back(&mut self, steps: &[Step]) -> Result<(), Error> {
        let (savepoint, start) = (self.tx.savepoint()?, self.ops.len());
        steps.iter().try_for_each(|step| self.step(step))?;
        let mut written = Vec::new();
        let done = self.ops.split_off(start);
        for op in done {
            let is_kept = match &op {
                Op::Append { key, .. } | Op::Remove { key, .. } => {
                    written.push(*key);
                    false
                }
                Op::Read { key, .. } => !written.contains(key),
                Op::Scan { from, to, .. } => !written.iter().any(|key| (*from..*to).contains(key)),
            };
            if is_kept {
                self.ops.push(op);
            }
        }
        self.tx.rollback_to(savepoint)
    }
}

fn encode(list: &[u64], padding: usize) -> Vec<u8> {
    let mut bytes = u32::try_from(list.len()).expect("short lists").to_le_bytes().to_vec();
    bytes.extend(list.iter().flat_map(|value| value.to_le_bytes()));
    bytes.resize(bytes.len() + padding, 0xa5);
    bytes
}

pub(crate) fn decode(bytes: &[u8]) -> Vec<u64> {
    let (len, values) = bytes.split_first_chunk().expect("a length");
    let len = u32::from_le_bytes(*len) as usize;
    values.chunks_exact(8).take(len).map(|v| u64::from_le_bytes(v.try_into().expect("eight"))).collect()
}
