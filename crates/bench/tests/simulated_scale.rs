//! The whole store on simulated processors: the same each time, with names for the lines that clients wait for, and without those that were removed.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use azekura_bench::Progress;
use azekura_bench::scale::{Report, Scale, SharedLine, Work};
use azekura_sim::Profile;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: azekura_sim::LineAllocator = azekura_sim::LineAllocator;

fn scale(work: Work, processors: usize) -> Scale {
    let time = Some((Duration::from_micros(200), Duration::from_micros(300)));
    Scale { time, ..Scale::new(Profile::one_socket(), work, vec![processors]) }
}

fn run(work: Work, processors: usize) -> Report {
    scale(work, processors).run(&Progress::hidden()).unwrap().0
}

#[test]
fn two_runs_print_the_same_and_every_line_has_a_name() {
    let report = run(Work::U1, 8);
    assert_eq!(report.to_text(), run(Work::U1, 8).to_text());
    let point = &report.points[0];
    assert!(point.ops > 1000, "{point:?}");
    for line in &point.lines {
        assert!(!line.field.is_empty() && line.places[0].starts_with("crates/"), "{line:?}");
    }
}

/// What comes behind a line is seen without removing it.
#[test]
fn without_the_log_s_counter_updates_are_faster_and_wait_for_other_lines() {
    let with = run(Work::U1, 32);
    let mut scale = scale(Work::U1, 32);
    scale.without = vec!["next@wal::durable_lsn".parse().unwrap()];
    let without = scale.run(&Progress::hidden()).unwrap().0;
    let is_it = |line: &SharedLine| line.field == "next" && line.module == "wal::durable_lsn";
    assert!(with.points[0].lines.iter().any(is_it) && !without.points[0].lines.iter().any(is_it));
    assert!(without.points[0].rate > with.points[0].rate, "{without:?}");
    assert!(without.to_text().contains("as if next of wal::durable_lsn cost nothing"));
}

/// They had sixteen stripes, and more clients than that met in them.
#[test]
fn clients_do_not_wait_for_each_other_where_states_and_counts_are_kept() {
    let report = run(Work::Reads, 48);
    for line in &report.points[0].lines {
        let is_dealt_out = matches!(line.module.as_str(), "azekura::transaction::state" | "azekura::active");
        let is_door = line.module == "azekura::database" && line.field.contains("door");
        assert!(!is_dealt_out && !is_door, "{line:?}");
    }
}

/// An update reads no counter that others write: what is left of the log's counter is drawing from it.
#[test]
fn an_update_only_draws_from_the_log_s_counter() {
    let report = run(Work::U1, 32);
    let counter =
        report.points[0].lines.iter().find(|line| line.module == "wal::durable_lsn" && line.field == "next");
    let place = &counter.expect("the one line that all updates write").places[0];
    let (file, line) = place.split_once(':').unwrap();
    let text = std::fs::read_to_string(format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let source = text.lines().nth(line.parse::<usize>().unwrap() - 1).unwrap();
    assert!(source.contains("fetch_add"), "{place}: {source}");
}
