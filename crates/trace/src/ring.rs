//! The ring between one recording thread and the collector. The thread appends events, the collector drains
//! them. No slot is read while it is written (RING-1), and every event is delivered or counted as lost
//! (RING-2).
//!
//! One producer, one consumer, no lock, no allocation after creation, and the producer never waits: an event
//! that finds the ring full is lost and counted (hazard T2). A ring shared by threads would cost two to four
//! times as much per event, because the cache line of its head would move between processors.
//!
//! | counter | written by | meaning |
//! |---|---|---|
//! | `head` | producer | slots below it are filled |
//! | `tail` | consumer | slots below it may be filled again |
//! | `lost` | producer | events that were lost because the ring was full |
//! | `closed` | producer, once | no event follows: the thread has ended |
//!
//! - **RING-1** `tail <= head <= tail + capacity`; a slot `s` is written only while `s == head < tail +
//!   capacity` and read only while `tail <= s < head`. So no slot is read while it is written.
//! - **RING-2** Every event is delivered once and in order, or counted in `lost`. A [`EventKind::Lost`]
//!   event marks the position in the stream where events are missing, unless the ring never had space again.
//! - **RING-3** `closed` is stored after the last `head`; a consumer that reads `closed` and then drains has
//!   all events.

use crate::event::{Event, EventKind};
use azekura_base::CachePadded;
use azekura_base::sync::Arc;
use azekura_base::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Space for one event. Its words are relaxed atomics, which cost plain moves and exclude data races.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    words: [AtomicU64; 4],
    /// In models: detects a read and a write of the slot without an order between them (RING-1).
    #[cfg(loom)]
    order: loom::cell::UnsafeCell<()>,
}

impl Slot {
    fn new() -> Self {
        Self {
            words: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            #[cfg(loom)]
            order: loom::cell::UnsafeCell::new(()),
        }
    }

    #[inline]
    fn store(&self, event: Event) {
        #[cfg(loom)]
        self.order.with_mut(|_| ());
        for (word, value) in self.words.iter().zip(event.to_words()) {
            word.store(value, Relaxed); // published by `head`
        }
    }

    fn load(&self) -> Option<Event> {
        #[cfg(loom)]
        self.order.with(|_| ());
        Event::from_words(std::array::from_fn(|i| self.words[i].load(Relaxed))) // ordered by `head`
    }
}

// SAFETY: `order` holds no data; it only reports accesses to the model.
#[cfg(loom)]
unsafe impl Sync for Slot {}

/// The counters of a ring.
#[derive(Debug)]
#[repr(C)]
pub struct Counters {
    head: CachePadded<AtomicU64>,
    tail: CachePadded<AtomicU64>,
    lost: AtomicU64,
    closed: AtomicBool,
}

