//! `beyond-cache`: data of 0.5, 2 and 8 times the memory, over every engine at its defaults.
//!
//! Each engine runs in a process and a control group of its own, which limits its memory together with its
//! share of the system's page cache. The process is this program with `--cell`; it writes one JSON object per
//! phase.
//!
//! | module | content |
//! |---|---|
//! | [`cgroup`] | the limit of the memory |
//! | [`meter`] | processor time, and bytes transferred by the device |
//! | [`phase`] | one phase of the work |
//! | [`table`] | the result as text |

mod cgroup;
mod meter;
mod phase;
mod table;

use self::cgroup::Cgroup;
use self::meter::Meter;
use self::phase::{Measured, Phase, Size};
use crate::cli::{self, choose};
use crate::peers;
use anyhow::{Context, Result, bail};
use azekura_lab::{Engine, EngineSettings};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU64;

/// Compares engines with data larger than the memory.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    azekura-compare beyond-cache --quick                       64 MiB of memory, 0.5 and 2 times: minutes\n  \
    azekura-compare beyond-cache --memory-mib 1024 --times 0.5,2,8 --json beyond.jsonl\n  \
    azekura-compare beyond-cache --engines azekura,rocksdb --html beyond.html\n\n\
    Run it as root on a quiet machine: the memory limit is a control group, and the bytes are those of the\n\
    whole device. Prints the cells by our rate over that of the best peer, the smallest first, then all\n\
    engines of each cell. Exit code 1: an engine failed, or the kernel killed it at the memory limit.")]
pub(crate) struct BeyondCache {
    /// Memory of each engine including its page cache, in MiB
    #[arg(long, default_value_t = 256)]
    memory_mib: u64,
    /// Sizes of the data, as multiples of the memory
    #[arg(long, value_delimiter = ',', default_value = "0.5,2,8")]
    times: Vec<f64>,
    /// Engines, or `all`
    #[arg(long, value_delimiter = ',', default_value = "all")]
    engines: Vec<String>,
    /// Cache of each engine in MiB, instead of its default
    #[arg(long)]
    cache_mib: Option<u64>,
    /// Bypass the system's page cache in engines that can
    #[arg(long)]
    direct: bool,
    /// Bytes of each value
    #[arg(long, default_value_t = 400)]
    value_bytes: usize,
    /// Client threads, at most 4096
    #[arg(long, value_parser = cli::threads::<u64>(), default_value_t = 1)]
    threads: u64,
    /// Longest time of a phase that fills or empties the store, in seconds
    #[arg(long, default_value_t = 600.0)]
    grow_seconds: f64,
    /// Time of each other phase, in seconds
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Use 64 MiB of memory, data of 0.5 and 2 times as much, 2 s per phase and at most 20 s for filling
    #[arg(long)]
    quick: bool,
    /// Directory for the stores; they are removed afterward
    #[arg(long, default_value = "azekura-lab-data")]
    dir: PathBuf,
    /// Write one JSON object per engine, size and phase to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the tables and a chart of the rate of each second to this page
    #[arg(long)]
    html: Option<PathBuf>,
    /// Run one engine in this process; the value is a JSON object
    #[arg(long, hide = true)]
    cell: Option<String>,
}

/// One engine with one size of data.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Cell {
    engine: String,
    times: f64,
    size: Size,
    cache_bytes: Option<u64>,
    direct: bool,
    dir: PathBuf,
    /// The control group's file to which the process id is written.
    procs: Option<PathBuf>,
}

/// The result of one phase of a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    engine: String,
    times: f64,
    #[serde(flatten)]
    measured: Measured,
}

impl BeyondCache {
    /// Returns `true` if every engine was measured.
    pub(crate) fn run(&self) -> Result<bool> {
        if let Some(cell) = &self.cell {
            let cell: Cell = serde_json::from_str(cell).context("--cell")?;
            if let Some(procs) = &cell.procs {
                std::fs::write(procs, "0").with_context(|| format!("write {}", procs.display()))?;
            }
            run_cell(&cell, &mut |row| {
                println!("{}", serde_json::to_string(row)?);
                Ok(())
            })?;
            return Ok(true);
        }
        let mut json = match &self.json {
            Some(path) => {
                Some(std::fs::File::create(path).with_context(|| format!("create {}", path.display()))?)
            }
            None => None,
        };
        let (mut rows, mut failures) = (Vec::new(), Vec::new());
        for cell in self.cells()? {
            eprintln!("{}, {} times the memory, {} rows", cell.engine, cell.times, cell.size.rows);
            let before = rows.len();
            if let Err(error) = self.run_limited(cell.clone(), &mut rows) {
                failures.push(format!("{}, {} times the memory: {error:#}", cell.engine, cell.times));
            }
            if let Some(file) = &mut json {
                for row in &rows[before..] {
                    writeln!(file, "{}", serde_json::to_string(row)?).context("write the JSON file")?;
                }
            }
        }
        print!("{}", table::render(&rows));
        if let Some(path) = &self.html {
            std::fs::write(path, table::html(&rows)).with_context(|| format!("write {}", path.display()))?;
        }
        failures.iter().for_each(|failure| println!("{failure}"));
        Ok(failures.is_empty())
    }

    /// Returns the memory of an engine in bytes.
    fn memory(&self) -> u64 {
        (if self.quick { 64 } else { self.memory_mib }) << 20
    }

