//! The command `tpcc`: its report, the files that it leaves, and the store after a kill.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Run, Scratch};

/// Arguments for the smallest database.
const SMALL: [&str; 3] = ["tpcc", "--scale", "100"];

fn tpcc(scratch: &Scratch, options: &[&str]) -> Run {
    Run::in_dir(scratch, &[&SMALL[..], options].concat())
}

fn report(run: &Run) -> Value {
    assert_eq!(run.code, 0, "{run:?}");
    serde_json::from_str(&run.stdout).expect("one JSON object")
}

#[test]
fn it_prints_one_json_object_and_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let options = ["--warehouses", "2", "--threads", "2", "--warm-up", "0.05", "--dir", "stores", "--json"];
    // On a busy machine the measurement is repeated with a longer time.
    let report = ["0.3", "3", "30"]
        .into_iter()
        .map(|seconds| report(&tpcc(&scratch, &[&options[..], &["--seconds", seconds]].concat())))
        .find(|report| report["ops"].as_u64() > Some(0))
        .expect("a transaction in 30 s");
    for name in [
        "workload",
        "engine",
        "threads",
        "in_flight",
        "seconds",
        "ops",
        "ops_per_s",
        "p50_us",
        "p99_us",
        "log_bytes",
        "settings_hash",
        "new_orders_per_minute",
        "retries",
        "rolled_back",
    ] {
        assert!(!report[name].is_null(), "{name}: {report}");
    }
    assert_eq!((&report["workload"], &report["scale_divisor"]), (&"tpcc".into(), &100.into()));
    assert!(report["ops"].as_u64() > Some(0) && report["log_bytes"].as_u64() > Some(0), "{report}");
    assert_eq!(report["checked"]["violated"], 0);
    assert_eq!(report["checked"]["comparisons"].as_array().map(Vec::len), Some(15));
    let of_kinds = report["transactions"].as_array().expect("a list");
    let sum: u64 = of_kinds.iter().filter_map(|kind| kind["ops"].as_u64()).sum();
    assert_eq!(report["ops"].as_u64(), Some(sum));
    assert_eq!(std::fs::read_dir(scratch.path("stores")).expect("is there").count(), 0);
}

#[test]
fn the_table_says_what_the_figures_are_and_what_they_are_not() {
    let scratch = Scratch::new();
    let mut run =
        tpcc(&scratch, &["--mix", "new-order", "--in-flight", "16", "--threads", "2", "--seconds", "0.1"]);
    assert!(run.stderr.contains("rows loaded in"), "{run:?}");
    run.stderr.clear();
    let text = run.well();
    for said in [
        "tpcc-new-order: 1 warehouse, scaled down to 1/100",
        "16 commits in flight",
        "not an audited tpmC",
        "all 15 hold",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert!(!text.contains("payment"), "{text}");
    let unchecked = tpcc(&scratch, &["--no-check", "--seconds", "0", "--threads", "1"]);
    assert!(unchecked.stdout.contains("not checked"), "{unchecked:?}");
}

#[test]
fn a_kept_store_is_reused_and_one_of_another_size_is_refused() {
    let scratch = Scratch::new();
    let keep = ["--dir", "stores", "--keep", "--seconds", "0.1", "--threads", "2", "--json"];
    let first = report(&tpcc(&scratch, &keep));
    assert_eq!((&first["earlier_runs"], &first["recovered_records"]), (&0.into(), &Value::Null));
    let second = report(&tpcc(&scratch, &keep));
    assert_eq!((&second["earlier_runs"], &second["load_seconds"]), (&1.into(), &Value::Null));
    assert_ne!(first["settings_hash"], second["settings_hash"]);
    let other = tpcc(&scratch, &[&keep[..], &["--warehouses", "2"]].concat());
    assert!(other.refused().contains("holds TPC-C with 1 warehouses at a scale of 1/100"));
    assert!(scratch.path("stores").join("tpcc-azekura").is_dir(), "it was not touched");
}

/// A process that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a process has used half a second of processor time since the call, or for a minute.
fn wait_for_work(child: &Child) {
    let used = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        // The name may have any bytes and ends with the last parenthesis. The times are fields 14 and 15.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>()
    };
    let (began, before) = (Instant::now(), used());
    // A tick is 10 ms.
    while used() < before + 50 && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn all_conditions_hold_after_a_kill_in_the_middle_of_a_run_and_again_after_going_on() {
    let scratch = Scratch::new();
    let keep = ["--warehouses", "2", "--dir", "stores", "--keep"];
    // Each log protocol; another one recovers the store.
    for (round, (commits, log, next_log)) in [
        (&["--threads", "4"][..], "p-wal", "serial"),
        (&["--threads", "4", "--in-flight", "64"], "p-wal", "epoch:2"),
        (&["--threads", "4"], "serial", "epoch:2"),
        (&["--threads", "4", "--in-flight", "64"], "epoch:2", "p-wal"),
    ]
    .into_iter()
    .enumerate()
    {
        let child = Command::new(env!("CARGO_BIN_EXE_azekura-lab"))
            .current_dir(scratch.path("."))
            .args(
                [&SMALL[..], &keep, commits, &["--log", log, "--seconds", "600", "--warm-up", "0"]].concat(),
            )
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut child = Killed(child);
        let stderr = child.0.stderr.take().expect("is piped");
        let mut said = BufReader::new(stderr).lines().map(|line| line.expect("is text"));
        let expected = if round == 0 { "rows loaded in" } else { "going on with" };
        assert!(said.next().is_some_and(|line| line.contains(expected)));
        assert_eq!(said.next().as_deref(), Some("4 threads for 600.0 s"));
        wait_for_work(&child.0);
        std::thread::sleep(Duration::from_millis(600));
        assert!(child.0.try_wait().expect("can be asked").is_none(), "it still runs");
        drop(child);

        // This run also checks the rows that it finds: it would refuse a store with a violation.
        let short = ["--log", next_log, "--threads", "2", "--seconds", "0.2", "--json"];
        let after = report(&tpcc(&scratch, &[&keep[..], &short].concat()));
        assert_eq!(after["settings"]["azekura.log"], next_log, "{after}");
        assert!(after["recovered_records"].as_u64() > Some(0), "the kill left work to recover: {after}");
        assert_eq!(after["checked"]["violated"], 0, "{after}");
    }
}
