//! `many`: many small stores in one process, over every engine at its defaults.
//!
//! Programs open a store for each user, project or test, and leave most of them idle. Each engine runs in a
//! process of its own, once for each number of stores. It creates the stores, writes one row to each, idles,
//! closes all, opens them again and reads the rows. The process is this program with `--cell`; it writes one
//! JSON object. For each number of stores, the engines run in turn.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use azekura_lab::{Engine, EngineSettings, Sink, Store};
use serde::{Deserialize, Serialize};

use crate::cli::choose;
use crate::peers;

/// Compares engines with many small stores in one process.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    azekura-compare many                                       1, 20 and 200 stores\n  \
    azekura-compare many --stores 1000 --engines azekura,lmdb --json many.jsonl\n\n\
    Raise `ulimit -n` for many stores. Prints a table for each number of stores. Memory, threads and\n\
    descriptors are those of the process with all stores open, less those before. Exit code 1: an engine\n\
    failed.")]
pub(crate) struct Many {
    /// Numbers of stores
    #[arg(long, value_delimiter = ',', default_value = "1,20,200")]
    stores: Vec<usize>,
    /// Engines, or `all`
    #[arg(long, value_delimiter = ',', default_value = "all")]
    engines: Vec<String>,
    /// Seconds for which all stores are open and idle
    #[arg(long, default_value_t = 5.0)]
    idle_seconds: f64,
    /// Directory for the stores; they are removed afterward
    #[arg(long, default_value = "azekura-lab-data")]
    dir: PathBuf,
    /// Write one JSON object per engine and number of stores to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Measure this engine in this process, in `--dir`, with the given number of stores (one only)
    #[arg(long, hide = true)]
    cell: Option<String>,
}

/// The measurements of one engine with one number of stores.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Figures {
    engine: String,
    stores: usize,
    /// Time for creating all stores, one after the other.
    create_s: f64,
    /// Time for writing one durable row to each store.
    put_s: f64,
    close_s: f64,
    /// Time for opening all stores again, and reading the row of each.
    reopen_s: f64,
    /// Anonymous memory of the process while all stores are open.
    resident_mb: f64,
    /// Disk space of the stores while all are open.
    disk_mb: f64,
    files: usize,
    descriptors: usize,
    threads: usize,
    idle_cpu_ms_per_s: f64,
    idle_switches_per_s: f64,
}

const KEY: &[u8] = b"key";
const VALUE: &[u8] = b"a value of a small store";

impl Many {
    /// Measures and prints; returns `true` if every engine was measured.
    pub(crate) fn run(&self) -> Result<bool> {
        let idle = Duration::try_from_secs_f64(self.idle_seconds).context("--idle-seconds")?;
        if let Some(name) = &self.cell {
            let engines = choose(peers::all(), std::slice::from_ref(name))?;
            let (Some(engine), Some(&stores)) = (engines.first(), self.stores.first()) else {
                bail!("--cell needs an engine and --stores");
            };
            let figures = measure(&**engine, stores, idle, &self.dir)?;
            println!("{}", serde_json::to_string(&figures)?);
            return Ok(true);
        }
        ensure!(self.stores.iter().all(|&stores| stores > 0), "--stores: at least one");
        let engines = choose(peers::all(), &self.engines)?;
        std::fs::create_dir_all(&self.dir).with_context(|| format!("create {}", self.dir.display()))?;
        let mut json = match &self.json {
            Some(path) => {
                Some(std::fs::File::create(path).with_context(|| format!("create {}", path.display()))?)
            }
            None => None,
        };
        let mut is_complete = true;
        for &stores in &self.stores {
            let mut rows = Vec::new();
            for engine in &engines {
                match self.cell(engine.name(), stores) {
                    Ok(figures) => {
                        if let Some(file) = &mut json {
                            writeln!(file, "{}", serde_json::to_string(&figures)?)
                                .context("write the JSON file")?;
                        }
                        rows.push(figures);
                    }
                    Err(error) => {
                        eprintln!("{}, {stores} stores: {error:#}", engine.name());
                        is_complete = false;
                    }
                }
            }
            println!("{}", render(stores, &rows));
        }
        Ok(is_complete)
    }

    /// Measures an engine in a process of its own.
    fn cell(&self, engine: &str, stores: usize) -> Result<Figures> {
        let dir = self.dir.join(format!("many-{engine}-{stores}"));
        if dir.exists() {
            std::fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
        }
        std::fs::create_dir(&dir).with_context(|| format!("create {}", dir.display()))?;
        let done = Command::new(std::env::current_exe().context("find this program")?)
            .args(["many", "--cell", engine, "--stores", &stores.to_string()])
            .args(["--idle-seconds", &self.idle_seconds.to_string()])
            .arg("--dir")
            .arg(&dir)
            .stderr(Stdio::inherit())
            .output()
            .context("start a process for the engine")?;
        std::fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
        ensure!(done.status.success(), "the engine's process ended with {}", done.status);
        serde_json::from_slice(&done.stdout).context("the figures of the engine's process")
    }
}

