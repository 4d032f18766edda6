//! Times and rules of this machine's scheduler (wakes, timers, time slices), from small measurements between
//! threads that are bound to processors.
//!
//! Results are medians, not the fastest fifth: the time of a wake varies even on a quiet machine, because an
//! idle processor enters a deeper sleep state the longer it is idle.

use azekura_base::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use azekura_base::sync::{WaitWord, thread_time};
use rustix::thread::set_current_timer_slack;
use std::hint::spin_loop;
use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bound::{join, on, two_processors};

/// Wait until a sleeper sleeps and its processor is idle: about as long as a log's flusher rests between two
/// flushes.
const ASLEEP: Duration = Duration::from_micros(30);
/// Number of repetitions of a measurement of wakes or timers.
const TIMES: usize = 61;
/// Number of repetitions of a measurement of timers on a busy processor, where each may be a tick late.
const TIMES_BUSY: usize = 15;
/// Time for which two computing threads share a processor.
const SHARED: Duration = Duration::from_millis(60);
/// Gaps between two clock reads of a thread that reads the clock continuously. A gap above `OFF` means that
/// the thread lost its processor for a time slice; a gap above `INTERRUPTED`, that it was interrupted.
const OFF: Duration = Duration::from_micros(100);
const INTERRUPTED: Duration = Duration::from_micros(1);
/// A sleep that ends while its timer is being set; and the longest sleep that is tried, in microseconds.
const NO_TIME: Duration = Duration::from_nanos(1);
const LONGEST_SET_US: u64 = 64;
/// Smallest part of a sleep that a thread must spend off its processor to have left it; in the rest it may
/// read the clocks.
const OFF_PART: f64 = 0.2;

fn median(mut all: Vec<Duration>) -> f64 {
    all.sort();
    all.get(all.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e9)
}

fn sleep_until(word: &WaitWord, value: u32) {
    loop {
        let seen = word.word().load(Acquire);
        if seen == value {
            return;
        }
        word.wait(seen, None);
    }
}

fn spin_for(time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        spin_loop();
    }
}

/// Returns the result of `f` while another thread computes on `processor`, and the time for which that thread
/// could not compute meanwhile.
fn beside_computing<T>(processor: usize, f: impl FnOnce() -> io::Result<T>) -> io::Result<(T, Duration)> {
    let is_over = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&is_over);
    let busy = on(processor, move || {
        let (mut lost, mut last) = (Duration::ZERO, Instant::now());
        // Relaxed: the flag only ends the loop and may be noticed late.
        while !theirs.load(Relaxed) {
            let now = Instant::now();
            lost += Some(now - last).filter(|&off| off > INTERRUPTED).unwrap_or_default();
            last = now;
        }
        lost
    })?;
    let result = f();
    is_over.store(true, Relaxed);
    let lost = join(busy)?;
    result.map(|result| (result, lost))
}

/// Measures the time from the end of a wake-up call until the woken thread runs on a processor with a
/// computing thread, and the time that the computing thread loses. Returns 0 if there is only one processor.
pub(super) fn wake_busy() -> io::Result<(f64, f64)> {
    let [mine, theirs] = two_processors()?;
    if mine == theirs {
        return Ok((0.0, 0.0));
    }
    let ((_, after), lost) = beside_computing(theirs, wake)?;
    Ok((after, lost.as_secs_f64() * 1e9 / TIMES as f64))
}

/// Measures two times: the shortest sleep for which a thread leaves its processor, which is the time to set
/// the timer; and the time of a sleep that ends before its timer is set.
pub(super) fn alarm_set() -> io::Result<(f64, f64)> {
    let [_, processor] = two_processors()?;
    let measure = || {
        let over = lateness(NO_TIME, TIMES);
        let set = (1..=LONGEST_SET_US).map(Duration::from_micros).find(|&time| leaves_processor(time));
        let set = set.unwrap_or(ASLEEP);
        (set.as_secs_f64() * 1e9, over)
    };
    join(on(processor, measure)?)
}

/// Returns whether most sleeps of this length leave the processor for at least [`OFF_PART`] of their time.
fn leaves_processor(time: Duration) -> bool {
    let one = |_| {
        let (began, had) = (Instant::now(), thread_time());
        std::thread::sleep(time);
        let had = thread_time() - had;
        had < began.elapsed().mul_f64(1.0 - OFF_PART)
    };
    2 * (0..TIMES_BUSY).filter(|&n| one(n)).count() > TIMES_BUSY
}

