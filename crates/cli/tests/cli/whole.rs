//! Commands on a whole store: `stats`, `check` and similar.

use crate::demo::TRIALS;
use crate::support::{Run, Scratch};

#[test]
fn tables_stats_and_check_tell_about_the_store() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| Run::in_dir(&scratch, arguments);
    run(&["put", "db", "b", "k", "v"]).well();
    run(&["put", "db", "a", "k", "v"]).well();
    run(&["put", "db", "a", "l", "v"]).well();
    assert_eq!(run(&["tables", "db"]).well(), "a\tbytes\tbytes\nb\tbytes\tbytes\n");
    assert_eq!(run(&["tables", "db", "--count"]).well(), "a\tbytes\tbytes\t2\nb\tbytes\tbytes\t1\n");
    let checked = run(&["check", "db"]).well();
    assert!(checked.contains("a: 2 rows") && checked.ends_with("clean\n"), "{checked}");
    let report: serde_json::Value = serde_json::from_str(&run(&["check", "db", "--json"]).well()).unwrap();
    assert_eq!(report["findings"].as_array().unwrap().len(), 0);
    let stats: serde_json::Value = serde_json::from_str(&run(&["stats", "db", "--json"]).well()).unwrap();
    assert!(stats.as_object().is_some_and(|stats| !stats.is_empty()));
    assert!(run(&["stats", "db"]).well().lines().count() >= stats.as_object().unwrap().len());
}

#[test]
fn a_table_name_with_a_line_end_is_one_line_of_a_check() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| Run::in_dir(&scratch, arguments);
    run(&["put", "db", "a\nb", "k", "v"]).well();
    assert!(run(&["check", "db"]).well().starts_with("a\\nb: 1 row\n"));
}

/// Reading commands write nothing, and do not wait for a process that writes.
#[test]
fn commands_that_read_write_nothing_and_say_what_to_do_about_a_store_in_use() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| Run::in_dir(&scratch, arguments);
    run(&["put", "db", "t", "k", "v"]).well();
    let files = || {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(scratch.path("db")).unwrap() {
            let (entry, meta) = entry.map(|entry| (entry.path(), entry.metadata().unwrap())).unwrap();
            found.push((entry, meta.len(), meta.modified().unwrap()));
        }
        found.sort();
        found
    };
    let before = files();
    let reads: [&[&str]; 6] = [
        &["get", "db", "t", "k"],
        &["scan", "db", "t"],
        &["dump", "db", "t"],
        &["tables", "db"],
        &["check", "db"],
        &["stats", "db"],
    ];
    for arguments in reads {
        run(arguments).well();
    }
    assert_eq!(files(), before);
    let writer = azekura::Database::open(scratch.path("db")).unwrap();
    for arguments in reads {
        let refused = run(arguments).refused();
        assert!(refused.contains("another process") && refused.contains("INFO"), "{refused}");
    }
    writer.close().unwrap();
    let reader = azekura::Database::open_read_only(scratch.path("db")).unwrap();
    for arguments in reads {
        run(arguments).well();
    }
    // A repair writes: on a store opened for reading the freed pages would be lost.
    let refused = run(&["check", "db", "--repair"]).refused();
    assert!(refused.contains("open already"), "{refused}");
    reader.close().unwrap();
}

