//! Requests to a memory server: requests to send, and requests without a reply.
//!
//! - **QUEUE-1** A server executes requests in the order of their tags, and replies in this order. So a reply
//!   means that every request with a smaller tag was executed, and no reply to one of them arrives later. The
//!   state of the other requests is unknown.
//! - **QUEUE-2** Requests in an unknown state are sent again over a new stream ([`again`](Queues::again)),
//!   puts and frees in their order. Each request contains the final state, not a change, so executing it
//!   twice is harmless. A get of a page is never in flight together with a put or a free of the page.
//! - **QUEUE-3** Requests are written to the stream whole, one after the other. The sender has set `writing`
//!   to the request's tag, under the lock, when `writing` was empty. If `writing` is empty, the thread that
//!   submits a short request sends it itself ([`at_once`](Queues::at_once)), as far as the stream accepts it
//!   without blocking. The writer sends the rest.

use crate::client::{Order, Verb};
use crate::digest::Digest;
use crate::wire::{HEADER, Header, Kind};
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// Largest number of requests without a reply.
const WINDOW: usize = 32;
/// Largest number of payload bytes that the submitting thread sends itself. It holds the pager's lock
/// meanwhile; for so few bytes, waking the writer takes about as long as sending them.
const AT_ONCE: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct Queues {
    urgent: VecDeque<Vec<Order>>,
    bulk: VecDeque<Bulk>,
    /// Requests without a reply, by tag.
    pending: BTreeMap<u64, Pending>,
    /// Frees that were sent, with their tags. The server does not reply to them.
    freed: VecDeque<(u64, u32)>,
    next_tag: u64,
    /// The request that is being sent, by the writer or by the thread that submitted it.
    pub(super) writing: Option<u64>,
    /// The part of that request that the stream did not accept without blocking (QUEUE-3).
    rest: Option<Rest>,
    /// Set while a thread with the reply to that request waits until it is sent.
    pub(super) awaited: bool,
    /// Set when the stream is broken: the writer ends.
    pub(super) cut: bool,
    /// Set when no more orders are accepted.
    pub(super) closed: bool,
    /// Set when the writer is to send `Bye` to the server, if it can.
    pub(super) sends_bye: bool,
    /// Reply to the last reservation. At most one reservation is in flight.
    pub(super) reserved: Option<Result<(), String>>,
}

#[derive(Debug)]
enum Bulk {
    Put(Vec<Order>),
    Free(u32),
    Ping,
    Reserve(u64),
}

#[derive(Debug)]
pub(super) struct Pending {
    /// The orders of the run; empty for a ping or a reservation.
    pub(super) run: Vec<Order>,
    /// Number of bytes of a reservation; `None` for other requests.
    pub(super) reserve: Option<u64>,
    pub(super) since: Instant,
}

/// A piece of a request: its first byte and its length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source(pub(super) *const u8, pub(super) usize);

// SAFETY: an address. The thread that sends the request is the only one that uses it (KEEPER-1).
unsafe impl Send for Source {}

/// A request that was sent in part.
#[derive(Debug)]
pub(super) struct Rest {
    header: [u8; HEADER],
    payload: Vec<Source>,
    /// Number of bytes that were sent.
    sent: usize,
}

impl Rest {
    /// Returns the pieces that were not sent.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Source> + '_ {
        let mut sent = self.sent;
        let all = std::iter::once(Source(self.header.as_ptr(), HEADER)).chain(self.payload.iter().copied());
        all.filter_map(move |Source(at, bytes)| {
            let here = sent.min(bytes);
            sent -= here;
            (here < bytes).then(|| Source(at.wrapping_add(here), bytes - here))
        })
    }
}

impl Queues {
    pub(super) fn take(&mut self, run: Vec<Order>) {
        match run.first().map(|order| order.verb) {
            Some(Verb::Get) => self.urgent.push_back(run),
            Some(Verb::Put) => self.bulk.push_back(Bulk::Put(run)),
            None => {}
        }
    }

    pub(super) fn forget(&mut self, page: u32) {
        self.bulk.push_back(Bulk::Free(page));
    }

