//! The bottleneck study at its smallest on a simulated machine: every part is there, and two runs are the same to the last byte.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use azekura_bench::Progress;
use azekura_bench::lab::bottleneck::{Settings, page, study, text};
use azekura_workload::bookstore::Scale;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: azekura_sim::LineAllocator = azekura_sim::LineAllocator;

#[test]
fn a_simulated_study_has_every_table_and_figure_and_is_the_same_each_time() {
    let settings = Settings {
        scale: Scale::new(100, 1),
        users: vec![400],
        limits: vec![Some(2), None],
        connections: 8,
        warm_up: Duration::from_micros(500),
        measured: Duration::from_millis(1),
        recorded: Duration::from_millis(1),
        ..Settings::simulated_quick(4)
    };
    let once = || study(&settings, None, &Progress::hidden()).unwrap();
    let study = once();
    assert_eq!(study.points.len(), 8, "two numbers of processors, two latches, two limits");
    assert!(
        study.points.iter().all(|p| p.rate > 0.0 && p.cpu > 0.0 && p.others == 0.0),
        "{:?}",
        study.points
    );
    for recorded in &study.recorded {
        let row = recorded.analysis.chosen().expect("index_read was recorded");
        assert!(row.executions > 0 && row.cpu_ns.is_some() && recorded.analysis.recorded.lost == 0);
    }
    let shown = text::render(&study);
    for heading in ["Figs 3, 4", "Figs 10, 11", "By processors", "Figs 5, 6, 12, 13", "simulated: "] {
        assert!(shown.contains(heading), "{heading} is missing in\n{shown}");
    }
    assert!(page::html(&study).contains("<svg"));
    assert_eq!(shown, text::render(&once()));
}
