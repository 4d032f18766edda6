//! Algorithms for the evaluation only: synchronization that the papers measured and then replaced, a cache
//! for values other than pages, and the successor of the interface of a paper's device.
//!
//! | module | content |
//! |---|---|
//! | [`general_cache`] | the page cache's method for keyed values of any type |
//! | `ring_fs` | synchronous writes by io_uring, atomic if the device supports that |
//! | [`rw`] | the reader–writer latch of InnoDB 5.0, with its state under a mutex or in one word |
//! | [`sync_mutex`] | the mutex of InnoDB 5.0: spins, yields, sleeps |
//! | [`ttas`] | test-and-test-and-set with exponential back-off |

pub mod general_cache;
#[cfg(not(loom))]
pub mod ring_fs;
pub mod rw;
pub mod sync_mutex;
pub mod ttas;

pub use sync_mutex::{SyncMutex, SyncMutexGuard};
pub use ttas::{TtasGuard, TtasLock};
