//! The bank of the demo: accounts, and a row for each transfer, as text that `azekura scan` can print.
//!
//! A transfer moves money and writes its own row in one transaction. So the table of transfers determines
//! every balance. BANK-1: at any committed moment, balance = initial + sum of the transfers to the account -
//! sum of the transfers from it.

use std::str::FromStr;

use anyhow::{Context, Result};
use azekura::{Database, Error, TableDefinition, Transaction};
use rand::RngExt;

/// Balances by account, both in decimal.
pub(super) const ACCOUNTS: TableDefinition<str, str> = TableDefinition::new("accounts");

/// Transfers by id, as `from to amount`.
pub(super) const TRANSFERS: TableDefinition<str, str> = TableDefinition::new("transfers");

/// Initial balance of each account.
pub(super) const INITIAL_BALANCE: i64 = 1_000;

/// Number of accounts used by one transfer in [`HOT_SHARE`], so that transactions conflict.
const HOT_ACCOUNTS: u32 = 64;
const HOT_SHARE: u32 = 16;

/// The id of a transfer: run of the child, worker, and sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TransferId {
    pub(super) run: u16,
    pub(super) worker: u16,
    /// A number that ascends from 0 without gaps, in the order in which the worker commits.
    pub(super) sequence: u32,
}

impl std::fmt::Display for TransferId {
    /// Formats the id with constant width, so that the order of the texts is the order of the ids.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:05}-{:05}-{:010}", self.run, self.worker, self.sequence)
    }
}

/// A transfer of money from one account to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) id: TransferId,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) amount: u32,
}

impl Transfer {
    /// Returns a transfer between two different accounts of `accounts`.
    pub(super) fn random(id: TransferId, accounts: u32, random: &mut impl RngExt) -> Self {
        let among = if random.random_ratio(1, HOT_SHARE) { accounts.min(HOT_ACCOUNTS) } else { accounts };
        let from = random.random_range(0..among);
        let to = (from + random.random_range(1..among)) % among;
        Self { id, from, to, amount: random.random_range(1..=100) }
    }

    /// Moves the money, or as much as the account has, and writes the transfer's row. Returns the actual
    /// transfer.
    pub(super) fn carry_out(mut self, tx: &Transaction) -> Result<Self, Error> {
        let accounts = tx.table(&ACCOUNTS)?;
        let (from, to) = (account_key(self.from), account_key(self.to));
        let balance = |key: &String| -> Result<i64, Error> {
            let text = accounts.get(key)?.ok_or_else(|| Error::other(format!("account {key} is missing")))?;
            text.parse().map_err(|_| Error::other(format!("account {key} has balance {text:?}")))
        };
        let (has, had) = (balance(&from)?, balance(&to)?);
        self.amount = self.amount.min(u32::try_from(has).unwrap_or(0));
        accounts.insert(&from, &(has - i64::from(self.amount)).to_string())?;
        accounts.insert(&to, &(had + i64::from(self.amount)).to_string())?;
        tx.table(&TRANSFERS)?.insert(&self.id.to_string(), &self.value())?;
        Ok(self)
    }

    fn value(&self) -> String {
        format!("{} {} {}", account_key(self.from), account_key(self.to), self.amount)
    }

    /// Parses a row of the table of transfers.
    pub(super) fn of_row(key: &str, value: &str) -> Option<Self> {
        let [run, worker, sequence] = exactly(key.split('-'))?;
        let id = TransferId { run: number(run)?, worker: number(worker)?, sequence: number(sequence)? };
        let [from, to, amount] = exactly(value.split(' '))?;
        Some(Self { id, from: number(from)?, to: number(to)?, amount: number(amount)? })
    }
}

/// Returns the fields of an iterator with exactly `N` of them.
pub(super) fn exactly<'a, const N: usize>(fields: impl Iterator<Item = &'a str>) -> Option<[&'a str; N]> {
    fields.collect::<Vec<_>>().try_into().ok()
}

/// Parses a number of decimal digits only.
pub(super) fn number<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Returns the key of account `number`. Its width is constant, so that the order of the texts is the order of
/// the numbers.
pub(super) fn account_key(number: u32) -> String {
    format!("{number:08}")
}

/// Creates `accounts` accounts, each with the initial balance.
pub(super) fn open_accounts(db: &Database, accounts: u32) -> Result<()> {
    const AT_ONCE: usize = 10_000;
    let balance = INITIAL_BALANCE.to_string();
    for first in (0..accounts).step_by(AT_ONCE) {
        let last = accounts.min(first + AT_ONCE as u32);
        db.transact(|tx| {
            let table = tx.table(&ACCOUNTS)?;
            (first..last).try_for_each(|account| table.insert(&account_key(account), &balance))
        })?;
    }
    Ok(())
}

/// Returns every balance, by account. Rejects a table that does not have exactly the accounts `0..n`.
pub(super) fn balances(tx: &Transaction) -> Result<Vec<i64>> {
    let mut balances = Vec::new();
    for row in tx.table(&ACCOUNTS)?.iter() {
        let (key, value) = row?;
        let expected = u32::try_from(balances.len()).context("more accounts than there can be")?;
        anyhow::ensure!(
            key == account_key(expected),
            "account {key:?} where {} should be",
            account_key(expected)
        );
        balances.push(value.parse().with_context(|| format!("account {key} has balance {value:?}"))?);
    }
    Ok(balances)
}

/// Returns every transfer, in the order of ids.
pub(super) fn transfers(tx: &Transaction) -> Result<Vec<Transfer>> {
    let mut transfers: Vec<Transfer> = Vec::new();
    for row in tx.table(&TRANSFERS)?.iter() {
        let (key, value) = row?;
        let transfer = Transfer::of_row(&key, &value)
            .with_context(|| format!("transfer {key:?} has the malformed value {value:?}"))?;
        let in_order = transfers.last().is_none_or(|last| last.id < transfer.id);
        anyhow::ensure!(in_order, "transfer {key} is out of order");
        transfers.push(transfer);
    }
    Ok(transfers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    fn transfer() -> impl Strategy<Value = Transfer> {
        let id =
            any::<(u16, u16, u32)>().prop_map(|(run, worker, sequence)| TransferId { run, worker, sequence });
        (id, any::<(u32, u32, u32)>()).prop_map(|(id, (from, to, amount))| Transfer { id, from, to, amount })
    }

    proptest! {
        #[test]
        fn a_row_reads_back_as_the_transfer(transfer in transfer()) {
            prop_assert_eq!(Transfer::of_row(&transfer.id.to_string(), &transfer.value()), Some(transfer));
        }

        #[test]
        fn the_order_of_keys_is_the_order_of_ids(a in transfer(), b in transfer()) {
            prop_assert_eq!(a.id.to_string().cmp(&b.id.to_string()), a.id.cmp(&b.id));
        }

        #[test]
        fn random_transfers_are_between_two_accounts(seed: u64, accounts in 2..200_000u32) {
            let id = TransferId { run: 0, worker: 0, sequence: 0 };
            let transfer = Transfer::random(id, accounts, &mut StdRng::seed_from_u64(seed));
            prop_assert!(transfer.from != transfer.to && transfer.from < accounts && transfer.to < accounts);
        }

        #[test]
        fn reading_any_row_never_panics(key: String, value: String) {
            let _ = Transfer::of_row(&key, &value);
        }
    }
}
