//! Power loss with every log protocol and every number of log workers and streams from 1 to 16, another choice at each opening,
//! and LSNs missing in the midst at will (invariant 1; W5).
//!
//! A history is three lives of one store. In each the power goes at a random I/O, or the process is gone after the last one
//! with what it had buffered; now and then one log stream is written while the others are not. Then a recovery by a store of
//! another shape loses power too, and a third store must find a state between "all that was acknowledged" and "all that was
//! attempted". `AZEKURA_CRASH_SEEDS=20` goes through the matrix so many times (twice unless set), `AZEKURA_CRASH_SEED=n` is
//! one history.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use std::sync::Arc;

use azekura::{Database, Error};
use azekura_io::FaultFs;
use common::{
    End, LogShape, Model, Outcome, PROTOCOLS, Shape, Txn, assert_recovered, deterministic, run, workload,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const SHAPE: Shape = Shape { txns: 32, ops: 8, keys: 200, tables: 2, large_values: false, checkpoints: true };
const LIVES: u64 = 3;

fn open(disk: &FaultFs, shape: LogShape) -> Result<Database, Error> {
    let store = deterministic(Arc::new(disk.clone()), 4096, 32).redo_threads(1 + shape.workers % 3);
    shape.apply(store).open("db")
}

fn transactions(seed: u64, rng: &mut StdRng) -> Vec<Txn> {
    let mut txns = workload(seed, SHAPE);
    for txn in &mut txns {
        txn.writes_alone = rng.random_bool(0.4).then(|| rng.random_range(0..16));
        if seed.is_multiple_of(2) && txn.end == End::Commit && rng.random_bool(0.9) {
            txn.end = End::CommitRelaxed; // so that much is above the cut
        }
    }
    txns
}

/// One life: opens, works until the power goes or the work is done, and is gone.
fn live(disk: &FaultFs, shape: LogShape, start: Model, seed: u64, rng: &mut StdRng) -> (FaultFs, Outcome) {
    let txns = transactions(seed, rng);
    disk.cut_power_at(rng.random_range(1..240));
    let (db, outcome) = match open(disk, shape) {
        Ok(db) => {
            let outcome = run(&db, start, &txns);
            (Some(db), outcome)
        }
        Err(error) => (None, Outcome { states: vec![start], acknowledged: 0, error: Some(error) }),
    };
    let crashed = disk.crash(seed);
    drop(db); // which closes, on a disk that is not looked at any more
    (crashed, outcome)
}

/// What histories have met.
#[derive(Debug, Default)]
struct Met {
    acknowledged: usize,
    /// Lives after which commits that had not been acknowledged were gone.
    voided: usize,
    /// Lives that ended by the power going.
    cut: usize,
}

fn history(first: LogShape, seed: u64, met: &mut Met) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut disk, mut state) = (FaultFs::new(), Model::new());
    for life in 0..LIVES {
        let shape = if life == 0 { first } else { LogShape::draw(&mut rng) };
        let (crashed, outcome) = live(&disk, shape, state, seed * LIVES + life, &mut rng);
        crashed.cut_power_at(rng.random_range(1..60));
        drop(open(&crashed, LogShape::draw(&mut rng)));
        disk = crashed.crash(seed + life);
        let last = LogShape::draw(&mut rng);
        let context =
            format!("AZEKURA_CRASH_SEED={seed}, life {life} of {first:?} as {shape:?}, seen by {last:?}");
        let db = open(&disk, last).unwrap_or_else(|e| panic!("{context}: open: {e} ({e:?})"));
        let at = assert_recovered(&db, &outcome, &context);
        met.acknowledged += outcome.acknowledged;
        met.voided += usize::from(at + 1 < outcome.states.len());
        met.cut += usize::from(outcome.error.is_some());
        state = outcome.states[at].clone();
    }
}

/// The history of a seed: each number of workers with each protocol comes by once in 48.
fn history_of(seed: u64, met: &mut Met) {
    let workers = 1 + (seed / 3 % 16) as usize;
    // Every number of streams comes by too, the largest most often.
    let streams = 1 + StdRng::seed_from_u64(seed).random_range(0..16) % workers;
    history(LogShape { protocol: PROTOCOLS[(seed % 3) as usize], workers, streams }, seed, met);
}

#[test]
fn every_log_recovers_what_every_other_log_has_left() {
    let var = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    match var("AZEKURA_CRASH_SEED") {
        Some(seed) => history_of(seed, &mut Met::default()),
        None => {
            let mut met = Met::default();
            let rounds = var("AZEKURA_CRASH_SEEDS").unwrap_or(2);
            (0..48 * rounds).for_each(|seed| history_of(seed, &mut met));
            let lives = (48 * LIVES * rounds) as usize;
            assert!(met.acknowledged > 3 * lives, "too little was at stake: {met:?} in {lives} lives");
            assert!(
                met.voided > lives / 5 && met.cut > lives / 4,
                "too little went wrong: {met:?} in {lives} lives"
            );
        }
    }
}
