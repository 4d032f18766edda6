//! The paper's Figs 7 to 10 on a simulated machine: U-1 and U-10 on the log alone, with as many workers as
//! the machine has processors, and modeled devices in virtual time.
//!
//! The log is the shipped one with its own threads, and the workers are those of [`micro`]. Each worker and
//! each thread of the log has its own processor.
//!
//! **The log is prepared.** The measured log recycles segments: each of its blocks was written before the
//! run, as in a store with a log that has reached its size. The paper's log files are allocated before its
//! runs, and a run of some milliseconds ends before a stream has written one segment. A new log would be
//! measured while it fills its blocks (SEGMENT-5 of `azekura-wal`). It then writes each byte twice, which is
//! slowest on a device at its limit. On real machines, [`micro`] reaches the prepared state by its warm-up.

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
    /// The simulated machine.
    pub profile: Profile,
    /// Modeled devices.
    pub devices: Vec<DeviceModel>,
    /// Compared logs. With a number, the buffer has room for this number of transactions, so the log writes
    /// that many at a time.
    pub logs: Vec<(Variant, Option<usize>)>,
    /// Numbers of workers.
    pub workers: Vec<usize>,
    /// Numbers of updates in a transaction; each has a figure.
    pub updates: Vec<usize>,
    /// Number of transactions that a worker may have in flight.
    pub window: usize,
    /// Virtual time of the warm-up, and of the measurement.
    pub time: (Duration, Duration),
    /// Cache lines with accesses that cost nothing extra.
    pub without: Vec<LineName>,
    /// Waits for the device end with a spin, as on real devices. Otherwise they use no processor time.
    pub spins: bool,
    /// Seed of all random choices.
    pub seed: u64,
}

/// Result of a log with one number of workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Name of the device.
    pub device: String,
    /// Number of updates in a transaction.
    pub updates: usize,
    /// Name of the log.
    pub log: String,
    /// Number of workers.
    pub workers: usize,
    /// Transactions with acknowledged commits per second of virtual time.
    pub rate: f64,
    /// MiB of log records per second of virtual time.
    pub record_mib_per_s: f64,
    /// Processor time of the worker per transaction, in nanoseconds.
    pub worker_ns: f64,
    /// Mean bytes of a chunk.
    pub chunk_bytes: usize,
    /// Number of simulated accesses and iterations of spin loops.
    pub steps: u64,
    /// Places in the source where threads waited for cache lines, with microseconds per transaction.
    pub stalls: Vec<(String, f64)>,
}

/// Results of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The simulated machine.
    pub profile: Profile,
    /// The settings, as text.
    pub settings: String,
    /// Results for each device, log and number of workers.
    pub points: Vec<Point>,
}

/// Largest number of places in a point.
const PLACES: usize = 3;
/// Processors for the log's threads that write no stream: one prepares segments, one trims.
const FOR_THE_LOG: usize = 2;
/// Time for the preparation of segments, on a device without cost.
const PREPARES: Duration = Duration::from_millis(5);
const TRIM_EVERY: Duration = Duration::from_micros(500);

impl Simulated {
    /// Returns the settings for a two-socket machine with 1, 2, 4, … up to `most` workers and the paper's
    /// device.
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

    /// Returns the settings of [`new`](Self::new) for U-1 and U-10 on three devices with parallel flushes:
    /// the paper's, one that reaches its limit later, and a current drive.
    #[must_use]
    pub fn on_parallel_devices(most: usize) -> Self {
        let devices = vec![DeviceModel::iodrive(), DeviceModel::iodrive_2x(), DeviceModel::plp()];
        let mut lab = Self { devices, updates: vec![1, 10], ..Self::new(most) };
        lab.logs.insert(1, (Variant::StreamEach, None)); // one greedy stream for each worker
        lab
    }

    /// Runs all simulations.
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

    /// Measures real workers with the first of the logs, on the first of the devices. Returns the
    /// transactions per second, and the processor time of a worker per transaction in nanoseconds.
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
            record_mib_per_s: measured.record_bytes as f64 / f64::from(1 << 20) / time.1.as_secs_f64(),
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

/// Returns the number of the log's threads that write. If workers write their own streams, these threads
/// sleep, but one processor is reserved for them.
const fn writers(variant: Variant, workers: usize) -> usize {
    match (variant.pace(), variant.streams(workers)) {
        (Pace::Greedy | Pace::Unasked, Some(streams)) => streams,
        _ => 1,
    }
}

struct Measured {
    commits: u64,
    all_commits: u64,
    /// Processor time of all workers, for `all_commits`.
    worker_time: Duration,
    /// Bytes of log records in the measured time.
    record_bytes: u64,
    chunk_bytes: usize,
}

impl Measured {
    fn worker_ns(&self) -> f64 {
        self.worker_time.as_secs_f64() * 1e9 / self.all_commits.max(1) as f64
    }
}

/// Runs on the simulated machine: creates the log, runs the workers, and counts.
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
            (tally, thread_time()) // the thread has done nothing else
        }));
    }
    trim_until(&wal, until - measured);
    let before = wal.stats();
    // Relaxed, here and below: a worker may count one transaction more or less.
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
        record_bytes: after.record_bytes - before.record_bytes,
        chunk_bytes: ((after.chunk_bytes - before.chunk_bytes) / chunks) as usize,
    })
}

