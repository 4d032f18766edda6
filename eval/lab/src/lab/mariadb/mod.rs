//! An unmodified MariaDB server under 16 connections, recorded from outside, and compared with the server's
//! own performance schema.
//!
//! The library of `azekura trace record` is preloaded into the server, and the performance schema records all
//! of its locks. Connections send the transactions of sysbench's `oltp_read_write` (ten reads by key, four
//! ranges, four changes) through the server's own client program. Both results are of the same seconds: the
//! top locks as recorded, and the top rows of `events_waits_summary_global_by_event_name`. Intervals with and
//! without recording alternate, so that the rates of commits show the cost of recording.
//!
//! The two results have different units. The performance schema counts the time of every acquisition, with or
//! without a wait, and includes InnoDB's spinning. The recording has contended waits only, and of InnoDB's
//! own locks only those that slept on a futex. Compare the order of the server's mutexes, not the seconds.

mod load;
mod server;

pub use server::{Server, find_programs};

use crate::progress::Progress;
use azekura_record::{RecordError, Recorder};
use azekura_trace::analyze::{Analysis, AnalyzeError, AnalyzeOptions, SiteRow};
use azekura_trace::file::Trace;
use azekura_trace::{ReadError, WaitClass, WaitKind};
use load::Load;
use serde::Serialize;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Number of locks shown of each result.
const TOLD: usize = 12;

/// Settings of the lab.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Number of client connections.
    pub connections: usize,
    /// Number of rows of each of the four tables.
    pub rows: u32,
    /// Length of each interval, with recording and without.
    pub stretch: Duration,
    /// Number of pairs of intervals, which is the number of recordings.
    pub pairs: usize,
    /// Delay that is added to each hold of the top mutex in a last interval; `None` skips this interval.
    pub plant: Option<Duration>,
    /// File for the recording.
    pub output: PathBuf,
}

/// The lab could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// MariaDB is not installed.
    #[error("no {program} on this machine; install it with `apt-get install mariadb-server`")]
    NotInstalled {
        /// Name of the missing program.
        program: &'static str,
    },
    /// The server did not start, or ended early.
    #[error("the server did not start: {log}")]
    Server {
        /// Last lines of the server's log.
        log: String,
    },
    /// The settings have no pair of intervals.
    #[error("nothing to measure: ask for one pair of stretches at least")]
    NoPairs,
    /// A statement failed.
    #[error("{statement:.60}: {message}")]
    Sql {
        /// Text of the statement.
        statement: String,
        /// Error message of the server.
        message: String,
    },
    /// An operating system call failed.
    #[error("{what}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// The server could not be recorded.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The recording could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The recording could not be analyzed.
    #[error(transparent)]
    Analyze(#[from] AnalyzeError),
}

/// A lock with its waiting time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LockTime {
    /// Name of the lock in the recording or in the performance schema.
    pub name: String,
    /// Number of contended waits, or of acquisitions in the performance schema.
    pub count: u64,
    /// Total time in seconds.
    pub seconds: f64,
}

/// Results of the recording and of the performance schema.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// Version of the server, as it reports it.
    pub version: String,
    /// Number of connections.
    pub connections: usize,
    /// Length of the last recorded interval, to which both results belong, in seconds.
    pub seconds: f64,
    /// Locks in the recording: contended waits.
    pub recorded: Vec<LockTime>,
    /// Locks in the performance schema: all acquisitions.
    pub performance_schema: Vec<LockTime>,
    /// Commits per second in each interval with recording.
    pub with_recording: Vec<f64>,
    /// Commits per second in each interval without recording.
    pub without_recording: Vec<f64>,
    /// Verdict of the analyzer, as a sentence.
    pub verdict: String,
    /// Number of lost events in all recordings.
    pub lost: u64,
    /// The mutex with the longest waits in each recording.
    pub top_mutexes: Vec<String>,
    /// Number of recordings with waits for InnoDB's own locks, which use futexes.
    pub with_futexes: usize,
    /// Result of the added delay.
    pub planted: Option<Planted>,
}

/// An added delay in each hold of the top mutex, with both results before it and with it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Planted {
    /// Label of the mutex in the recording.
    pub mutex: String,
    /// Delay of each hold, in seconds.
    pub delay: f64,
    /// Recorded seconds of waits for the mutex, before the delay and with it.
    pub recorded: (f64, f64),
    /// Row of the performance schema that rose most: the server's name of the mutex.
    pub called: String,
    /// Seconds of that row, before the delay and with it.
    pub performance_schema: (f64, f64),
}

