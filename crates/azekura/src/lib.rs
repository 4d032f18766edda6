//! Azekura: an embeddable, ordered, multi-writer, serializable, crash-safe key-value store.
//!
//! Any number of threads run transactions at once; each sees the store as if it ran alone, and once `commit`
//! returns its effects survive `kill -9` and power loss. The store is a directory, which one process opens at
//! a time.
//!
//! ```
//! use azekura::{Database, Error, TableDefinition};
//!
//! const BALANCES: TableDefinition<str, i64> = TableDefinition::new("balances");
//!
//! # fn main() -> Result<(), Error> {
//! # let dir = std::env::temp_dir().join(format!("azekura-lib-{}", std::process::id()));
//! # let path = &dir;
//! let db = Database::open(path)?;
//! db.transact(|tx| {
//!     let balances = tx.table(&BALANCES)?;
//!     balances.update("ann", |old| Some(old.unwrap_or(100) - 30))?;
//!     balances.update("bob", |old| Some(old.unwrap_or(0) + 30))
//! })?; // durable here; `transact` runs the closure again after a deadlock
//! # drop(db);
//! # std::fs::remove_dir_all(dir).ok();
//! # Ok(())
//! # }
//! ```
//!
//! | you want to | see |
//! |---|---|
//! | open, close, back up and check a store | [`Database`], [`Builder`] (settings), [`Backup`], [`Restore`] |
//! | name a table and its types | [`TableDefinition`], [`Key`], [`Value`] |
//! | read and write rows | [`Database::transact`], [`Transaction`], [`Table`], [`KeyRange`] |
//! | store several values for a key | [`MultimapTable`] |
//! | read without locks | [`Database::read`], [`Snapshot`] |
//! | commit without waiting for the disk | [`Database::transact_async`], [`CommitTicket`] |
//! | load many rows at once | [`Table::bulk_load`] |
//! | handle an error | [`Error`], [`ErrorKind`] |
//!
//! Three features are off by default: `compression` adds the value type `Compressed`, `encryption` adds
//! `Builder::encryption_key`, which encrypts the files, and `far` adds `Builder::far_cache`, which stores
//! evicted pages on memory servers.
//!
//! Modules, for readers of the source:
//!
//! | module | noun |
//! |---|---|
//! | [`database`](Database) | the open store; opening and closing it |
//! | `lifetime` | handles of an open store, and its background threads |
//! | [`options`](Builder) | settings |
//! | [`transaction`](Transaction) | locks, undo, commit |
//! | [`table`](Table), `bulk`, `compound`, [`entry`](Entry), `prefetch` | typed tables |
//! | [`range`](Range), `scan` | rows of a range, and the cursor that locks the rows that it reads |
//! | [`multimap`](MultimapTable) | tables with a set of values for each key |
//! | [`snapshot`](Snapshot) | reading the store as it was at one moment, without locks |
//! | `own_writes` | the transaction's own writes that are newer than a cursor, which the cursor skips |
//! | `queue` | a cursor that skips rows that other consumers have locked |
//! | [`key`](Key), [`value`](Value), `compressed` | encodings; keys keep their order |
//! | [`bounds`](KeyRange) | ranges and prefixes of keys, as arguments |
//! | [`value_ref`](ValueRef), `value_reader` | lent values: the pages of a large value are read on request |
//! | [`row_sort`](RowSorter) | sorts rows for loads in any order |
//! | `locking` | the locks of each call, and the proof of serializability |
//! | `catalog` | names of tables |
//! | `deferred` | pages that a commit frees later |
//! | `active` | active transactions with their undo logs |
//! | `control`, `restart`, `checkpoint` | recovery after a crash, and checkpoints that bound its time |
//! | `location` | paths of directories, as callers give them |
//! | `retry` | transactions that run again after a conflict |
//! | `timeline` | the LSNs of the store's runs, which identify replaced files |
//! | `archive` | the log archive, for restores to a point in time |
//! | `encryption` | the keys of a store, and the cipher of its files |
//! | `far_tier` | memory servers behind the page cache |
//! | `memory_limit` | defaults that depend on the memory of the process |
//! | [`backup`](Backup), [restore](Restore) | a copy of the store, and a new store from it |
//! | [`check`](CheckReport) | verification of all pages |
//! | [`ticket`](CommitTicket) | waiting for an asynchronous commit |
//! | [`stats`](Stats), `events`, `probe` | counters; messages to the operator; names in recordings |
//! | [`error`](Error) | the error type, with the kind that determines the remedy |

