//! Pages that are paged out: chosen by the policy, sent to replicas, or freed by the program.

use super::Core;
use super::arrivals::Staged;
use super::runs::side_by_side;
use crate::client::{Order, Verb};
use crate::digest::{Digest, is_zero};
use crate::error::Loss;
use crate::fault::{Allow, is_held};
use crate::pager::state::{Entry, Out, Replicas, State, Then};
use crate::replace::{Access, PageNo};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of victims in a row that the kernel holds before the pager waits, and the duration of each wait.
const MANY_HELD: usize = 8;
const HELD_WAIT: Duration = Duration::from_micros(100);
/// Duration after which the program is ended: no direct I/O takes this long.
const MOST_HELD: Duration = Duration::from_secs(10);

impl Core {
    /// Makes a frame free for one more local page. Returns `false` if a page must be paged out first and that
    /// is not possible yet.
    pub(super) fn make_frame_free(&mut self, incoming: Option<u32>) -> bool {
        while self.local >= self.limit {
            if !self.evict(incoming) {
                return false;
            }
        }
        true
    }

    /// Pages out ahead of need, so that a fault does not wait for a page to be paged out.
    pub(super) fn work_ahead(&mut self) {
        while self.reserve() > 0 && self.local + self.reserve() > self.limit && self.leaving < self.slack / 2
        {
            if self.resident < self.limit / 2 || !self.evict(None) {
                return;
            }
        }
    }

    /// Returns `true` if one more page may be paged out (PAGER-1). Pages that are fetched to be copied again
    /// count too, because they will be sent.
    pub(super) fn may_leave(&self) -> bool {
        self.leaving + self.recopying < self.slack
    }

    /// Reduces the number of local pages by at least one. Returns `false` if this is not possible yet.
    pub(super) fn evict(&mut self, incoming: Option<u32>) -> bool {
        // OPEN-2: before a victim is chosen, the existing pages must be known. Some pages of open spans do
        // not exist, so there may be free frames now.
        if self.close_all() {
            return true;
        }
        if !self.may_leave() {
            return false;
        }
        if self.resident == 0 {
            return self.drop_oldest_staged();
        }
        if self.is_stale_staged() && self.drop_oldest_staged() {
            return true;
        }
        let (victim, all, run, frames) = self.take_victim(incoming);
        self.resident -= run.len();
        self.local -= run.len();
        let evicted = run.len();
        let compressed = self.tier.budget_pages();
        let mut leaving = Vec::new();
        for (page, (frame, dirty)) in run.zip(frames) {
            if page == victim {
                self.with_policy(|policy, _| policy.page_out(PageNo(victim)));
            }
            if self.left(page, frame, dirty) {
                leaving.push(page);
            }
        }
        self.send_on(leaving);
        // Memory that the tier took for compressed pages is not available for the slack (SLACK-2).
        let compressed = self.tier.budget_pages() - compressed;
        self.split_anew(all, evicted.saturating_sub(compressed));
        true
    }

    /// Chooses a victim and removes its run, or a part of it, from the region. Returns the victim, the number
    /// of pages of its run, the removed pages, and for each of them its frame and whether it was written. A
    /// victim that the kernel holds stays, and counts as accessed.
    fn take_victim(&mut self, incoming: Option<u32>) -> (u32, usize, Range<u32>, Vec<(u32, bool)>) {
        let mut held = 0;
        let mut since = None;
        loop {
            let victim = self.with_policy(|policy, bits| policy.victim(incoming.map(PageNo), bits)).0;
            let all = self.members(victim).len();
            let run = self.leavers(victim);
            if let Some(frames) = self.take_out(run.clone()) {
                return (victim, all, run, frames);
            }
            held += 1;
            if since.get_or_insert_with(Instant::now).elapsed() > MOST_HELD {
                self.stop_program(&Loss::Held { page: victim });
            }
            if held > MANY_HELD {
                std::thread::sleep(HELD_WAIT);
            }
            self.with_policy(|policy, bits| {
                policy.page_out(PageNo(victim));
                policy.page_in(PageNo(victim), Access::Write, bits);
            });
        }
    }