/// Runs the lab.
///
/// # Errors
///
/// [`LabError`].
pub fn run(settings: &Settings, progress: &Progress) -> Result<Answer, LabError> {
    let steps = 3 + 2 * settings.pairs as u64;
    progress.begin("MariaDB: start", steps);
    let mut recorder = Recorder::new()?.ring_events(1 << 14);
    let server = Server::start(&mut recorder)?;
    progress.begin("MariaDB: load", steps);
    progress.at(1);
    load::fill(&server, settings.rows)?;
    let load = Load::start(&server, settings)?;
    std::thread::sleep(settings.stretch / 2);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    let (mut top_mutexes, mut with_futexes, mut lost) = (Vec::new(), 0, 0);
    let mut last = None;
    for pair in 0..settings.pairs {
        progress.begin("MariaDB: measure", steps);
        progress.at(2 + 2 * pair as u64);
        without.push(commits_per_second(&server, settings.stretch)?);
        let once = record_once(&mut recorder, &server, settings, &settings.output)?;
        with.push(once.rate);
        top_mutexes.extend(once.mutex().map(|m| m.label.clone()));
        with_futexes +=
            usize::from(once.analysis.sites.iter().any(|s| s.label.contains("futex") && is_lock(s)));
        lost += once.lost;
        last = Some(once);
    }
    let Some(Once { analysis, performance_schema, .. }) = &last else { return Err(LabError::NoPairs) };
    let planted = match (settings.plant, last.as_ref().and_then(Once::mutex)) {
        (Some(delay), Some(mutex)) => {
            Some(plant(&mut recorder, &server, settings, delay, mutex, performance_schema)?)
        }
        _ => None,
    };
    load.stop();
    let version = server.sql("SELECT VERSION()")?.concat().concat();
    server.stop();
    let performance_schema = performance_schema.iter().take(TOLD).cloned().collect();
    Ok(Answer {
        version,
        connections: settings.connections,
        seconds: analysis.recorded.duration_ns as f64 / 1e9,
        recorded: as_recorded(analysis),
        performance_schema,
        with_recording: with,
        without_recording: without,
        verdict: analysis.verdict.sentence(),
        lost,
        top_mutexes,
        with_futexes,
        planted,
    })
}

/// Results of a recorded interval.
struct Once {
    rate: f64,
    lost: u64,
    analysis: Analysis,
    performance_schema: Vec<LockTime>,
}

impl Once {
    /// Returns the pthread mutex with the longest waits.
    fn mutex(&self) -> Option<&SiteRow> {
        self.analysis.sites.iter().find(|s| s.kind == Some(WaitKind::Latch) && s.label.contains("mutex"))
    }
}

fn record_once(
    recorder: &mut Recorder,
    server: &Server,
    settings: &Settings,
    output: &Path,
) -> Result<Once, LabError> {
    server.sql("TRUNCATE performance_schema.events_waits_summary_global_by_event_name")?;
    recorder.begin()?;
    let rate = commits_per_second(server, settings.stretch)?;
    let performance_schema = of_the_server(server)?;
    let collected = recorder.collect(output, server.process())?.recorded;
    let analysis = Analysis::new(&Trace::read(output)?, &AnalyzeOptions::default())?;
    Ok(Once { rate, lost: collected.iter().map(|c| c.lost).sum(), analysis, performance_schema })
}

/// Determines the server's name of a mutex: an added delay in its holds must increase its row of the
/// performance schema.
fn plant(
    recorder: &mut Recorder,
    server: &Server,
    settings: &Settings,
    delay: Duration,
    mutex: &SiteRow,
    before: &[LockTime],
) -> Result<Planted, LabError> {
    let worst = mutex.worst.first().map_or(0, |instance| instance.object);
    recorder.plant(worst, delay);
    let mut beside = settings.output.clone().into_os_string();
    beside.push(".planted");
    let with = record_once(recorder, server, settings, Path::new(&beside))?;
    recorder.plant(0, Duration::ZERO);
    let seconds =
        |rows: &[LockTime], name: &str| rows.iter().find(|r| r.name == name).map_or(0.0, |r| r.seconds);
    let rise = |row: &&LockTime| row.seconds - seconds(before, &row.name);
    let most = with.performance_schema.iter().max_by(|a, b| rise(a).total_cmp(&rise(b)));
    let called = most.map_or_else(String::new, |row| row.name.clone());
    // Selected by address: with the delay, most of the waits may be in another function.
    let waited = with.analysis.sites.iter().flat_map(|s| &s.worst).filter(|i| i.object == worst);
    let recorded_before = mutex.worst.first().map_or(0, |instance| instance.net_ns);
    Ok(Planted {
        mutex: mutex.label.clone(),
        delay: delay.as_secs_f64(),
        recorded: (recorded_before as f64 / 1e9, waited.map(|i| i.net_ns).sum::<u64>() as f64 / 1e9),
        performance_schema: (seconds(before, &called), seconds(&with.performance_schema, &called)),
        called,
    })
}

