//! `backup`, `restore` and `compact`: restored rows are the same; wrong calls are rejected; kills leave no
//! partial result.

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
    std::fs::write(scratch.path("file"), &stream.raw_stdout).expect("writes");
    let refused = Run::in_dir(&scratch, &["restore", "file", "new2"]).refused();
    assert!(refused.contains("file is not a backup: it is a file, not a directory; read"), "{refused}");
    let cut = &stream.raw_stdout[..stream.raw_stdout.len() - 1];
    let run = Run::with_stdin(&scratch, &["restore", "-", "cut"], cut);
    assert!(run.code == 1 && run.stderr.contains("truncated"), "{run:?}");
    let run = Run::in_dir(&scratch, &["dump", "cut", "t"]);
    assert!(run.code == 1 && run.stderr.contains("did not finish"), "{run:?}");
}

#[test]
fn a_backup_whose_reader_ends_early_fails() {
    let scratch = Scratch::new();
    store(&scratch, 20_000);
    let said = Run::reading_only(&scratch, &["backup", "db", "-"], 0).refused();
    assert!(
        said.contains("cannot write backup stream: cannot write to standard output: Broken pipe"),
        "{said}"
    );
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
    assert!(run.code == 1 && run.stderr.contains("db is the directory of the store"), "{run:?}");
    let run = Run::in_dir(&scratch, &["restore", "db", "new"]);
    assert!(run.code == 1 && run.stderr.contains("is not a backup"), "{run:?}");
    assert_eq!(Run::in_dir(&scratch, &["backup", "db", "-", "--verify"]).code, 2);
    assert_eq!(Run::in_dir(&scratch, &["restore", "copy"]).code, 2);
    assert_eq!(Run::in_dir(&scratch, &["restore", "copy", "--dry-run", "--archive", "absent"]).code, 2);
}

#[test]
fn an_incremental_backup_restores_with_its_base() {
    let scratch = Scratch::new();
    store(&scratch, 3000);
    Run::in_dir(&scratch, &["backup", "db", "monday"]).well();
    Run::in_dir(&scratch, &["put", "db", "t", "key000007", "new"]).well();
    let said =
        Run::in_dir(&scratch, &["backup", "db", "tuesday", "--incremental", "monday", "--json"]).well();
    let json: serde_json::Value = serde_json::from_str(&said).expect("is JSON");
    assert_eq!(json["is_incremental"], true);
    assert!(json["rows"].as_u64().expect("a number") < 500, "{said}");
    Run::in_dir(&scratch, &["restore", "tuesday", "new", "--base", "monday", "--verify"]).well();
    let dump = |db: &str| Run::in_dir(&scratch, &["dump", db, "t"]).well();
    assert_eq!(dump("new"), dump("db"));
    let run = Run::in_dir(&scratch, &["restore", "tuesday", "alone"]);
    assert!(run.code == 1 && run.stderr.contains("--base"), "{run:?}");
    let run = Run::in_dir(&scratch, &["backup", "db", "wednesday", "--incremental", "missing"]);
    assert!(run.code == 1 && run.stderr.contains("missing is not a backup"), "{run:?}");
    let run = Run::in_dir(&scratch, &["restore", "tuesday", "--dry-run", "--base", "monday"]);
    assert_eq!(run.code, 2, "{run:?}");
}

#[test]
fn urls_name_directories_and_other_schemes_are_refused() {
    let scratch = Scratch::new();
    store(&scratch, 100);
    let url = format!("file://{}", scratch.path("monday").display());
    Run::in_dir(&scratch, &["backup", "db", &url, "--verify"]).well();
    assert!(scratch.path("monday/backup.azk").exists());
    Run::in_dir(&scratch, &["restore", &url, "new"]).well();
    let run = Run::in_dir(&scratch, &["backup", "db", "gs://bucket/monday"]);
    assert!(run.code == 2 && run.stderr.contains("s3://BUCKET/PREFIX"), "{run:?}");
    let run = Run::in_dir(&scratch, &["backup", "db", "tuesday", "--incremental", "-"]);
    assert!(run.code == 2 && run.stderr.contains("cannot be a stream"), "{run:?}");
    if cfg!(not(feature = "object-store")) {
        for arguments in [
            &["backup", "db", "s3://bucket/monday"][..],
            &["restore", "s3://bucket/monday", "x"],
            &["restore", "monday", "x", "--base", "s3://bucket/monday"],
            &["backup", "db", "x", "--incremental", "s3://bucket/monday"],
        ] {
            let run = Run::in_dir(&scratch, arguments);
            assert!(run.code == 2 && run.stderr.contains("--features object-store"), "{run:?}");
        }
        let names = std::fs::read_dir(scratch.path("")).expect("reads");
        assert!(!names.flatten().any(|name| name.file_name() == "x" || name.file_name() == "s3:"));
    }
}

