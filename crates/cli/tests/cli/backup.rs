//! `backup` and `restore`: the same rows again, refusals, and kills.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::support::{Run, Scratch};

fn rows(count: u32) -> String {
    (0..count).map(|n| format!("key{n:06}\tvalue {n}\n")).collect()
}

fn store(scratch: &Scratch, count: u32) {
    let file = scratch.file("rows.tsv", &rows(count));
    assert_eq!(Run::in_dir(scratch, &["load", "db", "t", &file]).code, 0);
}

#[test]
fn a_restored_store_dumps_the_same_rows() {
    let scratch = Scratch::new();
    store(&scratch, 2000);
    let said = Run::in_dir(&scratch, &["backup", "db", "copy", "--verify", "--rate", "1G"]).well();
    assert!(said.contains("1 table, 2,000 rows") && said.contains("verified"), "{said}");
    let said = Run::in_dir(&scratch, &["restore", "copy", "new", "--verify", "--json"]).well();
    let json: serde_json::Value = serde_json::from_str(&said).expect("is JSON");
    assert_eq!((&json["rows"], &json["is_verified"]), (&2000.into(), &true.into()), "{said}");
    let dump = |db: &str| Run::in_dir(&scratch, &["dump", db, "t"]).well();
    assert_eq!(dump("new"), dump("db"));
    // Through a pipe.
    let stream = Run::in_dir(&scratch, &["backup", "db", "-"]);
    assert_eq!(stream.code, 0);
    assert_eq!(Run::with_stdin(&scratch, &["restore", "-", "piped"], &stream.raw_stdout).code, 0);
    assert_eq!(dump("piped"), dump("db"));
    let cut = &stream.raw_stdout[..stream.raw_stdout.len() - 1];
    let run = Run::with_stdin(&scratch, &["restore", "-", "cut"], cut);
    assert!(run.code == 1 && run.stderr.contains("truncated"), "{run:?}");
    let run = Run::in_dir(&scratch, &["dump", "cut", "t"]);
    assert!(run.code == 1 && run.stderr.contains("did not finish"), "{run:?}");
}

#[test]
fn a_damaged_backup_and_a_used_directory_are_refused() {
    let scratch = Scratch::new();
    store(&scratch, 500);
    Run::in_dir(&scratch, &["backup", "db", "copy"]).well();
    let file = scratch.path("copy/backup.azk");
    let mut bytes = std::fs::read(&file).expect("reads");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).expect("writes");
    let run = Run::in_dir(&scratch, &["restore", "copy", "--dry-run"]);
    assert!(run.code == 1 && run.stderr.contains("damaged at byte"), "{run:?}");
    let again = Run::in_dir(&scratch, &["backup", "db", "copy"]);
    assert!(again.code == 1 && again.stderr.contains("holds a backup already"), "{again:?}");
    let run = Run::in_dir(&scratch, &["restore", "copy", "db"]);
    assert!(run.code == 1 && run.stderr.contains("is not empty"), "{run:?}");
    let run = Run::in_dir(&scratch, &["restore", "db", "new"]);
    assert!(run.code == 1 && run.stderr.contains("is not a backup"), "{run:?}");
    assert_eq!(Run::in_dir(&scratch, &["backup", "db", "-", "--verify"]).code, 2);
    assert_eq!(Run::in_dir(&scratch, &["restore", "copy"]).code, 2);
}

/// Runs the command and kills it after `delay`, unless it has ended by then.
fn killed(scratch: &Scratch, arguments: &[&str], delay: Duration) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_azekura"))
        .current_dir(scratch.path(""))
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    thread::sleep(delay);
    child.kill().expect("is killed, or has ended");
    child.wait().expect("ends");
}

#[test]
fn killed_backups_and_restores_are_whole_or_refused() {
    let scratch = Scratch::new();
    store(&scratch, 20_000);
    Run::in_dir(&scratch, &["backup", "db", "right"]).well();
    let dump = |db: &str| Run::in_dir(&scratch, &["dump", db, "t"]);
    let right = dump("db").well();
    for round in 0..24_u64 {
        let delay = Duration::from_millis(2 + round * 3);
        let copy = format!("copy{round}");
        killed(&scratch, &["backup", "db", &copy], delay);
        let run = Run::in_dir(&scratch, &["restore", &copy, "--dry-run"]);
        assert!(run.code == 0 || run.stderr.contains("is not a backup"), "round {round}: {run:?}");
        let new = format!("new{round}");
        killed(&scratch, &["restore", "right", &new], delay);
        let run = dump(&new);
        let is_refused = run.stderr.contains("did not finish") || run.stderr.contains("holds no Azekura");
        assert!(run.code == 1 && is_refused || run.stdout == right, "round {round}: {}", run.stderr);
    }
}
