//! `table`: measures every row of the published table over every engine, each engine in a process of its own.
//!
//! A store is filled once per group of rows and engine. In each round, every engine gets a process, which
//! opens the store, reads it once and runs all rows of the group. Each round begins with another engine. So
//! memory and processor time are those of one engine, and a slow phase of the machine affects all engines
//! equally.

mod cell;
mod markdown;
mod rows;
mod standing;

use crate::cli::choose;
use crate::peers;
use anyhow::{Context, Result, bail};
use azekura_lab::machine::{Machine, utc_now};
use azekura_lab::rounds::interleaved;
use azekura_lab::{Engine, prepare};
use cell::{Job, Sample};
use rows::{Extent, Group};
use serde::{Deserialize, Serialize};
use standing::Cell;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Bytes of each engine's cache: all data of each row fits.
const CACHE_BYTES: u64 = 1 << 30;

/// Options of the table.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    azekura-compare table --quick --markdown table.md              ten minutes\n  \
    azekura-compare table --only ycsb,load --engines azekura,lmdb  some rows\n  \
    azekura-compare table --from table.json --summary figures.md   an earlier run again\n\n\
    Prints the rows in which azekura is behind the best peer first. Exit code 1: an engine failed.")]
pub(crate) struct Table {
    /// Take ten minutes: less data, fewer numbers of threads, 0.15 s for each cell
    #[arg(long)]
    quick: bool,
    /// Measured seconds of each cell [default: 1, with --quick 0.15]
    #[arg(long)]
    seconds: Option<f64>,
    /// Seconds of warm-up before the measured ones [default: a quarter of --seconds]
    #[arg(long)]
    warm_up: Option<f64>,
    /// Rounds; the median is reported
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Measure only rows with one of these texts in their name
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Engines, or `all`; with --quick `all` leaves out variants of RocksDB and fjall
    #[arg(long, value_delimiter = ',', default_value = "all")]
    engines: Vec<String>,
    /// Directory for the stores; they are removed afterward
    #[arg(long, default_value = "azekura-lab-data")]
    dir: PathBuf,
    /// Revision of the measured source, for the report
    #[arg(long)]
    revision: Option<String>,
    /// Write the results to this file, after each group of rows
    #[arg(long)]
    json: Option<PathBuf>,
    /// Measure nothing: read the results from this file
    #[arg(long)]
    from: Option<PathBuf>,
    /// Write the table to this file
    #[arg(long)]
    markdown: Option<PathBuf>,
    /// Replace the table of ratios between the two marks of this document
    #[arg(long)]
    summary: Option<PathBuf>,
    /// Do the work of one process (used by this program itself)
    #[arg(long, hide = true)]
    job: Option<String>,
}

/// The results of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Results {
    machine: Machine,
    date: String,
    revision: Option<String>,
    quick: bool,
    seconds: f64,
    runs: usize,
    cells: Vec<Cell>,
    failures: Vec<String>,
}

impl Table {
    /// Returns `true` if no engine failed.
    pub(crate) fn run(&self) -> Result<bool> {
        if let Some(job) = &self.job {
            let job: Job = serde_json::from_str(job).context("--job")?;
            let engines = choose(peers::with_snapshots(), std::slice::from_ref(&job.engine))?;
            job.run(&engines, &mut |sample| {
                println!("{}", serde_json::to_string(&sample)?);
                Ok(())
            })?;
            return Ok(true);
        }
        let results = match &self.from {
            Some(path) => {
                let text =
                    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
                serde_json::from_str(&text)
                    .with_context(|| format!("{}: no results of a table", path.display()))?
            }
            None => self.measure()?,
        };
        let text = markdown::render(&results);
        print!("{text}");
        if let Some(path) = &self.markdown {
            std::fs::write(path, &text).with_context(|| format!("write {}", path.display()))?;
        }
        if let Some(path) = &self.summary {
            let document =
                std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
            let document = markdown::replace_summary(&document, &results)
                .with_context(|| format!("{}: no line {:?}", path.display(), markdown::BEGIN))?;
            std::fs::write(path, document).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(results.failures.is_empty())
    }

    fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(if self.quick { 0.15 } else { 1.0 })
    }

    fn measure(&self) -> Result<Results> {
        let seconds = self.seconds();
        let warm_up = self.warm_up.unwrap_or(seconds / 4.0);
        let are_times = |times: [f64; 2]| times.iter().all(|t| t.is_finite() && (0.0..1e6).contains(t));
        if !are_times([seconds, warm_up]) || self.runs == 0 {
            bail!("--seconds and --warm-up must not be negative, --runs must be positive");
        }
        let groups = self.groups()?;
        std::fs::create_dir_all(&self.dir).with_context(|| format!("make {}", self.dir.display()))?;
        let mut results = Results {
            machine: Machine::here(&self.dir),
            date: utc_now(),
            revision: self.revision.clone(),
            quick: self.quick,
            seconds,
            runs: self.runs,
            cells: Vec::new(),
            failures: Vec::new(),
        };
        for group in &groups {
            self.group(group, warm_up, &mut results)?;
            if let Some(path) = &self.json {
                let text = serde_json::to_string_pretty(&results)?;
                std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
            }
        }
        Ok(results)
    }

    /// Returns the groups with the requested rows.
    fn groups(&self) -> Result<Vec<Group>> {
        let mut groups = Extent { quick: self.quick }.groups();
        if !self.only.is_empty() {
            let is_wanted = |row: &str| {
                let row = row.to_lowercase();
                self.only.iter().any(|text| row.contains(&text.to_lowercase()))
            };
            groups.iter_mut().for_each(|group| group.cases.retain(|case| is_wanted(&case.row)));
            groups.retain(|group| !group.cases.is_empty());
        }
        if groups.is_empty() {
            bail!("no row has one of the texts of --only in its name");
        }
        Ok(groups)
    }

