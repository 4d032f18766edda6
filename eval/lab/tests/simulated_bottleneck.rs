//! The smallest bottleneck study on a simulated machine has all of its parts.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use azekura::Database;
use azekura_io::MemFs;
use azekura_lab::Progress;
use azekura_lab::lab::bottleneck::front::search::Latch;
use azekura_lab::lab::bottleneck::simulate::Simulated;
use azekura_lab::lab::bottleneck::study::Measured;
use azekura_lab::lab::bottleneck::{Settings, page, study, text};
use azekura_lab::lab::steady::Rule;
use azekura_workload::bookstore::Scale;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: azekura_sim::LineAllocator = azekura_sim::LineAllocator;

fn smallest() -> Settings {
    Settings {
        scale: Scale::new(100, 1),
        users: vec![400],
        limits: vec![Some(2), None],
        connections: 8,
        machine: Some(Simulated {
            rule: Rule { window: Some(Duration::from_micros(400)), seeds: 1, ..Rule::default() },
            ..Simulated::paper()
        }),
        recorded: Duration::from_millis(1),
        ..Settings::simulated_quick(4)
    }
}

/// Returns all results of a study as text: points, recordings and verdicts.
fn results_of(traces: &Path) -> String {
    let study = study(&smallest(), Some(traces), &Progress::hidden()).unwrap();
    serde_json::to_string_pretty(&study).unwrap()
}

/// Allows one recording at a time in this process.
static ONE: Mutex<()> = Mutex::new(());

fn one() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const STUDY: &str = "study.json";
/// Environment variable with the file for the results of a process's study.
const PLACE: &str = "AZEKURA_TEST_STUDY";

#[test]
fn a_study_is_the_same_to_the_byte_in_another_process_and_when_it_is_done_again() {
    let directories: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    for (n, directory) in directories.iter().enumerate() {
        // The size of the environment changes the addresses on a program's stack, so it is varied between the
        // processes.
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "one_study", "--ignored"])
            .env(PLACE, directory.path())
            .env("AZEKURA_TEST_IN_THE_WAY", "x".repeat(n * 5_000))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let read = |n: usize, name: &str| std::fs::read(directories[n].path().join(name)).unwrap();
    for (n, name) in
        [1, 2].into_iter().flat_map(|n| [STUDY, "before.trace", "after.trace"].map(|name| (n, name)))
    {
        assert!(read(0, name) == read(n, name), "{name} of process {n} is another");
    }
    let _one = one();
    let [once, again] = [(); 2].map(|()| results_of(directories[0].path()));
    assert_eq!(once, again, "one seed, one study");
    assert!(once.as_bytes() == read(0, STUDY), "in this process it is another");
}

/// Runs only as a process of the test above.
#[test]
#[ignore = "a part of another test"]
fn one_study() {
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else { return };
    std::fs::write(place.join(STUDY), results_of(&place)).unwrap();
}

#[test]
fn the_random_numbers_of_a_store_come_from_the_seed() {
    let numbers = |seed| {
        let run = Simulated::paper().run(1, seed, || {
            let files = Arc::new(MemFs::new());
            let store =
                || Database::builder().file_system(files.clone()).background(false).open("store").unwrap();
            store().close().unwrap();
            let again = store();
            let numbers = (again.id(), again.stats().log.durable_lsn);
            again.close().unwrap();
            numbers
        });
        run.unwrap()
    };
    let [one, again, other] = [1, 1, 2].map(numbers);
    assert_eq!(one, again, "store and first LSN of an opening");
    assert!(one.0 != other.0 && one.1 != other.1, "{one:?} and {other:?}");
}

#[test]
fn a_simulated_study_has_every_table_and_figure() {
    let _one = one();
    let study = study(&smallest(), None, &Progress::hidden()).unwrap();
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

/// The paper's finding, with the settings of `azekura-lab bottleneck --simulate 16 --quick`.
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
