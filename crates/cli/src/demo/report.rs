//! The output of the demo.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::Settings;
use super::bank::INITIAL_BALANCE;
use super::protocol::{Acknowledged, Way};
use super::round::Round;
use crate::show;

/// Prints a line for each round, and totals at the end.
pub(super) struct Report<'o> {
    out: &'o mut dyn Write,
    rounds: u16,
    kills: u64,
    worked: Duration,
    acknowledged: u64,
    untold: u64,
    conflicts: u64,
    transfers: u64,
    pages: u64,
    longest_recovery: Duration,
    log_bytes_read: u64,
    rolled_back: u64,
    blocking: Latencies,
    pipelined: Latencies,
    problems: Vec<String>,
}

impl<'o> Report<'o> {
    pub(super) fn new(out: &'o mut dyn Write) -> Self {
        Self {
            out,
            rounds: 0,
            kills: 0,
            worked: Duration::ZERO,
            acknowledged: 0,
            untold: 0,
            conflicts: 0,
            transfers: 0,
            pages: 0,
            longest_recovery: Duration::ZERO,
            log_bytes_read: 0,
            rolled_back: 0,
            blocking: Latencies::new(),
            pipelined: Latencies::new(),
            problems: Vec::new(),
        }
    }

    pub(super) fn begin(&mut self, settings: &Settings, path: &Path) -> io::Result<()> {
        let Settings { accounts, threads, in_flight, rounds, seed, .. } = settings;
        let blocking = threads.div_ceil(2);
        writeln!(
            self.out,
            "A bank of {} in {}",
            show::counted((*accounts).into(), "account"),
            path.display()
        )?;
        writeln!(
            self.out,
            "A child process transfers money from {}: {blocking} wait for each commit, {} keep {in_flight} \
             in flight.",
            show::counted((*threads).into(), "thread"),
            threads - blocking,
        )?;
        let times = show::counted((*rounds).into(), "round");
        writeln!(
            self.out,
            "{times}: kill the child (SIGKILL) at a random moment, recover the store, audit it; seed {seed}"
        )?;
        self.out.flush()
    }

    pub(super) fn accounts_opened(&mut self, settings: &Settings, span: Duration) -> io::Result<()> {
        let accounts = show::count(settings.accounts.into());
        writeln!(
            self.out,
            "\ncreated {accounts} accounts with {INITIAL_BALANCE} each in {}\n",
            show::duration(span)
        )?;
        writeln!(
            self.out,
            "{:>5} {:>12} {:>12} {:>11} {:>10} {:>10} {:>10}  audit",
            "round", "killed after", "acknowledged", "per second", "commit p50", "p99", "recovery"
        )?;
        self.out.flush()
    }

    /// Prints a round's line.
    pub(super) fn round(&mut self, round: &Round) -> io::Result<()> {
        self.add(round);
        let (crash, verdict) = (&round.crash, &round.verdict);
        let (blocking, acknowledged) =
            (Latencies::of(Way::Blocking, &crash.acknowledged), crash.acknowledged.len() as u64);
        writeln!(
            self.out,
            "{:>5} {:>12} {:>12} {:>11} {:>10} {:>10} {:>10}  {}{}",
            round.number,
            show::duration(crash.worked),
            show::count(acknowledged),
            show::rate(acknowledged, crash.worked),
            blocking.at(0.5),
            blocking.at(0.99),
            show::duration(round.recovery.took),
            if verdict.problems.is_empty() { "passed" } else { "FAILED" },
            if crash.again_in_recovery { ", killed in recovery too" } else { "" },
        )?;
        self.out.flush()
    }

