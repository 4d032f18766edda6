//! Rules of one lock's queue: grants, waiters, blockers.
//!
//! 1. A newcomer is granted if its mode is compatible with every holder and with the modes that all waiters
//!    request (no request overtakes a waiter that it would wait for). Otherwise it waits at the end.
//! 2. A holder that requests a stronger mode *converts*. The conversion is granted if the supremum is
//!    compatible with every other holder. Otherwise it waits, before all newcomers. Conversions wait only for
//!    held modes, not for modes that other conversions request.
//! 3. When a holder leaves, or a waiter withdraws, all waiters are checked in order. A conversion is granted
//!    by rule 2. A newcomer is granted if it is compatible with every holder and with all remaining waiters
//!    before it.
//! 4. An *instant* request is granted by the same rules, and then holds nothing (or the mode that it held
//!    before).
//!
//! - **QUEUE-1** Any two holders of one lock are compatible.
//! - **QUEUE-2** A waiting request has at least one *blocker*: by rule 1 or 2 a holder, or, for a newcomer, a
//!   waiter before it. So each wait has a cause.
//! - **QUEUE-3** A grant changes the owner's state under the stripe's latch. The wake-up comes after the
//!   latch is released.

use crate::id::LockId;
use crate::mode_bits::{self, ModeBits};
use crate::owner::{GRANTED, Owners};
use crate::stripe::{NONE, Request, Stripe};

/// A request of an owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    pub(crate) id: LockId,
    pub(crate) owner: u32,
    /// The owner's request if it holds the lock already; otherwise [`NONE`].
    pub(crate) own: u32,
    /// All mode bits that the owner will hold: the supremum of the held and the requested modes.
    pub(crate) want: ModeBits,
    pub(crate) instant: bool,
}

/// Owners to be woken once the latch is released.
pub(crate) type Wakes = Vec<u32>;

impl Stripe {
    /// Grants `demand` if this is possible now: returns the request that holds it ([`NONE`] for an instant
    /// request of a newcomer). Returns `None` if the request must wait; then nothing has changed.
    pub(crate) fn attempt(&mut self, demand: &Demand, owners: &Owners) -> Option<u32> {
        if demand.own != NONE {
            return self.attempt_conversion(demand, owners);
        }
        let head = self.find(demand.id);
        if head != NONE {
            let ahead = self.waiters(head).fold(0, |all, waiter| all | waiter.want);
            if mode_bits::conflicts(demand.id.family(), demand.want) & (self.head(head).mask | ahead) != 0 {
                return None;
            }
        }
        self.acquisitions += 1;
        Some(if demand.instant { NONE } else { self.insert_holder(demand.id, demand.owner, demand.want) })
    }

    fn attempt_conversion(&mut self, demand: &Demand, owners: &Owners) -> Option<u32> {
        let own = *self.request(demand.own);
        let want = mode_bits::normal(demand.id.family(), demand.want | own.held);
        let others = self.held_by_others(own.head, own.held);
        if mode_bits::conflicts(demand.id.family(), want) & others != 0 {
            return None;
        }
        self.acquisitions += 1;
        if !demand.instant {
            self.set_held(demand.own, want);
            if self.head(own.head).first_waiter != NONE {
                // The owner may have become the blocker of a waiter.
                owners.get(demand.owner).note_waiter();
            }
        }
        Some(demand.own)
    }

    /// Makes `owner` a holder without checks.
    #[inline]
    pub(crate) fn insert_holder(&mut self, id: LockId, owner: u32, mode_bits: ModeBits) -> u32 {
        let head = self.find_or_add(id);
        let request = self.add_request(head, owner);
        self.set_held(request, mode_bits);
        request
    }

    /// Turns a range lock of `owner` into a held request for the key; returns the new request if `owner` had
    /// none. Does nothing if other holders or waiters conflict (KEYRANGE-2): if the range had locked the key
    /// when such a waiter arrived, that waiter would have shared the range.
    pub(crate) fn share(&mut self, id: LockId, owner: u32, mode_bits: ModeBits) -> Option<u32> {
        let head = self.find(id);
        if head == NONE {
            return Some(self.insert_holder(id, owner, mode_bits));
        }
        let own = self.request_of(head, owner);
        let held = if own == NONE { 0 } else { self.request(own).held };
        let want = mode_bits::normal(id.family(), held | mode_bits);
        let conflicts = mode_bits::conflicts(id.family(), mode_bits);
        if want == held || conflicts & self.held_by_others(head, held) != 0 {
            return None;
        }
        // An owner without a request may wait for this key, or for another key with this hash.
        let is_in_the_way =
            |w: &Request| if w.owner == owner { own == NONE } else { w.want & conflicts != 0 };
        if self.waiters(head).any(is_in_the_way) {
            return None;
        }
        if own == NONE {
            return Some(self.insert_holder(id, owner, mode_bits));
        }
        self.set_held(own, want);
        None
    }

