//! One stripe of the lock table: stores its locks and requests. Module `queue` has the rules.
//!
//! A *head* is a lock with a holder or a waiter; a *request* connects one owner to one head. Both are stored
//! in pools and identified by index, so that after warm-up a lock needs no allocation. Heads of one bucket
//! are chained.
//!
//! | request | `held` | `want` | in list |
//! |---|---|---|---|
//! | granted | its mode bits | 0 | holders |
//! | waiting for a first grant | 0 | target mode bits | waiters |
//! | waiting to convert | old mode bits | target mode bits | holders and waiters |
//! | free | 0 | 0 | none; `owner` is [`NONE`] |
//!
//! - **STRIPE-1** All state of a stripe is changed and read only under its latch.
//! - **STRIPE-2** A head exists exactly while it has a holder or a waiter.
//! - **STRIPE-3** `counts[c]` is the number of holders with bit `c`; `mask` has the mode bits with a
//!   count above 0.
//! - **STRIPE-4** Waiting conversions are before all other waiters; otherwise the order is the order of
//!   arrival.
//! - **STRIPE-5** `exclusive` is the number of key requests, held or waiting, that conflict with a scan.

use crate::id::LockId;
use crate::mode_bits::{BIT_COUNT, Family, ModeBits};
use crate::range::EXCLUSIVE;

/// The value of an index that refers to no entry.
pub(crate) const NONE: u32 = u32::MAX;

const FIRST_BUCKETS: usize = 16;
/// Number of heads above which a stripe frees its memory when it becomes empty.
const KEPT_HEADS: usize = 1024;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) id: LockId,
    next_in_bucket: u32,
    pub(crate) first_holder: u32,
    pub(crate) first_waiter: u32,
    pub(crate) last_waiter: u32,
    counts: [u32; BIT_COUNT],
    pub(crate) mask: ModeBits,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) head: u32,
    pub(crate) owner: u32,
    pub(crate) next_holder: u32,
    prev_holder: u32,
    pub(crate) next_waiter: u32,
    prev_waiter: u32,
    pub(crate) held: ModeBits,
    pub(crate) want: ModeBits,
    /// `true` for an instant request: a grant ends its wait, and it then holds nothing.
    pub(crate) instant: bool,
}

/// Values identified by index. Freed entries are reused, the last freed first.
#[derive(Debug)]
struct Pool<T> {
    items: Vec<T>,
    /// The entry that was freed last; the other free entries are chained to it.
    first_free: u32,
}

/// An entry of a pool.
trait Pooled {
    /// Returns the field for the index of the next free entry. An entry in use has another index in this
    /// field.
    fn next_free(&mut self) -> &mut u32;
}

impl Pooled for Head {
    fn next_free(&mut self) -> &mut u32 {
        &mut self.next_in_bucket
    }
}

impl Pooled for Request {
    fn next_free(&mut self) -> &mut u32 {
        &mut self.next_holder
    }
}

impl<T: Pooled> Pool<T> {
    const fn new() -> Self {
        Self { items: Vec::new(), first_free: NONE }
    }

    fn put(&mut self, item: T) -> u32 {
        let index = self.first_free;
        if index == NONE {
            if self.items.is_empty() {
                self.items.reserve_exact(1); // most stripes of an idle store had one lock at once
            }
            self.items.push(item);
            return (self.items.len() - 1) as u32;
        }
        let mut free = std::mem::replace(&mut self.items[index as usize], item);
        self.first_free = *free.next_free();
        index
    }

    fn free(&mut self, index: u32) {
        *self.items[index as usize].next_free() = std::mem::replace(&mut self.first_free, index);
    }
}

/// The locks and requests of one stripe; see the module head.
#[derive(Debug)]
pub(crate) struct Stripe {
    buckets: Box<[u32]>,
    heads: Pool<Head>,
    requests: Pool<Request>,
    /// Number of heads in use.
    len: u32,
    /// Number of key requests that conflict with a scan (STRIPE-5).
    pub(crate) exclusive: u32,
    /// Total number of requests granted here.
    pub(crate) acquisitions: u64,
}

