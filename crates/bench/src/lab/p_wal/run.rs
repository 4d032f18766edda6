//! A run of the lab: part by part on each device, variants in turns.

use std::collections::BTreeMap;
use std::time::Duration;

use azekura_io::submit::SubmitReport;
use azekura_workload::tpcc::{Mix, Scale};

use super::goals;
use super::ground::{Choice, Ground};
use super::lone::Lone;
use super::long::Long;
use super::micro::{self, Micro, Pages};
use super::restart::{self, Filled, Way};
use super::store::{self, Tpcc, Updates};
use super::variant::Variant;
use super::writes::{self, Written};
use super::{Lab, Part};
use crate::error::BenchError;
use crate::lab::figures::{Axis, Figure, Point, Report, median};
use crate::latency::Latencies;
use crate::machine::Machine;
use crate::progress::Progress;

/// Columns that several figures have.
const P50: &str = "p50 us";
const P99: &str = "p99 us";
const IN_FLIGHT: &str = "in flight";

impl Lab {
    /// Runs all of it.
    ///
    /// # Errors
    ///
    /// What files, logs and stores say; [`BenchError::WrongAnswer`] and [`BenchError::Inconsistent`] if one of them is wrong.
    pub fn run(&self, progress: &Progress) -> Result<Report, BenchError> {
        let names: Vec<&str> = self.devices.iter().map(Choice::name).collect();
        let settings = format!(
            "devices {}; {} transactions in flight for each worker; median of {} run(s) of {} ms; TPC-C with {} warehouses at a scale of 1/{}",
            names.join(", "),
            self.window,
            self.runs,
            self.time.as_millis(),
            self.tpcc_scale.0,
            self.tpcc_scale.1,
        );
        let machine = Machine::here(&self.dir);
        let mut run = Run { lab: self, progress, report: Report::new("P-WAL", machine, settings) };
        for &choice in &self.devices {
            let ground = Ground::new(choice, &self.dir);
            for &part in &self.parts {
                match part {
                    Part::Device => run.device(&ground)?,
                    Part::Lone => run.lone(&ground)?,
                    Part::Log => run.log(&ground)?,
                    Part::Store => run.store(&ground)?,
                    Part::Tpcc => run.tpcc(&ground)?,
                    Part::Long => run.long(&ground)?,
                    Part::Restart => run.restart(&ground)?,
                }
            }
        }
        run.report.goals = goals::of(&run.report);
        run.report.date = crate::machine::utc_now();
        Ok(run.report)
    }
}

/// A lab under way.
struct Run<'l> {
    lab: &'l Lab,
    progress: &'l Progress,
    report: Report,
}

/// One figure's place for points.
struct Into<'f> {
    figure: &'f str,
    series: String,
    at: usize,
}

