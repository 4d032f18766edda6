//! Cuts the power at every I/O in turn. Acknowledged records are found, LSNs are dense, and the content is
//! equal. A recovery that is repeated, or interrupted, gives the same result (W5, W6). Covers every log
//! protocol and every number of log buffers and streams up to 16, with a different choice after each crash.
//! No found record depends on a missing one, even if log buffers draw LSNs ahead (RANGE-3).
//!
//! `AZEKURA_WAL_CRASH_ROUNDS=50` sets the number of passes through the matrix (default: 1).
#![cfg(not(loom))]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::common::*;
use azekura_base::{DurableLog, Lsn};
use azekura_io::FaultFs;
use azekura_wal::{AppendError, LogProtocol, LogRange, Order, Replayed, Wal, WalOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// An appended record in the model.
#[derive(Clone, Debug)]
struct Drawn {
    body: Vec<u8>,
    /// LSNs of the records that it depends on, in any log buffer.
    seen: Vec<u64>,
}

/// The model's state of one run.
struct Run {
    /// The probability of a commit.
    commits: f64,
    drawn: BTreeMap<u64, Drawn>,
    /// LSN up to which all records are acknowledged.
    acknowledged: u64,
    trimmed_below: u64,
}

impl Default for Run {
    fn default() -> Self {
        Self { commits: 0.3, drawn: BTreeMap::new(), acknowledged: 0, trimmed_below: 0 }
    }
}

/// Appends, commits and trims in an order that the seed determines, until done or until the power is cut.
fn run(wal: &Wal, seed: u64, steps: u64, run: &mut Run) {
    let mut random = StdRng::seed_from_u64(seed);
    for n in 0..steps {
        let body = body(seed as u32, n, random.random_range(12..600));
        let by = log_buffer(random.random_range(0..16));
        // Some records depend on one or two of the newest: by a page that they change, or by a lock that was
        // released early.
        let newest: Vec<u64> = run.drawn.keys().rev().take(12).copied().collect();
        let mut seen = newest;
        seen.retain(|_| random.random_bool(0.04));
        if random.random_bool(0.3) {
            seen.iter().for_each(|&lsn| wal.raise_floor(by, Lsn(lsn)));
        }
        let after = Order::After(Lsn(seen.iter().copied().max().unwrap_or(0)));
        let order = if random.random_bool(0.2) { Order::Newest } else { after };
        let is_commit = seen.is_empty() && random.random_bool(run.commits);
        let appended =
            if is_commit { wal.append_commit(by, &body) } else { wal.append_in_order(by, &body, order) };
        let commit = match appended {
            Ok(commit) => commit,
            Err(AppendError::Failed(_) | AppendError::Full { .. }) => return,
            Err(other) => panic!("{other}"),
        };
        run.drawn.insert(commit.0, Drawn { body, seen });
        if is_commit {
            match wal.wait_acknowledged(commit) {
                Ok(()) => run.acknowledged = run.acknowledged.max(commit.0),
                Err(_) => return,
            }
        }
        if random.random_bool(0.2) {
            // One stream writes alone: the LSNs of the others are missing.
            let _ = wal.flush(log_buffer(random.random_range(0..16)));
        }
        if random.random_bool(run.commits / 4.0) {
            // The newest LSN, or an earlier one in flight.
            let next = wal.next_lsn().0;
            let lsn = Lsn(next - random.random_range(1..4).min(next - 1));
            let outcome =
                if random.random_bool(0.5) { wal.make_durable(lsn) } else { wal.wait_acknowledged(lsn) };
            match outcome {
                Ok(()) => run.acknowledged = run.acknowledged.max(lsn.0),
                Err(_) => return,
            }
        }
        if random.random_bool(0.05) {
            run.trimmed_below = run.trimmed_below.max(run.acknowledged.saturating_sub(20));
            if wal.trim(Lsn(run.trimmed_below)).is_err() {
                return;
            }
        }
    }
    if run.commits > 0.1 && wal.close().is_ok() {
        run.acknowledged = run.drawn.keys().next_back().copied().unwrap_or(0);
    }
}

/// Counts of events in recoveries.
#[derive(Debug, Default)]
struct Met {
    /// Number of appended records that recovery cut off, because an LSN before them is missing.
    lost: usize,
    /// Number of LSNs without a record below the first missing LSN.
    gaps: u64,
}

/// The model of a database's log, across crashes.
struct History {
    ranges: Vec<LogRange>,
    from: u64,
    /// The records of the closed ranges that every later replay must return.
    expected: Records,
    met: Met,
}

impl History {
    fn new() -> Self {
        Self { ranges: Vec::new(), from: 1, expected: Records::new(), met: Met::default() }
    }

    /// Recovers, checks the result against the run that crashed, and closes that run's range. Returns the
    /// first LSN of the next range.
    fn recover(&mut self, fs: &FaultFs, run: &Run, what: &dyn Fn() -> String) -> u64 {
        self.from = self.from.max(run.trimmed_below);
        let (found, records) =
            try_read(fs, &self.ranges, self.from).unwrap_or_else(|e| panic!("{}: {e}: {e:?}", what()));
        let again = try_read(fs, &self.ranges, self.from).expect("as before");
        assert!(again == (found.clone(), records.clone()), "{}: a second recovery differs", what());
        let last = found.last_lsn.0;
        assert!(last >= run.acknowledged, "{}: {} acknowledged, cut at {last}", what(), run.acknowledged);
        self.check_dependencies(&found, run, what);
        let first = self.ranges.last().expect("a range").first_lsn.0;
        let dense = run.drawn.range(..=last).count() as u64;
        self.met.gaps += (last + 1).saturating_sub(first + dense);
        let mut expected = std::mem::take(&mut self.expected);
        let counted = run.drawn.range(..=last);
        expected.extend(counted.map(|(lsn, drawn)| (*lsn, drawn.body.clone())));
        let expected = expected.split_off(&self.from);
        assert!(records == expected, "{}: not the records that were appended", what());
        assert!(found.max_lsn_seen.0 >= records.keys().next_back().copied().unwrap_or(0));
        self.expected = expected;
        let next = last.max(found.max_lsn_seen.0) + 1;
        let range = self.ranges.last_mut().expect("a range");
        range.last_lsn = Some(found.last_lsn);
        // The next incarnation may crash before it has logged anything.
        let mut ranges = self.ranges.clone();
        ranges.push(open_range(u32::MAX - 1, next));
        let (_, again) = try_read(fs, &ranges, self.from).unwrap_or_else(|e| panic!("{}: {e:?}", what()));
        assert!(again == self.expected, "{}: a recovery of the recovery differs", what());
        next
    }

    /// Checks that a found record depends only on found records (RANGE-3).
    fn check_dependencies(&mut self, found: &Replayed, run: &Run, what: &dyn Fn() -> String) {
        for (&lsn, drawn) in &run.drawn {
            if lsn > found.last_lsn.0 {
                self.met.lost += 1;
            } else if let Some(missing) = drawn.seen.iter().find(|seen| **seen > found.last_lsn.0) {
                panic!("{}: {lsn} counts and depends on {missing}, which does not: {found:?}", what());
            }
        }
    }
}

/// Returns options as `small` does; most of these logs draw LSNs in ranges.
fn shape(protocol: LogProtocol, log_buffers: usize, streams: usize) -> WalOptions {
    let lsn_range = [64, 8, 1, 3][(log_buffers + streams) % 4];
    // In half of the logs, a log buffer is opened by its first record.
    let first_segment_bytes = (log_buffers % 2 == 1).then_some(64 << 10);
    WalOptions { protocol, lsn_range, first_segment_bytes, ..small(log_buffers, streams) }
}

/// Runs one incarnation per cut, each with its own shape and a power cut at I/O `cuts[i]`, and checks after
/// each. Returns `true` if the first cut came before the end of its run, and the counts of events.
fn crash_and_recover(
    shapes: &dyn Fn(usize) -> WalOptions,
    seed: u64,
    commits: f64,
    cuts: &[u64],
) -> (bool, Met) {
    let what = |i: usize| format!("seed {seed}, cuts {cuts:?}, after run {i} with {:?}", shapes(i));
    let mut fs = FaultFs::new();
    let mut history = History::new();
    let (mut first_lsn, mut was_cut) = (1, false);
    for (i, &cut) in cuts.iter().enumerate() {
        let incarnation = i as u32 + 1;
        // The control file records the incarnation before its log is made.
        history.ranges.push(open_range(incarnation, first_lsn));
        fs.cut_power_at(cut);
        let mut this = Run { commits, trimmed_below: history.from, ..Run::default() };
        let wal = try_create(&fs, identity(incarnation, first_lsn), shapes(i));
        if let Ok(wal) = &wal {
            run(wal, seed + i as u64, 120, &mut this);
        }
        was_cut |= i == 0 && fs.power_is_off();
        let crashed = fs.crash(seed ^ cut);
        drop(wal); // flushes to a disk that is not read any more
        fs = crashed;
        first_lsn = history.recover(&fs, &this, &|| what(i));
    }
    (was_cut, history.met)
}

#[test]
fn a_power_loss_at_any_io_is_recovered() {
    for protocol in protocols() {
        for (log_buffers, streams, seed) in [(1, 1, 1000), (3, 2, 1001), (4, 4, 1003)] {
            let mut cut = 1;
            let shapes = |i: usize| match i {
                0 => shape(protocol, log_buffers, streams),
                _ => shape(protocols()[seed as usize % 3], log_buffers % 3 + 1, 1),
            };
            while crash_and_recover(&shapes, seed, 0.3, &[cut, u64::MAX >> 1]).0 {
                cut += 1;
            }
            assert!(cut > 30, "{cut} I/Os in a run are too few to mean anything");
        }
    }
}

/// Each protocol, with each number of log buffers and of streams from 1 to 16, is followed by four random
/// shapes.
#[test]
fn every_log_of_up_to_sixteen_log_buffers_and_streams_recovers_what_every_other_has_left() {
    let rounds = std::env::var("AZEKURA_WAL_CRASH_ROUNDS").ok().and_then(|v| v.parse().ok()).unwrap_or(1);
    let mut met = Met::default();
    for round in 0..rounds {
        for (p, protocol) in protocols().into_iter().enumerate() {
            for (log_buffers, streams) in (1..=16).flat_map(|w| (1..=w).map(move |s| (w, s))) {
                let seed = round * 1_000_003 + (p * 10_000 + log_buffers * 100 + streams) as u64;
                let mut random = StdRng::seed_from_u64(seed);
                let cuts: Vec<u64> = (0..5).map(|_| random.random_range(1..150)).collect();
                let others: Vec<_> = (0..5)
                    .map(|_| {
                        let log_buffers = random.random_range(1..=16);
                        shape(
                            protocols()[random.random_range(0..3)],
                            log_buffers,
                            random.random_range(1..=log_buffers),
                        )
                    })
                    .collect();
                let shapes =
                    |i: usize| if i == 0 { shape(protocol, log_buffers, streams) } else { others[i].clone() };
                // Half of the histories rarely wait, so that many records are above the cut.
                let commits = if seed.is_multiple_of(2) { 0.3 } else { 0.02 };
                let (_, this) = crash_and_recover(&shapes, seed, commits, &cuts);
                met.lost += this.lost;
                met.gaps += this.gaps;
            }
        }
    }
    assert!(met.lost > 1000 && met.gaps > 1000, "too little was met: {met:?}");
}

/// One stream's tail is lost, and all others are on disk: the cut is right before the first lost record, for
/// each stream.
#[test]
fn w5_the_cut_is_at_the_hole_wherever_it_is() {
    for protocol in protocols() {
        for (log_buffers, streams) in (1..=16).flat_map(|w| (1..=w).map(move |s| (w, s))) {
            if protocol == LogProtocol::Serial && log_buffers > 1 {
                continue; // a serial log has one of each
            }
            for lost in 0..streams {
                let fs = FaultFs::new();
                let wal = create(&fs, shape(protocol, log_buffers, streams));
                let append = |n: usize| {
                    wal.append(log_buffer(n % log_buffers), &body(0, n as u64, 40)).expect("appends")
                };
                let durable = (0..log_buffers).map(append).max().expect("one at least");
                wal.wait_acknowledged(durable).expect("durable");
                for n in log_buffers..3 * log_buffers {
                    append(n);
                }
                (0..streams).filter(|&s| s != lost).for_each(|s| wal.flush(log_buffer(s)).expect("writes"));
                let crashed = fs.crash(lost as u64);
                drop(wal);
                let (found, records) = read(&crashed, &[open_range(1, 1)], 1);
                let context =
                    format!("{protocol}, {log_buffers} log buffers, {streams} streams, {lost} lost");
                assert_eq!(found.last_lsn.0 as usize, log_buffers + lost, "{context}");
                assert_eq!(records.len(), log_buffers + lost, "{context}");
                assert!(
                    streams == 1 || found.max_lsn_seen > found.last_lsn || lost + 1 == log_buffers,
                    "{context}: {found:?}"
                );
            }
        }
    }
}

#[test]
fn threads_lose_nothing_that_was_acknowledged() {
    for seed in 0..120 {
        let mut random = StdRng::seed_from_u64(seed);
        let fs = FaultFs::new();
        let log_buffers = 1 + seed as usize % 4;
        let options = WalOptions {
            background: seed % 2 == 0,
            ..shape(protocols()[seed as usize / 2 % 3], log_buffers, 1 + seed as usize / 4 % log_buffers)
        };
        let wal = create(&fs, options);
        fs.cut_power_at(random.random_range(1..120));
        let newest = AtomicU64::new(0);
        let runs: Vec<Run> = std::thread::scope(|s| {
            let (wal, newest) = (&wal, &newest);
            let clients: Vec<_> = (0..4).map(|c| s.spawn(move || client(wal, c, newest))).collect();
            clients.into_iter().map(|c| c.join().expect("no panic")).collect()
        });
        drop(wal);
        let mut all = Run::default();
        for mut run in runs {
            all.drawn.append(&mut run.drawn);
            all.acknowledged = all.acknowledged.max(run.acknowledged);
        }
        let mut history = History { ranges: vec![open_range(1, 1)], ..History::new() };
        history.recover(&fs.crash(seed), &all, &|| format!("seed {seed}"));
    }
}

/// Appends to its thread's log buffer and commits every few records, blocking or by ticket. Some records
/// depend on the newest record of any client.
fn client(wal: &std::sync::Arc<Wal>, tag: u32, newest: &AtomicU64) -> Run {
    let mut run = Run::default();
    let by = wal.log_buffer();
    for n in 0..300 {
        let body = body(tag, n, 12 + (n as usize * 31) % 500);
        let mut seen = Vec::new();
        if n % 7 == 3 {
            let lsn = newest.load(SeqCst);
            wal.raise_floor(by, Lsn(lsn));
            seen.extend((lsn > 0).then_some(lsn));
        }
        let Ok(commit) = wal.append_commit(by, &body) else { break };
        let lsn = commit.0;
        newest.store(lsn, SeqCst);
        run.drawn.insert(lsn, Drawn { body, seen });
        let outcome = match n % 4 {
            0 => wal.wait_acknowledged(commit),
            2 => wal.ticket(commit).wait(),
            _ => continue,
        };
        match outcome {
            Ok(()) => run.acknowledged = lsn,
            Err(_) => break,
        }
    }
    run
}
