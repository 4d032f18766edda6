//! Pages that come: asked for, lost on the way, there, or guessed ahead of need.

use super::Core;
use crate::client::{Order, Verb};
use crate::error::Loss;
use crate::pager::prefetch::Guess;
use crate::pager::state::{Entry, State, Then, Touch};

impl Core {
    /// Asks a holder for the page, for which there is room.
    pub(super) fn fetch(&mut self, page: u32, touch: Option<Touch>, then: Then) {
        let frame = self.frames.take();
        self.local += 1;
        self.pages[page as usize].state = State::Coming { frame, touch, then };
        self.ask_for(page, frame);
    }

    pub(super) fn ask_for(&mut self, page: u32, frame: u32) {
        loop {
            let Entry { holders, digest, .. } = self.pages[page as usize];
            if holders & self.live == 0 {
                return self.is_lost(page);
            }
            // Servers come before the spill file.
            let keeper = (holders & self.live).trailing_zeros() as usize;
            let order = Order {
                verb: Verb::Get,
                page,
                at: self.backend.frame(frame),
                bytes: self.page_bytes,
                digest,
            };
            match self.keepers[keeper].submit(order) {
                Ok(()) => return,
                // It is being lost; what it held is marked when it says so itself.
                Err(_) => self.live &= !(1 << keeper),
            }
        }
    }

    /// Nobody has a page that was to come.
    fn is_lost(&mut self, page: u32) {
        let State::Coming { frame, touch, then } = self.pages[page as usize].state else { return };
        if then != Then::Discard && touch.is_some() {
            self.stop_program(&self.loss_of(page));
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

    pub(super) fn loss_of(&self, page: u32) -> Loss {
        let from = page as usize * self.page_bytes;
        Loss::Page { page, from, to: from + self.page_bytes }
    }

    /// The page is in its frame, and is what it was.
    pub(in crate::pager) fn arrived(&mut self, page: u32) {
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
                self.stats.swap_ns += self.meter.came(touch.since);
                self.make_resident(page, touch.access, frame);
            }
            (Then::Use, None) => {
                self.pages[page as usize].state = State::Staged { frame };
                self.staged.push_back(page);
            }
            (Then::Recopy, None) => {
                self.local -= 1;
                self.stats.recopied += 1;
                let got = self.pages[page as usize].holders;
                self.send(page, frame, got);
            }
        }
    }

    /// What will be touched next is fetched now.
    pub(super) fn look_ahead(&mut self, page: u32) {
        let Some(guess) = self.prefetch.as_mut().and_then(|prefetch| prefetch.touched(page)) else { return };
        let most = (self.limit / 4).min(16);
        for next in pages_of(guess) {
            let Some(entry) = u32::try_from(next).ok().and_then(|next| self.pages.get(next as usize)) else {
                return;
            };
            if !matches!(entry.state, State::Away) || entry.holders & self.live == 0 {
                continue;
            }
            if self.guessed + self.staged.len() >= most && !self.drop_oldest_staged() {
                return;
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "just looked up")]
            let next = next as u32;
            if !self.make_room(Some(next)) || !matches!(self.pages[next as usize].state, State::Away) {
                return;
            }
            self.guessed += 1;
            self.stats.prefetches += 1;
            self.fetch(next, None, Then::Use);
        }
    }
}

fn pages_of(guess: Guess) -> impl Iterator<Item = i64> {
    (1..=i64::from(guess.depth)).map(move |step| guess.from + guess.stride * step)
}
