//! Observations: transactions and their operations, and their text form.

use std::fmt;

/// One operation as its client saw it. Values are unique in the whole history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Appended `value` to the list of `key`, which exists from now on if it did not.
    Append {
        /// The list.
        key: u64,
        /// The appended value.
        value: u64,
    },
    /// Removed `key` from what range reads see, and appended the tombstone `value` to its list.
    Remove {
        /// The list.
        key: u64,
        /// The tombstone.
        value: u64,
    },
    /// Read the whole list of `key`, tombstones included; empty if it was never appended to.
    Read {
        /// The list.
        key: u64,
        /// Its values, oldest first.
        list: Vec<u64>,
    },
    /// Read every key of `from..to` that exists.
    Scan {
        /// First key that could be seen.
        from: u64,
        /// First key beyond.
        to: u64,
        /// The keys seen, and their lists.
        rows: Vec<(u64, Vec<u64>)>,
    },
}

/// The end of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The client was told that it committed.
    Committed,
    /// The client was told that it did not, or never asked.
    Aborted,
    /// The client does not know: a crash, a lost reply. The transaction counts as committed if its writes
    /// were seen.
    Unknown,
}

/// One transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Instant before its first operation, on the clock of the history.
    pub began: u64,
    /// Instant after its end was known; `None` if it never was.
    pub ended: Option<u64>,
    /// The end of the transaction.
    pub status: Status,
    /// Its operations, in order.
    pub ops: Vec<Op>,
}

/// All observations. Transactions are named by their position: T0, T1, …
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// In any order.
    pub transactions: Vec<Transaction>,
}

struct List<'a>(&'a [u64]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text: Vec<String> = self.0.iter().map(u64::to_string).collect();
        write!(f, "[{}]", text.join(" "))
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Append { key, value } => write!(f, "append {value} to k{key}"),
            Self::Remove { key, value } => write!(f, "remove k{key} by {value}"),
            Self::Read { key, list } => write!(f, "read k{key} = {}", List(list)),
            Self::Scan { from, to, rows } => {
                write!(f, "scan k{from}..k{to} =")?;
                rows.iter().try_for_each(|(key, list)| write!(f, " k{key} {}", List(list)))?;
                if rows.is_empty() { f.write_str(" nothing") } else { Ok(()) }
            }
        }
    }
}

impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ops: Vec<String> = self.ops.iter().map(Op::to_string).collect();
        let status = match self.status {
            Status::Committed => "committed",
            Status::Aborted => "aborted",
            Status::Unknown => "end unknown",
        };
        write!(f, "{{ {} }} {status}, time {}..", ops.join("; "), self.began)?;
        self.ended.map_or(Ok(()), |ended| write!(f, "{ended}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_reads_as_a_sentence() {
        let t = Transaction {
            began: 3,
            ended: Some(9),
            status: Status::Committed,
            ops: vec![
                Op::Read { key: 1, list: vec![4, 5] },
                Op::Append { key: 1, value: 6 },
                Op::Remove { key: 2, value: 7 },
                Op::Scan { from: 0, to: 9, rows: vec![(1, vec![4])] },
                Op::Scan { from: 0, to: 1, rows: vec![] },
            ],
        };
        let text = "{ read k1 = [4 5]; append 6 to k1; remove k2 by 7; scan k0..k9 = k1 [4]; scan k0..k1 = \
            nothing } committed, time 3..9";
        assert_eq!(t.to_string(), text);
    }
}
