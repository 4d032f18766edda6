//! Latches: short-term locks that protect the bytes of a page while they are read or changed.
//!
//! Latches have no deadlock detection: callers acquire them in a fixed order. A waiting thread spins, then
//! yields, then sleeps, because a holder may be waiting for I/O. Each contended wait is traced.
//!
//! ```
//! use azekura_latch::HybridLatch;
//! let latch = HybridLatch::new();
//! let seen = latch.optimistic().expect("nobody holds it");
//! assert!(latch.validate(seen));
//! latch.lock_exclusive();
//! assert!(latch.optimistic().is_none());
//! latch.unlock_exclusive();
//! assert!(!latch.validate(seen), "something may have changed");
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`gate`] | admission of threads by a published value; its changes wait for the threads inside |
//! | [`hybrid`] | one word: version, shared holders, exclusive holder |
//! | [`park`] | wait words for sleeping threads |
//! | [`traced`] | a mutex with traced waits and holds |

pub mod gate;
pub mod hybrid;
pub mod park;
pub mod traced;

pub use hybrid::{HybridLatch, Version};
pub use traced::{TracedGuard, TracedMutex};
