//! Figures of the device and of the log alone.

use std::collections::BTreeMap;
use std::time::Duration;

use azekura_baselines::ring_fs::RingReport;

use super::super::goals::{self, IN_FLIGHT, P99, RECORD_MIB};
use super::super::ground::{Ground, Site};
use super::super::lone::Lone;
use super::super::micro::{self, Micro, Pages};
use super::super::variant::{Pace, Variant};
use super::super::writes::{self, Written};
use super::{Into, P50, Run, io_failed};
use crate::error::BenchError;
use crate::lab::figures::median;
use crate::latency::Latencies;

impl Run<'_> {
    /// Measures synchronous writes (Fig. 3).
    pub(super) fn device(&mut self, ground: &Ground) -> Result<(), BenchError> {
        let name = format!("Synchronous writes, {}", ground.name());
        let note = match ground.device() {
            None => "Fig. 3 on this machine: each writer writes its own zero-written file, O_DIRECT and \
                RWF_DSYNC, one write after the other."
                .to_owned(),
            Some(device) => format!("Fig. 3 on a modeled device: {:?}", device.model()),
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

    /// Measures the latency of a commit without other committers.
    pub(super) fn lone(&mut self, ground: &Ground) -> Result<(), BenchError> {
        let name = format!("{}, {}", goals::LONE, ground.name());
        let note = "Transactions of three records, each waited for, one after the other, against synchronous \
            writes of 4 KiB in turns with them.";
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

    /// Returns the smallest direct write of this device, if it is larger than a byte.
    fn smallest_write(&self, site: &Site) -> Result<Option<usize>, BenchError> {
        let options = azekura_io::OpenOptions::new().create(true).direct(true);
        let file = site.fs.open(&site.dir.join("alignment"), options).map_err(io_failed)?;
        Ok(Some(file.alignment()).filter(|&alignment| alignment > 1))
    }

    /// Measures U-1 and U-10 on the log (Figs 7 to 10 and 13).
    pub(super) fn log(&mut self, ground: &Ground) -> Result<(), BenchError> {
        let pages = Pages::default();
        for updates in [1, 10] {
            let name = format!("U-{updates} on the log, {}", ground.name());
            let note = format!(
                "{} with the paper's records on the log alone. record and written MiB/s: without and with \
                 headers and padding; device %: of what the same number of writers gets from the device with \
                 chunks of the same size, measured right after; flush: until a transaction's own log was \
                 written; until its commit was known: the others. Each worker has at most {} in flight, with \
                 epochs 64 times as many.",
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
                    let micro = Micro { variant, workers, updates, window: Some(window), time, seed };
                    let site = ground.site_by(variant.is_by_ring()).map_err(io_failed)?;
                    let stretch = micro.run(&site, &pages)?;
                    if let Some(report) = site.ring_report() {
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

    /// Measures clients that wait for each commit, which the paper does not have.
    pub(super) fn clients(&mut self, ground: &Ground) -> Result<(), BenchError> {
        let name = format!("{}, {}", goals::CLIENTS, ground.name());
        let note = "U-1 with the paper's records on the log alone, each commit waited for before the next \
            transaction; as many log buffers as a store has. Of each commit: flushes, processor time, and \
            times that a thread went to sleep or was sent to.";
        self.figure(&name, note, "clients", "transactions per second");
        let greedy = |variant: &&Variant| variant.pace() == Pace::Greedy;
        let variants: Vec<Variant> = self.lab.variants.iter().filter(greedy).copied().collect();
        let of = |&clients: &usize| variants.iter().map(move |&variant| (clients, variant));
        let cells: Vec<(usize, Variant)> = self.lab.clients.iter().flat_map(of).collect();
        self.progress.begin(&name, (cells.len() * self.lab.runs) as u64);
        let pages = Pages::default();
        let mut runs: Vec<Vec<micro::Stretch>> = cells.iter().map(|_| Vec::new()).collect();
        let mut done = 0;
        for run in 0..self.lab.runs as u64 {
            for (&(workers, variant), runs) in cells.iter().zip(&mut runs) {
                let (time, seed) = (self.lab.time, self.lab.seed + run);
                let micro = Micro { variant, workers, updates: 1, window: None, time, seed };
                runs.push(micro.run(&ground.site().map_err(io_failed)?, &pages)?);
                done += 1;
                self.progress.at(done);
            }
        }
        for ((clients, variant), mut runs) in cells.into_iter().zip(runs) {
            let Some((stretch, spread)) = median(&mut runs, micro::Stretch::rate) else { continue };
            let per_commit = |count: f64| count / (stretch.committed.max(1)) as f64;
            let mut beside = vec![
                ("flushes", per_commit(stretch.log.flushes as f64)),
                ("cpu us", per_commit(stretch.usage.cpu.as_secs_f64() * 1e6)),
                ("streams", stretch.log.streams as f64),
                (P50, stretch.until_known.quantile_us(0.5)),
                (P99, stretch.until_known.quantile_us(0.99)),
            ];
            beside.extend(stretch.usage.switches.map(|switches| ("switches", per_commit(switches as f64))));
            self.point(
                Into { figure: &name, series: variant.name(), at: clients },
                (stretch.rate(), spread),
                &beside,
            );
        }
        Ok(())
    }

    /// Measures the device with chunks of the log's size and as many writers as the log has streams.
    fn ceiling(&self, ground: &Ground, stretch: &micro::Stretch) -> Result<Written, BenchError> {
        let site = ground.site().map_err(io_failed)?;
        let (writers, chunk) = (stretch.log.streams.max(1), stretch.chunk_bytes());
        ground.at_no_cost(|| writes::run(&site, writers, chunk, Duration::ZERO)).map_err(io_failed)?;
        writes::run(&site, writers, chunk, self.lab.time / 2).map_err(io_failed)
    }
}

/// Describes the methods of writing in the last run of a variant.
fn submitted_in_words(name: &str, report: &RingReport) -> String {
    let RingReport { by_ring, by_pwrite, atomic, fallbacks } = report;
    let mut words = format!(
        " {name}: {by_ring} writes by io_uring, {by_pwrite} by pwritev2, {atomic} atomic in its last run"
    );
    fallbacks.iter().for_each(|fallback| words.push_str(&format!("; {fallback}")));
    words + "."
}

fn beside_of(stretch: &micro::Stretch, ceiling: &Written) -> Vec<(&'static str, f64)> {
    let known = &stretch.until_known;
    let mut beside = vec![
        (RECORD_MIB, stretch.record_mib_per_s()),
        ("written MiB/s", stretch.written_mib_per_s()),
        (
            goals::DEVICE_SHARE,
            100.0 * stretch.written_mib_per_s() / ceiling.mib_per_s().max(f64::MIN_POSITIVE),
        ),
        ("streams", stretch.log.streams as f64),
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
        // Share of the latency after the worker's own log was written, spent waiting for other logs.
        beside
            .push(("wait share %", 100.0 * (1.0 - flush.mean_us() / known.mean_us().max(f64::MIN_POSITIVE))));
    }
    beside
}
