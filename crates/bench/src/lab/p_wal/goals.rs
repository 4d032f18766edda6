//! What the log is to reach, judged by the figures of the same run.
//!
//! | goal | of which figure |
//! |---|---|
//! | a lone committer takes at most 1.2 writes | [`LONE`] |
//! | never below 0.95 of our own serial log, with the same work in flight | the log's and the store's |
//! | at least twice the serial log where flushes are parallel, with 16 workers | the log's on the modelled ioDrive |
//! | at least 90 % of what the device does with such chunks from so many writers | the log's, most workers |
//! | a million records redone per second of a processor | [`RESTART`] |
//! | a restart takes no longer than the setting | [`BOUND`] |
//!
//! A goal whose figure was not measured is left out.

use super::variant::Variant;
use crate::lab::figures::{Goal, Point, Report};

/// What figures are called, up to the device's name.
pub(super) const LONE: &str = "A lone committer";
pub(super) const CLIENTS: &str = "Blocking clients on the log";
pub(super) const RESTART: &str = "Restart of the store, in memory";
pub(super) const BOUND: &str = "Restart within a setting";
/// Columns.
pub(super) const OVER_WRITE: &str = "over a write";
pub(super) const DEVICE_SHARE: &str = "device %";
pub(super) const PER_CPU: &str = "M per cpu s";
pub(super) const OVER_SETTING: &str = "over the setting";

/// Workers for which the paper's comparisons are.
const MANY: usize = 16;
/// The modelled device whose flushes are parallel.
const PARALLEL_DEVICE: &str = ", iodrive";

/// Judges a report.
pub(super) fn of(report: &Report) -> Vec<Goal> {
    let points = &report.points;
    let mut goals = Vec::new();
    for point in with(points, LONE, OVER_WRITE) {
        goals.push(Goal::at_most("median commit over a write of 4 KiB", 1.2, point.0, place(point.1)));
    }
    goals.extend(worst_against_serial(points));
    goals.extend(where_flushes_are_parallel(points));
    goals.extend(share_of_the_device(points));
    let of_restart = with(points, RESTART, PER_CPU).max_by(|a, b| a.0.total_cmp(&b.0));
    goals.extend(of_restart.map(|(rate, point)| {
        Goal::at_least("million records redone per second of a processor", 1.0, rate, place(point))
    }));
    for (over, point) in with(points, BOUND, OVER_SETTING) {
        goals.push(Goal::at_most("restart over its setting", 1.0, over, place(point)));
    }
    goals
}

fn place(point: &Point) -> String {
    format!("{}; {}, {}", point.figure, point.series, point.at)
}

/// Points of figures whose names begin so, with one of their other numbers.
fn with<'p>(points: &'p [Point], figure: &'p str, column: &'p str) -> impl Iterator<Item = (f64, &'p Point)> {
    let of = points.iter().filter(move |point| point.figure.starts_with(figure));
    of.filter_map(move |point| point.beside.get(column).map(|&value| (value, point)))
}

/// Each point of our log with that of the serial one at the same place, in the same manner.
fn against_serial(points: &[Point]) -> impl Iterator<Item = (f64, &Point)> {
    let names = [
        (Variant::Ours.name(), Variant::Serial.name()),
        (Variant::Ours.store_name(), Variant::Serial.name()),
    ];
    let serial_of = move |ours: &Point| {
        let name =
            names.iter().find_map(|(ours_is, serial)| Some((ours.series.strip_prefix(&**ours_is)?, serial)));
        let (manner, serial) = name?;
        let series = format!("{serial}{manner}");
        points.iter().find(|p| p.figure == ours.figure && p.at == ours.at && p.series == series)
    };
    points.iter().filter_map(move |ours| Some((ours.value / serial_of(ours)?.value, ours)))
}

fn worst_against_serial(points: &[Point]) -> Option<Goal> {
    let worst = against_serial(points).min_by(|a, b| a.0.total_cmp(&b.0));
    worst.map(|(ratio, point)| Goal::at_least("the least over our serial log", 0.95, ratio, place(point)))
}