    /// Removes the pages of a run from the region. Returns, for each page, its frame and whether the page was
    /// written; `None` if the kernel holds one of the pages, and all pages stay.
    fn take_out(&mut self, run: Range<u32>) -> Option<Vec<(u32, bool)>> {
        let states = run.clone().map(|page| self.pages[page as usize].state);
        let armed = states.clone().map_while(|state| match state {
            State::Armed { frame: Some(frame), dirty } => Some((frame, dirty)),
            _ => None,
        });
        let armed: Vec<(u32, bool)> = armed.collect();
        if armed.len() == run.len() {
            return Some(armed);
        }
        let dirty = states.map(|state| match state {
            State::Armed { frame: None, dirty } | State::Resident { dirty, .. } => dirty,
            _ => unreachable!("REPLACE-1: a victim is resident"),
        });
        let dirty: Vec<bool> = dirty.collect();
        let backend = Arc::clone(&self.backend);
        let frames = self.frames.take_empty_run(run.len(), |frame| backend.empty(frame));
        let pages: Vec<(u32, u32)> = run.clone().zip(frames.iter().copied()).collect();
        for part in side_by_side(&pages) {
            match backend.map_out(part) {
                Err(error) if is_held(&error) => {
                    self.put_back(&pages, part.page);
                    for page in run.clone() {
                        self.pages[page as usize].state = State::Resident { writable: true, dirty: true };
                    }
                    self.backend.wake(run);
                    return None;
                }
                done => self.check(part.page, "out", done),
            }
        }
        Some(frames.into_iter().zip(dirty).collect())
    }

    /// Maps the pages before `held` into the region again after they were removed, and frees the frames of
    /// the other pages, which are empty.
    pub(super) fn put_back(&mut self, pages: &[(u32, u32)], held: u32) {
        let (out, others) = pages.split_at(pages.partition_point(|&(page, _)| page < held));
        self.show(out, Allow::ReadWrite);
        others.iter().for_each(|&(_, frame)| self.frames.give_empty(frame));
    }

    /// Decides what happens to a page that was moved into a frame. Returns `true` if the page must be sent to
    /// replicas.
    fn left(&mut self, page: u32, frame: u32, dirty: bool) -> bool {
        self.curve.left(page);
        let Entry { digest, holders, .. } = self.pages[page as usize];
        let held = holders != 0 || digest == self.zero;
        if held && !dirty && self.backend.tells_every_write() {
            self.stats.clean_drops += 1;
            return !(holders != 0 && self.compress(page, frame)) && self.drop_unchanged(page, frame);
        }
        // SAFETY: FAULT-1: the frame has the page's last bytes, and no other thread uses the frame.
        let bytes = unsafe { std::slice::from_raw_parts(self.backend.frame(frame), self.page_bytes) };
        if is_zero(bytes) {
            self.stats.zero_drops += 1;
            self.make_empty(page);
            self.free(frame);
            return false;
        }
        let now = Digest::of(bytes);
        if holders != 0 && now == digest {
            self.stats.clean_drops += 1;
            return !self.compress(page, frame) && self.drop_unchanged(page, frame);
        }
        self.pages[page as usize].digest = now;
        if self.compress(page, frame) {
            // TIER-2: the holders have other bytes than the tier.
            self.forget_at(page, holders);
            self.pages[page as usize].holders = 0;
            return false;
        }
        self.stats.swap_outs += 1;
        self.leaves(page, frame, 0)
    }

    /// Drops an unchanged page that its holders store. If it has too few holders and another server is
    /// available, the page is sent there instead (PAGER-5): its bytes are here, and a holder may be lost
    /// without being detected yet. Returns `true` if the page must be sent.
    fn drop_unchanged(&mut self, page: u32, frame: u32) -> bool {
        if self.can_have_more_holders(page) {
            return self.leaves(page, frame, self.pages[page as usize].holders);
        }
        self.goes_back(page);
        self.free(frame);
        false
    }

    /// Returns `true` if the page has holders, but too few, and another server is available.
    fn can_have_more_holders(&self, page: u32) -> bool {
        let holders = self.pages[page as usize].holders;
        let takers = self.live & !self.full & !holders & self.all_servers();
        self.copies > 1 && holders != 0 && self.is_thin(holders) && takers != 0
    }

    /// Marks a page as stored only by its holders, or as empty if it has none.
    pub(super) fn goes_back(&mut self, page: u32) {
        let holders = self.pages[page as usize].holders;
        self.pages[page as usize].state = if holders == 0 { State::Empty } else { State::Away };
        if holders != 0 && self.is_thin(holders) {
            self.wants_copy(page);
        }
    }

    /// Makes a page empty: it reads as zeros, and replicas need not store it.
    pub(super) fn make_empty(&mut self, page: u32) {
        let holders = self.pages[page as usize].holders;
        self.curve.forget(page);
        self.forget_at(page, holders);
        self.pages[page as usize] = Entry { state: State::Empty, digest: self.zero, holders: 0, lead: page };
    }