impl Stripe {
    pub(crate) fn new() -> Self {
        let (heads, requests) = (Pool::new(), Pool::new());
        Self { buckets: Box::default(), heads, requests, len: 0, exclusive: 0, acquisitions: 0 }
    }

    pub(crate) fn head(&self, head: u32) -> &Head {
        &self.heads.items[head as usize]
    }

    pub(crate) fn request(&self, request: u32) -> &Request {
        &self.requests.items[request as usize]
    }

    pub(crate) fn request_mut(&mut self, request: u32) -> &mut Request {
        &mut self.requests.items[request as usize]
    }

    /// Returns the number of requests that exist or existed, which bounds their indices.
    pub(crate) fn requests_len(&self) -> usize {
        self.requests.items.len()
    }

    /// Returns the number of heads in use.
    pub(crate) const fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns every head in use.
    pub(crate) fn heads(&self) -> impl Iterator<Item = u32> {
        let some = |h: u32| (h != NONE).then_some(h);
        self.buckets.iter().flat_map(move |&first| {
            std::iter::successors(some(first), move |&h| some(self.head(h).next_in_bucket))
        })
    }

    /// Returns the holders of `head`, in no order.
    pub(crate) fn holders(&self, head: u32) -> impl Iterator<Item = &Request> {
        let get = |r: u32| (r != NONE).then(|| self.request(r));
        std::iter::successors(get(self.head(head).first_holder), move |r| get(r.next_holder))
    }

    /// Returns the waiters of `head`, in the order of service.
    pub(crate) fn waiters(&self, head: u32) -> impl Iterator<Item = &Request> {
        let get = |r: u32| (r != NONE).then(|| self.request(r));
        std::iter::successors(get(self.head(head).first_waiter), move |r| get(r.next_waiter))
    }

    #[inline]
    fn bucket(&self, id: LockId) -> usize {
        id.spread() as usize & (self.buckets.len() - 1)
    }

    /// Returns the head of `id`, or [`NONE`].
    #[inline]
    pub(crate) fn find(&self, id: LockId) -> u32 {
        if self.buckets.is_empty() {
            return NONE;
        }
        let mut head = self.buckets[self.bucket(id)];
        while head != NONE && self.head(head).id != id {
            head = self.head(head).next_in_bucket;
        }
        head
    }

    /// Returns the head of `id`; makes it if there is none. The caller then adds a request to it (STRIPE-2).
    #[inline]
    pub(crate) fn find_or_add(&mut self, id: LockId) -> u32 {
        let head = self.find(id);
        if head != NONE {
            return head;
        }
        if self.len() >= self.buckets.len() {
            self.grow();
        }
        let bucket = self.bucket(id);
        let head = self.heads.put(Head {
            id,
            next_in_bucket: self.buckets[bucket],
            first_holder: NONE,
            first_waiter: NONE,
            last_waiter: NONE,
            counts: [0; BIT_COUNT],
            mask: 0,
        });
        self.buckets[bucket] = head;
        self.len += 1;
        head
    }

    #[cold]
    fn grow(&mut self) {
        let all: Vec<u32> = self.heads().collect();
        let size = (self.buckets.len() * 2).max(FIRST_BUCKETS);
        self.buckets = std::iter::repeat_n(NONE, size).collect();
        for head in all {
            let bucket = self.bucket(self.head(head).id);
            self.heads.items[head as usize].next_in_bucket = self.buckets[bucket];
            self.buckets[bucket] = head;
        }
    }