impl Counters {
    /// Returns the counters of an empty ring.
    #[must_use]
    pub fn new() -> Self {
        Self {
            head: CachePadded::new(AtomicU64::new(0)),
            tail: CachePadded::new(AtomicU64::new(0)),
            lost: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// Makes the ring empty and open. No thread uses the ring during the call. Relaxed: the handover of the
    /// ring to its next producer orders these stores.
    pub fn reset(&self) {
        self.head.store(0, Relaxed);
        self.tail.store(0, Relaxed);
        self.lost.store(0, Relaxed);
        self.closed.store(false, Relaxed);
    }

    /// Closes the ring on behalf of a producer that does not exist any more.
    pub fn close(&self) {
        // Release: pairs with the Acquire in `Consumer::is_closed` (RING-3).
        self.closed.store(true, Release);
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

/// The memory of a ring: of this process, or shared with another one.
pub trait Memory {
    /// Returns the ring's counters.
    fn counters(&self) -> &Counters;
    /// Returns the ring's slots. Their number is a power of two and never changes.
    fn slots(&self) -> &[Slot];

    /// Returns the slot of the event with this number.
    #[inline]
    fn slot(&self, number: u64) -> &Slot {
        // The capacity is a power of two, so the masked index is always valid.
        let slots = self.slots();
        &slots[number as usize & (slots.len() - 1)]
    }
}

/// A ring in memory of this process.
#[derive(Debug)]
pub struct Ring {
    slots: Box<[Slot]>,
    counters: Counters,
}

impl Memory for Arc<Ring> {
    #[inline]
    fn counters(&self) -> &Counters {
        &self.counters
    }

    #[inline]
    fn slots(&self) -> &[Slot] {
        &self.slots
    }
}

/// The recording thread's end of a ring. Dropping it closes the ring.
#[derive(Debug)]
pub struct Producer<M: Memory = Arc<Ring>> {
    ring: M,
    /// The producer's copy of `head`, which no other thread writes.
    head: u64,
    /// Slots below this number may be written without a load of `tail`.
    limit: u64,
    /// Number of events lost since the last delivered one.
    lost_here: u64,
    lost: u64,
}

/// The collector's end of a ring.
#[derive(Debug)]
pub struct Consumer<M: Memory = Arc<Ring>> {
    ring: M,
    /// The consumer's copy of `tail`, which no other thread writes.
    tail: u64,
}

/// Returns the two ends of a ring of `capacity` events, rounded up to a power of two and to at least two.
///
/// Allocates 32 bytes per event and writes all of them, so that no page fault happens during a recording.
#[must_use]
pub fn ring(capacity: usize) -> (Producer, Consumer) {
    let capacity = capacity.max(2).next_power_of_two();
    let ring =
        Arc::new(Ring { slots: (0..capacity).map(|_| Slot::new()).collect(), counters: Counters::new() });
    (Producer::new(Arc::clone(&ring)), Consumer::new(ring))
}

impl<M: Memory> Producer<M> {
    /// Returns the producer of an empty ring. A ring has only one producer.
    #[must_use]
    pub fn new(ring: M) -> Self {
        let limit = ring.slots().len() as u64;
        Self { ring, head: 0, limit, lost_here: 0, lost: 0 }
    }

    /// Appends an event. If the ring is full, the event is lost and counted. Never waits.
    #[inline]
    pub fn push(&mut self, event: Event) {
        // `limit` is also lowered to `head` while a `Lost` event is pending, so this is the only test.
        if self.head < self.limit { self.write(event) } else { self.push_slowly(event) }
    }

    #[inline]
    fn write(&mut self, event: Event) {
        self.ring.slot(self.head).store(event);
        self.head += 1;
        // Release: pairs with the Acquire in `Consumer::drain`; the slot's words become visible with it.
        self.ring.counters().head.store(self.head, Release);
    }

    #[cold]
    #[inline(never)]
    fn push_slowly(&mut self, event: Event) {
        // Acquire: pairs with the Release in `Consumer::drain`; its reads of the slots have ended (RING-1).
        let tail = self.ring.counters().tail.load(Acquire);
        let free = (self.ring.slots().len() as u64).saturating_sub(self.head.wrapping_sub(tail));
        let needed = 1 + u64::from(self.lost_here > 0);
        if free < needed {
            self.lost_here += 1;
            self.lost += 1;
            self.limit = self.head;
            // Relaxed: a statistic; `closed` or the end of the session orders the last value.
            self.ring.counters().lost.store(self.lost, Relaxed);
            return;
        }
        self.limit = tail.wrapping_add(self.ring.slots().len() as u64);
        if self.lost_here > 0 {
            let object = std::mem::take(&mut self.lost_here);
            self.write(Event { object, ..Event::new(event.ticks, EventKind::Lost) });
        }
        self.write(event);
    }
}

impl<M: Memory> Drop for Producer<M> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `Consumer::is_closed` (RING-3).
        self.ring.counters().closed.store(true, Release);
    }
}

impl<M: Memory> Consumer<M> {
    /// Returns the consumer of an empty ring. A ring has only one consumer.
    #[must_use]
    pub fn new(ring: M) -> Self {
        Self { ring, tail: 0 }
    }

    /// Takes all events of the ring, oldest first, and frees their slots. Returns the number of events.
    ///
    /// In a ring that another process shares, the counters may have any value. So at most as many events are
    /// taken as the ring has slots.
    pub fn drain(&mut self, mut each: impl FnMut(Event)) -> usize {
        // Acquire: pairs with the Release in `Producer::write`.
        let head = self.ring.counters().head.load(Acquire);
        let taken = head.wrapping_sub(self.tail).min(self.ring.slots().len() as u64) as usize;
        for number in 0..taken as u64 {
            // The event is complete (RING-1). An event of an unknown kind, which only another process can
            // write, is skipped.
            self.ring.slot(self.tail.wrapping_add(number)).load().into_iter().for_each(&mut each);
        }
        self.tail = head;
        // Release: pairs with the Acquire in `Producer::push_slowly`; the reads here happen before its next
        // writes.
        self.ring.counters().tail.store(self.tail, Release);
        taken
    }

    /// Returns the number of events lost so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.ring.counters().lost.load(Relaxed)
    }

    /// Returns `true` if the producer has ended. A drain that begins afterward takes the last event.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        // Acquire: pairs with the Release in `Producer::drop` (RING-3).
        self.ring.counters().closed.load(Acquire)
    }

