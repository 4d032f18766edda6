//! Measures one phase of work on one store.

use super::meter::Meter;
use anyhow::{Result, anyhow};
use azekura_lab::latency::Latencies;
use azekura_lab::{EngineError, Session, Sink, Store};
use azekura_workload::popularity::Popularity;
use azekura_workload::{KeyOrder, Population, Value};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Rows of a transaction that inserts or deletes.
const GROUP: u64 = 50;
/// Rows of a scan between two checks of the clock.
const SCAN_ROWS: u64 = 10_000;

/// The kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Phase {
    GrowRandom,
    ReadUniform,
    ReadZipf,
    Mixed,
    Scan,
    Delete,
    GrowOrdered,
}

impl Phase {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::GrowRandom => "grow, random keys",
            Self::GrowOrdered => "grow, ordered keys",
            Self::ReadUniform => "read, uniform",
            Self::ReadZipf => "read, Zipf 0.99",
            Self::Mixed => "50/50, uniform",
            Self::Scan => "full scans",
            Self::Delete => "delete, random keys",
        }
    }

    const fn key_order(self) -> KeyOrder {
        if matches!(self, Self::GrowOrdered) { KeyOrder::Ordered } else { KeyOrder::Hashed }
    }
}

/// The size of a run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Size {
    /// Rows of the filled store.
    pub(super) rows: u64,
    pub(super) value_bytes: usize,
    pub(super) threads: u64,
    /// Longest time of a phase that fills or empties the store, in seconds.
    pub(super) grow_seconds: f64,
    /// Time of the other phases, in seconds.
    pub(super) seconds: f64,
}

/// The measurements of a phase.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) phase: Phase,
    /// Rows inserted, read, changed, scanned or removed.
    pub(super) rows: u64,
    pub(super) seconds: f64,
    /// Number of rows processed in each second.
    pub(super) per_second: Vec<u64>,
    /// Latency quantiles in microseconds: of a transaction, or of each 10,000 rows of a scan.
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) cpu_us_per_row: f64,
    /// Bytes that the device read, per requested byte of keys and values.
    pub(super) read_per_byte: f64,
    /// Bytes that the device wrote, per requested byte of keys and values.
    pub(super) written_per_byte: f64,
}

impl Measured {
    pub(super) fn rate(&self) -> f64 {
        self.rows as f64 / self.seconds.max(1e-9)
    }

    /// Returns the rate in the last tenth of the whole seconds, divided by that in the first tenth; `None`
    /// for short runs.
    pub(super) fn last_over_first(&self) -> Option<f64> {
        let whole = &self.per_second[..self.per_second.len().saturating_sub(1)];
        let tenth = whole.len().div_ceil(10);
        let sum = |part: &[u64]| part.iter().sum::<u64>() as f64;
        (whole.len() >= 4).then(|| sum(&whole[whole.len() - tenth..]) / sum(&whole[..tenth]).max(1.0))
    }
}

/// State shared by the threads of a phase.
struct Shared<'a> {
    phase: Phase,
    size: Size,
    /// Number of rows in the store at the begin of the phase: items below this number.
    filled: u64,
    next_item: AtomicU64,
    next_value: &'a AtomicU64,
    popularity: Popularity,
    population: Population,
    done: AtomicU64,
    is_over: AtomicBool,
    running: AtomicUsize,
}

/// Runs a phase. `filled` is the number of rows in the store; a phase that fills the store sets it.
pub(super) fn run(
    store: &dyn Store,
    phase: Phase,
    size: Size,
    filled: &mut u64,
    next_value: &AtomicU64,
    meter: &Meter,
) -> Result<Measured> {
    let grows = matches!(phase, Phase::GrowRandom | Phase::GrowOrdered);
    let domain = (*filled).max(1);
    let shared = Shared {
        phase,
        size,
        filled: domain,
        next_item: AtomicU64::new(0),
        next_value,
        popularity: match phase {
            Phase::ReadZipf => Popularity::scrambled_zipf(domain, false),
            _ => Popularity::uniform(domain),
        },
        population: Population::new(domain),
        done: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        running: AtomicUsize::new(size.threads as usize),
    };
    let limit = if grows || phase == Phase::Delete { size.grow_seconds } else { size.seconds };
    let (before, began) = (meter.read(), Instant::now());
    let (latencies, per_second, seconds) = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for thread in 0..size.threads {
            let shared = &shared;
            let work = move || {
                let _ending = Ending(&shared.running);
                shared.work(store, thread)
            };
            match std::thread::Builder::new().spawn_scoped(scope, work) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    shared.is_over.store(true, Relaxed); // a flag that publishes no other data
                    return Err(anyhow!(error).context("start a client thread"));
                }
            }
        }
        let per_second = shared.sample(began, Duration::from_secs_f64(limit));
        let mut all = Latencies::default();
        let mut failed = None;
        for thread in threads {
            match thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                Ok(latencies) => all.merge(&latencies),
                Err(error) => failed = Some(error),
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        failed.map_or(Ok((all, per_second, seconds)), Err)
    })?;
    let cpu = meter.read().cpu_seconds - before.cpu_seconds;
    meter.sync_files()?;
    let after = meter.read();
    let rows = shared.done.load(Relaxed);
    if grows {
        *filled = rows;
    }
    let bytes = (rows.max(1) * (8 + size.value_bytes as u64)) as f64;
    Ok(Measured {
        phase,
        rows,
        seconds,
        per_second,
        p50: latencies.quantile_us(0.5),
        p90: latencies.quantile_us(0.9),
        p99: latencies.quantile_us(0.99),
        p999: latencies.quantile_us(0.999),
        cpu_us_per_row: cpu * 1e6 / rows.max(1) as f64,
        read_per_byte: (after.read - before.read) as f64 / bytes,
        written_per_byte: (after.written - before.written) as f64 / bytes,
    })
}

