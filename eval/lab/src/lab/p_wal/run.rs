//! A run of the lab: part by part on each device, with the variants in turn.

mod on_log;
mod on_store;
mod recovery;

use std::collections::BTreeMap;

use super::goals;
use super::ground::{Choice, Ground};
use super::variant::Variant;
use super::{Lab, Part};
use crate::error::BenchError;
use crate::lab::figures::{Axis, Figure, Point, Report};
use crate::machine::Machine;
use crate::progress::Progress;

/// Name of an additional number of several figures: the median latency in microseconds.
const P50: &str = "p50 us";

impl Lab {
    /// Runs all parts on all devices.
    ///
    /// # Errors
    ///
    /// An error of files, logs or stores. [`BenchError::WrongAnswer`] or [`BenchError::Inconsistent`] if a
    /// store returns wrong data.
    pub fn run(&self, progress: &Progress) -> Result<Report, BenchError> {
        let names: Vec<&str> = self.devices.iter().map(Choice::name).collect();
        let settings = format!(
            "devices {}; {} transactions in flight for each worker; median of {} run(s) of {} ms; TPC-C with \
             {} warehouses at a scale of 1/{}",
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
                    Part::Clients => run.clients(&ground)?,
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

/// A running lab with its results so far.
struct Run<'l> {
    lab: &'l Lab,
    progress: &'l Progress,
    report: Report,
}

/// Position of a point: figure, series and position on the axis.
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

    /// Returns all combinations of a number of workers and a variant.
    fn cells(&self, variants: &[Variant]) -> Vec<(usize, Variant)> {
        let all = |&workers: &usize| variants.iter().map(move |&variant| (workers, variant));
        self.lab.workers.iter().flat_map(all).collect()
    }
}

fn io_failed(error: std::io::Error) -> BenchError {
    BenchError::io("using files of", "the lab")(error)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use azekura_io::device::DeviceModel;

    #[test]
    fn a_small_run_has_every_figure_on_both_kinds_of_device() {
        let dir = tempfile::tempdir().unwrap();
        let lab = Lab {
            devices: vec![Choice::Real, Choice::Model(DeviceModel::plp())],
            variants: vec![Variant::Paper, Variant::Ours],
            workers: vec![1, 2],
            clients: vec![1, 3],
            blocking: true,
            time: Duration::from_millis(4),
            records: vec![2_000],
            recovery_time: Duration::from_millis(4),
            tpcc_scale: (1, 100),
            long: (Duration::from_millis(20), Duration::from_millis(10), 64 << 10),
            ..Lab::quick(dir.path().into())
        };
        // TPC-C takes most of the time, so it runs on one device only.
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
        assert_eq!((count("Restart of"), count("Undo at"), count("Restart within")), (3, 1, 1));
        assert_eq!(count("A lone committer"), devices * 2);
        assert_eq!(count("Blocking clients"), devices * 2); // only our log; the paper's has groups
        // On two devices; the store's restart has one goal for redo and one for its setting.
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