impl Run<'_> {
    fn figure(&mut self, name: &str, note: &str, axis: &str, unit: &str) {
        let spacing = if axis.starts_with("ms") { Axis::Even } else { Axis::Doubling };
        let (name, note, axis, unit) = (name.into(), note.into(), axis.into(), unit.into());
        self.report.figures.push(Figure { name, note, axis, spacing, unit });
    }

    fn point(&mut self, place: Into<'_>, (value, spread): (f64, f64), beside: &[(&str, f64)]) {
        self.report.points.push(Point {
            figure: place.figure.into(),
            series: place.series,
            at: place.at,
            value,
            spread,
            runs: self.lab.runs,
            beside: beside.iter().map(|&(name, value)| (name.to_owned(), value)).collect::<BTreeMap<_, _>>(),
        });
    }

    /// Fig. 3.
    fn device(&mut self, ground: &Ground) -> Result<(), BenchError> {
        let name = format!("Synchronous writes, {}", ground.name());
        let note = match ground.device() {
            None => "Fig. 3 on this machine: each writer writes its own zero-written file, O_DIRECT and RWF_DSYNC, \
                     one write after the other."
                .to_owned(),
            Some(device) => format!("Fig. 3 on a modelled device: {:?}", device.model()),
        };
        self.figure(&name, &note, "bytes", "MiB per second");
        let cells: Vec<(usize, usize)> =
            self.lab.workers.iter().flat_map(|&w| self.lab.io_bytes.iter().map(move |&io| (w, io))).collect();
        self.progress.begin(&name, cells.len() as u64);
        for (done, &(writers, io_bytes)) in (1..).zip(&cells) {
            let site = ground.site().map_err(io_failed)?;
            if let Some(refused) = self.smallest_write(&site)?
                && io_bytes < refused
            {
                continue;
            }
            ground.at_no_cost(|| writes::run(&site, writers, io_bytes, Duration::ZERO)).map_err(io_failed)?;
            let written = writes::run(&site, writers, io_bytes, self.lab.time / 3).map_err(io_failed)?;
            let latencies = &written.latencies;
            let beside = [
                ("writes per s", latencies.count() as f64 / written.seconds),
                (P50, latencies.quantile_us(0.5)),
                (P99, latencies.quantile_us(0.99)),
            ];
            let plural = if writers == 1 { "" } else { "s" };
            let place = Into { figure: &name, series: format!("{writers} writer{plural}"), at: io_bytes };
            self.point(place, (written.mib_per_s(), 0.0), &beside);
            self.progress.at(done);
        }
        Ok(())
    }

    /// What a commit takes when nobody else commits.
    fn lone(&mut self, ground: &Ground) -> Result<(), BenchError> {
        let name = format!("{}, {}", goals::LONE, ground.name());
        let note = "Transactions of three records, each waited for, one after the other, against synchronous writes of 4 KiB in turns with them.";
        self.figure(&name, note, "committers", "microseconds, median");
        self.progress.begin(&name, self.lab.runs as u64);
        let mut runs = Vec::new();
        for done in 1..=self.lab.runs as u64 {
            let site = ground.site().map_err(io_failed)?;
            ground.at_no_cost(|| writes::run(&site, 1, 4096, Duration::ZERO)).map_err(io_failed)?;
            runs.push(Lone::run(&site, self.lab.time)?);
            self.progress.at(done);
        }
        let Some((lone, spread)) = median(&mut runs, Lone::ratio) else { return Ok(()) };
        for (series, latencies, ratio) in
            [("write", &lone.writes, None), ("commit", &lone.commits, Some(lone.ratio()))]
        {
            let mut beside = vec![(P99, latencies.quantile_us(0.99))];
            beside.extend(ratio.map(|ratio| (goals::OVER_WRITE, ratio)));
            let place = Into { figure: &name, series: series.into(), at: 1 };
            self.point(place, (latencies.quantile_us(0.5), spread), &beside);
        }
        Ok(())
    }

    /// The least that a direct write of this device may have, if it is more than a byte.
    fn smallest_write(&self, site: &super::ground::Site) -> Result<Option<usize>, BenchError> {
        let options = azekura_io::OpenOptions::new().create(true).direct(true);
        let file = site.fs.open(&site.dir.join("alignment"), options).map_err(io_failed)?;
        Ok(Some(file.alignment()).filter(|&alignment| alignment > 1))
    }

    /// Figs 7 to 10 and 13.
    fn log(&mut self, ground: &Ground) -> Result<(), BenchError> {
        let pages = Pages::default();
        for updates in [1, 10] {
            let name = format!("U-{updates} on the log, {}", ground.name());
            let note = format!(
                "{} with the paper's records on the log alone. record and written MiB/s: without and with headers and padding; device %: of \
                 what the same number of writers gets from the device with chunks of the same size, measured right after; flush: until \
                 a transaction's own log was written; until its commit was known: the others. Each worker has at most {} in flight, with epochs 64 times as many.",
                if updates == 1 { "Figs 7, 8, 13: U-1" } else { "Figs 9, 10: U-10" },
                self.lab.window,
            );
            self.figure(&name, &note, "workers", "transactions per second");
            let mut variants = self.lab.variants.clone();
            let plus = Variant::PLUS.iter().filter(|plus| self.lab.variants.contains(&plus.without_plus()));
            if ground.device().is_none() {
                variants.extend(plus);
            }
            let cells = self.cells(&variants);
            self.progress.begin(&name, (cells.len() * self.lab.runs) as u64);
            let mut submitted = BTreeMap::new();
            let mut runs: Vec<Vec<(micro::Stretch, Written)>> = cells.iter().map(|_| Vec::new()).collect();
            let mut done = 0;
            for run in 0..self.lab.runs as u64 {
                for (&(workers, variant), runs) in cells.iter().zip(&mut runs) {
                    let (window, time, seed) = (self.lab.window, self.lab.time, self.lab.seed + run);
                    let micro = Micro { variant, workers, updates, window, time, seed };
                    let site = ground.site_by(variant.way()).map_err(io_failed)?;
                    let stretch = micro.run(&site, &pages)?;
                    if let Some(report) = site.submit_report() {
                        submitted.insert(variant.name(), report);
                    }
                    runs.push((stretch.clone(), self.ceiling(ground, &stretch)?));
                    done += 1;
                    self.progress.at(done);
                }
            }
            if let Some(figure) = self.report.figures.last_mut() {
                submitted
                    .iter()
                    .for_each(|(name, report)| figure.note.push_str(&submitted_in_words(name, report)));
            }
            for ((workers, variant), mut runs) in cells.into_iter().zip(runs) {
                let Some(((stretch, ceiling), spread)) = median(&mut runs, |run| run.0.rate()) else {
                    continue;
                };
                let place = Into { figure: &name, series: variant.name(), at: workers };
                self.point(place, (stretch.rate(), spread), &beside_of(stretch, ceiling));
            }
        }
        Ok(())
    }

    /// What the device does with chunks of the log's size by as many writers as the log has streams.
    fn ceiling(&self, ground: &Ground, stretch: &micro::Stretch) -> Result<Written, BenchError> {
        let site = ground.site().map_err(io_failed)?;
        let (writers, chunk) = (stretch.log.streams_in_use.max(1), stretch.chunk_bytes());
        ground.at_no_cost(|| writes::run(&site, writers, chunk, Duration::ZERO)).map_err(io_failed)?;
        writes::run(&site, writers, chunk, self.lab.time / 2).map_err(io_failed)
    }

    fn cells(&self, variants: &[Variant]) -> Vec<(usize, Variant)> {
        let all = |&workers: &usize| variants.iter().map(move |&variant| (workers, variant));
        self.lab.workers.iter().flat_map(all).collect()
    }

    /// U-1 and U-10 on the store.
    fn store(&mut self, ground: &Ground) -> Result<(), BenchError> {
        let updates = Updates::fill(ground)?;
        for of in [1, 10] {
            let name = format!("U-{of} on the store, {}", ground.name());
            let note = "65,536 rows of 4 bytes, updated through tree and lock table; the store's own compact records.";
            self.figure(&name, note, "workers", "transactions per second");
            self.on_the_store(&name, self.lab.time, &mut |cell| updates.run(cell, of))?;
        }
        Ok(())
    }

    /// Figs 11, 12 and 14.
    fn tpcc(&mut self, ground: &Ground) -> Result<(), BenchError> {
        let (warehouses, divisor) = self.lab.tpcc_scale;
        let scale = Scale::reduced(warehouses, divisor);
        let tpcc = Tpcc::load(ground, scale, self.lab.seed, self.progress)?;
        for (mix, name, note) in [
            (Mix::NewOrder, "New-Order", "Figs 11, 12, 14: New-Order alone, without rollbacks."),
            (Mix::Full, "TPC-C", "Past the paper: all five transactions in the specification's mix."),
        ] {
            let name = format!("{name}, {}", ground.name());
            self.figure(&name, note, "workers", "transactions per second");
            self.on_the_store(&name, 2 * self.lab.time, &mut |cell| tpcc.run(cell, mix))?;
        }
        tpcc.check(ground, self.progress)
    }

    /// Every variant that the store has, blocking and pipelined, in turns.
    fn on_the_store(
        &mut self,
        figure: &str,
        time: Duration,
        measure: &mut dyn FnMut(&store::Cell) -> Result<store::Stretch, BenchError>,
    ) -> Result<(), BenchError> {
        let mut cells = Vec::new();
        for (workers, variant) in self.cells(&self.lab.variants) {
            let blocking = self.lab.blocking.then_some(None);
            for window in blocking.into_iter().chain([Some(self.lab.window)]) {
                let window = window.map(|window| variant.window(window));
                cells.push(store::Cell { variant, workers, window, time, seed: self.lab.seed });
            }
        }
        self.progress.begin(figure, (cells.len() * self.lab.runs) as u64);
        let mut runs: Vec<Vec<store::Stretch>> = cells.iter().map(|_| Vec::new()).collect();
        let mut done = 0;
        for run in 0..self.lab.runs as u64 {
            for (cell, runs) in cells.iter().zip(&mut runs) {
                runs.push(measure(&store::Cell { seed: cell.seed + run, ..*cell })?);
                done += 1;
                self.progress.at(done);
            }
        }
        for (cell, mut runs) in cells.iter().zip(runs) {
            let Some((stretch, spread)) = median(&mut runs, |run| run.rate) else { continue };
            let manner = if cell.window.is_some() { "pipelined" } else { "blocking" };
            let series = format!("{}, {manner}", cell.variant.store_name());
            let latencies = &stretch.latencies;
            let beside = [
                ("record MiB/s", stretch.log_mib_per_s),
                (IN_FLIGHT, stretch.rate * latencies.mean_us() / 1e6),
                (P50, latencies.quantile_us(0.5)),
                (P99, latencies.quantile_us(0.99)),
            ];
            let (rate, streams) = (stretch.rate, stretch.streams as f64);
            let beside =
                if streams > 0.0 { [&beside[..], &[("streams", streams)]].concat() } else { beside.to_vec() };
            self.point(Into { figure, series, at: cell.workers }, (rate, spread), &beside);
        }
        Ok(())
    }

    /// Fig. 15.
    fn long(&mut self, ground: &Ground) -> Result<(), BenchError> {
        let (time, sample, half_bytes) = self.lab.long;
        let writers = self.lab.workers.last().copied().unwrap_or(16);
        let name = format!("Writing for long, {}", ground.name());
        let note = format!(
            "Fig. 15: {writers} writers, each through two halves of {} MiB; with trim a half is discarded when it is full. Through a file \
             system the next write there has to allocate. A model does not age.",
            half_bytes >> 20
        );
        self.figure(&name, &note, "ms since the start", "MiB per second");
        self.progress.begin(&name, 4);
        let mut done = 0;
        for io_bytes in [8 << 10, 128 << 10] {
            for trim in [false, true] {
                let site = ground.site().map_err(io_failed)?;
                let long = Long { writers, io_bytes, half_bytes, trim, time, sample };
                let curve = match long.run(&site) {
                    Err(error) if trim && error.kind() == std::io::ErrorKind::Unsupported => continue,
                    curve => curve.map_err(io_failed)?,
                };
                let series = format!("{} KiB, {}", io_bytes >> 10, if trim { "trim" } else { "no trim" });
                for (at, mib) in curve.samples {
                    self.point(Into { figure: &name, series: series.clone(), at }, (mib, 0.0), &[]);
                }
                done += 1;
                self.progress.at(done);
            }
        }
        Ok(())
    }

    /// §4, and the store's restart.
    fn restart(&mut self, ground: &Ground) -> Result<(), BenchError> {
        for &records in &self.lab.records {
            let name = format!("Reading a log of {records} records back, {}", ground.name());
            self.figure(
                &name,
                "§4: records of 156 bytes in so many streams, brought into order by the merge of Fig. 5 or by sorting all of them, and only looked at.",
                "streams",
                "million records per second",
            );
            self.progress.begin(&name, self.lab.workers.len() as u64);
            for (done, &streams) in (1..).zip(&self.lab.workers) {
                let filled = Filled::fill(ground, streams, records)?;
                let mut took = [Vec::new(), Vec::new()];
                for _ in 0..self.lab.runs {
                    for (way, took) in [Way::Merge, Way::Sort].into_iter().zip(&mut took) {
                        took.push(filled.read(way)?);
                    }
                }
                for (series, mut took) in ["merge", "sort"].into_iter().zip(took) {
                    let rate = |took: &Duration| records as f64 / 1e6 / took.as_secs_f64();
                    let Some((middle, spread)) = median(&mut took, rate) else { continue };
                    let (rate, ms) = (rate(middle), middle.as_secs_f64() * 1e3);
                    let place = Into { figure: &name, series: series.into(), at: streams };
                    self.point(place, (rate, spread), &[("ms", ms)]);
                }
                self.progress.at(done);
            }
        }
        if ground.device().is_none() {
            self.restart_store()?;
            self.restart_within()?;
        }
        Ok(())
    }

    /// How long a restart takes that is to take no longer than a setting.
    fn restart_within(&mut self) -> Result<(), BenchError> {
        let setting = self.lab.recovery_time;
        let note = "A store in memory that is killed while it keeps its restart within a setting, by checkpoints along the way.";
        self.figure(goals::BOUND, note, "log records", "seconds");
        let restarted = restart::restart_within(setting)?;
        let (took, asked) = (restarted.took.as_secs_f64(), setting.as_secs_f64());
        let at = usize::try_from(restarted.records).unwrap_or(usize::MAX);
        let series = format!("{asked} s asked for");
        self.point(
            Into { figure: goals::BOUND, series, at },
            (took, 0.0),
            &[(goals::OVER_SETTING, took / asked)],
        );
        Ok(())
    }

    fn restart_store(&mut self) -> Result<(), BenchError> {
        let name = goals::RESTART;
        self.figure(
            name,
            "A killed store in memory, so without any device, comes back: rows of 100 bytes inserted in random order, nothing in a checkpoint.",
            "log records",
            "million records per second",
        );
        self.progress.begin(name, self.lab.records.len() as u64);
        for (done, &records) in (1..).zip(&self.lab.records) {
            for streams in [1, 4] {
                let mut restarted = Vec::new();
                for _ in 0..self.lab.runs {
                    restarted.push(restart::restart_store(records / 2, streams)?);
                }
                let rate = |run: &restart::Restarted| run.records as f64 / 1e6 / run.took.as_secs_f64();
                let Some((middle, spread)) = median(&mut restarted, rate) else { continue };
                let (rate, ms) = (rate(middle), middle.took.as_secs_f64() * 1e3);
                let at = usize::try_from(middle.records).unwrap_or(usize::MAX);
                let place = Into { figure: name, series: format!("{streams} streams"), at };
                self.point(
                    place,
                    (rate, spread),
                    &[("ms", ms), (goals::PER_CPU, middle.rate_per_cpu() / 1e6)],
                );
            }
            self.progress.at(done);
        }
        Ok(())
    }
}

