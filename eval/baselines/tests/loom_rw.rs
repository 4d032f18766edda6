//! Models of RW-1, RW-2, SYNC-1 and SYNC-2: the interleavings of two and three threads, with the state under
//! a mutex and in one word. Each model also shows that no thread sleeps forever: loom fails a run in which no
//! thread can continue.
#![cfg(loom)]

use azekura_baselines::SyncMutex;
use azekura_baselines::rw::{Guarded, OneWord, RwLatch, State, StateCell};
use azekura_trace::Site;
use loom::sync::Arc;
use loom::thread;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static LATCH: Site = Site::new("latch");
static MUTEX: Site = Site::new("mutex of latch");

/// Checks `model` with at most `preemptions` forced switches; fails if it has fewer than `at_least`
/// schedules.
fn bounded(preemptions: usize, at_least: usize, model: impl Fn() + Sync + Send + 'static) {
    let schedules = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&schedules);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        model();
    });
    let schedules = schedules.load(Relaxed);
    println!("{schedules} schedules");
    assert!(schedules >= at_least, "only {schedules} schedules");
}

fn latch<S: StateCell>() -> Arc<RwLatch<S, (u32, u32)>> {
    Arc::new(RwLatch::new(&LATCH, &MUTEX, (0, 0)))
}

fn write<S: StateCell>(latch: &RwLatch<S, (u32, u32)>) {
    let mut value = latch.exclusive();
    value.0 += 1;
    thread::yield_now();
    value.1 += 1;
}

fn read<S: StateCell>(latch: &RwLatch<S, (u32, u32)>) -> u32 {
    let value = latch.shared();
    assert_eq!(value.0, value.1, "a reader beside a writer");
    value.0
}

fn two_writers<S: StateCell + 'static>() {
    let latch = latch::<S>();
    let other = Arc::clone(&latch);
    let other = thread::spawn(move || write(&other));
    write(&latch);
    other.join().unwrap();
    assert_eq!(read(&latch), 2);
    assert_eq!(latch.cell().peek(), State::default());
}

fn a_writer_and_a_reader<S: StateCell + 'static>() {
    let latch = latch::<S>();
    let other = Arc::clone(&latch);
    let other = thread::spawn(move || {
        read(&other);
    });
    write(&latch);
    other.join().unwrap();
    assert_eq!(read(&latch), 1);
    assert_eq!(latch.cell().peek(), State::default());
}

fn a_writer_between_two_readers<S: StateCell + 'static>() {
    let latch = latch::<S>();
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let latch = Arc::clone(&latch);
            thread::spawn(move || {
                read(&latch);
            })
        })
        .collect();
    write(&latch);
    readers.into_iter().for_each(|r| r.join().unwrap());
    assert_eq!(latch.cell().peek(), State::default());
}

#[test]
fn two_writers_one_after_the_other_with_one_word() {
    bounded(3, 2, two_writers::<OneWord>);
}

#[test]
fn two_writers_one_after_the_other_with_a_mutex() {
    bounded(2, 2, two_writers::<Guarded>);
}

#[test]
fn a_writer_and_a_reader_never_together_with_one_word() {
    bounded(3, 2, a_writer_and_a_reader::<OneWord>);
}

#[test]
fn a_writer_and_a_reader_never_together_with_a_mutex() {
    bounded(2, 2, a_writer_and_a_reader::<Guarded>);
}

#[test]
fn a_writer_between_two_readers_gets_its_turn_with_one_word() {
    bounded(2, 2, a_writer_between_two_readers::<OneWord>);
}

#[test]
fn a_writer_between_two_readers_gets_its_turn_with_a_mutex() {
    bounded(1, 2, a_writer_between_two_readers::<Guarded>);
}

#[test]
fn the_mutex_is_held_by_one_and_each_sees_the_last() {
    bounded(3, 2, || {
        let mutex = Arc::new(SyncMutex::new(&MUTEX, 0));
        let others: Vec<_> = (0..2)
            .map(|_| {
                let mutex = Arc::clone(&mutex);
                thread::spawn(move || *mutex.lock() += 1)
            })
            .collect();
        *mutex.lock() += 1;
        others.into_iter().for_each(|o| o.join().unwrap());
        assert_eq!(*mutex.lock(), 3);
    });
}
