//! Work of the writers and scanners, on their own threads.

use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use azekura::{CommitTicket, Database, Error, ErrorKind, Snapshot, ValueRef};
use azekura_workload::popularity::Popularity;
use azekura_workload::{Family, Workload};
use rand::rngs::{SmallRng, Xoshiro256PlusPlus};
use rand::{RngExt, SeedableRng};

use super::{ACCOUNT_COUNT, ACCOUNTS, IN_FLIGHT, ROWS, VALUE_BYTES};

/// Other work during a measurement of writers.
#[derive(Clone, Copy)]
pub(super) enum Beside<'d> {
    Nothing,
    Scanners(&'d Database, usize),
}

pub(super) fn value(key: u64) -> [u8; VALUE_BYTES] {
    [key as u8; VALUE_BYTES]
}

pub(super) fn sum(value: ValueRef<'_>) -> Result<u64, Error> {
    Ok(value.bytes()?.iter().map(|&byte| u64::from(byte)).sum())
}

pub(super) fn scan(snapshot: &Snapshot) -> Result<(), Error> {
    snapshot.table(&ROWS)?.for_each(.., |row| {
        std::hint::black_box(row.value_ref().bytes()?);
        Ok(ControlFlow::Continue(()))
    })
}

/// Kinds of transactions of the writers, each of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mix {
    /// Updates of uniformly distributed rows (U-1 of the P-WAL paper).
    U1,
    /// Half reads and half updates, with YCSB's distribution over the rows.
    YcsbA,
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U1 => "u1",
            Self::YcsbA => "ycsb-a",
        })
    }
}

/// Runs transactions until `ends` is set. Returns their number.
pub(super) fn update_until(
    db: &Database,
    mix: Mix,
    records: u64,
    clients: usize,
    ends: &AtomicBool,
) -> Result<u64, Error> {
    let population = Workload::new(Family::U1).with_records(records).population();
    let popularity = match mix {
        Mix::U1 => Popularity::uniform(records),
        Mix::YcsbA => Popularity::scrambled_zipf(records, false),
    };
    let client = |seed: u64| {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let (mut tickets, mut done) = (VecDeque::<CommitTicket>::new(), 0);
        // Relaxed: no other data depends on the flag.
        while !ends.load(Relaxed) {
            let key = popularity.draw(&mut random, &population);
            done += 1;
            if mix == Mix::YcsbA && random.random_bool(0.5) {
                db.transact(|tx| tx.table(&ROWS)?.with_value(&key, sum))?;
                continue;
            }
            let value = [random.random(); VALUE_BYTES];
            let (_, ticket) = db.transact_async(|tx| tx.table(&ROWS)?.insert(&key, &value))?;
            tickets.push_back(ticket);
            if tickets.len() >= IN_FLIGHT / clients {
                tickets.pop_front().map_or(Ok(()), CommitTicket::wait)?;
            }
        }
        tickets.into_iter().try_for_each(CommitTicket::wait)?;
        Ok::<u64, Error>(done)
    };
    thread::scope(|scope| {
        let client = &client;
        let all: Vec<_> = (0..clients as u64).map(|seed| scope.spawn(move || client(seed))).collect();
        all.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    })
}

/// Transfers money between accounts until `ends` is set.
pub(super) fn transfer(db: &Database, seed: u64, ends: &AtomicBool) -> Result<(), Error> {
    let mut random = SmallRng::seed_from_u64(seed);
    // Relaxed: no other data depends on the flag.
    while !ends.load(Relaxed) {
        let (from, to) = (random.random_range(0..ACCOUNT_COUNT), random.random_range(0..ACCOUNT_COUNT));
        let amount: i64 = random.random_range(1..10);
        let moved = db.transact_async(|tx| {
            let accounts = tx.table(&ACCOUNTS)?;
            for (account, change) in [(from, -amount), (to, amount)] {
                let balance = accounts.get_for_update(&account)?.unwrap_or(0);
                accounts.insert(&account, &(balance + change))?;
            }
            Ok(())
        });
        match moved {
            Err(error) if error.kind() == ErrorKind::Conflict => {}
            moved => drop(moved?),
        }
    }
    Ok(())
}