fn where_flushes_are_parallel(points: &[Point]) -> Vec<Goal> {
    let is_meant = |point: &Point| {
        point.at == MANY
            && point.figure.starts_with("U-")
            && point.figure.contains(" on the log")
            && point.figure.ends_with(PARALLEL_DEVICE)
    };
    let meant = against_serial(points).filter(|(_, point)| is_meant(point));
    meant.map(|(ratio, point)| Goal::at_least("over our serial log", 2.0, ratio, place(point))).collect()
}

/// Our log's share at the most workers, for each workload on each device.
fn share_of_the_device(points: &[Point]) -> Vec<Goal> {
    let ours = Variant::Ours.name();
    let mut goals: Vec<(f64, &Point)> = Vec::new();
    for (share, point) in with(points, "U-", DEVICE_SHARE).filter(|(_, point)| point.series == ours) {
        match goals.iter_mut().find(|(_, most)| most.figure == point.figure) {
            Some(most) if most.1.at < point.at => *most = (share, point),
            Some(_) => {}
            None => goals.push((share, point)),
        }
    }
    let judged = |(share, point)| Goal::at_least("percent of the device", 90.0, share, place(point));
    goals.into_iter().map(judged).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    fn point(figure: &str, series: String, at: usize, value: f64, beside: &[(&str, f64)]) -> Point {
        let beside = beside.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        Point { figure: figure.into(), series, at, value, spread: 0.0, runs: 1, beside }
    }

    fn judged(points: Vec<Point>) -> Vec<(f64, bool)> {
        let machine = Machine::here(std::path::Path::new("."));
        let report = Report { points, ..Report::new("t", machine, String::new()) };
        of(&report).iter().map(|goal| (goal.reached, goal.holds)).collect()
    }

    #[test]
    fn nothing_measured_is_nothing_judged() {
        assert_eq!(judged(vec![point("Synchronous writes, real", "1 writer".into(), 4096, 9.0, &[])]), []);
    }

    #[test]
    fn our_log_is_judged_by_the_serial_one_at_the_same_place() {
        let (ours, serial) = (Variant::Ours.name(), Variant::Serial.name());
        let figure = "U-1 on the log, iodrive";
        let share = [(DEVICE_SHARE, 95.0)];
        let points = vec![
            point(figure, ours.clone(), 16, 210.0, &share),
            point(figure, serial.clone(), 16, 100.0, &[(DEVICE_SHARE, 10.0)]),
            point(figure, ours, 1, 90.0, &[(DEVICE_SHARE, 20.0)]),
            point(figure, serial, 1, 100.0, &[]),
        ];
        // The least ratio, that at 16 workers, and the share there.
        assert_eq!(judged(points), [(0.9, false), (2.1, true), (95.0, true)]);
    }

    #[test]
    fn the_store_is_judged_manner_by_manner() {
        let blocking = |name: String| format!("{name}, blocking");
        let pipelined = |name: String| format!("{name}, pipelined");
        let (ours, serial) = (Variant::Ours.store_name(), Variant::Serial.store_name());
        let points = vec![
            point("U-1 on the store, real", blocking(ours.clone()), 8, 99.0, &[]),
            point("U-1 on the store, real", pipelined(ours), 8, 300.0, &[]),
            point("U-1 on the store, real", blocking(serial.clone()), 8, 100.0, &[]),
            point("U-1 on the store, real", pipelined(serial), 8, 200.0, &[]),
        ];
        assert_eq!(judged(points), [(0.99, true)]);
    }

    #[test]
    fn latency_redo_and_restart_have_rows_of_their_own() {
        let points = vec![
            point("A lone committer, plp", "commit".into(), 1, 15.0, &[(OVER_WRITE, 1.3)]),
            point(RESTART, "1 streams".into(), 5, 1.0, &[(PER_CPU, 0.8)]),
            point(RESTART, "4 streams".into(), 5, 1.0, &[(PER_CPU, 1.2)]),
            point(BOUND, "2 s".into(), 5, 1.0, &[(OVER_SETTING, 0.4)]),
        ];
        assert_eq!(judged(points), [(1.3, false), (1.2, true), (0.4, true)]);
    }
}