    /// Queues a ping unless another request without urgency is queued. Returns `true` if a ping was queued.
    pub(super) fn ping(&mut self) -> bool {
        let asks = self.bulk.is_empty();
        if asks {
            self.bulk.push_back(Bulk::Ping);
        }
        asks
    }

    /// Queues a reservation before all other requests without urgency.
    pub(super) fn reserve(&mut self, bytes: u64) {
        self.reserved = None;
        self.bulk.push_front(Bulk::Reserve(bytes));
    }

    /// Returns the next request if the window is not full. The request then counts as unanswered.
    pub(super) fn next(&mut self) -> Option<(Header, Vec<Source>)> {
        if self.pending.len() >= WINDOW {
            return None;
        }
        let tag = self.next_tag;
        let (header, sources, run) = match self.urgent.pop_front() {
            Some(run) => (head(Kind::Get, tag, &run), Vec::new(), run),
            None => self.bulk.pop_front()?.frame(tag),
        };
        self.next_tag += 1;
        self.writing = Some(tag);
        match header.kind {
            #[expect(clippy::cast_possible_truncation, reason = "the page number was converted from 32 bits")]
            Kind::Free => self.freed.push_back((tag, header.page as u32)),
            kind => {
                let reserve = (kind == Kind::Reserve).then_some(header.page);
                self.pending.insert(tag, Pending { run, reserve, since: Instant::now() });
            }
        }
        Some((header, sources))
    }

    /// Sends the next request if it is short and no other thread is sending. `send` gets its header and its
    /// payload, and returns the number of bytes that the stream accepted without blocking. Returns `true` if
    /// the whole request was sent; otherwise the writer sends the rest.
    pub(super) fn at_once(&mut self, send: impl FnOnce(&[u8], &[Source]) -> usize) -> bool {
        if self.writing.is_some() || self.cut || self.closed || !self.is_short() {
            return false;
        }
        let Some((header, payload)) = self.next() else { return false };
        let header = header.encode();
        let bytes = HEADER + payload.iter().map(|piece| piece.1).sum::<usize>();
        let sent = send(&header, &payload).min(bytes);
        if sent == bytes {
            self.writing = None;
        } else {
            self.rest = Some(Rest { header, payload, sent });
        }
        sent == bytes
    }

    /// Returns `true` if the next request is a get, or a short put that is alone in its queue.
    fn is_short(&self) -> bool {
        let is_short_put = |bulk: &Bulk| match bulk {
            Bulk::Put(run) => run.iter().map(|order| order.bytes).sum::<usize>() <= AT_ONCE,
            Bulk::Free(_) | Bulk::Ping | Bulk::Reserve(_) => false,
        };
        !self.urgent.is_empty() || self.bulk.len() == 1 && self.bulk.iter().all(is_short_put)
    }

    /// Removes and returns the part of a request that was left to the writer.
    pub(super) fn rest(&mut self) -> Option<Rest> {
        self.rest.take()
    }

    /// Returns `true` if a request is queued and the window is not full.
    pub(super) fn has_more(&self) -> bool {
        self.pending.len() < WINDOW && !(self.urgent.is_empty() && self.bulk.is_empty())
    }

    /// Returns the frames of the oldest request without a reply if it is a get. The next reply contains their
    /// bytes (QUEUE-1).
    pub(super) fn expected(&self) -> Vec<Source> {
        let oldest = self.pending.values().next().map(|pending| &pending.run[..]);
        match oldest {
            Some(run @ [Order { verb: Verb::Get, .. }, ..]) => sources(run),
            _ => Vec::new(),
        }
    }

    /// Removes and returns the request that a reply with this tag answers. `None` if it is not the oldest
    /// request without a reply (QUEUE-1).
    pub(super) fn answered(&mut self, tag: u64) -> Option<Pending> {
        let oldest = self.pending.first_entry().filter(|oldest| *oldest.key() == tag)?;
        let pending = oldest.remove();
        while self.freed.front().is_some_and(|&(freed, _)| freed < tag) {
            self.freed.pop_front();
        }
        Some(pending)
    }

    /// Puts a request back because it was not answered.
    pub(super) fn unanswered(&mut self, tag: u64, pending: Pending) {
        self.pending.insert(tag, pending);
    }

