//! The paper's Figs 7 to 12 on a simulated machine: U-1 and U-10 on the log alone, and New-Order on the store
//! (`scale`), with as many workers as the machine has processors, and modeled devices in virtual time. In the
//! store the log writes greedily with every number of streams.
//!
//! The log is the shipped one with its own threads, and the workers are those of [`micro`]. Each worker and
//! each thread of the log has its own processor.
//!
//! **The log is prepared.** The measured log recycles segments: each of its blocks was written before the
//! run, as in a store with a log that has reached its size. The paper's log files are allocated before its
//! runs, and a run of some milliseconds ends before a stream has written one segment. A new log would be
//! measured while it fills its blocks (SEGMENT-5 of `azekura-wal`). It then writes each byte twice, which is
//! slowest on a device at its limit. On real machines, [`micro`] reaches the prepared state by its warm-up.

use azekura_base::sync::atomic::AtomicBool;
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
use crate::lab::steady::{self, Counter, Rule, Run, Span, Windows};
use crate::progress::Progress;
use crate::scale::{self, Scale, SharedLine, Work};

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
    /// Compared logs of the store with New-Order, on the first device; empty without this part.
    pub on_store: Vec<Variant>,
    /// Number of transactions that a worker may have in flight.
    pub window: usize,
    /// Cache lines with accesses that cost nothing extra.
    pub without: Vec<LineName>,
    /// Waits for the device end with a spin, as on real devices. Otherwise they use no processor time.
    pub spins: bool,
    /// Warm-up, windows and seeds of each point.
    pub rule: Rule,
}

/// Result of a log with one number of workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Name of the device.
    pub device: String,
    /// Name of the kind of transactions: U-1, U-10 or New-Order.
    pub workload: String,
    /// Name of the log.
    pub log: String,
    /// Number of workers.
    pub workers: usize,
    /// Transactions per second of virtual time: the median of the runs. A worker begins one when a commit
    /// has been acknowledged, if it has as many in flight as it may have.
    pub rate: f64,
    /// The runs with all seeds. The next fields are those of the run with the median rate.
    pub runs: Vec<Run>,
    /// MiB of log records per second of virtual time.
    pub record_mib_per_s: f64,
    /// Processor time of the worker per transaction, in nanoseconds; unknown on the store.
    pub worker_ns: Option<f64>,
    /// Mean bytes of a chunk, including those of the warm-up; unknown on the store.
    pub chunk_bytes: Option<usize>,
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

