//! Figures of the papers on simulated machines: their shapes, where the shipped code is to have them.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use azekura_bench::Progress;
use azekura_bench::lab::p_wal;

#[global_allocator]
static ALLOCATOR: azekura_sim::LineAllocator = azekura_sim::LineAllocator;

/// P-WAL, Fig. 7: a serial log that writes 16 transactions at a time is as fast with one worker or two as it ever gets; P-WAL grows to 16.
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
    assert!(p_wal_16 > 6.0 * serial_16, "{p_wal_16} and {serial_16} with 16 workers; the paper: ten times");
}
