//! The page latch on a machine. Optimistic reads and try-locks never wait, whichever thread stops (hazard
//! G10). A validated optimistic read is consistent in every tested schedule (LATCH-3).
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_latch::HybridLatch;
use azekura_sim::LineAllocator;
use azekura_sim::explore::{Scene, at_random, exhaust, stop_everywhere_under};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: LineAllocator = LineAllocator;

/// Two words that are equal whenever no thread holds the latch exclusively.
#[derive(Default)]
struct Halves {
    latch: HybridLatch,
    words: [AtomicU64; 2],
}

impl Halves {
    fn look(&self) -> [u64; 2] {
        [0, 1].map(|half| self.words[half].load(Relaxed))
    }

    fn change(&self) {
        for word in &self.words {
            word.store(word.load(Relaxed) + 1, Relaxed);
        }
    }

    /// Reads optimistically; returns the words if the read validates.
    fn read(&self) -> Option<[u64; 2]> {
        let version = self.latch.optimistic()?;
        let seen = self.look();
        self.latch.validate(version).then_some(seen)
    }

    fn write(&self) {
        self.latch.lock_exclusive();
        self.change();
        self.latch.unlock_exclusive();
    }

    fn read_shared(&self) {
        self.latch.lock_shared();
        assert!(is_whole(self.look()));
        self.latch.unlock_shared();
    }

    /// Performs all operations that never wait.
    fn try_everything(&self) {
        assert!(self.read().is_none_or(is_whole));
        if self.latch.try_lock_shared() {
            assert!(is_whole(self.look()));
            self.latch.unlock_shared();
        }
        if self.latch.try_lock_exclusive() {
            self.change();
            self.latch.unlock_exclusive();
        }
        if let Some(seen) = self.latch.optimistic()
            && self.latch.try_upgrade(seen)
        {
            self.latch.unlock_exclusive_unchanged();
        }
    }
}

fn is_whole([left, right]: [u64; 2]) -> bool {
    left == right
}

/// Three threads: thread 0 does `first`, the other two do `others`.
fn scene(first: fn(&Halves), others: fn(&Halves)) -> Scene {
    let halves = Arc::new(Halves::default());
    let mut scene = Scene::new();
    for thread in 0..3 {
        let (halves, work) = (Arc::clone(&halves), if thread == 0 { first } else { others });
        scene.thread(move || (0..3).for_each(|_| work(&halves)));
    }
    scene.check(move || if is_whole(halves.look()) { Ok(()) } else { Err("halves differ".into()) });
    scene
}

#[test]
fn g10_a_stop_with_or_before_the_latch_blocks_no_try() {
    for first in [Halves::write, Halves::read_shared, Halves::try_everything] {
        let stopped = stop_everywhere_under(1..40, || scene(first, Halves::try_everything)).unwrap();
        assert!(stopped.accesses >= 10 && stopped.was_in("latch.rs"), "{stopped:?}");
    }
}

#[test]
fn g10_a_stopped_optimistic_reader_blocks_no_thread() {
    let read = |halves: &Halves| assert!(halves.read().is_none_or(is_whole));
    for others in [Halves::write, Halves::read_shared] {
        stop_everywhere_under(1..40, || scene(read, others)).unwrap();
    }
}

#[test]
fn g10_a_stop_with_the_latch_blocks_its_takers_and_is_detected() {
    for (first, others) in [
        (Halves::write as fn(&Halves), Halves::write as fn(&Halves)),
        (Halves::write, Halves::read_shared),
        (Halves::read_shared, Halves::write),
    ] {
        let why = stop_everywhere_under(1..40, || scene(first, others)).unwrap_err();
        assert!(why.contains("no thread can continue") && why.contains("latch.rs"), "{why}");
    }
    // Readers do not block each other.
    stop_everywhere_under(1..40, || scene(Halves::read_shared, Halves::read_shared)).unwrap();
}

#[test]
fn latch_3_what_validates_is_whole_in_every_schedule_of_three_interruptions_and_in_random_ones() {
    let pair = |reader: fn(&Halves)| {
        move || {
            let halves = Arc::new(Halves::default());
            let mut scene = Scene::new();
            let theirs = Arc::clone(&halves);
            scene.thread(move || (0..2).for_each(|_| theirs.write()));
            scene.thread(move || reader(&halves));
            scene
        }
    };
    let careful: fn(&Halves) = |halves| assert!(halves.read().is_none_or(is_whole), "torn");
    let runs = exhaust(3, pair(careful)).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(runs > 1000, "{runs}");
    at_random(500, 1, || scene(Halves::write, Halves::try_everything))
        .unwrap_or_else(|failure| panic!("{failure}"));

    // A reader that does not validate fails with at most two interruptions. The failure is printed in two
    // columns.
    let careless: fn(&Halves) = |halves| {
        if halves.latch.optimistic().is_some() {
            assert!(is_whole(halves.look()), "torn");
        }
    };
    let failure = exhaust(3, pair(careless)).unwrap_err();
    assert!(failure.reason.contains("torn") && failure.preemptions.len() <= 2, "{failure}");
    let (text, second) = (failure.to_string(), format!("\n{:44}load  ", ""));
    assert!(text.contains("thread 0") && text.contains("thread 1") && text.contains(&second), "{text}");
}
