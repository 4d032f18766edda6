//! Runs: pages that follow one another come and go together where the program goes through them one after the
//! other, and alone where it does not.
//!
//! A *page* is the unit of demand: small, so that a random touch transfers little. Each page has its own
//! state, digest and holders, also inside a run. A run saves the costs that do not depend on bytes: one
//! request and one answer, one system call, one fault for many pages. It is at most a *block*,
//! [`BLOCK`](crate::region) bytes that begin at a multiple of their number.
//!
//! | | pages that take part |
//! |---|---|
//! | fetched | the pages that `prefetch` predicts: two, then twice as many each time |
//! | come | the touched page and all adjacent pages that were prefetched and have arrived |
//! | first touched | as fetched, but nothing need come |
//! | may be written; have their bit cleared, and set; leave | those that came together |
//!
//! *Rejected*: large pages of which parts come (a state `Partial` with a map of what is here). The page stays
//! the policy's unit, but each state has a second one, of which digests, copies, children and what is given
//! back each need their own answer; and a large page that is touched in one place takes a large page's room
//! in the policy's eyes.
//!
//! - **RUN-1** A run lies in one block, and has at most [`Plan::run`](super::Plan::run) pages and an eighth
//!   of the local ones: so the pages of a single instruction do not evict each other.
//! - **RUN-2** Resident pages have the same `lead` only if one touch, the lead's, made them resident. They
//!   are adjacent, the lead among them, and are all `Resident` or all `Armed`. The policy has only the lead,
//!   in place of all. So a page that came at random leaves alone, and a sweep looks to the policy as with
//!   large pages.
//! - **RUN-3** A page that becomes local beside a touched one counts as touched in the same way: as written,
//!   if that was written. So every write is noticed (F5); the digest at page-out finds pages that were not
//!   written after all.

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

    /// The page with all beside it in its block that take part.
    pub(super) fn around(&self, page: u32, takes_part: impl Fn(&Entry) -> bool) -> Range<u32> {
        let joins = |other: &u32| {
            self.is_of_same_block(page, *other) && self.pages.get(*other as usize).is_some_and(&takes_part)
        };
        let below = (0..page).rev().take_while(joins).count();
        let above = (page + 1..).take_while(joins).count();
        #[expect(clippy::cast_possible_truncation, reason = "of one block")]
        let (below, above) = (below as u32, above as u32);
        page - below..page + above + 1
    }

    /// A resident page and those that came with it (RUN-2).
    pub(super) fn members(&self, page: u32) -> Range<u32> {
        let lead = self.pages[page as usize].lead;
        let is_resident = |state| matches!(state, State::Resident { .. } | State::Armed { .. });
        self.around(page, |entry| entry.lead == lead && is_resident(entry.state))
    }

    /// Returns the part of a victim's run that leaves: at most as many pages as may (PAGER-1). If it is not
    /// the whole run, it excludes the victim, which represents the rest.
    pub(super) fn leavers(&self, victim: u32) -> Range<u32> {
        let all = self.members(victim);
        let room = self.slack - self.leaving - self.recopying;
        if all.len() <= room {
            return all;
        }
        #[expect(clippy::cast_possible_truncation, reason = "less than a run's length")]
        let room = room as u32;
        let (below, above) = (all.start..victim, victim + 1..all.end);
        if above.len() >= below.len() {
            above.end.saturating_sub(room).max(above.start)..above.end
        } else {
            below.start..below.end.min(below.start + room)
        }
    }

    /// Separates a page that is about to leave from those that came with it: the policy has each of them from
    /// now on.
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

    /// These pages, each with the frame that it is in.
    pub(super) fn with_frames(&self, pages: Range<u32>) -> Vec<(u32, u32)> {
        let frame = |page: u32| match self.pages[page as usize].state {
            State::Staged { frame } | State::Armed { frame: Some(frame), .. } => Some((page, frame)),
            _ => None,
        };
        pages.filter_map(frame).collect()
    }

    /// Frees frames for up to `pages` pages from `first` on; returns the number of free frames.
    pub(super) fn free_frames_for(&mut self, pages: usize, first: u32) -> usize {
        while self.local + pages > self.limit && self.evict(Some(first)) {}
        (self.limit - self.local.min(self.limit)).min(pages)
    }

    /// Makes a page in its frame resident, with the adjacent prefetched pages. Returns their range.
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

    /// Makes a page of zeros resident, and prefetches the predicted pages behind it.
    pub(super) fn touched_empty(&mut self, page: u32, touch: Touch) {
        if self.open(page, touch) {
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
            // SAFETY: a free frame is ours, and as long as a page.
            unsafe { self.backend.frame(frame).write_bytes(0, self.page_bytes) };
        }
        self.local += pages.len();
        self.stats.zero_fills += pages.len() as u64;
        self.meter.filled(touch.since);
        let filled = pages[0]..pages[pages.len() - 1] + 1;
        let pages: Vec<(u32, u32)> = pages.into_iter().zip(frames).collect();
        self.make_resident(&pages, page, touch.access);
        if let Some(prefetch) = &mut self.prefetch {
            prefetch.came_with(page, filled.clone());
        }
        self.look_ahead(guess.map(|guess| guess.behind(filled)));
    }

    /// Beside the page, in the order in which they are expected to be touched first.
    fn filled_with(&self, page: u32, guess: Option<Guess>) -> Vec<u32> {
        let Some(guess) = guess.filter(|_| self.run > 1) else { return Vec::new() };
        let beside = if guess.stride.abs() == 1 { guess.depth } else { guess.thick };
        let is_empty = |next: &u32| {
            self.is_of_same_block(page, *next) && matches!(self.pages[*next as usize].state, State::Empty)
        };
        self.pages_of(guess).take(beside as usize).take_while(is_empty).collect()
    }
}

/// Splits adjacent pages into parts with adjacent frames.
pub(super) fn side_by_side(pages: &[(u32, u32)]) -> impl Iterator<Item = Run> + use<'_> {
    pages.chunk_by(|before, next| before.1 + 1 == next.1).map(|part| {
        #[expect(clippy::cast_possible_truncation, reason = "of one block")]
        let len = part.len() as u32;
        Run { page: part[0].0, frame: part[0].1, len }
    })
}
