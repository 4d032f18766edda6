//! The study: points of the figures, recordings with the analyzer's results, and the cost of recording.
//!
//! Compared runs directly follow each other. The latches take turns, and so do runs with and without a
//! recording, so that a slow minute of the machine affects all of them alike.

use super::findings::Finding;
use super::front::Probes;
use super::front::search::Latch;
use super::measure::{Outcome, Setup, run};
use super::settings::{Point, Settings};
use super::slowdown::Slowdown;
use super::store::Bookstore;
use crate::error::{BenchError, EngineError};
use crate::lab::steady::Run;
use crate::machine::Machine;
use crate::progress::Progress;
use azekura_trace::analyze::{Analysis, AnalyzeOptions, Verdict};
use azekura_trace::{Recording, WaitKind};
use azekura_workload::bookstore::{Conformance, Interaction, Tally, Think, Transitions};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Operation that the paper's figures of waits show.
pub const CHOSEN: &str = "index_read";

/// Results of the study.
#[derive(Debug, Serialize)]
pub struct Study {
    /// Description of the machine.
    pub machine: Machine,
    /// Conditions such as think time and connections, as text.
    pub conditions: String,
    /// Throughputs: Figs 3, 4, 10 and 11.
    pub points: Vec<Measured>,
    /// Analyzed recordings: Tables 2 and 3, Figs 5, 6, 12 and 13.
    pub recorded: Vec<Recorded>,
    /// Cost of recording: Table 4.
    pub slowdowns: Vec<Slowdown>,
    /// Comparison of the named locks with the right ones; empty if the right ones are unknown.
    pub findings: Vec<Finding>,
    /// Kinds of pages over all points, with their expected shares.
    pub pages: Vec<PageRow>,
    /// The analyzer's comparison of a recording before the change with one after it.
    pub difference: String,
}

/// A point of Figs 3, 4, 10 and 11.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// The measured combination.
    #[serde(flatten)]
    pub point: Point,
    /// Bogotransactions per second: the median of the runs.
    pub rate: f64,
    /// The runs with all seeds. The next fields are those of the run with the median rate.
    pub runs: Vec<Run>,
    /// Average number of processors that this process used.
    pub cpu: f64,
    /// Average number of processors that other processes used.
    pub others: f64,
    /// Number of pages that were errors.
    pub errors: u64,
}

/// Results of the analyzer for the recordings of one combination.
#[derive(Debug, Serialize)]
pub struct Recorded {
    /// The measured combination.
    #[serde(flatten)]
    pub point: Point,
    /// Bogotransactions per second during the recording with the median rate.
    pub rate: f64,
    /// Number of recordings. `rate` and `analysis` belong to the recording with the median rate.
    pub recordings: usize,
    /// Average number of processors that other processes used, over all recordings.
    pub others: f64,
    /// First lock among the waits of the chosen operation, in the analysis of each recording.
    pub first: Vec<String>,
    /// Label of the lock that the verdict on each recording names, or the verdict's sentence.
    pub verdicts: Vec<String>,
    /// Analysis of the recording with the median rate.
    pub analysis: Analysis,
}

/// Results for one kind of page over all points.
#[derive(Debug, Serialize)]
pub struct PageRow {
    /// Name of the page.
    pub page: &'static str,
    /// Percentage of all requested pages.
    pub part: f64,
    /// Stationary percentage, computed from the transition table.
    pub expected: f64,
    /// Mean response time at all points, in milliseconds.
    pub response_ms: f64,
}

impl Study {
    /// Returns whether the analyzer named the right lock in all findings.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.findings.iter().all(|f| f.holds)
    }
}

