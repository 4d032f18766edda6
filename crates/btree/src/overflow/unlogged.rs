//! Large values outside the log: their pages are written to the page file before the commit.
//!
//! The log has the record that allocates a run, with the inverse "free these pages". It does not have the
//! content of the pages. Until the commit, only rows of this transaction refer to the pages, and a restart
//! undoes these rows.
//!
//! - **UNLOGGED-1** The commit record is appended when all these pages are durable
//!   ([`UnloggedValues::make_durable`]). It holds the number that the page store had reached then, so that a
//!   restart refuses an older page file.
//! - **UNLOGGED-2** A restart redoes no record of the pages' earlier content: when a run is allocated, the
//!   redo LSN of the durable checkpoint is above the last record that freed a page ([`Env::note_redo_lsn`]).
//!   Both are read while the space map is latched. This is LOAD-2 of [`Loader`](crate::Loader), and the
//!   reason is the same.
//! - **UNLOGGED-3** Such a page has the LSN of the space map's last change before the allocation. This record
//!   is above all records of the page's earlier content, because the record that freed the page changed the
//!   map. So the write of the page waits for that record, and not for the record of the allocation. If a
//!   power loss removes the record of the allocation, the page is free again. By UNLOGGED-2 it is free in
//!   each state that a restart can restore.
//! - **UNLOGGED-4** The pages are written like other dirty pages, not as fresh ones: after a rollback to a
//!   savepoint, such a page may belong to another transaction.

use azekura_base::PageId;

use crate::env::Env;
use crate::error::TreeError;

/// Largest number of unwritten pages of a transaction: 8 MiB of pages of 8 KiB.
const MOST_UNWRITTEN: usize = 1024;

/// The pages of a transaction's large values that are not in the log.
#[derive(Clone, Debug, Default)]
pub struct UnloggedValues {
    /// Bytes of all large values of the transaction.
    bytes: u64,
    /// `true` if the pages of the announced bytes may be left out of the log.
    may_skip: bool,
    /// Pages that may not be in the page file yet.
    unwritten: Vec<PageId>,
    /// `true` if the transaction has pages that are not in the log.
    has_pages: bool,
}

impl UnloggedValues {
    /// Announces the next `bytes` bytes of a large value. Its pages may be left out of the log if the large
    /// values of the transaction, with these bytes, have more than `most_logged` bytes (`None`: never).
    pub fn announce(&mut self, bytes: usize, most_logged: Option<u64>) {
        self.bytes += bytes as u64;
        self.may_skip = most_logged.is_some_and(|most| self.bytes > most);
    }

    pub(crate) const fn may_skip_log(&self) -> bool {
        self.may_skip
    }

    /// Adds a page that was filled. If too many pages are unwritten, writes them. The caller holds no latch.
    pub(crate) fn add(&mut self, env: &Env, page_id: PageId) -> Result<(), TreeError> {
        self.has_pages = true;
        self.unwritten.push(page_id);
        if self.unwritten.len() >= (env.pool().capacity_frames() / 8).clamp(1, MOST_UNWRITTEN) {
            env.pool().flush_and_evict(&self.unwritten, false)?; // UNLOGGED-4
            self.unwritten.clear();
        }
        Ok(())
    }

    /// Makes all pages durable (UNLOGGED-1). Returns the number for the commit record; 0 if there are no
    /// pages. Blocks for writes and a sync of the page file. The caller holds no latch.
    ///
    /// # Errors
    ///
    /// An error of pool or page store: the transaction cannot be committed.
    pub fn make_durable(self, env: &Env) -> Result<u64, TreeError> {
        if !self.has_pages {
            return Ok(0);
        }
        env.pool().flush_and_evict(&self.unwritten, false)?; // UNLOGGED-4
        Ok(env.pool().sync_for_checkpoint()?)
    }
}
