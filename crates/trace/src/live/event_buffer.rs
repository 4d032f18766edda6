//! Events that the collector has taken from the rings and not encoded yet.
//!
//! A recording in memory is encoded after its end, so that encoding takes no processor time from the recorded
//! program. Only when [`MOST`] events are kept are they encoded earlier. A recording to a file is encoded in
//! each round: encoding reduces the written bytes to a third, which costs less than writing all bytes.

use crate::event::{Event, EventKind};
use crate::file::Encoder;
use crate::ring::Consumer;

/// Number of events (64 MiB) from which on kept events are encoded.
pub(super) const MOST: usize = 1 << 21;

/// Events of many threads, in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct EventBuffer {
    events: Vec<Event>,
    shares: Vec<Share>,
    /// The events of one share, as a file has them.
    expanded: Vec<Event>,
}

/// Consecutive events of one thread.
#[derive(Debug)]
struct Share {
    tag: u32,
    /// Number of events that the thread has lost so far.
    lost: u64,
    count: usize,
}

impl EventBuffer {
    /// Takes all events of a thread's ring. Returns their number and the ticks of the last event.
    pub(super) fn take(&mut self, tag: u32, consumer: &mut Consumer) -> (usize, Option<u64>) {
        let before = self.events.len();
        consumer.drain(|event| self.events.push(event));
        let count = self.events.len() - before;
        self.shares.push(Share { tag, lost: consumer.lost(), count });
        (count, self.events[before..].last().map(|event| event.ticks))
    }

    /// Removes the last share if it is empty. (The last share of a closed ring stays: it has the number of
    /// lost events.)
    pub(super) fn forget_last_if_empty(&mut self) {
        if self.shares.last().is_some_and(|share| share.count == 0) {
            self.shares.pop();
        }
    }

    /// Returns the number of kept events.
    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// Passes all events to the encoder, in order of arrival.
    pub(super) fn encode(&mut self, encoder: &mut Encoder) {
        let mut rest = self.events.as_slice();
        for Share { tag, lost, count } in self.shares.drain(..) {
            let (events, others) = rest.split_at(count);
            rest = others;
            self.expanded.clear();
            events.iter().for_each(|event| expand(*event, &mut self.expanded));
            encoder.events(tag, lost, &self.expanded);
        }
        self.events.clear();
    }
}

/// Appends the events that a file has for an event of a ring.
fn expand(event: Event, into: &mut Vec<Event>) {
    if event.kind == EventKind::Ran {
        let begin = event.ticks.saturating_sub(event.argument);
        into.push(Event { kind: EventKind::Enter, ticks: begin, argument: 0, ..event });
        into.push(Event { kind: EventKind::Exit, flags: 0, argument: 0, ..event });
    } else {
        into.push(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::ring;

    #[test]
    fn kept_events_are_encoded_like_events_written_at_once() {
        let (mut producers, mut consumers): (Vec<_>, Vec<_>) = (0..3).map(|_| ring(4)).unzip();
        let (mut kept, mut at_once) = (EventBuffer::default(), EventBuffer::default());
        let (mut later, mut now) = (Encoder::new(), Encoder::new());
        for turn in 0..20_u64 {
            for (tag, (producer, consumer)) in producers.iter_mut().zip(&mut consumers).enumerate() {
                // In some turns, more events than the ring holds.
                let events: Vec<_> = (0..(turn * 7 + tag as u64) % 6)
                    .map(|i| {
                        let ran =
                            Event { argument: 3, operation: 2, ..Event::new(turn * 100 + i, EventKind::Ran) };
                        if i % 2 == 0 { ran } else { Event::new(turn * 100 + i, EventKind::Mark) }
                    })
                    .collect();
                events.iter().for_each(|event| producer.push(*event));
                let (count, last) = kept.take(tag as u32, consumer);
                assert_eq!(last.is_some(), count > 0);
                assert!(last.is_none_or(|last| events.iter().any(|event| event.ticks == last)));
                let share = kept.events[kept.len() - count..].to_vec();
                at_once.events = share;
                at_once.shares.push(Share { tag: tag as u32, lost: consumer.lost(), count });
                at_once.encode(&mut now);
            }
        }
        assert!(kept.len() > 50);
        kept.encode(&mut later);
        assert_eq!((kept.len(), later.event_count()), (0, now.event_count()));
        assert!(later.event_count() > 60, "an execution is two events of a file");
        assert_eq!(later.as_bytes(), now.as_bytes());
    }
}