    fn forget_at(&mut self, page: u32, holders: Replicas) {
        for (index, replica) in self.replicas.iter().enumerate() {
            if holders & self.live & 1 << index != 0 {
                replica.forget(page);
                self.full &= !(1 << index);
            }
        }
    }

    /// Drops the oldest prefetched page that was not touched, and the pages of its run that follow it.
    pub(super) fn drop_oldest_staged(&mut self) -> bool {
        let Some(&Staged { page: oldest, .. }) = self.staged.front() else { return false };
        let mut leaving = Vec::new();
        let mut dropped = 0;
        while let Some(&Staged { page, .. }) = self.staged.front() {
            let is_sent = self.pages[page as usize].holders == 0 || self.can_have_more_holders(page);
            let follows = page == oldest + dropped && self.is_of_same_block(page, oldest);
            if !follows || is_sent && !self.may_leave() {
                break;
            }
            dropped += 1;
            if self.drop_staged(page) {
                leaving.push(page);
            }
        }
        if let Some(prefetch) = self.prefetch.as_mut().filter(|_| dropped > 0) {
            prefetch.was_wrong();
        }
        self.stats.prefetch_wasted += u64::from(dropped);
        self.send_on(leaving);
        dropped > 0
    }

    /// Drops the first page of the list. Returns `true` if the page must be sent.
    fn drop_staged(&mut self, page: u32) -> bool {
        self.staged.pop_front();
        let State::Staged { frame } = self.pages[page as usize].state else {
            unreachable!("the list has the pages in this state")
        };
        self.local -= 1;
        if self.pages[page as usize].holders == 0 {
            self.leaves(page, frame, 0)
        } else {
            self.drop_unchanged(page, frame)
        }
    }

    /// Marks a page as `Leaving`. The caller then calls `send_on`, which sends the page until enough replicas
    /// store it. The replicas `got` already store it. Returns `true`.
    pub(super) fn leaves(&mut self, page: u32, frame: u32, got: Replicas) -> bool {
        self.leaving += 1;
        let out = Out { open: 0, got, tried: got };
        self.pages[page as usize].state = State::Leaving { frame, touch: None, out, discard: false };
        true
    }

    /// Sends each of these pages, in runs, to as many replicas as it still needs. A page that needs no more
    /// replicas, or for which no replica is left, becomes `Away` when all have replied.
    pub(super) fn send_on(&mut self, pages: Vec<u32>) {
        let mut unasked = pages.clone();
        while !unasked.is_empty() {
            let mut asked = Vec::new();
            for page in unasked.drain(..) {
                asked.extend(std::iter::from_fn(|| self.ask_next(page)).map(|replica| (replica, page)));
            }
            asked.sort_unstable();
            let mut left = &asked[..];
            while let &[(replica, first), ref others @ ..] = left {
                let joins = |(&(to, page), &(_, before)): (&(usize, u32), &(usize, u32))| {
                    to == replica && page == before + 1 && self.is_of_same_block(page, first)
                };
                let len = 1 + others.iter().zip(left).take_while(|&pair| joins(pair)).count();
                let run = left[..len].iter().map(|&(_, page)| self.order(Verb::Put, page)).collect();
                if self.replicas[replica].submit(run).is_err() {
                    self.live &= !(1 << replica);
                    for &(_, page) in &left[..len] {
                        self.has_not(page, replica);
                        unasked.push(page);
                    }
                } else {
                    self.stats.store_requests += 1;
                }
                left = &left[len..];
            }
        }
        for page in pages {
            if let State::Leaving { out: Out { open: 0, .. }, .. } = self.pages[page as usize].state {
                self.has_left(page);
            }
        }
    }

    /// Chooses the next replica for a page, and records it as tried.
    fn ask_next(&mut self, page: u32) -> Option<usize> {
        let State::Leaving { out, .. } = self.pages[page as usize].state else { return None };
        let replica = self.next_replica(page, out)?;
        if let State::Leaving { out, .. } = &mut self.pages[page as usize].state {
            out.tried |= 1 << replica;
            out.open |= 1 << replica;
        }
        Some(replica)
    }

    /// Records that a lost replica will not reply for this page.
    pub(super) fn has_not(&mut self, page: u32, replica: usize) {
        if let State::Leaving { out, .. } = &mut self.pages[page as usize].state {
            out.open &= !(1 << replica);
        }
    }

