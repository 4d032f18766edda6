//! Scans: batches of rows out of one leaf at a time, locked as the transaction needs.

use std::ops::Bound;

use azekura_btree::{Env, LeafBatch, NoLocks, Outcome, Scan, Tree};

use crate::Error;
use crate::range::{Batch, ByteBounds, Row};
use crate::transaction::{Direction, State, Transaction};

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// The next rows of `bounds`, `max` at most, from the end that `direction` says; locked.
pub(crate) fn batch(
    tx: &Transaction,
    tree: Tree,
    bounds: &ByteBounds,
    direction: Direction,
    max: usize,
    state: &mut State,
) -> Result<Batch, Error> {
    let env = &tx.shared().env;
    let mut scan = Scan::new(tree, as_slice(&bounds.lower), as_slice(&bounds.upper));
    let mut found = LeafBatch::new();
    loop {
        let (outcome, wanted) = tx.with_locks(state, tree, None, |locks| match direction {
            Direction::Forward => scan.next_batch(env, max, locks, &mut found),
            Direction::Backward => scan.next_batch_back(env, max, locks, &mut found),
        });
        match outcome? {
            Outcome::Done(()) => break,
            Outcome::Blocked => tx.wait_for(state, wanted)?,
        }
    }
    Ok(Batch { rows: rows(env, &found)?, exhausted: scan.is_done() })
}

fn rows(env: &Env, found: &LeafBatch) -> Result<Vec<Row>, Error> {
    (0..found.len())
        .map(|i| {
            let mut value = Vec::new();
            found.read_value(env, i, &mut value)?;
            Ok(Row { key: found.key(i).to_vec(), value })
        })
        .collect()
}

/// What is done with each row: its key and value.
pub(crate) type EachRow<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<(), Error>;

/// Hands every row of a tree that nobody changes to `each`, in key order.
pub(crate) fn unlocked(env: &Env, tree: Tree, each: EachRow<'_>) -> Result<(), Error> {
    let mut scan = Scan::new(tree, Bound::Unbounded, Bound::Unbounded);
    let (mut found, mut value) = (LeafBatch::new(), Vec::new());
    while !scan.is_done() {
        let Outcome::Done(()) = scan.next_batch(env, usize::MAX, &mut NoLocks, &mut found)? else {
            unreachable!("no locks, so none that block")
        };
        for i in 0..found.len() {
            value.clear();
            found.read_value(env, i, &mut value)?;
            each(found.key(i), &value)?;
        }
    }
    Ok(())
}
