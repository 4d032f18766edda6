//! The paper's Fig. 7 on a simulated machine: U-1 and U-10 on the log alone, with as many workers as the
//! machine has processors, and modeled devices in the machine's own time.
//!
//! The log is the shipped one with its own threads; workers are those of [`micro`]. Each worker has a
//! processor, and so have the log's threads.
//!
//! **The log is prepared.** The measured log recycles segments: each of its blocks was written before the
//! run, as in a store with a log that has reached its size. The paper's log files are allocated before its
//! runs, and a run of some milliseconds ends before a stream has written one segment. A new log would be
//! measured while it fills its blocks (SEGMENT-5 of `azekura-wal`): it writes each byte twice, which costs
//! most on a device at its limit. [`micro`] reaches the same state on real machines by its warm-up.

use azekura_base::sync::atomic::{AtomicBool, Ordering::Relaxed};
use azekura_base::sync::time::Instant;
use azekura_base::sync::{thread, thread_time};
use azekura_base::{DurableLog, Lsn};
use azekura_io::device::{Device, DeviceFs, DeviceModel};
use azekura_io::{Fs, MemFs};
use azekura_sim::{LineName, Profile, Simulation};
use azekura_wal::{LogIdentity, Wal, WalOptions};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::micro::{self, Micro, Pages};
use super::variant::{GROUP, Pace, Variant};
use crate::error::BenchError;
use crate::lab::simulated::{self, Chart, Line};
use crate::progress::Progress;

/// Settings of the simulation.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// The machine.
    pub profile: Profile,
    /// The devices.
    pub devices: Vec<DeviceModel>,
    /// The logs; those with a number have room for so many transactions and no more in their buffer, and so
    /// write that many at a time.
    pub logs: Vec<(Variant, Option<usize>)>,
    /// Numbers of workers.
    pub workers: Vec<usize>,
    /// Updates of a transaction: a figure for each number.
    pub updates: Vec<usize>,
    /// Transactions that a worker may have in flight.
    pub window: usize,
    /// Time on the machine before and while commits are counted.
    pub time: (Duration, Duration),
    /// Lines that cost nothing.
    pub without: Vec<LineName>,
    /// Waits for the device end with a spin, as real ones do, instead of taking no processor at all.
    pub spins: bool,
    /// Of all that is drawn.
    pub seed: u64,
}

/// A log with one number of workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The device.
    pub device: String,
    /// Updates of a transaction.
    pub updates: usize,
    /// The log.
    pub log: String,
    /// Workers.
    pub workers: usize,
    /// Transactions per second of the machine's time with a commit known to be durable.
    pub rate: f64,
    /// Nanoseconds of a processor that its worker had for a transaction.
    pub worker_ns: f64,
    /// Mean bytes of a chunk.
    pub chunk_bytes: usize,
    /// Accesses and turns of spins that were simulated.
    pub steps: u64,
    /// Places at which threads waited for cache lines, and microseconds per transaction.
    pub stalls: Vec<(String, f64)>,
}

/// All of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The machine.
    pub profile: Profile,
    /// The settings, as text.
    pub settings: String,
    /// Rates.
    pub points: Vec<Point>,
}

/// Places that a point names.
const PLACES: usize = 3;
/// Processors for the log's threads that write no stream: the one that prepares segments, the one that trims.
const FOR_THE_LOG: usize = 2;
/// For segments to be made ready on a device that costs nothing.
const PREPARES: Duration = Duration::from_millis(5);
const TRIM_EVERY: Duration = Duration::from_micros(500);

