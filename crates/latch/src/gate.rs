//! A gate: threads enter while a published value admits them. A change of the value can wait for the threads
//! inside.
//!
//! Entering never waits for a change. A change is a future and blocks no thread. So a thread inside may do
//! work for which a change waits, and a single-threaded owner of the value can wait for many threads. The
//! threads are spread over *stripes*. Each stripe has its own mutex, which is held for a few instructions.
//!
//! | a stripe | [`Gate::enter`] | changed by |
//! |---|---|---|
//! | open | admits by its value | [`Gate::exclude`] |
//! | draining | refuses all threads | the drop of each [`Drained`] of the gate |
//!
//! | thread in a stripe | owner |
//! |---|---|
//! | 1. lock; not draining, and the value admits it: `inside + 1`; unlock | |
//! | 2. works | 1. in each stripe: lock; new value, `draining + 1`; unlock |
//! | 3. lock; `inside - 1`; unlock; at 0 wake | 2. in each stripe: lock; 0 inside, or add a waker; unlock |
//! | | 3. acts while no thread of the old value is inside |
//!
//! - **GATE-1** A thread enters only if the current value of its stripe admits it. So after [`Gate::exclude`]
//!   has returned, a thread enters only if the new value admits it.
//! - **GATE-2** When [`Drained`] is ready, no thread is inside that entered before the exclusion.
//! - **GATE-3** A draining stripe admits no thread. So the number of threads inside only decreases, and
//!   GATE-2 holds as soon as each of them has left once.
//! - **GATE-4** The last thread that leaves a stripe wakes the futures that found a thread inside.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use azekura_base::CachePadded;
use azekura_base::sync::{Arc, Mutex};

/// A gate with a value of type `T`; see the [module](self). Clones are the same gate.
pub struct Gate<T> {
    stripes: Arc<Vec<CachePadded<Mutex<Stripe<T>>>>>,
}

impl<T> Clone for Gate<T> {
    fn clone(&self) -> Self {
        Self { stripes: Arc::clone(&self.stripes) }
    }
}

struct Stripe<T> {
    value: Arc<T>,
    /// Number of threads inside.
    inside: usize,
    /// Number of exclusions that were not dropped yet.
    draining: usize,
    /// Wakers of the futures that found a thread inside.
    wakers: Vec<Waker>,
}

impl<T> fmt::Debug for Gate<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("stripes", &self.stripes.len()).finish_non_exhaustive()
    }
}

impl<T> Gate<T> {
    /// Creates a gate with this number of stripes, at least one.
    pub fn new(stripes: usize, value: T) -> Self {
        let value = Arc::new(value);
        let stripe = || Stripe { value: Arc::clone(&value), inside: 0, draining: 0, wakers: Vec::new() };
        let stripes = (0..stripes.max(1)).map(|_| CachePadded::new(Mutex::new(stripe()))).collect();
        Self { stripes: Arc::new(stripes) }
    }

    fn stripe(&self, stripe: usize) -> &Mutex<Stripe<T>> {
        &self.stripes[stripe % self.stripes.len()]
    }

    /// Enters if the value admits the thread and no exclusion is in progress (GATE-1, GATE-3). Never waits.
    /// Concurrent threads should pass different stripe numbers.
    pub fn enter(&self, stripe: usize, admits: impl FnOnce(&T) -> bool) -> Option<Entry<T>> {
        let mut own = self.stripe(stripe).lock();
        if own.draining > 0 || !admits(&own.value) {
            return None;
        }
        own.inside += 1;
        drop(own);
        Some(Entry { gate: self.clone(), stripe })
    }

    /// Returns `true` if [`enter`](Self::enter) would have succeeded at some moment during the call.
    pub fn would_admit(&self, stripe: usize, admits: impl FnOnce(&T) -> bool) -> bool {
        let own = self.stripe(stripe).lock();
        own.draining == 0 && admits(&own.value)
    }

    /// Publishes a value that admits at least what the previous value admits. Waits for no thread.
    pub fn publish(&self, value: T) {
        let value = Arc::new(value);
        for stripe in &*self.stripes {
            stripe.lock().value = Arc::clone(&value);
        }
    }

    /// Publishes a value that admits less. The caller awaits the result before an action that must not meet a
    /// thread of an older value (GATE-2). Until the result is dropped, the gate refuses all threads.
    pub fn exclude(&self, value: T) -> Drained<'_, T> {
        let value = Arc::new(value);
        for stripe in &*self.stripes {
            let mut stripe = stripe.lock();
            stripe.value = Arc::clone(&value);
            stripe.draining += 1;
        }
        Drained { gate: self, next: 0 }
    }

    fn leave(&self, stripe: usize) {
        let mut own = self.stripe(stripe).lock();
        own.inside -= 1;
        if own.inside > 0 || own.wakers.is_empty() {
            return;
        }
        let wakers = std::mem::take(&mut own.wakers);
        drop(own);
        wakers.into_iter().for_each(Waker::wake); // GATE-4
    }
}

/// A thread inside a gate. Dropping the value leaves the gate.
pub struct Entry<T> {
    gate: Gate<T>,
    stripe: usize,
}

impl<T> fmt::Debug for Entry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("stripe", &self.stripe).finish_non_exhaustive()
    }
}

impl<T> Entry<T> {
    /// Returns `true` if the current value admits a further use by the thread inside. Refuses all uses during
    /// an exclusion, so that a thread with many uses leaves soon.
    #[must_use]
    pub fn admits(&self, admits: impl FnOnce(&T) -> bool) -> bool {
        self.gate.would_admit(self.stripe, admits)
    }
}

impl<T> Drop for Entry<T> {
    fn drop(&mut self) {
        self.gate.leave(self.stripe);
    }
}

/// An exclusion. The future is ready when all threads that were inside at its begin have left.
#[must_use = "threads of the older value may be inside until it is ready"]
pub struct Drained<'a, T> {
    gate: &'a Gate<T>,
    /// Index of the next stripe to check. All stripes below it were empty after the exclusion.
    next: usize,
}

impl<T> fmt::Debug for Drained<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drained").field("next", &self.next).finish_non_exhaustive()
    }
}

impl<T> Future for Drained<'_, T> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(stripe) = self.gate.stripes.get(self.next) {
            let mut stripe = stripe.lock();
            if stripe.inside > 0 {
                stripe.wakers.push(cx.waker().clone());
                return Poll::Pending;
            }
            self.next += 1;
        }
        Poll::Ready(())
    }
}

impl<T> Drop for Drained<'_, T> {
    fn drop(&mut self) {
        for stripe in &*self.gate.stripes {
            stripe.lock().draining -= 1;
        }
    }
}