#[test]
fn the_demo_records_a_trace_that_trace_report_reads() {
    let scratch = Scratch::new();
    let demo =
        ["demo", "--rounds", "1", "--seconds-per-round", "0.3", "--threads", "2", "--trace", "run.trace"];
    // On a busy machine the child may be killed before its recording has begun.
    let trial = || {
        let run = Run::in_dir(&scratch, &demo);
        assert_eq!(run.code, 0, "{}", run.stderr);
        Run::in_dir(&scratch, &["trace", "report", "run.trace"])
    };
    let mut report = trial();
    for _ in 1..TRIALS {
        if report.code == 0 {
            break;
        }
        report = trial();
    }
    let report = report.well();
    assert!(report.lines().count() > 3, "{report}");
    let json = Run::in_dir(&scratch, &["trace", "report", "run.trace", "--format", "json"]).well();
    assert!(serde_json::from_str::<serde_json::Value>(&json).unwrap().is_object());
    let page = ["trace", "report", "run.trace", "--format", "html", "-o", "run.html"];
    assert_eq!(Run::in_dir(&scratch, &page).well(), "");
    assert!(std::fs::read_to_string(scratch.path("run.html")).unwrap().contains("<html"));
    // A report that fails leaves the previous one as it is.
    let before = std::fs::read(scratch.path("run.html")).unwrap();
    let typo = ["trace", "report", "run.trace", "--operation", "typo", "-o", "run.html"];
    assert!(Run::in_dir(&scratch, &typo).refused().contains("typo"));
    assert_eq!(std::fs::read(scratch.path("run.html")).unwrap(), before);
    // A shorter report replaces a longer one.
    std::fs::write(scratch.path("run.json"), vec![b'x'; json.len() + 100]).unwrap();
    let shorter = ["trace", "report", "run.trace", "--format", "json", "-o", "run.json"];
    assert_eq!(Run::in_dir(&scratch, &shorter).well(), "");
    assert_eq!(std::fs::read_to_string(scratch.path("run.json")).unwrap(), json);
    for baseline in ["--baseline=0", "--baseline=nan", "--baseline=inf"] {
        let run = Run::in_dir(&scratch, &["trace", "report", "run.trace", baseline]);
        assert!(run.code == 2 && run.stderr.contains("greater than 0"), "{run:?}");
    }
    let piped = std::fs::read(scratch.path("run.trace")).unwrap();
    assert_eq!(Run::with_stdin(&scratch, &["trace", "report", "/dev/stdin"], &piped).well(), report);
    let same = Run::in_dir(&scratch, &["trace", "report", "run.trace", "-o", "./run.trace"]).refused();
    assert!(same.contains("is a recording"), "{same}");
    let full =
        Run::in_dir(&scratch, &["trace", "report", "run.trace", "--format", "html", "-o", "/dev/full"]);
    assert!(full.code == 1 && full.stderr.contains("cannot write /dev/full"), "{full:?}");
    Run::in_dir(&scratch, &["trace", "diff", "run.trace", "run.trace"]).well();
    assert!(Run::in_dir(&scratch, &["trace", "report", "run.html"]).refused().contains("run.html"));
    assert!(Run::in_dir(&scratch, &["trace", "report", "absent"]).refused().contains("absent"));
}

#[test]
fn a_recording_that_cannot_be_written_is_an_error_unless_the_program_failed() {
    let scratch = Scratch::new();
    let azekura = env!("CARGO_BIN_EXE_azekura");
    for (script, code) in [("\"$0\" put db t k v", 1), ("\"$0\" put db t k v; exit 7", 7)] {
        let output = std::process::Command::new(azekura)
            .args(["trace", "record", "-o", "/dev/full", "--", "sh", "-c", script, azekura])
            .current_dir(scratch.path(""))
            .env("TMPDIR", scratch.path("")) // keeps the recordings
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains("cannot write /dev/full: No space left"), "{said}");
        assert!(said.contains("are kept in"), "{said}");
    }
}

/// The recorder's own files are in a directory with a relative path, too.
#[test]
fn a_program_that_changes_its_directory_is_recorded_with_those_that_it_starts() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("temporary")).unwrap();
    let (azekura, store) = (env!("CARGO_BIN_EXE_azekura"), scratch.path("db"));
    let script = format!("cd / && {azekura} put {} t k v", store.display());
    let output = std::process::Command::new(azekura)
        .args(["trace", "record", "-o", "run.trace", "--", "sh", "-c", &script])
        .current_dir(scratch.path(""))
        .env("TMPDIR", "temporary")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = Run::in_dir(&scratch, &["trace", "report", "run.trace"]).well();
    assert!(report.contains("azekura"), "{report}");
}

/// Under a limit of the address space, the recorder and its program share less memory.
#[test]
fn a_command_with_limited_address_space_records() {
    let scratch = Scratch::new();
    let script = "ulimit -v 400000 && exec \"$0\" trace record -o run.trace -- \
                  dd if=/dev/zero of=synced bs=1 count=1 conv=fsync";
    let output = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_azekura")])
        .current_dir(scratch.path(""))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = Run::in_dir(&scratch, &["trace", "report", "run.trace"]).well();
    assert!(report.contains("fsync"), "{report}");
}