mod active;
mod archive;
mod backup;
mod bounds;
mod bulk;
mod catalog;
mod check;
mod checkpoint;
mod compound;
#[cfg(feature = "compression")]
mod compressed;
mod control;
mod database;
mod deferred;
mod encryption;
mod entry;
mod error;
mod events;
#[cfg(feature = "far")]
mod far_tier;
mod interrupt;
mod key;
mod left_out;
mod lifetime;
mod location;
mod locking;
mod memory_limit;
mod multimap;
mod opener;
mod options;
mod own_writes;
mod prefetch;
mod probe;
mod queue;
mod range;
mod restart;
mod retry;
mod row_sort;
mod scan;
mod snapshot;
mod stats;
mod table;
mod thread_memory;
mod ticket;
mod timeline;
mod transaction;
mod value;
mod value_reader;
mod value_ref;

/// The file-system interface for [`Builder::file_system`], and two implementations: the operating system's,
/// and one in memory.
pub mod fs {
    pub use azekura_base::page::PageWord;
    pub use azekura_io::{File, FileLock, Fs, MemFs, OpenOptions, OsFs};
}

pub use archive::CommitTime;
pub use azekura_base::{LogFailed, PageId, TxnId};
#[cfg(feature = "test-faults")]
#[doc(hidden)]
pub use azekura_btree::VersionPart;
#[cfg(feature = "far")]
pub use azekura_far::AuthKey;
pub use azekura_io::Fs;
#[cfg(feature = "baseline-logs")]
#[doc(hidden)]
pub use azekura_wal::{LogProtocol, UnknownProtocol};
pub use backup::{Backup, BackupProgress, BackupReport, CompactReport, Compaction, Restore, RestoreReport};
pub use bounds::{KeyPrefix, KeyRange, Limit, Prefix};
pub use catalog::{TableInfo, TableTypes};
pub use check::{CheckReport, Finding, TableReport};
#[cfg(feature = "compression")]
pub use compressed::Compressed;
pub use database::Database;
#[cfg(feature = "encryption")]
pub use encryption::EncryptionKey;
pub use entry::Entry;
pub use error::{Error, ErrorKind};
pub use key::{AsKey, DecodeError, EncodeKey, Key};
#[cfg(feature = "test-faults")]
#[doc(hidden)]
pub use left_out::LockPart;
pub use multimap::{
    MultimapRange, MultimapTable, MultimapTableDefinition, MultimapValues, SnapshotMultimapTable,
};
pub use options::{Builder, Durability};
pub use range::{Range, RowRef};
pub use restart::RecoveryReport;
pub use row_sort::{RowSorter, SortedRows};
pub use snapshot::{OwnedSnapshotTable, Snapshot, SnapshotRange, SnapshotTable};
pub use stats::{CacheStats, FarTierStats, LockCounts, LogStats, SnapshotStats, Stats};
pub use table::{MAX_TABLE_NAME, RowOf, Table, TableDefinition};
pub use ticket::CommitTicket;
pub use transaction::{Savepoint, Transaction};
pub use value::{AsValue, EncodeError, EncodeValue, MAX_VALUE_BYTES, Serde, Value};
pub use value_reader::ValueReader;
pub use value_ref::ValueRef;

/// A compile-time list of the types that are `Send`, or `Send` and `Sync`: removing a type breaks the
/// interface. A [`Table`], its [`Range`]s and its entries stay in the thread of their transaction.
const _: () = {
    const fn sends<T: Send>() {}
    const fn shares<T: Send + Sync>() {}
    shares::<Database>();
    shares::<Builder>();
    shares::<Error>();
    shares::<CommitTicket>();
    shares::<TableDefinition<[u8], [u8]>>();
    shares::<MultimapTableDefinition<str, str>>();
    shares::<Prefix<(&str,)>>();
    shares::<Savepoint>();
    shares::<Snapshot>();
    shares::<SnapshotTable<'_, str, str>>();
    shares::<OwnedSnapshotTable<str, str>>();
    shares::<SnapshotMultimapTable<'_, str, str>>();
    shares::<SnapshotRange<'_, str, str>>();
    shares::<Stats>();
    shares::<CheckReport>();
    sends::<RowSorter>();
    sends::<SortedRows>();
    sends::<Transaction>();
};
