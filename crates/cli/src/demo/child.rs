//! The child: makes transfers in many threads until it is killed.
//!
//! Even workers wait for each commit; odd workers keep many commits in flight and poll their tickets. A
//! transfer is reported to the parent only after `transact` has returned or its ticket is durable.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use azekura::{CommitTicket, Database};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::bank::{Transfer, TransferId};
use super::protocol::{Acknowledged, Message, Way};
use crate::arguments::StoreArguments;

/// The parent's settings for a child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orders {
    pub(crate) run: u16,
    pub(crate) seed: u64,
    pub(crate) accounts: u32,
    pub(crate) threads: u16,
    pub(crate) in_flight: usize,
}

/// Opens the store at `path` and makes transfers until it is killed, reporting to `out`.
///
/// Ends with an error when the store fails, or when the parent has closed the pipe.
pub(crate) fn run(store: &StoreArguments, path: &Path, orders: Orders, out: &mut dyn Write) -> Result<()> {
    let db = store.open_existing(path)?;
    let mut line = Vec::new();
    Message::Ready.write(&mut line);
    out.write_all(&line)?;
    out.flush()?;
    let (failed, failures) = channel();
    for number in 0..orders.threads {
        let (worker, failed) = (Worker::new(db.clone(), orders, number), failed.clone());
        // The workers are not joined: they end with the process, by the kill or after the first failure.
        thread::spawn(move || failed.send(worker.run()));
    }
    drop(failed);
    failures.recv().context("every worker panicked")?
}

struct Worker {
    db: Database,
    orders: Orders,
    next: TransferId,
    random: StdRng,
    lines: Vec<u8>,
}

impl Worker {
    fn new(db: Database, orders: Orders, number: u16) -> Self {
        let next = TransferId { run: orders.run, worker: number, sequence: 0 };
        let seed = orders.seed ^ (u64::from(orders.run) << 48 | u64::from(number) << 32);
        Self { db, orders, next, random: StdRng::seed_from_u64(seed), lines: Vec::new() }
    }

    fn run(self) -> Result<()> {
        let number = self.next.worker;
        let done = if number.is_multiple_of(2) { self.run_blocking() } else { self.run_pipelined() };
        done.with_context(|| format!("worker {number}"))
    }

    fn next_transfer(&mut self) -> Result<Transfer> {
        let id = self.next;
        self.next.sequence = id.sequence.checked_add(1).context("all transfer numbers are used up")?;
        Ok(Transfer::random(id, self.orders.accounts, &mut self.random))
    }

    fn run_blocking(mut self) -> Result<()> {
        loop {
            let (wish, begun, mut attempts) = (self.next_transfer()?, Instant::now(), 0);
            let transfer = self.db.transact(|tx| {
                attempts += 1;
                wish.carry_out(tx)
            })?;
            self.note(InFlight { transfer, begun, attempts }, Way::Blocking);
            self.tell()?;
        }
    }

    fn run_pipelined(mut self) -> Result<()> {
        let mut waiting: VecDeque<(InFlight, CommitTicket)> = VecDeque::new();
        loop {
            let (wish, begun, mut attempts) = (self.next_transfer()?, Instant::now(), 0);
            let (transfer, ticket) = self.db.transact_async(|tx| {
                attempts += 1;
                wish.carry_out(tx)
            })?;
            waiting.push_back((InFlight { transfer, begun, attempts }, ticket));
            self.note_durable(&mut waiting)?;
            if waiting.len() >= self.orders.in_flight
                && let Some((oldest, ticket)) = waiting.pop_front()
            {
                ticket.wait()?;
                self.note(oldest, Way::Pipelined);
                self.note_durable(&mut waiting)?;
            }
            self.tell()?;
        }
    }

    /// Adds the oldest transfers that are durable now to the report.
    fn note_durable(&mut self, waiting: &mut VecDeque<(InFlight, CommitTicket)>) -> Result<()> {
        while let Some((_, ticket)) = waiting.front() {
            if !ticket.is_durable()? {
                break;
            }
            if let Some((oldest, _)) = waiting.pop_front() {
                self.note(oldest, Way::Pipelined);
            }
        }
        Ok(())
    }

    fn note(&mut self, done: InFlight, way: Way) {
        let latency_us = u64::try_from(done.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        let acknowledged = Acknowledged { transfer: done.transfer, latency_us, way, attempts: done.attempts };
        Message::Acknowledged(acknowledged).write(&mut self.lines);
    }

    /// Writes the report to the pipe.
    fn tell(&mut self) -> Result<()> {
        if !self.lines.is_empty() {
            let mut stdout = io::stdout().lock(); // The lock separates the lines of the workers.
            stdout.write_all(&self.lines)?;
            stdout.flush()?;
            self.lines.clear();
        }
        Ok(())
    }
}

/// A transfer that was committed and may not be durable yet.
struct InFlight {
    transfer: Transfer,
    begun: Instant,
    attempts: u32,
}