/// A window has at least twenty writes of the paper's serial log, which writes for 190 µs at a time.
const WINDOW: Duration = Duration::from_millis(4);
const WINDOWS: Windows = Windows { of_all: WINDOW, least: WINDOW };
/// Remark on the part with the store.
const ON_STORE: &str = "; New-Order: the store with 8 warehouses of 1/10, windows of `sim scale`, and logs \
    that write whenever there are records";
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
            on_store: Vec::new(),
            window: 64,
            without: Vec::new(),
            spins: false,
            rule: Rule::default(),
        }
    }

    /// Returns the settings of [`new`](Self::new) with one seed and shorter windows; the results are rough.
    #[must_use]
    pub fn quick(most: usize) -> Self {
        let rule = Rule { window: Some(WINDOW / 2), seeds: 1, ..Rule::default() };
        Self { rule, ..Self::new(most) }
    }

    /// Returns the settings of [`new`](Self::new) for U-1 and U-10 on three devices with parallel flushes:
    /// the paper's, one that reaches its limit later, and a current drive; and for New-Order on the first.
    #[must_use]
    pub fn on_parallel_devices(most: usize) -> Self {
        let devices = vec![DeviceModel::iodrive(), DeviceModel::iodrive_2x(), DeviceModel::plp()];
        let on_store = vec![Variant::StreamEach, Variant::OneStream, Variant::Serial];
        let mut lab = Self { devices, updates: vec![1, 10], on_store, ..Self::new(most) };
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
        let cells = (figures * self.logs.len() + self.on_store.len()) * self.workers.len();
        progress.begin("Simulating the log", cells as u64);
        let mut points = Vec::new();
        for (&device, &updates) in self.devices.iter().flat_map(|d| self.updates.iter().map(move |u| (d, u)))
        {
            for &(variant, group) in &self.logs {
                for &workers in &self.workers {
                    let (median, runs) = self.rule.point(|seed| {
                        self.run_of(self.micro(variant, workers, updates, seed), group, device)
                    })?;
                    points.push(Point { runs, ..median });
                    progress.at(points.len() as u64);
                }
            }
        }
        self.new_orders(&mut points, progress)?;
        Ok(Report {
            settings: format!(
                "{} transactions in flight for each worker; {}{}{}",
                self.window,
                self.rule.describe(WINDOWS),
                simulated::without(&self.without),
                if self.on_store.is_empty() { "" } else { ON_STORE }
            ),
            profile: self.profile.clone(),
            points,
        })
    }

    /// Adds the points of New-Order on the store.
    fn new_orders(&self, points: &mut Vec<Point>, progress: &Progress) -> Result<(), BenchError> {
        let Some(&device) = self.devices.first() else { return Ok(()) };
        let mut filled = None;
        for &log in &self.on_store {
            for &workers in &self.workers {
                let scale = Scale {
                    device,
                    log,
                    window: self.window,
                    without: self.without.clone(),
                    rule: self.rule,
                    ..Scale::new(self.profile.clone(), Work::NewOrder, vec![workers])
                };
                let filled = match &mut filled {
                    Some(filled) => filled,
                    none => none.insert(scale.fill()?),
                };
                points.push(on_store(scale::run::point(&scale, filled, workers)?, &scale));
                progress.at(points.len() as u64);
            }
        }
        Ok(())
    }

    /// Measures real workers with the first of the logs, on the first of the devices, after a warm-up of a
    /// quarter of `time`. Returns the transactions per second, and the processor time of a worker per
    /// transaction in nanoseconds.
    pub(crate) fn real(&self, workers: usize, time: Duration) -> Result<(f64, f64), BenchError> {
        let (Some(&(variant, group)), Some(&device), Some(&updates)) =
            (self.logs.first(), self.devices.first(), self.updates.first())
        else {
            return Ok((0.0, 0.0));
        };
        let micro = self.micro(variant, workers, updates, self.rule.seed);
        let measured = measure(micro, group, (device, true), Span::Fixed(time / 4, time))?;
        Ok((measured.run.rate, measured.worker_ns()))
    }

    const fn micro(&self, variant: Variant, workers: usize, updates: usize, seed: u64) -> Micro {
        // The counter ends the run, so it has no time.
        Micro { variant, workers, updates, window: Some(self.window), time: Duration::ZERO, seed }
    }

    /// Returns a run, and the point with its result.
    fn run_of(
        &self,
        micro: Micro,
        group: Option<usize>,
        device: DeviceModel,
    ) -> Result<(Run, Point), BenchError> {
        let Micro { variant, workers, updates, seed, .. } = micro;
        let (profile, on) = (Rc::new(self.profile.clone()), (device, self.spins));
        let span = self.rule.span(WINDOWS, workers);
        let processors = workers + writers(variant, workers) + FOR_THE_LOG;
        let processors = processors.min(profile.topology.processors());
        let mut simulation = Simulation::new(profile, processors, seed).without(&self.without);
        let done = Rc::new(Cell::new(None));
        let result = Rc::clone(&done);
        simulation.thread(move || result.set(Some(measure(micro, group, on, span))));
        let outcome = simulation.run().map_err(BenchError::Simulation)?;
        let measured = done.take().ok_or(BenchError::Panicked)??;
        let point = Point {
            device: device.name.into(),
            workload: format!("U-{updates}"),
            log: match group {
                None => variant.name(),
                Some(n) => format!("{}, {n} at a time", variant.name()),
            },
            workers,
            rate: measured.run.rate,
            runs: Vec::new(),
            // All transactions have the same bytes.
            record_mib_per_s: measured.run.rate * micro::transaction_bytes(updates) as f64
                / f64::from(1 << 20),
            worker_ns: Some(measured.worker_ns()),
            chunk_bytes: Some(measured.chunk_bytes),
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
        };
        Ok((measured.run, point))
    }
}

