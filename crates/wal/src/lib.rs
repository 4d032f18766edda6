//! The parallel write-ahead log of the Azekura store, after the P-WAL protocol.
//!
//! Threads append records to log buffers. *Streams* write the buffers to files, each flush as one checksummed
//! chunk. A record is durable once all records with smaller LSNs are on disk in every stream. Recovery merges
//! the streams by LSN up to the first missing one. The crate is not a transaction manager: it stores ordered
//! byte strings, without any notion of transactions, pages or undo.
//!
//! ```
//! use std::sync::Arc;
//! use azekura_base::{DurableLog, Lsn};
//! use azekura_io::MemFs;
//! use azekura_wal::{LogIdentity, Wal, WalOptions, recovery::{LogRange, replay}};
//!
//! let fs = Arc::new(MemFs::new());
//! let dir = "/db/wal".as_ref();
//! let identity = LogIdentity { database_id: 7, incarnation: 1, first_lsn: Lsn(1) };
//! let wal = Wal::create(fs.clone(), dir, identity, WalOptions::default())?;
//! let lsn = wal.append(wal.log_buffer(), b"a record")?;
//! wal.make_durable(lsn)?;
//! assert_eq!(wal.durable_lsn(), lsn);
//!
//! // After a crash:
//! let range = LogRange::open(1, Lsn(1));
//! let found = replay(&*fs, dir, 7, &[range], Lsn(1), &mut |lsn, body| {
//!     assert_eq!((lsn, body), (Lsn(1), &b"a record"[..]));
//!     Ok::<(), std::convert::Infallible>(())
//! })?;
//! assert_eq!(found.last_lsn, lsn);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | subject | paper |
//! |---|---|---|
//! | [`options`] | settings, identity, log buffer ids | |
//! | [`log_buffer`] | a log buffer: draw an LSN, copy, exchange | 3.1.1 |
//! | `serial` | the serial log's one buffer: a consolidation array | 2.3, 6.1 (Aether) |
//! | `protocol_buffer`, `buffer_space` | either buffer; sleepers on a full buffer | |
//! | [`record`], [`chunk`] | bytes of records, blocks, chunks | 3.1.2 |
//! | [`lsn_range`], [`lsn_gap`] | many LSNs by one draw; drawn LSNs without a record | not in it |
//! | [`durable_lsn`] | marks and the durable horizon | 3.1.3, Algorithm 4 |
//! | [`epoch`] | commits acknowledged epoch by epoch | 6.3 (Silo) |
//! | [`commit_gate`] | choice of the flushing thread; sleeping committers | 3.2.2 |
//! | `commit_delay`, `committer_count` | delay of a flush for more committers; which thread leads it | |
//! | [`ticket`] | handles to wait for a commit, blocking or `async` | 3.1.3, 3.2.2 |
//! | `stream`, `segment` | flushes and files | 3.1.2 |
//! | `sizes`, `new_blocks` | sizes of files and buffers; the first write of a block | |
//! | `flusher`, [`notifier`] | background jobs and how they are started | |
//! | [`recovery`] | scan, merge, cut | 4.1-4.3, Figure 5 |
//! | [`stats`], [`error`], `failure` | counters, errors, the poisoned log | |

mod buffer_space;
pub mod chunk;
mod commit_delay;
pub mod commit_gate;
mod committer_count;
pub mod durable_lsn;
pub mod epoch;
pub mod error;
mod failure;
mod flusher;
mod log;
pub mod log_buffer;
pub mod lsn_gap;
pub mod lsn_range;
mod new_blocks;
pub mod notifier;
pub mod options;
mod protocol_buffer;
pub mod record;
pub mod recovery;
mod segment;
#[cfg(feature = "baseline-logs")]
pub mod serial;
mod sizes;
pub mod stats;
mod stream;
pub mod ticket;
mod wal;

pub use error::{AppendError, ReplayError, WalError};
pub use lsn_range::Order;
pub use options::{
    Begin, Grown, LogBufferId, LogIdentity, LogProtocol, MAX_LOG_BUFFERS, NoteDurable, UnknownProtocol,
    WalOptions, default_log_buffer_count, default_stream_count,
};
pub use recovery::survey::is_segment;
pub use recovery::{LogRange, Replayed};
pub use segment::{newest_incarnation, remove_segments};
pub use stats::WalStats;
pub use ticket::Ticket;
pub use wal::Wal;