    /// Returns the names of the engines that take part in a group.
    fn engines(&self, group: &Group) -> Result<Vec<String>> {
        let mut engines: Vec<Box<dyn Engine>> = choose(peers::with_snapshots(), &self.engines)?;
        let all = self.engines.iter().any(|name| name == "all");
        engines.retain(|engine| {
            let takes_part = match engine.name() {
                "azekura-snapshot" | "azekura-bulk" => !group.is_tpcc(),
                // Differs from `rocksdb-tuned` only in its locks, which write batches do not need.
                "rocksdb-txn" => group.is_tpcc() || !all,
                "rocksdb-tuned" | "fjall-sw" => !(all && self.quick),
                _ => true,
            };
            takes_part && (engine.isolates() || !group.is_tpcc())
        });
        Ok(engines.iter().map(|engine| engine.name().to_owned()).collect())
    }

    /// Fills the stores of a group, runs all rounds, and removes the stores.
    fn group(&self, group: &Group, warm_up: f64, results: &mut Results) -> Result<()> {
        let engines = self.engines(group)?;
        let job = |engine: &str, fill: bool, seed: u64| Job {
            engine: engine.to_owned(),
            group: group.clone(),
            fill,
            seconds: self.seconds(),
            warm_up,
            cache_bytes: CACHE_BYTES,
            seed,
            dir: self.dir.join(format!("table-{}-{engine}-{}", group.name, std::process::id())),
        };
        let mut filled = Vec::new();
        for engine in &engines {
            eprintln!("{}: {engine}, filling", group.name);
            let outcome = in_process(&job(engine, true, 0));
            if let Err(error) = &outcome {
                results.failures.push(format!("{engine}, filling for {}: {error:#}", group.name));
            }
            filled.push(outcome.is_ok());
        }
        let rounds = interleaved(self.runs, &filled, |round, at| {
            eprintln!("{}: {}, round {} of {}", group.name, engines[at], round + 1, self.runs);
            in_process(&job(&engines[at], false, round as u64 + 1))
        });
        for (engine, rounds) in engines.iter().zip(rounds) {
            match rounds {
                Ok(rounds) => results.cells.extend(Cell::of(engine, &group.cases, &rounds)),
                Err(error) => results.failures.push(format!("{engine}, {}: {error:#}", group.name)),
            }
            prepare::remove_dir(&job(engine, false, 0).dir)?;
        }
        Ok(())
    }
}

/// Runs a job in a process of its own.
fn in_process(job: &Job) -> Result<Vec<Sample>> {
    let mut child = Command::new(std::env::current_exe().context("find this program")?)
        .args(["table", "--job", &serde_json::to_string(job)?])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start the process of the engine")?;
    let errors = child.stderr.take().context("read the errors of the engine's process")?;
    // Read concurrently with the samples, so that neither pipe fills up.
    let errors = std::thread::spawn(move || std::io::read_to_string(errors).unwrap_or_default());
    let output = child.stdout.take().context("read the output of the engine's process")?;
    let samples: Result<Vec<Sample>> =
        BufReader::new(output).lines().map(|line| Ok(serde_json::from_str(&line?)?)).collect();
    let status = child.wait().context("wait for the process of the engine")?;
    let errors = errors.join().unwrap_or_default();
    if !status.success() {
        // A failed job does not remove its filled store, because the next round uses it.
        bail!("its process ended with {status}: {}", last_lines(&errors));
    }
    samples.context("the process of the engine wrote a line that is no sample")
}

/// Returns the last lines of a process's standard error.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.trim().lines().collect();
    lines[lines.len().saturating_sub(3)..].join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Runs every group in this process, with few records and two variants of Azekura.
    #[test]
    fn every_row_gets_a_sample() {
        let dir = tempfile::tempdir().unwrap();
        for mut group in (Extent { quick: true }).groups() {
            for case in &mut group.cases {
                case.threads = case.threads.min(2);
                match &mut case.work {
                    rows::Work::Table { records, .. } => *records = 100,
                    rows::Work::Tpcc { divisor } => *divisor = 100,
                }
            }
            let mut seen = BTreeSet::new();
            for engine in ["azekura", "azekura-snapshot", "azekura-bulk"] {
                if group.is_tpcc() && engine != "azekura" {
                    continue;
                }
                let engines = choose(peers::with_snapshots(), &[engine.to_owned()]).unwrap();
                let job = |fill, seconds| Job {
                    engine: engine.to_owned(),
                    group: group.clone(),
                    fill,
                    seconds,
                    warm_up: 0.0,
                    cache_bytes: 64 << 20,
                    seed: 1,
                    dir: dir.path().join(&group.name).join(format!("{engine}-{seconds}")),
                };
                let mut samples = Vec::new();
                // On a busy machine the measurement is repeated with a longer time.
                for seconds in [0.005, 0.5, 5.0] {
                    samples.clear();
                    for fill in [true, false] {
                        job(fill, seconds)
                            .run(&engines, &mut |sample| {
                                samples.push(sample);
                                Ok(())
                            })
                            .unwrap();
                    }
                    if samples.iter().all(|s| s.ops > 0) {
                        break;
                    }
                }
                assert!(
                    samples.iter().all(|s| s.ops > 0 && s.disk_bytes > 0 && s.p999 >= s.p50),
                    "{samples:?}"
                );
                seen.extend(Cell::of(engine, &group.cases, &[samples]).into_iter().map(|cell| cell.row));
            }
            let rows: BTreeSet<String> = group.cases.iter().map(|case| case.row.clone()).collect();
            assert_eq!(seen, rows);
        }
    }
}
