//! The order of each list's versions, the version that each read returned, and reads that fit no order.
//!
//! 1. The writer of each value is determined, and whether its write was the writer's last append to that
//!    list.
//! 2. The transactions that count are the committed ones, and those of unknown end with writes that a
//!    counting transaction has read.
//! 3. The longest list that was read from a key gives the order of its versions. Version 0 is the empty list,
//!    and version n ends with the n-th value. Every other list read from that key must be a prefix of the
//!    longest one.
//! 4. The version that a transaction read is the list without its own appends at the end.
//!
//! Committed appends that no read returned follow all versions that were read, in an unknown order.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::history::{History, Op, Status};
use crate::report::{Anomaly, Kind};

/// The writer of a value, and the kind of its write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer {
    pub(crate) txn: usize,
    /// `true` if the transaction appended nothing to this list afterward.
    pub(crate) is_final: bool,
    pub(crate) removes: bool,
}

/// The versions of one list.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    pub(crate) order: Vec<u64>,
    /// Values of counting transactions that no read returned.
    pub(crate) unseen: Vec<u64>,
}

/// A read of version `version` of a list by a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReadVersion {
    pub(crate) txn: usize,
    pub(crate) key: u64,
    pub(crate) version: usize,
    /// `true` if a range read returned the list.
    pub(crate) in_range: bool,
}

/// A key that a range read did not return, and that the transaction had not changed itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Absent {
    pub(crate) txn: usize,
    pub(crate) key: u64,
}

/// All observations about versions; see the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Observations {
    pub(crate) counts: Vec<bool>,
    pub(crate) writers: HashMap<(u64, u64), Writer>,
    pub(crate) versions: BTreeMap<u64, Versions>,
    pub(crate) seen: Vec<ReadVersion>,
    pub(crate) absent: Vec<Absent>,
    pub(crate) anomalies: Vec<Anomaly>,
}

pub(crate) fn observe(history: &History) -> Observations {
    let mut all = Observations { writers: writers(history), ..Observations::default() };
    all.counts = counts(history, &all.writers);
    all.order_versions(history);
    for txn in all.counted() {
        all.observe_transaction(history, txn);
    }
    all.seen.sort_unstable();
    all.seen.dedup();
    all.absent.sort_unstable();
    all.absent.dedup();
    all.find_lost_updates(history);
    all
}

/// Returns the writer of each value (step 1).
fn writers(history: &History) -> HashMap<(u64, u64), Writer> {
    let mut writers = HashMap::new();
    for (txn, t) in history.transactions.iter().enumerate() {
        let mut last: HashMap<u64, u64> = HashMap::new();
        for op in &t.ops {
            let (key, value, removes) = match *op {
                Op::Append { key, value } => (key, value, false),
                Op::Remove { key, value } => (key, value, true),
                Op::Read { .. } | Op::Scan { .. } => continue,
            };
            let before = writers.insert((key, value), Writer { txn, is_final: true, removes });
            assert!(before.is_none(), "value {value} was written twice to k{key}: values have to be unique");
            if let Some(earlier) = last.insert(key, value) {
                writers.get_mut(&(key, earlier)).expect("inserted above").is_final = false;
            }
        }
    }
    writers
}

/// Returns every list that an operation has read.
fn lists(op: &Op) -> Box<dyn Iterator<Item = (u64, &[u64])> + '_> {
    match op {
        Op::Read { key, list } => Box::new(std::iter::once((*key, list.as_slice()))),
        Op::Scan { rows, .. } => Box::new(rows.iter().map(|(key, list)| (*key, list.as_slice()))),
        Op::Append { .. } | Op::Remove { .. } => Box::new(std::iter::empty()),
    }
}