fn io_failed(error: std::io::Error) -> BenchError {
    BenchError::io("using files of", "the lab")(error)
}

/// Which way writes went, in the last run of a variant.
fn submitted_in_words(name: &str, report: &SubmitReport) -> String {
    let SubmitReport { by_ring, by_pwrite, atomic, fallbacks } = report;
    let mut words = format!(
        " {name}: {by_ring} writes by io_uring, {by_pwrite} by pwritev2, {atomic} atomic in its last run"
    );
    fallbacks.iter().for_each(|fallback| words.push_str(&format!("; {fallback}")));
    words + "."
}

fn beside_of(stretch: &micro::Stretch, ceiling: &Written) -> Vec<(&'static str, f64)> {
    let known = &stretch.until_known;
    let mut beside = vec![
        ("record MiB/s", stretch.record_mib_per_s()),
        ("written MiB/s", stretch.written_mib_per_s()),
        (
            goals::DEVICE_SHARE,
            100.0 * stretch.written_mib_per_s() / ceiling.mib_per_s().max(f64::MIN_POSITIVE),
        ),
        ("streams", stretch.log.streams_in_use as f64),
        ("chunk KiB", stretch.chunk_bytes() as f64 / 1024.0),
        (IN_FLIGHT, stretch.in_flight()),
        (P50, known.quantile_us(0.5)),
        (P99, known.quantile_us(0.99)),
        ("p99.9 us", known.quantile_us(0.999)),
    ];
    let flush: &Latencies = &stretch.until_flush;
    if flush.count() > 0 {
        beside.push(("flush p50 us", flush.quantile_us(0.5)));
        beside.push(("flush p99 us", flush.quantile_us(0.99)));
        // R13: what is left of the latency once the own log is written.
        beside
            .push(("wait share %", 100.0 * (1.0 - flush.mean_us() / known.mean_us().max(f64::MIN_POSITIVE))));
    }
    beside
}

