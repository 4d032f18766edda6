//! Transactions that run again after a conflict.
//!
//! Two transactions that have read a row, and then write it, wait for each other: one of them is rolled back
//! and runs again. In its next run it reads the tables of such rows for update: of two such readers, the
//! second waits at its read.
//!
//! - **UPGRADE-1** After such a rollback, the next [`REMEMBERED`] transactions of the thread with a body of
//!   the same type read the row for update in their first run. The transaction after them reads the row with
//!   a read lock again, because the contention may have ended. So a body that reads a contended row and then
//!   writes it runs twice in at most one of [`REMEMBERED`] transactions. Reads of other rows take the same
//!   locks as before.

use std::any::type_name_of_val;
use std::cell::Cell;

use azekura_base::sync::time::Instant;
use azekura_base::sync::{random, thread};

use crate::transaction::{Transaction, UpgradedRow};
use crate::{Database, Error};

/// Number of transactions that read a row for update after a lock upgrade made one a deadlock victim. With 64
/// threads that increment one row, 3 % of the transactions then run twice. A body that no longer writes the
/// row takes an unnecessary write lock in these transactions.
const REMEMBERED: u32 = 32;

/// A row that a body reads for update.
struct Upgrade {
    /// Address of the store.
    store: usize,
    /// Name of the type of the body.
    body: &'static str,
    row: UpgradedRow,
    left: u32,
}

azekura_base::per_thread! {
    static UPGRADE: Cell<Option<Upgrade>> = const { Cell::new(None) };
}

/// Returns the row that the next transaction of this thread with this body reads for update.
fn recall(store: usize, body: &'static str) -> Option<UpgradedRow> {
    let recalled = UPGRADE.try_with(|kept| {
        let mut upgrade = kept.take()?;
        let is_same = upgrade.store == store && upgrade.body == body;
        let row = is_same.then(|| upgrade.row.clone());
        upgrade.left -= u32::from(is_same);
        kept.set(Some(upgrade).filter(|upgrade| upgrade.left > 0));
        row
    });
    recalled.ok().flatten()
}

fn remember(store: usize, body: &'static str, row: &UpgradedRow) {
    let upgrade = Upgrade { store, body, row: row.clone(), left: REMEMBERED };
    let _ = UPGRADE.try_with(|kept| kept.set(Some(upgrade)));
}

impl Database {
    /// Runs `body` in a transaction until no conflict rolls it back, within the limits of the store.
    pub(crate) fn retry<T, E: From<Error>>(
        &self,
        mut body: impl FnMut(&Transaction) -> Result<T, E>,
    ) -> Result<(T, Transaction), E> {
        let began = Instant::now();
        let (store, name) = (std::ptr::from_ref(&**self.shared()).addr(), type_name_of_val(&body));
        let (mut pause, mut upgrades, mut row) = (RetryPause::new(), Vec::new(), recall(store, name));
        for attempts in 1.. {
            let tx = self.begin()?;
            let known = upgrades.len();
            tx.read_for_update_in(upgrades, row);
            let done = body(&tx);
            let Some(conflict) = tx.take_conflict() else { return done.map(|value| (value, tx)) };
            (upgrades, row) = (tx.upgrades(), tx.upgraded());
            drop(tx);
            if let Some(row) = row.as_ref().filter(|_| upgrades.len() > known) {
                remember(store, name, row);
            }
            let (options, elapsed) = (&self.shared().options, began.elapsed());
            if attempts >= options.retry_attempts || elapsed >= options.retry_time {
                let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
                return Err(Error::RetriesExhausted { attempts, elapsed_ms, source: conflict.into() }.into());
            }
            pause.sleep();
        }
        unreachable!("the attempts are bounded by a number that fits")
    }
}

/// Random pauses between retries; their bound grows from 50 µs to 10 ms.
struct RetryPause {
    bound_us: u64,
}

impl RetryPause {
    const fn new() -> Self {
        Self { bound_us: 50 }
    }

    fn sleep(&mut self) {
        let us = random() % self.bound_us;
        thread::sleep(std::time::Duration::from_micros(us));
        self.bound_us = (self.bound_us * 2).min(10_000);
    }
}

#[cfg(test)]
mod tests {
    use azekura_base::TreeId;

    use super::*;

    #[test]
    fn a_row_is_remembered_for_a_body_and_a_store_and_for_some_transactions() {
        let row = (TreeId(7), b"key".to_vec());
        assert!(recall(1, "body").is_none());
        remember(1, "body", &row);
        assert!(recall(1, "other").is_none() && recall(2, "body").is_none());
        for _ in 0..REMEMBERED {
            assert_eq!(recall(1, "body").as_ref(), Some(&row));
        }
        assert!(recall(1, "body").is_none());
        remember(1, "body", &row);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(recall(1, "body").is_none(), "another thread"));
        });
    }
}
