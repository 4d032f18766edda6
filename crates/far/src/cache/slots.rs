//! The slots of the servers: the page of the image in each slot, and the choice of a slot for a new image by
//! second chance (CLOCK) in the order of slots.
//!
//! | state | the image is | next state |
//! |---|---|---|
//! | `Free` | none | an image is offered → `Filling` |
//! | `Filling` | in flight to the server | the reply → `Full`; refused, or the page was written → `Free` |
//! | `Full` | at the server | the page is written, or another image replaces it → `Free` |
//!
//! A slot that is being read keeps its image until all its readers have finished. An event that would free it
//! marks the slot as doomed, and the last reader frees it.
//!
//! - **SLOT-1** A page has at most one slot that is not doomed, and `by_page` maps the page to it.
//! - **SLOT-2** An order to store an image in a slot is submitted only if no order for the slot is open.

use crate::digest::Digest;
use std::collections::HashMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    Filling,
    Full,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    state: State,
    page: u64,
    digest: Digest,
    readers: u32,
    doomed: bool,
    referenced: bool,
}

/// All slots of all servers: slot *n* is at server *n* modulo the number of servers.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    servers: usize,
    by_page: HashMap<u64, u32>,
    /// Free slots of each server.
    free: Vec<Vec<u32>>,
    up: Vec<bool>,
    hand: usize,
}

impl Slots {
    /// Creates the slots for servers that are all disconnected.
    pub(super) fn new(per_server: u32, servers: usize) -> Self {
        let empty = Slot {
            state: State::Free,
            page: 0,
            digest: Digest::default(),
            readers: 0,
            doomed: false,
            referenced: false,
        };
        let count = per_server as usize * servers;
        Self {
            slots: vec![empty; count],
            servers,
            by_page: HashMap::with_capacity(count),
            free: vec![Vec::new(); servers],
            up: vec![false; servers],
            hand: 0,
        }
    }

    pub(super) fn server_of(&self, slot: u32) -> usize {
        slot as usize % self.servers
    }

    pub(super) fn held(&self) -> usize {
        self.by_page.len()
    }

    pub(super) fn servers_up(&self) -> usize {
        self.up.iter().filter(|&&up| up).count()
    }

    /// Records that an empty server is connected: all its slots are free.
    pub(super) fn regain(&mut self, server: usize) {
        self.up[server] = true;
        self.refill(server);
    }

    /// Records that a server is lost with all its images. No order for the server is open.
    pub(super) fn lose(&mut self, server: usize) {
        self.up[server] = false;
        let servers = self.servers;
        self.by_page.retain(|_, slot| *slot as usize % servers != server);
        for slot in self.slots.iter_mut().skip(server).step_by(servers) {
            *slot = Slot { state: State::Free, readers: 0, doomed: false, referenced: false, ..*slot };
        }
        self.free[server].clear();
    }

    fn refill(&mut self, server: usize) {
        let all = (server..self.slots.len()).step_by(self.servers);
        #[expect(clippy::cast_possible_truncation, reason = "slots are counted in 32 bits")]
        let free = all.rev().map(|slot| slot as u32).collect();
        self.free[server] = free;
    }

    /// Returns `true` if the page has an image with this digest, held or in flight. Sets the reference bit of
    /// the page's slot, as for a new offer.
    pub(super) fn has(&mut self, page: u64, digest: Digest) -> bool {
        let Some(&slot) = self.by_page.get(&page) else { return false };
        let slot = &mut self.slots[slot as usize];
        slot.referenced = true;
        slot.digest == digest
    }

    /// Reserves a slot at one of these servers for the page's image, before the order is submitted. Returns
    /// `None` if no slot can be freed. Forgets an older image of the page in either case: a lookup would
    /// otherwise find the older image.
    pub(super) fn begin_put(
        &mut self,
        page: u64,
        digest: Digest,
        at_server: impl Fn(usize) -> bool,
    ) -> Option<u32> {
        self.forget(page);
        let at = self.free_slot(at_server)?;
        let slot = &mut self.slots[at as usize];
        debug_assert!(slot.state == State::Free && slot.readers == 0, "SLOT-2");
        *slot = Slot { state: State::Filling, page, digest, readers: 0, doomed: false, referenced: false };
        self.by_page.insert(page, at);
        Some(at)
    }

