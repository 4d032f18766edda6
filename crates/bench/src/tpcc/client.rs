//! What one thread does: takes the next input, runs its transaction, again, without think time.
//!
//! Blocking, a transaction has ended when its commit is durable. Pipelined, commits stay in a first-in first-out window until they are, as in
//! [`crate::client`]; the latency is from the beginning of the transaction until it leaves the window. Transactions that
//! only read are in it too: what they have seen may not be durable yet.

use super::rows::Rows;
use super::schema::UnusedItem;
use super::{delivery, failed, new_order, order_status, payment, stock_level};
use crate::error::BenchError;
use crate::latency::Latencies;
use azekura::{CommitTicket, Database, Error, Transaction};
use azekura_workload::tpcc::{Input, Kind, Terminal};
use std::collections::VecDeque;
use std::time::Instant;

/// What was done of one kind of transaction.
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

/// What was done.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// By [`Kind::index`].
    pub kinds: [KindTally; Kind::ALL.len()],
    /// Districts in which a delivery found nothing to deliver.
    pub skipped_deliveries: u64,
}

impl Tally {
    /// Adds what another client has done.
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

/// Runs transactions until `go_on` says no; what is in flight then is waited for, and counts.
///
/// # Errors
///
/// What the store says, but for conflicts, and rows that are missing.
pub fn run(
    db: &Database,
    terminal: &mut Terminal,
    window: Option<usize>,
    mut go_on: impl FnMut() -> bool,
) -> Result<Tally, BenchError> {
    let mut client = Client { db, window, in_flight: VecDeque::new(), tally: Tally::default() };
    while go_on() {
        client.transaction(&terminal.next(super::now_ms()))?;
    }
    client.drain(0)?;
    Ok(client.tally)
}

/// Runs the transaction that an input asks for; gives back the districts in which nothing was to be delivered.
///
/// # Errors
///
/// [`UnusedItem`]; what the store says.
pub fn execute<R: Rows>(tx: &R, input: &Input) -> Result<u8, R::Error> {
    match input {
        Input::NewOrder(input) => new_order::new_order(tx, input).map(|_| 0),
        Input::Payment(input) => payment::payment(tx, input).map(|_| 0),
        Input::OrderStatus(input) => order_status::order_status(tx, input).map(|_| 0),
        Input::Delivery(input) => delivery::delivery(tx, input),
        Input::StockLevel(input) => stock_level::stock_level(tx, input).map(|_| 0),
    }
}

/// Whether an error is the rollback that the specification asks for.
#[must_use]
pub fn is_unused_item(error: &Error) -> bool {
    matches!(error, Error::Other(source) if source.is::<UnusedItem>())
}

struct InFlight {
    kind: Kind,
    began: Instant,
    ticket: CommitTicket,
}

struct Client<'d> {
    db: &'d Database,
    window: Option<usize>,
    in_flight: VecDeque<InFlight>,
    tally: Tally,
}

impl Client<'_> {
    fn transaction(&mut self, input: &Input) -> Result<(), BenchError> {
        let (kind, began, mut attempts) = (input.kind(), Instant::now(), 0_u64);
        let body = |tx: &Transaction| {
            attempts += 1;
            execute(tx, input)
        };
        let ended = match self.window {
            None => self.db.transact(body).map(|skipped| (skipped, None)),
            Some(_) => self.db.transact_async(body).map(|(skipped, ticket)| (skipped, Some(ticket))),
        };
        self.tally.kinds[kind.index()].retries += attempts.saturating_sub(1);
        match ended {
            Ok((skipped, ticket)) => {
                self.tally.skipped_deliveries += u64::from(skipped);
                match ticket {
                    None => self.committed(kind, began, Instant::now()),
                    Some(ticket) => self.in_flight.push_back(InFlight { kind, began, ticket }),
                }
            }
            Err(error) if is_unused_item(&error) => self.tally.kinds[kind.index()].rolled_back += 1,
            Err(error) => return Err(failed(kind.word())(error)),
        }
        self.drain(self.window.unwrap_or(1).saturating_sub(1))
    }

    fn committed(&mut self, kind: Kind, began: Instant, now: Instant) {
        let tally = &mut self.tally.kinds[kind.index()];
        tally.committed += 1;
        tally.latencies.record(now - began);
    }

    /// Lets durable commits leave the window, and waits for the oldest while more than `most` are in it.
    fn drain(&mut self, most: usize) -> Result<(), BenchError> {
        while let Some(oldest) = self.in_flight.front() {
            let is_durable = oldest.ticket.is_durable().map_err(failed("committing"))?;
            if !is_durable && self.in_flight.len() <= most {
                break;
            }
            let Some(InFlight { kind, began, ticket }) = self.in_flight.pop_front() else { break };
            ticket.wait().map_err(failed("committing"))?;
            self.committed(kind, began, Instant::now());
        }
        Ok(())
    }
}
