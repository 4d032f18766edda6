//! Tests of the checker: each known anomaly is found, named and explained, and the level below permits it.

use azekura_history::{History, Kind, Level, Op, Status, Transaction, check};

/// Returns a history of transactions that all overlap in time.
fn concurrent(all: &[(Status, Vec<Op>)]) -> History {
    let transactions = all
        .iter()
        .enumerate()
        .map(|(n, (status, ops))| Transaction {
            began: n as u64,
            ended: (*status != Status::Unknown).then_some((all.len() + n) as u64),
            status: *status,
            ops: ops.clone(),
        })
        .collect();
    History { transactions }
}

fn committed(all: &[Vec<Op>]) -> History {
    concurrent(&all.iter().map(|ops| (Status::Committed, ops.clone())).collect::<Vec<_>>())
}

/// Returns a history of committed transactions that run one after another.
fn one_by_one(all: &[Vec<Op>]) -> History {
    let mut history = committed(all);
    for (n, t) in history.transactions.iter_mut().enumerate() {
        (t.began, t.ended) = (2 * n as u64, Some(2 * n as u64 + 1));
    }
    history
}

fn append(key: u64, value: u64) -> Op {
    Op::Append { key, value }
}

fn remove(key: u64, value: u64) -> Op {
    Op::Remove { key, value }
}

fn read(key: u64, list: &[u64]) -> Op {
    Op::Read { key, list: list.to_vec() }
}

fn scan(from: u64, to: u64, rows: &[(u64, &[u64])]) -> Op {
    Op::Scan { from, to, rows: rows.iter().map(|&(key, list)| (key, list.to_vec())).collect() }
}

/// Asserts that the checker reports an anomaly of `kind` with exactly these transactions, at the level of the
/// anomaly and above only, and that its text names them.
#[track_caller]
fn found(history: &History, kind: Kind, transactions: &[usize]) {
    let report = check(history, Level::StrictSerializable);
    let anomaly =
        report.anomalies().iter().find(|a| a.kind == kind).unwrap_or_else(|| panic!("no {kind:?}: {report}"));
    let mut involved = anomaly.transactions.clone();
    involved.sort_unstable();
    assert_eq!(involved, transactions, "{report}");
    assert!(anomaly.text.contains(kind.name()), "{report}");
    for n in transactions {
        assert!(anomaly.text.contains(&format!("T{n} = {{")), "{report}");
    }
    for level in [Level::ReadUncommitted, Level::ReadCommitted, Level::Serializable] {
        assert_eq!(check(history, level).has(kind), level >= anomaly.forbidden_from(), "{level:?}");
    }
}

#[track_caller]
fn clean(history: &History, level: Level) {
    check(history, level).assert_clean();
}

#[test]
fn g0_a_cycle_of_overwrites() {
    let history = committed(&[
        vec![append(1, 10), append(2, 11)],
        vec![append(1, 20), append(2, 21)],
        vec![read(1, &[10, 20]), read(2, &[21, 11])],
    ]);
    found(&history, Kind::G0, &[0, 1]);
}

#[test]
fn g1a_a_read_of_an_aborted_write() {
    let history = concurrent(&[
        (Status::Aborted, vec![append(1, 10)]),
        (Status::Committed, vec![read(1, &[10])]),
        (Status::Aborted, vec![read(1, &[10]), read(1, &[99])]),
    ]);
    found(&history, Kind::G1a, &[0, 1]);
}

#[test]
fn g1b_a_read_of_an_intermediate_write() {
    let history =
        committed(&[vec![append(1, 10), append(1, 11)], vec![read(1, &[10])], vec![read(1, &[10, 11])]]);
    found(&history, Kind::G1b, &[0, 1]);
}

#[test]
fn g1c_a_cycle_of_information_flow() {
    let history = committed(&[vec![append(1, 10), read(2, &[20])], vec![append(2, 20), read(1, &[10])]]);
    found(&history, Kind::G1c, &[0, 1]);
}

#[test]
fn g_single_read_skew() {
    // T1 reads only one of T0's two writes.
    let history = committed(&[
        vec![append(1, 10), append(2, 11)],
        vec![read(1, &[10]), read(2, &[])],
        vec![read(1, &[10]), read(2, &[11])],
    ]);
    found(&history, Kind::GSingle, &[0, 1]);
}

#[test]
fn g2_item_write_skew() {
    let history = committed(&[
        vec![read(1, &[]), read(2, &[]), append(1, 10)],
        vec![read(1, &[]), read(2, &[]), append(2, 20)],
        vec![read(1, &[10]), read(2, &[20])],
    ]);
    found(&history, Kind::G2Item, &[0, 1]);
    let report = check(&history, Level::Serializable);
    assert_eq!(report.anomalies().len(), 1, "nothing worse: {report}");
}

