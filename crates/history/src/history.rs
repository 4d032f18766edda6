//! Histories: transactions and their operations as clients observed them, and the text form of operations.

use std::fmt;

/// One operation, as its client observed it. Values are unique in the whole history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// An append of `value` to the list of `key`. The key exists from then on.
    Append {
        /// The key of the list.
        key: u64,
        /// The appended value.
        value: u64,
    },
    /// A removal of `key`, so that range reads no longer return it. The tombstone `value` is appended to its
    /// list.
    Remove {
        /// The key of the list.
        key: u64,
        /// The value of the tombstone.
        value: u64,
    },
    /// A read of the whole list of `key`, including tombstones. The list is empty if it has no appends.
    Read {
        /// The key of the list.
        key: u64,
        /// The values of the list, oldest first.
        list: Vec<u64>,
    },
    /// A read of every key in `from..to` that exists.
    Scan {
        /// First key of the range.
        from: u64,
        /// End of the range (exclusive).
        to: u64,
        /// The keys that were returned, with their lists.
        rows: Vec<(u64, Vec<u64>)>,
    },
}

/// The end of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The transaction committed, and its client got the acknowledgment.
    Committed,
    /// The client aborted the transaction, or got an error instead of a commit.
    Aborted,
    /// The end is unknown, because of a crash or a lost reply. The transaction counts as committed if another
    /// transaction has read its writes.
    Unknown,
}

/// One transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Instant before the first operation, on the clock of the history.
    pub began: u64,
    /// Instant after the client got the result of the end; `None` if it never did.
    pub ended: Option<u64>,
    /// The status of the transaction.
    pub status: Status,
    /// Operations of the transaction, in order.
    pub ops: Vec<Op>,
}

/// All observations. A transaction's name is its position: T0, T1, …
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The transactions, in any order.
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