/// Returns for each transaction whether it counts (step 2).
fn counts(history: &History, writers: &HashMap<(u64, u64), Writer>) -> Vec<bool> {
    let all = &history.transactions;
    let mut counts: Vec<bool> = all.iter().map(|t| t.status == Status::Committed).collect();
    let mut pending: Vec<usize> = (0..all.len()).filter(|&t| counts[t]).collect();
    while let Some(reader) = pending.pop() {
        for (key, list) in all[reader].ops.iter().flat_map(lists) {
            for writer in list.iter().filter_map(|&value| writers.get(&(key, value))) {
                if all[writer.txn].status == Status::Unknown && !counts[writer.txn] {
                    counts[writer.txn] = true;
                    pending.push(writer.txn);
                }
            }
        }
    }
    counts
}

/// The transaction's own changes of a list so far.
#[derive(Default)]
struct Own {
    values: Vec<u64>,
    is_removed: bool,
}

impl Observations {
    fn counted(&self) -> Vec<usize> {
        (0..self.counts.len()).filter(|&txn| self.counts[txn]).collect()
    }

    /// Orders the versions of each key (step 3).
    fn order_versions(&mut self, history: &History) {
        let counted = self.counted();
        let mut longest: BTreeMap<u64, (usize, &[u64])> = BTreeMap::new();
        for &txn in &counted {
            for (key, list) in history.transactions[txn].ops.iter().flat_map(lists) {
                let best = longest.entry(key).or_insert((txn, list));
                if list.len() > best.1.len() {
                    *best = (txn, list);
                }
                if let Some(value) = first_repeated(list) {
                    self.tell(history, Kind::Garbage, &[txn], format!("T{txn} read {value} twice in k{key}"));
                }
            }
        }
        for &txn in &counted {
            for (key, list) in history.transactions[txn].ops.iter().flat_map(lists) {
                let (other, order) = longest[&key];
                if !order.starts_with(list) {
                    let text = format!("T{txn} read k{key} as {list:?}, but T{other} read it as {order:?}");
                    self.tell(history, Kind::IncompatibleOrder, &[txn, other], text);
                }
            }
        }
        for (key, (_, order)) in longest {
            self.versions.entry(key).or_default().order = order.to_vec();
        }
        self.note_unseen();
    }

    fn note_unseen(&mut self) {
        let mut written: Vec<_> = self.writers.iter().map(|(&name, &writer)| (name, writer)).collect();
        written.sort_unstable_by_key(|w| w.0);
        let seen: HashSet<(u64, u64)> = self
            .versions
            .iter()
            .flat_map(|(&key, v)| v.order.iter().map(move |&value| (key, value)))
            .collect();
        for ((key, value), writer) in written {
            if self.counts[writer.txn] && !seen.contains(&(key, value)) {
                self.versions.entry(key).or_default().unseen.push(value);
            }
        }
    }

    fn observe_transaction(&mut self, history: &History, txn: usize) {
        let mut own: HashMap<u64, Own> = HashMap::new();
        for op in &history.transactions[txn].ops {
            match op {
                Op::Append { key, value } | Op::Remove { key, value } => {
                    let own = own.entry(*key).or_default();
                    own.values.push(*value);
                    own.is_removed = matches!(op, Op::Remove { .. });
                }
                Op::Read { key, list } => self.observe_list(history, txn, *key, list, own.get(key), false),
                Op::Scan { from, to, rows } => {
                    for (key, list) in rows {
                        self.observe_row(history, txn, (*from, *to), *key, list);
                        self.observe_list(history, txn, *key, list, own.get(key), true);
                    }
                    let shown: HashSet<u64> = rows.iter().map(|row| row.0).collect();
                    self.observe_absent(history, txn, *from..*to, &shown, &own);
                }
            }
        }
    }