    /// Frees a reserved slot when no order could be submitted.
    pub(super) fn cancel_put(&mut self, at: u32) {
        self.slots[at as usize].state = State::Full;
        self.doom(at);
    }

    /// Records the server's reply: the image is stored or refused. After a refusal the slot is not put on the
    /// free list, so that offers do not try a full server again and again.
    pub(super) fn end_put(&mut self, at: u32, taken: bool) {
        let slot = &mut self.slots[at as usize];
        if slot.state != State::Filling {
            return;
        }
        slot.state = State::Full;
        if !taken {
            self.doom(at);
            let server = self.server_of(at);
            self.free[server].retain(|&other| other != at);
        } else if slot.doomed {
            self.release(at);
        }
    }

    /// Returns the slot and the digest of a page's image, if it can be read. Registers a reader until
    /// `end_get`.
    pub(super) fn begin_get(&mut self, page: u64) -> Option<(u32, Digest)> {
        let &at = self.by_page.get(&page)?;
        let slot = &mut self.slots[at as usize];
        if slot.state != State::Full {
            return None;
        }
        slot.readers += 1;
        slot.referenced = true;
        Some((at, slot.digest))
    }

    /// Unregisters a reader. Returns `true` if the image was still valid.
    pub(super) fn end_get(&mut self, at: u32) -> bool {
        let slot = &mut self.slots[at as usize];
        if slot.state != State::Full || slot.readers == 0 {
            return false;
        }
        slot.readers -= 1;
        let valid = !slot.doomed;
        if slot.doomed && slot.readers == 0 {
            self.release(at);
        }
        valid
    }

    /// Invalidates the page's image, because it may differ from the page on disk.
    pub(super) fn forget(&mut self, page: u64) {
        if let Some(&at) = self.by_page.get(&page) {
            self.doom(at);
        }
    }

    /// Invalidates a slot's image. The slot becomes free when it is neither in flight nor being read.
    fn doom(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        if slot.doomed {
            return;
        }
        slot.doomed = true;
        let page = slot.page;
        let idle = slot.state == State::Full && slot.readers == 0;
        self.by_page.remove(&page);
        if idle {
            self.release(at);
        }
    }

    fn release(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        *slot = Slot { state: State::Free, doomed: false, ..*slot };
        let server = self.server_of(at);
        if self.up[server] {
            self.free[server].push(at);
        }
    }

    /// Returns a free slot of the server with the most free slots. If there is none, the CLOCK hand frees a
    /// slot.
    fn free_slot(&mut self, at_server: impl Fn(usize) -> bool) -> Option<u32> {
        let wanted = (0..self.servers).filter(|&server| at_server(server));
        let most = wanted.max_by_key(|&server| self.free[server].len())?;
        if let Some(at) = self.free[most].pop() {
            return Some(at);
        }
        let count = self.slots.len();
        // Two rounds at most: the first round may only clear reference bits.
        for _ in 0..(2 * count).min(LOOKED_AT) {
            let at = self.hand;
            self.hand = (self.hand + 1) % count;
            let slot = &mut self.slots[at];
            let idle = slot.state == State::Full && slot.readers == 0 && !slot.doomed;
            if idle && at_server(at % self.servers) && !std::mem::take(&mut slot.referenced) {
                #[expect(clippy::cast_possible_truncation, reason = "slots are counted in 32 bits")]
                let at = at as u32;
                self.doom(at);
                let server = self.server_of(at);
                return self.free[server].pop();
            }
        }
        None
    }
}