/// Runs the study on a new store in memory. If `traces` is given, saves a recording from before the change
/// and one from after it there, as `before.trace` and `after.trace`.
///
/// # Errors
///
/// An error of the store, of the recorder or of the file system. A wrongly named lock is a [`Finding`], not
/// an error.
pub fn study(settings: &Settings, traces: Option<&Path>, progress: &Progress) -> Result<Study, BenchError> {
    let store = bookstore(settings, progress)?;
    let lab = Lab { settings, store: &store, progress };
    let (points, tally) = lab.sweep()?;
    let (recorded, medians) = lab.record(&points)?;
    let slowdowns = lab.slowdowns(&points)?;
    let difference = lab.difference(&recorded, medians, traces)?;
    store.close()?;
    progress.finish();
    Ok(Study {
        machine: settings
            .machine
            .as_ref()
            .map_or_else(|| Machine::here(Path::new(".")), |m| m.describe(settings)),
        conditions: conditions(settings),
        findings: super::findings::findings(&recorded, settings),
        pages: page_rows(&tally, Transitions::of(settings.mix)),
        points,
        recorded,
        slowdowns,
        difference,
    })
}

/// Measures only Table 4, by whole runs: the cost of recording at the heaviest load without an admission
/// limit, with the latches in turn.
///
/// # Errors
///
/// An error of the store or of the recorder.
pub fn slowdowns(settings: &Settings, progress: &Progress) -> Result<Vec<Slowdown>, BenchError> {
    let store = bookstore(settings, progress)?;
    let lab = Lab { settings, store: &store, progress };
    let slowdowns = lab.slowdowns(&[])?;
    store.close()?;
    progress.finish();
    Ok(slowdowns)
}

fn bookstore(settings: &Settings, progress: &Progress) -> Result<Bookstore, BenchError> {
    progress.begin("filling the bookstore", 1);
    Bookstore::filled(settings)
}

/// Results of one recording.
struct Once {
    rate: f64,
    others: f64,
    analysis: Analysis,
    recording: Recording,
}

struct Lab<'l> {
    settings: &'l Settings,
    store: &'l Bookstore,
    progress: &'l Progress,
}

