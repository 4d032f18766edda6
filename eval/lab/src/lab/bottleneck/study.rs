//! The study: points of the figures, recordings with the analyzer's results, and the cost of recording.
//!
//! Runs that are compared follow one another directly, with the latches (or with and without a recording)
//! taking turns, so that a slow minute of the machine hits all alike.

use super::findings::Finding;
use super::front::Probes;
use super::front::search::Latch;
use super::measure::{Outcome, Setup, run};
use super::settings::{Point, Settings};
use super::slowdown::Slowdown;
use super::store::Bookstore;
use crate::error::{BenchError, EngineError};
use crate::machine::Machine;
use crate::progress::Progress;
use azekura_trace::analyze::{Analysis, AnalyzeOptions, Verdict};
use azekura_trace::{Recording, WaitKind};
use azekura_workload::bookstore::{Conformance, Interaction, Tally, Think, Transitions};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// The operation of the paper's figures.
pub const CHOSEN: &str = "index_read";

/// All that came of it.
#[derive(Debug, Serialize)]
pub struct Study {
    /// The machine.
    pub machine: Machine,
    /// Think time, connections, and so on, for people.
    pub conditions: String,
    /// Figs 3, 4, 10 and 11.
    pub points: Vec<Measured>,
    /// Tables 2 and 3, Figs 5, 6, 12 and 13.
    pub recorded: Vec<Recorded>,
    /// Table 4.
    pub slowdowns: Vec<Slowdown>,
    /// The locks that the analyzer named, with the right answers; empty if these are not known by
    /// construction.
    pub findings: Vec<Finding>,
    /// Pages of all points, with the table's parts.
    pub pages: Vec<PageRow>,
    /// The analyzer's difference of a recording before and after the cure.
    pub difference: String,
}

/// A point of Figs 3, 4, 10 and 11.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// The case.
    #[serde(flatten)]
    pub point: Point,
    /// Bogotransactions per second.
    pub rate: f64,
    /// Processors in use: 2.0 is two.
    pub cpu: f64,
    /// Processors that other processes of the machine used meanwhile.
    pub others: f64,
    /// Pages that were errors.
    pub errors: u64,
}

/// Results of the analyzer for one kind of recording.
#[derive(Debug, Serialize)]
pub struct Recorded {
    /// The case.
    #[serde(flatten)]
    pub point: Point,
    /// Bogotransactions per second while recording.
    pub rate: f64,
    /// Of how many recordings the following is the one with the median rate.
    pub recordings: usize,
    /// Processors that other processes used meanwhile, in the mean.
    pub others: f64,
    /// The lock that each recording's analysis put first among the waits of the chosen operation.
    pub first: Vec<String>,
    /// The lock that each recording's verdict named, by its label, or another sentence.
    pub verdicts: Vec<String>,
    /// The analysis.
    pub analysis: Analysis,
}

/// A kind of page over all points.
#[derive(Debug, Serialize)]
pub struct PageRow {
    /// Its name.
    pub page: &'static str,
    /// Per cent of all requested pages.
    pub part: f64,
    /// Per cent in the long run, by the table.
    pub expected: f64,
    /// Mean response at all points, ms.
    pub response_ms: f64,
}

impl Study {
    /// Returns whether every check passed.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.findings.iter().all(|f| f.holds)
    }
}

/// Runs the study on a new store in memory. Recordings before and after the cure are kept in `traces`, if
/// given, as `before.trace` and `after.trace`.
///
/// # Errors
///
/// The store's, the recorder's, the file system's. That a lock is not found is no error but a [`Finding`].
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

/// Table 4 alone, by whole runs: cost of recording at the heaviest load without a limit of threads, each
/// latch in turn.
///
/// # Errors
///
/// The store's and the recorder's.
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

/// One recording.
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
    /// One run; `turn` makes those that are repeated differ where nothing else does.
    fn run(&self, setup: &Setup, label: Option<String>, turn: usize) -> Result<Outcome, BenchError> {
        run(self.store, setup, label, self.settings.seed + turn as u64)
    }

    /// Figs 3, 4, 10 and 11.
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
            let outcome = self.run(&s.setup(point, s.measured), None, 0)?;
            all.merge(&outcome.tally);
            let Outcome { cpu, others, .. } = outcome;
            let (rate, errors) = (outcome.rate(), outcome.tally.errors());
            measured.push(Measured { point, rate, cpu, others, errors });
            self.progress.at(done as u64 + 1);
        }
        Ok((measured, all))
    }

    /// Tables 2 and 3, Figs 5, 6, 12 and 13: each latch without a limit, and with the limit of its highest
    /// rate.
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

    /// Table 4.
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

    /// Without and with a recording, or the other way round.
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

    /// Before the cure and after it.
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

/// The limit with the highest rate at the heaviest load.
fn best_limit(points: &[Measured], like: Point) -> Option<usize> {
    let of_kind = |m: &&Measured| {
        let p = m.point;
        (p.latch, p.processors, p.users) == (like.latch, like.processors, like.users) && p.limit.is_some()
    };
    points.iter().filter(of_kind).max_by(|a, b| a.rate.total_cmp(&b.rate))?.point.limit
}

/// The lock most waited for in one execution of the chosen operation: the paper's criterion. Its probes see
/// locks and not compare-and-swaps that failed; the verdict sees both.
fn first(analysis: &Analysis) -> String {
    let is_lock = |kind: Option<WaitKind>| kind != Some(WaitKind::Retry);
    let bars = analysis.waits.iter().filter(|w| w.operation == CHOSEN && is_lock(w.kind));
    bars.max_by_key(|w| w.net_ns).map_or_else(|| "none".to_owned(), |w| w.site.clone())
}

/// The cause that an analysis names.
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