fn is_lock(site: &SiteRow) -> bool {
    site.kind.is_some_and(|k| k.class() == WaitClass::Lock)
}

fn commits_per_second(server: &Server, stretch: Duration) -> Result<f64, LabError> {
    let commits = || -> Result<f64, LabError> {
        let rows = server.sql("SHOW GLOBAL STATUS LIKE 'Com_commit'")?;
        Ok(rows.first().and_then(|row| row.get(1)?.parse().ok()).unwrap_or(0.0))
    };
    let (before, begun) = (commits()?, std::time::Instant::now());
    std::thread::sleep(stretch);
    Ok((commits()? - before) / begun.elapsed().as_secs_f64())
}

/// Reads the server's own lock statistics since they were last truncated.
fn of_the_server(server: &Server) -> Result<Vec<LockTime>, LabError> {
    let rows = server.sql(
        "SELECT EVENT_NAME, COUNT_STAR, SUM_TIMER_WAIT/1e12 FROM \
         performance_schema.events_waits_summary_global_by_event_name WHERE EVENT_NAME LIKE 'wait/synch/%' \
         AND EVENT_NAME NOT LIKE '%/cond/%' AND COUNT_STAR > 0 ORDER BY SUM_TIMER_WAIT DESC LIMIT 200",
    )?;
    let lock = |row: Vec<String>| {
        let [name, count, seconds] = row.try_into().ok()?;
        Some(LockTime {
            name: name.trim_start_matches("wait/synch/").to_owned(),
            count: count.parse().ok()?,
            seconds: seconds.parse().ok()?,
        })
    };
    Ok(rows.into_iter().filter_map(lock).collect())
}

fn as_recorded(analysis: &Analysis) -> Vec<LockTime> {
    let locks = analysis.sites.iter().filter(|s| is_lock(s));
    let lock =
        |s: &SiteRow| LockTime { name: s.label.clone(), count: s.count, seconds: s.net_ns as f64 / 1e9 };
    locks.map(lock).take(TOLD).collect()
}

/// Returns both results as text.
#[must_use]
pub fn text(answer: &Answer) -> String {
    let mut out = String::new();
    let median = |rates: &[f64]| {
        let mut sorted = rates.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
    };
    let (with, without) = (median(&answer.with_recording), median(&answer.without_recording));
    let _ = writeln!(
        out,
        "MariaDB {}, {} connections, {:.1} s recorded, {} events lost\n{}\n",
        answer.version, answer.connections, answer.seconds, answer.lost, answer.verdict
    );
    let _ = writeln!(
        out,
        "Commits per second: {without:.0} without recording, {with:.0} with ({:+.1} %; medians of {} \
         pairs)\n",
        (with / without - 1.0) * 100.0,
        answer.with_recording.len()
    );
    for (title, locks) in [
        ("Recorded from outside: contended waits", &answer.recorded),
        ("Performance schema: all acquisitions", &answer.performance_schema),
    ] {
        let _ = writeln!(out, "{title}");
        for lock in locks {
            let _ = writeln!(out, "  {:>9.3} s {:>10}  {}", lock.seconds, lock.count, lock.name);
        }
        let _ = writeln!(out);
    }
    let runs = answer.with_recording.len();
    let mut tops: Vec<(&str, usize)> = Vec::new();
    for top in &answer.top_mutexes {
        match tops.iter_mut().find(|(name, _)| name == top) {
            Some((_, times)) => *times += 1,
            None => tops.push((top, 1)),
        }
    }
    tops.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
    for (name, times) in tops {
        let _ = writeln!(out, "First of the server's mutexes in {times} of {runs} recordings: {name}");
    }
    let _ = writeln!(out, "InnoDB's own locks (futexes) seen in {} of {runs}", answer.with_futexes);
    if let Some(p) = &answer.planted {
        let _ = writeln!(
            out,
            "\nA delay of {:.0} us planted under {}:\n  recorded {:.3} s -> {:.3} s; of the server's rows {} \
             rose most, {:.3} s -> {:.3} s: that is its name there.",
            p.delay * 1e6,
            p.mutex,
            p.recorded.0,
            p.recorded.1,
            p.called,
            p.performance_schema.0,
            p.performance_schema.1
        );
    }
    out
}