impl Lab<'_> {
    /// Makes one run; `turn` gives repeated runs of the same setup different seeds.
    fn run(&self, setup: &Setup, label: Option<String>, turn: usize) -> Result<Outcome, BenchError> {
        run(self.store, setup, label, self.settings.seed + turn as u64)
    }

    /// Measures the throughputs of Figs 3, 4, 10 and 11.
    fn sweep(&self) -> Result<(Vec<Measured>, Tally), BenchError> {
        let s = self.settings;
        let mut points = Vec::new();
        for &processors in &s.processors {
            for &limit in &s.limits {
                for &users in &s.users {
                    let latches = s.latches.iter();
                    points.extend(latches.map(|&latch| Point { latch, processors, limit, users }));
                }
            }
        }
        self.progress.begin("throughput: users and limits", points.len() as u64);
        let mut all = Tally::default();
        let mut measured = Vec::new();
        for (done, point) in points.into_iter().enumerate() {
            let (outcome, runs) = s.rule().point(|seed| {
                let outcome = run(self.store, &s.setup(point, s.measured), None, seed)?;
                all.merge(&outcome.tally);
                Ok::<_, BenchError>((outcome.run(seed), outcome))
            })?;
            let Outcome { cpu, others, .. } = outcome;
            let (rate, errors) = (outcome.rate(), outcome.tally.errors());
            measured.push(Measured { point, rate, runs, cpu, others, errors });
            self.progress.at(done as u64 + 1);
        }
        Ok((measured, all))
    }

    /// Makes the recordings for Tables 2 and 3 and Figs 5, 6, 12 and 13: for each latch, without a limit and
    /// with the limit of its highest rate.
    fn record(&self, points: &[Measured]) -> Result<(Vec<Recorded>, Vec<Recording>), BenchError> {
        let s = self.settings;
        let mut kinds = Vec::new();
        for &processors in &s.processors {
            for &latch in &s.latches {
                let unlimited = Point { latch, processors, limit: None, users: s.heaviest() };
                kinds.push((unlimited, s.recordings));
                if let Some(limit) = best_limit(points, unlimited) {
                    kinds.push((Point { limit: Some(limit), ..unlimited }, 1));
                }
            }
        }
        let rounds = kinds.iter().map(|k| k.1).max().unwrap_or(0);
        let total = kinds.iter().map(|k| k.1 as u64).sum();
        self.progress.begin("recording and analyzing", total);
        let mut runs: Vec<Vec<Once>> = kinds.iter().map(|_| Vec::new()).collect();
        let mut done = 0;
        for round in 0..rounds {
            for ((point, recordings), runs) in kinds.iter().zip(&mut runs) {
                if round < *recordings {
                    runs.push(self.record_once(*point, round)?);
                    done += 1;
                    self.progress.at(done);
                }
            }
        }
        let (mut recorded, mut medians) = (Vec::new(), Vec::new());
        for ((point, _), mut runs) in kinds.into_iter().zip(runs) {
            runs.sort_by(|a, b| a.rate.total_cmp(&b.rate));
            let first = runs.iter().map(|run| first(&run.analysis)).collect();
            let verdicts = runs.iter().map(|run| verdict(&run.analysis)).collect();
            let recordings = runs.len();
            let others = runs.iter().map(|run| run.others).sum::<f64>() / recordings as f64;
            let Once { rate, analysis, recording, .. } = runs.swap_remove(recordings / 2);
            recorded.push(Recorded { point, rate, recordings, others, first, verdicts, analysis });
            medians.push(recording);
        }
        Ok((recorded, medians))
    }

    fn record_once(&self, point: Point, turn: usize) -> Result<Once, BenchError> {
        let label = format!(
            "btr_search_latch: {}; {} processors, limit {}, {} users",
            point.latch.name(),
            point.processors,
            point.limit_name(),
            point.users
        );
        let setup = self.settings.setup(point, self.settings.recorded);
        let outcome = self.run(&setup, Some(label), turn)?;
        let (rate, others) = (outcome.rate(), outcome.others);
        let unreadable = || EngineError::failed("recording", "no recording was made");
        let recording = outcome.recording.ok_or_else(unreadable)?;
        let trace = recording.trace().map_err(|e| EngineError::failed("reading a recording", e))?;
        let options = AnalyzeOptions { operation: Some(CHOSEN.to_owned()), ..AnalyzeOptions::default() };
        let analysis =
            Analysis::new(&trace, &options).map_err(|e| EngineError::failed("analyzing a recording", e))?;
        Ok(Once { rate, others, analysis, recording })
    }

    /// Measures the cost of recording for Table 4.
    fn slowdowns(&self, points: &[Measured]) -> Result<Vec<Slowdown>, BenchError> {
        let s = self.settings;
        if s.pairs == 0 {
            return Ok(Vec::new());
        }
        let unlimited =
            |latch| Point { latch, processors: s.all_processors(), limit: None, users: s.heaviest() };
        let mut cases = Vec::new();
        for latch in [s.before, Latch::Word] {
            let point = unlimited(latch);
            if let Some(limit) = best_limit(points, point) {
                cases.push((Point { limit: Some(limit), ..point }, Probes::Rows));
            }
            cases.push((point, Probes::Rows));
            cases.push((point, Probes::Pages));
        }
        self.progress.begin("what recording costs", (s.pairs * cases.len()) as u64);
        let mut pairs: Vec<Vec<[Outcome; 2]>> = cases.iter().map(|_| Vec::new()).collect();
        for pair in 0..s.pairs {
            for (at, (point, probes)) in cases.iter().enumerate() {
                pairs[at].push(self.pair(*point, *probes, pair % 2 == 1)?);
                self.progress.at((pair * cases.len() + at + 1) as u64);
            }
        }
        let rows = cases.into_iter().zip(&pairs);
        Ok(rows.map(|((point, probes), pairs)| Slowdown::of(point, probes, pairs)).collect())
    }

    /// Makes a run without and one with a recording, in this order or the opposite one. Returns [without,
    /// with].
    fn pair(&self, point: Point, probes: Probes, recorded_first: bool) -> Result<[Outcome; 2], BenchError> {
        let setup = Setup { probes, ..self.settings.setup(point, self.settings.recorded) };
        let once = |records: bool| {
            let label = records.then(|| "what recording costs".to_owned());
            self.run(&setup, label, 0)
        };
        if recorded_first {
            let with = once(true)?;
            return Ok([once(false)?, with]);
        }
        Ok([once(false)?, once(true)?])
    }

    /// Compares the median recordings before and after the change, and saves both if `traces` is given.
    fn difference(
        &self,
        recorded: &[Recorded],
        medians: Vec<Recording>,
        traces: Option<&Path>,
    ) -> Result<String, BenchError> {
        let unlimited = |latch| {
            let is_it = |r: &Recorded| {
                r.point.latch == latch
                    && r.point.limit.is_none()
                    && r.point.processors == self.settings.all_processors()
            };
            recorded.iter().position(is_it)
        };
        let (Some(before), Some(after)) = (unlimited(self.settings.before), unlimited(Latch::Word)) else {
            return Ok(String::new());
        };
        let (before, after) = (&medians[before], &medians[after]);
        if let Some(directory) = traces {
            for (recording, name) in [(before, "before.trace"), (after, "after.trace")] {
                let path = directory.join(name);
                recording.save(&path).map_err(BenchError::io("writing", path))?;
            }
        }
        let read = |r: &Recording| r.trace().map_err(|e| EngineError::failed("reading a recording", e));
        let options = azekura_trace::report::ReportOptions {
            operation: Some(CHOSEN.to_owned()),
            top: 8,
            ..Default::default()
        };
        let mut text = Vec::new();
        azekura_trace::report::diff(&read(before)?, &read(after)?, &options, &mut text)
            .map_err(|e| EngineError::failed("comparing recordings", e))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Returns the limit with the highest rate at the heaviest load.
fn best_limit(points: &[Measured], like: Point) -> Option<usize> {
    let of_kind = |m: &&Measured| {
        let p = m.point;
        (p.latch, p.processors, p.users) == (like.latch, like.processors, like.users) && p.limit.is_some()
    };
    points.iter().filter(of_kind).max_by(|a, b| a.rate.total_cmp(&b.rate))?.point.limit
}

/// Returns the lock with the longest wait in the chosen operation: the paper's criterion. The paper's probes
/// record locks but no failed compare-and-swaps, so those are left out here. The verdict includes both.
fn first(analysis: &Analysis) -> String {
    let is_lock = |kind: Option<WaitKind>| kind != Some(WaitKind::Retry);
    let bars = analysis.waits.iter().filter(|w| w.operation == CHOSEN && is_lock(w.kind));
    bars.max_by_key(|w| w.net_ns).map_or_else(|| "none".to_owned(), |w| w.site.clone())
}

/// Returns the lock or the sentence of the verdict.
fn verdict(analysis: &Analysis) -> String {
    match &analysis.verdict {
        Verdict::Lock { site, .. } => site.clone(),
        verdict => verdict.sentence(),
    }
}

fn page_rows(tally: &Tally, transitions: Transitions) -> Vec<PageRow> {
    let expected = transitions.stationary();
    Interaction::ALL
        .into_iter()
        .map(|page| PageRow {
            page: page.name(),
            part: tally.part(page) * 100.0,
            expected: expected[page.index()] * 100.0,
            response_ms: tally.mean_response(page).unwrap_or(Duration::ZERO).as_secs_f64() * 1e3,
        })
        .collect()
}

fn conditions(s: &Settings) -> String {
    let (law, think) = match s.think {
        Think::Constant(time) => ("constant", time),
        Think::Exponential(mean) => ("exponential", mean),
    };
    let rules = match s.conformance {
        Conformance::Kit => "the kit's",
        Conformance::TpcW => "TPC-W's",
    };
    format!(
        "{} items, {} customers, {} mix by {rules} rules, {law} think time {think:?}, {} connections; {} \
         processors at most",
        s.scale.items(),
        s.scale.customers(),
        format!("{:?}", s.mix).to_lowercase(),
        s.connections,
        s.all_processors()
    )
}
