//! U-1 and U-10 on the log alone, as in §5.2.1. There are 65,536 pages of one 32-bit integer in memory with a
//! lock for each. Transactions use strict two-phase locking with early lock release. BEGIN and END records
//! have 132 bytes and UPDATE records 156, including the log's own frames.
//!
//! 1. Append BEGIN. For each page, in ascending order to avoid deadlocks: lock it, append UPDATE, change it.
//! 2. Append END, queue the transaction with its commit LSN, store this LSN in the pages, and release the
//!    locks (Algorithms 2 and 3).
//! 3. [`Pace::Groups`]: after every N transactions the worker itself writes its log (Algorithm 1).
//!    [`Pace::Greedy`]: the log's own threads write whenever there are records. [`Pace::Unasked`]: the log
//!    decides (epochs).
//! 4. A transaction is acknowledged once the durable horizon has reached its commit LSN (Algorithm 4). A
//!    worker with a full window waits for its oldest transaction. A worker without a window represents a
//!    client that waits for each commit.
//!
//! Each record is ordered [after](Order::After) another record, as in the store: an UPDATE after the last
//! record of its page, BEGIN and END only after the worker's own records. Workers can therefore draw LSNs in
//! ranges; the paper's workers draw one LSN for each record ([`Variant::lsn_range`]).
//!
//! The paper's workers have no window. Here they have one, so that variants can be compared with the same
//! work in flight. Chunks are multiples of 4 KiB here, and of 512 bytes in the paper: 16 transactions of U-1
//! fill a chunk of 8,192 bytes (7,168 in the paper).

use super::ground::Site;
use super::usage::Usage;
use super::variant::{Pace, Variant};
use crate::error::{BenchError, EngineError};
use crate::latency::Latencies;
use azekura_base::sync::atomic::{AtomicBool, Ordering::Relaxed};
use azekura_base::sync::thread;
use azekura_base::sync::time::Instant;
use azekura_base::{DurableLog, Lsn};
use azekura_baselines::TtasLock;
use azekura_wal::lsn_range::Order;
use azekura_wal::{LogBufferId, LogIdentity, Wal, WalStats};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::error::Error;
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// Number of pages, as in the paper.
pub const PAGES: usize = 65_536;
/// Bytes that the log adds to a record: one for the LSN and two for the length.
const FRAME: usize = 3;
/// Bytes of a BEGIN or END record without its frame; 132 with it.
const BOUND_BODY: usize = 132 - FRAME;
/// Bytes of an UPDATE record without its frame; 156 with it.
const UPDATE_BODY: usize = 156 - FRAME;

/// Returns the bytes of log of a transaction with this number of updates.
pub(super) const fn transaction_bytes(updates: usize) -> usize {
    2 * (BOUND_BODY + FRAME) + updates * (UPDATE_BODY + FRAME)
}

static PAGE_LOCK: azekura_trace::Site = azekura_trace::Site::new("lab: page lock");

/// A page: its integer, and the commit LSN of the transaction that changed it last.
#[derive(Clone, Copy, Debug)]
struct Page {
    value: u32,
    lsn: Lsn,
}

/// The pages, shared by all workers.
#[derive(Debug)]
pub struct Pages(Box<[TtasLock<Page>]>);

impl Default for Pages {
    fn default() -> Self {
        Self((0..PAGES).map(|_| TtasLock::new(Page { value: 0, lsn: Lsn(0) })).collect())
    }
}

impl Pages {
    /// Returns the sum of all integers, which is the number of updates.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.0.iter().map(|page| u64::from(page.lock(&PAGE_LOCK).value)).sum()
    }

    /// Resets the LSNs of all pages before another log begins with LSNs of its own.
    fn forget_log(&self) {
        self.0.iter().for_each(|page| page.lock(&PAGE_LOCK).lsn = Lsn(0));
    }
}

/// Settings of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Micro {
    /// The compared log.
    pub variant: Variant,
    /// Number of threads. With a window each has its own log buffer; otherwise they share the default number.
    pub workers: usize,
    /// Number of updates in a transaction: 1 or 10.
    pub updates: usize,
    /// Number of transactions that a worker may have in flight; `None` means that it waits for each.
    pub window: Option<usize>,
    /// Duration.
    pub time: Duration,
    /// Seed of the choice of pages.
    pub seed: u64,
}

