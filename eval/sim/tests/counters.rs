//! Threads that only count: the cost of a line that all threads write, and of lines that each belong to one
//! thread.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use azekura_base::striped::Sequence;
use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_base::sync::machine;
use azekura_base::{CachePadded, StripedCounter};
use azekura_sim::explore::{Scene, stop_everywhere_under};
use azekura_sim::{LineAllocator, LineName, Outcome, Profile, Simulation, SimulationError};
use std::rc::Rc;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: LineAllocator = LineAllocator;

fn count(processors: usize, lines: usize, seed: u64) -> Outcome {
    count_without(processors, lines, seed, &[]).unwrap()
}

fn count_without(
    processors: usize,
    lines: usize,
    seed: u64,
    without: &[LineName],
) -> Result<Outcome, SimulationError> {
    let counters: Arc<[CachePadded<AtomicU64>]> =
        (0..lines).map(|_| CachePadded::new(AtomicU64::new(0))).collect();
    let mut simulation = Simulation::new(Rc::new(Profile::t2()), processors, seed).without(without);
    for thread in 0..processors {
        let counters = Arc::clone(&counters);
        simulation.thread(move || {
            for _ in 0..1000 {
                counters[thread % lines].fetch_add(1, Relaxed);
            }
        });
    }
    let outcome = simulation.run();
    assert_eq!(counters.iter().map(|c| c.load(Relaxed)).sum::<u64>(), 1000 * processors as u64);
    outcome
}

#[test]
fn one_seed_is_one_run_and_another_seed_another() {
    let bytes = |seed| format!("{:?}", count(16, 3, seed));
    assert_eq!(bytes(7), bytes(7));
    assert_ne!(bytes(7), bytes(8));
}

#[test]
fn a_counter_that_all_write_serves_one_at_a_time_and_own_counters_do_not_slow_each_other() {
    let [one, all] = [count(1, 1, 1), count(16, 1, 1)].map(|outcome| outcome.time);
    assert!(all > 4 * one, "{one:?} alone, {all:?} with fifteen others");
    let own = count(16, 16, 1).time;
    assert!(own < one * 5 / 4, "{one:?} alone, {own:?} beside fifteen others");
}

#[test]
fn a_free_line_delays_no_thread_and_an_unknown_one_is_an_error() {
    let name = |name: &str| [name.parse::<LineName>().unwrap()];
    let one = count(1, 1, 1).time;
    let free = count_without(16, 1, 1, &name("counters[thread % lines]@sim::tests::counters")).unwrap();
    assert!(free.time < one * 5 / 4, "{one:?} alone, {:?} as if it were", free.time);
    assert!(free.stalls.iter().all(|place| place.stall == 0), "{:?}", free.stalls);
    let nothing = count_without(2, 1, 1, &name("counters[thread % lines]@wal"));
    assert!(matches!(nothing, Err(SimulationError::NoSuchLine { .. })), "{nothing:?}");
}

#[test]
fn g10_a_stop_in_a_counter_or_a_number_draw_blocks_no_thread() {
    let stopped = stop_everywhere_under(1..20, || {
        let (sequence, counter) = (Arc::new(Sequence::default()), Arc::new(StripedCounter::new()));
        let mut scene = Scene::new();
        for _ in 0..3 {
            let (sequence, counter) = (Arc::clone(&sequence), Arc::clone(&counter));
            scene.thread(move || {
                for _ in 0..3 {
                    counter.add(1 + sequence.next() as u64);
                    assert!(counter.sum() > 0);
                }
            });
        }
        // The sum of the numbers from 0 to 8, plus 1 for each of the nine additions.
        scene.check(move || match (sequence.next(), counter.sum()) {
            (9, 45) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        scene
    });
    assert!(stopped.unwrap().accesses >= 18);
}

/// An access to an empty slice touches no line, because another block may begin there.
#[test]
fn a_thread_without_accesses_touches_no_line() {
    let mut simulation = Simulation::new(Rc::new(Profile::t2()), 1, 1);
    simulation.thread(|| {
        let block = [0_u8; 64];
        machine::writes(&block[64..]);
        machine::reads(&block[..0]);
    });
    let outcome = simulation.run().unwrap();
    assert_eq!((outcome.steps, outcome.lines), (0, 0));
}

/// The lines of a stack are freed when its thread ends, and their numbers are used again.
#[test]
fn lines_of_a_stack_end_with_its_thread() {
    let mut simulation = Simulation::new(Rc::new(Profile::t2()), 1, 1);
    for _ in 0..10 {
        simulation.thread(|| {
            let word = AtomicU64::new(0);
            word.fetch_add(1, Relaxed);
        });
    }
    assert_eq!(simulation.run().unwrap().lines, 1);
}