    /// Returns the number of events that the ring can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.ring.slots().len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn event(ticks: u64) -> Event {
        Event::new(ticks, EventKind::Mark)
    }

    fn drained(consumer: &mut Consumer) -> Vec<Event> {
        let mut events = Vec::new();
        consumer.drain(|e| events.push(e));
        events
    }

    #[test]
    fn t2_a_full_ring_counts_what_it_loses_and_says_where() {
        let (mut producer, mut consumer) = ring(4);
        (0..7).for_each(|i| producer.push(event(i)));
        assert_eq!(consumer.lost(), 3);
        assert_eq!(drained(&mut consumer), (0..4).map(event).collect::<Vec<_>>());
        producer.push(event(7));
        let lost = Event { object: 3, ..Event::new(7, EventKind::Lost) };
        assert_eq!(drained(&mut consumer), [lost, event(7)]);
        assert_eq!(consumer.lost(), 3);
    }

    #[test]
    fn the_mark_of_a_loss_waits_for_space_for_two_events() {
        let (mut producer, mut consumer) = ring(2);
        (0..3).for_each(|i| producer.push(event(i)));
        let mut first = None;
        consumer.tail = 0;
        // One free slot is not enough for the `Lost` event and the event.
        consumer.ring.counters().tail.store(1, Release);
        producer.push(event(3));
        assert_eq!(consumer.lost(), 2);
        consumer.tail = 1;
        consumer.drain(|e| first = Some(e));
        assert_eq!(first, Some(event(1)));
        producer.push(event(4));
        assert_eq!(drained(&mut consumer)[0].object, 2);
    }

    #[test]
    fn a_closed_ring_still_gives_its_events() {
        let (mut producer, mut consumer) = ring(8);
        producer.push(event(1));
        assert!(!consumer.is_closed());
        drop(producer);
        assert!(consumer.is_closed());
        assert_eq!(drained(&mut consumer), [event(1)]);
    }

    #[test]
    fn a_slow_collector_and_a_fast_thread_account_for_every_event() {
        let (mut producer, mut consumer) = ring(64);
        let total = 200_000;
        let thread = std::thread::spawn(move || (0..total).for_each(|i| producer.push(event(i))));
        let (mut delivered, mut marked, mut last) = (0, 0, None);
        loop {
            let closed = consumer.is_closed();
            consumer.drain(|e| match e.kind {
                EventKind::Lost => marked += e.object,
                _ => {
                    assert!(last < Some(e.ticks), "order");
                    last = Some(e.ticks);
                    delivered += 1;
                }
            });
            if closed {
                break;
            }
        }
        thread.join().unwrap();
        assert_eq!(delivered + consumer.lost(), total);
        assert!(marked <= consumer.lost());
    }
}