    /// Removes `head` if it has no holder and no waiter.
    #[inline]
    pub(crate) fn remove_if_unused(&mut self, head: u32) {
        let h = self.head(head);
        if h.first_holder != NONE || h.first_waiter != NONE {
            return;
        }
        let (bucket, after) = (self.bucket(h.id), h.next_in_bucket);
        if self.buckets[bucket] == head {
            self.buckets[bucket] = after;
        } else {
            let mut before = self.buckets[bucket];
            while self.head(before).next_in_bucket != head {
                before = self.head(before).next_in_bucket;
            }
            self.heads.items[before as usize].next_in_bucket = after;
        }
        self.heads.free(head);
        self.len -= 1;
        if self.heads.items.len() > KEPT_HEADS && self.len() == 0 {
            *self = Self { acquisitions: self.acquisitions, ..Self::new() };
        }
    }

    /// Returns a new request of `owner`, which is in no list yet.
    #[inline]
    pub(crate) fn add_request(&mut self, head: u32, owner: u32) -> u32 {
        self.requests.put(Request {
            head,
            owner,
            next_holder: NONE,
            prev_holder: NONE,
            next_waiter: NONE,
            prev_waiter: NONE,
            held: 0,
            want: 0,
            instant: false,
        })
    }

    /// Frees a request that is in no list any more.
    #[inline]
    pub(crate) fn free_request(&mut self, request: u32) {
        let r = self.request_mut(request);
        debug_assert!(r.held == 0 && r.want == 0, "a freed request is in no list");
        r.owner = NONE;
        self.requests.free(request);
    }

    /// Makes `request` a holder with `mode_bits`, or changes the mode that it holds. With 0 it is no longer a
    /// holder.
    #[inline]
    pub(crate) fn set_held(&mut self, request: u32, mode_bits: ModeBits) {
        let r = *self.request(request);
        if r.held == 0 && mode_bits != 0 {
            self.link_holder(request);
        } else if r.held != 0 && mode_bits == 0 {
            self.unlink_holder(request);
        }
        self.request_mut(request).held = mode_bits;
        self.count_exclusive(r.head, r.held | r.want, mode_bits | r.want);
        let head = &mut self.heads.items[r.head as usize];
        let mut changed = r.held ^ mode_bits;
        while changed != 0 {
            let bit = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            // STRIPE-3
            if mode_bits >> bit & 1 == 1 {
                head.counts[bit] += 1;
                head.mask |= 1 << bit;
            } else {
                head.counts[bit] -= 1;
                head.mask &= !(u8::from(head.counts[bit] == 0) << bit);
            }
        }
    }

    /// Updates the count of STRIPE-5 for a request with new mode bits, held and requested ones together.
    #[inline]
    fn count_exclusive(&mut self, head: u32, before: ModeBits, after: ModeBits) {
        if (before ^ after) & EXCLUSIVE != 0 && self.head(head).id.family() == Family::Key {
            let is = |mode_bits: ModeBits| u32::from(mode_bits & EXCLUSIVE != 0);
            self.exclusive = self.exclusive + is(after) - is(before);
        }
    }

    /// Returns the union of the mode bits held on `head` by all holders except one with `own` mode bits.
    #[inline]
    pub(crate) fn held_by_others(&self, head: u32, own: ModeBits) -> ModeBits {
        let head = self.head(head);
        let mut mask = head.mask;
        for bit in 0..BIT_COUNT {
            if own >> bit & 1 == 1 && head.counts[bit] == 1 {
                mask &= !(1 << bit);
            }
        }
        mask
    }

    fn link_holder(&mut self, request: u32) {
        let head = self.request(request).head;
        let first = self.head(head).first_holder;
        self.request_mut(request).next_holder = first;
        self.request_mut(request).prev_holder = NONE;
        if first != NONE {
            self.request_mut(first).prev_holder = request;
        }
        self.heads.items[head as usize].first_holder = request;
    }

    fn unlink_holder(&mut self, request: u32) {
        let r = *self.request(request);
        if r.prev_holder == NONE {
            self.heads.items[r.head as usize].first_holder = r.next_holder;
        } else {
            self.request_mut(r.prev_holder).next_holder = r.next_holder;
        }
        if r.next_holder != NONE {
            self.request_mut(r.next_holder).prev_holder = r.prev_holder;
        }
    }

