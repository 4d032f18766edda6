//! The runner counts the completed work, notices wrong answers, and continues when one engine fails.
//!
//! The engines of these tests are the in-memory reference engine with one fault each.

use azekura_lab::adapter::memory::MemoryEngine;
use azekura_lab::engine::{ReadWork, WriteWork};
use azekura_lab::{
    BenchError, Engine, EngineError, EngineSettings, Outcome, Plan, Progress, Reader, Report, Session, Sink,
    Store, Ticket, Writer, compare,
};
use azekura_workload::Workload;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A fault of an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Reads of every other key find nothing.
    LosesRecords,
    /// Scans return a damaged value.
    DamagesValues,
    /// Scans leave out the first record.
    ScansTooLittle,
    /// Every tenth write fails once with a conflict.
    Conflicts,
    /// The third write fails.
    Breaks,
    /// The third write panics.
    Panics,
    /// Opening fails.
    DoesNotOpen,
    /// Opening the third session fails.
    FewSessions,
    /// The engine reports that it has no ordered scans.
    LacksOrder,
}

#[derive(Debug)]
struct Faulty {
    inner: MemoryEngine,
    name: String,
    fault: Fault,
    seen: Arc<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    writes: AtomicUsize,
    sessions: AtomicUsize,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
    opened: AtomicUsize,
    /// Sequence numbers of the store's openings, over all engines.
    openings: Mutex<Vec<usize>>,
    values: Mutex<Vec<Vec<u8>>>,
}

impl Faulty {
    fn new(name: &str, fault: Fault) -> Self {
        Self { inner: MemoryEngine::default(), name: name.into(), fault, seen: Arc::default() }
    }
}

impl Engine for Faulty {
    fn name(&self) -> &str {
        &self.name
    }
    fn describe(&self, settings: &EngineSettings) -> BTreeMap<String, String> {
        self.inner.describe(settings)
    }
    fn pipelines(&self) -> bool {
        true
    }
    fn lacks(&self, workload: &Workload) -> Option<&'static str> {
        let is_lacking = self.fault == Fault::LacksOrder && workload.to_string() == "ycsb-e";
        is_lacking.then_some("no ordered scan")
    }
    fn open(&self, dir: &Path, settings: &EngineSettings) -> Result<Box<dyn Store>, EngineError> {
        if self.fault == Fault::DoesNotOpen {
            return Err(EngineError::failed("opening", "no such luck"));
        }
        assert_eq!(self.seen.opened.fetch_add(1, SeqCst), 0, "one store at a time");
        static OPENING: AtomicUsize = AtomicUsize::new(0);
        let number = OPENING.fetch_add(1, SeqCst);
        self.seen.openings.lock().expect("nobody panicked here").push(number);
        let inner = self.inner.open(dir, settings)?;
        self.seen.sessions.store(0, SeqCst);
        Ok(Box::new(FaultyStore { inner, fault: self.fault, seen: Arc::clone(&self.seen) }))
    }
}

struct FaultyStore {
    inner: Box<dyn Store>,
    fault: Fault,
    seen: Arc<Seen>,
}

impl Drop for FaultyStore {
    fn drop(&mut self) {
        self.seen.opened.fetch_sub(1, SeqCst);
    }
}

impl Store for FaultyStore {
    fn session(&self) -> Result<Box<dyn Session + '_>, EngineError> {
        if self.seen.sessions.fetch_add(1, SeqCst) == 2 && self.fault == Fault::FewSessions {
            return Err(EngineError::failed("opening a session", "too many"));
        }
        Ok(Box::new(FaultySession { inner: self.inner.session()?, fault: self.fault, seen: &self.seen }))
    }
    fn log_bytes(&self) -> Option<u64> {
        self.inner.log_bytes()
    }
}

struct FaultySession<'s> {
    inner: Box<dyn Session + 's>,
    fault: Fault,
    seen: &'s Arc<Seen>,
}

