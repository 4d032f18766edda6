//! Anomalies, and their severity.

use std::fmt;

/// A level of isolation, weakest first. Each forbids what the levels before it forbid, and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// No cycle of overwrites; no read of a value that was never written.
    ReadUncommitted,
    /// No read of a value that was aborted or not final, and no cycle of information flow.
    ReadCommitted,
    /// Some serial order of the committed transactions explains all results.
    Serializable,
    /// Such an order exists in which no transaction precedes one that had ended when it began.
    StrictSerializable,
}

/// A kind of anomaly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A read returns a value that was never written, the same value twice, or a removed key.
    Garbage,
    /// Two reads of one list disagree on the order of its values: an append was lost, or writes were not
    /// ordered.
    IncompatibleOrder,
    /// A transaction does not see its own writes.
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
    /// G-single (read skew): a cycle with exactly one read that missed a write.
    GSingle,
    /// G2-item (write skew among them): a cycle with several reads that missed writes.
    G2Item,
    /// G2: a cycle with a range read that missed a key, or a range read that contradicts every possible
    /// choice of versions.
    Phantom,
}

impl Kind {
    /// The name in the literature.
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

    /// The weakest level that forbids it.
    #[must_use]
    pub const fn forbidden_from(self) -> Level {
        match self {
            Self::Garbage | Self::IncompatibleOrder | Self::Internal | Self::G0 => Level::ReadUncommitted,
            Self::G1a | Self::G1b | Self::G1c => Level::ReadCommitted,
            Self::LostUpdate | Self::GSingle | Self::G2Item | Self::Phantom => Level::Serializable,
        }
    }
}

/// One contradiction, with the transactions that show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anomaly {
    /// The kind of anomaly.
    pub kind: Kind,
    /// The cycle includes the order of ends and beginnings in time.
    pub is_realtime: bool,
    /// The transactions, by their position in the history; for a cycle, in its order.
    pub transactions: Vec<usize>,
    /// The counterexample as text: each step with its evidence, then the transactions.
    pub text: String,
}

impl Anomaly {
    /// Notes that the cycle is one of several possible ones.
    pub(crate) fn of_several_explanations(mut self) -> Self {
        self.text.push_str(
            "\n  Whichever version of a missing key was seen, there is a circle; this is one of them.",
        );
        self
    }

    /// The weakest level that forbids it.
    #[must_use]
    pub const fn forbidden_from(&self) -> Level {
        if self.is_realtime { Level::StrictSerializable } else { self.kind.forbidden_from() }
    }
}

/// All anomalies that a check found against the requested level.
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

    /// Number of dependencies inferred: a check that inferred none proves nothing.
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
