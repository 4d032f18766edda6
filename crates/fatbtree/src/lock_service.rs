//! The lock service of a PE (section 3.3.2): modes IS, IX, S, SIX and X on the PE's own copies of pages.
//!
//! A waiting request is a future in a queue, so the service cannot run out of threads (hazard B5, the paper's
//! section 3.4.1). The queue is first come, first served. A holder that converts its lock is queued before
//! requests that hold no lock on the page.
//!
//! - **LOCK-1** All modes held on a page are compatible with each other.
//! - **LOCK-2** A request that can be granted does not wait: each release and each cancellation checks the
//!   queue.
//! - **LOCK-3** Dropping a future removes it from the queue; dropping a [`Held`] releases its lock.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

pub(crate) use azekura_lock::TableMode as LockMode;

use crate::id::PageNo;

/// The locks of one PE. Clones share the same state.
#[derive(Clone, Default)]
pub(crate) struct LockService {
    inner: Rc<RefCell<Pages>>,
}

#[derive(Default)]
struct Pages {
    pages: HashMap<PageNo, PageLock>,
    next_ticket: u64,
}

#[derive(Default)]
struct PageLock {
    granted: Vec<(u64, LockMode)>,
    queue: VecDeque<Waiter>,
}

struct Waiter {
    ticket: u64,
    mode: LockMode,
    waker: Waker,
}

impl fmt::Debug for LockService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockService").field("locked_pages", &self.inner.borrow().pages.len()).finish()
    }
}

/// A lock on a page. Dropping it releases the lock.
#[derive(Debug)]
#[must_use]
pub(crate) struct Held {
    service: LockService,
    page: PageNo,
    ticket: u64,
}

/// A future that waits for a lock.
#[derive(Debug)]
#[must_use]
pub(crate) struct Acquire {
    service: LockService,
    page: PageNo,
    mode: LockMode,
    /// Number of the queued request; assigned when the future begins to wait.
    ticket: Option<u64>,
}

impl LockService {
    /// Returns a future that waits until `page` is locked in `mode`.
    pub(crate) fn lock(&self, page: PageNo, mode: LockMode) -> Acquire {
        Acquire { service: self.clone(), page, mode, ticket: None }
    }

    /// Locks `page` in `mode` if no wait is needed.
    #[must_use]
    pub(crate) fn try_lock(&self, page: PageNo, mode: LockMode) -> Option<Held> {
        let ticket = self.inner.borrow_mut().try_grant(page, mode)?;
        Some(Held { service: self.clone(), page, ticket })
    }

    /// Returns the number of pages with a lock or a waiting request.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn locked_pages(&self) -> usize {
        self.inner.borrow().pages.len()
    }

    fn leave(&self, page: PageNo, ticket: u64) {
        let mut pages = self.inner.borrow_mut();
        let Some(lock) = pages.pages.get_mut(&page) else { return };
        lock.granted.retain(|(held, _)| *held != ticket);
        lock.queue.retain(|waiter| waiter.ticket != ticket);
        lock.grant_first(); // LOCK-2
        if lock.granted.is_empty() && lock.queue.is_empty() {
            pages.pages.remove(&page);
        }
    }
}

impl Pages {
    fn draw(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    fn try_grant(&mut self, page: PageNo, mode: LockMode) -> Option<u64> {
        let lock = self.pages.entry(page).or_default();
        if !lock.queue.is_empty() || !lock.admits(mode, None) {
            return None;
        }
        let ticket = self.draw();
        self.pages.entry(page).or_default().granted.push((ticket, mode));
        Some(ticket)
    }
}

impl PageLock {
    /// Returns `true` if `mode` is compatible with the locks of other holders.
    fn admits(&self, mode: LockMode, own: Option<u64>) -> bool {
        self.granted.iter().all(|(ticket, held)| Some(*ticket) == own || held.is_compatible(mode))
    }

    /// Grants the first requests of the queue, as long as they are compatible.
    fn grant_first(&mut self) {
        while let Some(waiter) = self.queue.front() {
            let own = self.granted.iter().position(|(ticket, _)| *ticket == waiter.ticket);
            if !self.admits(waiter.mode, Some(waiter.ticket)) {
                return;
            }
            let Some(waiter) = self.queue.pop_front() else { return };
            match own {
                Some(place) => self.granted[place].1 = waiter.mode,
                None => self.granted.push((waiter.ticket, waiter.mode)),
            }
            waiter.waker.wake();
        }
    }
}

impl Future for Acquire {
    type Output = Held;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Held> {
        let service = self.service.clone();
        let mut pages = service.inner.borrow_mut();
        let (page, mode) = (self.page, self.mode);
        let ticket = match self.ticket {
            None => match pages.try_grant(page, mode) {
                Some(ticket) => ticket,
                None => {
                    let ticket = pages.draw();
                    let waiter = Waiter { ticket, mode, waker: cx.waker().clone() };
                    pages.pages.entry(page).or_default().queue.push_back(waiter);
                    self.ticket = Some(ticket);
                    return Poll::Pending;
                }
            },
            Some(ticket) => {
                if let Some(lock) = pages.pages.get_mut(&page)
                    && let Some(waiter) = lock.queue.iter_mut().find(|waiter| waiter.ticket == ticket)
                {
                    waiter.waker.clone_from(cx.waker());
                    return Poll::Pending;
                }
                ticket
            }
        };
        // From here on `Held` owns the lock.
        self.ticket = None;
        Poll::Ready(Held { service: service.clone(), page, ticket })
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.service.leave(self.page, ticket);
        }
    }
}