/// Runs all steps of one engine.
fn measure(engine: &dyn Engine, stores: usize, idle: Duration, dir: &Path) -> Result<Figures> {
    let settings =
        EngineSettings { cache_bytes: None, expected_bytes: 1 << 16, sessions: 2, bypass_page_cache: false };
    let dirs: Vec<PathBuf> = (0..stores).map(|n| dir.join(n.to_string())).collect();
    for dir in &dirs {
        std::fs::create_dir(dir).with_context(|| format!("create {}", dir.display()))?;
    }
    let open = || dirs.iter().map(|dir| engine.open(dir, &settings)).collect::<Result<Vec<_>, _>>();
    let before = Held::now()?;
    let (create_s, open_stores) = timed(open);
    let open_stores = open_stores?;
    let (put_s, put) = timed(|| open_stores.iter().try_for_each(|store| put(&**store)));
    put?;
    let at_rest = Costs::at_rest()?;
    std::thread::sleep(idle);
    let idle_costs = Costs::now()?.since(&at_rest);
    let held = Held::now()?;
    let disk = Disk::of(dir)?;
    let (close_s, closed) = timed(|| open_stores.into_iter().try_for_each(Store::close));
    closed?;
    let (reopen_s, reopened) = timed(|| -> Result<_> {
        let stores = open()?;
        stores.iter().try_for_each(|store| check(&**store))?;
        Ok(stores)
    });
    reopened?.into_iter().try_for_each(Store::close)?;
    let per_s = |count: u64| count as f64 / idle.as_secs_f64();
    Ok(Figures {
        engine: engine.name().to_owned(),
        stores,
        create_s,
        put_s,
        close_s,
        reopen_s,
        resident_mb: held.resident_kib.saturating_sub(before.resident_kib) as f64 / 1024.0,
        disk_mb: disk.blocks as f64 * 512.0 / f64::from(1 << 20),
        files: disk.files,
        descriptors: held.descriptors.saturating_sub(before.descriptors),
        threads: held.threads.saturating_sub(before.threads),
        idle_cpu_ms_per_s: per_s(idle_costs.cpu_ticks * MS_PER_TICK),
        idle_switches_per_s: per_s(idle_costs.switches),
    })
}

fn timed<T>(run: impl FnOnce() -> T) -> (f64, T) {
    let began = Instant::now();
    let done = run();
    (began.elapsed().as_secs_f64(), done)
}

fn put(store: &dyn Store) -> Result<()> {
    store.session()?.write(&mut |writer| writer.put(KEY, VALUE))?;
    Ok(())
}

fn check(store: &dyn Store) -> Result<()> {
    let mut sink = Sink::keeping();
    store.session()?.read(&mut |reader| reader.get(KEY, &mut sink).map(drop))?;
    let is_right = sink.take().last().is_some_and(|(_, value)| value == VALUE);
    ensure!(is_right, "a store has not the row that was put");
    Ok(())
}

/// Milliseconds per clock tick of the kernel's processor times (`USER_HZ` is 100).
const MS_PER_TICK: u64 = 10;

/// The kernel's counts for each thread of this process except the calling one, by the thread's number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Costs(BTreeMap<OsString, ThreadCosts>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ThreadCosts {
    switches: u64,
    cpu_ticks: u64,
}

impl Costs {
    /// Returns the costs since `before`, without those of threads that have ended meanwhile.
    fn since(&self, before: &Self) -> ThreadCosts {
        let mut all = ThreadCosts::default();
        for (thread, now) in &self.0 {
            let then = before.0.get(thread).copied().unwrap_or_default();
            all.switches += now.switches.saturating_sub(then.switches); // a new thread may have the number
            all.cpu_ticks += now.cpu_ticks.saturating_sub(then.cpu_ticks);
        }
        all
    }

