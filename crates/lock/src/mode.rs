//! Lock modes: compatibility and supremum.
//!
//! Tables have the five classic modes of multiple-granularity locking (Gray, Lorie, Putzolu and Traiger 1976,
//! tables 1 and 2; the supremum as in Gray and Reuter 1993, section 7.8). A key's lock has two independent
//! parts: the *record*, and the *gap* between the key and the key before it.
//!
//! | table | IS | IX | S | SIX | X |  | gap | I | S | X |  | record | S | X |
//! |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
//! | IS | + | + | + | + | – | | I | + | – | – | | S | + | – |
//! | IX | + | + | – | – | – | | S | – | + | – | | X | – | – |
//! | S | + | – | + | – | – | | X | – | – | – | | | | |
//! | SIX | + | – | – | – | – | | | | | | | | | |
//! | X | – | – | – | – | – | | | | | | | | | |
//!
//! - **MODE-1** Compatibility is symmetric, so conflicts have no direction.
//! - **MODE-2** The supremum of two modes is the weakest mode that conflicts with every mode with which one
//!   of the two conflicts.

use std::fmt;

/// Mode of a lock on a whole table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TableMode {
    /// Intention to read: S locks on keys follow.
    IS,
    /// Intention to write: X locks on keys follow.
    IX,
    /// Read of the whole table.
    S,
    /// Read of the whole table, and intention to write some keys.
    SIX,
    /// Write of the whole table.
    X,
}

/// Mode of the record part of a key's lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RecordMode {
    /// The record is not locked.
    #[default]
    None,
    /// Read.
    S,
    /// Write.
    X,
}

/// Mode of the gap part of a key's lock. The gap is the open interval between the key and the key before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GapMode {
    /// The gap is not locked.
    #[default]
    None,
    /// Insert intention; compatible with other insert intentions.
    I,
    /// Read: no key is inserted into the gap.
    S,
    /// Exclusive: a key was removed from the gap, or the transaction scanned the gap and then inserted into
    /// it.
    X,
}

/// Mode of a key's lock: gap part and record part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyMode {
    /// Mode of the gap below the key.
    pub gap: GapMode,
    /// Mode of the key's record.
    pub record: RecordMode,
}

impl TableMode {
    /// Every table mode, weakest first.
    pub const ALL: [Self; 5] = [Self::IS, Self::IX, Self::S, Self::SIX, Self::X];

    /// Returns `true` if two transactions can hold these modes on one table at the same time.
    #[must_use]
    pub const fn is_compatible(self, other: Self) -> bool {
        use TableMode::{IS, IX, S, SIX, X};
        match (self, other) {
            (X, _) | (_, X) => false,
            (IS, _) | (_, IS) | (IX, IX) | (S, S) => true,
            (IX, S | SIX) | (S | SIX, IX) | (S, SIX) | (SIX, S | SIX) => false,
        }
    }

    /// Returns the weakest mode that allows everything that one of the two modes allows.
    #[must_use]
    pub const fn supremum(self, other: Self) -> Self {
        use TableMode::{IS, IX, S, SIX, X};
        match (self, other) {
            (X, _) | (_, X) => X,
            (SIX, _) | (_, SIX) | (IX, S) | (S, IX) => SIX,
            (S, _) | (_, S) => S,
            (IX, _) | (_, IX) => IX,
            (IS, IS) => IS,
        }
    }

    /// Returns `true` if this mode allows everything that `other` allows.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.supremum(other) == self
    }

    /// Returns `true` for IS and IX, which can be noted outside the shared table.
    #[must_use]
    pub const fn is_intent(self) -> bool {
        matches!(self, Self::IS | Self::IX)
    }

    /// Returns `true` if this table mode allows everything that `key` allows, without a lock on the key.
    #[must_use]
    pub const fn covers_key(self, key: KeyMode) -> bool {
        match self {
            Self::IS | Self::IX => false,
            Self::S | Self::SIX => {
                matches!(key.gap, GapMode::None | GapMode::S) && !matches!(key.record, RecordMode::X)
            }
            Self::X => true,
        }
    }
}

impl RecordMode {
    /// Every record mode, weakest first.
    pub const ALL: [Self; 3] = [Self::None, Self::S, Self::X];

    const fn is_compatible(self, other: Self) -> bool {
        matches!((self, other), (Self::None, _) | (_, Self::None) | (Self::S, Self::S))
    }

    const fn supremum(self, other: Self) -> Self {
        match (self, other) {
            (Self::X, _) | (_, Self::X) => Self::X,
            (Self::S, _) | (_, Self::S) => Self::S,
            (Self::None, Self::None) => Self::None,
        }
    }
}

impl GapMode {
    /// Every gap mode, weakest first.
    pub const ALL: [Self; 4] = [Self::None, Self::I, Self::S, Self::X];

    const fn is_compatible(self, other: Self) -> bool {
        matches!((self, other), (Self::None, _) | (_, Self::None) | (Self::I, Self::I) | (Self::S, Self::S))
    }

    const fn supremum(self, other: Self) -> Self {
        match (self, other) {
            (Self::X, _) | (_, Self::X) | (Self::I, Self::S) | (Self::S, Self::I) => Self::X,
            (Self::S, _) | (_, Self::S) => Self::S,
            (Self::I, _) | (_, Self::I) => Self::I,
            (Self::None, Self::None) => Self::None,
        }
    }
}