impl FaultySession<'_> {
    /// Counts a write. The third one fails or panics if the fault requires it.
    fn before_write(&self) -> Result<(), EngineError> {
        match (self.fault, self.seen.writes.fetch_add(1, SeqCst)) {
            (Fault::Breaks, 2) => Err(EngineError::failed("committing", "disk full")),
            (Fault::Panics, 2) => panic!("this test's engine panics on purpose"),
            _ => Ok(()),
        }
    }
}

impl Session for FaultySession<'_> {
    fn read(&mut self, work: &mut ReadWork<'_>) -> Result<u64, EngineError> {
        let fault = self.fault;
        self.inner.read(&mut |reader| work(&mut FaultyReader { inner: reader, fault }))
    }
    fn write(&mut self, work: &mut WriteWork<'_>) -> Result<u64, EngineError> {
        self.before_write()?;
        let again = self.fault == Fault::Conflicts && self.seen.writes.load(SeqCst).is_multiple_of(10);
        let values = &self.seen.values;
        let retries = self.inner.write(&mut |writer| {
            if again {
                work(&mut Discard)?;
            }
            work(&mut Spy { inner: writer, values })
        })?;
        Ok(retries + u64::from(again))
    }
    fn write_async(&mut self, work: &mut WriteWork<'_>) -> Result<(u64, Box<dyn Ticket>), EngineError> {
        let (retries, inner) = self.inner.write_async(work)?;
        let now = self.seen.in_flight.fetch_add(1, SeqCst) + 1;
        self.seen.most_in_flight.fetch_max(now, SeqCst);
        Ok((retries, Box::new(FaultyTicket { inner: Some(inner), seen: Arc::clone(self.seen) })))
    }
}

/// A ticket that never reports its commit as durable before a wait.
struct FaultyTicket {
    inner: Option<Box<dyn Ticket>>,
    seen: Arc<Seen>,
}

impl Ticket for FaultyTicket {
    fn is_durable(&self) -> Result<bool, EngineError> {
        Ok(false)
    }
    fn wait(mut self: Box<Self>) -> Result<(), EngineError> {
        self.seen.in_flight.fetch_sub(1, SeqCst);
        self.inner.take().expect("waited for once").wait()
    }
}

struct FaultyReader<'r> {
    inner: &'r mut dyn Reader,
    fault: Fault,
}

impl Reader for FaultyReader<'_> {
    fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        let lost = self.fault == Fault::LosesRecords && key.last().is_some_and(|b| b.is_multiple_of(2));
        Ok(!lost && self.inner.get(key, sink)?)
    }
    fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        match self.fault {
            Fault::DamagesValues => {
                sink.add(b"key", &[7; 100]);
                self.inner.scan(from, limit, sink)
            }
            Fault::ScansTooLittle => self.inner.scan(&[from, &[1]].concat(), limit, sink),
            _ => self.inner.scan(from, limit, sink),
        }
    }
    fn scan_back(&mut self, limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        self.inner.scan_back(limit, sink)
    }
}

/// A writer that ignores the writes of an attempt that will be retried.
struct Discard;

impl Reader for Discard {
    fn get(&mut self, _key: &[u8], _sink: &mut Sink) -> Result<bool, EngineError> {
        Ok(false)
    }
    fn scan(&mut self, _from: &[u8], _limit: u64, _sink: &mut Sink) -> Result<(), EngineError> {
        Ok(())
    }
    fn scan_back(&mut self, _limit: u64, _sink: &mut Sink) -> Result<(), EngineError> {
        Ok(())
    }
}

impl Writer for Discard {
    fn put(&mut self, _key: &[u8], _value: &[u8]) -> Result<(), EngineError> {
        Ok(())
    }
    fn remove(&mut self, _key: &[u8]) -> Result<(), EngineError> {
        Ok(())
    }
}

struct Spy<'w> {
    inner: &'w mut dyn Writer,
    values: &'w Mutex<Vec<Vec<u8>>>,
}