#[test]
fn a_restore_to_a_time_leaves_out_later_changes() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| Run::in_dir(&scratch, &[arguments, &["--archive", "archive"]].concat());
    run(&["put", "db", "t", "a", "1"]).well();
    run(&["backup", "db", "b"]).well();
    run(&["put", "db", "t", "a", "2"]).well();
    let said = run(&["restore", "b", "middle", "--json"]).well();
    let json: serde_json::Value = serde_json::from_str(&said).expect("is JSON");
    let time = json["commit_time_us"].as_u64().expect("a number").to_string();
    run(&["put", "db", "t", "a", "3"]).well();
    let said = run(&["restore", "b", "latest"]).well();
    assert!(said.contains("2 transactions from the archive"), "{said}");
    run(&["restore", "b", "new", "--to-time", &time]).well();
    let get = |db: &str| Run::in_dir(&scratch, &["get", db, "t", "a"]).well();
    assert_eq!((get("new"), get("middle"), get("latest")), (get("middle"), "2\n".into(), "3\n".into()));
    let late = run(&["restore", "b", "late", "--to-time", "2999-01-01"]);
    assert!(late.code == 1 && late.stderr.contains("name an earlier time"), "{late:?}");
    let gap = |arguments: &[&str]| Run::in_dir(&scratch, arguments);
    gap(&["put", "db", "t", "b", "not archived"]).well();
    let after = run(&["put", "db", "t", "b", "archived"]);
    assert!(
        after.code == 0 && after.stderr.contains("changed without its archive: make a backup"),
        "{after:?}"
    );
    run(&["put", "db", "t", "b", "archived"]).well();
    gap(&["put", "db", "t", "c", "not archived"]).well();
    let after = run(&["check", "db", "--repair"]);
    assert!(after.code == 0 && after.stderr.contains("changed without its archive"), "{after:?}");
    let run = gap(&["restore", "b", "x", "--to-time", &time]);
    assert!(run.code == 2 && run.stderr.contains("--archive"), "{run:?}");
}

/// One transaction of all rows would have the undo entries of all rows in memory, or large values.
#[test]
fn a_load_with_an_archive_is_several_transactions() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| Run::in_dir(&scratch, &[arguments, &["--archive", "archive"]].concat());
    run(&["put", "db", "t", "a", "1"]).well();
    run(&["backup", "db", "b"]).well();
    let rows: Vec<String> = (0..10_001).map(|n| format!("{n:05}\tv\n")).collect();
    let sorted = scratch.file("sorted.tsv", &rows.concat());
    let reversed = scratch.file("reversed.tsv", &rows.iter().rev().cloned().collect::<String>());
    run(&["load", "db", "sorted", &sorted]).well();
    run(&["load", "db", "reversed", &reversed]).well();
    let large: String = (0..8).rev().map(|n| format!("{n}\t{}\n", "v".repeat(5 << 20))).collect();
    run(&["load", "db", "large", &scratch.file("large.tsv", &large)]).well();
    let said = run(&["restore", "b", "new"]).well();
    assert!(said.contains("6 transactions from the archive"), "{said}");
    let tables = Run::in_dir(&scratch, &["tables", "new", "--count"]).well();
    let count = |table: &str, rows: u32| format!("{table}\tbytes\tbytes\t{rows}\n");
    let counts = [count("large", 8), count("reversed", 10_001), count("sorted", 10_001), count("t", 1)];
    assert_eq!(tables, counts.concat());
}

