//! B+trees of pages: records in key order, changed by many threads at once, each change one log record.
//!
//! The crate is not a database: it treats a transaction as a number and requests locks from the caller (see
//! [`KeyLocks`]). The caller decides on commits. The crate starts no threads.
//!
//! ```
//! use std::{path::Path, sync::Arc};
//! use azekura_base::{Lsn, TxnId};
//! use azekura_btree::{Env, EnvOptions, NoLocks, Outcome, PutMode, UndoLog, WriteCtx, Writer, Written};
//! use azekura_btree::roll_back_to;
//! use azekura_buffer::{BufferPool, MemStore, PoolOptions};
//! use azekura_wal::{LogIdentity, Wal, WalOptions};
//!
//! let identity = LogIdentity { database_id: 1, incarnation: 1, first_lsn: Lsn(1) };
//! let fs = Arc::new(azekura_io::MemFs::new());
//! let log = Wal::create(fs, Path::new("/db/wal"), identity, WalOptions::default())?;
//! let (log_buffer, options) = (log.log_buffer(), PoolOptions::default());
//! let pool = BufferPool::new(options, Arc::new(MemStore::new(options.page_size)), log.clone())?;
//! let env = Env::new(Arc::new(pool), log, EnvOptions::default());
//! let tree = env.format(log_buffer)?;
//!
//! let (txn, mut undo) = (TxnId(1), UndoLog::new());
//! let mut ctx = WriteCtx { txn, log_buffer, undo: &mut undo, locks: &mut NoLocks };
//! let written = tree.put(&env, &mut ctx, b"azekura", b"a storehouse of logs", PutMode::Insert, None)?;
//! assert_eq!(written, Outcome::Done(Written::Inserted));
//!
//! let mut value = Vec::new();
//! assert!(tree.get(&env, b"azekura", &mut value)?);
//! roll_back_to(&env, Writer { txn, log_buffer }, &mut undo, 0)?;
//! assert!(!tree.get(&env, b"azekura", &mut value)?, "undone, through the tree");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`node`] | one page of a tree: layout, search, editing, split point |
//! | [`change`] | page operations: one function for do and redo |
//! | [`record`] | bodies of log records; `undo`: inverses of changes |
//! | `env` | pool, log and space maps; the mini-transaction |
//! | [`descent`] | the descent from the root to a node |
//! | `contention` | detection of leaves with latch contention |
//! | `tree`, `write`, `scan` | reading a key, writing a key, cursors |
//! | `next`, `locks` | the next key; the interface to the lock manager |
//! | `structure` | splits, merges, growing and shrinking roots |
//! | `overflow` | large values |
//! | [`space`] | pages in use |
//! | `rollback`, `redo` | undo of a transaction; redo of the log |
//! | `load` | bottom-up bulk load of an empty tree |
//! | `destroy` | creation and removal of trees; deferred frees of committed transactions |
//! | `version` | row versions for snapshots: clock, before-images, reading by snapshot |
//! | `verify` | check of all invariants |

#![forbid(unsafe_code)]

pub mod change;
mod contention;
pub mod descent;
mod destroy;
mod env;
mod error;
mod load;
mod locks;
mod next;
pub mod node;
mod overflow;
pub mod record;
mod redo;
mod rollback;
mod scan;
pub mod space;
mod structure;
mod tree;
mod undo;
mod verify;
mod version;
mod write;

pub use change::{ApplyError, PageOp};
pub use destroy::{free_leaked, free_step};
pub use env::{Env, EnvOptions, Log, Writer, max_record_bytes};
pub use error::{RecordError, TreeError};
pub use load::{IsPast, LoadOptions, LoadedPages, Loader};
pub use locks::{Blocked, BlockedRecords, GapWant, KeyLocks, NextKey, NoLocks, Outcome};
pub use node::{max_inline_value, max_key};
pub use overflow::{ChainReader, ChainWriter, LargeValues, MAX_VALUE, OverflowRef, UnloggedValues};
pub use record::{Carry, Head, Record};
pub use redo::{PageChange, PageChanges, redo};
pub use rollback::{roll_back_to, undo_one};
pub use scan::{LeafBatch, Scan, ValueRef};
pub use space::{DiskSpace, FreeSpace, Released};
pub use tree::{LeafVersion, Tree, WriteCtx};
pub use undo::{Deferred, UndoLog, UndoOp};
pub use verify::{Finding, Held, Report, TreeReport, verify, verify_beside_writers};
#[doc(hidden)]
pub use version::VersionPart;
#[doc(hidden)]
pub use version::model as version_model;
pub use version::{Committed, GRACE, SPARSE_AFTER, SeenRow, SnapshotId, VersionStats, Versions, View};
pub use write::{PutMode, Written};
