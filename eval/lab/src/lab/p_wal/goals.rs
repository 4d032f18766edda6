//! Goals of the log, evaluated from the figures of the same run.
//!
//! | goal | figure |
//! |---|---|
//! | a commit without other committers takes at most 1.2 writes | [`LONE`] |
//! | at least 0.95 of our own serial log, with the same work in flight | the log's and the store's |
//! | at least twice the serial log with parallel flushes, 16 workers | the log's on the modeled ioDrive |
//! | at least 90 % of the device's speed with such chunks and so many writers | the log's, most workers |
//! | U-1 logs at most 64 bytes for a transaction, with values of 4 bytes (paper: 420) | U-1 on the store |
//! | 500,000 U-1 and 105,000 U-10 per second with at most 512 commits in flight | the store, real device |
//! | 99 % of these U-1 within 1.5 ms | the store, real device |
//! | 75,000 U-1 per second for 64 clients that wait for each commit | the store, real device, if measured |
//! | 99 % of these U-1 within 1.3 ms | the store, real device, if measured |
//! | a million records redone per second of processor time | [`RESTART`] |
//! | redo by all threads 1.8 times as fast as by one, with two processors | [`RESTART`] |
//! | a restart takes no longer than its setting | [`BOUND`] |
//!
//! A goal without a measured figure is left out. `compare` evaluates the goals relative to other stores. The
//! paper's result, ten times the serial log, needs its sixteen cores: `--simulate 16`.

use super::variant::Variant;
use crate::lab::figures::{Goal, Point, Report};

/// Names of figures, without the device's name at the end.
pub(super) const LONE: &str = "A lone committer";
pub(super) const CLIENTS: &str = "Blocking clients on the log";
pub(super) const RESTART: &str = "Restart of the store, in memory";
pub(super) const BOUND: &str = "Restart within a setting";
/// Names of additional numbers.
pub(super) const OVER_WRITE: &str = "over a write";
pub(super) const DEVICE_SHARE: &str = "device %";
pub(super) const PER_CPU: &str = "M per cpu s";
pub(super) const OVER_SETTING: &str = "over the setting";
pub(super) const P99: &str = "p99 us";
pub(super) const IN_FLIGHT: &str = "in flight";
pub(super) const RECORD_MIB: &str = "record MiB/s";
/// Suffix of a series of [`RESTART`] with one redo thread.
pub(super) const BY_ONE: &str = ", one redo thread";

/// Number of workers in the paper's comparisons.
const MANY: usize = 16;
/// Largest number of commits in flight for the goals with pipelined commits; `MANY_CLIENTS` is the number of
/// clients for the goals with blocking commits.
const MOST_IN_FLIGHT: f64 = 512.0;
const MANY_CLIENTS: usize = 64;
/// Suffix of figures on the modeled device with parallel flushes.
const PARALLEL_DEVICE: &str = ", iodrive";

/// Evaluates the goals of a report.
pub(super) fn of(report: &Report) -> Vec<Goal> {
    let points = &report.points;
    let mut goals = Vec::new();
    for point in with(points, LONE, OVER_WRITE) {
        goals.push(Goal::at_most("median commit over a write of 4 KiB", 1.2, point.0, place(point.1)));
    }
    goals.extend(worst_against_serial(points));
    goals.extend(where_flushes_are_parallel(points));
    goals.extend(share_of_the_device(points));
    goals.extend(log_bytes(points));
    goals.extend(on_the_store(points));
    goals.extend(by_many_threads(points));
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

/// Returns the points of all figures with this prefix that have the additional number `column`.
fn with<'p>(points: &'p [Point], figure: &'p str, column: &'p str) -> impl Iterator<Item = (f64, &'p Point)> {
    let of = points.iter().filter(move |point| point.figure.starts_with(figure));
    of.filter_map(move |point| point.beside.get(column).map(|&value| (value, point)))
}

