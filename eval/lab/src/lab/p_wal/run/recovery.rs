//! Figures of long writing and of recovery.

use std::time::Duration;

use super::super::goals;
use super::super::ground::Ground;
use super::super::long::Long;
use super::super::restart::{self, Filled, Way};
use super::{Into, Run, io_failed};
use crate::error::BenchError;
use crate::lab::figures::median;

impl Run<'_> {
    /// Measures long writing (Fig. 15).
    pub(super) fn long(&mut self, ground: &Ground) -> Result<(), BenchError> {
        let (time, sample, half_bytes) = self.lab.long;
        let writers = self.lab.workers.last().copied().unwrap_or(16);
        let name = format!("Writing for long, {}", ground.name());
        let note = format!(
            "Fig. 15: {writers} writers, each through two halves of {} MiB; with trim a half is discarded \
             when it is full. Through a file system the next write there has to allocate. A model does not \
             age.",
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

    /// Measures reading of logs (§4), and the store's restart.
    pub(super) fn restart(&mut self, ground: &Ground) -> Result<(), BenchError> {
        for &records in &self.lab.records {
            let name = format!("Reading a log of {records} records back, {}", ground.name());
            self.figure(
                &name,
                "§4: records of 156 bytes in so many streams, brought into order by the merge of Fig. 5 or \
                 by sorting all of them, and only looked at.",
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
            self.undo()?;
            self.restart_within()?;
        }
        Ok(())
    }

    /// Measures the part of a restart that undoes open transactions.
    fn undo(&mut self) -> Result<(), BenchError> {
        let name = "Undo at a restart, in memory";
        self.figure(
            name,
            "A store is killed while one transaction has changed so many rows of 100 bytes in random order; \
             its restart undoes them. A bound on restarts counts 100,000 a second.",
            "changes",
            "million changes per second",
        );
        for &records in &self.lab.records {
            let mut undone = Vec::new();
            for _ in 0..self.lab.runs {
                undone.push(restart::undo_at_restart(records / 4)?);
            }
            let rate = |run: &restart::Undone| run.changes as f64 / 1e6 / run.took.as_secs_f64();
            let Some((middle, spread)) = median(&mut undone, rate) else { continue };
            let (rate, ms) = (rate(middle), middle.took.as_secs_f64() * 1e3);
            let at = usize::try_from(middle.changes).unwrap_or(usize::MAX);
            self.point(Into { figure: name, series: "undo".into(), at }, (rate, spread), &[("ms", ms)]);
        }
        Ok(())
    }

    /// Measures a restart with a limit for its duration.
    fn restart_within(&mut self) -> Result<(), BenchError> {
        let setting = self.lab.recovery_time;
        let note = "A store in memory that is killed while it keeps its restart within a setting, by \
            checkpoints along the way.";
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
            "A killed store in memory, so without any device, comes back: rows of 100 bytes inserted in \
             random order, nothing in a checkpoint.",
            "log records",
            "million records per second",
        );
        self.progress.begin(name, self.lab.records.len() as u64);
        for (done, &records) in (1..).zip(&self.lab.records) {
            for (streams, redo_threads) in [(1, None), (4, None), (4, Some(1))] {
                let mut restarted = Vec::new();
                for _ in 0..self.lab.runs {
                    restarted.push(restart::restart_store(records / 2, streams, redo_threads)?);
                }
                let rate = |run: &restart::Restarted| run.records as f64 / 1e6 / run.took.as_secs_f64();
                let Some((middle, spread)) = median(&mut restarted, rate) else { continue };
                let (rate, ms) = (rate(middle), middle.took.as_secs_f64() * 1e3);
                let at = usize::try_from(middle.records).unwrap_or(usize::MAX);
                let series = format!("{streams} streams{}", redo_threads.map_or("", |_| goals::BY_ONE));
                let beside = [("ms", ms), (goals::PER_CPU, middle.rate_per_cpu() / 1e6)];
                self.point(Into { figure: name, series, at }, (rate, spread), &beside);
            }
            self.progress.at(done);
        }
        Ok(())
    }
}