#[test]
fn g2_phantoms_of_two_inserts() {
    // Each transaction read the empty range and then inserted a key into it.
    let history = committed(&[
        vec![scan(0, 10, &[]), append(3, 30)],
        vec![scan(0, 10, &[]), append(5, 50)],
        vec![read(3, &[30]), read(5, &[50])],
    ]);
    found(&history, Kind::Phantom, &[0, 1]);
    assert_eq!(check(&history, Level::Serializable).anomalies().len(), 1);
}

#[test]
fn g2_a_phantom_beside_a_key_that_is_there() {
    // T0 reads the range twice, and T1 inserts a key in between.
    let history = committed(&[
        vec![scan(0, 10, &[(1, &[9])]), scan(0, 10, &[(1, &[9]), (2, &[20])])],
        vec![append(2, 20)],
        vec![append(1, 9)],
    ]);
    found(&history, Kind::Phantom, &[0, 1]);
}

#[test]
fn g2_a_phantom_of_a_removed_key() {
    // T2 does not see k1 any more, but not yet k2; T1 removed k1 and inserted k2 in one transaction.
    let history = one_by_one(&[
        vec![append(1, 10)],
        vec![remove(1, 11), append(2, 20)],
        vec![scan(0, 10, &[])],
        vec![read(1, &[10, 11]), read(2, &[20])],
    ]);
    found(&history, Kind::Phantom, &[1, 2]);
}

#[test]
fn a_reinserted_key_is_ordered_by_other_reads() {
    // k1 is inserted and removed twice. T5 read T2's write to k2, so its "absent" means T3's removal or a
    // later one, or T1's.
    let lives = |reader: Vec<Op>| {
        committed(&[
            vec![append(1, 10)],
            vec![read(1, &[10]), remove(1, 11)],
            vec![read(1, &[10, 11]), append(1, 12), append(2, 20)],
            vec![read(2, &[20]), append(3, 30), remove(1, 13)],
            reader,
            vec![read(1, &[10, 11, 12, 13]), read(2, &[20]), read(3, &[30])],
        ])
    };
    clean(&lives(vec![scan(0, 2, &[]), read(2, &[20]), read(3, &[30])]), Level::Serializable);
    clean(&lives(vec![scan(0, 2, &[]), read(2, &[])]), Level::Serializable);
    // The reader follows T2, which inserted k1, and precedes T3, which removed it, so it must have seen k1.
    found(&lives(vec![scan(0, 2, &[]), read(2, &[20]), read(3, &[])]), Kind::Phantom, &[2, 4]);
}

#[test]
fn lost_update() {
    let history = committed(&[
        vec![read(1, &[]), append(1, 10)],
        vec![read(1, &[]), append(1, 20)],
        vec![read(1, &[10, 20])],
    ]);
    found(&history, Kind::LostUpdate, &[0, 1]);
    assert!(check(&history, Level::Serializable).has(Kind::GSingle), "its circle is found as well");
}

#[test]
fn a_lost_append_shows_as_reads_that_disagree() {
    let history =
        committed(&[vec![append(1, 10)], vec![append(1, 20)], vec![read(1, &[10])], vec![read(1, &[20])]]);
    found(&history, Kind::IncompatibleOrder, &[2, 3]);
}

#[test]
fn an_acknowledged_append_that_no_read_shows_is_reported() {
    let history = one_by_one(&[vec![append(1, 10)], vec![append(1, 11)], vec![read(1, &[10])]]);
    clean(&history, Level::Serializable);
    let report = check(&history, Level::StrictSerializable);
    assert!(report.anomalies()[0].is_realtime && report.has(Kind::GSingle), "{report}");
    assert_eq!(report.anomalies()[0].transactions, [2, 1], "{report}");
    assert!(report.to_string().contains("T1 -time-> T2"), "{report}");
}

#[test]
fn a_stale_read_is_only_wrong_in_time() {
    for reader in [read(1, &[]), scan(0, 5, &[])] {
        let history = one_by_one(&[vec![append(1, 10)], vec![reader], vec![read(1, &[10])]]);
        clean(&history, Level::Serializable);
        let report = check(&history, Level::StrictSerializable);
        assert!(report.anomalies().iter().any(|a| a.is_realtime && a.transactions.len() == 2), "{report}");
    }
}

#[test]
fn a_stale_range_over_a_key_that_came_back_is_wrong_in_time() {
    let history = one_by_one(&[
        vec![append(1, 10)],
        vec![remove(1, 11)],
        vec![append(1, 12)],
        vec![scan(0, 5, &[])],
        vec![read(1, &[10, 11, 12])],
    ]);
    clean(&history, Level::Serializable);
    assert!(!check(&history, Level::StrictSerializable).is_clean());
}

