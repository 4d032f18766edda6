//! The errors of wrong command lines, and the help.

use crate::support::{Run, Scratch};

#[test]
fn without_arguments_the_command_prints_examples() {
    let said = Run::of(&[]).well();
    for command in ["azekura demo", "azekura load", "azekura scan"] {
        assert!(said.contains(command), "{said}");
    }
}

#[test]
fn every_command_has_help_with_examples() {
    for command in [
        "demo",
        "load",
        "get",
        "put",
        "delete",
        "scan",
        "dump",
        "tables",
        "stats",
        "check",
        "backup",
        "restore",
        "archive",
        "compact",
        "completions",
        "man",
        "trace",
    ] {
        let help = Run::of(&command.split(' ').chain(["--help"]).collect::<Vec<_>>()).well();
        assert!(
            help.contains("Examples:") && help.contains(&format!("azekura {command}")),
            "{command}: {help}"
        );
        assert!(Run::of(&["--help"]).well().contains(command.split(' ').next().unwrap()));
    }
}

/// The log of a node must be synced when a move of a leaf is recorded: the other node forgets the leaf.
#[test]
fn a_node_of_a_cluster_needs_full_durability() {
    let scratch = Scratch::new();
    let arguments = ["serve", "a.azk", "--cluster", "cluster.toml", "--node", "0", "--durability", "relaxed"];
    let run = Run::in_dir(&scratch, &arguments);
    assert!(run.code == 2 && run.stderr.contains("not offered with --cluster"), "{run:?}");
    assert!(!scratch.path("a.azk").exists(), "no store is created");
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    let scratch = Scratch::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = Run::of(&["completions", shell]).well();
        for word in ["restore", "to-time", "compact"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    Run::in_dir(&scratch, &["man", "."]).well();
    for (page, word) in
        [("azekura.1", "azekura"), ("azekura-restore.1", "to\\-time"), ("azekura-load.1", "TABLE")]
    {
        let page = std::fs::read_to_string(scratch.path(page)).expect("is written");
        assert!(page.contains(".TH") && page.contains(word), "{page}");
    }
    let run = Run::in_dir(&scratch, &["man", "missing"]);
    assert!(run.code == 1 && run.stderr.contains("cannot write manual pages into missing"), "{run:?}");
}

#[test]
fn wrong_usage_ends_with_2_and_creates_nothing() {
    let scratch = Scratch::new();
    let file = scratch.file("rows.jsonl", "{}");
    for arguments in [
        &["frobnicate"][..],
        &["get", "db"],
        &["cluster", "start", "--dir", "try", "--nodes", "2", "--split-at", "a,b"],
        &["put", "db", "t", "k", "v", "--page-size", "5000"],
        &["put", "db", "t", "k", "v", "--cache", "lots"],
        &["put", "db", "t", "k", "\\q", "--escaped"],
        &["scan", "db", "t", "--limit", "-1"],
        &["load", "db", "t", &file],
        &["load", "db", "t", "--format", "xml"],
        &["load", "db", "t", "--format", "tsv", "--key", "id"],
        &["load", "db", "t", "--format", "csv", "--raw"],
        &["demo", "--rounds", "0"],
        &["put", "db", "t", "k", "v", "--archive", "s3://bucket/log"],
        &["put", "db", "t", "k", "v", "--archive", "gs://bucket/log"],
        &["put", "db", "t", "k", "v", "--archive", "-"],
        &["put", "db", "", "k", "v"],
        &["load", "db", &"t".repeat(256)],
    ] {
        let run = Run::in_dir(&scratch, arguments);
        assert_eq!(run.code, 2, "{arguments:?}: {}", run.stderr);
        assert!(run.stdout.is_empty() && !run.stderr.is_empty(), "{arguments:?}");
    }
    for absent in ["db", "gs:", "-"] {
        assert!(!scratch.path(absent).exists(), "{absent}");
    }
}

#[test]
fn reading_a_store_that_is_not_there_is_refused_and_creates_nothing() {
    let scratch = Scratch::new();
    let commands: [&[&str]; 7] = [
        &["get", "db", "t", "k"],
        &["delete", "db", "t", "k"],
        &["scan", "db", "t"],
        &["dump", "db", "t"],
        &["tables", "db"],
        &["stats", "db"],
        &["check", "db"],
    ];
    for arguments in commands {
        let said = Run::in_dir(&scratch, arguments).refused();
        assert!(said.contains("db holds no Azekura store"), "{arguments:?}: {said}");
        assert!(!scratch.path("db").exists(), "{arguments:?}");
    }
}

/// A directory that cannot be searched may hold a store.
#[test]
fn a_path_that_cannot_be_followed_is_named_with_the_reason() {
    let scratch = Scratch::new();
    std::os::unix::fs::symlink("db", scratch.path("db")).unwrap();
    for arguments in [&["get", "db", "t", "k"][..], &["delete", "db", "t", "k"], &["check", "db"]] {
        let said = Run::in_dir(&scratch, arguments).refused();
        assert!(
            said.contains("cannot open") && said.contains("db: Too many levels of symbolic links"),
            "{said}"
        );
    }
}

#[test]
fn a_second_opener_is_refused() {
    let scratch = Scratch::new();
    let db = azekura::Database::open(scratch.path("db")).unwrap();
    let said = Run::in_dir(&scratch, &["put", "db", "t", "k", "v"]).refused();
    assert!(said.contains("open already"), "{said}");
    drop(db);
    Run::in_dir(&scratch, &["put", "db", "t", "k", "v"]).well();
}

#[test]
fn a_file_in_place_of_a_store_is_refused_as_a_file() {
    let scratch = Scratch::new();
    let file = scratch.file("rows.tsv", "k\tv\n");
    let file = file.as_str();
    for arguments in [
        &["get", file, "t", "k"][..],
        &["check", file],
        &["delete", file, "t", "k"],
        &["put", file, "t", "k", "v"],
        &["load", file, "t"],
    ] {
        let refused = Run::in_dir(&scratch, arguments).refused();
        assert!(refused.contains("is a file; name the directory of a store"), "{refused}");
    }
    let refused = Run::in_dir(&scratch, &["get", "db", "t", "k"]).refused();
    assert!(refused.contains("`azekura load db TABLE FILE` creates one"), "{refused}");
}

#[test]
fn page_and_cache_size_are_taken() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| Run::in_dir(&scratch, arguments);
    run(&["put", "db", "t", "k", "v", "--page-size", "64K", "--cache", "8M"]).well();
    assert_eq!(run(&["get", "--cache", "8MiB", "db", "t", "k"]).well(), "v\n");
}