/// Returns the point of a run of New-Order.
fn on_store(point: scale::Point, scale: &Scale) -> Point {
    let us_per_op = point.processors as f64 * 1e6 / point.rate.max(f64::MIN_POSITIVE);
    let wait = |line: &SharedLine| (format!("{} of {}", line.field, line.module), line.share * us_per_op);
    Point {
        device: scale.device.name.into(),
        workload: "New-Order".into(),
        log: scale.log.store_name(),
        workers: point.processors,
        rate: point.rate,
        record_mib_per_s: point.log_mib_per_s,
        worker_ns: None,
        chunk_bytes: None,
        steps: point.steps,
        stalls: point.lines.iter().take(PLACES).map(wait).collect(),
        runs: point.runs,
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
    run: Run,
    all_commits: u64,
    /// Processor time of all workers, for `all_commits`.
    worker_time: Duration,
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
    span: Span,
) -> Result<Measured, BenchError> {
    let device = if spins { Device::spinning } else { Device::new }(DeviceModel::free());
    let fs: Arc<dyn Fs> = Arc::new(DeviceFs::on(Arc::new(MemFs::new()), Arc::clone(&device)));
    let mut options = micro.variant.wal_options(micro.workers);
    if let Some(group) = group {
        options.buffer_bytes = group * micro::transaction_bytes(micro.updates);
    }
    let wal = prepared(&fs, &options)?;
    device.change(model);
    let (pages, counter) = (Arc::new(Pages::default()), Counter::begin(span));
    let mut workers = Vec::new();
    for worker in 0..micro.workers {
        let (wal, pages, counter) = (Arc::clone(&wal), Arc::clone(&pages), counter.clone());
        workers.push(thread::spawn(move || {
            let mut counted = 0;
            // The counter counts transactions, so the worker does not.
            let counts = AtomicBool::new(false);
            let go_on = || counter.count(&mut counted);
            let worked = micro::work(&micro, &wal, &pages, worker, &counts, go_on);
            worked.map(|_| (counted, thread_time())) // the thread has done nothing else
        }));
    }
    while !counter.has_ended() {
        thread::sleep(TRIM_EVERY);
        // If the release of segments fails, they only remain in use.
        let _ = wal.trim(wal.durable_lsn());
    }
    let (mut counted, mut worker_time) = (0, Duration::ZERO);
    for worker in workers {
        let (operations, time) = worker.join().map_err(|_| BenchError::Panicked)??;
        counted += operations;
        worker_time += time;
    }
    wal.close().map_err(micro::failed("closing the log"))?;
    let stats = wal.stats();
    Ok(Measured {
        run: counter.run(micro.seed, counted),
        all_commits: stats.records / (2 + micro.updates as u64),
        worker_time,
        chunk_bytes: (stats.chunk_bytes / stats.chunks.max(1)) as usize,
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
        let figures = self.points.chunk_by(|a, b| (&a.device, &a.workload) == (&b.device, &b.workload));
        figures.flat_map(|points| [chart_of_rates(points), chart_of_bytes(points)]).collect()
    }
}

/// Returns the number of the paper's figure with these transactions; `unit` is 0 for their rates and 1 for
/// their bytes.
fn figure(workload: &str, unit: u8) -> String {
    let first = match workload {
        "U-1" => 7,
        "U-10" => 9,
        "New-Order" => 11,
        _ => return String::new(),
    };
    format!(" (Fig. {})", first + unit)
}

fn device_and_workload(points: &[Point]) -> (&str, &str) {
    points.first().map_or(("", ""), |point| (&point.device, &point.workload))
}

/// Returns the chart of the rates of one device and one kind of transactions.
fn chart_of_rates(points: &[Point]) -> Chart {
    let (device, workload) = device_and_workload(points);
    let most = points.iter().map(|point| point.workers).max().unwrap_or(0);
    let greedy = Variant::Serial.name(); // which is its name in the store, too
    let of_greedy = points.iter().find(|p| p.log == greedy && p.workers == most).map(|p| p.rate);
    let line = |points: &[Point]| {
        let last = points.last();
        let ratio = last.and_then(|last| Some(last.rate / of_greedy?));
        Line {
            name: last.map_or_else(String::new, |last| last.log.clone()),
            points: points.iter().map(|p| (p.workers, p.rate / 1e3)).collect(),
            spreads: points.iter().map(|p| steady::spread(&p.runs)).collect(),
            note: ratio.map_or_else(String::new, |ratio| format!("{ratio:.2} of the greedy serial log")),
            waits: last.map_or_else(Vec::new, |p| {
                p.stalls.iter().map(|(place, us)| (format!("{us:>9.3}"), place.clone())).collect()
            }),
        }
    };
    Chart {
        title: format!(
            "Thousand transactions of {workload} per second, device {device}{}",
            figure(workload, 0)
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
    let (device, workload) = device_and_workload(points);
    let line = |points: &[Point]| Line {
        name: points.first().map_or_else(String::new, |first| first.log.clone()),
        points: points.iter().map(|p| (p.workers, p.record_mib_per_s)).collect(),
        spreads: Vec::new(),
        note: String::new(),
        waits: Vec::new(),
    };
    Chart {
        title: format!("MiB of log records of {workload} per second, device {device}{}", figure(workload, 1)),
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
        let point = |workload: &str| Point {
            device: "iodrive".into(),
            workload: workload.into(),
            log: "paper".into(),
            workers: 16,
            rate: 400_000.0,
            runs: Vec::new(),
            record_mib_per_s: 715.5,
            worker_ns: None,
            chunk_bytes: Some(4096),
            steps: 1,
            stalls: vec![("log.rs:1".into(), 0.5)],
        };
        let points = ["U-1", "U-10", "New-Order"].map(point).to_vec();
        let text = Report { profile: Profile::two_sockets(), settings: "s".into(), points }.to_text();
        for number in 7..=12 {
            assert_eq!(text.matches(&format!("(Fig. {number})")).count(), 1, "{text}");
        }
        assert_eq!((text.matches("715.5").count(), text.matches("400.0").count()), (3, 3), "{text}");
        assert_eq!(text.matches("waited for cache lines").count(), 3, "{text}");
    }
}
