//! A run with one number of processors.

use azekura::{Database, TableDefinition};
use azekura_base::sync::time::Instant;
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
    /// Operations per second of virtual time.
    pub rate: f64,
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
    ops: u64,
    all_ops: u64,
}

pub(crate) fn point(scale: &Scale, filled: &Filled, processors: usize) -> Result<Point, BenchError> {
    let profile = Rc::new(scale.profile.clone());
    let mut simulation =
        Simulation::new(profile, processors, scale.seed).stack_bytes(STACK_BYTES).without(&scale.without);
    let (clients, settings) = (clients(scale, filled, processors), scale.clone());
    let files = Arc::new(filled.files.copied());
    let left = Rc::new(Cell::new(None));
    let result = Rc::clone(&left);
    simulation.thread(move || result.set(Some(drive(&settings, files, clients))));
    simulation.run().map_err(BenchError::Simulation)?;
    let seconds = scale.time(processors).1.as_secs_f64();
    let Left { stretch, ops, all_ops } = left.take().ok_or(BenchError::Panicked)??;
    let stretch = stretch.ok_or(BenchError::Panicked)?;
    Ok(Point {
        processors,
        rate: ops as f64 / seconds,
        ops,
        all_ops,
        steps: stretch.steps,
        lines: named(&stretch.stalls, seconds * processors as f64),
    })
}

/// Returns the operations per second of real threads, during the time of the settings.
pub(crate) fn real(scale: &Scale, filled: &Filled, threads: usize) -> Result<f64, BenchError> {
    let left = drive(scale, Arc::new(filled.files.copied()), clients(scale, filled, threads))?;
    Ok(left.ops as f64 / scale.time(threads).1.as_secs_f64())
}

fn clients(scale: &Scale, filled: &Filled, clients: usize) -> Vec<Client> {
    let population = scale.work.population();
    let of = clients as u64;
    let client =
        |client| scale.work.client(filled, &population, Lane::new(client, of), scale.seed, scale.window);
    (0..of).map(client).collect()
}

/// Opens the store, reads all of it, and runs and counts the clients, on a simulated or on the real machine.
fn drive(scale: &Scale, files: Arc<dyn Fs>, clients: Vec<Client>) -> Result<Left, BenchError> {
    let device = Device::new(DeviceModel::free());
    let fs: Arc<dyn Fs> = Arc::new(DeviceFs::on(files, Arc::clone(&device)));
    let db = open(scale, fs, clients.len())?;
    // The check reads every page, so that all pages are in the cache.
    db.check(&mut |_, _| {}).map_err(failed("reading the store in"))?;
    use_log_buffers(&db, clients.len()).map_err(failed("preparing the log"))?;
    thread::sleep(PREPARES);
    device.change(scale.device);
    let (warm, counted) = scale.time(clients.len());
    let begin = Instant::now() + warm;
    let end = begin + counted;
    measure_between(warm, counted);
    let threads: Vec<_> = clients
        .into_iter()
        .map(|client| {
            let db = db.clone();
            thread::spawn(move || count(client, &db, begin, end))
        })
        .collect();
    let (mut ops, mut all_ops) = (0, 0);
    for thread in threads {
        let counts = thread.join().unwrap_or(Err(BenchError::Panicked))?;
        ops += counts.0;
        all_ops += counts.1;
    }
    let stretch = machine::current().map(|_| measure::counted());
    db.close().map_err(failed("closing"))?;
    Ok(Left { stretch, ops, all_ops })
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

/// Sets the time in which a simulated machine counts accesses: after `warm` from now, for `counted`.
fn measure_between(warm: Duration, counted: Duration) {
    if let Some(machine) = machine::current() {
        let begin = machine.now() + warm;
        measure::between(begin, begin + counted);
    }
}

fn open(scale: &Scale, fs: Arc<dyn Fs>, clients: usize) -> Result<Database, BenchError> {
    Database::builder()
        .file_system(fs)
        .cache_bytes(scale.work.cache_bytes())
        .log_buffers(clients)
        .wal_streams(clients.min(STREAMS))
        .wal_segment_bytes(SEGMENT_BYTES)
        .wal_first_segment_bytes(SEGMENT_BYTES) // first segments do not grow within a short measurement
        .redo_threads(1) // more would be real threads, and a clean store needs no redo
        .open(STORE)
        .map_err(failed("opening"))
}

/// Runs a client. Returns the operations that began in the measured time, and all operations.
fn count(client: Client, db: &Database, begin: Instant, end: Instant) -> Result<(u64, u64), BenchError> {
    let (mut counted, mut all) = (0, 0);
    client.run(db, || {
        let now = Instant::now();
        all += 1;
        counted += u64::from(begin <= now && now < end);
        now < end
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
