//! Costs of snapshots for writers and readers, each measured in turn with a control.
//!
//! A scanning thread takes processor time from the writers, whatever it reads. The control of a run with
//! scanners is therefore the same run with the same scanners on another store.

mod report;
mod work;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use azekura::{Builder, Database, Error, LogProtocol, Snapshot, TableDefinition};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

pub use self::report::{Report, Row};
use self::work::{Beside, Mix, scan, sum, transfer, update_until, value};
use crate::progress::Progress;

const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");
const ACCOUNTS: TableDefinition<u64, i64> = TableDefinition::new("accounts");
const VALUE_BYTES: usize = 100;
/// Number of commits in flight over all clients.
const IN_FLIGHT: usize = 512;
const ACCOUNT_COUNT: u64 = 1_000;
const BALANCE: i64 = 1_000;
/// Numbers of readers that add up balances.
const READERS: [u64; 3] = [1, 2, 8];
/// Log protocols with the numbers of LSNs that a log buffer draws at once.
const LOGS: [(LogProtocol, u32); 6] = {
    const EPOCH: LogProtocol = LogProtocol::Epoch { interval: Duration::from_millis(2) };
    [
        (LogProtocol::PWal, 1),
        (LogProtocol::PWal, 64),
        (LogProtocol::Serial, 1),
        (LogProtocol::Serial, 64),
        (EPOCH, 1),
        (EPOCH, 64),
    ]
};
/// Wait until the store keeps no more versions: longer than versioning continues after the last snapshot.
const IDLE: Duration = Duration::from_millis(300);

/// Settings of the lab.
#[derive(Clone, Debug)]
pub struct Lab {
    /// Directory of the stores.
    pub dir: PathBuf,
    /// Number of rows of a store.
    pub records: u64,
    /// Measured time of each rate.
    pub time: Duration,
    /// Number of measurements of each rate.
    pub runs: usize,
    /// Total number of scans that add up balances, over all logs and numbers of readers.
    pub sums: u64,
}

/// Rates with their controls, one pair for each round.
type Pairs = Vec<(f64, f64)>;

