//! Runs: consecutive pages are paged in and out together if the program accesses them one after the other,
//! and separately otherwise.
//!
//! A *page* is the unit of demand. It is small, so that a random access transfers few bytes. Each page has
//! its own state, digest and holders, also inside a run. A run saves the costs that do not depend on the
//! number of bytes: many pages need one request and one reply, one system call, and one fault. A run is at
//! most a *block*: an aligned part of the region of [`BLOCK`](crate::region) bytes.
//!
//! | operation | pages that take part |
//! |---|---|
//! | fetch | the pages that `prefetch` predicts: two, then twice as many each time |
//! | page in | the touched page and all adjacent pages that were prefetched and have arrived |
//! | first touch | as for a fetch, but no bytes are transferred |
//! | become writable, clear the bit, set the bit, page out | the pages that were paged in together |
//!
//! *Rejected*: large pages that are paged in partially (a state `Partial` with a map of the present parts).
//! The page would remain the unit of the policy, but each state would get a second variant. Digests, copies,
//! child processes and discards would each need a separate solution for it. A large page that is touched in
//! one place would also count as a whole page in the policy.
//!
//! - **RUN-1** A run is inside one block, and has at most [`Plan::run`](super::Plan::run) pages and an eighth
//!   of the local pages. So the pages of a single instruction do not evict each other.
//! - **RUN-2** Resident pages have the same `lead` only if one touch, that of the lead, made them resident.
//!   They are adjacent, include the lead, and are all `Resident` or all `Armed`. The policy has only the
//!   lead, in place of all of them. So a randomly accessed page is paged out alone, and a sweep appears to
//!   the policy as accesses to large pages.
//! - **RUN-3** A page that becomes local together with a touched page counts as touched in the same way, also
//!   as written. So no write is missed (F5). At page-out, the digest finds the pages that were not written.

use super::{Core, Entry, State};
use crate::fault::Run;
use crate::pager::prefetch::Guess;
use crate::pager::state::Touch;
use crate::replace::{Access, PageNo};
use std::ops::Range;

impl Core {
    pub(super) fn is_of_same_block(&self, page: u32, other: u32) -> bool {
        page as usize / self.run == other as usize / self.run
    }

    /// Returns the longest range of pages around this one, in the same block, for which `takes_part` is true.
    pub(super) fn around(&self, page: u32, takes_part: impl Fn(&Entry) -> bool) -> Range<u32> {
        let joins = |other: &u32| {
            self.is_of_same_block(page, *other) && self.pages.get(*other as usize).is_some_and(&takes_part)
        };
        let below = (0..page).rev().take_while(joins).count();
        let above = (page + 1..).take_while(joins).count();
        #[expect(clippy::cast_possible_truncation, reason = "at most the pages of one block")]
        let (below, above) = (below as u32, above as u32);
        page - below..page + above + 1
    }

    /// Returns a resident page and the pages that were paged in with it (RUN-2).
    pub(super) fn members(&self, page: u32) -> Range<u32> {
        let lead = self.pages[page as usize].lead;
        let is_resident = |state| matches!(state, State::Resident { .. } | State::Armed { .. });
        self.around(page, |entry| entry.lead == lead && is_resident(entry.state))
    }

    /// Returns the part of a victim's run that is paged out: at most as many pages as PAGER-1 allows. If this
    /// is not the whole run, the part excludes the victim, which represents the remaining pages.
    pub(super) fn leavers(&self, victim: u32) -> Range<u32> {
        let all = self.members(victim);
        let room = self.slack - self.leaving - self.recopying;
        if all.len() <= room {
            return all;
        }
        #[expect(clippy::cast_possible_truncation, reason = "less than the pages of a run")]
        let room = room as u32;
        let (below, above) = (all.start..victim, victim + 1..all.end);
        if above.len() >= below.len() {
            above.end.saturating_sub(room).max(above.start)..above.end
        } else {
            below.start..below.end.min(below.start + room)
        }
    }

