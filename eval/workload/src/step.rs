//! One operation inside a transaction.

use crate::{Key, Value};

/// A step of a transaction. Steps of one transaction are done in order and committed together.
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
        /// Start of the scan.
        from: Key,
        /// Maximum of records; `u64::MAX` reads all.
        limit: u64,
    },
    /// Read up to `limit` records in descending key order, beginning at the last key.
    ScanBack {
        /// Most records to read; `u64::MAX` is all of them.
        limit: u64,
    },
}

impl Step {
    /// Returns `true` if the step is a write.
    #[must_use]
    pub const fn writes(&self) -> bool {
        !matches!(self, Self::Get { .. } | Self::Scan { .. } | Self::ScanBack { .. })
    }
}