impl Simulated {
    /// 1, 2, 4, … up to `most` workers on a two-socket machine with the paper's device.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            profile: Profile::two_sockets(),
            devices: vec![DeviceModel::iodrive()],
            logs: vec![
                (Variant::Paper, None),
                (Variant::OneStream, None),
                (Variant::Serial, None),
                (Variant::Serial, Some(GROUP)),
            ],
            workers: simulated::doublings(most),
            updates: vec![1],
            window: 64,
            time: (Duration::from_millis(4), Duration::from_millis(10)),
            without: Vec::new(),
            spins: false,
            seed: 1,
        }
    }

    /// The same with U-1 and U-10 on devices with parallel flushes: the paper's, one that reaches its limit
    /// later, and a current drive.
    #[must_use]
    pub fn on_parallel_devices(most: usize) -> Self {
        let devices = vec![DeviceModel::iodrive(), DeviceModel::iodrive_2x(), DeviceModel::plp()];
        let mut lab = Self { devices, updates: vec![1, 10], ..Self::new(most) };
        lab.logs.insert(1, (Variant::StreamEach, None)); // a greedy stream for each worker
        lab
    }

    /// Runs all of it.
    ///
    /// # Errors
    ///
    /// [`BenchError::Simulation`], and errors of the log.
    pub fn run(&self, progress: &Progress) -> Result<Report, BenchError> {
        let figures = self.devices.len() * self.updates.len();
        progress.begin("Simulating the log", (figures * self.logs.len() * self.workers.len()) as u64);
        let mut points = Vec::new();
        for (&device, &updates) in self.devices.iter().flat_map(|d| self.updates.iter().map(move |u| (d, u)))
        {
            for &(variant, group) in &self.logs {
                for &workers in &self.workers {
                    let micro = self.micro(variant, workers, updates);
                    points.push(self.point(micro, group, device)?);
                    progress.at(points.len() as u64);
                }
            }
        }
        Ok(Report {
            settings: format!(
                "{} transactions in flight for each worker; {:?} after {:?}; seed {}{}",
                self.window,
                self.time.1,
                self.time.0,
                self.seed,
                simulated::without(&self.without)
            ),
            profile: self.profile.clone(),
            points,
        })
    }

    /// Transactions per second of so many real workers with the first of the logs, on the first of the
    /// devices, and nanoseconds of a processor for each.
    pub(crate) fn real(&self, workers: usize) -> Result<(f64, f64), BenchError> {
        let (Some(&(variant, group)), Some(&device), Some(&updates)) =
            (self.logs.first(), self.devices.first(), self.updates.first())
        else {
            return Ok((0.0, 0.0));
        };
        let micro = self.micro(variant, workers, updates);
        let measured = measure(micro, group, (device, true), self.time)?;
        Ok((measured.commits as f64 / self.time.1.as_secs_f64(), measured.worker_ns()))
    }

    const fn micro(&self, variant: Variant, workers: usize, updates: usize) -> Micro {
        let Self { window, time, seed, .. } = *self;
        Micro { variant, workers, updates, window: Some(window), time: time.1, seed }
    }

    fn point(&self, micro: Micro, group: Option<usize>, device: DeviceModel) -> Result<Point, BenchError> {
        let Micro { variant, workers, updates, .. } = micro;
        let (profile, time, on) = (Rc::new(self.profile.clone()), self.time, (device, self.spins));
        let processors = workers + writers(variant, workers) + FOR_THE_LOG;
        let processors = processors.min(profile.topology.processors());
        let mut simulation = Simulation::new(profile, processors, self.seed).without(&self.without);
        let done = Rc::new(Cell::new(None));
        let result = Rc::clone(&done);
        simulation.thread(move || result.set(Some(measure(micro, group, on, time))));
        let outcome = simulation.run().map_err(BenchError::Simulation)?;
        let measured = done.take().ok_or(BenchError::Panicked)??;
        Ok(Point {
            device: device.name.into(),
            updates,
            log: match group {
                None => variant.name(),
                Some(n) => format!("{}, {n} at a time", variant.name()),
            },
            workers,
            rate: measured.commits as f64 / time.1.as_secs_f64(),
            worker_ns: measured.worker_ns(),
            chunk_bytes: measured.chunk_bytes,
            steps: outcome.steps,
            stalls: outcome
                .stalls
                .iter()
                .take(PLACES)
                .map(|stall| {
                    (
                        azekura_sim::stalls::name(stall.place),
                        stall.stall as f64 / 1e6 / measured.all_commits.max(1) as f64,
                    )
                })
                .collect(),
        })
    }
}

/// Threads of the log that write. Where workers write their own streams their threads sleep; one processor is
/// left for them, too.
const fn writers(variant: Variant, workers: usize) -> usize {
    match (variant.pace(), variant.streams(workers)) {
        (Pace::Greedy | Pace::Unasked, Some(streams)) => streams,
        _ => 1,
    }
}

struct Measured {
    commits: u64,
    all_commits: u64,
    /// Processor time of all workers, for all commits.
    worker_time: Duration,
    chunk_bytes: usize,
}

impl Measured {
    fn worker_ns(&self) -> f64 {
        self.worker_time.as_secs_f64() * 1e9 / self.all_commits.max(1) as f64
    }
}

