//! Pages that are paged in: requested, lost in transfer, received, or prefetched.

use super::Core;
use crate::client::{Order, Verb};
use crate::error::Loss;
use crate::pager::prefetch::Guess;
use crate::pager::state::{Entry, State, Then, Touch};

/// Largest number of runs that may be prefetched or in flight before they are touched.
const RUNS_AHEAD: usize = 16;

/// Number of demand misses after which a prefetched page that was not touched is stale. A fetch takes about
/// as long as one miss, so such a page was fetched much too early, or for nothing.
const LIFE: u64 = 64;

/// A prefetched page that is in its frame and was not touched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Staged {
    pub(super) page: u32,
    /// Number of demand misses before the page arrived.
    pub(super) misses: u64,
}

/// Returns the largest number of pages that may be prefetched or in flight before they are touched.
pub(super) fn most_ahead(limit: usize, run: usize) -> usize {
    (limit / 4).min(RUNS_AHEAD * run)
}

impl Core {
    /// Requests pages from their holders. There are enough free frames. The pages are in ascending order, so
    /// that adjacent pages are requested as runs. One of them may have been touched.
    pub(super) fn fetch(&mut self, pages: &[u32], touched: Option<(u32, Touch)>, then: Then) {
        let frames = self.frames.take_run(pages.len());
        self.local += pages.len();
        for (&page, frame) in pages.iter().zip(frames) {
            let touch = touched.filter(|&(touched, _)| touched == page).map(|(_, touch)| touch);
            self.pages[page as usize].state = State::Coming { frame, touch, then };
        }
        self.ask_for(pages);
    }

    /// Sends requests for pages that are `Coming`.
    pub(super) fn ask_for(&mut self, pages: &[u32]) {
        let mut left = pages;
        while let &[first, ref others @ ..] = left {
            let Some(replica) = self.giver(first) else {
                self.is_lost(first);
                left = others;
                continue;
            };
            let joins = |(&page, before): (&u32, &u32)| {
                page == before + 1 && self.is_of_same_block(page, first) && self.giver(page) == Some(replica)
            };
            let len = 1 + others.iter().zip(left).take_while(|&pair| joins(pair)).count();
            let run = left[..len].iter().map(|&page| self.order(Verb::Get, page)).collect();
            match self.replicas[replica].submit(run) {
                Ok(()) => {
                    self.stats.fetch_requests += 1;
                    left = &left[len..];
                }
                // The replica is being lost. It returns its open orders itself.
                Err(_) => self.live &= !(1 << replica),
            }
        }
    }

    /// Returns the replica from which a page is requested. Servers are preferred to the spill file.
    pub(super) fn giver(&self, page: u32) -> Option<usize> {
        let holders = self.pages[page as usize].holders & self.live;
        (holders != 0).then(|| holders.trailing_zeros() as usize)
    }

    /// Returns an order for a page that has a frame.
    pub(super) fn order(&self, verb: Verb, page: u32) -> Order {
        let Entry { state, digest, .. } = self.pages[page as usize];
        let (State::Coming { frame, .. } | State::Leaving { frame, .. }) = state else {
            unreachable!("orders are for pages under way")
        };
        Order { verb, page, at: self.backend.frame(frame), bytes: self.page_bytes, digest }
    }

    /// Marks a page in flight as lost: no replica has it.
    fn is_lost(&mut self, page: u32) {
        let State::Coming { frame, touch, then } = self.pages[page as usize].state else { return };
        if then != Then::Discard && touch.is_some() {
            self.stop_program(&Loss::Page { page });
        }
        self.local -= 1;
        self.forget_guess(then, touch);
        self.pages[page as usize].state = if then == Then::Discard { State::Empty } else { State::Lost };
        self.free(frame);
    }

    pub(super) fn forget_guess(&mut self, then: Then, touch: Option<Touch>) {
        match then {
            Then::Use if touch.is_none() => self.guessed -= 1,
            Then::Recopy => self.recopying -= 1,
            _ => {}
        }
    }

