//! Two rings of frames under misses that swap their slots: no frame is lost from them, none is in two
//! (RING-1, RING-2).
//!
//! Few forced switches: a sweep looks at many words. The frames are as shipped; pages are not read.
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a model ends where it fails")]

mod loom_common;

use azekura_base::sync::{Arc, Mutex, thread};
use azekura_buffer::model::{ModelRings, ModelSupply};
use loom_common::model;

fn spawn(
    rings: &Arc<ModelRings>,
    run: impl FnOnce(&ModelRings) -> bool + 'static,
) -> thread::JoinHandle<bool> {
    let rings = Arc::clone(rings);
    thread::spawn(move || run(&rings))
}

/// The page in probation was used, so the first miss swaps its frame with one of the main ring. The second
/// miss meets that at any moment, and has the same two slots to choose from.
#[test]
fn ring_2_two_misses_that_want_to_swap_the_same_slots_lose_no_frame() {
    model("two misses, two frames", 1, 100, || {
        let rings = Arc::new(ModelRings::new(2));
        rings.note_use(0);
        let other = spawn(&rings, |rings| rings.miss(10));
        let found = rings.miss(11);
        let other = other.join().unwrap();
        assert!(rings.is_whole());
        assert!(found || other, "one of them gets a frame");
    });
}

/// One more frame in the main ring: both can swap, with different main slots and the same probation slot.
#[test]
fn ring_2_a_swap_and_two_misses_in_turn_lose_no_frame() {
    model("a miss, two misses in turn, three frames", 1, 100, || {
        let rings = Arc::new(ModelRings::new(3));
        rings.note_use(0);
        let other = spawn(&rings, |rings| rings.miss(10) | rings.miss(11));
        rings.miss(12);
        other.join().unwrap();
        assert!(rings.is_whole());
    });
}

/// The jobs of a cleaner: each has a thread of its own.
type Jobs = std::sync::Arc<Mutex<Vec<thread::JoinHandle<()>>>>;

/// Frames, and a cleaner that is started in jobs.
fn supply_with_jobs() -> (std::sync::Arc<ModelSupply>, Jobs) {
    let (supply, jobs) = (std::sync::Arc::new(ModelSupply::default()), Jobs::default());
    let (to_clean, started) = (std::sync::Arc::downgrade(&supply), jobs.clone());
    supply.begin(move || {
        let supply = to_clean.upgrade().unwrap();
        started.lock().push(thread::spawn(move || supply.clean()));
    });
    (supply, jobs)
}

fn join(jobs: &Jobs) {
    loop {
        let Some(job) = jobs.lock().pop() else { return };
        job.join().unwrap();
    }
}

/// SUPPLY-1, SUPPLY-2 and CLEANER-1: loom ends a run in which a thread sleeps for ever.
#[test]
fn no_miss_sleeps_through_the_frame_that_is_freed_for_it() {
    model("two misses and a cleaner", 2, 100, || {
        let (supply, jobs) = supply_with_jobs();
        let other = thread::spawn({
            let supply = supply.clone();
            move || supply.miss()
        });
        let ours = supply.miss();
        assert!(ours && other.join().unwrap());
        supply.stop();
        join(&jobs);
    });
}

/// SUPPLY-3.
#[test]
fn no_miss_waits_for_a_cleaner_that_has_ended() {
    model("a miss and a cleaner that is stopped", 3, 100, || {
        let (supply, jobs) = supply_with_jobs();
        let stopper = thread::spawn({
            let supply = supply.clone();
            move || supply.stop()
        });
        supply.miss();
        stopper.join().unwrap();
        join(&jobs);
    });
}
