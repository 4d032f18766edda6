//! Gives the disk space of free pages back to the file system.
//!
//! - **RELEASE-1** A page is released only if it was freed by a record with an LSN below the redo LSN of the
//!   newest checkpoint, and was neither allocated nor freed since. So the record that freed it is durable, no
//!   tree refers to the page, and a restart redoes no record of the page before a record that allocates it.
//!   That record rewrites the page and does not read it. (A bulk load has no such record. It takes a page
//!   only after the page was allocated, and from then on the page is not free.)
//! - **RELEASE-2** The map of a page is latched while the page is released. So no thread allocates the page
//!   meanwhile, and a thread that allocates it later makes room for it again ([`super::find_pages`]).

use std::ops::Range;

use azekura_base::PageId;
use azekura_base::page::PageType;
use azekura_base::sync::atomic::Ordering::Relaxed;
use azekura_buffer::SharedGuard;

use super::{Recording, group_pages, has_next, is_used, map_of};
use crate::env::Env;
use crate::error::TreeError;

/// Least run of free pages that is released, in bytes. Each run costs a call of the file system and an entry
/// in the file's extent map.
const LEAST_BYTES: usize = 64 << 10;
/// Most bytes that are released by one call, while the map is latched.
const MOST_BYTES: usize = 8 << 20;

/// A release of free pages, which waits for a checkpoint.
#[derive(Debug)]
pub struct FreeSpace {
    changes: Recording,
    /// LSN of the newest record that freed a page when the recording started.
    last_freed: u64,
    /// The page at which the release continues.
    at: PageId,
}

/// The disk space of a store, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Space of the pages that a release would not give back.
    pub kept: u64,
    /// The other space: that of free pages, and the space allocated for the growth of the file.
    pub free: u64,
}

/// The outcome of a part of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// All pages are released.
    All,
    /// There may be more pages to release.
    Part,
    /// The file system has no holes.
    Unsupported,
}

impl Env {
    /// Starts a release of the pages that are free now and stay free until [`FreeSpace::release`].
    ///
    /// # Errors
    ///
    /// An error of reading a space map.
    pub fn free_space(&self) -> Result<FreeSpace, TreeError> {
        let last_freed = self.last_freed();
        let free = FreeSpace { changes: self.space().record(), last_freed, at: PageId(0) };
        // These latches order the start of the recording before all later changes of each map. The records of
        // the earlier changes have been appended, so their LSNs are below the next LSN.
        visit_maps(self, |_, _| ())?;
        Ok(free)
    }

    /// Returns the LSN of the newest record that freed a page since the store was opened; 0 for none. A page
    /// that is freed during the call may be missing.
    #[must_use]
    pub fn last_freed(&self) -> u64 {
        self.space().last_freed().0
    }

    /// Returns `true` if no page was freed since all free pages were released.
    #[must_use]
    pub fn is_released(&self) -> bool {
        // Relaxed: a page that is freed just now is released by the next release.
        self.space().released.load(Relaxed) == self.last_freed()
    }
}

impl FreeSpace {
    /// Returns the disk space of the store, and the part that a release would give back; `None` if the pages
    /// are not in a file with holes.
    ///
    /// # Errors
    ///
    /// An error of reading a space map, or of the page file.
    pub fn disk_space(&self, env: &Env) -> Result<Option<DiskSpace>, TreeError> {
        let Some(taken) = env.pool().disk_bytes()? else { return Ok(None) };
        let mut kept = 0;
        visit_maps(env, |map_id, map| {
            let free: u64 =
                self.runs(env, map_id, map).iter().map(|run| u64::from(run.end - run.start)).sum();
            kept += (group_pages(env.page_size()) - free) * whole_page(env) as u64;
        })?;
        Ok(Some(DiskSpace { kept, free: taken.saturating_sub(kept) }))
    }

