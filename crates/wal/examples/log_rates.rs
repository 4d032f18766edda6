//! Measures the log in a real directory: nanoseconds per append, and durable commits per second, by number of
//! blocking threads and pipelined.
//!
//! `cargo run --release -p azekura-wal --example log_rates -- [directory] [seconds per row] [log buffers]
//! [streams]`
//!
//! The directory should be on the measured device. A scratch directory inside it is used and removed. The
//! first row is the device's own rate: one thread repeatedly writes 4 KiB synchronously.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use azekura_base::{DurableLog, Lsn, PageBuf};
use azekura_io::{Fs, OpenOptions, OsFs};
use azekura_wal::recovery::replay;
use azekura_wal::{LogBufferId, LogIdentity, LogRange, Wal, WalOptions};
use hdrhistogram::Histogram;

const BODY_BYTES: usize = 120;

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let parent = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let seconds: f64 = arguments.next().map_or(Ok(1.0), |s| s.parse())?;
    let log_buffers: usize = arguments.next().map_or(Ok(0), |s| s.parse())?;
    let streams: usize = arguments.next().map_or(Ok(0), |s| s.parse())?;
    let scratch = tempfile::tempdir_in(parent)?;
    let mut bench = Bench {
        dir: scratch.path().join("wal"),
        time: Duration::from_secs_f64(seconds),
        options: WalOptions { log_buffers, streams, ..WalOptions::default() },
        incarnation: 0,
    };
    bench.device(scratch.path())?;
    bench.appends()?;
    bench.replay()?;
    for threads in [1, 2, 8, 16, 64] {
        bench.blocking(threads)?;
    }
    for (threads, window) in [(1, 64), (1, 512), (2, 256), (2, 1024)] {
        bench.pipelined(threads, window)?;
    }
    Ok(())
}

struct Bench {
    dir: PathBuf,
    time: Duration,
    options: WalOptions,
    incarnation: u32,
}

impl Bench {
    fn wal(&mut self) -> Result<Arc<Wal>, Error> {
        self.incarnation += 1;
        let first_lsn = Lsn(u64::from(self.incarnation) << 40);
        let identity = LogIdentity { database_id: 1, incarnation: self.incarnation, first_lsn };
        let wal = Wal::create(Arc::new(OsFs::new()), &self.dir, identity, self.options.clone())?;
        wal.trim(first_lsn)?;
        if self.incarnation == 1 {
            let stats = wal.stats();
            println!("log buffers {}, streams {}", stats.log_buffers, stats.streams);
        }
        Ok(wal)
    }

    fn device(&self, dir: &std::path::Path) -> Result<(), Error> {
        let file = OsFs::new().open(&dir.join("device"), OpenOptions::new().create(true).direct(true))?;
        file.write_zeroes(0, 16 << 20)?;
        file.sync()?;
        let page = PageBuf::zeroed(4096);
        let mut latency = histogram()?;
        let start = Instant::now();
        let mut writes = 0;
        while start.elapsed() < self.time {
            let before = Instant::now();
            file.write_at_sync(writes * 4096 % (16 << 20), &page)?;
            latency.record(before.elapsed().as_nanos() as u64)?;
            writes += 1;
        }
        report("device, 1 writer, 4 KiB", writes, start.elapsed(), &latency, "");
        Ok(())
    }

    /// Measures appends without commits. The log is trimmed meanwhile, so that segments are recycled.
    fn appends(&mut self) -> Result<(), Error> {
        for body_bytes in [16, BODY_BYTES, 1000] {
            let wal = self.wal()?;
            let (log_buffer, body) = (wal.log_buffer(), vec![7; body_bytes]);
            let rounds = 20_000;
            let mut best = f64::MAX;
            for _ in 0..20 {
                let start = Instant::now();
                for _ in 0..rounds / (1 + body_bytes / 100) {
                    wal.append(log_buffer, &body)?;
                }
                best = best.min(start.elapsed().as_nanos() as f64 / (rounds / (1 + body_bytes / 100)) as f64);
                wal.make_durable(Lsn::MAX)?;
                wal.trim(wal.durable_lsn())?;
            }
            println!("append {body_bytes:5} B {best:34.0} ns");
        }
        Ok(())
    }

