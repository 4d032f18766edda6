//! The environment of a node: network, clock, random numbers and task spawner. The same code runs in a real
//! environment and in a simulation that a seed determines.
//!
//! A node is one task queue on one thread. Every wait, for a lock, an answer or the store, is a future and
//! never blocks a thread (hazard B5).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::id::PeId;

/// An asynchronous task.
pub type Task<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Sends frames to other nodes. Neither arrival nor order is guaranteed. A frame arrives complete and at most
/// once.
pub trait Net {
    /// Sends a frame. Does not wait.
    fn send(&self, to: PeId, frame: Vec<u8>);

    /// Returns a task that waits until a large frame can be sent, or until frames would be dropped; `None` if
    /// this is so now.
    fn room(&self, to: PeId) -> Option<Task<'static, ()>> {
        let _ = to;
        None
    }

    /// Returns `true` if a frame would be sent. A request that was not sent can be refused at once, and
    /// retried.
    fn is_up(&self, to: PeId) -> bool {
        let _ = to;
        true
    }

    /// Returns `true` if the last attempt to connect to a node failed and no later one has succeeded.
    /// Requests for keys of such a node are refused at once.
    fn is_down(&self, to: PeId) -> bool {
        let _ = to;
        false
    }

    /// Returns the reason that nothing can be sent to `to`.
    fn trouble(&self, to: PeId) -> String {
        format!("{to} is not connected")
    }
}

/// A clock.
pub trait Clock {
    /// Returns the time since the clock was started.
    fn now(&self) -> Duration;

    /// Waits for `time`.
    fn sleep(&self, time: Duration) -> Task<'static, ()>;
}

/// A source of random numbers.
pub trait Rng {
    /// Returns a random number.
    fn next(&self) -> u64;

    /// Returns a random number below `end`, or 0 if `end` is 0.
    fn below(&self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next() % end as u64) as usize }
    }
}

/// Runs concurrent tasks on this thread.
pub trait Spawn {
    /// Starts a task.
    fn spawn(&self, task: Task<'static, ()>);
}

/// The complete environment of a node.
#[derive(Clone)]
pub struct World {
    /// Network to the other nodes.
    pub net: Rc<dyn Net>,
    /// Clock.
    pub clock: Rc<dyn Clock>,
    /// Random numbers.
    pub rng: Rc<dyn Rng>,
    /// Tasks.
    pub tasks: Rc<dyn Spawn>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("now", &self.clock.now()).finish_non_exhaustive()
    }
}

impl World {
    /// Waits for `task`, at most for `time`. Returns `None` after that.
    pub async fn timeout<T>(&self, time: Duration, task: impl Future<Output = T>) -> Option<T> {
        let mut sleep = self.clock.sleep(time);
        let mut task = std::pin::pin!(task);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(value) = task.as_mut().poll(cx) {
                return Poll::Ready(Some(value));
            }
            sleep.as_mut().poll(cx).map(|()| None)
        })
        .await
    }
}

/// A slot in which one task puts a value for another task.
pub(crate) struct Slot<T> {
    value: Cell<Option<T>>,
    waker: Cell<Option<Waker>>,
}

impl<T> Slot<T> {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self { value: Cell::new(None), waker: Cell::new(None) })
    }

    pub(crate) fn put(&self, value: T) {
        self.value.set(Some(value));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    pub(crate) async fn take(&self) -> T {
        std::future::poll_fn(|cx: &mut Context<'_>| match self.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                self.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}

/// Notifies waiting tasks of a change.
#[derive(Default)]
pub(crate) struct Notify {
    calls: Cell<u64>,
    next_waiter: Cell<u64>,
    /// One waker for each waiting [`Notified`], by its number.
    wakers: RefCell<BTreeMap<u64, Waker>>,
}

/// A future that ends with the next notification after its creation. Dropping it removes its waker: a task
/// may wait repeatedly, with a time limit, for a notification that never comes.
pub(crate) struct Notified<'a> {
    notify: &'a Notify,
    seen: u64,
    number: u64,
}

impl Notify {
    pub(crate) fn notify_waiters(&self) {
        self.calls.set(self.calls.get() + 1);
        for waker in self.wakers.take().into_values() {
            waker.wake();
        }
    }

    /// Waits for the next notification after this call.
    pub(crate) fn notified(&self) -> Notified<'_> {
        let number = self.next_waiter.get();
        self.next_waiter.set(number + 1);
        Notified { notify: self, seen: self.calls.get(), number }
    }
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.notify.calls.get() != self.seen {
            return Poll::Ready(());
        }
        let former = self.notify.wakers.borrow_mut().insert(self.number, cx.waker().clone());
        drop(former); // not while the map is borrowed
        Poll::Pending
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        let waker = self.notify.wakers.borrow_mut().remove(&self.number);
        drop(waker); // not while the map is borrowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_reaches_each_waiter_and_waiters_that_gave_up_leave_nothing() {
        let (notify, mut cx) = (Notify::default(), Context::from_waker(Waker::noop()));
        for _ in 0..1000 {
            let mut waiting = notify.notified();
            assert!(Pin::new(&mut waiting).poll(&mut cx).is_pending());
            assert!(Pin::new(&mut waiting).poll(&mut cx).is_pending());
            assert_eq!(notify.wakers.borrow().len(), 1);
        }
        assert!(notify.wakers.borrow().is_empty());
        let (mut one, mut two) = (notify.notified(), notify.notified());
        assert!(Pin::new(&mut one).poll(&mut cx).is_pending());
        notify.notify_waiters();
        assert!(Pin::new(&mut one).poll(&mut cx).is_ready());
        assert!(Pin::new(&mut two).poll(&mut cx).is_ready(), "it was created before");
        assert!(Pin::new(&mut notify.notified()).poll(&mut cx).is_pending());
    }
}
