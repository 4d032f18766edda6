//! LATCH-1, LATCH-3 and PARK-1 in every interleaving of two threads with up to four preemptions.
//!
//! loom 0.7 considers only the last access to each atomic when it looks for points to switch threads. If a
//! load is directly followed by a CAS of the same word, loom does not consider a switch at the load, and a
//! model can run a single schedule. So `step`, a relaxed addition to a shared counter, orders nothing and
//! makes every place a point to switch. Each model prints the number of its schedules, and fails if the
//! number is too small.
#![cfg(loom)]

use azekura_latch::HybridLatch;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

struct Guarded {
    latch: HybridLatch,
    // Two words that are always equal under the latch; accessed with Relaxed, like the words of a page.
    words: [AtomicU64; 2],
    steps: AtomicU64,
}

impl Guarded {
    fn step(&self) {
        self.steps.fetch_add(1, Relaxed);
    }

    fn read(&self) -> [u64; 2] {
        self.step();
        let first = self.words[0].load(Relaxed);
        self.step();
        let second = self.words[1].load(Relaxed);
        self.step();
        [first, second]
    }
}

/// Runs a model and counts its schedules.
fn model(name: &str, at_least: usize, run: impl Fn(Arc<Guarded>) + Sync + Send + 'static) {
    let schedules = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&schedules);
    let mut builder = loom::model::Builder::new();
    // Every fault that was injected for testing appears with two preemptions. `LOOM_MAX_PREEMPTIONS` sets
    // another number.
    builder.preemption_bound.get_or_insert(4);
    builder.check(move || {
        counted.fetch_add(1, SeqCst);
        run(guarded());
    });
    let schedules = schedules.load(SeqCst);
    println!("{name}: {schedules} schedules");
    assert!(schedules >= at_least, "{name}: only {schedules} schedules");
}

fn guarded() -> Arc<Guarded> {
    Arc::new(Guarded {
        latch: HybridLatch::new(),
        words: [AtomicU64::new(0), AtomicU64::new(0)],
        steps: AtomicU64::new(0),
    })
}

fn write(guarded: &Guarded) {
    guarded.step();
    let next = guarded.words[0].load(Relaxed) + 1;
    assert_eq!(next, guarded.words[1].load(Relaxed) + 1, "LATCH-1: a writer sees the last one's work whole");
    guarded.words[0].store(next, Relaxed);
    guarded.step();
    guarded.words[1].store(next, Relaxed);
    guarded.step();
}

fn locked_write(shared: &Guarded) {
    shared.step();
    shared.latch.lock_exclusive();
    write(shared);
    shared.latch.unlock_exclusive();
    shared.step();
}

fn short_write(shared: &Guarded) {
    shared.step();
    shared.latch.lock_exclusive();
    let next = shared.words[0].load(Relaxed) + 1;
    shared.words[0].store(next, Relaxed);
    shared.step();
    shared.latch.unlock_exclusive();
    shared.step();
}

fn tried_write(shared: &Guarded) {
    shared.step();
    if shared.latch.try_lock_exclusive() {
        write(shared);
        shared.latch.unlock_exclusive();
        shared.step();
    }
}

fn spawn(shared: &Arc<Guarded>, run: impl FnOnce(&Guarded) + 'static) -> loom::thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    loom::thread::spawn(move || run(&shared))
}

#[test]
fn a_validated_read_is_one_state() {
    model("optimistic reader, writer", 100, |shared| {
        let writer = spawn(&shared, locked_write);
        shared.step();
        if let Some(seen) = shared.latch.optimistic() {
            let words = shared.read();
            if shared.latch.validate(seen) {
                assert_eq!(words[0], words[1], "LATCH-3");
            }
        }
        writer.join().unwrap();
    });
}

