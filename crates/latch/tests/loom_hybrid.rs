//! LATCH-1, LATCH-3 and PARK-1 in every interleaving of two or three threads.
#![cfg(loom)]

use azekura_latch::HybridLatch;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

struct Guarded {
    latch: HybridLatch,
    // Two words that are always equal under the latch; relaxed, like the words of a page.
    words: [AtomicU64; 2],
}

fn guarded() -> Arc<Guarded> {
    Arc::new(Guarded { latch: HybridLatch::new(), words: [AtomicU64::new(0), AtomicU64::new(0)] })
}

fn write(guarded: &Guarded) {
    let next = guarded.words[0].load(Relaxed) + 1;
    assert_eq!(next, guarded.words[1].load(Relaxed) + 1, "LATCH-1: a writer sees the last one's work whole");
    guarded.words[0].store(next, Relaxed);
    guarded.words[1].store(next, Relaxed);
}

#[test]
fn what_validates_is_one_state() {
    loom::model(|| {
        let shared = guarded();
        let writer = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                shared.latch.lock_exclusive();
                write(&shared);
                shared.latch.unlock_exclusive();
            })
        };
        if let Some(seen) = shared.latch.optimistic() {
            let words = shared.words.each_ref().map(|w| w.load(Relaxed));
            if shared.latch.validate(seen) {
                assert_eq!(words[0], words[1], "LATCH-3");
            }
        }
        writer.join().unwrap();
    });
}

#[test]
fn an_upgrade_sees_what_it_validated_and_excludes_others() {
    loom::model(|| {
        let shared = guarded();
        let other = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                if shared.latch.try_lock_exclusive() {
                    write(&shared);
                    shared.latch.unlock_exclusive();
                }
            })
        };
        if let Some(seen) = shared.latch.optimistic() {
            let before = shared.words[0].load(Relaxed);
            if shared.latch.try_upgrade(seen) {
                assert_eq!(
                    shared.words[0].load(Relaxed),
                    before,
                    "nothing changed between the version and the upgrade"
                );
                write(&shared);
                shared.latch.unlock_exclusive();
            }
        }
        other.join().unwrap();
    });
}

#[test]
fn shared_and_exclusive_holders_exclude_each_other() {
    loom::model(|| {
        let shared = guarded();
        let writer = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                if shared.latch.try_lock_exclusive() {
                    write(&shared);
                    shared.latch.unlock_exclusive();
                }
            })
        };
        if shared.latch.try_lock_shared() {
            let words = shared.words.each_ref().map(|w| w.load(Relaxed));
            assert_eq!(words[0], words[1]);
            shared.latch.unlock_shared();
        }
        writer.join().unwrap();
    });
}

#[test]
fn nobody_sleeps_through_a_release() {
    loom::model(|| {
        let shared = guarded();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || {
                    shared.latch.lock_exclusive();
                    write(&shared);
                    shared.latch.unlock_exclusive();
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(shared.words[0].load(Relaxed), 2);
    });
}

#[test]
fn a_writer_asleep_is_woken_by_the_last_reader() {
    loom::model(|| {
        let shared = guarded();
        assert!(shared.latch.try_lock_shared());
        let writer = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                shared.latch.lock_exclusive();
                write(&shared);
                shared.latch.unlock_exclusive();
            })
        };
        shared.latch.unlock_shared();
        writer.join().unwrap();
    });
}

#[test]
fn what_was_there_before_an_invalidation_is_not_mixed_with_what_comes_after() {
    const OLD: u64 = 1;
    const GONE: u64 = 0;
    const NEW: u64 = 2;
    loom::model(|| {
        let shared = guarded();
        // As a frame's pin word: what the words are, if anything.
        let state = Arc::new(AtomicU64::new(OLD));
        let owner = {
            let (shared, state) = (Arc::clone(&shared), Arc::clone(&state));
            loom::thread::spawn(move || {
                state.store(GONE, Release);
                shared.latch.invalidate();
                write(&shared);
                state.store(NEW, Release);
            })
        };
        if let Some(seen) = shared.latch.optimistic() {
            let state = state.load(Acquire);
            let words = shared.words.each_ref().map(|w| w.load(Relaxed));
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
