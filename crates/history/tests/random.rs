//! Random histories: the checker reports no anomaly in serial ones, and reports one in a history if and only
//! if no serial order explains it.

use std::collections::BTreeMap;

use azekura_history::{History, Kind, Level, Op, Status, Transaction, check};
use proptest::prelude::*;

/// A planned step of a transaction; values and results are set when the step runs.
#[derive(Clone, Debug)]
enum Plan {
    Append(u64),
    Remove(u64),
    /// A read of the store's state before a number of operations (second field).
    Read(u64, usize),
    /// A scan of the store's state before a number of operations (third field).
    Scan(u64, u64, usize),
}

fn plan(keys: u64, removes: bool, stale: bool) -> impl Strategy<Value = Plan> {
    let key = 0..keys;
    let age = if stale { prop_oneof![9 => 0usize..1, 1 => 1usize..8].boxed() } else { Just(0).boxed() };
    prop_oneof![
        4 => key.clone().prop_map(Plan::Append),
        if removes { 2 } else { 0 } => key.clone().prop_map(Plan::Remove),
        4 => (key.clone(), age.clone()).prop_map(|(key, age)| Plan::Read(key, age)),
        2 => (key, 1..=keys, age).prop_map(|(from, len, age)| Plan::Scan(from, from + len, age)),
    ]
}

/// A store without isolation: every list, and whether its key exists.
#[derive(Clone, Default)]
struct Store {
    lists: BTreeMap<u64, (Vec<u64>, bool)>,
    /// The state of the store before each operation.
    past: Vec<Store>,
}

impl Store {
    fn list(&self, key: u64) -> Vec<u64> {
        self.lists.get(&key).map(|l| l.0.clone()).unwrap_or_default()
    }

    fn rows(&self, from: u64, to: u64) -> Vec<(u64, Vec<u64>)> {
        self.lists.range(from..to).filter(|(_, l)| l.1).map(|(&key, l)| (key, l.0.clone())).collect()
    }

    fn write(&mut self, key: u64, value: u64, is_there: bool) {
        let list = self.lists.entry(key).or_default();
        list.0.push(value);
        list.1 = is_there;
    }

    fn run(&mut self, plan: &Plan) -> Op {
        self.past.push(Self { lists: self.lists.clone(), past: Vec::new() });
        let value = self.past.len() as u64;
        let then = |age: usize| &self.past[self.past.len() - 1 - age.min(self.past.len() - 1)];
        match *plan {
            Plan::Append(key) => {
                self.write(key, value, true);
                Op::Append { key, value }
            }
            Plan::Remove(key) => {
                self.write(key, value, false);
                Op::Remove { key, value }
            }
            Plan::Read(key, age) => Op::Read { key, list: then(age).list(key) },
            Plan::Scan(from, to, age) => Op::Scan { from, to, rows: then(age).rows(from, to) },
        }
    }

    /// Repeats the operation; returns `true` if its result is the same.
    fn replay(&mut self, op: &Op) -> bool {
        match op {
            Op::Append { key, value } => self.write(*key, *value, true),
            Op::Remove { key, value } => self.write(*key, *value, false),
            Op::Read { key, list } => return self.list(*key) == *list,
            Op::Scan { from, to, rows } => return self.rows(*from, *to) == *rows,
        }
        true
    }
}

/// Runs the plans on one store, one operation of some transaction at a time. At the end, another transaction
/// reads every key.
fn interleave(plans: &[Vec<Plan>], order: &[usize], keys: u64) -> History {
    let (mut store, mut clock) = (Store::default(), 0);
    let mut now = || {
        clock += 1;
        clock
    };
    let mut running: Vec<Transaction> = plans
        .iter()
        .map(|_| Transaction { began: 0, ended: None, status: Status::Committed, ops: Vec::new() })
        .collect();
    let turns = order.iter().copied().chain((0..plans.len()).flat_map(|t| vec![t; plans[t].len()]));
    for turn in turns {
        let (t, plan) = (&mut running[turn % plans.len()], &plans[turn % plans.len()]);
        if t.ops.len() < plan.len() {
            if t.ops.is_empty() {
                t.began = now();
            }
            t.ops.push(store.run(&plan[t.ops.len()]));
            if t.ops.len() == plan.len() {
                t.ended = Some(now());
            }
        }
    }
    let ops = (0..keys).map(|key| store.run(&Plan::Read(key, 0))).collect();
    running.push(Transaction { began: now(), ended: Some(now()), status: Status::Committed, ops });
    History { transactions: running }
}