impl Reader for Spy<'_> {
    fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        self.inner.get(key, sink)
    }
    fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        self.inner.scan(from, limit, sink)
    }
    fn scan_back(&mut self, limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        self.inner.scan_back(limit, sink)
    }
}

impl Writer for Spy<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        let mut values = self.values.lock().expect("no writer panicked here");
        if values.len() < 100_000 {
            values.push(value.to_vec());
        }
        self.inner.put(key, value)
    }
    fn remove(&mut self, key: &[u8]) -> Result<(), EngineError> {
        self.inner.remove(key)
    }
}

fn plan(dir: &Path, workload: &str) -> Plan {
    let workload: Workload = workload.parse().expect("a name of a workload");
    Plan {
        workloads: vec![workload.with_records(2_000)],
        threads: vec![2],
        runs: 2,
        measured: Duration::from_millis(15),
        ..Plan::in_dir(dir)
    }
}

fn run_all(engines: Vec<Faulty>, plan: &Plan) -> (Outcome, Vec<Arc<Seen>>) {
    let seen = engines.iter().map(|e| Arc::clone(&e.seen)).collect();
    let engines: Vec<Box<dyn Engine>> = engines.into_iter().map(|e| Box::new(e) as _).collect();
    let outcome =
        compare(&engines, plan, &Progress::hidden(), &mut |_| {}).expect("the directory can be made");
    (outcome, seen)
}

fn run_one(fault: Fault, plan: &Plan) -> (Outcome, Arc<Seen>) {
    let (outcome, mut seen) = run_all(vec![Faulty::new("faulty", fault)], plan);
    (outcome, seen.remove(0))
}

#[test]
fn every_workload_runs_and_its_report_is_in_order() {
    let dir = tempfile::tempdir().unwrap();
    for name in Workload::names() {
        let plan = Plan { warm_up: Duration::from_millis(2), ..plan(dir.path(), &name) };
        let (outcome, _) = run_one(Fault::None, &plan);
        assert!(outcome.failures.is_empty(), "{name}: {:?}", outcome.failures);
        let [report] = &outcome.reports[..] else { panic!("{name}: one report") };
        assert_eq!((report.workload.as_str(), report.engine.as_str()), (name.as_str(), "faulty"));
        assert!(report.ops > 0 && report.seconds > 0.0, "{name}");
        // Seconds are rounded to microseconds, and runs take a few milliseconds.
        let rate = report.ops as f64 / report.seconds;
        assert!((report.ops_per_s / rate - 1.0).abs() < 0.01, "{name}: {} and {rate}", report.ops_per_s);
        assert!(report.p50_us <= report.p99_us && report.p99_us <= report.p999_us, "{name}");
        assert!(report.p999_us <= report.max_us * 1.02, "{name}: {report:?}");
        assert_eq!(report.run_ops_per_s.len(), 2);
        assert!(report.run_ops_per_s.contains(&report.ops_per_s));
        if name == "load" {
            assert_eq!(report.ops, 2_000);
        }
        if name == "scan" {
            assert_eq!(report.ops % 2_000, 0, "whole scans");
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "stores are removed");
}

#[test]
fn a_report_is_one_line_of_json_with_the_promised_fields() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan { revision: Some("abc123".into()), ..plan(dir.path(), "u1") };
    let (outcome, _) = run_one(Fault::None, &plan);
    let json = outcome.reports[0].to_json();
    assert!(!json.contains('\n'));
    let fields: serde_json::Value = serde_json::from_str(&json).unwrap();
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
        "machine",
        "date",
        "revision",
        "runs",
        "spread",
    ] {
        assert!(!fields[name].is_null(), "{name} in {json}");
    }
    assert_eq!(fields["revision"], "abc123");
    let (read, written) = (serde_json::from_str::<Report>(&json).unwrap(), &outcome.reports[0]);
    assert_eq!((read.ops, &read.settings, &read.machine), (written.ops, &written.settings, &written.machine));
    // Floating-point numbers may differ in the last bit.
    assert!((read.ops_per_s / written.ops_per_s - 1.0).abs() < 1e-12);
}