impl Lab {
    /// Returns settings for reliable figures on a quiet machine.
    #[must_use]
    pub fn full(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), records: 200_000, time: Duration::from_secs(1), runs: 5, sums: 1_000_000 }
    }

    /// Returns settings with smaller sizes, which take some seconds.
    #[must_use]
    pub fn quick(dir: &Path) -> Self {
        let time = Duration::from_millis(50);
        Self { dir: dir.to_owned(), records: 5_000, time, runs: 1, sums: 1_800 }
    }

    /// Runs all measurements.
    ///
    /// # Errors
    ///
    /// An error of a store.
    pub fn run(&self, progress: &Progress) -> Result<Report, Error> {
        let mut report = Report::new(&self.dir, self.runs, self.time);
        let (own, other) = (self.store("own")?, self.store("other")?);
        let steps: [(&str, Step); 7] = [
            // This step is first, because the other store must never have had a snapshot.
            ("writers without snapshots", Self::without_snapshots),
            ("writers", Self::writers),
            ("writers beside scanners", Self::beside_scanners),
            ("point reads", Self::point_reads),
            ("scans", Self::scans),
            ("opening", Self::opening),
            ("versions", Self::versions),
        ];
        for (at, (name, step)) in (0..).zip(steps) {
            progress.begin(name, steps.len() as u64);
            progress.at(at);
            report.rows.extend(step(self, &own, &other)?);
        }
        own.close()?;
        other.close()?;
        progress.begin("limit", 1);
        report.rows.extend(self.limit()?);
        progress.begin("sums", LOGS.len() as u64);
        for (at, &(log, lsn_range)) in (0..).zip(&LOGS) {
            progress.at(at);
            report.rows.push(self.sums(log, lsn_range)?);
        }
        Ok(report)
    }

    fn builder() -> Builder {
        Database::builder().cache_bytes(256 << 20)
    }

    fn store(&self, name: &str) -> Result<Database, Error> {
        let db = Self::builder().open(self.dir.join(name))?;
        let rows = (0..self.records).map(|key| (key, value(key)));
        db.transact(|tx| tx.table(&ROWS)?.bulk_load(rows.clone()).map(drop))?;
        Ok(db)
    }

    /// Measures a rate and its control in turn.
    fn pairs(
        &self,
        mut rate: impl FnMut() -> Result<f64, Error>,
        mut control: impl FnMut() -> Result<f64, Error>,
    ) -> Result<Pairs, Error> {
        let mut pairs = Pairs::new();
        for round in 0..self.runs {
            pairs.push(if round % 2 == 0 {
                let rate = rate()?;
                (rate, control()?)
            } else {
                let control = control()?;
                (rate()?, control)
            });
        }
        Ok(pairs)
    }

    /// Measures the cost for writers that remains after the last snapshot was closed. (To compare with a
    /// store without support for snapshots, run two builds of `azekura-lab kv`.)
    fn without_snapshots(&self, own: &Database, other: &Database) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        for clients in [1, 8] {
            let after_snapshots = || {
                drop(own.snapshot()?);
                thread::sleep(IDLE);
                self.update(own, Mix::U1, clients, Beside::Nothing)
            };
            let never = || self.update(other, Mix::U1, clients, Beside::Nothing);
            let pairs = self.pairs(after_snapshots, never)?;
            let name = format!("u1, {clients} clients, no snapshot open / in a store that never had one");
            rows.push(Row::ratio(name, "commits/s", &pairs, 0.99));
        }
        Ok(rows)
    }

    fn writers(&self, own: &Database, _: &Database) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        for clients in [1, 8] {
            let with_open = || {
                let _snapshot = own.snapshot()?;
                self.update(own, Mix::U1, clients, Beside::Nothing)
            };
            let without = || {
                thread::sleep(IDLE);
                self.update(own, Mix::U1, clients, Beside::Nothing)
            };
            let pairs = self.pairs(with_open, without)?;
            let name = format!("u1, {clients} clients, an idle snapshot open / none");
            rows.push(Row::ratio(name, "commits/s", &pairs, 0.93));
        }
        Ok(rows)
    }

    fn beside_scanners(&self, own: &Database, other: &Database) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        for mix in [Mix::U1, Mix::YcsbA] {
            for (scanners, goal) in [(1, 0.93), (8, 0.85)] {
                let on_own = || self.update(own, mix, 8, Beside::Scanners(own, scanners));
                let on_other = || self.update(own, mix, 8, Beside::Scanners(other, scanners));
                let pairs = self.pairs(on_own, on_other)?;
                let name = format!("{mix}, 8 clients, {scanners} scanners of the same store / of another");
                rows.push(Row::ratio(name, "commits/s", &pairs, goal));
            }
        }
        Ok(rows)
    }

    fn point_reads(&self, own: &Database, _: &Database) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        for threads in [1, 2] {
            let locking = || {
                self.threads(threads, |random| {
                    own.transact(|tx| tx.table(&ROWS)?.with_value(&random.random_range(0..self.records), sum))
                        .map(drop)
                })
            };
            let each = || {
                self.threads(threads, |random| {
                    own.read(|s| s.table(&ROWS)?.with_value(&random.random_range(0..self.records), sum))
                        .map(drop)
                })
            };
            let pairs = self.pairs(each, locking)?;
            let name =
                format!("point reads, {threads} threads, a snapshot each / a locking transaction each");
            rows.push(Row::ratio(name, "reads/s", &pairs, 1.3));
            let snapshot = own.snapshot()?;
            let table = snapshot.table(&ROWS)?;
            let in_one = || {
                self.threads(threads, |random| {
                    table.with_value(&random.random_range(0..self.records), sum).map(drop)
                })
            };
            let pairs = self.pairs(in_one, locking)?;
            let name = format!("point reads, {threads} threads, one snapshot / a locking transaction each");
            rows.push(Row::ratio(name, "reads/s", &pairs, 1.3));
        }
        Ok(rows)
    }

    fn scans(&self, own: &Database, other: &Database) -> Result<Vec<Row>, Error> {
        let records = self.records as f64;
        let by_snapshot = || Ok(records * self.threads(1, |_| own.read(scan))?);
        let locking = || {
            let one = |_: &mut SmallRng| {
                own.transact(|tx| {
                    tx.table(&ROWS)?.for_each(.., |row| {
                        std::hint::black_box(row.value_ref().bytes()?);
                        Ok(ControlFlow::Continue(()))
                    })
                })
            };
            Ok(records * self.threads(1, one)?)
        };
        let mut rows = Vec::new();
        let pairs = self.pairs(by_snapshot, locking)?;
        rows.push(Row::ratio("scan by snapshot / by locks".into(), "rows/s", &pairs, 1.3));
        let beside = |written: &Database| {
            let ends = AtomicBool::new(false);
            thread::scope(|scope| {
                let writers = scope.spawn(|| update_until(written, Mix::U1, self.records, 8, &ends));
                let rate = self.threads(1, |_| own.read(scan));
                ends.store(true, Relaxed); // Relaxed: no other data depends on the flag
                writers.join().expect("no panic")?;
                Ok(records * rate?)
            })
        };
        let pairs = self.pairs(|| beside(own), || beside(other))?;
        let name = "scan by snapshot, 8 writers of the same store / of another".into();
        rows.push(Row::ratio(name, "rows/s", &pairs, 0.7));
        Ok(rows)
    }

    fn opening(&self, own: &Database, _: &Database) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        let held = own.snapshot()?;
        for threads in [1, 2] {
            let mut times = Vec::new();
            for _ in 0..self.runs {
                let rate = self.threads(threads, |_| own.snapshot().map(drop))?;
                times.push(1e9 * threads as f64 / rate);
            }
            let name = format!("open and close, {threads} threads, another snapshot open");
            rows.push(Row::at_most(name, "ns", times, 150.0));
        }
        drop(held);
        let mut times = Vec::new();
        for _ in 0..self.runs.max(3) {
            thread::sleep(IDLE);
            let mut active = Vec::new();
            for txn in 0..64 {
                let tx = own.begin()?;
                (0..10).try_for_each(|n| {
                    tx.table(&ROWS)?.insert(&(txn * self.records / 64 + n), &[1; VALUE_BYTES])
                })?;
                active.push(tx);
            }
            let began = Instant::now();
            let snapshot = own.snapshot()?;
            times.push(began.elapsed().as_secs_f64() * 1e6);
            drop((snapshot, active));
        }
        rows.push(Row::at_most("first open, 64 transactions of 10 changes".into(), "µs", times, 200.0));
        Ok(rows)
    }

    fn versions(&self, own: &Database, _: &Database) -> Result<Vec<Row>, Error> {
        let (mut counts, mut sizes, mut times) = (Vec::new(), Vec::new(), Vec::new());
        let keys = self.records.min(5_000);
        let change = |byte: u8| {
            let one =
                |key| own.transact_async(|tx| tx.table(&ROWS)?.insert(&key, &[byte; VALUE_BYTES])).map(drop);
            (0..keys).try_for_each(one)
        };
        for _ in 0..self.runs {
            let mut open: Vec<Snapshot> = Vec::new();
            for round in 0..3 {
                open.push(own.snapshot()?);
                (0..5).try_for_each(|n| change(round * 5 + n))?;
            }
            let stats = own.stats().snapshots;
            counts.push(stats.versions as f64 / keys as f64);
            let user = size_of::<u64>() + VALUE_BYTES;
            sizes.push(stats.version_bytes as f64 / stats.versions.max(1) as f64 - user as f64);
            let began = Instant::now();
            drop(open);
            while own.stats().snapshots.versions > 0 && began.elapsed() < Duration::from_secs(10) {
                thread::sleep(Duration::from_millis(1));
            }
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
        Ok(vec![
            Row::at_most("versions of a row, 3 snapshots open, 15 changes".into(), "versions", counts, 4.0),
            Row::at_most("memory of a version beside key and value".into(), "bytes", sizes, 64.0),
            Row::at_most("last snapshot closed until no version is left".into(), "ms", times, 200.0),
        ])
    }

    /// Compares sums of balances with the total, which transfers do not change: by 1, 2 and 8 readers beside
    /// 8 writers.
    fn sums(&self, log: LogProtocol, lsn_range: u32) -> Result<Row, Error> {
        let path = self.dir.join(format!("accounts-{log}-{lsn_range}"));
        let db = Self::builder().log_protocol(log).wal_lsn_range(lsn_range).open(path)?;
        let accounts = (0..ACCOUNT_COUNT).map(|key| (key, BALANCE));
        db.transact(|tx| tx.table(&ACCOUNTS)?.bulk_load(accounts.clone()).map(drop))?;
        let (wrong, mut scans) = (AtomicU64::new(0), 0);
        let of_each = self.sums.div_ceil((LOGS.len() * READERS.len()) as u64);
        for readers in READERS {
            let (ends, done) = (AtomicBool::new(false), AtomicU64::new(0));
            let (db, ends) = (&db, &ends);
            thread::scope(|scope| {
                let writers: Vec<_> =
                    (0..8).map(|client| scope.spawn(move || transfer(db, client, ends))).collect();
                let readers: Vec<_> =
                    (0..readers).map(|_| scope.spawn(|| self.add_up(db, of_each, &done, &wrong))).collect();
                let read: Result<Vec<()>, Error> =
                    readers.into_iter().map(|reader| reader.join().expect("no panic")).collect();
                ends.store(true, Relaxed); // Relaxed: no other data depends on the flag
                writers.into_iter().try_for_each(|writer| writer.join().expect("no panic"))?;
                read
            })?;
            scans += done.into_inner();
        }
        db.close()?;
        let name = format!("wrong sums of {scans} scans, log {log}, LSNs drawn by {lsn_range}");
        Ok(Row::at_most(name, report::WRONG, vec![wrong.into_inner() as f64], 0.0))
    }

    /// Adds up all balances in snapshots until all readers together have made `most` scans.
    fn add_up(&self, db: &Database, most: u64, scans: &AtomicU64, wrong: &AtomicU64) -> Result<(), Error> {
        // Relaxed: only the count itself matters.
        while scans.fetch_add(1, Relaxed) < most {
            let mut sum = 0;
            db.read(|s| {
                s.table(&ACCOUNTS)?.iter().try_for_each(|row| row.map(|(_, balance)| sum += balance))
            })?;
            if sum != BALANCE * ACCOUNT_COUNT as i64 {
                wrong.fetch_add(1, Relaxed); // Relaxed: only the count itself matters
            }
        }
        scans.fetch_sub(1, Relaxed); // Relaxed: only the count itself matters
        Ok(())
    }

    /// Measures the store when writers exceed the memory limit of versions.
    fn limit(&self) -> Result<Vec<Row>, Error> {
        const LIMIT: u64 = 1 << 20;
        let db = Self::builder().version_bytes(LIMIT).open(self.dir.join("limited"))?;
        let rows = (0..20_000).map(|key| (key, value(key)));
        db.transact(|tx| tx.table(&ROWS)?.bulk_load(rows.clone()).map(drop))?;
        let (mut held, mut longest, mut late) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.runs {
            let snapshot = db.snapshot()?;
            let (mut slowest, mut full_since) = (Duration::ZERO, None);
            for key in 0..20_000 {
                let began = Instant::now();
                drop(db.transact_async(|tx| tx.table(&ROWS)?.insert(&key, &[2; VALUE_BYTES]))?);
                slowest = slowest.max(began.elapsed());
                if full_since.is_none() && db.stats().snapshots.version_bytes >= LIMIT / 100 * 99 {
                    full_since = Some(Instant::now());
                }
                match snapshot.table(&ROWS).and_then(|rows| rows.with_value(&0, |_| Ok(()))) {
                    Err(Error::SnapshotTooOld { held_bytes, limit_bytes, .. }) => {
                        held.push(held_bytes as f64 / limit_bytes as f64);
                        break;
                    }
                    other => drop(other?),
                }
            }
            longest.push(slowest.as_secs_f64() * 1e3);
            late.push(
                full_since.map_or(Duration::ZERO, |since: Instant| since.elapsed()).as_secs_f64() * 1e3,
            );
        }
        db.close()?;
        if held.len() < self.runs {
            held.push(f64::INFINITY); // the snapshot could still be read above the limit
        }
        Ok(vec![
            Row::at_most("memory at which the oldest snapshot is too old / limit".into(), "", held, 1.1),
            Row::at_most("99 % of the limit until the oldest snapshot is too old".into(), "ms", late, 10.0),
            Row::at_most("longest commit without flush until then".into(), "ms", longest, 10.0),
        ])
    }

    /// Returns the transactions per second of `clients` clients, with `IN_FLIGHT` commits in flight.
    fn update(&self, db: &Database, mix: Mix, clients: usize, beside: Beside<'_>) -> Result<f64, Error> {
        let ends = AtomicBool::new(false);
        let (store, scanners) = match beside {
            Beside::Nothing => (db, 0),
            Beside::Scanners(store, scanners) => (store, scanners),
        };
        thread::scope(|scope| {
            let scanners: Vec<_> = (0..scanners)
                .map(|_| {
                    scope.spawn(|| {
                        // Relaxed: no other data depends on the flag.
                        while !ends.load(Relaxed) {
                            store.read(scan)?;
                        }
                        Ok::<_, Error>(())
                    })
                })
                .collect();
            let writers = scope.spawn(|| update_until(db, mix, self.records, clients, &ends));
            let began = Instant::now();
            thread::sleep(self.time);
            ends.store(true, Relaxed); // Relaxed: no other data depends on the flag
            let commits = writers.join().expect("no panic")?;
            let rate = commits as f64 / began.elapsed().as_secs_f64();
            scanners.into_iter().try_for_each(|scanner| scanner.join().expect("no panic"))?;
            Ok(rate)
        })
    }

    /// Returns the calls of `one` per second by `threads` threads.
    fn threads(
        &self,
        threads: usize,
        one: impl Fn(&mut SmallRng) -> Result<(), Error> + Sync,
    ) -> Result<f64, Error> {
        let began = Instant::now();
        let work = |seed| {
            let (mut random, mut calls) = (SmallRng::seed_from_u64(seed), 0_u64);
            // The clock is read before each 16th call.
            while calls % 16 != 0 || began.elapsed() < self.time {
                one(&mut random)?;
                calls += 1;
            }
            Ok::<_, Error>(calls)
        };
        let calls: Result<u64, Error> = thread::scope(|scope| {
            let all: Vec<_> = (0..threads as u64).map(|seed| scope.spawn(move || work(seed))).collect();
            all.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        Ok(calls? as f64 / began.elapsed().as_secs_f64())
    }
}

type Step = fn(&Lab, &Database, &Database) -> Result<Vec<Row>, Error>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_has_all_figures_and_no_wrong_sum() {
        let dir = tempfile::tempdir().expect("a directory");
        let time = Duration::from_millis(1);
        let lab = Lab { records: 2_000, time, sums: 180, ..Lab::quick(dir.path()) };
        let report = lab.run(&Progress::hidden()).expect("runs");
        assert_eq!((report.rows.len(), report.wrong_sums()), (29, 0), "{}", report.to_text());
        assert!(report.to_text().contains("wrong sums of 30 scans, log serial, LSNs drawn by 64"));
        // These are counts, which do not depend on the speed of the machine.
        let holds = |figure: &str| report.rows.iter().any(|row| row.figure.starts_with(figure) && row.holds);
        assert!(holds("versions of a row") && holds("memory at which the oldest"), "{}", report.to_text());
    }
}