/// Returns `true` if there is a serial order of the transactions, with the final reader last. Tries every
/// order.
fn has_serial_order(history: &History, in_time: bool) -> bool {
    fn extend(history: &History, in_time: bool, done: &mut Vec<usize>, store: &Store) -> bool {
        let all = &history.transactions;
        let readers_turn = done.len() + 1 == all.len();
        if done.len() == all.len() {
            return true;
        }
        for next in (0..all.len()).filter(|&n| (n + 1 == all.len()) == readers_turn) {
            let is_late = |n: usize| all[n].ended.is_some_and(|ended| ended < all[next].began);
            if done.contains(&next) || in_time && (0..all.len()).any(|n| !done.contains(&n) && is_late(n)) {
                continue;
            }
            let mut store = store.clone();
            if all[next].ops.iter().all(|op| store.replay(op)) {
                done.push(next);
                if extend(history, in_time, done, &store) {
                    return true;
                }
                done.pop();
            }
        }
        false
    }
    extend(history, in_time, &mut Vec::new(), &Store::default())
}

fn plans(removes: bool, stale: bool, txns: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Vec<Plan>>> {
    prop::collection::vec(prop::collection::vec(plan(4, removes, stale), 1..5), txns)
}

fn order() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0usize..8, 0..24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn serial_histories_are_never_refused(plans in plans(true, false, 1..40)) {
        let history = interleave(&plans, &[], 4);
        let report = check(&history, Level::StrictSerializable);
        prop_assert!(report.is_clean(), "{}", report);
    }

    #[test]
    fn without_removals_exactly_the_wrong_histories_are_refused(
        plans in plans(false, true, 2..6),
        order in order(),
    ) {
        let history = interleave(&plans, &order, 4);
        for (level, in_time) in [(Level::Serializable, false), (Level::StrictSerializable, true)] {
            let report = check(&history, level);
            prop_assert_eq!(report.is_clean(), has_serial_order(&history, in_time), "{:?} {}", level, report);
        }
    }

    #[test]
    fn with_removals_no_right_history_is_refused(plans in plans(true, true, 2..6), order in order()) {
        let history = interleave(&plans, &order, 4);
        for (level, in_time) in [(Level::Serializable, false), (Level::StrictSerializable, true)] {
            let report = check(&history, level);
            prop_assert!(report.is_clean() || !has_serial_order(&history, in_time), "{:?} {}", level, report);
        }
    }
}

#[test]
fn with_removals_nearly_every_wrong_history_is_refused() {
    // Some non-serializable histories are not detected: the version that a range read saw of a removed key
    // may remain unknown. The seeds are fixed, so the count is fixed.
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut wrong, mut found) = (0, 0);
    for _ in 0..3000 {
        let plans = plans(true, true, 2..6).new_tree(&mut runner).expect("a plan").current();
        let order = order().new_tree(&mut runner).expect("an order").current();
        let history = interleave(&plans, &order, 4);
        if !has_serial_order(&history, true) {
            wrong += 1;
            found += usize::from(!check(&history, Level::StrictSerializable).is_clean());
        }
    }
    println!("{found} of {wrong} found");
    assert!(wrong > 500 && found * 100 >= wrong * 99, "{found} of {wrong}");
}

/// Without gap locks, range reads miss the keys that other transactions insert: the checker reports phantoms.
#[test]
fn a_store_without_gap_locks_shows_phantoms_only() {
    let plan = |own: u64| vec![Plan::Scan(0, 10, 0), Plan::Append(own)];
    let history = interleave(&[plan(1), plan(2), plan(3)], &[0, 1, 2, 0, 1, 2], 4);
    let report = check(&history, Level::StrictSerializable);
    assert!(
        report.anomalies().iter().all(|a| a.kind == Kind::Phantom) && report.has(Kind::Phantom),
        "{report}"
    );
}
