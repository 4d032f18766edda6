//! The command `kv`: its report, and its recording with `--trace`.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Run, Scratch};

#[test]
fn kv_prints_one_json_object_per_run_and_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let quick = ["--seconds", "0.05", "--warm-up", "0", "--records", "500", "--dir", "stores"];
    let kv = |options: &[&str]| {
        let arguments = [&["kv"], options, &quick].concat();
        Run::in_dir(&scratch, &arguments).well()
    };
    let lines = kv(&["--workload", "u1,read", "--threads", "1,2", "--json"]);
    let reports: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let cells: Vec<_> =
        reports.iter().map(|r| (r["workload"].as_str().unwrap(), r["threads"].as_u64().unwrap())).collect();
    assert_eq!(cells, [("u1", 1), ("u1", 2), ("read", 1), ("read", 2)]);
    for name in [
        "engine",
        "in_flight",
        "seconds",
        "ops",
        "ops_per_s",
        "p50_us",
        "p99_us",
        "log_bytes",
        "settings_hash",
    ] {
        assert!(reports.iter().all(|report| !report[name].is_null()), "{name}: {lines}");
    }
    assert!(kv(&["--workload", "u1", "--threads", "2", "--in-flight", "8"]).contains("azekura async 8"));
    assert_eq!(std::fs::read_dir(scratch.path("stores")).unwrap().count(), 0);
}

#[test]
fn kv_records_a_trace_when_asked() {
    let scratch = Scratch::new();
    let kv = ["kv", "--workload", "u1", "--threads", "2", "--seconds", "0.05", "--records", "100"];
    let run = Run::in_dir(&scratch, &[&kv[..], &["--trace", "run.trace"]].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("recorded in run.trace"), "{}", run.stderr);
    let report = Run::in_dir(&scratch, &["azekura", "trace", "report", "run.trace"]).well();
    assert!(report.lines().count() > 3, "{report}");
}

#[test]
fn every_command_has_help_with_examples() {
    for command in
        ["kv", "tpcc", "sim", "nb-gclock", "p-wal", "far-memory", "fat-btree", "bottleneck", "far-goals"]
    {
        let help = Run::of(&[command, "--help"]).well();
        assert!(
            help.contains("Examples:") && help.contains(&format!("azekura-lab {command}")),
            "{command}: {help}"
        );
        assert!(Run::of(&["--help"]).well().contains(command));
    }
    assert!(Run::of(&["far-goals", "--help"]).well().contains("[default: adaptive]"));
}

#[test]
fn wrong_usage_ends_with_2() {
    let scratch = Scratch::new();
    for arguments in [
        &["frobnicate"][..],
        &["kv", "--workload", "u2"],
        &["kv", "--workload", "u1", "--threads", "0"],
        &["kv"],
    ] {
        let run = Run::in_dir(&scratch, arguments);
        assert_eq!(run.code, 2, "{arguments:?}: {}", run.stderr);
        assert!(run.stdout.is_empty() && !run.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_signal_removes_the_store_of_a_measurement() {
    let scratch = Scratch::new();
    let parent = scratch.path("");
    let mut lab = Command::new(env!("CARGO_BIN_EXE_azekura-lab"))
        .args(["kv", "--workload", "u1", "--seconds", "60"])
        .env("TMPDIR", &parent)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let has_store = || {
        let entry = fs::read_dir(&parent).unwrap().flatten().next();
        entry.is_some_and(|dir| fs::read_dir(dir.path()).is_ok_and(|mut files| files.next().is_some()))
    };
    while !has_store() {
        thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&lab), Signal::TERM).unwrap();
    assert_eq!(lab.wait().unwrap().code(), Some(128 + Signal::TERM.as_raw()));
    assert_eq!(fs::read_dir(&parent).unwrap().count(), 0);
}
