//! The scheduling of threads on processors, by the constants of a profile and in the machine's time.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use azekura_base::sync::time::Instant;
use azekura_base::sync::{WaitWord, machine, thread};
use azekura_sim::{Profile, Simulation};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: azekura_sim::LineAllocator = azekura_sim::LineAllocator;

const US: Duration = Duration::from_micros(1);

/// The profile of these tests: all times differ, so that each one is recognized in a sum.
fn profile(undisturbed_us: f64) -> Profile {
    let mut profile = Profile::two_sockets();
    for (constant, us) in [
        (&mut profile.costs.undisturbed, undisturbed_us),
        (&mut profile.costs.slice, 2_000.0),
        (&mut profile.costs.context_switch, 3.0),
        (&mut profile.costs.wake_call, 5.0),
        (&mut profile.costs.wake, 11.0),
        (&mut profile.costs.alarm, 17.0),
        (&mut profile.costs.wake_busy, 7.0),
        (&mut profile.costs.alarm_busy, 13.0),
        (&mut profile.costs.alarm_set, 31.0),
        (&mut profile.costs.alarm_missed, 47.0),
        (&mut profile.costs.interrupt, 23.0),
    ] {
        constant.value = us * 1e3;
    }
    profile
}

fn compute_until(end: Instant) {
    let own = 0_u8;
    while Instant::now() < end {
        machine::reads(&own);
    }
}

/// Returns the time after which a thread that sleeps for 100 µs runs again, while another thread computes for
/// 10 ms.
fn back_from_a_sleep(undisturbed_us: f64, processors: usize) -> Duration {
    let back = Rc::new(Cell::new(Duration::ZERO));
    let slept = Rc::clone(&back);
    let mut simulation = Simulation::new(Rc::new(profile(undisturbed_us)), processors, 1);
    simulation.thread(move || {
        let begin = Instant::now();
        thread::sleep(100 * US);
        slept.set(begin.elapsed());
    });
    simulation.thread(|| compute_until(Instant::now() + 10_000 * US));
    simulation.run().unwrap();
    back.get()
}

#[track_caller]
fn is_about(time: Duration, expected_us: u32) {
    let expected = expected_us * US;
    assert!(time.abs_diff(expected) < 2 * US, "{time:?} instead of {expected:?}");
}

#[test]
fn a_sleeper_gets_an_idle_processor_one_alarm_later() {
    is_about(back_from_a_sleep(0.0, 2), 100 + 17);
}

#[test]
fn a_sleeper_preempts_a_busy_processor_at_its_alarm_without_protection() {
    is_about(back_from_a_sleep(0.0, 1), 100 + 13 + 3);
}

#[test]
fn a_thread_keeps_a_new_processor_for_the_undisturbed_time() {
    // The computing thread got the processor one switch after the sleeper had set its alarm.
    is_about(back_from_a_sleep(700.0, 1), 31 + 3 + 700 + 3);
}

#[test]
fn the_undisturbed_time_is_at_most_a_slice() {
    is_about(back_from_a_sleep(5_000.0, 1), 31 + 3 + 2_000 + 3);
}

#[test]
fn a_thread_beyond_its_undisturbed_time_is_preempted_at_the_alarm() {
    is_about(back_from_a_sleep(50.0, 1), 100 + 13 + 3);
}

#[test]
fn a_woken_thread_takes_the_processor_of_its_waker_if_there_is_no_other() {
    let awake = Rc::new(Cell::new(Duration::ZERO));
    let word = Arc::new(WaitWord::new(0));
    let (slept, theirs) = (Rc::clone(&awake), Arc::clone(&word));
    let mut simulation = Simulation::new(Rc::new(profile(0.0)), 1, 1);
    simulation.thread(move || {
        thread::sleep(50 * US); // the other thread sleeps by then, and the processor is idle
        word.set_and_wake(1);
        compute_until(Instant::now() + 10_000 * US);
    });
    simulation.thread(move || {
        theirs.wait(0, None);
        slept.set(machine::current().unwrap().now());
    });
    simulation.run().unwrap();
    is_about(awake.get(), 50 + 17 + 5 + 7 + 3);
}