    /// Measures the replay of two million records of four log buffers.
    fn replay(&mut self) -> Result<(), Error> {
        let wal = self.wal()?;
        let body = [7; BODY_BYTES];
        for n in 0..2_000_000 {
            wal.append(LogBufferId::from_index(n / 3), &body)?;
        }
        wal.close()?;
        let first_lsn = Lsn(u64::from(self.incarnation) << 40);
        let range = LogRange::open(self.incarnation, first_lsn);
        let start = Instant::now();
        let mut sum = 0_u64;
        let found = replay(&OsFs::new(), &self.dir, 1, &[range], first_lsn, &mut |_, body| {
            sum += u64::from(body[0]);
            Ok::<(), std::convert::Infallible>(())
        })?;
        let rate = found.records as f64 / start.elapsed().as_secs_f64();
        println!("replay {} records {:22.2} M/s ({})", found.records, rate / 1e6, sum / found.records);
        Ok(())
    }

    fn blocking(&mut self, threads: usize) -> Result<(), Error> {
        let wal = self.wal()?;
        let barrier = Barrier::new(threads);
        let results = std::thread::scope(|scope| {
            let client = || -> Result<(u64, Histogram<u64>), Error> {
                let mut latency = histogram()?;
                let body = [7; BODY_BYTES];
                barrier.wait();
                let start = Instant::now();
                let mut commits = 0;
                while start.elapsed() < self.time {
                    let before = Instant::now();
                    let lsn = wal.append(wal.log_buffer(), &body)?;
                    wal.make_durable(lsn)?;
                    latency.record(before.elapsed().as_nanos() as u64)?;
                    commits += 1;
                    trim_now_and_then(&wal, lsn)?;
                }
                Ok((commits, latency))
            };
            let handles: Vec<_> = (0..threads).map(|_| scope.spawn(client)).collect();
            handles.into_iter().map(|h| h.join().expect("a client panicked")).collect::<Result<Vec<_>, _>>()
        })?;
        self.sum(&wal, &format!("blocking, {threads} threads"), results)
    }

    fn pipelined(&mut self, threads: usize, window: usize) -> Result<(), Error> {
        let wal = self.wal()?;
        let results = std::thread::scope(|scope| {
            let client = || -> Result<(u64, Histogram<u64>), Error> {
                let mut latency = histogram()?;
                let body = [7; BODY_BYTES];
                let mut in_flight = VecDeque::new();
                let start = Instant::now();
                let mut commits = 0;
                while start.elapsed() < self.time {
                    let before = Instant::now();
                    let lsn = wal.append(wal.log_buffer(), &body)?;
                    in_flight.push_back((before, wal.ticket(lsn)));
                    trim_now_and_then(&wal, lsn)?;
                    while in_flight.len() >= window
                        || in_flight.front().is_some_and(|(_, t)| t.is_durable() == Ok(true))
                    {
                        let Some((before, ticket)) = in_flight.pop_front() else { break };
                        ticket.wait()?;
                        latency.record(before.elapsed().as_nanos() as u64)?;
                        commits += 1;
                    }
                }
                Ok((commits, latency))
            };
            let handles: Vec<_> = (0..threads).map(|_| scope.spawn(client)).collect();
            handles.into_iter().map(|h| h.join().expect("a client panicked")).collect::<Result<Vec<_>, _>>()
        })?;
        self.sum(&wal, &format!("pipelined, {threads} threads x {window}"), results)
    }

    fn sum(&self, wal: &Wal, name: &str, results: Vec<(u64, Histogram<u64>)>) -> Result<(), Error> {
        let mut all = histogram()?;
        let mut commits = 0;
        for (n, latency) in results {
            commits += n;
            all.add(latency)?;
        }
        let stats = wal.stats();
        let extra = format!(
            "  group {:.1} (largest {}), {:.0} B/record on disk, {:.2} writes/flush, {:.2} woken/flush",
            stats.mean_group(),
            stats.largest_group,
            stats.bytes_per_record(),
            stats.writes_per_flush(),
            stats.threads_woken as f64 / stats.flushes.max(1) as f64,
        );
        report(name, commits, self.time, &all, &extra);
        Ok(())
    }
}

/// Trims the log at intervals, as a checkpoint does.
fn trim_now_and_then(wal: &Wal, lsn: Lsn) -> Result<(), Error> {
    if lsn.0.is_multiple_of(1 << 16) {
        wal.trim(Lsn(wal.durable_lsn().0.min(lsn.0 - 1)))?;
    }
    Ok(())
}

fn histogram() -> Result<Histogram<u64>, Error> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
}

fn report(name: &str, count: u64, time: Duration, latency: &Histogram<u64>, extra: &str) {
    println!(
        "{name:28} {:9.0} /s  p50 {:7.0} us  p99 {:7.0} us{extra}",
        count as f64 / time.as_secs_f64(),
        latency.value_at_quantile(0.5) as f64 / 1e3,
        latency.value_at_quantile(0.99) as f64 / 1e3,
    );
}
