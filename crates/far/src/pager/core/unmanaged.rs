//! Pages that leave far memory permanently, because the program made a call on them that only the kernel can
//! execute.
//!
//! The calling thread pages the pages in by touching them, so it waits without a lock. Then, under the lock,
//! all local pages are passed to the kernel. A page that was paged out in the meantime is touched again.
//!
//! - **UNMANAGED-2** An unmanaged page that has memory counts against the local budget: `limit` shrinks by
//!   one for each, but never below [`LEAST`] and an eighth of its first value, so that the rest of the
//!   program can continue. The policy, the replicas and the frames have no data about such a page.
//! - **UNMANAGED-3** The kernel allocates and frees unmanaged memory without a report. So the maintenance
//!   thread counts this memory at intervals. Until the next count, a page counts if it had bytes when it left
//!   far memory. A large buffer that the program does not use takes no part of the budget: OpenBLAS maps
//!   32 MiB for each thread, and calls `mbind` on them.
//! - **UNMANAGED-4** A page that left far memory before its part of the table was written is `Empty` in the
//!   table: an entry for each page of a large reserved range would cost memory. So a page may be made
//!   resident, or its span opened, only if [`is_empty`](Core::is_empty) is true.

use super::Core;
use crate::error::Loss;
use crate::fault::Allow;
use crate::pager::state::{Entry, State};
use crate::replace::PageNo;
use std::ops::Range;
use std::sync::Arc;

/// Least number of local pages that remain for managed memory. One instruction can touch several pages.
pub(super) const LEAST: usize = 8;

impl Core {
    /// Passes pages to the kernel. Returns the first page that must be touched before the rest can follow.
    pub(in crate::pager) fn unmanage(&mut self, pages: Range<u32>) -> Option<u32> {
        self.close_within(&pages);
        let backend = Arc::clone(&self.backend);
        let is_unmanaged = |page: u32| backend.unmanaged().has(page);
        let mut from = pages.start;
        while from < pages.end {
            let is_remote = |page: u32| {
                matches!(
                    self.pages[page as usize].state,
                    State::Away
                        | State::Compressed
                        | State::Coming { .. }
                        | State::Leaving { .. }
                        | State::Lost
                )
            };
            let run = from..(from..pages.end).find(|&p| is_unmanaged(p) || is_remote(p)).unwrap_or(pages.end);
            from = run.end;
            if !run.is_empty() {
                let full = self.unmanage_local(run);
                self.count_unmanaged(self.unmanaged + full);
            }
            if from == pages.end {
                break;
            }
            match self.pages[from as usize].state {
                _ if is_unmanaged(from) => from += 1,
                State::Lost => self.stop_program(&Loss::Page { page: from }),
                _ => return Some(from),
            }
        }
        self.serve_waiting();
        None
    }

    /// Passes pages that are all local or empty to the kernel. Returns the number of pages with bytes.
    fn unmanage_local(&mut self, pages: Range<u32>) -> usize {
        let mut full = 0;
        for page in pages.clone() {
            if self.pages.is_blank(page as usize) {
                continue; // UNMANAGED-4
            }
            self.dissolve(page);
            full += usize::from(!matches!(self.pages[page as usize].state, State::Empty));
            match self.pages[page as usize].state {
                State::Resident { .. } => self.forget_resident(page),
                State::Armed { frame: Some(frame), .. } => {
                    self.show(&[(page, frame)], Allow::ReadWrite);
                    self.forget_resident(page);
                }
                State::Armed { frame: None, .. } => {
                    self.check(page, "again", self.backend.open(page..page + 1, Allow::ReadWrite));
                    self.forget_resident(page);
                }
                State::Staged { frame } => {
                    self.staged.retain(|staged| staged.page != page);
                    self.local -= 1;
                    self.show(&[(page, frame)], Allow::ReadWrite);
                }
                _ => {} // empty: the kernel allocates it
            }
            self.make_empty(page);
            self.pages[page as usize] =
                Entry { state: State::Unmanaged, digest: self.zero, holders: 0, lead: page };
        }
        if let Err(source) = self.backend.unmanage(pages.clone()) {
            self.stop_program(&Loss::Unmanage { page: pages.start, pages: pages.len(), source });
        }
        self.backend.wake(pages);
        full
    }

