//! The bottleneck study at its smallest on a simulated machine: every part is there.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use azekura_bench::Progress;
use azekura_bench::lab::bottleneck::front::search::Latch;
use azekura_bench::lab::bottleneck::study::Measured;
use azekura_bench::lab::bottleneck::{Settings, page, study, text};
use azekura_workload::bookstore::Scale;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: azekura_sim::LineAllocator = azekura_sim::LineAllocator;

#[test]
fn a_simulated_study_has_every_table_and_figure() {
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
    let study = study(&settings, None, &Progress::hidden()).unwrap();
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
}

/// The paper's finding, as `azekura lab bottleneck --simulate 16 --quick` prints it.
#[test]
#[ignore = "half a minute"]
fn before_the_cure_sixteen_processors_do_less_than_half_of_what_eight_do_and_the_right_locks_are_named() {
    let study = study(&Settings::simulated_quick(16), None, &Progress::hidden()).unwrap();
    println!("{}", text::render(&study));
    let unlimited = |latch: Latch, processors: usize| {
        let is_it = |p: &&Measured| {
            p.point.latch == latch && p.point.processors == processors && p.point.limit.is_none()
        };
        study.points.iter().find(is_it).expect("was measured").rate
    };
    assert!(2.0 * unlimited(Latch::Mutex, 16) < unlimited(Latch::Mutex, 8), "before the cure");
    assert!(unlimited(Latch::Word, 16) > unlimited(Latch::Mutex, 16), "the cure");
    assert!(study.is_well(), "{:?}", study.findings);
}