impl Held {
    /// Waits until the lock has at least `mode`. If this future is dropped, the lock keeps its old mode or
    /// has `mode` already.
    #[cfg(any(test, feature = "baseline-protocols"))]
    pub(crate) async fn convert(&mut self, mode: LockMode) {
        let leaving = Converting { held: self };
        let mut queued = false;
        std::future::poll_fn(|cx| {
            let mut pages = leaving.held.service.inner.borrow_mut();
            let ticket = leaving.held.ticket;
            let Some(lock) = pages.pages.get_mut(&leaving.held.page) else { return Poll::Ready(()) };
            let Some(place) = lock.granted.iter().position(|(held, _)| *held == ticket) else {
                return Poll::Ready(());
            };
            let wanted = lock.granted[place].1.supremum(mode);
            if !queued {
                if lock.admits(wanted, Some(ticket)) {
                    lock.granted[place].1 = wanted;
                    return Poll::Ready(());
                }
                // Conversions are queued before requests of new holders, and behind earlier conversions.
                let holders: Vec<_> = lock.granted.iter().map(|(held, _)| *held).collect();
                let behind = lock.queue.iter().take_while(|waiter| holders.contains(&waiter.ticket)).count();
                lock.queue.insert(behind, Waiter { ticket, mode: wanted, waker: cx.waker().clone() });
                queued = true;
                return Poll::Pending;
            }
            match lock.queue.iter_mut().find(|waiter| waiter.ticket == ticket) {
                Some(waiter) => {
                    waiter.waker.clone_from(cx.waker());
                    Poll::Pending
                }
                None => Poll::Ready(()),
            }
        })
        .await;
    }
}

/// Guard that removes an abandoned conversion from the queue.
#[cfg(any(test, feature = "baseline-protocols"))]
struct Converting<'a> {
    held: &'a Held,
}

#[cfg(any(test, feature = "baseline-protocols"))]
impl Drop for Converting<'_> {
    fn drop(&mut self) {
        let mut pages = self.held.service.inner.borrow_mut();
        if let Some(lock) = pages.pages.get_mut(&self.held.page) {
            lock.queue.retain(|waiter| waiter.ticket != self.held.ticket);
            lock.grant_first();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.service.leave(self.page, self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    const PAGE: PageNo = PageNo(1);

    #[test]
    fn modes_go_together_as_in_the_papers_table_1() {
        use LockMode::{IS, IX, S, SIX, X};
        let rows = [(IS, "++++-"), (IX, "++---"), (S, "+-+--"), (SIX, "+----"), (X, "-----")];
        for (held, row) in rows {
            for (wanted, allowed) in [IS, IX, S, SIX, X].into_iter().zip(row.chars()) {
                let service = LockService::default();
                let _held = service.try_lock(PAGE, held).expect("free");
                assert_eq!(
                    service.try_lock(PAGE, wanted).is_some(),
                    allowed == '+',
                    "{held:?} and {wanted:?}"
                );
            }
        }
    }

    #[test]
    fn waiters_are_granted_in_order_and_readers_do_not_pass_a_writer() {
        let service = LockService::default();
        let reader = service.try_lock(PAGE, LockMode::S).expect("free");
        let mut writer = service.lock(PAGE, LockMode::X);
        assert!(poll(&mut writer).is_none());
        let mut late = service.lock(PAGE, LockMode::S);
        assert!(poll(&mut late).is_none(), "it would starve the writer");
        drop(reader);
        let writer = poll(&mut writer).expect("free now");
        assert!(poll(&mut late).is_none());
        drop(writer);
        assert!(poll(&mut late).is_some());
    }

    #[test]
    fn a_canceled_waiter_lets_the_next_one_pass() {
        let service = LockService::default();
        let reader = service.try_lock(PAGE, LockMode::S).expect("free");
        let mut writer = service.lock(PAGE, LockMode::X);
        assert!(poll(&mut writer).is_none());
        let mut late = service.lock(PAGE, LockMode::S);
        assert!(poll(&mut late).is_none());
        drop(writer);
        let late = poll(&mut late).expect("the writer has gone");
        drop((reader, late));
        assert_eq!(service.locked_pages(), 0, "nothing is left behind");
    }

    #[test]
    fn a_lock_that_was_granted_and_never_taken_is_released() {
        let service = LockService::default();
        let writer = service.try_lock(PAGE, LockMode::X).expect("free");
        let mut second = service.lock(PAGE, LockMode::X);
        assert!(poll(&mut second).is_none());
        drop(writer); // grants the lock to `second`, which is not polled again
        drop(second);
        assert!(service.try_lock(PAGE, LockMode::X).is_some());
    }

    #[test]
    fn a_conversion_is_granted_before_new_requests() {
        let service = LockService::default();
        let mut holder = service.try_lock(PAGE, LockMode::IX).expect("free");
        let other = service.try_lock(PAGE, LockMode::IX).expect("they go together");
        let mut stranger = service.lock(PAGE, LockMode::X);
        assert!(poll(&mut stranger).is_none());
        {
            let mut converts = Box::pin(holder.convert(LockMode::X));
            assert!(poll(&mut converts).is_none());
            drop(other);
            assert!(poll(&mut converts).is_some(), "it does not wait behind the stranger, who waits for it");
        }
        assert!(poll(&mut stranger).is_none());
        drop(holder);
        assert!(poll(&mut stranger).is_some());
    }

    #[test]
    fn a_canceled_conversion_leaves_the_lock_unchanged() {
        let service = LockService::default();
        let mut holder = service.try_lock(PAGE, LockMode::S).expect("free");
        let _other = service.try_lock(PAGE, LockMode::S).expect("they go together");
        assert!(poll(&mut Box::pin(holder.convert(LockMode::X))).is_none());
        assert!(service.try_lock(PAGE, LockMode::S).is_some(), "nobody is in the queue any more");
    }
}
