//! The work of one client thread during a phase.
//!
//! Blocking: the client takes a transaction, runs it, records its latency, and repeats. The latency is the
//! time from the end of the previous transaction to the end of this one. It thus needs one clock read per
//! transaction and includes the generator's time (tens of nanoseconds).
//!
//! Pipelined: the client adds each commit to a first-in first-out window. Before each new transaction it
//! removes the durable commits at the front of the window. If the window is full, it waits for the oldest
//! commit. The latency is the time from the beginning of the transaction until its commit leaves the window.

use crate::engine::{Reader, Session, Sink, Ticket, Writer};
use crate::error::{BenchError, EngineError};
use crate::latency::Latencies;
use crate::plan::Commit;
use crate::window::Window;
use azekura_workload::workload::KEY_BYTES;
use azekura_workload::{Family, Step, Stream, Workload};
use std::time::Instant;

/// Counts of a client's work.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Operations, in the workload's unit.
    pub ops: u64,
    /// Number of retries of transactions.
    pub retries: u64,
    /// Point reads that found nothing.
    pub missing: u64,
    /// Latencies of transactions that only read.
    pub reads: Latencies,
    /// Latencies of transactions that wrote.
    pub writes: Latencies,
    /// Bytes of keys and values read.
    pub read_bytes: u64,
    /// Bytes of keys and values written.
    pub written_bytes: u64,
}

impl Tally {
    /// Adds the counts of another client.
    pub fn merge(&mut self, other: &Tally) {
        self.ops += other.ops;
        self.retries += other.retries;
        self.missing += other.missing;
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
    }
}

/// Settings of the clients of a workload.
#[derive(Debug, Clone, Copy)]
pub struct Mode {
    /// Each transaction counts as one operation (U-1, U-10, YCSB), whatever its number of reads and writes.
    pub whole_transactions: bool,
    /// New keys are inserted in ascending order, each above all existing keys.
    pub appends: bool,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Clients touch every byte of the values that they read.
    pub touches_values: bool,
    /// Number of commits that one client may have in flight; `None` means that it waits for each.
    pub window: Option<usize>,
}

impl Mode {
    /// Returns the settings of `threads` clients of a workload.
    #[must_use]
    pub fn of(workload: &Workload, threads: usize, commit: Commit) -> Self {
        let single =
            matches!(workload.family(), Family::U1 | Family::U10 | Family::Ycsb(_) | Family::ShortScan);
        Self {
            whole_transactions: single,
            appends: workload.family() == Family::Load && threads == 1,
            value_bytes: workload.value_bytes(),
            touches_values: workload.touches_values(),
            window: (commit != Commit::Blocking).then(|| commit.window(threads)),
        }
    }
}

/// Runs the transactions of `stream` until the stream ends or `go_on` returns `false`. `go_on` receives the
/// number of completed operations after each transaction. Then waits for the transactions in flight, which
/// count too.
///
/// # Errors
///
/// An error of the engine. Reads that find no record are counted, and are no errors.
pub fn run(
    session: &mut dyn Session,
    stream: &mut Stream,
    mode: Mode,
    mut go_on: impl FnMut(u64) -> bool,
) -> Result<Tally, BenchError> {
    let mut client = Client {
        session,
        mode,
        sink: Sink::touching(mode.touches_values),
        value: vec![0; mode.value_bytes],
        tally: Tally::default(),
        window: Window::default(),
    };
    let mut steps = Vec::new();
    let mut began = Instant::now();
    if mode.appends && client.bulk_load(stream, &mut go_on)? {
        return Ok(client.tally);
    }
    loop {
        stream.next_transaction(&mut steps);
        if steps.is_empty() {
            break;
        }
        began = client.transaction(&steps, began)?;
        steps.iter().for_each(|step| stream.acknowledge(step));
        if !go_on(client.tally.ops) {
            break;
        }
    }
    client.drain(0)?;
    std::hint::black_box(client.sink.mixed());
    client.tally.read_bytes = client.sink.bytes();
    Ok(client.tally)
}

struct Client<'s> {
    session: &'s mut dyn Session,
    mode: Mode,
    sink: Sink,
    /// Buffer for the bytes of one value.
    value: Vec<u8>,
    tally: Tally,
    /// Commits in flight, with the time at which each transaction began.
    window: Window<Instant, Box<dyn Ticket>>,
}

/// Counts of one execution of a transaction's steps. They are reset when the transaction is retried.
#[derive(Default)]
struct Seen {
    gets: u64,
    missing: u64,
    scanned: u64,
    written: u64,
}

/// Records between two calls of `go_on` in a bulk load.
const LOOK_RECORDS: u64 = 1_000;