    fn now() -> Result<Self> {
        let own = std::fs::read_link("/proc/thread-self")?;
        let mut costs = Self::default();
        for task in std::fs::read_dir("/proc/self/task")? {
            let task = task?;
            if Some(task.file_name().as_os_str()) == own.file_name() {
                continue;
            }
            let read = |name| std::fs::read_to_string(task.path().join(name));
            // The thread may have ended meanwhile.
            let (Ok(status), Ok(stat)) = (read("status"), read("stat")) else { continue };
            let switches = status.lines().filter(|line| line.contains("ctxt_switches")).map(field).sum();
            // The thread's name may contain blanks; utime and stime are the 12th and 13th field after it.
            let times = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
            let ticks =
                times.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok());
            costs.0.insert(task.file_name(), ThreadCosts { switches, cpu_ticks: ticks.sum() });
        }
        Ok(costs)
    }

    /// Returns the counts when the threads have become idle after the writes, or after at most 10 s.
    fn at_rest() -> Result<Self> {
        let mut before = Self::now()?;
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(500));
            let now = Self::now()?;
            if now == before {
                break;
            }
            before = now;
        }
        Self::now()
    }
}

/// Returns the number in a line `name: number unit`.
fn field(line: &str) -> u64 {
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Memory, threads and descriptors of this process.
#[derive(Clone, Copy, Debug)]
struct Held {
    resident_kib: u64,
    threads: usize,
    descriptors: usize,
}

impl Held {
    fn now() -> Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let of = |name: &str| status.lines().find(|line| line.starts_with(name)).map_or(0, field);
        Ok(Self {
            resident_kib: of("RssAnon:"),
            threads: usize::try_from(of("Threads:"))?,
            descriptors: std::fs::read_dir("/proc/self/fd")?.count(),
        })
    }
}

/// The files below a directory.
#[derive(Clone, Copy, Debug, Default)]
struct Disk {
    files: usize,
    /// Blocks of 512 bytes.
    blocks: u64,
}

impl Disk {
    fn of(dir: &Path) -> Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let mut disk = Self::default();
        for entry in std::fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                let below = Self::of(&entry.path())?;
                disk.files += below.files;
                disk.blocks += below.blocks;
            } else {
                disk.files += 1;
                disk.blocks += entry.metadata()?.blocks();
            }
        }
        Ok(disk)
    }
}

/// Formats the table for one number of stores.
fn render(stores: usize, rows: &[Figures]) -> String {
    let mut text = format!("{stores} stores, one row in each; idle: all are open and have no work\n");
    let width = rows.iter().map(|row| row.engine.len()).max().unwrap_or(0).max("engine".len());
    let _ = writeln!(
        text,
        "{:<width$}  {:>9}  {:>7}  {:>7}  {:>8}  {:>7}  {:>8}  {:>6}  {:>5}  {:>7}  {:>11}  {:>13}",
        "engine",
        "create s",
        "put s",
        "close s",
        "reopen s",
        "RAM MB",
        "disk MB",
        "files",
        "fds",
        "threads",
        "idle ms/s",
        "idle switch/s"
    );
    for row in rows {
        let times = [row.create_s, row.put_s, row.close_s, row.reopen_s].map(|s| format!("{s:.3}"));
        let others = [row.resident_mb, row.disk_mb, row.idle_cpu_ms_per_s, row.idle_switches_per_s];
        let [create, put, close, reopen] = times;
        let [resident, disk, cpu, switches] = others.map(|figure| format!("{figure:.1}"));
        let Figures { engine, files, descriptors, threads, .. } = row;
        let _ =
            write!(text, "{engine:<width$}  {create:>9}  {put:>7}  {close:>7}  {reopen:>8}  {resident:>7}  ");
        let _ = write!(text, "{disk:>8}  {files:>6}  {descriptors:>5}  {threads:>7}  ");
        let _ = writeln!(text, "{cpu:>11}  {switches:>13}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_ends_while_the_stores_are_idle_has_no_costs() {
        let costs = |threads: &[(&str, u64)]| {
            let counts = |n| ThreadCosts { switches: n, cpu_ticks: n };
            Costs(threads.iter().map(|&(thread, n)| (thread.into(), counts(n))).collect())
        };
        let (before, after) = (costs(&[("1", 5), ("2", 100)]), costs(&[("1", 7), ("3", 1)]));
        assert_eq!(after.since(&before), ThreadCosts { switches: 3, cpu_ticks: 3 });
    }

    #[test]
    fn every_engine_makes_several_stores_and_finds_their_rows_again() {
        for engine in peers::all() {
            let dir = tempfile::tempdir().expect("a directory");
            let figures =
                measure(&*engine, 3, Duration::from_millis(10), dir.path()).expect("an engine failed");
            assert_eq!((figures.engine.as_str(), figures.stores), (engine.name(), 3));
            assert!(figures.files >= 3 && figures.disk_mb > 0.0, "{figures:?}");
            assert!(render(3, &[figures]).contains(engine.name()));
        }
    }
}