/// Returns each point of our log, with its ratio to the serial log at the same position and with the same
/// kind of commits.
fn against_serial(points: &[Point]) -> impl Iterator<Item = (f64, &Point)> {
    let names = [
        (Variant::Ours.name(), Variant::Serial.name()),
        (Variant::Ours.store_name(), Variant::Serial.name()),
    ];
    let serial_of = move |ours: &Point| {
        let name =
            names.iter().find_map(|(ours_is, serial)| Some((ours.series.strip_prefix(&**ours_is)?, serial)));
        let (mode, serial) = name?;
        let series = format!("{serial}{mode}");
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

/// Evaluates the largest log volume of a U-1 transaction.
fn log_bytes(points: &[Point]) -> Option<Goal> {
    let of_u1 = with(points, "U-1 on the store", RECORD_MIB).filter(|(_, point)| is_ours(point, ""));
    let bytes = of_u1.map(|(mib, point)| (mib * f64::from(1 << 20) / point.value, point));
    let most = bytes.max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(Goal::at_most("bytes of log for a transaction of U-1, 4-byte values", 64.0, most.0, place(most.1)))
}

/// Returns whether a point is of our log on the store, with this kind of commits (`blocking` or `pipelined`).
fn is_ours(point: &Point, mode: &str) -> bool {
    point.series.strip_prefix(&*Variant::Ours.store_name()).is_some_and(|rest| rest.ends_with(mode))
}

/// Evaluates rates and latencies of the store on the real device: the best rate with at most
/// [`MOST_IN_FLIGHT`] pipelined commits, and the rate of [`MANY_CLIENTS`] blocking clients.
fn on_the_store(points: &[Point]) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (figure, least, longest) in
        [("U-1 on the store, real", 500_000.0, Some(1_500.0)), ("U-10 on the store, real", 105_000.0, None)]
    {
        let pipelined = with(points, figure, IN_FLIGHT)
            .filter(|(in_flight, point)| *in_flight <= MOST_IN_FLIGHT && is_ours(point, "pipelined"));
        if let Some((_, best)) = pipelined.max_by(|a, b| a.1.value.total_cmp(&b.1.value)) {
            goals.extend(rate_and_latency(best, least, longest));
        }
    }
    let many = points.iter().find(|point| {
        point.figure == "U-1 on the store, real" && point.at == MANY_CLIENTS && is_ours(point, "blocking")
    });
    goals.extend(many.into_iter().flat_map(|point| rate_and_latency(point, 75_000.0, Some(1_300.0))));
    goals
}

fn rate_and_latency(point: &Point, least: f64, longest_us: Option<f64>) -> Vec<Goal> {
    let rate = Goal::at_least("transactions per second", least, point.value, place(point));
    let p99 = longest_us.zip(point.beside.get(P99));
    let p99 = p99.map(|(most, &reached)| Goal::at_most("p99, microseconds", most, reached, place(point)));
    std::iter::once(rate).chain(p99).collect()
}

/// Evaluates redo by the store's default number of threads, relative to redo by one thread.
fn by_many_threads(points: &[Point]) -> Option<Goal> {
    let of = points.iter().filter(|point| point.figure == RESTART);
    let ratio = of.filter_map(|many| {
        let by_one = format!("{}{BY_ONE}", many.series);
        let one = points.iter().find(|p| p.figure == RESTART && p.at == many.at && p.series == by_one)?;
        Some((many.value / one.value, many))
    });
    let best = ratio.max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(Goal::at_least("redo by all threads over redo by one (two processors)", 1.8, best.0, place(best.1)))
}

/// Evaluates our log's share of the device's speed with the most workers, for each workload on each device.
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
    fn without_measurements_no_goal_is_judged() {
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
        // The smallest ratio, the ratio with 16 workers, and the share with 16 workers.
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
    fn the_store_is_judged_by_its_rates_latencies_and_log() {
        let ours = |mode: &str| format!("{}, {mode}", Variant::Ours.store_name());
        let mib = |bytes: f64, rate: f64| bytes * rate / f64::from(1 << 20);
        let pipelined = |in_flight, rate| {
            let beside = [(IN_FLIGHT, in_flight), (P99, 1_400.0), (RECORD_MIB, mib(60.0, rate))];
            point("U-1 on the store, real", ours("pipelined"), 8, rate, &beside)
        };
        let blocking = point("U-1 on the store, real", ours("blocking"), 64, 70e3, &[(P99, 1_200.0)]);
        let points = vec![
            pipelined(500.0, 600e3),
            pipelined(1_000.0, 900e3),
            blocking,
            point(RESTART, "4 streams".into(), 9, 3.0, &[]),
            point(RESTART, format!("4 streams{BY_ONE}"), 9, 2.0, &[]),
        ];
        let judged = judged(points);
        assert!((judged[0].0 - 60.0).abs() < 0.01 && judged[0].1);
        let rest = [(600e3, true), (1_400.0, true), (70e3, false), (1_200.0, true), (1.5, false)];
        assert_eq!(judged[1..], rest);
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
