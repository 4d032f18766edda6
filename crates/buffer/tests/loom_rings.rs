//! Two rings of frames under misses that swap their slots: no frame is lost, and no frame is in two slots
//! (RING-1, RING-2).
//!
//! The models use few forced switches, because a sweep reads many words. The frames are those of the pool;
//! pages are not read.
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a failed step ends the model")]

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
/// miss runs concurrently, and chooses from the same two slots.
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

/// With one more frame in the main ring, both misses can swap, with different main slots and the same
/// probation slot.
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

/// The jobs of a cleaner, each in a separate thread.
type Jobs = std::sync::Arc<Mutex<Vec<thread::JoinHandle<()>>>>;

/// Returns a supply of frames with a cleaner that runs in jobs.
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

/// SUPPLY-1, SUPPLY-2 and CLEANER-1: loom fails a run in which a thread sleeps permanently.
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
