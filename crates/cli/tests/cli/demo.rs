//! The demo, small.

use crate::support::{Run, Scratch};

const SMALL: [&str; 7] = ["demo", "--accounts", "1000", "--seconds-per-round", "0.3", "--threads", "4"];

#[test]
fn a_bank_that_is_killed_loses_nothing() {
    let said = Run::of(&[&SMALL[..], &["--rounds", "1"]].concat()).well();
    assert!(said.contains("1 kill,") && said.contains("Nothing was lost."), "{said}");
}

#[test]
fn a_kept_bank_can_be_looked_at_and_is_not_overwritten() {
    let scratch = Scratch::new();
    let demo = [&SMALL[..], &["--rounds", "2", "--dir", "bank", "--seed", "7"]].concat();
    let said = Run::in_dir(&scratch, &demo).well();
    assert!(
        said.contains("seed 7") && said.contains("3 kills,") && said.contains("killed in recovery too"),
        "{said}"
    );
    assert_eq!(Run::in_dir(&scratch, &["get", "bank", "accounts", "00001000"]).code, 1);
    let balances = Run::in_dir(&scratch, &["dump", "bank", "accounts"]).well();
    let total: i64 =
        balances.lines().map(|row| row.split_once('\t').unwrap().1.parse::<i64>().unwrap()).sum();
    assert_eq!(total, 1_000_000);
    assert!(Run::in_dir(&scratch, &demo).refused().contains("is not empty"));
}

#[test]
fn a_killed_child_leaves_a_recording_that_can_be_reported_on() {
    let scratch = Scratch::new();
    let demo = [&SMALL[..], &["--rounds", "1", "--trace", "bank.trace"]].concat();
    Run::in_dir(&scratch, &demo).well();
    let said = Run::in_dir(&scratch, &["trace", "report", "bank.trace"]).well();
    for part in ["CUT SHORT", "transaction", "commit", "file sync", "Own cost"] {
        assert!(said.contains(part), "{part}: {said}");
    }
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
