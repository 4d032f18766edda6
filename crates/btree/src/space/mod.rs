//! Which pages of the file are in use.
//!
//! Page `g * G` is the map of the pages `g * G .. (g + 1) * G`. Taking and freeing pages are operations of
//! the very record that needs them, so no crash leaves a page taken that nothing refers to (large values,
//! whose pages come in several records, carry undo entries for them). The map is latched last, behind all
//! pages of trees; the file grows by itself when a page beyond its end is written.
//!
//! In memory there is only a hint: no free page lies below it, unless in a hole too small for a run that was
//! wanted.

mod map;

use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_base::{Lsn, PageId};
use azekura_buffer::{BufferPool, ExclusiveGuard};

pub(crate) use map::{check_clear, check_set, clear, set};
pub use map::{group_pages, is_used, map_of};

use crate::change::PageOp;
use crate::error::TreeError;

/// Where to look for free pages.
#[derive(Debug)]
pub(crate) struct Space {
    page_size: usize,
    max_pages: u64,
    hint: AtomicU64,
    /// LSN of the newest record that freed a page since the store was opened; 0 for none.
    last_freed: AtomicU64,
}

/// Free pages found, and the latched map that says so: nobody else can take them until it is dropped.
#[derive(Debug)]
pub(crate) struct Found<'p> {
    pub(crate) map: ExclusiveGuard<'p>,
    pub(crate) first: PageId,
    pub(crate) count: u32,
    bit: u32,
}

impl Found<'_> {
    /// The operation on the map that takes the pages.
    pub(crate) const fn op(&self) -> PageOp<'static> {
        PageOp::SpaceSet { first: self.bit, count: self.count }
    }
}

impl Space {
    pub(crate) fn new(page_size: usize, max_pages: u64) -> Self {
        Self { page_size, max_pages, hint: AtomicU64::new(0), last_freed: AtomicU64::new(0) }
    }

    /// Finds up to `want` free pages in one run (at least one) and latches their map. Latch pages of trees
    /// before.
    pub(crate) fn find<'p>(&self, pool: &'p BufferPool, want: u32) -> Result<Found<'p>, TreeError> {
        let group = group_pages(self.page_size);
        // Relaxed, here and below: a hint; the latched map decides.
        let mut from = self.hint.load(Relaxed);
        while from < self.max_pages {
            let (map_id, bit) = map_of(PageId(from), self.page_size);
            let map = pool.fix(map_id)?.exclusive();
            let end = group.min(self.max_pages - map_id.0) as u32;
            let page = map.words();
            if !matches!(page.type_number(), 0 | 1) {
                return Err(TreeError::corrupt(map_id, "not a space map"));
            }
            if let Some((bit, count)) = map::find_run(page, bit, end, want) {
                self.advance(from, map_id.0 + u64::from(bit), u64::from(count), want);
                return Ok(Found { map, first: PageId(map_id.0 + u64::from(bit)), count, bit });
            }
            drop(map);
            self.advance(from, map_id.0 + group, 0, 1);
            from = map_id.0 + group;
        }
        Err(TreeError::SpaceFull { pages: self.max_pages })
    }

    /// The same, and there is room on the disk for the pages: once the log has accepted what is done with
    /// them, they can be written.
    pub(crate) fn find_with_room<'p>(&self, pool: &'p BufferPool, want: u32) -> Result<Found<'p>, TreeError> {
        let found = self.find(pool, want)?;
        pool.make_room(PageId(found.first.0 + u64::from(found.count) - 1))?;
        Ok(found)
    }

    /// Moves the hint from `from` behind the run, unless the run left a hole behind or a page was freed
    /// meanwhile.
    fn advance(&self, from: u64, first: u64, count: u64, want: u32) {
        if want == 1 || first == from {
            let _ = self.hint.compare_exchange(from, first + count, Relaxed, Relaxed);
        }
    }

    /// Latches the map of the run `first ..` and gives the operation that frees it. Latch pages of trees
    /// before.
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

    /// Remembers the LSN of a record that freed pages, whose map is still latched.
    pub(crate) fn freed_by(&self, lsn: Lsn) {
        // Relaxed: whoever takes these pages latches their map after us, and so sees it.
        self.last_freed.fetch_max(lsn.0, Relaxed);
    }

    /// No record with a larger LSN has freed a page of a map that the caller has latched, or had latched
    /// before.
    pub(crate) fn last_freed(&self) -> Lsn {
        Lsn(self.last_freed.load(Relaxed))
    }

    /// Remembers that pages from `first` on have become free.
    pub(crate) fn freed(&self, first: PageId) {
        self.hint.fetch_min(first.0, Relaxed);
    }
}
