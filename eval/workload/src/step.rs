//! One operation inside a transaction.

use crate::{Key, Value};

/// What a transaction does next. Steps of one transaction are done in order and committed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Read one record, which is there.
    Get {
        /// Its key.
        key: Key,
    },
    /// Replace the whole value of a record that is there.
    Put {
        /// Its key.
        key: Key,
        /// The new value.
        value: Value,
    },
    /// Read a record, then replace its value, in one transaction (YCSB F).
    ReadModifyWrite {
        /// Its key.
        key: Key,
        /// The new value.
        value: Value,
    },
    /// Add a record that is not there. Once it is committed, tell
    /// [`Population::acknowledge`](crate::Population::acknowledge), so that it can be asked for.
    Insert {
        /// Number of the new item.
        item: u64,
        /// Its key.
        key: Key,
        /// Its value.
        value: Value,
    },
    /// Read up to `limit` records in key order, beginning at the first key not below `from`.
    Scan {
        /// Where to begin.
        from: Key,
        /// How many records at most; `u64::MAX` is all of them.
        limit: u64,
    },
    /// Read up to `limit` records in descending key order, beginning at the last key.
    ScanBack {
        /// Most records to read; `u64::MAX` is all of them.
        limit: u64,
    },
}

impl Step {
    /// Whether the step changes something.
    #[must_use]
    pub const fn writes(&self) -> bool {
        !matches!(self, Self::Get { .. } | Self::Scan { .. } | Self::ScanBack { .. })
    }
}
