//! Lost and reconnected replicas, and repeated copies.

use super::Core;
use crate::client::{Order, Replica, Verb};
use crate::pager::state::{Entry, Replicas, State, Then};
use crate::replace::PageNo;
use std::sync::Arc;

/// Largest number of runs that are copied again at the same time.
const RECOPIES: usize = 4;
/// Largest number of pages that one call examines in vain.
const LOOKED_AT: u32 = 16;

/// The servers that reserve memory for pages.
pub(in crate::pager) struct LiveServers<F> {
    /// The servers; empty if there is only a spill file.
    pub(in crate::pager) servers: Vec<Arc<dyn Replica>>,
    /// Returns the number of bytes that each server stores of a given number of bytes of pages.
    pub(in crate::pager) share: F,
}

impl Core {
    pub(in crate::pager) fn live_servers(&self) -> LiveServers<impl Fn(u64) -> u64 + use<>> {
        let live = |&index: &usize| self.live & 1 << index != 0;
        let has_spill = self.replicas.len() > self.servers;
        let servers = (0..self.servers).filter(live).map(|index| Arc::clone(&self.replicas[index]));
        let servers = if has_spill { Vec::new() } else { servers.collect() };
        let (copies, count, page) = (self.copies as u64, self.servers.max(1) as u64, self.page_bytes as u64);
        let share = move |bytes: u64| (bytes * copies).div_ceil(count).next_multiple_of(page);
        LiveServers { servers, share }
    }

    pub(in crate::pager) fn replica_lost(&mut self, replica: usize, why: &str, orders: Vec<Order>) {
        // Before `begin` no replica has any page.
        if self.closing || self.replicas.is_empty() {
            return;
        }
        self.live &= !(1 << replica);
        self.down |= 1 << replica;
        self.stats.replicas_lost += 1;
        let name = self.replicas[replica].name();
        self.last_refusal = format!("{name}: {why}");
        let name = name.to_owned();
        let alone = self.mark_lost(replica);
        crate::say(&format!("azekura far memory: {name} is lost: {why}; {alone} pages had no other copy\n"));
        let (gets, puts): (Vec<Order>, Vec<Order>) =
            orders.into_iter().partition(|order| order.verb == Verb::Get);
        let coming = |page: &u32| matches!(self.pages[*page as usize].state, State::Coming { .. });
        let gets: Vec<u32> = gets.iter().map(|order| order.page).filter(coming).collect();
        self.ask_for(&gets);
        let puts: Vec<u32> = puts.iter().map(|order| order.page).collect();
        puts.iter().for_each(|&page| self.has_not(page, replica));
        self.send_on(puts);
        self.serve_waiting();
    }

    /// Records that the connection to a replica was replaced. Its pages are unchanged.
    pub(in crate::pager) fn replica_resumed(&mut self, replica: usize) {
        if self.closing || self.replicas.is_empty() {
            return;
        }
        self.stats.replicas_resumed += 1;
        let name = self.replicas[replica].name();
        crate::say(&format!("azekura far memory: the connection to {name} broke and is being restored\n"));
    }

    /// Forgets all copies at this replica. Returns the number of pages without another copy.
    pub(super) fn mark_lost(&mut self, replica: usize) -> usize {
        let bit = 1 << replica;
        let mut alone = 0;
        for at in self.pages.written() {
            let entry = &mut self.pages[at];
            if let State::Leaving { out, .. } = &mut entry.state {
                out.got &= !bit;
                out.tried &= !bit; // the page may be sent to the server again after it has reconnected
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

    /// Adds a reconnected server, which is empty. Returns `false` if the region is closing, or the server is
    /// lost again.
    pub(in crate::pager) fn regained(&mut self, index: usize, replica: Arc<dyn Replica>) -> bool {
        if self.closing || replica.is_closed() {
            return false;
        }
        crate::say(&format!("azekura far memory: {} is back\n", replica.name()));
        self.replicas[index] = replica;
        self.live |= 1 << index;
        self.down &= !(1 << index);
        self.full &= !(1 << index);
        self.stats.replicas_regained += 1;
        true
    }

    /// Adds a page to the list of pages with too few copies. Another copy is made when possible.
    pub(super) fn wants_copy(&mut self, page: u32) {
        if self.copies > 1 && !self.recopy.contains(PageNo(page)) {
            self.recopy.push_back(PageNo(page));
        }
    }

    /// Fetches some pages with too few copies, to make another copy. Pages for which no server has memory
    /// stay in the list.
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
            // Making a frame free may page out a page, so the condition for one more page-out is checked
            // afterward.
            let possible = takers != 0 && self.make_frame_free(None) && self.may_leave();
            if !possible || !matches!(self.pages[page as usize].state, State::Away) {
                self.wants_copy(page);
                continue;
            }
            self.recopying += 1;
            in_vain += 1;
            self.fetch(&[page], None, Then::Recopy);
        }
    }

    pub(super) fn all_servers(&self) -> Replicas {
        (1 << self.servers) - 1
    }

    /// Returns `true` if a page has too few copies.
    pub(super) fn is_thin(&self, holders: Replicas) -> bool {
        ((holders & self.all_servers() & self.live).count_ones() as usize) < self.copies
    }
}