    /// Returns the time at which the oldest request without a reply was sent.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.pending.values().map(|pending| pending.since).min()
    }

    /// Queues all requests in an unknown state to be sent again (QUEUE-2).
    pub(super) fn again(&mut self) {
        let mut bulk: Vec<(u64, Bulk)> =
            self.freed.drain(..).map(|(tag, page)| (tag, Bulk::Free(page))).collect();
        for (tag, pending) in std::mem::take(&mut self.pending).into_iter().rev() {
            match pending.run.first().map(|order| order.verb) {
                Some(Verb::Get) => self.urgent.push_front(pending.run),
                Some(Verb::Put) => bulk.push((tag, Bulk::Put(pending.run))),
                None => bulk.extend(pending.reserve.map(|bytes| (tag, Bulk::Reserve(bytes)))),
            }
        }
        bulk.sort_unstable_by_key(|&(tag, _)| std::cmp::Reverse(tag));
        bulk.into_iter().for_each(|(_, bulk)| self.bulk.push_front(bulk));
        (self.writing, self.rest, self.cut) = (None, None, false);
    }

    /// Removes and returns all orders that were not executed.
    pub(super) fn give_back(&mut self) -> Vec<Order> {
        let pending = std::mem::take(&mut self.pending).into_values().map(|pending| pending.run);
        let puts = self.bulk.drain(..).filter_map(|bulk| match bulk {
            Bulk::Put(run) => Some(run),
            Bulk::Free(_) | Bulk::Ping | Bulk::Reserve(_) => None,
        });
        pending.chain(self.urgent.drain(..)).chain(puts).flatten().collect()
    }
}

impl Bulk {
    fn frame(self, tag: u64) -> (Header, Vec<Source>, Vec<Order>) {
        match self {
            Self::Put(run) => {
                #[expect(clippy::cast_possible_truncation, reason = "runs are at most MAX_PAYLOAD")]
                let length = run.iter().map(|order| order.bytes).sum::<usize>() as u32;
                let digest = Digest::of_run(run.iter().map(|order| order.digest));
                (Header { length, digest, ..head(Kind::Put, tag, &run) }, sources(&run), run)
            }
            Self::Free(page) => (Header::bare(Kind::Free, tag, page.into()), Vec::new(), Vec::new()),
            Self::Ping => (Header::bare(Kind::Ping, tag, 0), Vec::new(), Vec::new()),
            Self::Reserve(bytes) => (Header::bare(Kind::Reserve, tag, bytes), Vec::new(), Vec::new()),
        }
    }
}

/// Returns a header that specifies the pages of a run.
fn head(kind: Kind, tag: u64, run: &[Order]) -> Header {
    #[expect(clippy::cast_possible_truncation, reason = "runs are at most MAX_PAYLOAD")]
    let more = run.len() as u32 - 1;
    Header { more, ..Header::bare(kind, tag, run[0].page.into()) }
}

