//! The ring of a recording thread on a machine. Producer and consumer never wait for each other (hazard G10).
//! In every tested schedule, each event is delivered once and in order, or counted as lost at its position
//! (RING-2).
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use azekura_base::sync::Mutex;
use azekura_sim::LineAllocator;
use azekura_sim::explore::{Scene, at_random, exhaust, stop_everywhere_under};
use azekura_trace::event::{Event, EventKind};
use azekura_trace::ring::{Consumer, ring};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

#[global_allocator]
static ALLOCATOR: LineAllocator = LineAllocator;

/// Number of events that the recording thread offers; the ring holds four.
const EVENTS: u64 = 12;

/// The consumer, and the events that it has received.
type Collected = Rc<RefCell<(Consumer, Vec<Event>)>>;

fn drain(collected: &Collected) {
    let (consumer, events) = &mut *collected.borrow_mut();
    consumer.drain(|event| events.push(event));
}

/// Checks that each event arrived once and in order, or is counted as lost at its position. Events lost at
/// the end are only counted.
fn judge(events: &[Event], lost: u64) -> Result<(), String> {
    let (mut next, mut counted) = (0, 0);
    for event in events {
        match event.kind {
            EventKind::Lost => {
                next += event.object;
                counted += event.object;
            }
            _ if event.ticks == next => next += 1,
            _ => return Err(format!("{} in the place of {next}", event.ticks)),
        }
    }
    match (EVENTS - next, lost - counted) {
        (missing, uncounted) if missing == uncounted => Ok(()),
        (missing, uncounted) => Err(format!("{missing} are missing at the end, {uncounted} are counted")),
    }
}

fn scene(producer_first: bool) -> Scene {
    let (mut producer, consumer) = ring(4);
    let collected: Collected = Rc::new(RefCell::new((consumer, Vec::new())));
    let theirs = Rc::clone(&collected);
    let produce = move || (0..EVENTS).for_each(|n| producer.push(Event::new(n, EventKind::Mark)));
    let consume = move || (0..4).for_each(|_| drain(&theirs));
    let mut scene = Scene::new();
    if producer_first {
        scene.thread(produce);
        scene.thread(consume);
    } else {
        scene.thread(consume);
        scene.thread(produce);
    }
    scene.check(move || {
        drain(&collected);
        let (consumer, events) = &*collected.borrow();
        assert!(consumer.is_closed());
        judge(events, consumer.lost())
    });
    scene
}

#[test]
fn g10_neither_end_of_the_ring_waits_for_the_other() {
    for producer_first in [true, false] {
        let stopped = stop_everywhere_under(1..40, || scene(producer_first)).unwrap();
        assert!(stopped.accesses >= 12 && stopped.was_in("ring.rs"), "{stopped:?}");
    }
}

#[test]
fn g10_the_same_test_fails_on_a_queue_under_a_mutex() {
    let why = stop_everywhere_under(0..0, || {
        let queue = Rc::new(Mutex::new(VecDeque::new()));
        let theirs = Rc::clone(&queue);
        let mut scene = Scene::new();
        scene.thread(move || (0..EVENTS).for_each(|n| queue.lock().push_back(n)));
        scene.thread(move || {
            (0..4).for_each(|_| assert!(theirs.lock().pop_front().is_none_or(|n| n < EVENTS)))
        });
        scene
    })
    .unwrap_err();
    assert!(why.contains("no thread can continue"), "{why}");
}

#[test]
fn ring_2_every_event_is_delivered_in_order_or_counted_where_it_is_missing() {
    let runs = exhaust(2, || scene(true)).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(runs > 500, "{runs}");
    at_random(500, 1, || scene(true)).unwrap_or_else(|failure| panic!("{failure}"));
}
