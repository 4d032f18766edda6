//! Ends of open transactions without a request of their clients: a transaction blocks a structure change, its
//! client's node is unreachable, or its timeout has passed.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use crate::id::PeId;
use crate::key::KeyRange;
use crate::message::TransactionId;
use crate::node::Node;
use crate::node::open::{Open, Phase};

/// Longest wait of a structure change before it ends the transactions that may block it.
const BLOCKED_LIMIT: Duration = Duration::from_millis(50);
impl Node {
    /// Rolls back the idle transactions for which `which` returns `true`.
    async fn end_idle(&self, why: &str, which: impl Fn(TransactionId, &Open) -> bool) {
        loop {
            let next = {
                let mut open = self.open.open.borrow_mut();
                let next = open.iter_mut().find(|(id, open)| open.is_idle() && which(**id, open));
                next.and_then(|(id, open)| Some((*id, open.take(Phase::Ending)?)))
            };
            let Some((id, work)) = next else { return };
            self.open.remember(id, why.to_owned());
            work.abort().await;
            self.open.remove(id);
        }
    }

    /// Ends all idle transactions in a locked leaf's range. Returns `None` if no transaction is left
    /// (OPEN-1). Otherwise returns a task that waits for the next one to end. Release the leaf's lock before
    /// awaiting it, because that transaction may wait for a thread that needs this lock.
    pub(in crate::node) async fn end_those_in(
        &self,
        range: &KeyRange,
    ) -> Option<impl Future<Output = ()> + use<'_>> {
        const WHY: &str = "a leaf that it touched was moved to another node";
        self.end_idle(WHY, |_, open| open.touches(range)).await;
        self.open.request_end(WHY, |_, open| open.touches(range)).then(|| self.open.gone.notified())
    }

    /// Waits for `task`, which is part of a structure change. Ends idle transactions that block it (OPEN-2).
    pub(in crate::node) async fn go_ahead<T>(&self, task: impl Future<Output = T>) -> T {
        let mut task = pin!(task);
        loop {
            if self.open.len() == 0 {
                if let Some(done) = before(task.as_mut(), self.open.began.notified()).await {
                    return done;
                }
            } else if let Some(done) = self.world.timeout(BLOCKED_LIMIT, task.as_mut()).await {
                return done;
            } else {
                const WHY: &str = "it delayed the split, merge or move of a leaf for too long";
                self.end_idle(WHY, |_, open| !open.is_reader() && open.has_waiters()).await;
            }
        }
    }

    /// Ends the transactions of clients of a node that is unreachable.
    pub(in crate::node) fn end_those_of(&self, gateway: PeId) {
        const WHY: &str = "the connection to the node of its client was lost";
        if self.open.len() == 0 {
            return;
        }
        self.spawn(|node| {
            Box::pin(async move {
                node.end_idle(WHY, |id, _| id.0.origin == gateway).await;
                node.open.request_end(WHY, |id, _| id.0.origin == gateway);
            })
        });
    }

    /// OPEN-3: ends overdue transactions, until no transaction is open.
    pub(super) fn watch_time(&self) {
        if self.open.is_watched.replace(true) {
            return;
        }
        self.spawn(|node| {
            Box::pin(async move {
                let (open_timeout, reader_timeout) = (node.options.open_timeout, node.options.reader_timeout);
                while let Some(deadline) = node.open.next_deadline() {
                    let now = node.world.clock.now();
                    if now < deadline {
                        // A transaction that begins meanwhile may have an earlier deadline than all open
                        // ones.
                        let shortest = open_timeout.min(reader_timeout);
                        node.world.clock.sleep((deadline - now).min(shortest)).await;
                        continue;
                    }
                    for is_of_several in [false, true] {
                        let (limit, why) = match is_of_several {
                            false => (open_timeout, "open"),
                            true => (reader_timeout, "open and not used"),
                        };
                        let why = format!("it was {why} for more than {} ms", limit.as_millis());
                        let is_late =
                            |_, open: &Open| open.is_of_several == is_of_several && open.deadline <= now;
                        node.end_idle(&why, is_late).await;
                        node.open.request_end(&why, is_late);
                    }
                }
                node.open.is_watched.set(false);
            })
        });
    }
}

/// Returns the result of `task`, or `None` if `other` ends first.
async fn before<T>(
    mut task: Pin<&mut impl Future<Output = T>>,
    other: impl Future<Output = ()>,
) -> Option<T> {
    let mut other = pin!(other);
    std::future::poll_fn(|cx| match task.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => other.as_mut().poll(cx).map(|()| None),
    })
    .await
}
