//! What is to be sent to a memory server, and what it has yet to answer.
//!
//! - **QUEUE-1** A server does requests in the order of their tags, so an answer says that every request with a smaller tag was done; of the others
//!   nobody knows.
//! - **QUEUE-2** Requests of which nobody knows are sent again over a new stream ([`again`](Queues::again)), puts and frees in their order. Each says what is to be, not
//!   how it changes, so to be done twice is as well as once; and of one page there is never a get under way beside a put or a free.

use crate::client::{Order, Verb};
use crate::wire::{Header, Kind};
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// Requests that may be unanswered at once.
const WINDOW: usize = 32;

#[derive(Debug, Default)]
pub(super) struct Queues {
    urgent: VecDeque<Order>,
    bulk: VecDeque<Bulk>,
    /// By tag.
    pending: BTreeMap<u64, Pending>,
    /// Frees that were sent, which nobody answers, by tag.
    freed: VecDeque<(u64, u32)>,
    next_tag: u64,
    /// The request that the writer is sending.
    pub(super) writing: Option<u64>,
    /// The stream is broken: the writer is to end.
    pub(super) cut: bool,
    /// No order is taken any more.
    pub(super) closed: bool,
    /// The server is told so, if it can be.
    pub(super) bids_farewell: bool,
}

#[derive(Debug)]
enum Bulk {
    Put(Order),
    Free(u32),
    Ping,
}

#[derive(Debug)]
pub(super) struct Pending {
    /// None: a ping.
    pub(super) order: Option<Order>,
    pub(super) since: Instant,
}

/// A payload: its first byte and its length.
pub(super) struct Source(pub(super) *const u8, pub(super) usize);

impl Queues {
    pub(super) fn take(&mut self, order: Order) {
        match order.verb {
            Verb::Get => self.urgent.push_back(order),
            Verb::Put => self.bulk.push_back(Bulk::Put(order)),
        }
    }

    pub(super) fn forget(&mut self, page: u32) {
        self.bulk.push_back(Bulk::Free(page));
    }

    /// Asks whether the server is there, unless something else does.
    pub(super) fn ping(&mut self) -> bool {
        let asks = self.bulk.is_empty();
        if asks {
            self.bulk.push_back(Bulk::Ping);
        }
        asks
    }

    /// What to send next, if the window is open; it counts as unanswered from here on.
    pub(super) fn next(&mut self) -> Option<(Header, Option<Source>)> {
        if self.pending.len() >= WINDOW {
            return None;
        }
        let tag = self.next_tag;
        let (header, source, order) = match self.urgent.pop_front() {
            Some(order) => (Header::bare(Kind::Get, tag, order.page.into()), None, Some(order)),
            None => self.bulk.pop_front()?.frame(tag),
        };
        self.next_tag += 1;
        self.writing = Some(tag);
        match header.kind {
            #[expect(clippy::cast_possible_truncation, reason = "it came from as narrow a number")]
            Kind::Free => self.freed.push_back((tag, header.page as u32)),
            _ => drop(self.pending.insert(tag, Pending { order, since: Instant::now() })),
        }
        Some((header, source))
    }

    /// What is answered by a reply with this tag.
    pub(super) fn answered(&mut self, tag: u64) -> Option<Pending> {
        let pending = self.pending.remove(&tag)?;
        while self.freed.front().is_some_and(|&(freed, _)| freed < tag) {
            self.freed.pop_front();
        }
        Some(pending)
    }

    /// It was not answered after all.
    pub(super) fn unanswered(&mut self, tag: u64, pending: Pending) {
        self.pending.insert(tag, pending);
    }

