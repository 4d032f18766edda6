//! Power cut at every I/O in turn: what was acknowledged is there, LSNs are dense, content is equal, and a recovery
//! that is itself interrupted, again and again, gives the same answer (W5, W6).
#![cfg(not(loom))]

mod common;

use azekura_base::{DurableLog, Lsn};
use azekura_io::FaultFs;
use azekura_wal::{AppendError, LogRange, Wal, WalOptions};
use common::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// What a run knows of itself.
#[derive(Default)]
struct Run {
    drawn: Records,
    acknowledged: u64,
    trimmed_below: u64,
}

/// Appends, commits and trims as the seed says, until done or until the power is cut.
fn run(wal: &Wal, seed: u64, steps: u64, run: &mut Run) {
    let mut random = StdRng::seed_from_u64(seed);
    for n in 0..steps {
        let body = body(seed as u32, n, random.random_range(12..600));
        match wal.append(worker(random.random_range(0..16)), &body) {
            Ok(lsn) => drop(run.drawn.insert(lsn.0, body)),
            Err(AppendError::Failed(_) | AppendError::Full { .. }) => return,
            Err(other) => panic!("{other}"),
        }
        if random.random_bool(0.3) {
            // Sometimes the newest, sometimes one on the way.
            let next = wal.next_lsn().0;
            let lsn = next - random.random_range(1..4).min(next - 1);
            match wal.make_durable(Lsn(lsn)) {
                Ok(()) => run.acknowledged = run.acknowledged.max(lsn),
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
    if wal.close().is_ok() {
        run.acknowledged = run.drawn.keys().next_back().copied().unwrap_or(0);
    }
}

/// A database's memory of its log, across crashes.
struct History {
    ranges: Vec<LogRange>,
    from: u64,
    /// What every later replay must show of the closed ranges.
    expected: Records,
}

impl History {
    fn new() -> Self {
        Self { ranges: Vec::new(), from: 1, expected: Records::new() }
    }

    /// Recovers, checks against the run that crashed, and closes its range. Returns the first LSN of the next one.
    fn recover(&mut self, fs: &FaultFs, run: &Run, what: &dyn Fn() -> String) -> u64 {
        self.from = self.from.max(run.trimmed_below);
        let (found, records) =
            try_read(fs, &self.ranges, self.from).unwrap_or_else(|e| panic!("{}: {e}: {e:?}", what()));
        let again = try_read(fs, &self.ranges, self.from).expect("as before");
        assert!(again == (found, records.clone()), "{}: a second recovery differs", what());
        let last = found.last_lsn.0;
        assert!(last >= run.acknowledged, "{}: {} acknowledged, cut at {last}", what(), run.acknowledged);
        let mut expected = std::mem::take(&mut self.expected);
        expected.extend(run.drawn.iter().filter(|(lsn, _)| **lsn <= last).map(|(l, b)| (*l, b.clone())));
        let expected = expected.split_off(&self.from);
        assert!(records == expected, "{}: not the records that were appended", what());
        assert!(found.max_lsn_seen.0 >= records.keys().next_back().copied().unwrap_or(0));
        self.expected = expected;
        let range = self.ranges.last_mut().expect("a range");
        range.last_lsn = Some(found.last_lsn);
        last.max(found.max_lsn_seen.0) + 1
    }
}

/// Runs incarnation after incarnation, cutting the power of each at I/O `cuts[i]`, and checks after each.
/// Returns whether the first cut came before the run was over.
fn crash_and_recover(options: &WalOptions, seed: u64, cuts: &[u64]) -> bool {
    let what = |i: usize| format!("seed {seed}, {} workers, cuts {cuts:?}, after run {i}", options.workers);
    let mut fs = FaultFs::new();
    let mut history = History::new();
    let (mut first_lsn, mut was_cut) = (1, false);
    for (i, &cut) in cuts.iter().enumerate() {
        let incarnation = i as u32 + 1;
        // The control file knows of the incarnation before its log is made.
        history.ranges.push(open_range(incarnation, first_lsn));
        fs.cut_power_at(cut);
        let mut this = Run { trimmed_below: history.from, ..Run::default() };
        // A changed number of workers and streams from run to run.
        let workers = 1 + (options.workers + i) % 5;
        let streams = 1 + (seed as usize + i) % workers;
        let settings =
            WalOptions { workers, streams: azekura_wal::StreamCount::Fixed(streams), ..options.clone() };
        if let Ok(wal) = try_create(&fs, identity(incarnation, first_lsn), settings) {
            run(&wal, seed + i as u64, 120, &mut this);
        }
        was_cut |= i == 0 && fs.power_is_off();
        fs = fs.crash(seed ^ cut);
        first_lsn = history.recover(&fs, &this, &|| what(i));
    }
    was_cut
}

#[test]
fn the_power_may_go_at_any_io() {
    for (workers, streams_seed) in [(1, 0), (3, 1), (4, 3)] {
        let mut cut = 1;
        while crash_and_recover(&small(workers, 1), 1000 + streams_seed, &[cut, u64::MAX >> 1]) {
            cut += 1;
        }
        assert!(cut > 30, "{cut} I/Os in a run are too few to mean anything");
    }
}

#[test]
fn crashes_on_top_of_crashes_give_the_same_answer() {
    for seed in 0..400 {
        let mut random = StdRng::seed_from_u64(seed);
        let cuts: Vec<u64> = (0..5).map(|_| random.random_range(1..120)).collect();
        crash_and_recover(&small(1 + seed as usize % 5, 1), seed, &cuts);
    }
}

#[test]
fn threads_lose_nothing_that_was_acknowledged() {
    for seed in 0..120 {
        let mut random = StdRng::seed_from_u64(seed);
        let fs = FaultFs::new();
        let workers = 1 + seed as usize % 4;
        let options =
            WalOptions { background: seed % 2 == 0, ..small(workers, 1 + seed as usize / 4 % workers) };
        let wal = create(&fs, options);
        fs.cut_power_at(random.random_range(1..120));
        let runs: Vec<Run> = std::thread::scope(|s| {
            let wal = &wal;
            let clients: Vec<_> = (0..4).map(|c| s.spawn(move || client(wal, c))).collect();
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

/// Appends to its thread's worker and commits every few records, blocking or by ticket.
fn client(wal: &std::sync::Arc<Wal>, tag: u32) -> Run {
    let mut run = Run::default();
    for n in 0..300 {
        let body = body(tag, n, 12 + (n as usize * 31) % 500);
        let Ok(lsn) = wal.append(wal.worker(), &body) else { break };
        run.drawn.insert(lsn.0, body);
        let outcome = match n % 4 {
            0 => wal.make_durable(lsn),
            2 => wal.ticket(lsn).wait(),
            _ => continue,
        };
        match outcome {
            Ok(()) => run.acknowledged = lsn.0,
            Err(_) => break,
        }
    }
    run
}
