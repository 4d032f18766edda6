//! One round: a child works and is killed, and its store is recovered and audited.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use azekura::Database;
use rand::RngExt;
use rand::rngs::StdRng;

use super::Settings;
use super::audit::{Expected, Found, audit};
use super::bank::{self, Transfer};
use super::child::Orders;
use super::protocol::Acknowledged;
use super::victim::Victim;

/// Assumed duration of the first recovery.
const FIRST_RECOVERY: Duration = Duration::from_millis(60);

/// Result of a round.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) number: u16,
    pub(super) crash: Crash,
    pub(super) recovery: Recovery,
    pub(super) verdict: Verdict,
}

/// The opening of the store after the last kill.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recovery {
    pub(super) took: Duration,
    /// Number of bytes of the log that were read.
    pub(super) log_bytes: u64,
    /// Number of transactions that were rolled back because they had not committed.
    pub(super) rolled_back: u64,
}

/// The events up to the last kill.
#[derive(Debug)]
pub(super) struct Crash {
    /// Time from the child's opening of the store to its kill.
    pub(super) worked: Duration,
    /// Transfers acknowledged as durable to the child, or to the second child.
    pub(super) acknowledged: Vec<Acknowledged>,
    /// `true` if a second child was killed during recovery.
    pub(super) again_in_recovery: bool,
    /// The runs of children.
    runs: Vec<u16>,
}

/// The state found after the kill.
#[derive(Debug)]
pub(super) struct Verdict {
    /// Number of transfers in the store.
    pub(super) transfers: u64,
    /// Number of transfers in flight at the kill that were committed.
    pub(super) untold: u64,
    /// Number of pages that `check` visited.
    pub(super) pages: u64,
    /// Problems that the audit and `check` found.
    pub(super) problems: Vec<String>,
}

impl Recovery {
    fn of(db: &Database, took: Duration) -> Self {
        let report = db.stats().recovery;
        Self { took, log_bytes: report.log_bytes, rolled_back: report.losers }
    }
}

/// The rounds of a demo, with the state that is passed from one round to the next.
#[derive(Debug)]
pub(super) struct Rounds<'a> {
    settings: Settings,
    path: &'a Path,
    random: StdRng,
    runs: u16,
    /// The transfers that the last audit found.
    seen: Vec<Transfer>,
    last_recovery: Duration,
}

impl<'a> Rounds<'a> {
    pub(super) const fn new(settings: Settings, path: &'a Path, random: StdRng) -> Self {
        Self { settings, path, random, runs: 0, seen: Vec::new(), last_recovery: FIRST_RECOVERY }
    }

    /// Runs round `number`; calls `doing` at each step with its description.
    pub(super) fn run(&mut self, number: u16, doing: &dyn Fn(&str)) -> Result<Round> {
        doing("transferring, until the kill");
        let crash = self.crash(number.is_multiple_of(2))?;
        doing("recovering");
        let begun = Instant::now();
        let db = self.settings.store.open_existing(self.path)?;
        let recovery = Recovery::of(&db, begun.elapsed());
        self.last_recovery = recovery.took;
        doing("auditing");
        let verdict = self.verdict(&db, &crash)?;
        db.close()?;
        Ok(Round { number, crash, recovery, verdict })
    }

    /// Runs a child and kills it. If requested, starts another child and kills it while it recovers.
    fn crash(&mut self, again_in_recovery: bool) -> Result<Crash> {
        let share = self.random.random_range(0.2..1.0);
        let (run, child) = self.start_child(self.settings.trace.clone().as_deref())?;
        let (mut acknowledged, worked) = child.kill_after_work_of(self.settings.round.mul_f64(share))?;
        let mut runs = vec![run];
        if again_in_recovery {
            let share = self.random.random_range(0.0..1.0);
            let (run, child) = self.start_child(None)?;
            acknowledged.extend(child.kill_after(self.last_recovery.mul_f64(share))?);
            runs.push(run);
        }
        Ok(Crash { worked, acknowledged, again_in_recovery, runs })
    }

    fn start_child(&mut self, trace: Option<&Path>) -> Result<(u16, Victim)> {
        self.runs += 1;
        let Settings { ref store, accounts, threads, in_flight, seed, .. } = self.settings;
        let orders = Orders { run: self.runs, seed, accounts, threads, in_flight };
        Ok((self.runs, Victim::start(store, self.path, orders, trace)?))
    }

    fn verdict(&mut self, db: &Database, crash: &Crash) -> Result<Verdict> {
        let tx = db.begin()?;
        let (balances, transfers) = (bank::balances(&tx)?, bank::transfers(&tx)?);
        drop(tx);
        let acknowledged: Vec<Transfer> =
            crash.acknowledged.iter().map(|acknowledged| acknowledged.transfer).collect();
        let accounts = self.settings.accounts;
        let expected =
            Expected { accounts, seen_before: &self.seen, acknowledged: &acknowledged, runs: &crash.runs };
        let mut audit = audit(&expected, &Found { transfers: &transfers, balances: &balances });
        let check = db.check(&mut |_, _| {})?;
        audit.problems.extend(
            check.findings.iter().map(|finding| format!("check: page {}: {}", finding.page, finding.what)),
        );
        self.seen = transfers;
        let transfers = self.seen.len() as u64;
        Ok(Verdict { transfers, untold: audit.untold, pages: check.pages, problems: audit.problems })
    }
}