#[test]
fn log_bytes_are_those_of_the_measured_stretch() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan { warm_up: Duration::from_millis(10), ..plan(dir.path(), "u1") };
    let report = &run_one(Fault::None, &plan).0.reports[0];
    // The reference engine counts key and value of every update. The count excludes filling and warm-up.
    assert_eq!(report.log_bytes, Some(report.ops * 108));
}

#[test]
fn lost_records_are_a_wrong_answer() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["read", "rl", "ycsb-a", "ycsb-f"] {
        let plan = Plan { measured: Duration::from_millis(60), ..plan(dir.path(), name) };
        // On a busy machine a run may be over before a lost record is read.
        let mut trials = (0..20).map(|_| run_one(Fault::LosesRecords, &plan).0);
        let outcome = trials.find(|outcome| !outcome.failures.is_empty()).unwrap_or_default();
        let [failure] = &outcome.failures[..] else { panic!("{name} did not notice") };
        assert!(
            matches!(failure.error, BenchError::WrongAnswer { what: "reads that found nothing", .. }),
            "{failure}"
        );
        assert!(outcome.reports.is_empty());
    }
}

#[test]
fn damaged_values_and_short_scans_are_wrong_answers() {
    let dir = tempfile::tempdir().unwrap();
    for (fault, expected) in [(Fault::DamagesValues, "damaged values"), (Fault::ScansTooLittle, "records")] {
        for name in ["scan", "u1", "load"] {
            let (outcome, _) = run_one(fault, &plan(dir.path(), name));
            let [failure] = &outcome.failures[..] else { panic!("{name} did not notice {fault:?}") };
            assert!(
                matches!(failure.error, BenchError::WrongAnswer { what, .. } if what == expected),
                "{name}: {failure}"
            );
        }
    }
}

#[test]
fn retries_are_counted_and_count_as_one_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan { threads: vec![1], runs: 1, ..plan(dir.path(), "u1") };
    let (outcome, _) = run_one(Fault::Conflicts, &plan);
    let report = &outcome.reports[0];
    let expected = report.ops / 10;
    assert!(
        report.retries.abs_diff(expected) <= 1,
        "{} retries of {} transactions",
        report.retries,
        report.ops
    );
    assert_eq!(report.log_bytes, Some(report.ops * 108));
}

#[test]
fn the_work_of_an_aborted_attempt_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let mut plan = plan(dir.path(), "load");
    plan.workloads[0] = plan.workloads[0].clone().with_group(10);
    let (outcome, _) = run_one(Fault::Conflicts, &plan);
    let report = &outcome.reports[0];
    assert!(report.retries > 0);
    assert_eq!(report.ops, 2_000);
}

#[test]
fn one_engine_that_fails_does_not_stop_the_others() {
    let dir = tempfile::tempdir().unwrap();
    for fault in [Fault::Breaks, Fault::Panics, Fault::DoesNotOpen, Fault::FewSessions] {
        let engines = vec![Faulty::new("bad", fault), Faulty::new("good", Fault::None)];
        let (outcome, _) = run_all(engines, &plan(dir.path(), "u1"));
        assert_eq!(outcome.failures.len(), 1, "{fault:?}");
        assert_eq!(outcome.failures[0].engine, "bad");
        let engines: Vec<&str> = outcome.reports.iter().map(|r| r.engine.as_str()).collect();
        assert_eq!(engines, ["good"], "{fault:?}");
    }
}

#[test]
fn an_engine_that_lacks_what_a_workload_needs_is_left_out_of_it_and_that_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    for (workload, ran) in [("ycsb-e", vec!["ordered"]), ("ycsb-a", vec!["unordered", "ordered"])] {
        let engines = vec![Faulty::new("unordered", Fault::LacksOrder), Faulty::new("ordered", Fault::None)];
        let (outcome, _) = run_all(engines, &plan(dir.path(), workload));
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        let engines: Vec<&str> = outcome.reports.iter().map(|r| r.engine.as_str()).collect();
        assert_eq!(engines, ran, "{workload}");
        let lacking: Vec<String> = outcome.lacking.iter().map(ToString::to_string).collect();
        let said = "unordered does not run ycsb-e: it has no ordered scan";
        assert_eq!(lacking, if ran.len() == 1 { vec![said] } else { vec![] });
    }
}

