//! A run with one number of processors.

use azekura::{Database, TableDefinition};
use azekura_base::sync::{machine, thread};
use azekura_io::device::{Device, DeviceFs};
use azekura_io::{DeviceModel, Fs};
use azekura_sim::measure::{self, Stretch};
use azekura_sim::stalls::PlaceStalls;
use azekura_sim::{Name, Simulation};
use azekura_workload::Lane;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::Scale;
use super::work::{Client, Filled, STORE};
use crate::error::BenchError;
use crate::lab::steady::{Counter, Run, Span};
use crate::tpcc::failed;

/// Largest number of cache lines in a point.
const LINES: usize = 6;
/// Largest number of log streams: the number of the default device's channels.
const STREAMS: usize = 8;
const SEGMENT_BYTES: u64 = 4 << 20;
/// Time for the preparation of log segments, on a device without cost.
const PREPARES: Duration = Duration::from_millis(5);
/// Table with a row for each log buffer.
const LOG_BUFFERS: TableDefinition<u64, ()> = TableDefinition::new("log buffers");
/// Stack of a simulated thread: the store needs deeper stacks than its parts.
pub(super) const STACK_BYTES: usize = 1 << 20;

/// Results for one number of processors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Number of processors, and of clients.
    pub processors: usize,
    /// Operations per second of virtual time: the median of the runs.
    pub rate: f64,
    /// The runs with all seeds. The next fields are those of the run with the median rate.
    pub runs: Vec<Run>,
    /// MiB of log records per second of virtual time: the rate, with the mean bytes of all operations.
    pub log_mib_per_s: f64,
    /// Number of operations in the measured time.
    pub ops: u64,
    /// Number of all operations, including those before and after the measured time.
    pub all_ops: u64,
    /// Number of memory accesses in the measured time.
    pub steps: u64,
    /// The most expensive shared cache lines.
    pub lines: Vec<SharedLine>,
}

/// Cache lines with one name, which is a field of a module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedLine {
    /// Name of the field.
    pub field: String,
    /// Name of the module.
    pub module: String,
    /// Places of the accesses, the most expensive first.
    pub places: Vec<String>,
    /// Waiting time for these lines, as a part of all clients' time.
    pub share: f64,
    /// Waiting time for the most expensive line at each place, as a part of all clients' time.
    pub on_one_line: f64,
}

/// Results of a run.
struct Left {
    stretch: Option<Stretch>,
    run: Run,
    measured: Duration,
    all_ops: u64,
    /// Bytes of log records of all operations.
    log_bytes: u64,
}

pub(crate) fn point(scale: &Scale, filled: &Filled, processors: usize) -> Result<Point, BenchError> {
    let (median, runs) = scale.rule.point(|seed| run(scale, filled, processors, seed))?;
    Ok(Point { runs, ..median })
}

/// Returns a run, and the point with its result.
fn run(scale: &Scale, filled: &Filled, processors: usize, seed: u64) -> Result<(Run, Point), BenchError> {
    let profile = Rc::new(scale.profile.clone());
    let mut simulation =
        Simulation::new(profile, processors, seed).stack_bytes(STACK_BYTES).without(&scale.without);
    let (clients, settings) = (clients(scale, filled, processors, seed), scale.clone());
    let span = scale.rule.span(scale.work.windows(), processors);
    let files = Arc::new(filled.files.copied());
    let left = Rc::new(Cell::new(None));
    let result = Rc::clone(&left);
    simulation.thread(move || result.set(Some(drive(&settings, files, clients, seed, span))));
    simulation.run().map_err(BenchError::Simulation)?;
    let Left { stretch, run, measured, all_ops, log_bytes } = left.take().ok_or(BenchError::Panicked)??;
    let (stretch, seconds) = (stretch.ok_or(BenchError::Panicked)?, measured.as_secs_f64());
    let point = Point {
        processors,
        rate: run.rate,
        runs: Vec::new(),
        log_mib_per_s: run.rate * log_bytes as f64 / all_ops.max(1) as f64 / f64::from(1 << 20),
        ops: (run.rate * seconds).round() as u64,
        all_ops,
        steps: stretch.steps,
        lines: named(&stretch.stalls, seconds * processors as f64),
    };
    Ok((run, point))
}

/// Returns the operations per second of real threads, after a warm-up of a quarter of `time`.
pub(crate) fn real(
    scale: &Scale,
    filled: &Filled,
    threads: usize,
    time: Duration,
) -> Result<f64, BenchError> {
    let (seed, span) = (scale.rule.seed, Span::Fixed(time / 4, time));
    let clients = clients(scale, filled, threads, seed);
    Ok(drive(scale, Arc::new(filled.files.copied()), clients, seed, span)?.run.rate)
}