#[test]
fn a_wake_takes_the_waker_its_call_and_the_sleeper_a_wake_more() {
    let times = Rc::new(Cell::new([Duration::ZERO; 2]));
    let (waker, sleeper) = (Rc::clone(&times), Rc::clone(&times));
    let word = Arc::new(WaitWord::new(0));
    let theirs = Arc::clone(&word);
    let mut simulation = Simulation::new(Rc::new(profile(0.0)), 2, 1);
    simulation.thread(move || {
        thread::sleep(50 * US); // the other thread sleeps by then
        let begin = Instant::now();
        word.set_and_wake(1);
        waker.set([begin.elapsed(), waker.get()[1]]);
    });
    simulation.thread(move || {
        theirs.wait(0, None);
        sleeper.set([sleeper.get()[0], machine::current().unwrap().now()]);
    });
    simulation.run().unwrap();
    let [call, awake] = times.get();
    is_about(call, 5);
    is_about(awake, 50 + 17 + 5 + 11);
}

#[test]
fn a_sleep_shorter_than_an_alarm_keeps_its_processor() {
    let times = Rc::new(Cell::new([Duration::ZERO; 3]));
    let seen = Rc::clone(&times);
    let mut simulation = Simulation::new(Rc::new(profile(0.0)), 1, 1);
    simulation.thread(move || {
        let nap = |us: u32| {
            let begin = Instant::now();
            thread::sleep(us * US);
            begin.elapsed()
        };
        let word = WaitWord::new(0);
        let begin = Instant::now();
        word.wait(0, Some(30 * US));
        seen.set([nap(1), nap(30), begin.elapsed()]);
    });
    simulation.thread(|| compute_until(Instant::now() + 10_000 * US));
    simulation.run().unwrap();
    let [short, long, all] = times.get();
    is_about(short, 47);
    is_about(long, 47);
    is_about(all, 47 + 47 + 47);
}

/// Returns the processor times of three threads that sleep for these times on one processor.
fn time_of_naps(naps_us: [u32; 3]) -> [Duration; 3] {
    let times = Rc::new(Cell::new([Duration::ZERO; 3]));
    let mut simulation = Simulation::new(Rc::new(profile(0.0)), 1, 1);
    for (thread, us) in naps_us.into_iter().enumerate() {
        let all = Rc::clone(&times);
        simulation.thread(move || {
            thread::sleep(us * US);
            let mut times = all.get();
            times[thread] = machine::current().unwrap().processor_time(Some(thread));
            all.set(times);
        });
    }
    simulation.run().unwrap();
    times.get()
}

#[test]
fn an_alarm_costs_nothing_where_another_of_its_processor_comes_before() {
    let times = time_of_naps([1_000, 2_000, 500]);
    for (time, us) in times.into_iter().zip([31, 0, 31]) {
        is_about(time, us);
    }
}

/// Returns the time of a thread's work, with or without another thread that wakes up and ends meanwhile.
fn time_of_work(is_interrupted: bool) -> Duration {
    let took = Rc::new(Cell::new(Duration::ZERO));
    let result = Rc::clone(&took);
    let mut simulation = Simulation::new(Rc::new(profile(0.0)), 1, 1);
    simulation.thread(move || thread::sleep(if is_interrupted { 100 * US } else { 100_000 * US }));
    simulation.thread(move || {
        let begin = Instant::now();
        let own = 0_u8;
        (0..300_000).for_each(|_| machine::reads(&own));
        result.set(begin.elapsed());
    });
    simulation.run().unwrap();
    took.get()
}

#[test]
fn an_interrupted_thread_loses_the_interruption_and_two_switches() {
    let (alone, interrupted) = (time_of_work(false), time_of_work(true));
    assert!(alone > 200 * US && alone < 50_000 * US, "{alone:?}");
    is_about(interrupted - alone, 3 + 23 + 3);
}

#[test]
fn a_thread_woken_early_cancels_its_alarm() {
    let awake = Rc::new(Cell::new(Duration::ZERO));
    let word = Arc::new(WaitWord::new(0));
    let (slept, theirs) = (Rc::clone(&awake), Arc::clone(&word));
    let mut simulation = Simulation::new(Rc::new(profile(0.0)), 2, 1);
    simulation.thread(move || {
        compute_until(Instant::now() + 200 * US); // the other thread sleeps by then
        word.set_and_wake(1);
    });
    simulation.thread(move || {
        theirs.wait(0, Some(10_000 * US));
        slept.set(machine::current().unwrap().now());
    });
    simulation.run().unwrap();
    is_about(awake.get(), 200 + 5 + 11 + 31);
}
