//! Allocates the pages of the file.
//!
//! Page `g * G` is the map of the pages `g * G .. (g + 1) * G`. Pages are allocated and freed by operations
//! in the record that needs them, so no crash leaves a used page without a reference. (Large values, with
//! pages in several records, have undo entries for their pages.) The map is latched last, after all pages of
//! trees. The file grows when a page beyond its end is written.
//!
//! Memory holds only a hint: no free page is below the hint, except in a hole too small for a requested run.

mod changes;
mod map;
mod release;

use std::sync::Arc;

use azekura_base::page::PageType;
use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_base::{Lsn, PageId};
use azekura_buffer::{BufferPool, ExclusiveGuard, FixError, StoreError};
use azekura_wal::LogBufferId;

pub(crate) use changes::Recording;
pub(crate) use map::{check_clear, check_make, check_next, check_set, clear, make, set, set_next};
pub use map::{group_pages, has_next, is_used, map_of};
pub use release::{DiskSpace, FreeSpace, Released};

use crate::change::PageOp;
use crate::env::Env;
use crate::error::TreeError;
use crate::record::Head;

/// The state of page allocation: the hint at which to start the search for free pages.
#[derive(Debug)]
pub(crate) struct Space {
    page_size: usize,
    max_pages: u64,
    hint: AtomicU64,
    /// LSN of the newest record that freed a page since the store was opened; 0 for none.
    last_freed: AtomicU64,
    /// The value of `last_freed` up to which the space of free pages was given back; `u64::MAX` for none.
    released: AtomicU64,
    recordings: Arc<changes::Recordings>,
}

/// Free pages, and their latched map: no other thread can allocate these pages until this value is dropped.
#[derive(Debug)]
pub(crate) struct Found<'p> {
    pub(crate) map: ExclusiveGuard<'p>,
    pub(crate) first: PageId,
    pub(crate) count: u32,
    bit: u32,
}

impl Found<'_> {
    /// Returns the operation on the map that allocates the pages.
    pub(crate) const fn op(&self) -> PageOp<'static> {
        PageOp::SpaceSet { first: self.bit, count: self.count }
    }
}

/// Finds a run of up to `want` free pages (at least one) and latches their map. Makes the next map, by a
/// separate record, if all other maps are full. Afterward the disk has space for the pages: once the log has
/// accepted a change of them, they can be written. Latch pages of trees before the call; `latched` are these
/// pages. The caller would wait for itself if a damaged map marked one of them as free.
pub(crate) fn find_pages<'e>(
    env: &'e Env,
    log_buffer: LogBufferId,
    want: u32,
    latched: &[PageId],
) -> Result<Found<'e>, TreeError> {
    let space = env.space();
    let group = group_pages(space.page_size);
    // Relaxed, here and below: the value is a hint; the latched map decides.
    let mut from = space.hint.load(Relaxed);
    while from < space.max_pages {
        let (map_id, bit) = map_of(PageId(from), space.page_size);
        let map = env.pool().fix(map_id)?.exclusive();
        if map.words().page_type() != Some(PageType::SpaceMap) {
            return Err(TreeError::corrupt(map_id, "not a space map"));
        }
        let (next, end) = (map_id.0 + group, group.min(space.max_pages - map_id.0) as u32);
        if let Some((bit, count)) = map::find_run(map.words(), bit, end, want) {
            let first = map_id.0 + u64::from(bit);
            let is_found = |page: &PageId| (first..first + u64::from(count)).contains(&page.0);
            if is_found(&map_id) || latched.iter().any(is_found) {
                return Err(TreeError::corrupt(map_id, "a space map marks a page in use as free"));
            }
            env.pool().make_room(PageId(first), count)?;
            // The hint does not move past a hole. It stays in a group that has a map.
            if want == 1 || first == from {
                space.advance(from, (first + u64::from(count)).min(next - 1));
            }
            return Ok(Found { map, first: PageId(first), count, bit });
        }
        if next < space.max_pages && !has_next(map.words()) {
            make_next(env, log_buffer, map, PageId(next))?;
        }
        space.advance(from, next);
        from = next;
    }
    Err(TreeError::SpaceFull { pages: space.max_pages })
}

/// Makes the map `next` of the next group; `map` is the last map so far.
fn make_next(
    env: &Env,
    log_buffer: LogBufferId,
    map: ExclusiveGuard<'_>,
    next: PageId,
) -> Result<(), TreeError> {
    env.pool().make_room(next, 1)?;
    let mut guards = [map, fix_unwritten(env.pool(), next)?];
    let ops = [(0, PageOp::SpaceNext), (1, PageOp::SpaceMake { used: 0 })];
    env.apply_logged(log_buffer, &Head::System, &mut guards, &ops).map(drop)
}

/// Fixes and latches a page for a new space map. The page must be unwritten: a written page there is in use,
/// so an earlier map is damaged.
pub(crate) fn fix_unwritten(pool: &BufferPool, page_id: PageId) -> Result<ExclusiveGuard<'_>, TreeError> {
    match pool.fix(page_id) {
        Err(FixError::Read(StoreError::Unwritten { .. })) => Ok(pool.fix_new(page_id)?),
        Err(error) => Err(error.into()),
        Ok(guard) => {
            let guard = guard.exclusive();
            if guard.words().page_type() == Some(PageType::Free) {
                return Ok(guard);
            }
            Err(TreeError::corrupt(page_id, "in use, but not marked in a space map"))
        }
    }
}

impl Space {
    pub(crate) fn new(page_size: usize, max_pages: u64) -> Self {
        Self {
            page_size,
            max_pages,
            hint: AtomicU64::new(0),
            last_freed: AtomicU64::new(0),
            released: AtomicU64::new(u64::MAX),
            recordings: Arc::default(),
        }
    }

    /// Moves the hint from `from` to `to`, unless a page was freed meanwhile.
    fn advance(&self, from: u64, to: u64) {
        let _ = self.hint.compare_exchange(from, to, Relaxed, Relaxed);
    }

    /// Latches the map of the run `first ..` and returns the operation that frees it. Latch pages of trees
    /// before the call.
    pub(crate) fn freeing<'p>(
        &self,
        pool: &'p BufferPool,
        first: PageId,
        count: u32,
    ) -> Result<(ExclusiveGuard<'p>, PageOp<'static>), TreeError> {
        let (map_id, bit) = map_of(first, self.page_size);
        let map = pool.fix(map_id)?.exclusive();
        Ok((map, PageOp::SpaceClear { first: bit, count }))
    }

    /// Stores the LSN of a record that freed pages; their map is still latched.
    pub(crate) fn freed_by(&self, lsn: Lsn) {
        // Relaxed: a thread that allocates these pages latches their map later, and so reads this value or a
        // later one.
        self.last_freed.fetch_max(lsn.0, Relaxed);
    }

    /// Returns an LSN above which no record has freed a page of a map that the caller has latched or had
    /// latched before.
    pub(crate) fn last_freed(&self) -> Lsn {
        Lsn(self.last_freed.load(Relaxed))
    }

    /// Moves the hint down to `first`, which has become free.
    pub(crate) fn freed(&self, first: PageId) {
        self.hint.fetch_min(first.0, Relaxed);
    }
}
