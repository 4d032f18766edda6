//! The audit after each crash: compares the store with the expected content.
//!
//! - AUDIT-1 every transfer that was acknowledged as durable exists, unchanged;
//! - AUDIT-2 every transfer that an earlier audit found still exists;
//! - AUDIT-3 all other transfers were in flight when the child was killed;
//! - AUDIT-4 each worker's transfers exist from its first one to some last one, without gaps: a crash cuts
//!   the history at one point;
//! - AUDIT-5 every balance is the initial one plus and minus its transfers: each transfer exists completely
//!   or not at all;
//! - AUDIT-6 the total is unchanged.

use std::collections::HashMap;

use super::bank::{INITIAL_BALANCE, Transfer, TransferId, account_key};

/// Largest number of problems of one kind that are listed.
const LISTED: usize = 5;

/// The expected content of the bank.
#[derive(Debug)]
pub(super) struct Expected<'a> {
    pub(super) accounts: u32,
    /// Transfers found by the last audit.
    pub(super) seen_before: &'a [Transfer],
    /// Transfers acknowledged as durable since the last audit.
    pub(super) acknowledged: &'a [Transfer],
    /// The runs of the child since the last audit.
    pub(super) runs: &'a [u16],
}

/// The actual content of the bank.
#[derive(Debug)]
pub(super) struct Found<'a> {
    /// The transfers, in the order of their ids.
    pub(super) transfers: &'a [Transfer],
    pub(super) balances: &'a [i64],
}

/// The result of an audit.
#[derive(Debug, Default)]
pub(super) struct Audit {
    /// Number of transfers that exist without an acknowledgment.
    pub(super) untold: u64,
    /// Problems, as sentences.
    pub(super) problems: Vec<String>,
}

/// Compares expected and actual content.
pub(super) fn audit(expected: &Expected<'_>, found: &Found<'_>) -> Audit {
    let by_id: HashMap<TransferId, &Transfer> = found.transfers.iter().map(|t| (t.id, t)).collect();
    let mut problems = Vec::new();
    missing("was acknowledged as durable and is lost", expected.acknowledged, &by_id, &mut problems);
    missing("was there after the last crash and is gone", expected.seen_before, &by_id, &mut problems);
    let untold = strangers(expected, found.transfers, &mut problems);
    holes(found.transfers, &mut problems);
    wrong_balances(expected.accounts, found, &mut problems);
    Audit { untold, problems }
}

/// Lists transfers that violate AUDIT-1 or AUDIT-2.
fn missing(
    what: &str,
    wanted: &[Transfer],
    by_id: &HashMap<TransferId, &Transfer>,
    problems: &mut Vec<String>,
) {
    let wrong = wanted.iter().filter_map(|transfer| match by_id.get(&transfer.id) {
        None => Some(format!("transfer {} {what}", transfer.id)),
        Some(found) if *found != transfer => {
            Some(format!("transfer {} is {found:?} and was {transfer:?}", transfer.id))
        }
        Some(_) => None,
    });
    list(wrong, problems);
}

/// Lists transfers that violate AUDIT-3. Returns the number of transfers in flight that were committed.
fn strangers(expected: &Expected<'_>, transfers: &[Transfer], problems: &mut Vec<String>) -> u64 {
    let new: Vec<_> = transfers.iter().filter(|t| expected.runs.contains(&t.id.run)).collect();
    let old = transfers.len() - new.len();
    if old > expected.seen_before.len() {
        problems.push(format!(
            "{old} transfers of earlier rounds, where there were {}",
            expected.seen_before.len()
        ));
    }
    new.len().saturating_sub(expected.acknowledged.len()) as u64
}

/// Lists gaps that violate AUDIT-4.
fn holes(transfers: &[Transfer], problems: &mut Vec<String>) {
    let same_worker = |a: TransferId, b: TransferId| (a.run, a.worker) == (b.run, b.worker);
    let mut last: Option<TransferId> = None;
    let wrong = transfers.iter().filter_map(|transfer| {
        let id = transfer.id;
        let expected = match last {
            Some(last) if same_worker(last, id) => last.sequence.saturating_add(1),
            _ => 0,
        };
        last = Some(id);
        (id.sequence != expected)
            .then(|| format!("transfer {id} is there without number {expected} of its worker"))
    });
    list(wrong, problems);
}