impl KeyMode {
    /// Nothing is locked.
    pub const NONE: Self = Self::new(GapMode::None, RecordMode::None);
    /// Read of one key, present or absent.
    pub const READ: Self = Self::new(GapMode::None, RecordMode::S);
    /// End of a scan: requested for the key after the range, or for the end of the table.
    pub const READ_GAP: Self = Self::new(GapMode::S, RecordMode::None);
    /// Read of a key in a scanned range.
    pub const SCAN: Self = Self::new(GapMode::S, RecordMode::S);
    /// Update of a record in place.
    pub const UPDATE: Self = Self::new(GapMode::None, RecordMode::X);
    /// Insert of a key.
    pub const INSERT: Self = Self::new(GapMode::I, RecordMode::X);
    /// Test of an insert, on the next key; not held afterward.
    pub const INSERT_TEST: Self = Self::new(GapMode::I, RecordMode::None);
    /// Delete of a key.
    pub const DELETE: Self = Self::new(GapMode::X, RecordMode::X);
    /// Mode for the key after a deleted key.
    pub const DELETE_NEXT: Self = Self::new(GapMode::X, RecordMode::None);

    /// Returns the mode with these two parts.
    #[must_use]
    pub const fn new(gap: GapMode, record: RecordMode) -> Self {
        Self { gap, record }
    }

    /// Returns all key modes.
    pub fn all() -> impl Iterator<Item = Self> {
        GapMode::ALL.into_iter().flat_map(|gap| RecordMode::ALL.map(|record| Self { gap, record }))
    }

    /// Returns `true` if two transactions can hold these modes on one key at the same time: both parts must
    /// be compatible.
    #[must_use]
    pub const fn is_compatible(self, other: Self) -> bool {
        self.gap.is_compatible(other.gap) && self.record.is_compatible(other.record)
    }

    /// Returns the weakest mode that allows everything that one of the two modes allows, for each part. For a
    /// gap's I and S this is X.
    #[must_use]
    pub const fn supremum(self, other: Self) -> Self {
        Self { gap: self.gap.supremum(other.gap), record: self.record.supremum(other.record) }
    }

    /// Returns `true` if this mode allows everything that `other` allows.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.supremum(other) == self
    }
}

impl fmt::Display for TableMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl fmt::Display for KeyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.gap, self.record) {
            (GapMode::None, RecordMode::None) => f.write_str("nothing"),
            (GapMode::None, record) => write!(f, "record {record:?}"),
            (gap, RecordMode::None) => write!(f, "gap {gap:?}"),
            (gap, record) => write!(f, "gap {gap:?} + record {record:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the supremum by the definition in MODE-2. Of the modes that conflict with everything that
    /// conflicts with `a` or `b`, it has the fewest conflicts.
    fn least_above<M: Copy + PartialEq + fmt::Debug>(
        all: &[M],
        compatible: impl Fn(M, M) -> bool,
        a: M,
        b: M,
    ) -> M {
        let blocks = |m: M| all.iter().map(|&o| !compatible(m, o)).collect::<Vec<_>>();
        let contains = |big: &[bool], small: &[bool]| big.iter().zip(small).all(|(&b, &s)| b || !s);
        let needed: Vec<bool> = blocks(a).iter().zip(blocks(b)).map(|(&x, y)| x || y).collect();
        let above: Vec<M> = all.iter().copied().filter(|&m| contains(&blocks(m), &needed)).collect();
        let least: Vec<M> = above
            .iter()
            .copied()
            .filter(|&m| above.iter().all(|&other| contains(&blocks(other), &blocks(m))))
            .collect();
        assert_eq!(least.len(), 1, "{a:?} and {b:?} have one least mode above them");
        least[0]
    }

    #[test]
    fn table_compatibility_is_the_classic_table() {
        let rows = ["++++-", "++---", "+-+--", "+----", "-----"];
        for (a, row) in TableMode::ALL.into_iter().zip(rows) {
            for (b, cell) in TableMode::ALL.into_iter().zip(row.chars()) {
                assert_eq!(a.is_compatible(b), cell == '+', "{a} with {b}");
            }
        }
    }

    #[test]
    fn key_compatibility_is_both_parts() {
        let gaps = ["++++", "++--", "+-+-", "+---"];
        let records = ["+++", "++-", "+--"];
        for a in KeyMode::all() {
            for b in KeyMode::all() {
                let gap = gaps[a.gap as usize].as_bytes()[b.gap as usize] == b'+';
                let record = records[a.record as usize].as_bytes()[b.record as usize] == b'+';
                assert_eq!(a.is_compatible(b), gap && record, "{a} with {b}");
                assert_eq!(a.is_compatible(b), b.is_compatible(a), "MODE-1");
            }
        }
    }

    #[test]
    fn supremum_is_the_least_mode_above_both() {
        for a in TableMode::ALL {
            for b in TableMode::ALL {
                assert_eq!(a.supremum(b), least_above(&TableMode::ALL, TableMode::is_compatible, a, b));
            }
        }
        let keys: Vec<KeyMode> = KeyMode::all().collect();
        assert_eq!(keys.len(), 12);
        for &a in &keys {
            for &b in &keys {
                assert_eq!(a.supremum(b), least_above(&keys, KeyMode::is_compatible, a, b), "{a} and {b}");
            }
        }
    }

    #[test]
    fn a_table_lock_covers_what_its_holders_rivals_could_not_hold() {
        // A table mode covers a key mode exactly if no conflicting transaction can get the intent that it
        // needs.
        for table in TableMode::ALL {
            for key in KeyMode::all().filter(|&k| k != KeyMode::NONE) {
                let spoilers_kept_out = KeyMode::all().filter(|m| !m.is_compatible(key)).all(|m| {
                    let writes = m.record == RecordMode::X || matches!(m.gap, GapMode::I | GapMode::X);
                    !table.is_compatible(if writes { TableMode::IX } else { TableMode::IS })
                });
                assert_eq!(table.covers_key(key), spoilers_kept_out, "{table} over {key}");
            }
        }
    }
}