/// Results of a measurement.
#[derive(Clone, Debug, Default)]
pub struct Stretch {
    /// Number of transactions with an acknowledged commit.
    pub committed: u64,
    /// Length of the measured time in seconds.
    pub seconds: f64,
    /// Latencies from a transaction's start until its worker's log was written; with [`Pace::Groups`].
    pub until_flush: Latencies,
    /// Latencies from a transaction's start until its commit was acknowledged.
    pub until_known: Latencies,
    /// Resources that the process used.
    pub usage: Usage,
    /// Counts of the log during the measured time, and its number of streams.
    pub log: WalStats,
}

impl Stretch {
    /// Returns the transactions per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.committed as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Returns the MiB of log records per second.
    #[must_use]
    pub fn record_mib_per_s(&self) -> f64 {
        self.log.record_bytes as f64 / f64::from(1 << 20) / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Returns the MiB per second written to the device, with headers and padding.
    #[must_use]
    pub fn written_mib_per_s(&self) -> f64 {
        self.log.chunk_bytes as f64 / f64::from(1 << 20) / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Returns the mean bytes of a chunk, rounded up to a multiple of 4 KiB.
    #[must_use]
    pub fn chunk_bytes(&self) -> usize {
        let mean = self.log.chunk_bytes.checked_div(self.log.chunks).unwrap_or(0);
        usize::try_from(mean).unwrap_or(usize::MAX >> 1).max(1).next_multiple_of(4096)
    }

    /// Returns the mean number of transactions in flight, by Little's law.
    #[must_use]
    pub fn in_flight(&self) -> f64 {
        self.rate() * self.until_known.mean_us() / 1e6
    }
}

/// Warm-up, so that segments are ready and recycled: the measured time divided by `WARM_UP`, but at least
/// `LEAST_WARM_UP`.
const WARM_UP: u32 = 2;
const LEAST_WARM_UP: Duration = Duration::from_millis(250);

/// Interval at which durable records are trimmed, so that segments are recycled.
const TRIM_EVERY: Duration = Duration::from_millis(5);

impl Micro {
    /// Creates a log, runs the workers, and closes the log.
    ///
    /// # Errors
    ///
    /// An error of the log.
    pub fn run(&self, site: &Site, pages: &Pages) -> Result<Stretch, BenchError> {
        let identity = LogIdentity { database_id: 1, incarnation: 1, first_lsn: Lsn(1) };
        let dir = site.dir.join("wal");
        pages.forget_log();
        let options = self.variant.wal_options(if self.window.is_some() { self.workers } else { 0 });
        let wal =
            Wal::create(Arc::clone(&site.fs), &dir, identity, options).map_err(failed("making the log"))?;
        let (start, stop) = (Barrier::new(self.workers + 1), AtomicBool::new(false));
        let counts = AtomicBool::new(false);
        let mut all = Stretch::default();
        let (took, before, after) = std::thread::scope(|scope| {
            let one = |worker| {
                let _stop = StopAtEnd(&stop);
                start.wait();
                // Relaxed: a worker may run one more transaction.
                work(self, &wal, pages, worker, &counts, || !stop.load(Relaxed))
            };
            let threads: Vec<_> = (0..self.workers).map(|worker| scope.spawn(move || one(worker))).collect();
            start.wait();
            let idle_until = |end: Instant| {
                while !stop.load(Relaxed) && Instant::now() < end {
                    std::thread::sleep(end.saturating_duration_since(Instant::now()).min(TRIM_EVERY));
                    // If the release of segments fails, they only remain in use.
                    let _ = wal.trim(wal.durable_lsn());
                }
            };
            idle_until(Instant::now() + (self.time / WARM_UP).max(LEAST_WARM_UP));
            // Relaxed: a worker may count one transaction more or less.
            counts.store(true, Relaxed);
            let (began, before, used) = (Instant::now(), wal.stats(), Usage::now());
            idle_until(began + self.time.max(self.variant.least_time()));
            counts.store(false, Relaxed);
            let (took, after) = (began.elapsed(), wal.stats());
            all.usage = Usage::now().since(used);
            stop.store(true, Relaxed);
            for thread in threads {
                let tally = thread.join().unwrap_or(Err(BenchError::Panicked))?;
                all.committed += tally.committed;
                all.until_flush.merge(&tally.until_flush);
                all.until_known.merge(&tally.until_known);
            }
            Ok::<_, BenchError>((took, before, after))
        })?;
        all.seconds = took.as_secs_f64();
        all.log = between(&before, after);
        wal.close().map_err(failed("closing the log"))?;
        Ok(all)
    }
}

/// Runs one worker, from its first transaction until all of its commits are durable.
pub(super) fn work(
    micro: &Micro,
    wal: &Arc<Wal>,
    pages: &Pages,
    worker: usize,
    counts: &AtomicBool,
    go_on: impl FnMut() -> bool,
) -> Result<Stretch, BenchError> {
    let mut client = Client::new(micro, wal, pages, worker);
    client.run(counts, go_on)?;
    Ok(client.tally)
}

/// Returns the differences of the log's counts.
fn between(before: &WalStats, mut after: WalStats) -> WalStats {
    after.records -= before.records;
    after.record_bytes -= before.record_bytes;
    after.lsn_draws -= before.lsn_draws;
    after.flushes -= before.flushes;
    after.chunks -= before.chunks;
    after.chunk_bytes -= before.chunk_bytes;
    after
}

/// Stops all workers when dropped, so that they end together after an error or a panic.
struct StopAtEnd<'s>(&'s AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

pub(super) fn failed<E: Error + Send + Sync + 'static>(doing: &'static str) -> impl Fn(E) -> BenchError {
    move |error| EngineError::failed(doing, error).into()
}

/// A transaction in flight.
struct Pending {
    commit_lsn: Lsn,
    began: Instant,
}

/// State of a worker.
struct Client<'a> {
    wal: &'a Arc<Wal>,
    pages: &'a Pages,
    worker: LogBufferId,
    updates: usize,
    window: Option<usize>,
    pace: Pace,
    random: Xoshiro256PlusPlus,
    /// Transactions in flight, in the order of their commit LSNs.
    queue: VecDeque<Pending>,
    /// Number of transactions at the end of the queue that are not flushed.
    unflushed: usize,
    /// The worker is within the measured time.
    counts: bool,
    tally: Stretch,
}