/// On the machine: makes the log, starts the workers, counts.
fn measure(
    micro: Micro,
    group: Option<usize>,
    (model, spins): (DeviceModel, bool),
    (warm, measured): (Duration, Duration),
) -> Result<Measured, BenchError> {
    let device = if spins { Device::spinning } else { Device::new }(DeviceModel::free());
    let fs: Arc<dyn Fs> = Arc::new(DeviceFs::on(Arc::new(MemFs::new()), Arc::clone(&device)));
    let mut options = micro.variant.wal_options(micro.workers);
    if let Some(group) = group {
        options.buffer_bytes = group * micro::transaction_bytes(micro.updates);
    }
    let wal = prepared(&fs, &options)?;
    device.change(model);
    let (pages, until) = (Arc::new(Pages::default()), Instant::now() + warm + measured);
    let counts = Arc::new(AtomicBool::new(false));
    let mut workers = Vec::new();
    for worker in 0..micro.workers {
        let (wal, pages, counts) = (Arc::clone(&wal), Arc::clone(&pages), Arc::clone(&counts));
        workers.push(thread::spawn(move || {
            let tally = micro::work(&micro, &wal, &pages, worker, &counts, || Instant::now() < until);
            (tally, thread_time()) // of a thread that has done nothing else
        }));
    }
    trim_until(&wal, until - measured);
    let before = wal.stats();
    // Relaxed, here and below: a worker counts a transaction more or less.
    counts.store(true, Relaxed);
    trim_until(&wal, until);
    counts.store(false, Relaxed);
    let after = wal.stats();
    let (mut commits, mut worker_time) = (0, Duration::ZERO);
    for worker in workers {
        let (tally, time) = worker.join().map_err(|_| BenchError::Panicked)?;
        commits += tally?.committed;
        worker_time += time;
    }
    wal.close().map_err(micro::failed("closing the log"))?;
    let chunks = (after.chunks - before.chunks).max(1);
    Ok(Measured {
        commits,
        all_commits: wal.stats().records / (2 + micro.updates as u64),
        worker_time,
        chunk_bytes: ((after.chunk_bytes - before.chunk_bytes) / chunks) as usize,
    })
}

/// Makes a log on a device that costs nothing. It recycles the files of a log before it, so a stream writes
/// no new block in its first two segments: more than a stream of P-WAL writes in a run.
fn prepared(fs: &Arc<dyn Fs>, options: &WalOptions) -> Result<Arc<Wal>, BenchError> {
    let log = |incarnation, nothing_counts| {
        let identity = LogIdentity { database_id: 1, incarnation, first_lsn: Lsn(1) };
        let options = WalOptions { nothing_counts, ..options.clone() };
        let made = Wal::create(Arc::clone(fs), Path::new("/wal"), identity, options);
        let wal = made.map_err(micro::failed("making the log"))?;
        // For the thread of the log that makes segments ready.
        thread::sleep(PREPARES);
        Ok::<_, BenchError>(wal)
    };
    log(1, false)?.close().map_err(micro::failed("closing the log"))?;
    log(2, true)
}

fn trim_until(wal: &Wal, end: Instant) {
    while Instant::now() < end {
        thread::sleep(end.saturating_duration_since(Instant::now()).min(TRIM_EVERY));
        // A segment that cannot be released is only kept.
        let _ = wal.trim(wal.durable_lsn());
    }
}

impl Report {
    /// As tables: a line per log, a column per number of workers; and where threads waited for cache lines.
    #[must_use]
    pub fn to_text(&self) -> String {
        simulated::text(&self.profile, &self.settings, &self.charts())
    }

    /// As a page with charts.
    #[must_use]
    pub fn to_html(&self) -> String {
        simulated::html("The log on a simulated machine", &self.profile, &self.settings, &self.charts())
    }

    fn charts(&self) -> Vec<Chart> {
        let figures = self.points.chunk_by(|a, b| (&a.device, a.updates) == (&b.device, b.updates));
        figures.map(chart).collect()
    }
}

/// A device and a kind of transactions.
fn chart(points: &[Point]) -> Chart {
    let (device, updates) = points.first().map_or(("", 0), |point| (point.device.as_str(), point.updates));
    let most = points.iter().map(|point| point.workers).max().unwrap_or(0);
    let greedy = Variant::Serial.name();
    let of_greedy = points.iter().find(|p| p.log == greedy && p.workers == most).map(|p| p.rate);
    let line = |points: &[Point]| {
        let last = points.last();
        let ratio = last.and_then(|last| Some(last.rate / of_greedy?));
        Line {
            name: last.map_or_else(String::new, |last| last.log.clone()),
            points: points.iter().map(|p| (p.workers, p.rate / 1e3)).collect(),
            note: ratio.map_or_else(String::new, |ratio| format!("{ratio:.2} of the greedy serial log")),
            waits: last.map_or_else(Vec::new, |p| {
                p.stalls.iter().map(|(place, us)| (format!("{us:>9.3}"), place.clone())).collect()
            }),
        }
    };
    Chart {
        title: format!("Thousand transactions of U-{updates} per second, device {device} (Fig. 7)"),
        axis: "workers".into(),
        decimals: 1,
        lines: points.chunk_by(|a, b| a.log == b.log).map(line).collect(),
        waits: "Where threads waited for cache lines, with most workers (microseconds per transaction)"
            .into(),
    }
}
