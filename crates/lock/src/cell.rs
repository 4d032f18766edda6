//! A stripe, its latch, and the count that scans read without the latch.

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

use azekura_base::CachePadded;
use azekura_base::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use azekura_latch::{TracedGuard, TracedMutex};
use azekura_trace::Site;

use crate::stripe::Stripe;

static STRIPE: Site = Site::new("lock table stripe");

/// A stripe with its latch and its exclusive count.
#[derive(Debug)]
pub(crate) struct StripeCell {
    /// At least [`Stripe::exclusive`] whenever the latch is free; written only under the latch.
    exclusive: AtomicU32,
    stripe: TracedMutex<Stripe>,
}

impl StripeCell {
    pub(crate) fn new() -> Self {
        Self { exclusive: AtomicU32::new(0), stripe: TracedMutex::new(&STRIPE, Stripe::new()) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> StripeGuard<'_> {
        StripeGuard { exclusive: &self.exclusive, stripe: self.stripe.lock() }
    }

    /// Returns `true` if a request in this stripe, held or waiting, conflicts with a scan.
    #[inline]
    pub(crate) fn has_exclusive(&self) -> bool {
        // Acquire: pairs with the Release in the guard's drop. A thread that reads 0 also reads the commit
        // LSN that the last exclusive holder stored (DEPEND-1).
        self.exclusive.load(Acquire) != 0
    }
}

/// A latched stripe.
#[derive(Debug)]
pub(crate) struct StripeGuard<'a> {
    exclusive: &'a AtomicU32,
    /// The latch, released after this guard's own drop.
    stripe: TracedGuard<'a, Stripe>,
}

impl StripeGuard<'_> {
    /// Counts a request that conflicts with scans until the latch is released: then the exact count is
    /// published.
    #[inline]
    pub(crate) fn announce_exclusive(&self) {
        // Relaxed: the caller's fence orders it before it reads the ranges.
        self.exclusive.store(self.stripe.exclusive + 1, Relaxed);
    }
}

impl Deref for StripeGuard<'_> {
    type Target = Stripe;
    #[inline]
    fn deref(&self) -> &Stripe {
        &self.stripe
    }
}

impl DerefMut for StripeGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Stripe {
        &mut self.stripe
    }
}

impl Drop for StripeGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // Relaxed: written only under the latch.
        if self.exclusive.load(Relaxed) != self.stripe.exclusive {
            // Release: pairs with the Acquire in `has_exclusive`.
            self.exclusive.store(self.stripe.exclusive, Release);
        }
    }
}

/// The stripes of a lock table, allocated in groups on first use: an idle store has few.
#[derive(Debug)]
pub(crate) struct Stripes {
    groups: Box<[OnceLock<Box<Group>>]>,
    count: usize,
}

type Group = [CachePadded<StripeCell>; GROUP];

/// Number of stripes that are allocated together.
const GROUP: usize = if cfg!(loom) { 1 } else { 4 };

impl Stripes {
    /// Returns `count` stripes; `count` must be a power of two.
    pub(crate) fn new(count: usize) -> Self {
        let groups = (0..count.div_ceil(GROUP)).map(|_| OnceLock::new()).collect();
        let stripes = Self { groups, count };
        if cfg!(loom) {
            // The mutexes of a model are made before its threads.
            (0..count).for_each(|number| _ = stripes.get(number));
        }
        stripes
    }

    /// Returns the number of stripes, allocated or not.
    #[inline]
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    #[inline]
    pub(crate) fn get(&self, number: usize) -> &StripeCell {
        let stripe = |_| CachePadded::new(StripeCell::new());
        let group = self.groups[number / GROUP].get_or_init(|| Box::new(std::array::from_fn(stripe)));
        &group[number % GROUP]
    }

    /// Returns the allocated stripes; the others are empty.
    pub(crate) fn used(&self) -> impl Iterator<Item = &StripeCell> {
        self.groups.iter().filter_map(OnceLock::get).flat_map(|group| group.iter()).map(|stripe| &**stripe)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_stripe_takes_128_bytes() {
        // In simulated machines, mutexes and atomics are larger.
        if size_of::<azekura_base::sync::Mutex<()>>() == 1 {
            assert_eq!(size_of::<CachePadded<StripeCell>>(), 128);
        }
        let stripes = Stripes::new(2);
        assert_eq!((stripes.count(), stripes.used().count()), (2, 0));
        assert!(
            std::ptr::eq(stripes.get(1), stripes.get(1)) && !std::ptr::eq(stripes.get(0), stripes.get(1))
        );
    }
}
