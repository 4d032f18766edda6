//! What is said of a whole store.

use crate::support::{Run, Scratch};

#[test]
fn tables_stats_and_check_tell_about_the_store() {
    let scratch = Scratch::new();
    let run = |arguments: &[&str]| Run::in_dir(&scratch, arguments);
    run(&["put", "db", "b", "k", "v"]).well();
    run(&["put", "db", "a", "k", "v"]).well();
    run(&["put", "db", "a", "l", "v"]).well();
    assert_eq!(run(&["tables", "db"]).well(), "a\nb\n");
    assert_eq!(run(&["tables", "db", "--count"]).well(), "a\t2\nb\t1\n");
    let checked = run(&["check", "db"]).well();
    assert!(checked.contains("a: 2 rows") && checked.ends_with("clean\n"), "{checked}");
    let report: serde_json::Value = serde_json::from_str(&run(&["check", "db", "--json"]).well()).unwrap();
    assert_eq!(report["findings"].as_array().unwrap().len(), 0);
    let stats: serde_json::Value = serde_json::from_str(&run(&["stats", "db", "--json"]).well()).unwrap();
    assert!(stats.as_object().is_some_and(|stats| !stats.is_empty()));
    assert!(run(&["stats", "db"]).well().lines().count() >= stats.as_object().unwrap().len());
}

#[test]
fn bench_prints_one_json_object_per_run_and_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let quick = ["--seconds", "0.05", "--warm-up", "0", "--records", "500", "--dir", "stores"];
    let bench = |options: &[&str]| {
        let arguments = [&["bench", "kv"], options, &quick].concat();
        Run::in_dir(&scratch, &arguments).well()
    };
    let lines = bench(&["--workload", "u1,read", "--threads", "1,2", "--json"]);
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
    assert!(bench(&["--workload", "u1", "--threads", "2", "--in-flight", "8"]).contains("azekura async 8"));
    assert_eq!(std::fs::read_dir(scratch.path("stores")).unwrap().count(), 0);
}

#[test]
fn bench_records_a_trace_when_asked() {
    let scratch = Scratch::new();
    let bench =
        ["bench", "kv", "--workload", "u1", "--threads", "2", "--seconds", "0.05", "--records", "100"];
    let run = Run::in_dir(&scratch, &[&bench[..], &["--trace", "run.trace"]].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("recorded in run.trace"), "{}", run.stderr);
    let report = Run::in_dir(&scratch, &["trace", "report", "run.trace"]).well();
    assert!(report.lines().count() > 3, "{report}");
    let json = Run::in_dir(&scratch, &["trace", "report", "run.trace", "--format", "json"]).well();
    assert!(serde_json::from_str::<serde_json::Value>(&json).unwrap().is_object());
    let page = ["trace", "report", "run.trace", "--format", "html", "-o", "run.html"];
    assert_eq!(Run::in_dir(&scratch, &page).well(), "");
    assert!(std::fs::read_to_string(scratch.path("run.html")).unwrap().contains("<html"));
    Run::in_dir(&scratch, &["trace", "diff", "run.trace", "run.trace"]).well();
    assert!(Run::in_dir(&scratch, &["trace", "report", "run.html"]).refused().contains("run.html"));
    assert!(Run::in_dir(&scratch, &["trace", "report", "absent"]).refused().contains("absent"));
}