    /// Since when the oldest request waits.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.pending.values().map(|pending| pending.since).min()
    }

    /// All that is unanswered is to be sent again (QUEUE-2).
    pub(super) fn again(&mut self) {
        let mut bulk: Vec<(u64, Bulk)> =
            self.freed.drain(..).map(|(tag, page)| (tag, Bulk::Free(page))).collect();
        for (tag, pending) in std::mem::take(&mut self.pending).into_iter().rev() {
            match pending.order {
                Some(order) if order.verb == Verb::Get => self.urgent.push_front(order),
                Some(order) => bulk.push((tag, Bulk::Put(order))),
                None => {}
            }
        }
        bulk.sort_unstable_by_key(|&(tag, _)| std::cmp::Reverse(tag));
        bulk.into_iter().for_each(|(_, bulk)| self.bulk.push_front(bulk));
        (self.writing, self.cut) = (None, false);
    }

    /// All orders that were not done.
    pub(super) fn give_back(&mut self) -> Vec<Order> {
        let pending = std::mem::take(&mut self.pending).into_values().filter_map(|pending| pending.order);
        let mut orders: Vec<Order> = pending.chain(self.urgent.drain(..)).collect();
        orders.extend(self.bulk.drain(..).filter_map(|bulk| match bulk {
            Bulk::Put(order) => Some(order),
            Bulk::Free(_) | Bulk::Ping => None,
        }));
        orders
    }
}

impl Bulk {
    fn frame(self, tag: u64) -> (Header, Option<Source>, Option<Order>) {
        match self {
            Self::Put(order) => {
                #[expect(clippy::cast_possible_truncation, reason = "pages are at most MAX_PAYLOAD")]
                let length = order.bytes as u32;
                let header =
                    Header { kind: Kind::Put, length, tag, page: order.page.into(), digest: order.digest };
                (header, Some(Source(order.at, order.bytes)), Some(order))
            }
            Self::Free(page) => (Header::bare(Kind::Free, tag, page.into()), None, None),
            Self::Ping => (Header::bare(Kind::Ping, tag, 0), None, None),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::digest::Digest;

    fn order(verb: Verb, page: u32) -> Order {
        Order { verb, page, at: std::ptr::null_mut(), bytes: 0, digest: Digest::default() }
    }

    fn sent(queues: &mut Queues) -> Vec<(Kind, u64)> {
        std::iter::from_fn(|| queues.next()).map(|(header, _)| (header.kind, header.page)).collect()
    }

    #[test]
    fn what_is_unanswered_goes_again_in_its_order_and_what_was_done_does_not() {
        let mut queues = Queues::default();
        queues.forget(9);
        queues.take(order(Verb::Put, 1));
        queues.forget(2);
        queues.take(order(Verb::Put, 2));
        queues.take(order(Verb::Get, 5));
        queues.take(order(Verb::Get, 4));
        let first = sent(&mut queues);
        assert_eq!(first[..3], [(Kind::Get, 5), (Kind::Get, 4), (Kind::Free, 9)]);
        // The put of page 1, tag 3, is answered: so the free before it was done, and the one behind it perhaps.
        assert_eq!(queues.answered(3).unwrap().order.unwrap().page, 1);
        assert!(queues.answered(3).is_none());
        queues.take(order(Verb::Put, 7));
        queues.take(order(Verb::Get, 8));
        queues.again();
        let again =
            [(Kind::Get, 5), (Kind::Get, 4), (Kind::Get, 8), (Kind::Free, 2), (Kind::Put, 2), (Kind::Put, 7)];
        assert_eq!(sent(&mut queues), again);
        queues.ping();
        assert_eq!(sent(&mut queues), [(Kind::Ping, 0)]);
        queues.again();
        assert_eq!(sent(&mut queues), again, "nobody waits for a ping");
        let pages: Vec<u32> = queues.give_back().iter().map(|order| order.page).collect();
        assert_eq!(pages, [5, 4, 8, 2, 7]);
    }

    #[test]
    fn the_window_is_open_again_when_a_request_is_answered() {
        let mut queues = Queues::default();
        (0..100).for_each(|page| queues.take(order(Verb::Get, page)));
        assert_eq!(sent(&mut queues).len(), WINDOW);
        queues.answered(7).unwrap();
        assert_eq!(sent(&mut queues), [(Kind::Get, WINDOW as u64)]);
    }
}