/// Creates a log on a device without cost. The log recycles the files of a previous log, so a stream writes
/// no new block in its first two segments. In a run, a stream of P-WAL writes less than that.
fn prepared(fs: &Arc<dyn Fs>, options: &WalOptions) -> Result<Arc<Wal>, BenchError> {
    let log = |incarnation, nothing_counts| {
        let identity = LogIdentity { database_id: 1, incarnation, first_lsn: Lsn(1) };
        let options = WalOptions { nothing_counts, ..options.clone() };
        let made = Wal::create(Arc::clone(fs), Path::new("/wal"), identity, options);
        let wal = made.map_err(micro::failed("making the log"))?;
        // Waits until the log's thread has prepared segments.
        thread::sleep(PREPARES);
        Ok::<_, BenchError>(wal)
    };
    log(1, false)?.close().map_err(micro::failed("closing the log"))?;
    log(2, true)
}

fn trim_until(wal: &Wal, end: Instant) {
    while Instant::now() < end {
        thread::sleep(end.saturating_duration_since(Instant::now()).min(TRIM_EVERY));
        // If the release of segments fails, they only remain in use.
        let _ = wal.trim(wal.durable_lsn());
    }
}

impl Report {
    /// Returns the results as tables: a line per log, a column per number of workers; and the waits for cache
    /// lines.
    #[must_use]
    pub fn to_text(&self) -> String {
        simulated::text(&self.profile, &self.settings, &self.charts())
    }

    /// Returns the results as an HTML page with charts.
    #[must_use]
    pub fn to_html(&self) -> String {
        simulated::html("The log on a simulated machine", &self.profile, &self.settings, &self.charts())
    }

    fn charts(&self) -> Vec<Chart> {
        let figures = self.points.chunk_by(|a, b| (&a.device, a.updates) == (&b.device, b.updates));
        figures.flat_map(|points| [chart_of_rates(points), chart_of_bytes(points)]).collect()
    }
}

/// Returns the number of the paper's figure with these transactions; `unit` is 0 for their rates and 1 for
/// their bytes.
fn figure(updates: usize, unit: u8) -> String {
    let first = match updates {
        1 => 7,
        10 => 9,
        _ => return String::new(),
    };
    format!(" (Fig. {})", first + unit)
}

/// Returns the chart of the rates of one device and one kind of transactions.
fn chart_of_rates(points: &[Point]) -> Chart {
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
            spreads: Vec::new(),
            note: ratio.map_or_else(String::new, |ratio| format!("{ratio:.2} of the greedy serial log")),
            waits: last.map_or_else(Vec::new, |p| {
                p.stalls.iter().map(|(place, us)| (format!("{us:>9.3}"), place.clone())).collect()
            }),
        }
    };
    Chart {
        title: format!(
            "Thousand transactions of U-{updates} per second, device {device}{}",
            figure(updates, 0)
        ),
        axis: "workers".into(),
        decimals: 1,
        lines: points.chunk_by(|a, b| a.log == b.log).map(line).collect(),
        waits: "Where threads waited for cache lines, with most workers (microseconds per transaction)"
            .into(),
    }
}

/// Returns the chart of the log records' bytes, without the headers and the padding of chunks.
fn chart_of_bytes(points: &[Point]) -> Chart {
    let (device, updates) = points.first().map_or(("", 0), |point| (point.device.as_str(), point.updates));
    let line = |points: &[Point]| Line {
        name: points.first().map_or_else(String::new, |first| first.log.clone()),
        points: points.iter().map(|p| (p.workers, p.record_mib_per_s)).collect(),
        spreads: Vec::new(),
        note: String::new(),
        waits: Vec::new(),
    };
    Chart {
        title: format!("MiB of log records of U-{updates} per second, device {device}{}", figure(updates, 1)),
        axis: "workers".into(),
        decimals: 1,
        lines: points.chunk_by(|a, b| a.log == b.log).map(line).collect(),
        waits: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_bytes_have_charts_with_the_numbers_of_the_papers_figures() {
        let point = |updates| Point {
            device: "iodrive".into(),
            updates,
            log: "paper".into(),
            workers: 16,
            rate: 400_000.0,
            record_mib_per_s: 715.5,
            worker_ns: 0.0,
            chunk_bytes: 4096,
            steps: 1,
            stalls: vec![("log.rs:1".into(), 0.5)],
        };
        let points = vec![point(1), point(10)];
        let text = Report { profile: Profile::two_sockets(), settings: "s".into(), points }.to_text();
        for number in 7..=10 {
            assert_eq!(text.matches(&format!("(Fig. {number})")).count(), 1, "{text}");
        }
        assert_eq!((text.matches("715.5").count(), text.matches("400.0").count()), (2, 2), "{text}");
        assert_eq!(text.matches("waited for cache lines").count(), 2, "{text}");
    }
}
