//! The demo with small settings.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Run, Scratch};

const SMALL: [&str; 7] = ["demo", "--accounts", "1000", "--seconds-per-round", "0.3", "--threads", "4"];

/// Number of trials for a recording that ends with the kill of its program.
pub(crate) const TRIALS: u32 = 20;

#[test]
fn a_bank_that_is_killed_loses_nothing() {
    let said = Run::of(&[&SMALL[..], &["--rounds", "1"]].concat()).well();
    assert!(said.contains("1 kill,") && said.contains("Nothing was lost."), "{said}");
}

#[test]
fn a_kept_bank_can_be_looked_at_and_is_not_overwritten() {
    let scratch = Scratch::new();
    let demo = [&SMALL[..], &["--rounds", "2", "--dir=-bank", "--seed", "7"]].concat();
    let said = Run::in_dir(&scratch, &demo).well();
    assert!(
        said.contains("seed 7") && said.contains("3 kills,") && said.contains("killed in recovery too"),
        "{said}"
    );
    assert_eq!(Run::in_dir(&scratch, &["get", "./-bank", "accounts", "00001000"]).code, 1);
    let balances = Run::in_dir(&scratch, &["dump", "./-bank", "accounts"]).well();
    let total: i64 =
        balances.lines().map(|row| row.split_once('\t').unwrap().1.parse::<i64>().unwrap()).sum();
    assert_eq!(total, 1_000_000);
    assert!(Run::in_dir(&scratch, &demo).refused().contains("is not empty"));
}

#[test]
fn a_killed_child_leaves_a_recording_that_can_be_reported_on() {
    let scratch = Scratch::new();
    let demo = [&SMALL[..], &["--rounds", "1", "--trace", "bank.trace"]].concat();
    let parts = ["CUT SHORT", "transaction", "commit", "file sync", "Own cost"];
    let has_all = |run: &Run| run.code == 0 && parts.iter().all(|part| run.stdout.contains(part));
    // On a busy machine the child may be killed before it, or the thread that writes its recording, has run.
    let trial = || {
        Run::in_dir(&scratch, &demo).well();
        Run::in_dir(&scratch, &["trace", "report", "bank.trace"])
    };
    let mut run = trial();
    for _ in 1..TRIALS {
        if has_all(&run) {
            break;
        }
        run = trial();
    }
    assert!(has_all(&run), "{parts:?}: {run:?}");
}

#[test]
fn a_child_whose_store_fails_ends_the_demo_as_wrong() {
    let scratch = Scratch::new();
    Run::in_dir(&scratch, &["put", "db", "accounts", "00000000", "1000"]).well();
    let child = ["demo-child", "db", "--run=1", "--seed=1", "--accounts=100", "--threads=2", "--in-flight=2"];
    let run = Run::in_dir(&scratch, &child);
    assert_eq!(run.code, 1);
    assert!(run.stdout.starts_with("ready\n") && run.stderr.contains("it was opened with keys"), "{run:?}");
}

/// Waits until the demo's store has a log file; then its child process is running.
fn wait_for_a_store(parent: &Path) {
    let has_store = || {
        let entry = fs::read_dir(parent).expect("a directory").flatten().next();
        entry.is_some_and(|demo| fs::read_dir(demo.path()).is_ok_and(|mut files| files.next().is_some()))
    };
    while !has_store() {
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_signal_removes_the_store_of_the_demo() {
    for signal in [Signal::INT, Signal::TERM] {
        let scratch = Scratch::new();
        let parent = scratch.path("");
        let mut demo = Command::new(env!("CARGO_BIN_EXE_azekura"))
            .args(SMALL)
            .args(["--rounds", "100"])
            .env("TMPDIR", &parent)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for_a_store(&parent);
        kill_process(Pid::from_child(&demo), signal).unwrap();
        assert_eq!(demo.wait().unwrap().code(), Some(128 + signal.as_raw()));
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 0, "{signal:?}");
    }
}

#[test]
fn a_demo_without_its_stdout_leaves_no_store() {
    let scratch = Scratch::new();
    let parent = scratch.path("");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_azekura"))
        .args(SMALL)
        .args(["--rounds", "1"])
        .env("TMPDIR", &parent)
        .stdout(full)
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
    assert_eq!(fs::read_dir(&parent).unwrap().count(), 0);
}