/// Counts down the running threads when dropped, also if the thread panics.
struct Ending<'a>(&'a AtomicUsize);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed); // a count that publishes no other data
    }
}

impl Shared<'_> {
    /// Records the rows of each second until all threads have ended. Ends the threads when the time is over.
    fn sample(&self, began: Instant, limit: Duration) -> Vec<u64> {
        let (mut per_second, mut seen) = (Vec::new(), 0);
        loop {
            let is_over = self.running.load(Relaxed) == 0;
            if is_over || began.elapsed().as_secs() > per_second.len() as u64 {
                let done = self.done.load(Relaxed);
                per_second.push(done - seen);
                seen = done;
            }
            if is_over {
                return per_second;
            }
            if began.elapsed() >= limit {
                self.is_over.store(true, Relaxed); // a flag that publishes no other data
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn work(&self, store: &dyn Store, thread: u64) -> Result<Latencies> {
        let mut session = store.session()?;
        let mut latencies = Latencies::default();
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(thread + 1);
        let mut value = vec![0; self.size.value_bytes];
        let mut from = Vec::new();
        loop {
            let began = Instant::now();
            let rows = match self.phase {
                Phase::GrowRandom | Phase::GrowOrdered => self.insert(&mut *session, &mut value)?,
                Phase::Delete => self.remove(&mut *session)?,
                Phase::ReadUniform | Phase::ReadZipf => self.get(&mut *session, &mut rng)?,
                Phase::Mixed if rng.random_bool(0.5) => self.get(&mut *session, &mut rng)?,
                Phase::Mixed => self.update(&mut *session, &mut rng, &mut value)?,
                Phase::Scan => scan(&mut *session, &mut from)?,
            };
            if rows == 0 {
                break;
            }
            latencies.record(began.elapsed());
            self.done.fetch_add(rows, Relaxed); // a count that publishes no other data
            if self.is_over.load(Relaxed) {
                break;
            }
        }
        Ok(latencies)
    }

    /// Returns the next items of the phase, at most [`GROUP`].
    fn take(&self, end: u64) -> std::ops::Range<u64> {
        let first = self.next_item.fetch_add(GROUP, Relaxed); // a counter that publishes no other data
        first.min(end)..(first + GROUP).min(end)
    }

    fn fill(&self, value: &mut [u8]) {
        Value(self.next_value.fetch_add(1, Relaxed)).fill(value); // a counter that publishes no other data
    }

    fn insert(&self, session: &mut dyn Session, value: &mut [u8]) -> Result<u64, EngineError> {
        let items = self.take(self.size.rows);
        if items.is_empty() {
            return Ok(0);
        }
        let keys: Vec<_> = items.clone().map(|item| self.phase.key_order().key(item)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        session.write(&mut |writer| {
            writer.prefetch(&keys)?;
            keys.iter().try_for_each(|key| {
                self.fill(value);
                writer.put(key, value)
            })
        })?;
        Ok(items.end - items.start)
    }

    fn remove(&self, session: &mut dyn Session) -> Result<u64, EngineError> {
        let items = self.take(self.filled);
        if items.is_empty() {
            return Ok(0);
        }
        let keys: Vec<_> = items.clone().map(|item| self.phase.key_order().key(item)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        session.write(&mut |writer| {
            writer.prefetch(&keys)?;
            keys.iter().try_for_each(|key| writer.remove(key))
        })?;
        Ok(items.end - items.start)
    }

    fn get(&self, session: &mut dyn Session, rng: &mut Xoshiro256PlusPlus) -> Result<u64> {
        let item = self.popularity.draw(rng, &self.population);
        let mut is_found = false;
        session.read(&mut |reader| {
            is_found = reader.get(self.phase.key_order().key(item).as_bytes(), &mut Sink::default())?;
            Ok(())
        })?;
        is_found.then_some(1).ok_or_else(|| anyhow!("row {item} of {} is missing", self.filled))
    }

    fn update(
        &self,
        session: &mut dyn Session,
        rng: &mut Xoshiro256PlusPlus,
        value: &mut [u8],
    ) -> Result<u64, EngineError> {
        let item = self.popularity.draw(rng, &self.population);
        self.fill(value);
        session.write(&mut |writer| writer.put(self.phase.key_order().key(item).as_bytes(), value))?;
        Ok(1)
    }
}

/// Reads the next rows of a scan. At the end of the table, the scan begins again.
fn scan(session: &mut dyn Session, from: &mut Vec<u8>) -> Result<u64, EngineError> {
    let mut sink = Sink::keeping();
    session.read(&mut |reader| {
        sink = Sink::keeping();
        reader.scan(from, SCAN_ROWS, &mut sink)
    })?;
    let rows = sink.take();
    match rows.last() {
        Some((key, _)) if rows.len() as u64 == SCAN_ROWS => {
            from.clone_from(key);
            from.push(0);
        }
        _ => from.clear(),
    }
    Ok(rows.len().max(1) as u64)
}
