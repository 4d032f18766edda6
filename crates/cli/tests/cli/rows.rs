//! Commands on single rows and on ranges.

use crate::support::{Run, Scratch};

#[test]
fn a_row_is_put_got_replaced_and_deleted() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| Run::in_dir(&scratch, arguments);
    assert_eq!(run(&["put", "db", "t", "k", "one"]).well(), "");
    assert_eq!(run(&["get", "db", "t", "k"]).well(), "one\n");
    run(&["put", "db", "t", "k", "two"]).well();
    assert_eq!(run(&["get", "db", "t", "k", "-n"]).well(), "two");
    assert_eq!(run(&["delete", "db", "t", "k"]).well(), "");
    assert!(run(&["get", "db", "t", "k"]).refused().contains("no key \"k\" in table \"t\""));
    assert!(run(&["delete", "db", "t", "k"]).refused().contains("no key \"k\" in table \"t\""));
    let said = run(&["get", "db", "other", "k"]).refused();
    assert!(said.contains("no table named \"other\"") && said.contains("the store has t"), "{said}");
    assert!(run(&["delete", "db", "other", "k"]).refused().contains("no table named"));
}

#[test]
fn a_value_from_stdin_is_taken_byte_for_byte() {
    let scratch = Scratch::new();
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    for arguments in [&["put", "db", "t", "k"][..], &["put", "db", "t", "k", "-"]] {
        Run::with_stdin(&scratch, arguments, &bytes).well();
        assert_eq!(Run::in_dir(&scratch, &["get", "db", "t", "k", "-n"]).raw_stdout, bytes);
    }
}

#[test]
fn keys_with_any_bytes_can_be_named_by_their_escapes() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| Run::in_dir(&scratch, arguments);
    run(&["put", "db", "t", "-e", r"\x00\xff\n", r"tab\there"]).well();
    assert_eq!(run(&["scan", "db", "t"]).well(), "\\x00\\xff\\n\ttab\\there\n");
    assert_eq!(run(&["get", "db", "t", "--escaped", r"\x00\xFF\n"]).well(), "tab\there\n");
    assert_eq!(run(&["scan", "db", "t", "--keys-only", "-e", "--prefix", r"\x00"]).well(), "\\x00\\xff\\n\n");
    run(&["delete", "db", "t", "-e", r"\x00\xff\n"]).well();
    assert_eq!(run(&["scan", "db", "t"]).well(), "");
}

#[test]
fn keys_and_values_may_begin_with_a_minus_sign() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| Run::in_dir(&scratch, arguments);
    run(&["put", "db", "t", "-5", "-7.5"]).well();
    run(&["put", "db", "t", "--", "-x", "-y"]).well();
    assert_eq!(run(&["get", "db", "t", "-5"]).well(), "-7.5\n");
    assert_eq!(run(&["scan", "db", "t", "--from", "-6", "--to", "-y"]).well(), "-x\t-y\n");
    assert_eq!(run(&["scan", "db", "t", "--prefix", "-5", "--keys-only"]).well(), "-5\n");
    run(&["delete", "db", "t", "-5"]).well();
    assert_eq!(run(&["scan", "db", "t"]).well(), "-x\t-y\n");
}

#[test]
fn scan_prints_the_range_asked_for() {
    let scratch = Scratch::new();
    let rows = scratch.file("rows.tsv", "a\t1\nb\t2\nba\t3\nc\t4\nd\t5\n");
    Run::in_dir(&scratch, &["load", "db", "t", &rows]).well();
    let keys = |options: &[&str]| {
        let arguments = [&["scan", "db", "t", "--keys-only"], options].concat();
        Run::in_dir(&scratch, &arguments).well().split_terminator('\n').map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(keys(&[]), ["a", "b", "ba", "c", "d"]);
    assert_eq!(keys(&["--from", "b", "--to", "d"]), ["b", "ba", "c"]);
    assert_eq!(keys(&["--from", "aa"]), ["b", "ba", "c", "d"]);
    assert_eq!(keys(&["--prefix", "b"]), ["b", "ba"]);
    assert_eq!(keys(&["--prefix", "b", "--from", "b0"]), ["ba"]);
    assert_eq!(keys(&["--reverse", "--limit", "2"]), ["d", "c"]);
    assert_eq!(keys(&["--limit", "0"]), [""; 0]);
    assert_eq!(keys(&["--from", "d", "--to", "b"]), [""; 0]);
    assert_eq!(keys(&["--from", "d", "--to", "b", "--reverse"]), [""; 0]);
    assert_eq!(Run::in_dir(&scratch, &["scan", "db", "t", "--from", "c"]).well(), "c\t4\nd\t5\n");
    assert!(Run::in_dir(&scratch, &["scan", "db", "none"]).refused().contains("no table named \"none\""));
}

#[test]
fn a_reader_that_stops_listening_ends_a_dump_quietly() {
    let scratch = Scratch::new();
    let text = (0..50_000).map(|n| format!("{n:05}\t{}\n", "v".repeat(50))).collect::<String>();
    Run::with_stdin(&scratch, &["load", "db", "t"], text.as_bytes()).well();
    let run = Run::reading_only(&scratch, &["dump", "db", "t"], 100);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
    assert!(run.stdout.starts_with("00000\tvvv"), "{}", run.stdout);
}
