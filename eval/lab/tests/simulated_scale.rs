//! Simulations of the whole store are reproducible, name the cache lines that clients wait for, and can
//! ignore the cost of a line.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use azekura_lab::Progress;
use azekura_lab::lab::steady::Rule;
use azekura_lab::scale::{Report, Scale, SharedLine, Work};
use azekura_sim::Profile;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: azekura_sim::LineAllocator = azekura_sim::LineAllocator;

fn scale(work: Work, processors: usize) -> Scale {
    let rule = Rule { window: Some(Duration::from_micros(200)), seeds: 1, ..Rule::default() };
    Scale { rule, ..Scale::new(Profile::one_socket(), work, vec![processors]) }
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

/// A simulation without the cost of a line shows the next limit. The work does not wait for a device: in such
/// short windows, the rate of commits depends on the moments at which the device ends its writes.
#[test]
fn without_the_line_that_they_wait_for_most_reads_are_faster_and_wait_for_others() {
    let with = run(Work::SnapshotReads, 64);
    let worst = &with.points[0].lines[0];
    let mut scale = scale(Work::SnapshotReads, 64);
    scale.without = vec![format!("{}@{}", worst.field, worst.module).parse().unwrap()];
    let without = scale.run(&Progress::hidden()).unwrap().0;
    let is_it = |line: &SharedLine| line.field == worst.field && line.module == worst.module;
    assert!(!without.points[0].lines.iter().any(is_it), "{worst:?}");
    assert!(without.points[0].rate > with.points[0].rate, "{without:?}");
    assert!(without.to_text().contains(&format!("as if {} of {} cost nothing", worst.field, worst.module)));
}

/// With 48 clients, no client waits for the cache lines of another one's state or counts.
#[test]
fn clients_do_not_wait_for_each_other_where_states_and_counts_are_kept() {
    let report = run(Work::Reads, 48);
    for line in &report.points[0].lines {
        let striped = ["azekura::transaction::state", "azekura::active", "azekura::lifetime"];
        assert!(!striped.contains(&line.module.as_str()), "{line:?}");
    }
}

/// An update reads no counter that other updates write, and rarely draws from the log's counter. The rate
/// therefore grows from 8 to 32 processors.
#[test]
fn updates_do_not_meet_at_the_log_s_counter() {
    let (few, many) = (run(Work::U1, 8), run(Work::U1, 32));
    assert!(many.points[0].rate > 1.5 * few.points[0].rate, "{few:?} {many:?}");
    let of_counter = |line: &&SharedLine| line.module == "wal::durable_lsn" && line.field == "next";
    for line in run(Work::U1, 64).points[0].lines.iter().filter(of_counter) {
        let place = &line.places[0];
        let (file, number) = place.split_once(':').unwrap();
        let text = std::fs::read_to_string(format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let source = text.lines().nth(number.parse::<usize>().unwrap() - 1).unwrap();
        assert!(source.contains("fetch_add"), "{place}: {source}");
    }
}