    /// Adapts `limit` to the number of unmanaged pages with memory (UNMANAGED-2), and pages out the excess
    /// pages.
    pub(in crate::pager) fn count_unmanaged(&mut self, pages: usize) {
        self.unmanaged = pages;
        let bytes = (pages * self.page_bytes) as u64;
        self.stats.unmanaged_bytes = self.stats.unmanaged_bytes.max(bytes);
        self.set_limit();
        self.open.shrink(self.limit);
        while self.local > self.limit && self.evict(None) {}
    }

    /// Recomputes `limit`: unmanaged and compressed pages take a part of it.
    pub(super) fn set_limit(&mut self) {
        let least = (self.full_limit / 8).max(LEAST).min(self.full_limit);
        let taken = self.unmanaged + self.tier.budget_pages();
        self.limit = self.full_limit.saturating_sub(taken).max(least);
    }

    /// Returns the size of a page in bytes.
    pub(in crate::pager) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Returns `true` if a page is empty and managed (UNMANAGED-4).
    pub(super) fn is_empty(&self, page: u32) -> bool {
        matches!(self.pages[page as usize].state, State::Empty) && !self.backend.unmanaged().has(page)
    }

    /// Handles a fault on an unmanaged page, which happened before the page was passed to the kernel.
    pub(super) fn touched_unmanaged(&mut self, page: u32) {
        self.backend.wake(page..page + 1);
    }

    /// Removes a resident page from the policy.
    pub(super) fn forget_resident(&mut self, page: u32) {
        self.with_policy(|policy, _| policy.page_out(PageNo(page)));
        self.resident -= 1;
        self.local -= 1;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::model::{PAGE, machine::Machine};
    use super::super::{Core, Plan};
    use crate::fault::{Backend, Fault};
    use crate::pager::state::State;
    use crate::replace::{Access, Policy, Shape};
    use std::sync::Arc;

    const PAGES: u32 = 16;
    /// The page that is passed to the kernel before any page was touched.
    const GUARD: u32 = 5;

    /// A stream touches the pages around an unmanaged page, with memory for `limit` pages.
    fn sweep(limit: usize, seed: u64) {
        let machine = Arc::new(Machine::new(false, PAGES as usize, 40, seed));
        let backend: Arc<dyn Backend> = machine.clone();
        let plan = Plan {
            pages: PAGES,
            page_bytes: PAGE,
            limit,
            slack: 2,
            frames: 40,
            run: 8,
            cluster: 1,
            policy: Policy::Fifo.build(Shape { pages: PAGES, frames: 32 }, seed),
            prefetch: true,
            copies: 1,
            compression: crate::compression::Compression::None,
            on_loss: |message| panic!("{message}"),
        };
        let mut core = Core::new(backend, plan);
        assert_eq!(core.unmanage(GUARD..GUARD + 1), None);
        // A thread touched the page just before it left.
        core.answer(Fault { page: GUARD, access: Access::Write });
        for page in (0..PAGES).filter(|&page| page != GUARD) {
            if !machine.touch(page, Access::Read, 0) {
                core.answer(Fault { page, access: Access::Read });
                assert!(machine.touch(page, Access::Read, 0), "page {page}");
            }
            let is_local = matches!(core.pages[GUARD as usize].state, State::Open | State::Resident { .. });
            assert!(!is_local, "page {page}, {limit} local pages, seed {seed}");
        }
        core.close_all();
        assert!(!matches!(core.pages[GUARD as usize].state, State::Resident { .. }));
    }

    #[test]
    fn a_page_that_leaves_before_it_is_touched_never_becomes_resident_with_its_neighbors() {
        for seed in 0..50 {
            [4, 12, 32].into_iter().for_each(|limit| sweep(limit, seed));
        }
    }
}