#[cfg(test)]
mod tests {
    use super::*;
    use azekura_io::device::DeviceModel;

    #[test]
    fn a_small_run_has_every_figure_on_both_kinds_of_device() {
        let dir = tempfile::tempdir().unwrap();
        let lab = Lab {
            devices: vec![Choice::Real, Choice::Model(DeviceModel::plp())],
            variants: vec![Variant::Paper, Variant::Ours],
            workers: vec![1, 2],
            blocking: true,
            time: Duration::from_millis(4),
            records: vec![2_000],
            recovery_time: Duration::from_millis(4),
            tpcc_scale: (1, 100),
            long: (Duration::from_millis(20), Duration::from_millis(10), 64 << 10),
            ..Lab::quick(dir.path().into())
        };
        // TPC-C takes most of the time; once is enough.
        let tpcc =
            Lab { devices: vec![Choice::Model(DeviceModel::plp())], parts: vec![Part::Tpcc], ..lab.clone() };
        let lab = Lab { parts: Part::ALL.into_iter().filter(|&part| part != Part::Tpcc).collect(), ..lab };
        let mut report = lab.run(&Progress::hidden()).unwrap();
        let of_tpcc = tpcc.run(&Progress::hidden()).unwrap();
        report.figures.extend(of_tpcc.figures);
        report.points.extend(of_tpcc.points);
        let count = |what: &str| report.points.iter().filter(|p| p.figure.starts_with(what)).count();
        let devices = 2;
        assert_eq!(count("Synchronous"), devices * 2 * 3);
        let on_logs = 2 * (devices * 2 + 1);
        assert_eq!((count("U-1 on the log"), count("U-10 on the log")), (on_logs, on_logs));
        assert_eq!(count("U-1 on the store"), devices * 2 * 2 * 2);
        assert_eq!(count("New-Order"), 2 * 2 * 2);
        assert_eq!(count("TPC-C"), 2 * 2 * 2);
        assert!(count("Writing for long") >= 4);
        assert_eq!(count("Reading a log"), devices * 2 * 2);
        assert_eq!((count("Restart of"), count("Restart within")), (2, 1));
        assert_eq!(count("A lone committer"), devices * 2);
        // On two devices; and of the store's restart one for redo and one for the setting.
        let goals = |name: &str| report.goals.iter().filter(|goal| goal.name.contains(name)).count();
        assert_eq!((goals("over a write"), goals("of the device")), (devices, 2 * devices));
        assert_eq!((goals("redone"), goals("its setting")), (1, 1));
        for point in &report.points {
            assert!(report.figures.iter().any(|figure| figure.name == point.figure), "{point:?}");
            assert!(point.value.is_finite() && point.value >= 0.0, "{point:?}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    }
}
