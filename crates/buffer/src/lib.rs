//! The page cache: fixed frames, a lock-free page table, and the lock-free clock of Nb-GCLOCK.
//!
//! The pool stores pages, not records, and reads only the common header of their content. A read of a
//! resident page costs one atomic addition (fix), or no write to shared memory (peek). Pages are read from
//! and written to a [`PageStore`]; the pool itself has no file.
//!
//! ```
//! use azekura_base::page::PageType;
//! use azekura_base::{Lsn, PageId, durable::NoLog};
//! use azekura_buffer::{BufferPool, FixError, MemStore, PoolOptions};
//! use std::sync::Arc;
//!
//! let one_frame = PoolOptions { page_size: 4096, capacity_bytes: 4096, ..PoolOptions::default() };
//! let pool = BufferPool::new(one_frame, Arc::new(MemStore::new(4096)), Arc::new(NoLog)).unwrap();
//!
//! let mut page = pool.fix(PageId(7))?.exclusive();
//! page.will_change(Lsn(1));
//! page.page_mut().format(PageType::Leaf, PageId(7));
//! assert!(matches!(pool.fix(PageId(8)), Err(FixError::PoolExhausted { .. })), "the only frame is pinned");
//! drop(page);
//! assert_eq!(pool.fix(PageId(8))?.page_id(), PageId(8)); // page 7 was written back to make room
//! # Ok::<(), FixError>(())
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`pool`] | fix, miss (paper Fig. 4); its parts: victims, page-in |
//! | `read_ahead` | pages that will be needed soon, read together |
//! | `frame` | the pin word, and the state that it protects (Fig. 2) |
//! | `page_table` | PageId → frame, lock-free |
//! | `page_hints` | the frame into which each page was last loaded: saves the search of the page table |
//! | `policy` | the choice of the page to evict: the clock sweep (Fig. 5), its hands, two rings, a sketch |
//! | [`guard`] | fixed pages, latched pages, pages read optimistically |
//! | `write_back`, [`cleaner`], `dirty_map` | writes of dirty pages before the hand arrives; dirty frames |
//! | `supply`, `write_queue` | misses that wait for free frames; batches that several threads write at once |
//! | [`store`], [`page_file`] | the storage of pages: the trait, memory, a file with a double-write area |
//! | [`stats`], [`count`] | counts |
//! | `memory`, `touch` | the words of all pages; touched before their first use |
//! | `free_frames`, `index_stack` | free frames, spare buffers: stacks |
//! | `stall` | points at which a test can stop a thread permanently |

pub mod cleaner;
pub mod count;
mod dirty_map;
pub mod error;
#[cfg_attr(not(feature = "parts"), expect(unreachable_pub, reason = "public with the feature `parts`"))]
mod frame;
#[cfg_attr(not(feature = "parts"), expect(unreachable_pub, reason = "public with the feature `parts`"))]
mod free_frames;
pub mod guard;
mod index_stack;
mod memory;
#[cfg(loom)]
#[doc(hidden)]
pub mod model;
pub mod page_file;
mod page_hints;
#[cfg_attr(not(feature = "parts"), expect(unreachable_pub, reason = "public with the feature `parts`"))]
mod page_table;
#[cfg(all(test, not(loom)))]
mod panic_tests;
#[cfg_attr(not(feature = "parts"), expect(unreachable_pub, reason = "public with the feature `parts`"))]
mod policy;
/// Parts of the pool from which the evaluation builds a cache of values other than pages. Not for users.
#[cfg(feature = "parts")]
#[doc(hidden)]
pub mod parts {
    pub use crate::frame::{Evicted, Frame, FrameId, MAX_FRAMES, NO_BUFFER};
    pub use crate::free_frames::FreeFrames;
    pub use crate::page_table::{Inserted, Owners, PageTable};
    pub use crate::policy::{Replacement, Search, Sweep, two_rings::Swap};
}
pub mod pool;
mod read_ahead;
mod stall;
#[cfg(all(test, not(loom)))]
mod stall_tests;
pub mod stats;
pub mod store;
mod supply;
mod touch;
mod write_back;
mod write_queue;

pub use cleaner::Cleaner;
pub use error::{FixError, PoolError, WriteError};
pub use frame::MAX_PAGE_ID;
pub use guard::{ExclusiveGuard, OptimisticPage, PageGuard, PageVersion, Peek, SharedGuard};
pub use page_file::PageFile;
pub use policy::{HandKind, Policy};
pub use pool::{BufferPool, PoolOptions};
pub use read_ahead::{Announced, MOST_ANNOUNCED};
pub use stats::PoolStats;
pub use store::{MemStore, PageStore, StoreError, read_and_copy};