    /// Splits the run of a page that is about to leave. The policy gets each page of the run separately.
    pub(super) fn dissolve(&mut self, page: u32) {
        let Entry { state: State::Resident { .. } | State::Armed { .. }, lead, .. } =
            self.pages[page as usize]
        else {
            return;
        };
        for member in self.members(page) {
            self.pages[member as usize].lead = member;
            if member != lead {
                self.with_policy(|policy, bits| policy.page_in(PageNo(member), Access::Read, bits));
            }
        }
    }

    /// Returns those of the pages that are in frames, each with its frame.
    pub(super) fn with_frames(&self, pages: Range<u32>) -> Vec<(u32, u32)> {
        let frame = |page: u32| match self.pages[page as usize].state {
            State::Staged { frame } | State::Armed { frame: Some(frame), .. } => Some((page, frame)),
            _ => None,
        };
        pages.filter_map(frame).collect()
    }

    /// Makes frames free for up to `pages` pages, beginning with `first`. Returns the number of free frames,
    /// at most `pages`.
    pub(super) fn free_frames_for(&mut self, pages: usize, first: u32) -> usize {
        while self.local + pages > self.limit && self.evict(Some(first)) {}
        (self.limit - self.local.min(self.limit)).min(pages)
    }

    /// Makes a page that is in its frame resident, with the adjacent prefetched pages. Returns the range of
    /// these pages.
    pub(super) fn come(&mut self, page: u32, access: Access) -> Range<u32> {
        let run = self.around(page, |entry| matches!(entry.state, State::Staged { .. }));
        let pages = self.with_frames(run.clone());
        let before = self.staged.len();
        self.staged.retain(|staged| !run.contains(&staged.page));
        self.stats.prefetch_hits += (before - self.staged.len()) as u64;
        if let Some(prefetch) = &mut self.prefetch {
            prefetch.came_with(page, run.clone());
        }
        self.make_resident(&pages, page, access);
        run
    }

    /// Makes an empty page resident, and prefetches the predicted pages behind it.
    pub(super) fn touched_empty(&mut self, page: u32, touch: Touch) {
        if self.open(page) {
            return;
        }
        if !self.make_frame_free(Some(page)) {
            return self.waiting.push_back((page, touch));
        }
        let guess = self.follow(page);
        let mut pages = vec![page];
        pages.extend(self.filled_with(page, guess));
        pages.truncate(self.free_frames_for(pages.len(), page));
        pages.sort_unstable();
        let frames = self.frames.take_run(pages.len());
        for &frame in &frames {
            // SAFETY: the frame is free, so only this thread uses it, and it is one page long.
            unsafe { self.backend.frame(frame).write_bytes(0, self.page_bytes) };
        }
        self.local += pages.len();
        self.stats.zero_fills += pages.len() as u64;
        let filled = pages[0]..pages[pages.len() - 1] + 1;
        let pages: Vec<(u32, u32)> = pages.into_iter().zip(frames).collect();
        self.make_resident(&pages, page, touch.access);
        if let Some(prefetch) = &mut self.prefetch {
            prefetch.came_with(page, filled.clone());
        }
        self.look_ahead(guess.map(|guess| guess.behind(filled)));
    }

    /// Returns the empty pages to make resident with this one, in the order in which they are expected to be
    /// touched. Reserved pages are empty, too, but stay so: the program has no access to them, and their
    /// mapping permits no move and no read.
    fn filled_with(&self, page: u32, guess: Option<Guess>) -> Vec<u32> {
        let Some(guess) = guess.filter(|_| self.run > 1) else { return Vec::new() };
        let beside = if guess.stride.abs() == 1 { guess.depth } else { guess.thick };
        let is_empty = |next: &u32| {
            self.is_of_same_block(page, *next) && self.is_empty(*next) && !self.backend.reserved().has(*next)
        };
        self.pages_of(guess).take(beside as usize).take_while(is_empty).collect()
    }
}

/// Splits adjacent pages into parts with adjacent frames.
pub(super) fn side_by_side(pages: &[(u32, u32)]) -> impl Iterator<Item = Run> + use<'_> {
    pages.chunk_by(|before, next| before.1 + 1 == next.1).map(|part| {
        #[expect(clippy::cast_possible_truncation, reason = "at most the pages of one block")]
        let len = part.len() as u32;
        Run { page: part[0].0, frame: part[0].1, len }
    })
}