/// Returns the pieces of the payload of a run. Adjacent frames form one piece.
pub(super) fn sources(run: &[Order]) -> Vec<Source> {
    let mut sources: Vec<Source> = Vec::new();
    for order in run {
        match sources.last_mut() {
            Some(Source(at, bytes)) if at.wrapping_add(*bytes) == order.at => *bytes += order.bytes,
            _ => sources.push(Source(order.at, order.bytes)),
        }
    }
    sources
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn order(verb: Verb, page: u32) -> Vec<Order> {
        let bytes = if verb == Verb::Put { AT_ONCE + 1 } else { 0 };
        vec![Order { verb, page, at: std::ptr::null_mut(), bytes, digest: Digest::default() }]
    }

    /// A put of these bytes.
    fn put(page: u32, bytes: &mut [u8]) -> Vec<Order> {
        let (at, bytes) = (bytes.as_mut_ptr(), bytes.len());
        vec![Order { verb: Verb::Put, page, at, bytes, digest: Digest::default() }]
    }

    /// Appends at most `room` bytes of a request to what was sent, as a stream does.
    fn append(sent: &mut Vec<u8>, room: usize, header: &[u8], payload: &[Source]) -> usize {
        let before = sent.len();
        sent.extend_from_slice(header);
        for &Source(at, bytes) in payload {
            // SAFETY: a part of the bytes of `put`, which the test keeps.
            sent.extend_from_slice(unsafe { std::slice::from_raw_parts(at, bytes) });
        }
        sent.truncate(before + room);
        sent.len() - before
    }

    fn sent(queues: &mut Queues) -> Vec<(Kind, u64)> {
        std::iter::from_fn(|| queues.next()).map(|(header, _)| (header.kind, header.page)).collect()
    }

    #[test]
    fn unanswered_requests_are_resent_in_order_and_completed_ones_are_not() {
        let mut queues = Queues::default();
        queues.forget(9);
        queues.take(order(Verb::Put, 1));
        queues.forget(2);
        queues.take(order(Verb::Put, 2));
        queues.take(order(Verb::Get, 5));
        queues.take(order(Verb::Get, 4));
        let first = sent(&mut queues);
        assert_eq!(first[..3], [(Kind::Get, 5), (Kind::Get, 4), (Kind::Free, 9)]);
        assert!(queues.answered(3).is_none(), "replies arrive in the order of the requests");
        // The reply to the put of page 1 (tag 3) means that the free before it was executed. The state of the
        // free after it is unknown.
        let pages = [0, 1, 3].map(|tag| queues.answered(tag).unwrap().run[0].page);
        assert_eq!(pages, [5, 4, 1]);
        assert!(queues.answered(3).is_none());
        [6, 3].into_iter().for_each(|page| queues.take(order(Verb::Get, page)));
        assert_eq!(sent(&mut queues), [(Kind::Get, 6), (Kind::Get, 3)]);
        queues.take(order(Verb::Put, 7));
        queues.take(order(Verb::Get, 8));
        queues.again();
        let again =
            [(Kind::Get, 6), (Kind::Get, 3), (Kind::Get, 8), (Kind::Free, 2), (Kind::Put, 2), (Kind::Put, 7)];
        assert_eq!(sent(&mut queues), again);
        queues.ping();
        assert_eq!(sent(&mut queues), [(Kind::Ping, 0)]);
        queues.again();
        assert_eq!(sent(&mut queues), again, "nobody waits for a ping");
        let pages: Vec<u32> = queues.give_back().iter().map(|order| order.page).collect();
        assert_eq!(pages, [6, 3, 8, 2, 7]);
    }

    #[test]
    fn the_requesting_thread_sends_its_request_unless_another_send_is_active() {
        let mut queues = Queues::default();
        assert!(!queues.at_once(|_, _| unreachable!("there is none")));
        queues.take(order(Verb::Put, 1));
        assert!(!queues.at_once(|_, _| unreachable!("long payloads are the writer's")));
        queues.take(order(Verb::Get, 2));
        let mut sent = Vec::new();
        assert!(queues.at_once(|header, payload| append(&mut sent, usize::MAX / 2, header, payload)));
        let header = Header::decode(sent[..].try_into().unwrap()).unwrap();
        assert_eq!((header.kind, header.tag, header.page), (Kind::Get, 0, 2));
        assert_eq!((queues.writing, queues.rest().is_none()), (None, true));
        // The writer is sending the put.
        assert_eq!(queues.next().unwrap().0.tag, 1);
        queues.take(order(Verb::Get, 3));
        assert!(!queues.at_once(|_, _| unreachable!("it would be in the midst of the put")));
        assert!(queues.answered(0).is_some());
    }

    #[test]
    fn a_short_put_is_sent_at_once_unless_another_request_is_queued_before_it() {
        let mut queues = Queues::default();
        let (mut first, mut second, mut sent) = ([1; 100], [2; 50], Vec::new());
        queues.take(put(8, &mut first));
        assert!(queues.at_once(|header, payload| append(&mut sent, usize::MAX / 2, header, payload)));
        let header = Header::decode(sent[..HEADER].try_into().unwrap()).unwrap();
        assert_eq!((header.kind, header.tag, header.page, header.length), (Kind::Put, 0, 8, 100));
        assert_eq!((&sent[HEADER..], queues.writing), (&first[..], None));
        queues.forget(7);
        assert!(!queues.at_once(|_, _| unreachable!("frees are the writer's")));
        queues.take(put(9, &mut second));
        assert!(!queues.at_once(|_, _| unreachable!("the free is before it")));
        assert_eq!([(); 2].map(|()| queues.next().unwrap().0.page), [7, 9]);
    }

    #[test]
    fn the_writer_sends_the_rest_of_a_partial_send_first() {
        let mut page: Vec<u8> = (0..50).collect();
        let (mut whole, mut queues) = (Vec::new(), Queues::default());
        queues.take(put(2, &mut page));
        assert!(queues.at_once(|header, payload| append(&mut whole, usize::MAX / 2, header, payload)));
        for taken in 0..whole.len() {
            let mut queues = Queues::default();
            queues.take(put(2, &mut page));
            let mut sent = Vec::new();
            assert!(!queues.at_once(|header, payload| append(&mut sent, taken, header, payload)), "{taken}");
            queues.take(order(Verb::Get, 3));
            assert!(!queues.at_once(|_, _| unreachable!("it would be in the midst of the other")));
            let rest: Vec<Source> = queues.rest().unwrap().pieces().collect();
            // The header of the rest has moved; only its length counts here.
            let left: usize = rest.iter().map(|&Source(_, bytes)| bytes).sum();
            assert_eq!(taken + left, whole.len());
            if taken >= HEADER {
                append(&mut sent, usize::MAX / 2, &[], &rest);
                assert_eq!(sent, whole, "{taken}");
            }
            assert_eq!(queues.writing, Some(0), "{taken}");
        }
    }

    #[test]
    fn a_partial_request_of_a_broken_stream_is_not_continued_on_the_next() {
        let mut queues = Queues::default();
        queues.take(order(Verb::Get, 2));
        assert!(!queues.at_once(|_, _| 7));
        queues.again();
        assert!(queues.rest().is_none());
        assert_eq!(sent(&mut queues), [(Kind::Get, 2)]);
    }

    #[test]
    fn a_reservation_that_was_not_answered_is_asked_for_over_the_next_stream() {
        let mut queues = Queues::default();
        queues.reserve(9);
        assert_eq!(sent(&mut queues), [(Kind::Reserve, 9)]);
        queues.again();
        assert_eq!(sent(&mut queues), [(Kind::Reserve, 9)]);
        assert_eq!(queues.answered(1).unwrap().reserve, Some(9));
        queues.again();
        assert_eq!(sent(&mut queues), []);
    }

    #[test]
    fn the_next_reply_is_expected_in_the_frames_of_the_oldest_request() {
        let mut queues = Queues::default();
        let mut frames = [[0_u8; 8]; 4];
        let at = frames.each_mut().map(|frame| frame.as_mut_ptr());
        let get = |frames: &[usize]| {
            let order = |&frame: &usize| Order { at: at[frame], bytes: 8, ..order(Verb::Get, 5).remove(0) };
            frames.iter().map(order).collect::<Vec<_>>()
        };
        let expected = |queues: &Queues| -> Vec<(Option<usize>, usize)> {
            let number = |from: *const u8| at.iter().position(|&at| at.cast_const() == from);
            queues.expected().into_iter().map(|Source(from, bytes)| (number(from), bytes)).collect()
        };
        let none = Vec::new();
        assert_eq!(expected(&queues), none);
        queues.take(get(&[0, 1, 3]));
        assert_eq!(expected(&queues), none, "it was not sent");
        queues.take(order(Verb::Put, 1));
        queues.take(get(&[2]));
        assert_eq!(sent(&mut queues).len(), 3);
        assert_eq!(expected(&queues), [(Some(0), 16), (Some(3), 8)]);
        queues.answered(0).unwrap();
        assert_eq!(expected(&queues), [(Some(2), 8)]);
        queues.answered(1).unwrap();
        assert_eq!(expected(&queues), none, "the reply to a put has no pages");
    }

    #[test]
    fn the_window_is_open_again_when_a_request_is_answered() {
        let mut queues = Queues::default();
        (0..100).for_each(|page| queues.take(order(Verb::Get, page)));
        assert_eq!(sent(&mut queues).len(), WINDOW);
        queues.answered(0).unwrap();
        assert_eq!(sent(&mut queues), [(Kind::Get, WINDOW as u64)]);
    }
}
