//! A stripe, its latch, and the count that scans read without the latch.

use std::ops::{Deref, DerefMut};

use azekura_base::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use azekura_latch::{TracedGuard, TracedMutex};
use azekura_trace::Site;

use crate::stripe::Stripe;

static STRIPE: Site = Site::new("lock table stripe");

/// See the module's head.
#[derive(Debug)]
pub(crate) struct StripeCell {
    /// At least [`Stripe::exclusive`] whenever the latch is open; written under the latch only.
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

    /// Returns `true` if a request here, held or waiting, conflicts with a scan.
    #[inline]
    pub(crate) fn has_exclusive(&self) -> bool {
        // Acquire: pairs with the Release in the guard's drop. A thread that reads 0 sees the commit LSN that
        // the last exclusive holder left (DEPEND-1).
        self.exclusive.load(Acquire) != 0
    }
}

/// A latched stripe.
#[derive(Debug)]
pub(crate) struct StripeGuard<'a> {
    exclusive: &'a AtomicU32,
    /// Dropped, and so unlatched, after this guard's own drop.
    stripe: TracedGuard<'a, Stripe>,
}

impl StripeGuard<'_> {
    /// Counts a request that conflicts with scans, until the latch opens: then the true count is published.
    #[inline]
    pub(crate) fn announce_exclusive(&self) {
        // Relaxed: the caller's fence orders it before its look at the ranges.
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
        // Relaxed: written under the latch only.
        if self.exclusive.load(Relaxed) != self.stripe.exclusive {
            // Release: pairs with the Acquire in `has_exclusive`.
            self.exclusive.store(self.stripe.exclusive, Release);
        }
    }
}
