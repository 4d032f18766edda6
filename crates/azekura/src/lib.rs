//! Azekura: an embeddable, ordered, multi-writer, serializable, crash-safe key-value store.
//!
//! Any number of threads run transactions at once; each sees the store as if it ran alone, and once `commit`
//! returns its effects survive `kill -9` and power loss. It is a library in your process, not a server, and
//! keeps its data in one directory that one process has open at a time.
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
//!     let ann = balances.get("ann")?.unwrap_or(100);
//!     balances.insert("ann", &(ann - 30))?;
//!     balances.insert("bob", &30)
//! })?; // durable here; run again by itself if it got into a deadlock
//! # drop(db);
//! # std::fs::remove_dir_all(dir).ok();
//! # Ok(())
//! # }
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`database`](Database) | the open store, and how it is opened and closed |
//! | `lifetime` | how long a store is open |
//! | [`options`](Builder) | what a caller may choose |
//! | [`transaction`](Transaction) | locks, undo, commit |
//! | [`table`](Table), `compound`, [`range`](Range), `scan` | typed tables, their rows, and the cursor that locks what it reads |
//! | [`snapshot`](Snapshot) | reading the store as it was at one moment, without locks |
//! | `own_writes` | what a cursor takes back of the writes made since |
//! | `queue` | rows taken to be changed or removed, by many consumers |
//! | [`key`](Key), [`value`](Value) | encodings; keys keep their order |
//! | `locking` | which locks, and why they make transactions serializable |
//! | `catalog` | names of tables |
//! | `deferred` | what a commit leaves to free |
//! | `control`, `restart`, `checkpoint` | where a restart begins, what it does, how it is kept short |
//! | [`check`](CheckReport) | walking everything |
//! | [`error`](Error) | one error, with a kind that says what to do |

mod active;
mod catalog;
mod check;
mod checkpoint;
mod compound;
mod control;
mod database;
mod deferred;
mod error;
mod far_tier;
mod key;
mod lifetime;
mod locking;
mod memory_limit;
mod options;
mod own_writes;
mod probe;
mod queue;
mod range;
mod restart;
mod row_sort;
mod scan;
mod snapshot;
mod stats;
mod table;
mod ticket;
mod transaction;
mod value;

pub use azekura_base::{LogFailed, PageId, TxnId};
pub use azekura_far::AuthKey;
pub use azekura_io::Fs;
#[cfg(feature = "baseline-logs")]
#[doc(hidden)]
pub use azekura_wal::{LogProtocol, UnknownProtocol};
pub use catalog::{TableInfo, TableTypes};
pub use check::{CheckReport, Finding, TableReport};
pub use database::Database;
pub use error::{Error, ErrorKind};
pub use key::{DecodeError, Key};
#[doc(hidden)]
pub use locking::LockPart;
pub use options::{Builder, Durability};
pub use range::{Range, RowRef};
pub use restart::RecoveryReport;
pub use row_sort::{RowSorter, SortedRows};
pub use snapshot::{Snapshot, SnapshotRange, SnapshotTable};
pub use stats::{CacheStats, FarTierStats, LockCounts, LogStats, SnapshotStats, Stats};
pub use table::{MAX_TABLE_NAME, RowOf, Table, TableDefinition};
pub use ticket::CommitTicket;
pub use transaction::{Savepoint, Transaction};
pub use value::{EncodeError, Serde, Value};

/// The types that threads may send or share; a change of that is a change of the interface.
const _: () = {
    const fn sends<T: Send>() {}
    const fn shares<T: Send + Sync>() {}
    shares::<Database>();
    shares::<Builder>();
    shares::<Error>();
    shares::<CommitTicket>();
    shares::<TableDefinition<[u8], [u8]>>();
    shares::<Savepoint>();
    sends::<Transaction>();
};
