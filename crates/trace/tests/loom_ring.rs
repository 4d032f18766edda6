//! T2: the handover of events from a recording thread to the collector, in every interleaving.
//!
//! Each pushed event is delivered once, complete and in order, or counted as lost. After a ring is closed, a
//! drain gets all events. Weakening either Release or either Acquire of `head`, `tail` or `closed` makes a
//! model fail.
#![cfg(loom)]

use azekura_trace::event::{Event, EventKind};
use azekura_trace::ring::{Consumer, ring};

fn event(i: u64) -> Event {
    Event { object: i * 10, argument: i * 100, ..Event::new(i, EventKind::Mark) }
}

/// Drains the ring, and checks that the events are complete and in order. Appends them to `delivered`.
fn drain(consumer: &mut Consumer, delivered: &mut Vec<u64>) {
    consumer.drain(|e| {
        if e.kind == EventKind::Mark {
            assert_eq!(e, event(e.ticks), "a torn event");
            assert!(delivered.last() < Some(&e.ticks), "out of order");
            delivered.push(e.ticks);
        }
    });
}

#[test]
fn every_event_is_delivered_whole_or_counted() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2);
        let thread = loom::thread::spawn(move || {
            for i in 1..=4 {
                producer.push(event(i));
            }
        });
        let mut delivered = Vec::new();
        drain(&mut consumer, &mut delivered);
        drain(&mut consumer, &mut delivered);
        thread.join().unwrap();
        drain(&mut consumer, &mut delivered);
        assert_eq!(delivered.len() as u64 + consumer.lost(), 4);
    });
}

#[test]
fn a_ring_seen_closed_is_complete() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(4);
        let thread = loom::thread::spawn(move || {
            producer.push(event(1));
            producer.push(event(2));
        });
        let mut delivered = Vec::new();
        if consumer.is_closed() {
            drain(&mut consumer, &mut delivered);
            assert_eq!(delivered, [1, 2]);
        }
        thread.join().unwrap();
    });
}