    /// Returns the request of a holder, or [`NONE`].
    fn request_of(&self, head: u32, owner: u32) -> u32 {
        let mut request = self.head(head).first_holder;
        while request != NONE && self.request(request).owner != owner {
            request = self.request(request).next_holder;
        }
        request
    }

    /// Adds a demand that [`Stripe::attempt`] refused to the waiters; returns its request.
    pub(crate) fn enqueue(&mut self, demand: &Demand, owners: &Owners) -> u32 {
        let request = if demand.own == NONE {
            let head = self.find_or_add(demand.id);
            self.add_request(head, demand.owner)
        } else {
            demand.own
        };
        let owner = owners.get(demand.owner);
        if self.request(request).held != 0 && self.head(self.request(request).head).first_waiter != NONE {
            owner.note_waiter(); // The conversion is now before waiters in the queue.
        }
        owner.set_waiting();
        // A range may have added mode bits to the ones in the owner's list.
        let held = self.request(request).held;
        self.link_waiter(request, mode_bits::normal(demand.id.family(), demand.want | held));
        self.request_mut(request).instant = demand.instant;
        for blocker in self.blockers(request) {
            owners.get(blocker).note_waiter();
        }
        request
    }

    /// Returns the owners that a waiting request waits for, possibly with repetitions.
    pub(crate) fn blockers(&self, request: u32) -> Vec<u32> {
        let r = self.request(request);
        let conflicts = mode_bits::conflicts(self.head(r.head).id.family(), r.want);
        let holders = self.holders(r.head).filter(|h| h.owner != r.owner && h.held & conflicts != 0);
        let mut blockers: Vec<u32> = holders.map(|h| h.owner).collect();
        if r.held == 0 {
            let ahead = self.waiters(r.head).take_while(|w| w.owner != r.owner);
            blockers.extend(ahead.filter(|w| w.want & conflicts != 0).map(|w| w.owner));
        }
        blockers
    }

    /// Returns `true` if `request` is waiting and belongs to this owner.
    pub(crate) fn is_waiting(&self, request: u32, owner: u32) -> bool {
        self.requests_len() > request as usize && {
            let r = self.request(request);
            r.owner == owner && r.want != 0
        }
    }

    /// Releases a held lock.
    #[inline]
    pub(crate) fn release(&mut self, request: u32, owners: &Owners, wakes: &mut Wakes) {
        let head = self.request(request).head;
        self.set_held(request, 0);
        self.free_request(request);
        self.after_leaving(head, owners, wakes);
    }

    /// Withdraws a waiting request; a conversion keeps the mode that it held.
    pub(crate) fn cancel(&mut self, request: u32, owners: &Owners, wakes: &mut Wakes) {
        let head = self.request(request).head;
        self.unlink_waiter(request);
        if self.request(request).held == 0 {
            self.free_request(request);
        }
        self.after_leaving(head, owners, wakes);
    }

    #[inline]
    fn after_leaving(&mut self, head: u32, owners: &Owners, wakes: &mut Wakes) {
        if self.head(head).first_waiter != NONE {
            self.grant_waiters(head, owners, wakes);
        }
        self.remove_if_unused(head);
    }

    /// Grants the waiters that can be granted, by rule 3.
    fn grant_waiters(&mut self, head: u32, owners: &Owners, wakes: &mut Wakes) {
        let family = self.head(head).id.family();
        let mut ahead = 0;
        let mut waiter = self.head(head).first_waiter;
        while waiter != NONE {
            let r = *self.request(waiter);
            let before = if r.held == 0 { ahead } else { 0 };
            let in_the_way = self.held_by_others(head, r.held) | before;
            if mode_bits::conflicts(family, r.want) & in_the_way == 0 {
                self.grant(waiter, owners);
                wakes.push(r.owner);
            } else {
                ahead |= r.want;
                if r.held == 0 && mode_bits::conflicts(family, ahead) == mode_bits::ALL {
                    return; // Only newcomers follow, and each conflicts with a waiter before it.
                }
            }
            waiter = r.next_waiter;
        }
    }

    fn grant(&mut self, waiter: u32, owners: &Owners) {
        let r = *self.request(waiter);
        self.acquisitions += 1;
        self.unlink_waiter(waiter);
        if !r.instant {
            let family = self.head(r.head).id.family();
            self.set_held(waiter, mode_bits::normal(family, r.want | r.held));
        } else if r.held == 0 {
            self.free_request(waiter);
        }
        let owner = owners.get(r.owner);
        if r.held != 0 {
            owner.note_waiter(); // It may have become the blocker of waiting conversions.
        }
        owner.end_wait(GRANTED); // QUEUE-3
    }
}