    /// Handles the arrival of these pages, which are in their frames and match their digests.
    pub(in crate::pager) fn arrived(&mut self, run: &[Order]) {
        // Pages without a waiting thread are handled first. They are then `Staged`, and become resident
        // together with a page for which a thread waits.
        let is_awaited = |core: &Self, page: u32| {
            matches!(core.pages[page as usize].state, State::Coming { touch: Some(_), .. })
        };
        let (awaited, guessed): (Vec<u32>, Vec<u32>) =
            run.iter().map(|order| order.page).partition(|&page| is_awaited(self, page));
        guessed.into_iter().chain(awaited).for_each(|page| self.arrived_one(page));
    }

    fn arrived_one(&mut self, page: u32) {
        let State::Coming { frame, touch, then } = self.pages[page as usize].state else { return };
        self.forget_guess(then, touch);
        match (then, touch) {
            (Then::Discard, _) => {
                self.local -= 1;
                self.make_empty(page);
                self.free(frame);
                if let Some(touch) = touch {
                    self.touched(page, touch);
                }
            }
            (_, Some(touch)) => {
                let waited = self.meter.came(touch.since);
                self.stats.swap_ns += waited;
                self.tier.fetched(waited);
                self.pages[page as usize].state = State::Staged { frame };
                self.come(page, touch.access);
            }
            (Then::Use, None) => {
                self.pages[page as usize].state = State::Staged { frame };
                self.stage(page);
            }
            (Then::Recopy, None) => {
                self.local -= 1;
                self.stats.recopied += 1;
                let got = self.pages[page as usize].holders;
                self.leaves(page, frame, got);
                self.send_on(vec![page]);
            }
        }
    }

    /// Adds a page to the list of prefetched pages in their frames.
    pub(super) fn stage(&mut self, page: u32) {
        let misses = self.demand_misses();
        self.staged.push_back(Staged { page, misses });
    }

    fn demand_misses(&self) -> u64 {
        self.stats.swap_ins + self.stats.compressed_ins
    }

    /// Returns `true` if the oldest prefetched page has waited for more than [`LIFE`] misses.
    pub(super) fn is_stale_staged(&self) -> bool {
        self.staged.front().is_some_and(|oldest| self.demand_misses() - oldest.misses > LIFE)
    }

    /// Predicts the pages that will be touched after this one, which was not resident. Resident pages cause
    /// no fault, so the prediction skips them.
    pub(super) fn follow(&mut self, page: u32) -> Option<Guess> {
        let is_passed = |page: u32| {
            self.pages.get(page as usize).is_some_and(|entry| {
                matches!(
                    entry.state,
                    State::Open | State::Resident { .. } | State::Armed { .. } | State::Leaving { .. }
                )
            })
        };
        let unit = self.clusters.unit(page);
        self.prefetch.as_mut().and_then(|prefetch| prefetch.touched(page, unit, is_passed))
    }

    /// Prefetches the pages that are expected next.
    pub(super) fn look_ahead(&mut self, guess: Option<Guess>) {
        let Some(guess) = guess else { return };
        let most = most_ahead(self.limit, self.run);
        let is_wanted = |core: &Self, page: u32| {
            let entry = &core.pages[page as usize];
            matches!(entry.state, State::Away) && entry.holders & core.live != 0
        };
        let mut wanted: Vec<u32> =
            self.pages_of(guess).filter(|&page| is_wanted(self, page)).take(most).collect();
        while self.guessed + self.staged.len() + wanted.len() > most {
            if !self.drop_oldest_staged() {
                wanted.truncate(most.saturating_sub(self.guessed + self.staged.len()));
                break;
            }
        }
        let Some(&next) = wanted.first() else { return };
        wanted.truncate(self.free_frames_for(wanted.len(), next));
        wanted.retain(|&page| is_wanted(self, page));
        wanted.sort_unstable();
        self.guessed += wanted.len();
        self.stats.prefetches += wanted.len() as u64;
        self.fetch(&wanted, None, Then::Use);
    }

    /// Returns the predicted pages that are inside the region, in the order in which they are expected.
    pub(super) fn pages_of(&self, guess: Guess) -> impl Iterator<Item = u32> + use<> {
        let pages = self.pages.len();
        guess.pages().filter_map(move |page| u32::try_from(page).ok().filter(|&page| (page as usize) < pages))
    }
}