#[test]
fn absent_rows_of_two_range_reads_make_one_cycle() {
    // T2 does not see k1, so it follows T1, which removed k1. T1 does not see k5, so it follows T3, which
    // removed k5. But T2 did not see T3's append to k6.
    let history = committed(&[
        vec![append(1, 10), append(5, 50), append(9, 90)],
        vec![read(9, &[90]), remove(1, 11), scan(5, 6, &[])],
        vec![read(9, &[90]), scan(1, 2, &[]), read(6, &[])],
        vec![read(9, &[90]), remove(5, 51), append(6, 60)],
        vec![read(1, &[10, 11]), read(5, &[50, 51]), read(6, &[60]), read(9, &[90])],
    ]);
    found(&history, Kind::Phantom, &[1, 2, 3]);
}

#[test]
fn a_removal_that_no_read_shows_explains_an_absence() {
    let history =
        one_by_one(&[vec![append(1, 10)], vec![read(1, &[10]), remove(1, 11)], vec![scan(0, 5, &[])]]);
    clean(&history, Level::StrictSerializable);
}

#[test]
fn an_append_that_no_read_shows_is_ordered_after_the_others() {
    let history = committed(&[
        vec![append(1, 10), read(2, &[20])],
        vec![append(1, 11), append(2, 20)],
        vec![read(1, &[10])],
    ]);
    found(&history, Kind::G1c, &[0, 1]);
}

#[test]
fn order_in_time_reaches_over_ends_in_between() {
    // T0 and T1 overlap, and T0 ends first. T2 begins after both, but does not see T0's write.
    let mut history =
        committed(&[vec![append(1, 10)], vec![append(2, 20)], vec![read(1, &[])], vec![read(1, &[10])]]);
    for (t, times) in history.transactions.iter_mut().zip([(0, 2), (1, 3), (4, 5), (6, 7)]) {
        (t.began, t.ended) = (times.0, Some(times.1));
    }
    clean(&history, Level::Serializable);
    let report = check(&history, Level::StrictSerializable);
    assert_eq!(report.anomalies().len(), 1, "{report}");
    assert_eq!(report.anomalies()[0].transactions, [2, 0], "{report}");
}

#[test]
fn an_unknown_outcome_counts_as_committed_after_a_read_shows_it() {
    let seen = concurrent(&[
        (Status::Unknown, vec![read(2, &[]), append(1, 10)]),
        (Status::Committed, vec![read(1, &[]), append(2, 20)]),
        (Status::Committed, vec![read(1, &[10])]),
        (Status::Committed, vec![read(2, &[20])]),
    ]);
    found(&seen, Kind::G2Item, &[0, 1]);
    let mut unseen = seen;
    unseen.transactions.remove(2);
    clean(&unseen, Level::StrictSerializable);
}

#[test]
fn a_transaction_sees_its_own_writes() {
    for wrong in [
        vec![append(1, 10), read(1, &[])],
        vec![append(1, 10), scan(0, 5, &[])],
        vec![append(1, 10), scan(0, 5, &[(1, &[])])],
    ] {
        found(&committed(&[wrong]), Kind::Internal, &[0]);
    }
    for right in [
        vec![append(1, 10), read(1, &[10]), append(1, 11), read(1, &[10, 11])],
        vec![append(1, 10), scan(0, 5, &[(1, &[10])]), remove(1, 11), scan(0, 5, &[]), read(1, &[10, 11])],
    ] {
        clean(&committed(&[right]), Level::StrictSerializable);
    }
}

#[test]
fn an_invalid_history_is_reported() {
    for wrong in [
        vec![append(1, 10), read(1, &[77, 10])],
        vec![append(1, 10), read(1, &[10, 10])],
        vec![append(1, 10), remove(1, 11), scan(0, 5, &[(1, &[10, 11])])],
        vec![append(7, 10), scan(0, 5, &[(7, &[10])])],
    ] {
        found(&committed(&[wrong]), Kind::Garbage, &[0]);
    }
}

#[test]
#[should_panic(expected = "value 10 was written twice to k1")]
fn a_history_with_equal_values_is_refused() {
    let _ = check(&committed(&[vec![append(1, 10)], vec![append(1, 10)]]), Level::Serializable);
}

#[test]
fn the_shortest_cycle_is_reported() {
    // A cycle of four transactions, which contains a cycle of two.
    let history = committed(&[
        vec![read(1, &[]), append(4, 40)],
        vec![read(2, &[]), append(1, 10)],
        vec![read(3, &[]), read(1, &[]), append(2, 20)],
        vec![read(4, &[]), append(3, 30)],
        vec![read(1, &[10]), read(2, &[20]), read(3, &[30]), read(4, &[40])],
    ]);
    found(&history, Kind::G2Item, &[1, 2]);
    let text = check(&history, Level::Serializable).to_string();
    assert!(text.contains("T1 -rw-> T2: T1 read k2 up to nothing and not 20, which T2 wrote"), "{text}");
    assert!(!text.contains("T3 ="), "{text}");
}