    /// Returns the next replica for a page. Holders of an older version are first. Otherwise the page number
    /// selects the server, which spreads the pages. The spill file always gets the page, too.
    fn next_replica(&self, page: u32, out: Out) -> Option<usize> {
        let usable = self.live & !self.full & !out.tried;
        let servers = self.all_servers();
        let spill = usable & !servers;
        let has = ((out.got | out.open) & servers).count_ones() as usize;
        if has < self.copies && usable & servers != 0 {
            let old = usable & servers & self.pages[page as usize].holders;
            if old != 0 {
                return Some(old.trailing_zeros() as usize);
            }
            return (0..self.servers)
                .map(|i| (page as usize + i) % self.servers)
                .find(|i| usable & 1 << i != 0);
        }
        (spill != 0).then(|| spill.trailing_zeros() as usize)
    }

    pub(in crate::pager) fn put_answered(&mut self, run: &[Order], replica: usize, refused: Option<String>) {
        let took: Replicas = if refused.is_none() { 1 << replica } else { 0 };
        if let Some(why) = refused {
            self.full |= 1 << replica;
            self.last_refusal = format!("{}: {why}", self.replicas[replica].name());
        }
        for order in run {
            if let State::Leaving { out, .. } = &mut self.pages[order.page as usize].state {
                out.open &= !(1 << replica);
                out.got |= took;
            }
        }
        self.send_on(run.iter().map(|order| order.page).collect());
    }

    /// Ends the page-out of a page: all tried replicas have replied, and no other replica is needed or
    /// available.
    fn has_left(&mut self, page: u32) {
        let State::Leaving { frame, touch, out, discard } = self.pages[page as usize].state else { return };
        if out.got == 0 && !discard {
            if self.closing {
                return;
            }
            self.stop_program(&Loss::NoTaker { page, why: self.last_refusal.clone() });
        }
        let old = self.pages[page as usize].holders & !out.got;
        self.forget_at(page, old);
        self.pages[page as usize].holders = out.got;
        self.leaving -= 1;
        if discard {
            self.make_empty(page);
        } else if let Some(touch) = touch
            && self.local < self.limit
        {
            self.local += 1;
            self.stats.swap_ns += self.meter.came(touch.since);
            return self.make_resident(&[(page, frame)], page, touch.access);
        } else {
            self.goes_back(page);
        }
        self.free(frame);
        if let Some(touch) = touch {
            self.waiting.push_back((page, touch));
        }
    }

    /// Discards pages that the program has freed: they read as zeros.
    pub(in crate::pager) fn discard(&mut self, first: u32, count: u32) {
        let mut mapped = first..first;
        for page in first..first + count {
            if self.discard_one(page) {
                if mapped.end != page {
                    self.discard_mapped(mapped);
                    mapped = page..page;
                }
                mapped.end = page + 1;
            }
        }
        self.discard_mapped(mapped);
        self.serve_waiting();
    }

    /// Discards adjacent pages in one call, because many programs free memory more often than they make any
    /// other system call.
    fn discard_mapped(&self, pages: Range<u32>) {
        if !pages.is_empty() {
            self.check(pages.start, "out", self.backend.discard(pages));
        }
    }

    /// Discards one page. Returns `true` if its bytes are still in the region; the caller then removes them.
    fn discard_one(&mut self, page: u32) -> bool {
        // The policy may change the state of the page in this call.
        self.dissolve(page);
        let mut is_mapped = false;
        match self.pages[page as usize].state {
            // A page of an open span (OPEN-1) stays `Open`; only its bytes are discarded.
            State::Open => return true,
            State::Resident { .. } => {
                is_mapped = true;
                self.forget_resident(page);
            }
            State::Armed { frame, .. } => {
                match frame {
                    Some(frame) => self.free(frame),
                    None => is_mapped = true,
                }
                self.forget_resident(page);
            }
            State::Staged { frame } => {
                self.staged.retain(|staged| staged.page != page);
                self.local -= 1;
                self.free(frame);
            }
            State::Coming { frame, touch, then } => {
                self.forget_guess(then, touch);
                self.pages[page as usize].state = State::Coming { frame, touch, then: Then::Discard };
                return false;
            }
            State::Leaving { frame, touch, out, .. } => {
                self.pages[page as usize].state = State::Leaving { frame, touch, out, discard: true };
                return false;
            }
            State::Compressed => self.drop_compressed(page),
            State::Unmanaged => return false,
            State::Empty | State::Away | State::Lost => {}
        }
        self.make_empty(page);
        is_mapped
    }
}
