//! Gives the disk space of free pages back to the file system.
//!
//! - **RELEASE-1** A page is released only if it was freed by a record with an LSN below the redo LSN of the
//!   newest checkpoint, and was neither allocated nor freed since. So the record that freed it is durable, no
//!   tree refers to the page, and a restart redoes no record of the page before a record that allocates it.
//!   That record rewrites the page and does not read it. (A bulk load has no such record. It takes a page
//!   only after the page was allocated, and from then on the page is not free.)
//! - **RELEASE-2** The map of a page is latched while the page is released. So no thread allocates the page
//!   meanwhile, and a thread that allocates it later makes room for it again ([`super::find_pages`]).

use azekura_base::PageId;
use azekura_base::page::PageType;
use azekura_base::sync::atomic::Ordering::Relaxed;
use azekura_buffer::SharedGuard;

use super::{Recording, group_pages, has_next, is_used};
use crate::env::Env;
use crate::error::TreeError;

/// Least run of free pages that is released, in bytes. Each run costs a call of the file system and an entry
/// in the file's extent map.
const LEAST_BYTES: usize = 64 << 10;
/// Most bytes that are released by one call, while the map is latched.
const MOST_BYTES: usize = 8 << 20;

/// A release of free pages, which waits for a checkpoint.
#[derive(Debug)]
pub struct FreeSpace<'e> {
    env: &'e Env,
    changes: Recording<'e>,
    /// LSN of the newest record that freed a page when the recording started.
    last_freed: u64,
}

impl Env {
    /// Starts a release of the pages that are free now and stay free until [`FreeSpace::release`]. Returns
    /// `None` if no page was freed since the last release.
    ///
    /// # Errors
    ///
    /// An error of reading a space map.
    pub fn free_space(&self) -> Result<Option<FreeSpace<'_>>, TreeError> {
        let space = self.space();
        // Relaxed: a page that is freed just now is released by the next call.
        let last_freed = space.last_freed.load(Relaxed);
        if space.released.load(Relaxed) == last_freed {
            return Ok(None);
        }
        let free = FreeSpace { env: self, changes: space.record(), last_freed };
        // These latches order the start of the recording before all later changes of each map. The records of
        // the earlier changes have been appended, so their LSNs are below the next LSN.
        free.maps()?;
        Ok(Some(free))
    }
}

impl<'e> FreeSpace<'e> {
    /// Releases the pages. Before the call, a checkpoint has set the redo LSN at or above the LSN that was
    /// next after [`Env::free_space`] (RELEASE-1). An allocation waits for one call of the file system at
    /// most.
    ///
    /// # Errors
    ///
    /// An error of reading a space map, or of the page file.
    pub fn release(self) -> Result<(), TreeError> {
        let most = (MOST_BYTES / self.whole_page()) as u32;
        for map_id in self.maps()? {
            for (first, count) in self.runs(map_id)? {
                for at in (first..first + count).step_by(most as usize) {
                    let count = most.min(first + count - at);
                    let map = self.latch(map_id)?; // RELEASE-2
                    let is_free = self.free_bits(map_id, &map);
                    let is_still_free = (at..at + count).all(is_free);
                    if is_still_free && !self.env.pool().release(PageId(map_id.0 + u64::from(at)), count)? {
                        return Ok(()); // the file system has no holes
                    }
                }
            }
        }
        self.env.space().released.store(self.last_freed, Relaxed); // Relaxed: see `free_space`
        Ok(())
    }

    /// Returns the runs of pages of a group that have been free since the recording started.
    fn runs(&self, map_id: PageId) -> Result<Vec<(u32, u32)>, TreeError> {
        let map = self.latch(map_id)?;
        let is_free = self.free_bits(map_id, &map);
        let least = LEAST_BYTES.div_ceil(self.whole_page()) as u32;
        let end = group_pages(self.env.page_size()) as u32;
        let (mut runs, mut first) = (Vec::new(), 0);
        for bit in 0..=end {
            if bit == end || !is_free(bit) {
                if bit - first >= least {
                    runs.push((first, bit - first));
                }
                first = bit + 1;
            }
        }
        Ok(runs)
    }

    /// Returns a function that returns `true` for the bits of pages that have been free since the recording
    /// started.
    fn free_bits<'m>(&self, map_id: PageId, map: &'m SharedGuard<'e>) -> impl Fn(u32) -> bool + use<'m, 'e> {
        let changed = self.changes.changed_bits(map_id);
        move |bit| {
            let word = changed.get((bit / 64) as usize).copied().unwrap_or(0);
            word >> (bit % 64) & 1 == 0 && !is_used(map.words(), bit)
        }
    }

    /// Returns all space maps. Each was latched during the call.
    fn maps(&self) -> Result<Vec<PageId>, TreeError> {
        let mut maps = vec![PageId(0)];
        while has_next(self.latch(maps[maps.len() - 1])?.words()) {
            maps.push(PageId(maps.len() as u64 * group_pages(self.env.page_size())));
        }
        Ok(maps)
    }

    fn latch(&self, map_id: PageId) -> Result<SharedGuard<'e>, TreeError> {
        let map = self.env.pool().fix(map_id)?.shared();
        if map.words().page_type() == Some(PageType::SpaceMap) {
            return Ok(map);
        }
        Err(TreeError::corrupt(map_id, "not a space map"))
    }

    /// Returns the bytes of a page in the page file.
    fn whole_page(&self) -> usize {
        self.env.page_size().next_power_of_two()
    }
}
