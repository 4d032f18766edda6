//! Keepers that are lost and come back, and the copies that are made again for it.

use super::Core;
use crate::client::{Keeper, Order, Verb};
use crate::pager::state::{Entry, Keepers, State, Then};
use std::sync::Arc;

/// Copies that are made again at once.
const RECOPIES: usize = 4;

impl Core {
    pub(in crate::pager) fn keeper_lost(&mut self, keeper: usize, why: &str, orders: Vec<Order>) {
        if self.closing {
            return;
        }
        self.live &= !(1 << keeper);
        self.down |= 1 << keeper;
        self.stats.keepers_lost += 1;
        self.last_refusal = format!("{}: {why}", self.keepers[keeper].name());
        let alone = self.mark_lost(keeper);
        crate::say(&format!(
            "azekura far memory: {} is lost: {why}; {alone} pages had no other copy\n",
            self.keepers[keeper].name()
        ));
        for order in orders {
            match (order.verb, self.pages[order.page as usize].state) {
                (Verb::Get, State::Coming { frame, .. }) => self.ask_for(order.page, frame),
                (Verb::Put, State::Leaving { .. }) => self.put_failed(order.page, keeper),
                _ => {}
            }
        }
        self.serve_waiting();
    }

    fn put_failed(&mut self, page: u32, keeper: usize) {
        if let State::Leaving { out, .. } = &mut self.pages[page as usize].state {
            out.open &= !(1 << keeper);
        }
        self.send_on(page);
    }

    /// Nothing is at this keeper any more. Returns how many pages are nowhere else.
    pub(super) fn mark_lost(&mut self, keeper: usize) -> usize {
        let bit = 1 << keeper;
        let mut alone = 0;
        for (page, entry) in self.pages.iter_mut().enumerate() {
            if let State::Leaving { out, .. } = &mut entry.state {
                out.got &= !bit;
            }
            if entry.holders & bit == 0 {
                continue;
            }
            entry.holders &= !bit;
            match entry.state {
                State::Away if entry.holders == 0 => {
                    alone += 1;
                    entry.state = State::Lost;
                }
                #[expect(clippy::cast_possible_truncation, reason = "a region has fewer than 2^32 pages")]
                State::Away => self.recopy.push_back(page as u32),
                _ => {}
            }
        }
        alone
    }

    pub(in crate::pager) fn lost_servers(&self) -> Vec<usize> {
        (0..self.servers).filter(|&index| self.down & 1 << index != 0).collect()
    }

    /// A server is there again, empty. False if the region is going away.
    pub(in crate::pager) fn regained(&mut self, index: usize, keeper: Arc<dyn Keeper>) -> bool {
        if self.closing {
            return false;
        }
        crate::say(&format!("azekura far memory: {} is back\n", keeper.name()));
        self.keepers[index] = keeper;
        self.live |= 1 << index;
        self.down &= !(1 << index);
        self.full &= !(1 << index);
        self.stats.keepers_regained += 1;
        true
    }

    /// Gives pages with too few copies another, a few at a time; those that cannot have one yet wait for a server.
    pub(in crate::pager) fn recopy(&mut self) {
        let possible = (self.live & ((1 << self.servers) - 1)).count_ones() as usize;
        while self.recopying < RECOPIES && self.copies.min(possible) > 1 {
            let Some(page) = self.recopy.pop_front() else { return };
            let Entry { state, holders, .. } = self.pages[page as usize];
            if !matches!(state, State::Away) || !self.is_thin(holders) || holders & self.live == 0 {
                continue;
            }
            if self.leaving >= self.slack || !self.make_room(None) {
                return self.recopy.push_front(page);
            }
            self.recopying += 1;
            self.fetch(page, None, Then::Recopy);
        }
    }

    /// Whether fewer servers have a page than should.
    pub(super) fn is_thin(&self, holders: Keepers) -> bool {
        let servers: Keepers = (1 << self.servers) - 1;
        ((holders & servers & self.live).count_ones() as usize) < self.copies
    }
}
