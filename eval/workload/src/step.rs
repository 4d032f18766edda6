//! One operation in a transaction.

use crate::{Key, Value};

/// A step of a transaction. The steps of a transaction are executed in order and committed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Read an existing record.
    Get {
        /// Key of the record.
        key: Key,
    },
    /// Replace the whole value of an existing record.
    Put {
        /// Key of the record.
        key: Key,
        /// The new value.
        value: Value,
    },
    /// Read a record, then replace its value, in one transaction (YCSB F).
    ReadModifyWrite {
        /// Key of the record.
        key: Key,
        /// The new value.
        value: Value,
    },
    /// Insert a new record. After its commit, call
    /// [`Population::acknowledge`](crate::Population::acknowledge), so that other steps may read it.
    Insert {
        /// Number of the new item.
        item: u64,
        /// Key of the record.
        key: Key,
        /// Value of the record.
        value: Value,
    },
    /// Read up to `limit` records in key order, beginning at the first key not below `from`.
    Scan {
        /// Start of the scan.
        from: Key,
        /// Largest number of records; `u64::MAX` reads all.
        limit: u64,
    },
    /// Read up to `limit` records in descending key order, beginning at the last key.
    ScanBack {
        /// Largest number of records; `u64::MAX` reads all.
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