    /// Releases pages by at most `most_calls` calls of the file system. Before the first part, a checkpoint
    /// has set the redo LSN at or above the LSN that was next after [`Env::free_space`] (RELEASE-1). An
    /// allocation waits for one call of the file system at most.
    ///
    /// # Errors
    ///
    /// An error of reading a space map, or of the page file.
    pub fn release(&mut self, env: &Env, most_calls: usize) -> Result<Released, TreeError> {
        let (most_pages, mut calls) = ((MOST_BYTES / whole_page(env)) as u32, 0);
        loop {
            let (map_id, from) = map_of(self.at, env.page_size());
            let map = latch(env, map_id)?;
            let (runs, is_last) = (self.runs(env, map_id, &map), !has_next(map.words()));
            drop(map);
            for run in runs {
                for first in (run.start.max(from)..run.end).step_by(most_pages as usize) {
                    if calls == most_calls {
                        return Ok(Released::Part);
                    }
                    calls += 1;
                    let end = run.end.min(first + most_pages);
                    let map = latch(env, map_id)?; // RELEASE-2
                    let is_still_free = (first..end).all(self.free_bits(map_id, &map));
                    let page_id = PageId(map_id.0 + u64::from(first));
                    if is_still_free && !env.pool().release(page_id, end - first)? {
                        return Ok(Released::Unsupported);
                    }
                    self.at = PageId(map_id.0 + u64::from(end));
                }
            }
            if is_last {
                env.space().released.store(self.last_freed, Relaxed); // Relaxed: see `Env::is_released`
                return Ok(Released::All);
            }
            self.at = PageId(map_id.0 + group_pages(env.page_size()));
        }
    }

    /// Truncates the file behind the last page in use, before the store is closed: no page is allocated
    /// later. RELEASE-1 holds as for [`release`](Self::release).
    ///
    /// # Errors
    ///
    /// An error of reading a space map, or of the page file.
    pub fn release_end(&self, env: &Env) -> Result<(), TreeError> {
        let (mut end, bits) = (PageId(0), group_pages(env.page_size()) as u32);
        visit_maps(env, |map_id, map| {
            let last = (0..bits).rev().find(|&bit| is_used(map.words(), bit));
            end = last.map_or(end, |bit| PageId(map_id.0 + u64::from(bit) + 1));
        })?;
        Ok(env.pool().release_end(end)?)
    }

    /// Returns the runs of pages of a group that have been free since the recording started, if they are long
    /// enough.
    fn runs(&self, env: &Env, map_id: PageId, map: &SharedGuard<'_>) -> Vec<Range<u32>> {
        let is_free = self.free_bits(map_id, map);
        let least = LEAST_BYTES.div_ceil(whole_page(env)) as u32;
        let end = group_pages(env.page_size()) as u32;
        let (mut runs, mut first) = (Vec::new(), 0);
        for bit in 0..=end {
            if bit == end || !is_free(bit) {
                if bit - first >= least {
                    runs.push(first..bit);
                }
                first = bit + 1;
            }
        }
        runs
    }

    /// Returns a function that returns `true` for the bits of pages that have been free since the recording
    /// started.
    fn free_bits<'m>(&self, map_id: PageId, map: &'m SharedGuard<'_>) -> impl Fn(u32) -> bool + use<'m> {
        let (changed, words) = (self.changes.changed_bits(map_id), map.words());
        move |bit| {
            let word = changed.get((bit / 64) as usize).copied().unwrap_or(0);
            word >> (bit % 64) & 1 == 0 && !is_used(words, bit)
        }
    }
}

/// Calls a function with each space map, latched.
fn visit_maps(env: &Env, mut visit: impl FnMut(PageId, &SharedGuard<'_>)) -> Result<(), TreeError> {
    let mut map_id = PageId(0);
    loop {
        let map = latch(env, map_id)?;
        visit(map_id, &map);
        if !has_next(map.words()) {
            return Ok(());
        }
        map_id.0 += group_pages(env.page_size());
    }
}

fn latch(env: &Env, map_id: PageId) -> Result<SharedGuard<'_>, TreeError> {
    let map = env.pool().fix(map_id)?.shared();
    if map.words().page_type() == Some(PageType::SpaceMap) {
        return Ok(map);
    }
    Err(TreeError::corrupt(map_id, "not a space map"))
}

/// Returns the bytes of a page in the page file.
fn whole_page(env: &Env) -> usize {
    env.page_size().next_power_of_two()
}