impl Client<'_> {
    /// Passes all records of the stream to the engine's bulk loader and counts them as one transaction.
    /// Returns `false` if the engine has no bulk loader.
    fn bulk_load(
        &mut self,
        stream: &mut Stream,
        go_on: &mut impl FnMut(u64) -> bool,
    ) -> Result<bool, EngineError> {
        let (began, value_bytes) = (Instant::now(), self.mode.value_bytes);
        let (mut steps, mut at, mut given) = (Vec::new(), 0, 0);
        let mut records = std::iter::from_fn(|| {
            if at == steps.len() {
                stream.next_transaction(&mut steps);
                at = 0;
            }
            let Some(Step::Insert { key, value, .. }) = steps.get(at) else { return None };
            at += 1;
            if given % LOOK_RECORDS == 0 && !go_on(given) {
                return None;
            }
            given += 1;
            let mut bytes = vec![0; value_bytes];
            value.fill(&mut bytes);
            Some((key.as_bytes().to_vec(), bytes))
        });
        let Some(loaded) = self.session.bulk_load(&mut records)? else { return Ok(false) };
        self.tally.writes.record(began.elapsed());
        self.tally.ops += loaded;
        self.tally.written_bytes += loaded * record_bytes(value_bytes);
        Ok(true)
    }

    /// Runs one transaction. Returns the time at which it ended and the next one begins.
    fn transaction(&mut self, steps: &[Step], began: Instant) -> Result<Instant, BenchError> {
        if !steps.iter().any(Step::writes) {
            return self.read_only(steps, began);
        }
        let mut seen = Seen::default();
        let (value, sink, mode) = (&mut self.value, &mut self.sink, self.mode);
        let mut work = |writer: &mut dyn Writer| {
            seen = Seen::default();
            steps.iter().try_for_each(|step| apply(step, writer, mode, value, sink, &mut seen))
        };
        let now = match mode.window {
            None => {
                self.tally.retries += self.session.write(&mut work)?;
                let now = Instant::now();
                self.tally.writes.record(now - began);
                now
            }
            Some(window) => {
                let (retries, ticket) = self.session.write_async(&mut work)?;
                self.tally.retries += retries;
                self.window.push(began, ticket);
                self.drain(window - 1)?;
                Instant::now()
            }
        };
        self.tally.missing += seen.missing;
        self.tally.ops += if mode.whole_transactions { 1 } else { seen.written };
        self.tally.written_bytes += seen.written * record_bytes(mode.value_bytes);
        Ok(now)
    }

    fn read_only(&mut self, steps: &[Step], began: Instant) -> Result<Instant, BenchError> {
        let mut seen = Seen::default();
        let sink = &mut self.sink;
        self.tally.retries += self.session.read(&mut |reader| {
            seen = Seen::default();
            steps.iter().try_for_each(|step| match step {
                Step::Get { key } => get(reader, key.as_bytes(), sink, &mut seen),
                Step::Scan { from, limit } => scan(reader, from.as_bytes(), *limit, sink, &mut seen),
                Step::ScanBack { limit } => scan_back(reader, *limit, sink, &mut seen),
                _ => unreachable!("only transactions without writes come here"),
            })
        })?;
        let now = Instant::now();
        self.tally.reads.record(now - began);
        self.tally.missing += seen.missing;
        self.tally.ops += if self.mode.whole_transactions { 1 } else { seen.gets + seen.scanned };
        Ok(now)
    }

    /// Removes the oldest commits from the window: all that are durable, and more until at most `most` are
    /// left.
    fn drain(&mut self, most: usize) -> Result<(), BenchError> {
        let writes = &mut self.tally.writes;
        Ok(self.window.drain(most, |began, now| writes.record(now - began))?)
    }
}

/// Returns the bytes of a key and its value.
const fn record_bytes(value_bytes: usize) -> u64 {
    (KEY_BYTES + value_bytes) as u64
}

fn apply(
    step: &Step,
    writer: &mut dyn Writer,
    mode: Mode,
    bytes: &mut [u8],
    sink: &mut Sink,
    seen: &mut Seen,
) -> Result<(), EngineError> {
    match step {
        Step::Get { key } => get(writer, key.as_bytes(), sink, seen),
        Step::Scan { from, limit } => scan(writer, from.as_bytes(), *limit, sink, seen),
        Step::ScanBack { limit } => scan_back(writer, *limit, sink, seen),
        Step::Put { key, value } => {
            value.fill(bytes);
            seen.written += 1;
            writer.put(key.as_bytes(), bytes)
        }
        Step::ReadModifyWrite { key, value } => {
            get(writer, key.as_bytes(), sink, seen)?;
            value.fill(bytes);
            seen.written += 1;
            writer.put(key.as_bytes(), bytes)
        }
        Step::Insert { key, value, .. } => {
            value.fill(bytes);
            seen.written += 1;
            if mode.appends {
                writer.append(key.as_bytes(), bytes)
            } else {
                writer.put(key.as_bytes(), bytes)
            }
        }
    }
}

fn get<R: Reader + ?Sized>(
    reader: &mut R,
    key: &[u8],
    sink: &mut Sink,
    seen: &mut Seen,
) -> Result<(), EngineError> {
    seen.gets += 1;
    seen.missing += u64::from(!reader.get(key, sink)?);
    Ok(())
}

fn scan<R: Reader + ?Sized>(
    reader: &mut R,
    from: &[u8],
    limit: u64,
    sink: &mut Sink,
    seen: &mut Seen,
) -> Result<(), EngineError> {
    let before = sink.records();
    reader.scan(from, limit, sink)?;
    seen.scanned += sink.records() - before;
    Ok(())
}

fn scan_back<R: Reader + ?Sized>(
    reader: &mut R,
    limit: u64,
    sink: &mut Sink,
    seen: &mut Seen,
) -> Result<(), EngineError> {
    let before = sink.records();
    reader.scan_back(limit, sink)?;
    seen.scanned += sink.records() - before;
    Ok(())
}