impl<'a> Client<'a> {
    fn new(micro: &Micro, wal: &'a Arc<Wal>, pages: &'a Pages, worker: usize) -> Self {
        Self {
            wal,
            pages,
            worker: LogBufferId::from_index(worker),
            updates: micro.updates,
            window: micro.window.map(|window| micro.variant.window(window).max(1)),
            pace: micro.variant.pace(),
            random: Xoshiro256PlusPlus::seed_from_u64(
                micro.seed.wrapping_mul(1009).wrapping_add(worker as u64),
            ),
            queue: VecDeque::new(),
            unflushed: 0,
            counts: false,
            tally: Stretch::default(),
        }
    }

    /// Runs transactions until `go_on` returns `false`, then waits for those in flight (Algorithm 1).
    fn run(&mut self, counts: &AtomicBool, mut go_on: impl FnMut() -> bool) -> Result<(), BenchError> {
        while go_on() {
            self.counts = counts.load(Relaxed);
            self.transact()?;
            let Some(window) = self.window else {
                self.wait_for_newest()?;
                continue;
            };
            match self.pace {
                Pace::Groups(n) => {
                    if self.unflushed >= n.min(window) {
                        self.flush()?;
                    }
                    self.notify();
                    // The worker's log is written, so it only waits for the logs of the other workers.
                    while self.unflushed == 0 && self.queue.len() >= window {
                        thread::yield_now();
                        self.check()?;
                        self.notify();
                    }
                }
                Pace::Greedy | Pace::Unasked => {
                    if self.pace == Pace::Greedy {
                        self.wal.request_flush();
                    }
                    self.notify();
                    if self.queue.len() >= window {
                        self.wait_for_oldest()?;
                    }
                }
            }
        }
        self.counts = false;
        self.flush()?;
        while !self.queue.is_empty() {
            self.wait_for_oldest()?;
        }
        Ok(())
    }

