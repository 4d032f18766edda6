//! Power loss with every log protocol and every number of log buffers and streams from 1 to 16. Each opening
//! uses another choice, and LSNs may be missing anywhere in the log (invariant 1; W5). Openings with an even
//! number of log buffers access the pages directly, on a disk that refuses unaligned direct accesses.
//!
//! A history has three lives of one store. Each life ends with a power loss at a random I/O, or with a crash
//! after its last transaction, which loses buffered data. Sometimes only one log stream is written. Then a
//! recovery with other settings also loses power. A third opening must find a state between "all acknowledged
//! transactions" and "all attempted transactions". `AZEKURA_CRASH_SEEDS=20` runs the matrix 20 times (default
//! 2); `AZEKURA_CRASH_SEED=n` runs history `n`.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::{
    End, LogShape, Model, Outcome, PROTOCOLS, Shape, Txn, assert_recovered, deterministic, run, workload,
};
use azekura::{Database, Error};
use azekura_io::FaultFs;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const SHAPE: Shape = Shape { txns: 32, ops: 8, keys: 200, tables: 2, large_values: false, checkpoints: true };
const LIVES: u64 = 3;

fn open(disk: &FaultFs, shape: LogShape) -> Result<Database, Error> {
    let store = deterministic(Arc::new(disk.clone()), 4096, 32).redo_threads(1 + shape.workers % 3);
    shape.apply(store.direct_pages(shape.workers.is_multiple_of(2))).open("db")
}

fn transactions(seed: u64, rng: &mut StdRng) -> Vec<Txn> {
    let mut txns = workload(seed, SHAPE);
    for txn in &mut txns {
        txn.writes_alone = rng.random_bool(0.4).then(|| rng.random_range(0..16));
        if seed.is_multiple_of(2) && txn.end == End::Commit && rng.random_bool(0.9) {
            txn.relax(); // so that much of the log is above the cut
        }
    }
    txns
}

/// Runs one life: opens the store, runs transactions until the power fails or all are done, and crashes.
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
    drop(db); // closes the store on a disk that is not used again
    (crashed, outcome)
}

/// Events that occurred in the histories.
#[derive(Debug, Default)]
struct Met {
    acknowledged: usize,
    /// Number of lives after which unacknowledged commits were lost.
    voided: usize,
    /// Number of lives that ended by a power loss.
    cut: usize,
}

fn history(first: LogShape, seed: u64, met: &mut Met) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut disk, mut state) = (FaultFs::with_alignment(512), Model::new());
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

/// Returns the settings with which a history begins. Each round of 48 seeds has every protocol with each
/// number of log buffers from 1 to 16. In the first round, the number of streams equals that of log buffers,
/// so each number of streams occurs; later rounds have other numbers.
fn first_of(seed: u64) -> LogShape {
    let (protocol, workers, round) = (PROTOCOLS[(seed % 3) as usize], 1 + seed / 3 % 16, seed / 48);
    let streams = 1 + (workers - 1 + 5 * round) % workers;
    LogShape { protocol, workers: workers as usize, streams: streams as usize }
}

fn history_of(seed: u64, met: &mut Met) {
    history(first_of(seed), seed, met);
}

#[test]
fn the_matrix_has_every_log_with_every_number_of_workers_and_of_streams() {
    for protocol in PROTOCOLS {
        let shapes: Vec<LogShape> =
            (0..48).map(first_of).filter(|shape| shape.protocol == protocol).collect();
        let of = |number: fn(&LogShape) -> usize| shapes.iter().map(number).collect::<BTreeSet<_>>();
        let all: BTreeSet<usize> = (1..=16).collect();
        assert_eq!((of(|shape| shape.workers), of(|shape| shape.streams)), (all.clone(), all), "{protocol}");
    }
    assert!((0..48 * 20).map(first_of).all(|shape| (1..=shape.workers).contains(&shape.streams)));
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

#[test]
fn an_encrypted_store_recovers_as_a_plain_one() {
    let mut met = Met::default();
    crate::common::with_key(|| (0..24).for_each(|seed| history_of(seed, &mut met)));
    let lives = 24 * LIVES as usize;
    assert!(met.acknowledged > 3 * lives && met.cut > lives / 5, "{met:?} in {lives} lives");
}
