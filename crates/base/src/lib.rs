//! The base crate of Azekura: identifiers, page bytes, checksums, and the only import of atomics and locks.
//!
//! The crate is not a collection of utilities: each module is here because two crates that must not depend
//! on each other need it (the page cache and the log share [`DurableLog`]; the cache and the tree share
//! [`page`]).
//!
//! ```
//! use azekura_base::{Lsn, PageId};
//! assert!(Lsn(7).next() > Lsn(7));
//! assert_eq!(PageId(3).to_string(), "3");
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`id`] | `PageId`, `Lsn`, `TxnId`, `TreeId` |
//! | [`page`] | page bytes as relaxed atomic words, and the header of every page |
//! | [`checksum`] | CRC-32C |
//! | [`cipher`] | interface of encryption for the page file, the log and the archive |
//! | [`durable`] | interface of the log for the page cache |
//! | [`sync`] | the only import of std or loom atomics, mutexes and parking |
//! | [`background`] | background work of stores, executed by threads of the process |
//! | [`backoff`] | exponential back-off for spins |
//! | [`bytes`] | little-endian numbers in the bytes of a file |
//! | [`blocking`] | a hook that runs before a thread blocks |
//! | [`fork`] | detection of forked processes |
//! | [`inherited`] | state that a command passes on to the program that it starts |
//! | [`cgroup`] | the control groups of a process |
//! | [`memory`] | the memory that this process may use |
//! | [`mod@prefetch`] | a hint to load memory into the processor's cache |
//! | [`rate_limit`] | a limit on the number of log lines of one kind |
//! | [`shared_block`] | reference-counted bytes with a value that several blocks share |
//! | [`striped`] | counters spread over cache lines |
//! | [`zeroed`] | arrays that use memory only for the parts that are used |
//! | [`varint`] | variable-length integers of the log and the control file |

pub mod background;
pub mod backoff;
pub mod blocking;
pub mod bytes;
pub mod cgroup;
pub mod checksum;
pub mod cipher;
pub mod durable;
pub mod fork;
pub mod id;
pub mod inherited;
pub mod memory;
pub mod page;
pub mod prefetch;
#[cfg(not(loom))]
pub mod rate_limit;
pub mod shared_block;
pub mod striped;
pub mod sync;
pub mod varint;
pub mod zeroed;

pub use backoff::Backoff;
pub use cipher::Cipher;
pub use crossbeam_utils::CachePadded;
pub use durable::{DurableLog, LogFailed};
pub use id::{Lsn, PageId, TreeId, TxnId};
pub use page::{PageBuf, PageWords};
pub use prefetch::prefetch;
pub use shared_block::SharedBlock;
pub use striped::{PerStripe, StripedCounter, StripedCounters, processors};