    /// Adds `request` to the waiters with the requested `mode_bits` (STRIPE-4).
    pub(crate) fn link_waiter(&mut self, request: u32, mode_bits: ModeBits) {
        let (head, converts) = (self.request(request).head, self.request(request).held != 0);
        self.count_exclusive(head, self.request(request).held, self.request(request).held | mode_bits);
        self.request_mut(request).want = mode_bits;
        let mut after = self.head(head).last_waiter;
        while converts && after != NONE && self.request(after).held == 0 {
            after = self.request(after).prev_waiter;
        }
        let before =
            if after == NONE { self.head(head).first_waiter } else { self.request(after).next_waiter };
        self.request_mut(request).prev_waiter = after;
        self.request_mut(request).next_waiter = before;
        match after {
            NONE => self.heads.items[head as usize].first_waiter = request,
            _ => self.request_mut(after).next_waiter = request,
        }
        match before {
            NONE => self.heads.items[head as usize].last_waiter = request,
            _ => self.request_mut(before).prev_waiter = request,
        }
    }

    /// Removes `request` from the waiters.
    pub(crate) fn unlink_waiter(&mut self, request: u32) {
        let r = *self.request(request);
        match r.prev_waiter {
            NONE => self.heads.items[r.head as usize].first_waiter = r.next_waiter,
            before => self.request_mut(before).next_waiter = r.next_waiter,
        }
        match r.next_waiter {
            NONE => self.heads.items[r.head as usize].last_waiter = r.prev_waiter,
            after => self.request_mut(after).prev_waiter = r.prev_waiter,
        }
        self.count_exclusive(r.head, r.held | r.want, r.held);
        let r = self.request_mut(request);
        (r.want, r.instant) = (0, false);
        (r.next_waiter, r.prev_waiter) = (NONE, NONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use azekura_base::TreeId;

    #[test]
    fn lock_heads_are_reused_and_a_large_transaction_frees_its_memory() {
        let mut stripe = Stripe::new();
        let id = |n| LockId::table(TreeId(n));
        let requests: Vec<u32> = (0..5000)
            .map(|n| {
                let head = stripe.find_or_add(id(n));
                let request = stripe.add_request(head, n);
                stripe.set_held(request, 1);
                request
            })
            .collect();
        assert_eq!((stripe.len(), stripe.heads().count()), (5000, 5000));
        for (n, &request) in (0..).zip(&requests) {
            let head = stripe.find(id(n));
            assert_eq!(stripe.request(request).head, head);
            assert_eq!((stripe.head(head).mask, stripe.held_by_others(head, 1)), (1, 0));
            stripe.set_held(request, 0);
            stripe.free_request(request);
            stripe.remove_if_unused(head);
            assert_eq!(stripe.find(id(n)), NONE);
        }
        assert_eq!((stripe.len(), stripe.heads.items.capacity()), (0, 0));
    }

    #[test]
    fn conversions_wait_before_newcomers() {
        let mut stripe = Stripe::new();
        let head = stripe.find_or_add(LockId::table(TreeId(1)));
        let requests: Vec<u32> = (0..5).map(|owner| stripe.add_request(head, owner)).collect();
        for &holder in &requests[..2] {
            stripe.set_held(holder, 1);
        }
        for waiter in [3, 2, 1, 4, 0] {
            stripe.link_waiter(requests[waiter], 2);
        }
        let order = |s: &Stripe| s.waiters(head).map(|r| r.owner).collect::<Vec<_>>();
        assert_eq!(order(&stripe), [1, 0, 3, 2, 4]);
        for (leaves, rest) in [(3, &[1, 0, 2, 4][..]), (1, &[0, 2, 4]), (4, &[0, 2])] {
            stripe.unlink_waiter(requests[leaves]);
            assert_eq!(order(&stripe), rest);
        }
        stripe.link_waiter(requests[3], 2);
        assert_eq!(order(&stripe), [0, 2, 3]);
    }
}