/// Measures the call that wakes a thread on an idle processor, and the time from its end until the thread
/// runs.
pub(super) fn wake() -> io::Result<(f64, f64)> {
    let [mine, theirs] = two_processors()?;
    let begin = Instant::now();
    let shared = Arc::new((WaitWord::new(0), AtomicU64::new(0)));
    let at_sleeper = Arc::clone(&shared);
    let sleeper = on(theirs, move || {
        for turn in 1..=TIMES as u32 {
            sleep_until(&at_sleeper.0, turn);
            at_sleeper.1.store(begin.elapsed().as_nanos() as u64, Release);
        }
    })?;
    let waker = on(mine, move || {
        let (word, awake_at) = &*shared;
        let one = |turn| {
            spin_for(ASLEEP);
            awake_at.store(0, Relaxed);
            let called = begin.elapsed();
            word.set_and_wake(turn);
            let back = begin.elapsed();
            let awake = loop {
                match awake_at.load(Acquire) {
                    0 if mine == theirs => std::thread::yield_now(),
                    0 => spin_loop(),
                    at => break Duration::from_nanos(at),
                }
            };
            (back - called, awake.saturating_sub(back))
        };
        (1..=TIMES as u32).map(one).unzip()
    })?;
    let (calls, wakes): (Vec<_>, Vec<_>) = join(waker)?;
    join(sleeper)?;
    Ok((median(calls), median(wakes)))
}

/// Measures a switch between two threads on one processor that wake each other and sleep in turn. The two
/// system calls of the thread that goes to sleep are subtracted.
pub(super) fn context_switch(system_call: f64) -> io::Result<f64> {
    let [processor, _] = two_processors()?;
    let words = Arc::new([WaitWord::new(0), WaitWord::new(0)]);
    let theirs = Arc::clone(&words);
    let other = on(processor, move || {
        for turn in 1..=TIMES as u32 {
            sleep_until(&theirs[0], turn);
            theirs[1].set_and_wake(turn);
        }
    })?;
    let thread = on(processor, move || {
        let both_ways = |turn| {
            let began = Instant::now();
            words[0].set_and_wake(turn);
            sleep_until(&words[1], turn);
            began.elapsed()
        };
        median((1..=TIMES as u32).map(both_ways).collect())
    })?;
    let both_ways = join(thread)?;
    join(other)?;
    Ok((both_ways / 2.0 - 2.0 * system_call).max(0.0))
}

/// Returns the median delay of the end of sleeps of this length.
fn lateness(time: Duration, times: usize) -> f64 {
    // If the system refuses, sleeps end up to 50 µs late, as they do for every thread with the default slack.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let one = |_| {
        let began = Instant::now();
        std::thread::sleep(time);
        began.elapsed().saturating_sub(time)
    };
    median((0..times).map(one).collect())
}

/// Measures the time from the end of a sleep to the thread's first instruction, on an idle processor.
pub(super) fn alarm() -> io::Result<f64> {
    let [_, processor] = two_processors()?;
    join(on(processor, || lateness(ASLEEP, TIMES))?)
}

/// Measures two times on a processor with a computing thread, when the timer of a sleeping thread expires.
/// The first is the time for which the computing thread keeps the processor after the other went to sleep.
/// The second is the timer's delay if the woken thread preempts at once. One of the two is 0.
pub(super) fn undisturbed(alarm: f64) -> io::Result<(f64, f64)> {
    let [processor, _] = two_processors()?;
    let (late, _) =
        beside_computing(processor, || on(processor, || lateness(ASLEEP, TIMES_BUSY)).and_then(join))?;
    // Nearly as punctual as on an idle processor: the woken thread preempts the computing one.
    Ok(if late < 2.0 * alarm { (0.0, late) } else { (late + ASLEEP.as_secs_f64() * 1e9, 0.0) })
}

/// Measures the time slice: how long a thread computes until another computing thread gets the processor.
pub(super) fn slice() -> io::Result<f64> {
    let [processor, _] = two_processors()?;
    let until = Instant::now() + SHARED;
    let computes = move || {
        let (mut runs, mut since, mut last) = (Vec::new(), None, Instant::now());
        while last < until {
            let now = Instant::now();
            if now - last > OFF {
                // The beginning of the first slice is unknown, so its length is not counted.
                runs.extend(since.map(|since| last - since));
                since = Some(now);
            }
            last = now;
        }
        runs
    };
    let other = on(processor, computes)?;
    let runs = on(processor, computes).and_then(join);
    let mut all = join(other)?;
    all.extend(runs?);
    // No switch: the other thread did not run at the same time, or slices are longer than `SHARED`.
    Ok(if all.is_empty() { SHARED.as_secs_f64() * 1e9 } else { median(all) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measurement_ends_and_gives_a_time() {
        let (call, wake) = wake().expect("threads start");
        assert!(call > 0.0 && wake >= 0.0, "{call} {wake}");
        assert!(context_switch(0.0).expect("threads start") > 0.0);
        let alarm = alarm().expect("threads start");
        let (undisturbed, late) = undisturbed(alarm).expect("threads start");
        assert!(alarm > 0.0 && undisturbed + late > 0.0);
        let (set, over) = alarm_set().expect("threads start");
        assert!(set > 0.0 && over > 0.0, "{set} {over}");
        let (after, lost) = wake_busy().expect("threads start");
        assert!(after >= 0.0 && lost >= 0.0, "{after} {lost}");
        assert!(slice().expect("threads start") > 0.0);
    }

    #[test]
    fn a_median_is_in_nanoseconds() {
        let us = Duration::from_micros;
        assert_eq!(median(vec![us(3), us(1), us(2)]), 2000.0);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
