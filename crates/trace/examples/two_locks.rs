//! Records a small store with an unnecessary lock, then without this lock, and prints which of its two locks
//! is the bottleneck.
//!
//! `cargo run --release -p azekura-trace --example two_locks [DIRECTORY]` also writes the traces, an HTML
//! page and a Perfetto file to the directory.

use azekura_trace::report::{Format, ReportOptions, diff, report};
use azekura_trace::{
    HoldMode, Operation, Options, Recording, Site, WaitKind, hold, operation, start, stop, wait,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

static PUT: Operation = Operation::new("put");
static GET: Operation = Operation::new("get");
static SESSION: Site = Site::new("session table");
static TREE: Site = Site::new("tree");
static DISK: Site = Site::new("disk");

type Tree = Mutex<BTreeMap<u64, u64>>;

/// Runs `work` with the mutex locked; waits and holds are traced.
fn locked<T, R>(site: &'static Site, mutex: &Mutex<T>, work: impl FnOnce(&mut T) -> R) -> R {
    let object = &raw const *mutex as usize;
    let mut value = mutex.try_lock().unwrap_or_else(|_| {
        let _waiting = wait(site, object, WaitKind::Latch);
        mutex.lock().expect("nobody panics")
    });
    let holding = hold(site, object, HoldMode::Exclusive);
    let result = work(&mut value);
    drop(value);
    drop(holding);
    result
}

fn request(i: u64, session: Option<&Mutex<u64>>, tree: &Tree) {
    let is_put = i.is_multiple_of(4);
    let _op = operation(if is_put { &PUT } else { &GET });
    if let Some(session) = session {
        locked(&SESSION, session, |n| {
            *n += 1;
            busy(Duration::from_micros(40));
        });
    }
    let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
    locked(&TREE, tree, |t| if is_put { t.insert(key, i) } else { t.get(&key).copied() });
    if is_put {
        let _io = wait(&DISK, 0, WaitKind::Device);
        std::thread::sleep(Duration::from_micros(300));
    }
    busy(Duration::from_micros(20));
}

fn busy(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn record(label: &str, session: Option<&Mutex<u64>>) -> Result<Recording, Box<dyn Error>> {
    let tree = Tree::default();
    start(Options { label: label.into(), ..Options::default() })?;
    std::thread::scope(|s| {
        for thread in 0..8u64 {
            let tree = &tree;
            let work = move || (0..1500).for_each(|i| request(thread << 32 | i, session, tree));
            let name = format!("client {thread}");
            std::thread::Builder::new().name(name).spawn_scoped(s, work).expect("a thread");
        }
    });
    Ok(stop()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let before = record("with the session table", Some(&Mutex::new(0)))?;
    let after = record("without it", None)?;
    let (a, b) = (before.trace()?, after.trace()?);
    let mut out = std::io::stdout().lock();
    report(&a, &ReportOptions::default(), &mut out)?;
    writeln!(out)?;
    diff(&a, &b, &ReportOptions::default(), &mut out)?;
    if let Some(directory) = std::env::args().nth(1).map(PathBuf::from) {
        before.save(directory.join("before.trace"))?;
        after.save(directory.join("after.trace"))?;
        for (format, name) in [(Format::Html, "before.html"), (Format::Perfetto, "before.perfetto")] {
            let mut file = std::fs::File::create(directory.join(name))?;
            report(&a, &ReportOptions { format, ..ReportOptions::default() }, &mut file)?;
        }
    }
    Ok(())
}