    /// Runs a transaction (Algorithms 2 and 3).
    fn transact(&mut self) -> Result<(), BenchError> {
        let began = Instant::now();
        self.append::<BOUND_BODY>(b'b', Lsn(0))?;
        let mut chosen = [0_u16; 16];
        let chosen = &mut chosen[..self.updates.min(16)];
        self.choose(chosen);
        let mut locks = Vec::with_capacity(chosen.len());
        for &page in &*chosen {
            let mut page = self.pages.0[usize::from(page)].lock(&PAGE_LOCK);
            self.append::<UPDATE_BODY>(b'u', page.lsn)?;
            page.value = page.value.wrapping_add(1);
            locks.push(page);
        }
        let commit_lsn = self.append::<BOUND_BODY>(b'e', Lsn(0))?;
        locks.iter_mut().for_each(|page| page.lsn = commit_lsn);
        self.queue.push_back(Pending { commit_lsn, began });
        self.unflushed += 1;
        drop(locks);
        Ok(())
    }

    fn append<const BYTES: usize>(&self, kind: u8, after: Lsn) -> Result<Lsn, BenchError> {
        let appended = self.wal.append_in_order(self.worker, &[kind; BYTES], Order::After(after));
        appended.map_err(failed("logging"))
    }

    /// Draws distinct pages, in ascending order.
    fn choose(&mut self, chosen: &mut [u16]) {
        loop {
            chosen.iter_mut().for_each(|page| *page = self.random.random());
            chosen.sort_unstable();
            if chosen.windows(2).all(|pair| pair[0] < pair[1]) {
                return;
            }
        }
    }

    /// Writes the worker's own log: `flushLog` of Algorithm 1.
    fn flush(&mut self) -> Result<(), BenchError> {
        self.wal.flush(self.worker).map_err(failed("writing the log"))?;
        let now = Instant::now();
        let flushed = self.queue.len() - self.unflushed;
        let counted = if self.counts { flushed } else { self.queue.len() };
        for pending in self.queue.range(counted..) {
            self.tally.until_flush.record(now - pending.began);
        }
        self.unflushed = 0;
        Ok(())
    }

    /// Waits for the oldest transaction, after its flush was requested.
    fn wait_for_oldest(&mut self) -> Result<(), BenchError> {
        if let Some(oldest) = self.queue.front() {
            self.wal.ticket(oldest.commit_lsn).wait().map_err(failed("writing the log"))?;
        }
        self.notify();
        Ok(())
    }

    /// Requests a flush and waits for the newest transaction.
    fn wait_for_newest(&mut self) -> Result<(), BenchError> {
        if let Some(newest) = self.queue.back() {
            self.wal.wait_acknowledged(newest.commit_lsn).map_err(failed("writing the log"))?;
        }
        self.notify();
        Ok(())
    }

    fn check(&self) -> Result<(), BenchError> {
        self.wal.failure().map_or(Ok(()), |reason| Err(failed("writing the log")(reason)))
    }

    /// Removes the transactions with acknowledged commits from the queue and counts them (Algorithm 4).
    fn notify(&mut self) {
        let durable = self.wal.acknowledged_lsn();
        if self.queue.front().is_none_or(|oldest| oldest.commit_lsn > durable) {
            return;
        }
        let now = Instant::now();
        while let Some(oldest) = self.queue.pop_front_if(|oldest| oldest.commit_lsn <= durable) {
            if self.counts {
                self.tally.until_known.record(now - oldest.began);
                self.tally.committed += 1;
            }
        }
        self.unflushed = self.unflushed.min(self.queue.len());
    }
}

#[cfg(test)]
mod tests {
    use super::super::ground::{Choice, Ground};
    use super::*;
    use azekura_io::MemFs;
    use azekura_io::device::DeviceModel;
    use azekura_wal::WalOptions;