#[test]
fn an_upgrade_sees_what_it_validated_and_excludes_others() {
    model("upgrade, writer", 100, |shared| {
        let other = spawn(&shared, tried_write);
        shared.step();
        if let Some(seen) = shared.latch.optimistic() {
            let before = shared.read();
            if shared.latch.try_upgrade(seen) {
                assert_eq!(shared.read(), before, "nothing changed between the version and the upgrade");
                write(&shared);
                shared.latch.unlock_exclusive();
            }
        }
        other.join().unwrap();
    });
}

#[test]
fn an_unchanged_hold_disturbs_no_reader_and_an_upgrade_after_it_is_whole() {
    model("unchanged hold, upgrade", 10, |shared| {
        let other = spawn(&shared, |shared| {
            shared.step();
            if shared.latch.try_lock_exclusive() {
                shared.step();
                shared.latch.unlock_exclusive_unchanged();
                shared.step();
            }
        });
        shared.step();
        let seen = shared.latch.optimistic();
        shared.step();
        other.join().unwrap();
        if let Some(seen) = seen {
            assert!(shared.latch.validate(seen) && shared.latch.try_upgrade(seen));
        }
    });
}

#[test]
fn shared_and_exclusive_holders_exclude_each_other() {
    model("shared holder, writer", 100, |shared| {
        let writer = spawn(&shared, tried_write);
        shared.step();
        if shared.latch.try_lock_shared() {
            let words = shared.read();
            assert_eq!(words[0], words[1]);
            assert_eq!(shared.read(), words, "LATCH-1");
            shared.latch.unlock_shared();
            shared.step();
        }
        writer.join().unwrap();
    });
}

#[test]
fn a_release_wakes_every_waiter() {
    model("two writers that sleep", 100, |shared| {
        let other = spawn(&shared, short_write);
        short_write(&shared);
        other.join().unwrap();
        assert_eq!(shared.words[0].load(Relaxed), 2);
    });
}

#[test]
fn a_waiter_for_an_open_latch_is_woken_and_sees_the_writes_of_its_holder() {
    model("holder, waiter that takes nothing", 20, |shared| {
        assert!(shared.latch.try_lock_exclusive());
        let waiter = spawn(&shared, |shared| {
            shared.step();
            shared.latch.wait_until_open();
            assert_eq!(shared.read(), [1, 1]);
        });
        write(&shared);
        shared.latch.unlock_exclusive();
        shared.step();
        waiter.join().unwrap();
    });
}

#[test]
fn a_writer_asleep_is_woken_by_the_last_reader() {
    model("sleeping writer, two readers", 100, |shared| {
        assert!(shared.latch.try_lock_shared() && shared.latch.try_lock_shared());
        let writer = spawn(&shared, |shared| {
            shared.step();
            shared.latch.lock_exclusive();
            shared.latch.unlock_exclusive();
        });
        shared.step();
        shared.latch.unlock_shared();
        shared.step();
        shared.latch.unlock_shared();
        shared.step();
        writer.join().unwrap();
    });
}

#[test]
fn reads_do_not_mix_states_around_an_invalidation() {
    const OLD: u64 = 1;
    const GONE: u64 = 0;
    const NEW: u64 = 2;
    model("invalidation, reader", 100, |shared| {
        // State of the words, as in a frame's pin word.
        let state = Arc::new(AtomicU64::new(OLD));
        let owned = Arc::clone(&state);
        let owner = spawn(&shared, move |shared| {
            owned.store(GONE, Release);
            shared.step();
            shared.latch.invalidate();
            write(shared);
            owned.store(NEW, Release);
            shared.step();
        });
        if let Some(seen) = shared.latch.optimistic() {
            shared.step();
            let state = state.load(Acquire);
            let words = shared.read();
            if shared.latch.validate(seen) {
                match state {
                    OLD => assert_eq!(words, [0, 0]),
                    NEW => assert_eq!(words, [1, 1]),
                    _ => {}
                }
            }
        }
        owner.join().unwrap();
    });
}