    fn cells(&self) -> Result<Vec<Cell>> {
        let times = if self.quick { vec![0.5, 2.0] } else { self.times.clone() };
        let are_positive = |numbers: &[f64]| numbers.iter().all(|n| *n > 0.0 && *n < 1e6);
        if !are_positive(&times) || !are_positive(&[self.seconds, self.grow_seconds]) {
            bail!("--times, --seconds and --grow-seconds must be positive and below 1,000,000");
        }
        let mut cells = Vec::new();
        for times in times {
            for engine in choose(peers::all(), &self.engines)? {
                let bytes = times * self.memory() as f64;
                let size = Size {
                    rows: (bytes / (8 + self.value_bytes) as f64).ceil() as u64,
                    value_bytes: self.value_bytes,
                    threads: self.threads,
                    grow_seconds: if self.quick { 20.0 } else { self.grow_seconds },
                    seconds: if self.quick { 2.0 } else { self.seconds },
                };
                let dir = self.dir.join(format!("beyond-{}-{}", engine.name(), std::process::id()));
                cells.push(Cell {
                    engine: engine.name().to_owned(),
                    times,
                    size,
                    cache_bytes: self.cache_mib.map(|mib| mib << 20),
                    direct: self.direct,
                    dir,
                    procs: None,
                });
            }
        }
        Ok(cells)
    }

    /// Runs a cell in a process and a control group of its own.
    fn run_limited(&self, mut cell: Cell, rows: &mut Vec<Row>) -> Result<()> {
        let group = Cgroup::create(self.memory())?;
        cell.procs = Some(group.procs());
        let mut child = Command::new(std::env::current_exe().context("find this program")?)
            .args(["beyond-cache", "--cell", &serde_json::to_string(&cell)?])
            .stdout(Stdio::piped())
            .spawn()
            .context("start the process of the engine")?;
        let output = child.stdout.take().context("read the output of the engine's process")?;
        let mut unread = None;
        for line in BufReader::new(output).lines() {
            match line.map_err(anyhow::Error::from).and_then(|line| Ok(serde_json::from_str(&line)?)) {
                Ok(row) => rows.push(row),
                Err(error) => unread = Some(error),
            }
        }
        let status = child.wait().context("wait for the process of the engine")?;
        remove(&cell.dir)?;
        if let Some(error) = unread {
            return Err(error).context("the process of the engine wrote no row");
        }
        if !status.success() {
            // The kernel sends signal 9 at the memory limit.
            bail!("its process ended with {status}");
        }
        Ok(())
    }
}

fn remove(dir: &Path) -> Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Runs the phases of a cell in this process.
fn run_cell(cell: &Cell, report: &mut dyn FnMut(&Row) -> Result<()>) -> Result<()> {
    let engine = choose(peers::all(), std::slice::from_ref(&cell.engine))?.remove(0);
    let next_value = AtomicU64::new(0);
    let stores: [&[Phase]; 2] = [
        &[Phase::GrowRandom, Phase::ReadUniform, Phase::ReadZipf, Phase::Mixed, Phase::Scan, Phase::Delete],
        &[Phase::GrowOrdered],
    ];
    for phases in stores {
        remove(&cell.dir)?;
        std::fs::create_dir_all(&cell.dir).with_context(|| format!("create {}", cell.dir.display()))?;
        let meter = Meter::new(&cell.dir)?;
        let store = open(&*engine, cell)?;
        let mut filled = 0;
        for &phase in phases {
            let measured = phase::run(&*store, phase, cell.size, &mut filled, &next_value, &meter)
                .with_context(|| phase.name())?;
            report(&Row { engine: cell.engine.clone(), times: cell.times, measured })?;
        }
        store.close()?;
        remove(&cell.dir)?;
    }
    Ok(())
}

fn open(engine: &dyn Engine, cell: &Cell) -> Result<Box<dyn azekura_lab::Store>> {
    let settings = EngineSettings {
        cache_bytes: cell.cache_bytes,
        expected_bytes: cell.size.rows * (8 + cell.size.value_bytes as u64),
        sessions: cell.size.threads as usize,
        bypass_page_cache: cell.direct,
    };
    Ok(engine.open(&cell.dir, &settings)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_runs_every_phase_over_the_rows_that_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let size = Size { rows: 1030, value_bytes: 100, threads: 2, grow_seconds: 60.0, seconds: 0.02 };
        let engine = azekura_lab::table::OURS.to_owned();
        let dir = dir.path().join("store");
        let cell = Cell { engine, times: 2.0, size, cache_bytes: None, direct: false, dir, procs: None };
        let mut rows = Vec::new();
        run_cell(&cell, &mut |row| {
            // Parsed as in the parent process.
            rows.push(serde_json::from_str::<Row>(&serde_json::to_string(row)?)?);
            Ok(())
        })
        .unwrap();
        let phases: Vec<_> = rows.iter().map(|row| row.measured.phase).collect();
        assert_eq!(phases.len(), 7);
        for row in &rows {
            let measured = &row.measured;
            assert_eq!(measured.per_second.iter().sum::<u64>(), measured.rows, "{measured:?}");
            match measured.phase {
                Phase::GrowRandom | Phase::GrowOrdered | Phase::Delete => assert_eq!(measured.rows, 1030),
                Phase::Scan => assert!(measured.rows >= 1030),
                _ => assert!(measured.rows > 0 && measured.p999 >= measured.p50),
            }
        }
        assert!(!cell.dir.exists());
        let text = table::render(&rows);
        assert!(phases.iter().all(|phase| text.contains(phase.name())), "{text}");
    }
}
