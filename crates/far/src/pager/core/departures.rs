//! Pages that leave: chosen by the policy, sent to keepers, or given back by the program.

use super::Core;
use crate::client::{Order, Verb};
use crate::digest::{Digest, is_zero};
use crate::error::Loss;
use crate::pager::state::{Entry, Keepers, Out, State, Then};
use crate::replace::PageNo;
use std::sync::Arc;

impl Core {
    /// Room for one more local page; false if one must leave first that cannot yet.
    pub(super) fn make_room(&mut self, incoming: Option<u32>) -> bool {
        while self.local >= self.limit {
            if !self.evict(incoming) {
                return false;
            }
        }
        true
    }

    /// Keeps some room ahead of need, so that a fault does not pay for the page that leaves.
    pub(super) fn work_ahead(&mut self) {
        while self.reserve > 0 && self.local + self.reserve > self.limit && self.leaving < self.slack / 2 {
            if self.resident < self.limit / 2 || !self.evict(None) {
                return;
            }
        }
    }

    /// Whether one more page may be on its way out (PAGER-1). Those that come to be copied again will leave, too.
    pub(super) fn may_leave(&self) -> bool {
        self.leaving + self.recopying < self.slack
    }

    /// One page less is local.
    fn evict(&mut self, incoming: Option<u32>) -> bool {
        if !self.may_leave() {
            return false;
        }
        if self.resident == 0 {
            return self.drop_oldest_staged();
        }
        let victim = self.with_policy(|policy, bits| policy.victim(incoming.map(PageNo), bits)).0;
        let (frame, dirty) = match self.pages[victim as usize].state {
            State::Armed { frame: Some(frame), dirty } => (frame, dirty),
            State::Armed { frame: None, dirty } | State::Resident { dirty, .. } => {
                let backend = Arc::clone(&self.backend);
                let frame = self.frames.take_empty(|frame| backend.empty(frame));
                self.check(victim, "out", backend.map_out(victim, frame));
                (frame, dirty)
            }
            _ => unreachable!("REPLACE-1: a victim is resident"),
        };
        self.with_policy(|policy, _| policy.page_out(PageNo(victim)));
        self.resident -= 1;
        self.local -= 1;
        self.left(victim, frame, dirty);
        true
    }

    /// A page has left the region for the frame: is there anything to send?
    fn left(&mut self, page: u32, frame: u32, dirty: bool) {
        let Entry { digest, holders, .. } = self.pages[page as usize];
        let held = holders != 0 || digest == self.zero;
        if held && !dirty && self.backend.tells_every_write() {
            self.stats.clean_drops += 1;
            return self.drop_unchanged(page, frame);
        }
        // SAFETY: FAULT-1: the frame has the page's last bytes, and nobody else knows it.
        let bytes = unsafe { std::slice::from_raw_parts(self.backend.frame(frame), self.page_bytes) };
        if is_zero(bytes) {
            self.stats.zero_drops += 1;
            self.make_empty(page);
            return self.free(frame);
        }
        let now = Digest::of(bytes);
        if holders != 0 && now == digest {
            self.stats.clean_drops += 1;
            return self.drop_unchanged(page, frame);
        }
        self.pages[page as usize].digest = now;
        self.stats.swap_outs += 1;
        self.send(page, frame, 0);
    }

    /// A page that its holders have need not be sent, unless they are too few and another can have it now (PAGER-5): its bytes are here, and a holder may be
    /// lost without our knowing yet.
    fn drop_unchanged(&mut self, page: u32, frame: u32) {
        if self.can_have_more_holders(page) {
            return self.send(page, frame, self.pages[page as usize].holders);
        }
        self.goes_back(page);
        self.free(frame);
    }

    /// Whether some have the page, fewer than should, and another could.
    fn can_have_more_holders(&self, page: u32) -> bool {
        let holders = self.pages[page as usize].holders;
        let takers = self.live & !self.full & !holders & self.all_servers();
        self.copies > 1 && holders != 0 && self.is_thin(holders) && takers != 0
    }

    /// What is at its holders is all there is to know of the page.
    pub(super) fn goes_back(&mut self, page: u32) {
        let holders = self.pages[page as usize].holders;
        self.pages[page as usize].state = if holders == 0 { State::Empty } else { State::Away };
        if holders != 0 && self.is_thin(holders) {
            self.wants_copy(page);
        }
    }

    /// The page is zeros, and nobody need keep it.
    pub(super) fn make_empty(&mut self, page: u32) {
        let holders = self.pages[page as usize].holders;
        self.forget_at(page, holders);
        self.pages[page as usize] = Entry { state: State::Empty, digest: self.zero, holders: 0 };
    }