#[test]
fn a_failure_has_the_reason_of_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let (outcome, _) = run_one(Fault::Breaks, &plan(dir.path(), "u1"));
    let text = outcome.failures[0].to_string();
    assert!(text.contains("faulty left out of u1 (2 threads)") && text.contains("disk full"), "{text}");
}

#[test]
fn the_pipelined_window_is_used_and_never_exceeded() {
    let dir = tempfile::tempdir().unwrap();
    // A load of 400 transactions by one thread depends neither on the clock nor on other threads.
    let mut plan =
        Plan { in_flight: vec![16], blocking: false, threads: vec![1], ..plan(dir.path(), "load") };
    plan.workloads[0] = plan.workloads[0].clone().with_group(5);
    let (outcome, seen) = run_one(Fault::None, &plan);
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    let report = &outcome.reports[0];
    assert_eq!((report.commit.as_str(), report.in_flight, report.threads), ("pipelined", 16, 1));
    assert_eq!(seen.most_in_flight.load(SeqCst), 16);
    assert_eq!(seen.in_flight.load(SeqCst), 0, "all are waited for at the end");
    assert_eq!(
        (report.ops, report.log_bytes),
        (2_000, Some(2_000 * 108)),
        "what was in flight at the end counts"
    );
}

#[test]
fn no_update_of_a_cell_repeats_a_value_of_another_run() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan { threads: vec![1, 2], runs: 2, ..plan(dir.path(), "u1") };
    let (_, seen) = run_one(Fault::None, &plan);
    let mut values = std::mem::take(&mut *seen.values.lock().unwrap());
    let all = values.len();
    values.sort_unstable();
    values.dedup();
    assert!(all >= 2_000 + 6, "the filling, and each thread of each run");
    assert_eq!(values.len(), all);
}

#[test]
fn inserted_records_are_counted_in_the_next_runs_check() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["ycsb-d", "ycsb-e"] {
        let plan = Plan { runs: 3, threads: vec![1, 3], ..plan(dir.path(), name) };
        let (outcome, seen) = run_one(Fault::None, &plan);
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        let (ops, inserted) =
            (outcome.reports.iter().map(|r| r.ops).sum::<u64>(), seen.values.lock().unwrap().len() - 2_000);
        assert!(inserted > 0 || ops < 500, "{name} inserted nothing in {ops} operations");
    }
}

#[test]
fn engines_take_turns_in_each_round() {
    let dir = tempfile::tempdir().unwrap();
    let engines = vec![Faulty::new("a", Fault::None), Faulty::new("b", Fault::None)];
    let (outcome, seen) = run_all(engines, &plan(dir.path(), "read"));
    let openings: Vec<Vec<usize>> = seen.iter().map(|s| s.openings.lock().unwrap().clone()).collect();
    let mut order: Vec<(usize, char)> = openings[0].iter().map(|&n| (n, 'a')).collect();
    order.extend(openings[1].iter().map(|&n| (n, 'b')));
    order.sort_unstable();
    // The stores are filled as a, b; the first round is a, b, and the second one b, a.
    assert_eq!(order.iter().map(|o| o.1).collect::<String>(), "ababba");
    assert_eq!(outcome.reports.iter().map(|r| r.engine.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let [a, b] = &outcome.reports[..] else { panic!("two reports") };
    assert_ne!(a.settings_hash, b.settings_hash);
}

#[test]
fn stores_are_kept_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    run_one(Fault::None, &Plan { keep: true, ..plan(dir.path(), "u1") });
    assert!(dir.path().join("u1-faulty").is_dir());
}
