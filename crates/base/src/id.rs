//! Identifiers as newtypes, so that two `u64` arguments cannot be swapped.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id! {
    /// Number of a page in the page file. The byte offset of the page is `PageId * page_size`.
    PageId(u64)
}
id! {
    /// Log sequence number: the global order of log records, dense from 1. `Lsn(0)` is before every record.
    ///
    /// LSNs count records, not bytes; a position in a file is a separate byte offset.
    Lsn(u64)
}
id! {
    /// Number of a transaction; a larger number is younger. `TxnId(0)` stands for the system (structure
    /// changes).
    TxnId(u64)
}
id! {
    /// Number of a tree (a table, or the catalog) inside one database.
    TreeId(u32)
}

impl Lsn {
    /// The largest LSN. In a horizon it means that nothing is pending.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the LSN after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl TxnId {
    /// The transaction of structure changes.
    pub const SYSTEM: Self = Self(0);
}