    fn forget_at(&mut self, page: u32, holders: Keepers) {
        for (index, keeper) in self.keepers.iter().enumerate() {
            if holders & self.live & 1 << index != 0 {
                keeper.forget(page);
                self.full &= !(1 << index);
            }
        }
    }

    pub(super) fn drop_oldest_staged(&mut self) -> bool {
        let Some(&page) = self.staged.front() else { return false };
        let is_sent = self.pages[page as usize].holders == 0 || self.can_have_more_holders(page);
        if is_sent && !self.may_leave() {
            return false;
        }
        self.staged.pop_front();
        let State::Staged { frame } = self.pages[page as usize].state else {
            unreachable!("the list has the pages in this state")
        };
        self.stats.prefetch_wasted += 1;
        if let Some(prefetch) = &mut self.prefetch {
            prefetch.was_wrong();
        }
        self.local -= 1;
        if self.pages[page as usize].holders == 0 {
            self.send(page, frame, 0);
        } else {
            self.drop_unchanged(page, frame);
        }
        true
    }

    /// Sends a page to keepers until enough have it; `got` have it already.
    pub(super) fn send(&mut self, page: u32, frame: u32, got: Keepers) {
        self.leaving += 1;
        let out = Out { open: 0, got, tried: got };
        self.pages[page as usize].state = State::Leaving { frame, touch: None, out, discard: false };
        self.send_on(page);
    }

    /// Asks as many keepers as are still wanted; if none is, or none is left, the page is away.
    pub(super) fn send_on(&mut self, page: u32) {
        let State::Leaving { frame, touch, mut out, discard } = self.pages[page as usize].state else {
            return;
        };
        while let Some(keeper) = self.next_keeper(page, out) {
            out.tried |= 1 << keeper;
            let digest = self.pages[page as usize].digest;
            let order = Order {
                verb: Verb::Put,
                page,
                at: self.backend.frame(frame),
                bytes: self.page_bytes,
                digest,
            };
            match self.keepers[keeper].submit(order) {
                Ok(()) => out.open |= 1 << keeper,
                Err(_) => self.live &= !(1 << keeper),
            }
        }
        self.pages[page as usize].state = State::Leaving { frame, touch, out, discard };
        if out.open == 0 {
            self.has_left(page);
        }
    }

    /// Who is asked next: those that hold an older version, then by page number, so that pages spread; the spill file always.
    fn next_keeper(&self, page: u32, out: Out) -> Option<usize> {
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

    pub(in crate::pager) fn put_answered(&mut self, page: u32, keeper: usize, refused: Option<String>) {
        let State::Leaving { out, .. } = &mut self.pages[page as usize].state else { return };
        out.open &= !(1 << keeper);
        match refused {
            None => out.got |= 1 << keeper,
            Some(why) => {
                self.full |= 1 << keeper;
                self.last_refusal = format!("{}: {why}", self.keepers[keeper].name());
            }
        }
        self.send_on(page);
    }

    /// All keepers that were asked have answered, and no more are wanted.
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
            return self.make_resident(page, touch.access, frame);
        } else {
            self.goes_back(page);
        }
        self.free(frame);
        if let Some(touch) = touch {
            self.waiting.push_back((page, touch));
        }
    }

    /// Memory is given back: these pages are zeros.
    pub(in crate::pager) fn discard(&mut self, first: u32, count: u32) {
        for page in first..first + count {
            self.discard_one(page);
        }
        self.serve_waiting();
    }

    fn discard_one(&mut self, page: u32) {
        match self.pages[page as usize].state {
            State::Resident { .. } => {
                self.check(page, "out", self.backend.discard(page));
                self.forget_resident(page);
            }
            State::Armed { frame, .. } => {
                match frame {
                    Some(frame) => self.free(frame),
                    None => self.check(page, "out", self.backend.discard(page)),
                }
                self.forget_resident(page);
            }
            State::Staged { frame } => {
                self.staged.retain(|&other| other != page);
                self.local -= 1;
                self.free(frame);
            }
            State::Coming { frame, touch, then } => {
                self.forget_guess(then, touch);
                self.pages[page as usize].state = State::Coming { frame, touch, then: Then::Discard };
                return;
            }
            State::Leaving { frame, touch, out, .. } => {
                self.pages[page as usize].state = State::Leaving { frame, touch, out, discard: true };
                return;
            }
            State::Empty | State::Away | State::Lost => {}
        }
        self.make_empty(page);
    }

    fn forget_resident(&mut self, page: u32) {
        self.with_policy(|policy, _| policy.page_out(PageNo(page)));
        self.resident -= 1;
        self.local -= 1;
    }
}
