//! Figures of the papers on simulated machines have the same shapes as in the papers.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use azekura_lab::Progress;
use azekura_lab::lab::nb_gclock::cache::Kind;
use azekura_lab::lab::steady::Rule;
use azekura_lab::lab::{nb_gclock, p_wal};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: azekura_sim::LineAllocator = azekura_sim::LineAllocator;

/// P-WAL, Fig. 7: a serial log that writes 16 transactions at a time reaches its highest rate with one or two
/// workers; P-WAL's rate grows up to 16 workers.
#[test]
fn a_serial_log_that_writes_groups_of_sixteen_has_its_peak_early_and_p_wal_grows_to_sixteen_workers() {
    let all = p_wal::simulate::Simulated::new(16);
    let (first, last) = (all.logs[0], all.logs[all.logs.len() - 1]);
    let lab = p_wal::simulate::Simulated { logs: vec![first, last], workers: vec![2, 8, 16], ..all };
    let points = lab.run(&Progress::hidden()).unwrap().points;
    let rates: Vec<f64> = points.iter().map(|point| point.rate).collect();
    let [p_wal_2, p_wal_8, p_wal_16, serial_2, _, serial_16] = rates[..] else { panic!("{points:?}") };
    assert!(serial_16 < 1.05 * serial_2, "serial: {serial_2} with 2 workers, {serial_16} with 16");
    assert!(p_wal_8 > 3.5 * p_wal_2 && p_wal_16 > 1.1 * p_wal_8, "P-WAL: {p_wal_2}, {p_wal_8}, {p_wal_16}");
    assert!(p_wal_16 > 8.0 * serial_16, "{p_wal_16} and {serial_16} with 16 workers; the paper: ten times");
}

/// Nb-GCLOCK, Fig. 10: caches with a lock around them reach their highest rate with 8 processors, whatever
/// their policy, and are slower with 64.
#[test]
fn on_the_t2_caches_under_a_lock_are_flat_by_16_processors() {
    use nb_gclock::simulate::Simulated;
    let (all, kinds) = (Simulated::new(64), vec![Kind::Lru, Kind::TwoQ, Kind::Gclock]);
    let (cases, pages_per_frame) = (2 * kinds.len(), all.pages_per_frame[..1].to_vec());
    let lab = Simulated { kinds, pages_per_frame, processors: vec![1, 8, 16, 64], ..all };
    let points = lab.run(&Progress::hidden()).unwrap().points;
    assert_eq!(points.len(), 4 * cases);
    for points in points.chunks(4) {
        let [one, eight, sixteen, all] = [0, 1, 2, 3].map(|at: usize| points[at].rate);
        let what = format!("{} where {}: {one}, {eight}, {sixteen}, {all}", points[0].cache, points[0].case);
        assert!(eight > 2.0 * one, "{what}");
        assert!(sixteen < 1.1 * eight && all < sixteen, "{what}");
    }
}

/// The report of the page cache states the rule of the warm-up, and has the spread over the seeds.
#[test]
fn a_report_of_the_page_cache_has_the_spread_over_three_seeds() {
    let lab = nb_gclock::simulate::Simulated {
        kinds: vec![Kind::NbStriped],
        pages_per_frame: Vec::new(),
        processors: vec![2, 8],
        rule: Rule { window: Some(Duration::from_micros(200)), ..Rule::default() },
        ..nb_gclock::simulate::Simulated::new(8)
    };
    let report = lab.run(&Progress::hidden()).unwrap();
    for point in &report.points {
        let rates: Vec<f64> = point.runs.iter().map(|run| run.rate).collect();
        assert_eq!(rates.len(), 3, "{point:?}");
        assert!(rates.iter().filter(|&&rate| rate <= point.rate).count() >= 2, "{point:?}");
        assert!(rates.iter().filter(|&&rate| rate >= point.rate).count() >= 2, "{point:?}");
        // At least three windows are needed for the rule.
        assert!(point.runs.iter().all(|run| run.warm_up_us >= 599.0), "{point:?}");
    }
    let text = report.to_text();
    assert!(text.contains("windows of 200µs; warm-up until 3 consecutive windows agree"), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("  spread") && line.contains('%')).count(), 1);
}

/// Nb-GCLOCK, Fig. 10, with the paper's pages per frame: the rate with the striped hand grows up to 64
/// processors. The hand with one counter is advanced by a compare-and-swap loop on that machine. It is as
/// fast up to 32 processors, and slower with 64 than with 32.
#[test]
fn on_the_t2_the_hand_that_is_one_counter_bends_after_32_processors_and_the_striped_one_grows_to_64() {
    use nb_gclock::simulate::Simulated;
    let all = Simulated::new(64);
    let pages_per_frame = all.pages_per_frame[1..].to_vec();
    let kinds = vec![Kind::NbAtomic, Kind::NbStriped];
    let lab = Simulated { kinds, pages_per_frame, processors: vec![16, 32, 64], ..all };
    let points = lab.run(&Progress::hidden()).unwrap().points;
    let moved: Vec<f64> = points.iter().skip(6).map(|point| point.rate).collect();
    let [atomic_16, atomic_32, atomic_64, striped_16, striped_32, striped_64] = moved[..] else {
        panic!("{points:?}")
    };
    assert!(striped_32 > 1.7 * striped_16 && striped_64 > 1.5 * striped_32, "{moved:?}");
    assert!(atomic_16 > 0.9 * striped_16 && atomic_32 > 0.9 * striped_32, "{moved:?}");
    assert!(atomic_64 < atomic_32, "{moved:?}");
}
