//! Transaction locks: modes, key ranges, a striped lock table, and exact deadlock detection.
//!
//! Locks isolate transactions; latches, which protect the bytes of a page, are in `azekura_latch`. The store
//! decides which locks an operation needs (`azekura::locking`).
//!
//! ```
//! use azekura_base::{Lsn, TreeId, TxnId};
//! use azekura_lock::{KeyMode, KeyRef, LockOptions, LockTable, TableMode, WouldBlock};
//!
//! let table = LockTable::new(LockOptions::default());
//! let (mut writer, mut reader) = (table.begin(TxnId(1)), table.begin(TxnId(2)));
//! let (tree, key) = (TreeId(7), KeyRef::Key(b"storehouse"));
//!
//! table.lock_table(&mut writer, tree, TableMode::IX)?;
//! table.lock_key(&mut writer, tree, key, KeyMode::UPDATE)?;
//! table.lock_table(&mut reader, tree, TableMode::IS)?;
//! assert_eq!(table.try_lock_key(&mut reader, tree, key, KeyMode::READ), Err(WouldBlock));
//!
//! // Early lock release: the commit record 42 is in the log buffer, not yet on disk. The reader
//! // gets the lock and LSN 42: its result must not be returned before this LSN is durable.
//! table.release_all(writer, Some(Lsn(42)));
//! assert_eq!(table.lock_key(&mut reader, tree, key, KeyMode::READ)?, Lsn(42));
//! table.release_all(reader, None);
//! # Ok::<(), azekura_lock::LockError>(())
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`mode`] | table modes, key modes (gap and record), compatibility and supremum |
//! | `mode_bits` | modes as bit sets |
//! | `id` | names of lockable objects in 64 bits |
//! | `cell` | a stripe with its latch and the count that scans read |
//! | `range` | range locks: one entry for a scan's run of keys |
//! | `stripe` | one part of the table: pools of heads and requests |
//! | `queue` | rules of one lock's queue: grants, waiters, blockers |
//! | `owner` | the state of a locking transaction that other threads read |
//! | `intent` | IS and IX without a contended cache line |
//! | `table` | [`LockTable`]: the steps of a request |
//! | `wait` | waiting: enqueue, sleep, wake-up |
//! | `deadlock` | waits-for graph, cycles, victims |
//! | `depend` | commit LSNs of released locks (early lock release) |
//! | `txn` | [`TxnLocks`]: the locks of one transaction |
//! | `dump`, `stats` | locks and counters, for diagnosis |

#![forbid(unsafe_code)]

mod cell;
mod deadlock;
mod depend;
mod dump;
mod error;
mod id;
mod intent;
pub mod mode;
mod mode_bits;
mod owner;
mod queue;
mod range;
#[cfg(all(test, not(loom)))]
mod reference;
mod stats;
mod stripe;
mod table;
mod txn;
mod wait;

pub use dump::{AnyMode, LockDump};
pub use error::{LockError, WouldBlock};
pub use id::{KeyRef, LockName};
pub use mode::{GapMode, KeyMode, RecordMode, TableMode};
pub use stats::LockStats;
pub use table::{LockOptions, LockTable};
pub use txn::TxnLocks;