/// Largest number of slots that an offer examines. If none of them can be freed, the offer is dropped. The
/// hand has cleared their reference bits, so the next offer finds a slot.
const LOOKED_AT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::Xoshiro256PlusPlus;
    use rand::{RngExt, SeedableRng};

    fn digest(version: u64) -> Digest {
        Digest(version.into())
    }

    fn filled(slots: &mut Slots, page: u64, version: u64) -> u32 {
        let at = slots.begin_put(page, digest(version), |_| true).unwrap();
        slots.end_put(at, true);
        at
    }

    #[test]
    fn a_page_that_was_written_is_not_found_even_if_it_was_on_its_way_or_being_read() {
        let mut slots = Slots::new(4, 1);
        slots.regain(0);
        filled(&mut slots, 7, 1);
        let (read, _) = slots.begin_get(7).unwrap();
        slots.forget(7);
        assert_eq!(slots.begin_get(7), None);
        assert!(!slots.end_get(read), "written while it was read");
        let on_its_way = slots.begin_put(7, digest(2), |_| true).unwrap();
        assert_eq!(slots.begin_get(7), None, "not there yet");
        slots.forget(7);
        slots.end_put(on_its_way, true);
        assert_eq!((slots.begin_get(7), slots.held()), (None, 0));
        // Checks that all slots are free again.
        for page in 0..4 {
            filled(&mut slots, page, 1);
        }
        assert_eq!(slots.held(), 4);
    }

    #[test]
    fn a_slot_that_is_read_is_not_given_to_another_page() {
        let mut slots = Slots::new(2, 1);
        slots.regain(0);
        let (first, second) = (filled(&mut slots, 1, 1), filled(&mut slots, 2, 1));
        slots.begin_get(1).unwrap();
        slots.begin_get(2).unwrap();
        assert_eq!(slots.begin_put(3, digest(1), |_| true), None);
        assert!(slots.end_get(second));
        let third =
            slots.begin_put(3, digest(1), |_| true).or_else(|| slots.begin_put(3, digest(1), |_| true));
        assert_eq!(third, Some(second));
        assert!(slots.end_get(first));
    }

    #[test]
    fn a_slot_has_one_page_at_a_time_in_every_order_of_events() {
        for seed in 0..200 {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
            let mut slots = Slots::new(5, 2);
            slots.regain(0);
            // Actual content of each slot, and its open orders.
            let mut held = [None; 10];
            let (mut puts, mut gets): (Vec<u32>, Vec<(u32, u64, bool)>) = Default::default();
            let mut truth = [0_u64; 16];
            for step in 1..600 {
                let page = rng.random_range(0..16);
                match rng.random_range(0..10) {
                    0 => {
                        truth[page as usize] = step;
                        slots.forget(page);
                        gets.iter_mut().filter(|get| get.1 == page).for_each(|get| get.2 = false);
                    }
                    1..4 => {
                        let version = digest(truth[page as usize]);
                        if !slots.has(page, version)
                            && let Some(at) = slots.begin_put(page, version, |_| true)
                        {
                            assert!(
                                !puts.contains(&at) && gets.iter().all(|get| get.0 != at),
                                "seed {seed}: SLOT-2"
                            );
                            held[at as usize] = Some((page, truth[page as usize]));
                            puts.push(at);
                        }
                    }
                    4..6 if !puts.is_empty() => {
                        let at = puts.swap_remove(rng.random_range(0..puts.len()));
                        slots.end_put(at, rng.random_ratio(9, 10));
                    }
                    6..8 => {
                        if let Some((at, found)) = slots.begin_get(page) {
                            let expected = (page, truth[page as usize]);
                            assert_eq!(held[at as usize], Some(expected), "seed {seed}, step {step}");
                            assert_eq!(found, digest(expected.1), "seed {seed}, step {step}: stale");
                            gets.push((at, page, true));
                        }
                    }
                    8 if !gets.is_empty() => {
                        let (at, _, valid) = gets.swap_remove(rng.random_range(0..gets.len()));
                        assert!(!slots.end_get(at) || valid, "seed {seed}, step {step}: written while read");
                    }
                    _ if rng.random_ratio(1, 20) => {
                        let server = rng.random_range(0..2);
                        puts.retain(|at| slots.server_of(*at) != server);
                        gets.retain(|get| slots.server_of(get.0) != server);
                        slots.lose(server);
                        slots.regain(server);
                    }
                    _ => {}
                }
            }
        }
    }
}
