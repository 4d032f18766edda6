//! The machine as a test tool: it finds planted races, and shrinks the schedules that show them.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use azekura_base::sync::atomic::{AtomicU64, Ordering::SeqCst};
use azekura_base::sync::{Mutex, WaitWord};
use azekura_sim::LineAllocator;
use azekura_sim::explore::{Scene, at_random, exhaust, stop_everywhere};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: LineAllocator = LineAllocator;

/// Three threads that add to a counter. With `forgets`, an addition is a read and a write.
fn counting(forgets: bool) -> Scene {
    let counter = Arc::new(AtomicU64::new(0));
    let mut scene = Scene::new();
    for _ in 0..3 {
        let counter = Arc::clone(&counter);
        scene.thread(move || {
            for _ in 0..4 {
                if forgets {
                    counter.store(counter.load(SeqCst) + 1, SeqCst);
                } else {
                    counter.fetch_add(1, SeqCst);
                }
            }
        });
    }
    scene.check(move || match counter.load(SeqCst) {
        12 => Ok(()),
        other => Err(format!("{other} of 12")),
    });
    scene
}

#[test]
fn a_lost_update_is_found_at_random_and_shrinks_to_its_least_interruptions() {
    let failure = at_random(1000, 1, || counting(true)).unwrap_err();
    assert!(failure.preemptions.len() <= 2, "{failure}");
    let text = failure.to_string();
    assert!(
        text.contains("of 12") && text.contains("thread 0") && text.contains("load  schedules.rs"),
        "{text}"
    );
    assert_eq!(text, at_random(1000, failure.found_by, || counting(true)).unwrap_err().to_string());
}

#[test]
fn a_lost_update_is_found_by_one_interruption_and_a_counter_without_one_by_none() {
    assert_eq!(exhaust(1, || counting(true)).unwrap_err().preemptions.len(), 1);
    let runs = exhaust(2, || counting(false)).unwrap();
    assert!(runs > 50, "{runs}");
    at_random(200, 1, || counting(false)).unwrap();
}

/// A thread that waits for a bell, and one that rings it. Without `looks`, the waiter may miss the ring.
fn ringing(looks: bool) -> Scene {
    let (bell, has_heard) = (Arc::new(WaitWord::new(0)), Arc::new(AtomicU64::new(0)));
    let mut scene = Scene::new();
    scene.thread({
        let (bell, has_heard) = (Arc::clone(&bell), Arc::clone(&has_heard));
        move || {
            if !looks {
                // Sleeps on the word's present value, which may already be set.
                bell.wait(bell.word().load(SeqCst), None);
            }
            while bell.word().load(SeqCst) == 0 {
                bell.wait(0, None);
            }
            has_heard.store(1, SeqCst);
        }
    });
    scene.thread(move || bell.set_and_wake(1));
    scene
}

#[test]
fn a_lost_wake_up_is_reported_as_a_deadlock() {
    exhaust(2, || ringing(true)).unwrap();
    let failure = exhaust(2, || ringing(false)).unwrap_err();
    assert!(failure.reason.contains("no thread can continue"), "{failure}");
}

/// Three threads that add to a number, under a mutex or with an atomic addition.
fn adding(locks: bool) -> Scene {
    let (locked, free) = (Arc::new(Mutex::new(0)), Arc::new(AtomicU64::new(0)));
    let mut scene = Scene::new();
    for _ in 0..3 {
        let (locked, free) = (Arc::clone(&locked), Arc::clone(&free));
        scene.thread(move || {
            for _ in 0..5 {
                if locks {
                    *locked.lock() += 1;
                } else {
                    free.fetch_add(1, SeqCst);
                }
            }
        });
    }
    scene.check(move || if *locked.lock() + free.load(SeqCst) == 15 { Ok(()) } else { Err("lost".into()) });
    scene
}

#[test]
fn g10_a_stopped_thread_blocks_only_waiters_for_its_lock() {
    // On this machine, an addition repeats a compare-and-swap until it succeeds. Each attempt is a load and a
    // swap.
    let accesses = stop_everywhere(|| adding(false)).unwrap().accesses;
    assert!(accesses >= 10 && accesses.is_multiple_of(2), "{accesses}");
    let why = stop_everywhere(|| adding(true)).unwrap_err();
    assert!(why.contains("stopped before access 1,") && why.contains("no thread can continue"), "{why}");
}
