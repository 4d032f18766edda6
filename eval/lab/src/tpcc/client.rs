//! Work of one thread: takes the next input, runs its transaction, again, without think time.
//!
//! A [`Runner`] runs the transactions: on the store, or on any engine ([`session`](super::session)).
//!
//! Blocking, a transaction has ended when its commit is durable. Pipelined, commits stay in a first-in
//! first-out window until they are, as in [`crate::client`]; the latency is from the beginning of the
//! transaction until it leaves the window. Transactions that only read are in it too: what they have seen may
//! not be durable yet.

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
    /// Committed.
    pub committed: u64,
    /// Rolled back because an item was unused; counted nowhere else.
    pub rolled_back: u64,
    /// Run again because of a deadlock.
    pub retries: u64,
    /// Latencies of the committed ones.
    pub latencies: Latencies,
}

/// Counts of a client.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// By [`Kind::index`].
    pub kinds: [KindTally; Kind::ALL.len()],
    /// Districts in which a delivery found nothing to deliver.
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

    /// Committed transactions of all kinds.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.committed).sum()
    }
}

/// End of a transaction.
#[derive(Debug)]
pub struct Ended<P> {
    /// Number of times that it was run again.
    pub retries: u64,
    /// Its result.
    pub end: End<P>,
}

/// The ways to end.
#[derive(Debug)]
pub enum End<P> {
    /// Committed: durable, or promised to be.
    Committed {
        /// Districts in which a delivery found nothing.
        skipped: u8,
        /// Without: it is durable.
        promise: Option<P>,
    },
    /// Rolled back because an item was unused.
    RolledBack,
}

/// Runs single transactions.
pub trait Runner {
    /// The handle of a commit that it does not wait for.
    type Promise: Promise<Error: Into<BenchError>>;

    /// Runs the transaction that an input asks for, as often as conflicts make it. If it is `pipelined` the
    /// commit may be promised only.
    ///
    /// # Errors
    ///
    /// An error of the store, except conflicts; also rows that are missing.
    fn run(&mut self, input: &Input, pipelined: bool) -> Result<Ended<Self::Promise>, BenchError>;
}

/// Runs transactions on the store until `go_on` says no; what is in flight then is waited for, and counts.
///
/// # Errors
///
/// An error of the store, except conflicts; also rows that are missing.
pub fn run(
    db: &Database,
    terminal: &mut Terminal,
    window: Option<usize>,
    go_on: impl FnMut() -> bool,
) -> Result<Tally, BenchError> {
    run_with(OnStore(db), terminal, window, go_on)
}

/// The same with any runner.
///
/// # Errors
///
/// As [`run`].
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

/// Runs the transaction that an input asks for; gives back the districts in which nothing was to be
/// delivered.
///
/// # Errors
///
/// [`UnusedItem`]; errors of the store.
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

/// A commit of the store; its errors name the operation.
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

/// A thread's state.
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

    /// Removes durable commits from the window until at most `most` are in it.
    fn drain(&mut self, most: usize) -> Result<(), BenchError> {
        let kinds = &mut self.tally.kinds;
        let done = |(kind, began): (Kind, Instant), now| kinds[kind.index()].committed(began, now);
        self.in_flight.drain(most, done).map_err(Into::into)
    }
}
