//! Synchronization that the papers measured before they replaced it, for the evaluation only.
//!
//! | module | noun |
//! |---|---|
//! | [`rw`] | the reader–writer latch of InnoDB 5.0, with its state under a mutex or in one word |
//! | [`sync_mutex`] | the mutex of InnoDB 5.0: spins, yields, sleeps |

pub mod rw;
pub mod sync_mutex;

pub use sync_mutex::{SyncMutex, SyncMutexGuard};