/// Lists balances that violate AUDIT-5 or AUDIT-6.
fn wrong_balances(accounts: u32, found: &Found<'_>, problems: &mut Vec<String>) {
    let mut expected = vec![INITIAL_BALANCE; accounts as usize];
    for Transfer { id, from, to, amount } in found.transfers {
        let (from, to) = (*from as usize, *to as usize);
        if from.max(to) >= expected.len() {
            problems.push(format!("transfer {id} names an account that does not exist"));
            return;
        }
        expected[from] -= i64::from(*amount);
        expected[to] += i64::from(*amount);
    }
    if expected.len() != found.balances.len() {
        problems.push(format!("{} accounts where there were {accounts}", found.balances.len()));
    }
    let wrong =
        expected.iter().zip(found.balances).zip(0..).filter(|((expected, found), _)| expected != found);
    list(
        wrong.map(|((expected, found), account)| {
            format!("account {} has {found}, and its transfers make {expected}", account_key(account))
        }),
        problems,
    );
    let (total, initial) = (found.balances.iter().sum::<i64>(), i64::from(accounts) * INITIAL_BALANCE);
    if total != initial {
        problems.push(format!("the total is {total} and was {initial}"));
    }
}

/// Adds the first few problems, and the number of the others.
fn list(mut wrong: impl Iterator<Item = String>, problems: &mut Vec<String>) {
    problems.extend(wrong.by_ref().take(LISTED));
    let more = wrong.count();
    if more > 0 {
        problems.push(format!("… and {more} more of that kind"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(run: u16, worker: u16, sequence: u32, (from, to): (u32, u32), amount: u32) -> Transfer {
        Transfer { id: TransferId { run, worker, sequence }, from, to, amount }
    }

    /// Returns a history: run 1 was audited, and run 2 was killed after its worker 0 got the acknowledgment
    /// of its first transfer.
    fn history() -> Vec<Transfer> {
        vec![
            transfer(1, 0, 0, (0, 1), 10),
            transfer(2, 0, 0, (1, 2), 20),
            transfer(2, 0, 1, (2, 0), 30),
            transfer(2, 1, 0, (0, 2), 40),
        ]
    }

    fn balances() -> Vec<i64> {
        vec![1000 - 10 + 30 - 40, 1000 + 10 - 20, 1000 + 20 - 30 + 40]
    }

    fn problems(transfers: &[Transfer], balances: &[i64]) -> String {
        let all = history();
        let expected = Expected { accounts: 3, seen_before: &all[..1], acknowledged: &all[1..2], runs: &[2] };
        let audit = audit(&expected, &Found { transfers, balances });
        audit.problems.join("; ")
    }

    #[test]
    fn a_sound_bank_passes_and_counts_unacknowledged_transfers() {
        let all = history();
        let expected = Expected { accounts: 3, seen_before: &all[..1], acknowledged: &all[1..2], runs: &[2] };
        let audit = audit(&expected, &Found { transfers: &all, balances: &balances() });
        assert_eq!(audit.problems, Vec::<String>::new());
        assert_eq!(audit.untold, 2);
    }

    #[test]
    fn a_lost_acknowledged_transfer_is_found() {
        let found = problems(&history()[..1], &[990, 1010, 1000]);
        assert_eq!(found, "transfer 00002-00000-0000000000 was acknowledged as durable and is lost");
    }

    #[test]
    fn an_acknowledged_transfer_with_another_amount_is_found() {
        let mut all = history();
        all[1].amount = 21;
        assert!(
            problems(&all, &[980, 989, 1031]).contains("and was"),
            "{}",
            problems(&all, &[980, 989, 1031])
        );
    }

    #[test]
    fn a_lost_transfer_of_an_earlier_round_is_found() {
        let all = history();
        assert!(
            problems(&all[1..], &[990, 980, 1030]).contains("was there after the last crash and is gone")
        );
    }

    #[test]
    fn a_transfer_that_came_from_nowhere_is_found() {
        let mut all = history();
        all.insert(1, transfer(1, 0, 1, (0, 1), 0));
        assert!(problems(&all, &balances()).contains("2 transfers of earlier rounds, where there were 1"));
    }

    #[test]
    fn a_hole_in_the_history_of_a_worker_is_found() {
        let mut all = history();
        all[3] = transfer(2, 1, 1, (0, 2), 40);
        assert_eq!(
            problems(&all, &balances()),
            "transfer 00002-00001-0000000001 is there without number 0 of its worker"
        );
    }

    #[test]
    fn half_a_transfer_is_found() {
        let mut half = balances();
        half[2] -= 40;
        let found = problems(&history(), &half);
        assert!(found.contains("account 00000002 has 990, and its transfers make 1030"), "{found}");
        assert!(found.contains("the total is 2960 and was 3000"), "{found}");
    }

    #[test]
    fn a_missing_account_is_found() {
        assert!(problems(&history(), &balances()[..2]).contains("2 accounts where there were 3"));
    }
}