    #[test]
    fn every_variant_commits_what_it_began_and_logs_the_papers_bytes() {
        let ground = Ground::new(Choice::Model(DeviceModel::plp()), ".".as_ref());
        for variant in Variant::ALL {
            for updates in [1, 10] {
                let pages = Pages::default();
                let what = format!("{variant:?}, {updates} updates");
                // On a busy machine the measurement is repeated with a longer time.
                let stretch = [10, 100, 1_000, 10_000].into_iter().find_map(|millis| {
                    let time = Duration::from_millis(millis);
                    let micro = Micro { variant, workers: 3, updates, window: Some(64), time, seed: 7 };
                    let stretch = micro.run(&ground.site().unwrap(), &pages).unwrap();
                    (stretch.committed > 0).then_some(stretch)
                });
                let stretch = stretch.expect(&what);
                assert!(pages.sum() >= stretch.committed * updates as u64, "{what}");
                assert_eq!(stretch.until_known.count(), stretch.committed, "{what}");
                let per_transaction = stretch.log.record_bytes as f64 / stretch.log.records as f64;
                let paper = (2.0 * 132.0 + 156.0 * updates as f64) / (updates as f64 + 2.0);
                // Records of other workers between two records sometimes cost a second byte for the LSN.
                assert!(
                    (per_transaction - paper).abs() < paper / 50.0,
                    "{what}: {per_transaction}, paper {paper}"
                );
            }
        }
    }

    const TRANSACTIONS: u64 = 160;

    /// Runs transactions of a single worker in a log without background threads. Without a window, each is
    /// written before the next one.
    fn alone(variant: Variant, updates: usize, window: Option<usize>) -> Stretch {
        let identity = LogIdentity { database_id: 1, incarnation: 1, first_lsn: Lsn(1) };
        let options = WalOptions { background: false, ..variant.wal_options(1) };
        let wal = Wal::create(Arc::new(MemFs::new()), "/wal".as_ref(), identity, options).unwrap();
        let micro = Micro { variant, workers: 1, updates, window, time: Duration::ZERO, seed: 7 };
        let mut left = TRANSACTIONS;
        let more = || left.checked_sub(1).inspect(|&n| left = n).is_some();
        let before = wal.stats();
        let tally = work(&micro, &wal, &Pages::default(), 0, &AtomicBool::new(true), more).unwrap();
        let stretch = Stretch { log: between(&before, wal.stats()), ..tally };
        assert_eq!(
            (stretch.committed, stretch.log.records),
            (TRANSACTIONS, TRANSACTIONS * (2 + updates as u64))
        );
        stretch
    }

    /// Returns the number of draws of LSNs in [`alone`] without a window.
    fn draws(variant: Variant, updates: usize) -> u64 {
        alone(variant, updates, None).log.lsn_draws
    }

    #[test]
    fn our_workers_draw_once_for_a_transaction_and_the_papers_once_for_a_record() {
        // For the first transaction, the number of LSNs to draw is not estimated yet.
        let about_once_each = TRANSACTIONS..=TRANSACTIONS + 4;
        assert!(about_once_each.contains(&draws(Variant::OneStream, 1)), "{}", draws(Variant::OneStream, 1));
        assert!(about_once_each.contains(&draws(Variant::Ours, 10)), "{}", draws(Variant::Ours, 10));
        assert_eq!(
            (draws(Variant::Paper, 1), draws(Variant::Paper, 10)),
            (TRANSACTIONS * 3, TRANSACTIONS * 12)
        );
    }

    #[test]
    fn the_papers_workers_write_groups_of_sixteen_in_chunks_of_8_kib() {
        let stretch = alone(Variant::Paper, 1, Some(64));
        assert_eq!(stretch.until_flush.count(), stretch.committed, "{stretch:?}");
        assert_eq!(stretch.log.largest_group, 3 * 16);
        assert_eq!(stretch.chunk_bytes(), 8192);
        assert_eq!(stretch.log.chunks, TRANSACTIONS / 16);
    }
}
