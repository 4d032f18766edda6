//! Invariant 8: every wait for a latch is visible in `trace`, under one name, with the holding thread.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use azekura_latch::{HybridLatch, TracedMutex};
use azekura_trace::event::{Event, EventKind};
use azekura_trace::file::Trace;
use azekura_trace::{CpuTime, HoldMode, Options, Site, start, stop, thread_tag};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Serializes the tests, because a process can make only one recording at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records `hold` here and `wait` on another thread, repeatedly until the holder recorded a `report` event
/// after the begin of the wait: a waiter that only spun is not woken, and one that the system does not run
/// begins to wait too late. Returns the recording and the waiter's tag.
fn recorded<H>(
    sampling: u32,
    hold: impl Fn() -> H,
    wait: impl Fn() + Sync,
    report: EventKind,
) -> (Trace, u32) {
    for _ in 0..1_000 {
        start(Options { cpu: CpuTime::Off, hold_sampling: sampling, ..Options::default() }).unwrap();
        let held = hold();
        let waiter = std::thread::scope(|s| {
            let waiter = s.spawn(|| {
                wait();
                thread_tag().0
            });
            std::thread::sleep(std::time::Duration::from_millis(2));
            drop(held);
            waiter.join().unwrap()
        });
        let trace = stop().unwrap().trace().unwrap();
        let report = events(&trace, thread_tag().0).find(|e| e.kind == report).map(|e| e.ticks);
        let begun = events(&trace, waiter).find(|e| e.kind == EventKind::WaitBegin).map(|e| e.ticks);
        let has_met = begun.is_some() && report > begun;
        if has_met && events(&trace, waiter).any(|e| e.kind == EventKind::WaitEnd) {
            return (trace, waiter);
        }
    }
    panic!("a thousand times the two did not meet");
}

fn events(trace: &Trace, tag: u32) -> impl Iterator<Item = &Event> {
    trace.threads.iter().filter(move |t| t.tag == tag).flat_map(|t| &t.events)
}

/// Checks that the holder's event names the latch for which the waiter waited, and comes after the begin of
/// the wait.
fn is_named(trace: &Trace, waiter: u32, name: &str, report: EventKind) {
    let wait = events(trace, waiter).find(|e| e.kind == EventKind::WaitBegin).unwrap();
    assert_eq!(trace.sites[&wait.site].name, name);
    let report = events(trace, thread_tag().0).find(|e| e.kind == report).unwrap();
    assert_eq!((report.site, report.object), (wait.site, wait.object));
    assert!(report.ticks > wait.ticks);
}

/// Releases an exclusive latch when dropped. The hold, if there is one, is recorded after the release.
struct Held<'l>(&'l HybridLatch, #[expect(dead_code, reason = "dropped")] Option<azekura_trace::HoldGuard>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.unlock_exclusive();
    }
}

#[test]
fn a_hold_of_a_page_latch_and_the_waits_for_it_have_one_name() {
    let _turn = turn();
    let latch = HybridLatch::new();
    let wait = || {
        latch.lock_shared();
        latch.unlock_shared();
    };
    let hold = || {
        latch.lock_exclusive();
        Held(&latch, Some(latch.hold(HoldMode::Exclusive)))
    };
    let (trace, waiter) = recorded(1, hold, wait, EventKind::Hold);
    is_named(&trace, waiter, "page latch", EventKind::Hold);
}

#[test]
fn the_thread_that_wakes_waiters_of_a_page_latch_is_named() {
    let _turn = turn();
    let latch = HybridLatch::new();
    let wait = || {
        latch.lock_exclusive();
        latch.unlock_exclusive();
    };
    let hold = || {
        latch.lock_exclusive();
        Held(&latch, None)
    };
    let (trace, waiter) = recorded(1 << 30, hold, wait, EventKind::Release);
    is_named(&trace, waiter, "page latch", EventKind::Release);
}

#[test]
fn a_traced_mutex_records_its_waits_and_holds_under_its_site() {
    static SITE: Site = Site::new("ledger");
    let _turn = turn();
    let mutex = TracedMutex::new(&SITE, 0);
    let (trace, waiter) = recorded(1, || mutex.lock(), || *mutex.lock() += 1, EventKind::Hold);
    is_named(&trace, waiter, "ledger", EventKind::Hold);
    let wait = events(&trace, waiter).find(|e| e.kind == EventKind::WaitBegin).unwrap();
    assert_eq!((wait.argument >> 32) as u32, thread_tag().0, "for whom it waits");
    assert!(*mutex.lock() > 0);
}