/// Returns the exit code and the messages of a command that a shell starts by `script`.
fn in_shell(scratch: &Scratch, script: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = std::process::Command::new("sh");
    command.current_dir(scratch.path("")).args(["-c", script, env!("CARGO_BIN_EXE_azekura")]);
    let output = command.args(arguments).output().expect("starts");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn a_file_beyond_the_limit_of_file_sizes_is_an_error() {
    let scratch = Scratch::new();
    let (code, said) = in_shell(&scratch, "ulimit -f 8; exec \"$0\" \"$@\"", &["put", "db", "t", "k", "v"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("File too large"), "{said}");
}

#[test]
fn output_to_a_closed_stdout_is_an_error() {
    let scratch = Scratch::new();
    let closed = "exec \"$0\" \"$@\" >&-";
    let (code, said) = in_shell(&scratch, closed, &["put", "db", "t", "k", "v"]);
    assert_eq!((code, said.as_str()), (Some(0), ""), "nothing to write");
    for arguments in [
        &["get", "db", "t", "k"][..],
        &["dump", "db", "t"],
        &["check", "db"],
        &["--help"],
        &["dump", "--help"],
        &["--version"],
    ] {
        let (code, said) = in_shell(&scratch, closed, arguments);
        assert_eq!(code, Some(1), "{arguments:?} {said}");
        assert!(said.contains("standard output: Bad file descriptor"), "{arguments:?} {said}");
    }
}

#[test]
fn a_closed_stdin_is_no_empty_input() {
    let scratch = Scratch::new();
    Run::in_dir(&scratch, &["put", "db", "t", "k", "v"]).well();
    for arguments in [&["put", "db", "t", "k"][..], &["load", "db", "t"], &["restore", "-", "copy"]] {
        let (code, said) = in_shell(&scratch, "exec \"$0\" \"$@\" <&-", arguments);
        assert_eq!(code, Some(1), "{arguments:?} {said}");
        assert!(said.contains("standard input: Bad file descriptor"), "{arguments:?} {said}");
    }
    assert_eq!(Run::in_dir(&scratch, &["get", "db", "t", "k"]).well(), "v\n");
}

#[test]
fn an_error_of_stdout_names_it() {
    let scratch = Scratch::new();
    Run::in_dir(&scratch, &["put", "db", "t", "k", "v"]).well();
    for arguments in
        [&["dump", "db", "t"][..], &["check", "db"], &["backup", "db", "-"], &["--help"], &["--version"]]
    {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_azekura"));
        let output = command.current_dir(scratch.path("")).args(arguments).stdout(full).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?} {said}");
        assert!(said.contains("standard output: No space left"), "{arguments:?} {said}");
    }
}
