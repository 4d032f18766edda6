//! Work of one thread: runs one transaction after another, without think time.
//!
//! A [`Runner`] runs the transactions on the store, or on any engine ([`session`](super::session)).
//!
//! Blocking: a transaction ends when its commit is durable. Pipelined: commits stay in a first-in first-out
//! window until they are durable, as in [`crate::client`]. The latency is the time from the beginning of the
//! transaction until it leaves the window. Read-only transactions use the window too, because the commits
//! that they have read may not be durable yet.

use super::rows::Rows;
use super::schema::UnusedItem;
use super::{delivery, failed, new_order, order_status, payment, stock_level};
use crate::error::BenchError;
use crate::latency::Latencies;
use crate::window::{Promise, Window};
use azekura::{CommitTicket, Database, Error, Transaction};
use azekura_workload::tpcc::{Input, Kind, Terminal};
use std::time::Instant;

/// Counts of one kind of transaction.
#[derive(Debug, Clone, Default)]
pub struct KindTally {
    /// Number of committed transactions.
    pub committed: u64,
    /// Number of transactions rolled back because of an unused item; they are in no other count.
    pub rolled_back: u64,
    /// Number of retries after deadlocks.
    pub retries: u64,
    /// Latencies of the committed transactions.
    pub latencies: Latencies,
}

/// Counts of a client.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Counts by [`Kind::index`].
    pub kinds: [KindTally; Kind::ALL.len()],
    /// Number of districts in which a delivery found no open order.
    pub skipped_deliveries: u64,
}

impl KindTally {
    fn committed(&mut self, began: Instant, now: Instant) {
        self.committed += 1;
        self.latencies.record(now - began);
    }
}

impl Tally {
    /// Adds the counts of another client.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            mine.committed += theirs.committed;
            mine.rolled_back += theirs.rolled_back;
            mine.retries += theirs.retries;
            mine.latencies.merge(&theirs.latencies);
        }
        self.skipped_deliveries += other.skipped_deliveries;
    }

    /// Returns the number of committed transactions of all kinds.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.committed).sum()
    }
}

/// Result of a transaction, with its number of retries.
#[derive(Debug)]
pub struct Ended<P> {
    /// Number of retries.
    pub retries: u64,
    /// Result of the last attempt.
    pub end: End<P>,
}

/// Result of a transaction.
#[derive(Debug)]
pub enum End<P> {
    /// The transaction was committed.
    Committed {
        /// Number of districts in which a delivery found no open order.
        skipped: u8,
        /// Handle of the commit; `None` if the commit is durable.
        promise: Option<P>,
    },
    /// The transaction was rolled back because of an unused item.
    RolledBack,
}

/// A runner of single transactions.
pub trait Runner {
    /// Handle of an asynchronous commit.
    type Promise: Promise<Error: Into<BenchError>>;

    /// Runs the transaction for an input, and retries it after conflicts. If `pipelined` is true, the commit
    /// may be asynchronous.
    ///
    /// # Errors
    ///
    /// An error of the store, except conflicts; a missing row.
    fn run(&mut self, input: &Input, pipelined: bool) -> Result<Ended<Self::Promise>, BenchError>;
}

/// Runs transactions on the store until `go_on` returns `false`. Then waits for those in flight, which count
/// too.
///
/// # Errors
///
/// An error of the store, except conflicts; a missing row.
pub fn run(
    db: &Database,
    terminal: &mut Terminal,
    window: Option<usize>,
    go_on: impl FnMut() -> bool,
) -> Result<Tally, BenchError> {
    run_with(OnStore(db), terminal, window, go_on)
}

/// Does the same as [`run`] with any runner.
///
/// # Errors
///
/// The same as those of [`run`].
pub fn run_with<R: Runner>(
    runner: R,
    terminal: &mut Terminal,
    window: Option<usize>,
    mut go_on: impl FnMut() -> bool,
) -> Result<Tally, BenchError> {
    let mut client = Client { runner, window, in_flight: Window::default(), tally: Tally::default() };
    while go_on() {
        client.transaction(&terminal.next(super::now_ms()))?;
    }
    client.drain(0)?;
    Ok(client.tally)
}