#[test]
fn a_compacted_store_dumps_the_same_rows_and_is_no_larger() {
    let scratch = Scratch::new();
    store(&scratch, 20_000);
    let said = Run::in_dir(&scratch, &["compact", "db", "small", "--json"]).well();
    let json: serde_json::Value = serde_json::from_str(&said).expect("is JSON");
    assert_eq!(json["rows"], 20_000);
    assert!(json["bytes_after"].as_u64() <= json["bytes_before"].as_u64(), "{said}");
    let dump = |db: &str| Run::in_dir(&scratch, &["dump", db, "t"]).well();
    assert_eq!(dump("small"), dump("db"));
    let again = Run::in_dir(&scratch, &["compact", "db", "small"]);
    assert!(again.code == 1 && again.stderr.contains("small is the directory of the store"), "{again:?}");
    let said = Run::in_dir(&scratch, &["compact", "db", "large", "--page-size", "32K"]).well();
    assert!(said.starts_with("1 table, 20,000 rows: ") && said.contains(" became "), "{said}");
    assert_eq!(dump("large"), dump("db"));
    // The directory of a store may have other files, such as the socket of a server.
    let _socket = std::os::unix::net::UnixListener::bind(scratch.path("db/socket")).expect("binds");
    Run::in_dir(&scratch, &["compact", "db", "beside-socket"]).well();
    let run = Run::in_dir(&scratch, &["compact", "missing", "new"]);
    assert!(run.code == 1 && run.stderr.contains("missing") && !scratch.path("new").exists(), "{run:?}");
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
fn killed_backups_restores_and_compactions_are_whole_or_refused() {
    let scratch = Scratch::new();
    store(&scratch, 20_000);
    Run::in_dir(&scratch, &["backup", "db", "right"]).well();
    let dump = |db: &str| Run::in_dir(&scratch, &["dump", db, "t"]);
    let right = dump("db").well();
    let mut removed = 0;
    for round in 0..24_u64 {
        let delay = Duration::from_millis(2 + round * 3);
        let copy = format!("copy{round}");
        killed(&scratch, &["backup", "db", &copy], delay);
        let run = Run::in_dir(&scratch, &["restore", &copy, "--dry-run"]);
        assert!(run.code == 0 || run.stderr.contains("is not a backup"), "round {round}: {run:?}");
        for (command, source) in [("restore", "right"), ("compact", "db")] {
            let new = format!("{command}{round}");
            killed(&scratch, &[command, source, &new], delay);
            let run = dump(&new);
            let is_refused = run.stderr.contains("did not finish") || run.stderr.contains("holds no Azekura");
            assert!(run.code == 1 && is_refused || run.stdout == right, "round {round}: {}", run.stderr);
            if is_refused {
                let said = Run::in_dir(&scratch, &[command, source, &new]).well();
                assert!(said.contains("20,000 rows"), "{said}");
                assert_eq!(dump(&new).stdout, right, "round {round}");
                removed += u32::from(said.contains("removed the files of an unfinished"));
            }
        }
    }
    println!("{removed} unfinished copies were removed");
}

#[test]
fn an_encrypted_store_needs_its_key_file_for_each_command() {
    let scratch = Scratch::new();
    let old = scratch.file("old.key", &format!("{}\n", "0a".repeat(32)));
    let new = scratch.file("new.key", &"k".repeat(32));
    let file = scratch.file("rows.tsv", &rows(500));
    Run::in_dir(&scratch, &["load", "db", "t", &file, "--key-file", &old]).well();
    let get = |key: &[&str]| Run::in_dir(&scratch, &[&["get", "db", "t", "key000007"], key].concat());
    assert_eq!(get(&["--key-file", &old]).well().trim(), "value 7");
    let run = get(&[]);
    assert!(
        run.code == 1 && run.stderr.contains("is encrypted") && run.stderr.contains("--key-file"),
        "{run:?}"
    );
    let run = get(&["--key-file", &new]);
    assert!(run.code == 1 && run.stderr.contains("another key"), "{run:?}");
    let run = get(&["--key-file", &file]);
    assert!(run.code == 1 && run.stderr.contains("holds no key"), "{run:?}");
    let endless = get(&["--key-file", "/dev/zero"]).refused();
    assert!(endless.contains("/dev/zero holds no key"), "{endless}");
    Run::in_dir(&scratch, &["backup", "db", "copy", "--verify", "--key-file", &old]).well();
    let run = Run::in_dir(&scratch, &["restore", "copy", "new"]);
    assert!(run.code == 1 && run.stderr.contains("is encrypted"), "{run:?}");
    Run::in_dir(&scratch, &["restore", "copy", "new", "--verify", "--key-file", &old]).well();
    Run::in_dir(&scratch, &["compact", "db", "small", "--key-file", &old]).well();
    Run::in_dir(&scratch, &["change-key", "db", "--key-file", &old, "--new-key-file", &new]).well();
    assert_eq!(get(&["--key-file", &old]).code, 1);
    assert_eq!(Run::in_dir(&scratch, &["change-key", "db", "--new-key-file", &new]).code, 2);
    let dump = |db: &str, key: &str| Run::in_dir(&scratch, &["dump", db, "t", "--key-file", key]).well();
    let whole = dump("db", &new);
    let copy = |more: &[&str]| {
        Run::in_dir(&scratch, &[&["compact", "db", "anew", "--key-file", &new], more].concat())
    };
    assert_eq!(copy(&["--new-key-id", "office"]).code, 2);
    copy(&["--new-key-file", &old, "--new-key-id", "office"]).well();
    assert_eq!(dump("anew", &old), whole);
    let run = Run::in_dir(&scratch, &["dump", "anew", "t", "--key-file", &new]);
    assert!(run.code == 1 && run.stderr.contains("the key \"office\""), "{run:?}");
    assert!(
        whole.lines().count() == 500 && [dump("new", &old), dump("small", &old)] == [whole.clone(), whole]
    );
}