    /// Adds a round to the totals.
    fn add(&mut self, round: &Round) {
        let (crash, verdict) = (&round.crash, &round.verdict);
        self.rounds = round.number;
        self.kills += 1 + u64::from(crash.again_in_recovery);
        self.worked += crash.worked;
        self.acknowledged += crash.acknowledged.len() as u64;
        self.untold += verdict.untold;
        self.conflicts += crash
            .acknowledged
            .iter()
            .map(|acknowledged| u64::from(acknowledged.attempts.saturating_sub(1)))
            .sum::<u64>();
        self.transfers = verdict.transfers;
        self.pages = verdict.pages;
        self.longest_recovery = self.longest_recovery.max(round.recovery.took);
        self.log_bytes_read += round.recovery.log_bytes;
        self.rolled_back += round.recovery.rolled_back;
        self.blocking.add(&Latencies::of(Way::Blocking, &crash.acknowledged));
        self.pipelined.add(&Latencies::of(Way::Pipelined, &crash.acknowledged));
        self.problems.extend_from_slice(&verdict.problems);
    }

    /// Prints the totals; returns whether all audits passed.
    pub(super) fn end(&mut self, settings: &Settings, span: Duration) -> io::Result<bool> {
        self.figures()?;
        if self.problems.is_empty() {
            self.what_held(settings)?;
            writeln!(self.out, "Nothing was lost. Total time: {}.", show::duration(span))?;
            return Ok(true);
        }
        writeln!(self.out, "\nWRONG after round {}:", self.rounds)?;
        self.problems.iter().try_for_each(|problem| writeln!(self.out, "  {problem}"))?;
        Ok(false)
    }

    fn figures(&mut self) -> io::Result<()> {
        let out = &mut *self.out;
        let (kills, acknowledged) =
            (show::counted(self.kills, "kill"), show::counted(self.acknowledged, "transfer"));
        writeln!(
            out,
            "\n{kills}, {acknowledged} acknowledged as durable ({} per second), {} repeated after a conflict",
            show::rate(self.acknowledged, self.worked),
            show::count(self.conflicts)
        )?;
        writeln!(
            out,
            "commit latency   waiting: p50 {}, p99 {}; pipelined: p50 {}, p99 {}",
            self.blocking.at(0.5),
            self.blocking.at(0.99),
            self.pipelined.at(0.5),
            self.pipelined.at(0.99)
        )?;
        writeln!(
            out,
            "recovery         longest {}; {} of log read, {} rolled back",
            show::duration(self.longest_recovery),
            show::bytes(self.log_bytes_read),
            show::counted(self.rolled_back, "transaction")
        )
    }

    fn what_held(&mut self, settings: &Settings) -> io::Result<()> {
        let (out, acknowledged) = (&mut *self.out, show::counted(self.acknowledged, "transfer"));
        writeln!(out, "\nVerified after every kill:")?;
        writeln!(out, "  the {acknowledged} acknowledged as durable exist unchanged;")?;
        writeln!(
            out,
            "  {} in flight at a kill exist completely, the other ones not at all;",
            show::count(self.untold)
        )?;
        let total = i64::from(settings.accounts) * INITIAL_BALANCE;
        writeln!(
            out,
            "  every balance is the sum of its transfers ({} in all), and the total is still {};",
            show::count(self.transfers),
            show::count(total.unsigned_abs())
        )?;
        writeln!(
            out,
            "  `check` verified every page ({} at the end) and found no error.",
            show::count(self.pages)
        )
    }
}

/// A histogram of the times from the start of a transfer to its durability, in microseconds.
struct Latencies(Histogram<u64>);

impl Latencies {
    fn new() -> Self {
        Self(Histogram::new(3).expect("three digits are possible"))
    }

    fn of(way: Way, acknowledged: &[Acknowledged]) -> Self {
        let mut latencies = Self::new();
        acknowledged
            .iter()
            .filter(|acknowledged| acknowledged.way == way)
            .for_each(|acknowledged| latencies.0.saturating_record(acknowledged.latency_us));
        latencies
    }

    fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both grow as they need");
    }

    fn at(&self, quantile: f64) -> String {
        if self.0.is_empty() {
            return "–".into();
        }
        show::duration(Duration::from_micros(self.0.value_at_quantile(quantile)))
    }
}