    /// Records the version of a list that a transaction has read (step 4).
    fn observe_list(
        &mut self,
        history: &History,
        txn: usize,
        key: u64,
        list: &[u64],
        own: Option<&Own>,
        in_range: bool,
    ) {
        let own = own.map_or(&[][..], |o| &o.values);
        let Some(theirs) = list.strip_suffix(own) else {
            let text = format!("T{txn} read k{key} as {list:?}, though it had appended {own:?} itself");
            return self.tell(history, Kind::Internal, &[txn], text);
        };
        for &value in theirs {
            match self.writers.get(&(key, value)) {
                None => {
                    self.tell(
                        history,
                        Kind::Garbage,
                        &[txn],
                        format!("T{txn} read {value} in k{key}, but no transaction wrote that value"),
                    );
                }
                Some(w) if history.transactions[w.txn].status == Status::Aborted => {
                    let text =
                        format!("T{txn} read {value} in k{key}, which T{} wrote and T{0} aborted", w.txn);
                    self.tell(history, Kind::G1a, &[txn, w.txn], text);
                }
                Some(_) => {}
            }
        }
        if let Some(&value) = theirs.last()
            && let Some(&w) = self.writers.get(&(key, value))
            && w.txn != txn
            && !w.is_final
        {
            let text = format!("T{txn} read k{key} up to {value}, but T{} appended more to it", w.txn);
            self.tell(history, Kind::G1b, &[txn, w.txn], text);
        }
        if self.versions[&key].order.starts_with(theirs) {
            self.seen.push(ReadVersion { txn, key, version: theirs.len(), in_range });
        }
    }

    /// Checks that a row of a range read belongs to the range and exists.
    fn observe_row(&mut self, history: &History, txn: usize, (from, to): (u64, u64), key: u64, list: &[u64]) {
        let last = list.last().and_then(|&value| self.writers.get(&(key, value)));
        let wrong = if !(from..to).contains(&key) {
            "outside the range"
        } else if list.is_empty() {
            "with an empty list"
        } else if last.is_some_and(|w| w.removes) {
            "though it is removed"
        } else {
            return;
        };
        self.tell(history, Kind::Garbage, &[txn], format!("T{txn} met k{key} in k{from}..k{to} {wrong}"));
    }

    fn observe_absent(
        &mut self,
        history: &History,
        txn: usize,
        range: std::ops::Range<u64>,
        shown: &HashSet<u64>,
        own: &HashMap<u64, Own>,
    ) {
        if range.start >= range.end {
            return;
        }
        let keys: Vec<u64> = self.versions.range(range.clone()).map(|(&key, _)| key).collect();
        for key in keys.into_iter().filter(|key| !shown.contains(key)) {
            match own.get(&key) {
                None => self.absent.push(Absent { txn, key }),
                Some(own) if own.is_removed => {}
                Some(_) => {
                    let text =
                        format!("T{txn} did not meet k{key} in a range, though it had appended to it itself");
                    self.tell(history, Kind::Internal, &[txn], text);
                }
            }
        }
    }

    fn find_lost_updates(&mut self, history: &History) {
        let appends: HashSet<(usize, u64)> = self.writers.iter().map(|(name, w)| (w.txn, name.0)).collect();
        let mut readers: BTreeMap<(u64, usize), Vec<usize>> = BTreeMap::new();
        for seen in self.seen.iter().filter(|s| appends.contains(&(s.txn, s.key))) {
            let same = readers.entry((seen.key, seen.version)).or_default();
            if same.last() != Some(&seen.txn) {
                same.push(seen.txn);
            }
        }
        for ((key, version), mut txns) in readers {
            txns.dedup();
            if let [a, b, ..] = txns[..] {
                let list = &self.versions[&key].order[..version];
                let text = format!("T{a} and T{b} both read k{key} as {list:?}, and both appended to it");
                self.tell(history, Kind::LostUpdate, &[a, b], text);
            }
        }
    }

    fn tell(&mut self, history: &History, kind: Kind, txns: &[usize], what: String) {
        let mut txns = txns.to_vec();
        txns.dedup();
        let mut text = format!("{}: {what}", kind.name());
        for &n in &txns {
            text.push_str(&format!("\n  T{n} = {}", history.transactions[n]));
        }
        // One anomaly of each kind and set of transactions is enough.
        if !self.anomalies.iter().any(|a| a.kind == kind && a.transactions == txns) {
            self.anomalies.push(Anomaly { kind, is_realtime: false, transactions: txns, text });
        }
    }
}

fn first_repeated(list: &[u64]) -> Option<u64> {
    let mut seen = HashSet::new();
    list.iter().copied().find(|&value| !seen.insert(value))
}