/// Runs the steps of the transaction for an input. Returns the number of districts in which a delivery found
/// no open order.
///
/// # Errors
///
/// [`UnusedItem`]; an error of the store.
pub fn execute<R: Rows>(tx: &R, input: &Input) -> Result<u8, R::Error> {
    match input {
        Input::NewOrder(input) => new_order::new_order(tx, input).map(|_| 0),
        Input::Payment(input) => payment::payment(tx, input).map(|_| 0),
        Input::OrderStatus(input) => order_status::order_status(tx, input).map(|_| 0),
        Input::Delivery(input) => delivery::delivery(tx, input),
        Input::StockLevel(input) => stock_level::stock_level(tx, input).map(|_| 0),
    }
}

/// Returns whether an error is the rollback that the specification requires.
#[must_use]
pub fn is_unused_item(error: &Error) -> bool {
    matches!(error, Error::Other(source) if source.is::<UnusedItem>())
}

struct OnStore<'d>(&'d Database);

/// Handle of a commit of the store; its errors name the operation.
struct Committing(CommitTicket);

impl Promise for Committing {
    type Error = BenchError;
    fn is_kept(&self) -> Result<bool, BenchError> {
        self.0.is_durable().map_err(failed("committing"))
    }
    fn keep(self) -> Result<(), BenchError> {
        self.0.wait().map_err(failed("committing"))
    }
}

impl Runner for OnStore<'_> {
    type Promise = Committing;

    fn run(&mut self, input: &Input, pipelined: bool) -> Result<Ended<Committing>, BenchError> {
        let mut attempts = 0_u64;
        let body = |tx: &Transaction| {
            attempts += 1;
            execute(tx, input)
        };
        let ended = if pipelined {
            self.0.transact_async(body).map(|(skipped, ticket)| (skipped, Some(Committing(ticket))))
        } else {
            self.0.transact(body).map(|skipped| (skipped, None))
        };
        let end = match ended {
            Ok((skipped, promise)) => End::Committed { skipped, promise },
            Err(error) if is_unused_item(&error) => End::RolledBack,
            Err(error) => return Err(failed(input.kind().word())(error)),
        };
        Ok(Ended { retries: attempts.saturating_sub(1), end })
    }
}

/// State of a client thread.
struct Client<R: Runner> {
    runner: R,
    window: Option<usize>,
    in_flight: Window<(Kind, Instant), R::Promise>,
    tally: Tally,
}

impl<R: Runner> Client<R> {
    fn transaction(&mut self, input: &Input) -> Result<(), BenchError> {
        let (kind, began) = (input.kind(), Instant::now());
        let Ended { retries, end } = self.runner.run(input, self.window.is_some())?;
        let tally = &mut self.tally.kinds[kind.index()];
        tally.retries += retries;
        match end {
            End::RolledBack => tally.rolled_back += 1,
            End::Committed { skipped, promise } => {
                self.tally.skipped_deliveries += u64::from(skipped);
                match promise {
                    None => self.tally.kinds[kind.index()].committed(began, Instant::now()),
                    Some(promise) => self.in_flight.push((kind, began), promise),
                }
            }
        }
        self.drain(self.window.unwrap_or(1).saturating_sub(1))
    }

    /// Removes the oldest commits from the window: all that are durable, and more until at most `most` are
    /// left.
    fn drain(&mut self, most: usize) -> Result<(), BenchError> {
        let kinds = &mut self.tally.kinds;
        let done = |(kind, began): (Kind, Instant), now| kinds[kind.index()].committed(began, now);
        self.in_flight.drain(most, done).map_err(Into::into)
    }
}