fn clients(scale: &Scale, filled: &Filled, clients: usize, seed: u64) -> Vec<Client> {
    let population = scale.work.population();
    let of = clients as u64;
    let client = |client| scale.work.client(filled, &population, Lane::new(client, of), seed, scale.window);
    (0..of).map(client).collect()
}

/// Opens the store with a prepared log, reads all of it, and runs and counts the clients, on a simulated or
/// on the real machine.
fn drive(
    scale: &Scale,
    files: Arc<dyn Fs>,
    clients: Vec<Client>,
    seed: u64,
    span: Span,
) -> Result<Left, BenchError> {
    let device = Device::new(DeviceModel::free());
    let fs: Arc<dyn Fs> = Arc::new(DeviceFs::on(files, Arc::clone(&device)));
    // A log recycles the files of a closed one, so a stream writes no new block in its first two segments.
    let once = open(scale, Arc::clone(&fs), clients.len())?;
    use_log_buffers(&once, clients.len()).map_err(failed("preparing the log"))?;
    thread::sleep(PREPARES);
    once.close().map_err(failed("closing"))?;
    let db = open(scale, fs, clients.len())?;
    // The check reads every page, so that all pages are in the cache.
    db.check(&mut |_, _| {}).map_err(failed("reading the store in"))?;
    use_log_buffers(&db, clients.len()).map_err(failed("preparing the log"))?;
    thread::sleep(PREPARES);
    device.change(DeviceModel { seed, ..scale.device });
    let before = db.stats().log.record_bytes;
    let counter = Counter::begin(span);
    let threads: Vec<_> = clients
        .into_iter()
        .map(|client| {
            let (db, counter) = (db.clone(), counter.clone());
            thread::spawn(move || count(client, &db, &counter))
        })
        .collect();
    let (mut counted, mut all_ops) = (0, 0);
    for thread in threads {
        let counts = thread.join().unwrap_or(Err(BenchError::Panicked))?;
        counted += counts.0;
        all_ops += counts.1;
    }
    let stretch = machine::current().map(|_| measure::counted());
    let log_bytes = db.stats().log.record_bytes - before;
    db.close().map_err(failed("closing"))?;
    let (run, measured) = (counter.run(seed, counted), counter.measured_time());
    Ok(Left { stretch, run, measured, all_ops, log_bytes })
}

/// Commits one row with each log buffer. A log stream creates its segments at its first record, which would
/// take longer than the measured time on the modeled device.
fn use_log_buffers(db: &Database, buffers: usize) -> Result<(), azekura::Error> {
    (0..buffers).try_for_each(|buffer| {
        let transaction = db.begin_on_log_buffer(buffer)?;
        transaction.table(&LOG_BUFFERS)?.insert(&(buffer as u64), &())?;
        transaction.commit()
    })
}

fn open(scale: &Scale, fs: Arc<dyn Fs>, clients: usize) -> Result<Database, BenchError> {
    Database::builder()
        .file_system(fs)
        .cache_bytes(scale.work.cache_bytes())
        .log_buffers(clients)
        .log_protocol(scale.log.protocol())
        .wal_streams(scale.log.streams(clients).unwrap_or(clients.min(STREAMS)))
        .wal_segment_bytes(SEGMENT_BYTES)
        .wal_first_segment_bytes(SEGMENT_BYTES) // first segments do not grow within a short measurement
        .redo_threads(1) // more would be real threads, and a clean store needs no redo
        .open(STORE)
        .map_err(failed("opening"))
}

/// Runs a client. Returns the operations that a real thread began in the measured time, and all operations.
fn count(client: Client, db: &Database, counter: &Counter) -> Result<(u64, u64), BenchError> {
    let (mut counted, mut all) = (0, 0);
    client.run(db, || {
        all += 1;
        counter.count(&mut counted)
    })?;
    Ok((counted, all))
}

/// Adds up the waits for lines with the same name.
fn named(stalls: &[PlaceStalls], all_time: f64) -> Vec<SharedLine> {
    let seconds = |picoseconds: u64| picoseconds as f64 / 1e12;
    let mut lines: Vec<SharedLine> = Vec::new();
    for stall in stalls {
        let name = Name::of(stall.place);
        let place = format!("{}:{}", name.file, name.line);
        let (share, on_one_line) =
            (seconds(stall.stall) / all_time, seconds(stall.on_hottest_line) / all_time);
        match lines.iter_mut().find(|line| line.field == name.field && line.module == name.module) {
            Some(line) => {
                line.places.push(place);
                line.share += share;
                line.on_one_line += on_one_line;
            }
            None => lines.push(SharedLine {
                field: name.field,
                module: name.module,
                places: vec![place],
                share,
                on_one_line,
            }),
        }
    }
    lines.sort_by(|a, b| b.share.total_cmp(&a.share)); // a stable sort
    lines.truncate(LINES);
    lines
}
