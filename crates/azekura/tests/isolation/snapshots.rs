//! Clients that read snapshots while other clients lock rows.

use std::thread;

use azekura::{Database, Error};
use azekura_history::{Op, Recorder};
use rand::RngExt;
use rand::rngs::StdRng;

use crate::clients::{LIVE, REMOVED, decode, record};

/// Runs a transaction that reads a snapshot, sometimes with pauses in which other clients write and commit.
pub(crate) fn read(db: &Database, recorder: &Recorder, keys: u64, rng: &mut StdRng) -> Result<(), Error> {
    let running = recorder.begin();
    match ops(db, keys, rng) {
        Ok(ops) => record(running, ops).committed(),
        // Expected, because the memory for versions is small.
        Err(Error::SnapshotTooOld { .. } | Error::TransactionsTooLarge { .. }) => running.aborted(),
        Err(error) => return Err(error),
    }
    Ok(())
}

fn ops(db: &Database, keys: u64, rng: &mut StdRng) -> Result<Vec<Op>, Error> {
    let snapshot = db.snapshot()?;
    let (live, removed) = (snapshot.table(&LIVE)?, snapshot.table(&REMOVED)?);
    let mut ops = Vec::new();
    for _ in 0..rng.random_range(1..=5) {
        let key = rng.random_range(0..keys);
        if rng.random() {
            let list = match live.get(&key)? {
                Some(bytes) => decode(&bytes),
                None => removed.get(&key)?.map(|bytes| decode(&bytes)).unwrap_or_default(),
            };
            ops.push(Op::Read { key, list });
        } else {
            let to = rng.random_range(key + 1..=keys);
            let rows = live.range(key..to);
            let decoded = |row: Result<(u64, Vec<u8>), Error>| row.map(|(key, bytes)| (key, decode(&bytes)));
            let rows = if rng.random() {
                rows.map(decoded).collect::<Result<_, _>>()?
            } else {
                let mut rows = rows.rev().map(decoded).collect::<Result<Vec<_>, _>>()?;
                rows.reverse();
                rows
            };
            ops.push(Op::Scan { from: key, to, rows });
        }
        if rng.random_bool(0.7) {
            thread::yield_now();
        }
    }
    Ok(ops)
}
