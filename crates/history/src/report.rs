//! Anomalies: their kinds, their severity, and the report of a check.

use std::fmt;

/// A level of isolation, weakest first. Each level forbids all anomalies of the earlier levels, and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// No cycle of overwrites, and no read of a value that was never written.
    ReadUncommitted,
    /// No read of a value that was aborted or not final, and no cycle of overwrites and reads (G1c).
    ReadCommitted,
    /// A serial order of the committed transactions explains all results.
    Serializable,
    /// A serial order explains all results, and no transaction precedes one that had ended before it began.
    StrictSerializable,
}

/// A kind of anomaly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A read returns a value that was never written, the same value twice, or a removed key.
    Garbage,
    /// Two reads of one list disagree on the order of its values, because an append was lost or writes were
    /// not ordered.
    IncompatibleOrder,
    /// A transaction does not read its own writes.
    Internal,
    /// G0: a cycle of overwrites.
    G0,
    /// G1a: a read of an aborted write.
    G1a,
    /// G1b: a read of a write that its transaction overwrote later.
    G1b,
    /// G1c: a cycle of overwrites and reads.
    G1c,
    /// Two transactions read the same version of a list, and both appended to it.
    LostUpdate,
    /// G-single (read skew): a cycle with exactly one read that did not return a write (rw edge).
    GSingle,
    /// G2-item (including write skew): a cycle with several reads that did not return a write (rw edges).
    G2Item,
    /// G2: a cycle with a range read that did not return an inserted key, or a range read that contradicts
    /// every possible choice of versions.
    Phantom,
}

impl Kind {
    /// Returns the name of the anomaly in the literature.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Garbage => "garbage read",
            Self::IncompatibleOrder => "incompatible order",
            Self::Internal => "internal inconsistency",
            Self::G0 => "G0 (dirty write)",
            Self::G1a => "G1a (aborted read)",
            Self::G1b => "G1b (intermediate read)",
            Self::G1c => "G1c (circular information flow)",
            Self::LostUpdate => "lost update",
            Self::GSingle => "G-single (read skew)",
            Self::G2Item => "G2-item (write skew)",
            Self::Phantom => "G2 (phantom)",
        }
    }

    /// Returns the weakest level that forbids the anomaly.
    #[must_use]
    pub const fn forbidden_from(self) -> Level {
        match self {
            Self::Garbage | Self::IncompatibleOrder | Self::Internal | Self::G0 => Level::ReadUncommitted,
            Self::G1a | Self::G1b | Self::G1c => Level::ReadCommitted,
            Self::LostUpdate | Self::GSingle | Self::G2Item | Self::Phantom => Level::Serializable,
        }
    }
}

/// One contradiction, with the transactions that prove it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anomaly {
    /// The kind of anomaly.
    pub kind: Kind,
    /// `true` if the cycle includes the order of transactions in time.
    pub is_realtime: bool,
    /// The transactions, by their position in the history; for a cycle, in the order of the cycle.
    pub transactions: Vec<usize>,
    /// The counterexample as text: each step with its evidence, then the transactions.
    pub text: String,
}

impl Anomaly {
    /// Adds to the text that the cycle is one of several possible ones.
    pub(crate) fn of_several_explanations(mut self) -> Self {
        self.text.push_str(
            "\n  Whichever version of a missing key was seen, there is a circle; this is one of them.",
        );
        self
    }

    /// Returns the weakest level that forbids the anomaly.
    #[must_use]
    pub const fn forbidden_from(&self) -> Level {
        if self.is_realtime { Level::StrictSerializable } else { self.kind.forbidden_from() }
    }
}

/// All anomalies that a check has found at the requested level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub(crate) anomalies: Vec<Anomaly>,
    pub(crate) transactions: usize,
    pub(crate) dependencies: usize,
}

impl Report {
    /// Returns `true` if no anomaly was found.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.anomalies.is_empty()
    }

    /// Returns the anomalies, the worst kind first.
    #[must_use]
    pub fn anomalies(&self) -> &[Anomaly] {
        &self.anomalies
    }

    /// Returns `true` if an anomaly of this kind was found.
    #[must_use]
    pub fn has(&self, kind: Kind) -> bool {
        self.anomalies.iter().any(|a| a.kind == kind)
    }

    /// Returns the number of inferred dependencies. A check without dependencies proves nothing.
    #[must_use]
    pub const fn dependencies(&self) -> usize {
        self.dependencies
    }

    /// Panics with the report if an anomaly was found.
    ///
    /// # Panics
    ///
    /// If there is an anomaly.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = match self.anomalies.len() {
            0 => "no anomaly".to_string(),
            1 => "1 anomaly".to_string(),
            n => format!("{n} anomalies"),
        };
        writeln!(f, "{found} in {} transactions, {} dependencies", self.transactions, self.dependencies)?;
        self.anomalies.iter().try_for_each(|a| writeln!(f, "\n{}", a.text))
    }
}
