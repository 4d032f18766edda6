//! Keepers that are lost and come back, and the copies that are made again for it.

use super::Core;
use crate::client::{Keeper, Order, Verb};
use crate::pager::state::{Entry, Keepers, State, Then};
use crate::replace::PageNo;
use std::sync::Arc;

/// Copies that are made again at once: of so many runs.
const RECOPIES: usize = 4;
/// Pages that are looked at in vain for that in one call.
const LOOKED_AT: u32 = 16;

impl Core {
    pub(in crate::pager) fn keeper_lost(&mut self, keeper: usize, why: &str, orders: Vec<Order>) {
        // Before `begin` there is nothing at any keeper.
        if self.closing || self.keepers.is_empty() {
            return;
        }
        self.live &= !(1 << keeper);
        self.down |= 1 << keeper;
        self.stats.keepers_lost += 1;
        let name = self.keepers[keeper].name();
        self.last_refusal = format!("{name}: {why}");
        let name = name.to_owned();
        let alone = self.mark_lost(keeper);
        crate::say(&format!("azekura far memory: {name} is lost: {why}; {alone} pages had no other copy\n"));
        let (gets, puts): (Vec<Order>, Vec<Order>) =
            orders.into_iter().partition(|order| order.verb == Verb::Get);
        let coming = |page: &u32| matches!(self.pages[*page as usize].state, State::Coming { .. });
        let gets: Vec<u32> = gets.iter().map(|order| order.page).filter(coming).collect();
        self.ask_for(&gets);
        let puts: Vec<u32> = puts.iter().map(|order| order.page).collect();
        puts.iter().for_each(|&page| self.has_not(page, keeper));
        self.send_on(puts);
        self.serve_waiting();
    }

    /// A keeper's way was broken, and there is another; its pages are as they were.
    pub(in crate::pager) fn keeper_resumed(&mut self, keeper: usize) {
        if self.closing || self.keepers.is_empty() {
            return;
        }
        self.stats.keepers_resumed += 1;
        let name = self.keepers[keeper].name();
        crate::say(&format!("azekura far memory: the connection to {name} broke, and is made again\n"));
    }

    /// Nothing is at this keeper any more. Returns how many pages are nowhere else.
    pub(super) fn mark_lost(&mut self, keeper: usize) -> usize {
        let bit = 1 << keeper;
        let mut alone = 0;
        for at in self.pages.written() {
            let entry = &mut self.pages[at];
            if let State::Leaving { out, .. } = &mut entry.state {
                out.got &= !bit;
                out.tried &= !bit; // it may be asked again when it is back
            }
            if entry.holders & bit == 0 {
                continue;
            }
            entry.holders &= !bit;
            if !matches!(entry.state, State::Away) {
                continue;
            }
            if entry.holders == 0 {
                alone += 1;
                entry.state = State::Lost;
            } else {
                #[expect(clippy::cast_possible_truncation, reason = "a region has fewer than 2^32 pages")]
                self.wants_copy(at as u32);
            }
        }
        alone
    }

    pub(in crate::pager) fn lost_servers(&self) -> Vec<usize> {
        (0..self.servers).filter(|&index| self.down & 1 << index != 0).collect()
    }

    /// A server is there again, empty. False if the region is going away, or the server has gone already.
    pub(in crate::pager) fn regained(&mut self, index: usize, keeper: Arc<dyn Keeper>) -> bool {
        if self.closing || keeper.is_closed() {
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

    /// The page has fewer copies than it should: it is given another when that can be.
    pub(super) fn wants_copy(&mut self, page: u32) {
        if self.copies > 1 && !self.recopy.contains(PageNo(page)) {
            self.recopy.push_back(PageNo(page));
        }
    }

    /// Gives pages with too few copies another, a few at a time; those that nobody has room for now wait for
    /// a server.
    pub(in crate::pager) fn recopy(&mut self) {
        let mut in_vain = self.recopy.len().min(LOOKED_AT);
        while in_vain > 0 && self.recopying < RECOPIES * self.run {
            in_vain -= 1;
            let Some(PageNo(page)) = self.recopy.pop_front() else { return };
            let Entry { state, holders, .. } = self.pages[page as usize];
            if !matches!(state, State::Away) || !self.is_thin(holders) || holders & self.live == 0 {
                continue;
            }
            let takers = self.live & !self.full & !holders & self.all_servers();
            // Making room may let a page leave: only then is it known whether this one still may.
            let possible = takers != 0 && self.make_room(None) && self.may_leave();
            if !possible || !matches!(self.pages[page as usize].state, State::Away) {
                self.wants_copy(page);
                continue;
            }
            self.recopying += 1;
            in_vain += 1;
            self.fetch(&[page], None, Then::Recopy);
        }
    }

    pub(super) fn all_servers(&self) -> Keepers {
        (1 << self.servers) - 1
    }

    /// Whether fewer servers have a page than should.
    pub(super) fn is_thin(&self, holders: Keepers) -> bool {
        ((holders & self.all_servers() & self.live).count_ones() as usize) < self.copies
    }
}
