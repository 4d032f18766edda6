//! Probes on a machine. A recording uses the machine's own time. A thread that stops forever while it records
//! blocks no other recording thread (hazard G10).
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use azekura_base::sync::machine::{Work, works};
use azekura_base::sync::thread;
use azekura_baselines::SyncMutex;
use azekura_sim::explore::{Scene, stop_everywhere_under};
use azekura_sim::{LineAllocator, Profile, Simulation};
use azekura_trace::event::EventKind;
use azekura_trace::file::{CpuSource, TimeSource};
use azekura_trace::{HoldMode, Operation, Options, Recording, Site, WaitKind};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

#[global_allocator]
static ALLOCATOR: LineAllocator = LineAllocator;

static OPERATION: Operation = Operation::new("test operation");
static SITE: Site = Site::new("test mutex");

/// Allows one recording at a time in the process.
static ONE: Mutex<()> = Mutex::new(());

fn options() -> Options {
    Options {
        drain_every: None,
        ring_events: 1 << 12,
        hold_sampling: 1,
        operation_sampling: 1,
        ..Options::default()
    }
}

const HELD_NS: u64 = 50_000;

/// Records two threads that each hold a mutex for some time.
fn contended() -> Recording {
    let recorded = Rc::new(RefCell::new(None));
    let result = Rc::clone(&recorded);
    let mut simulation = Simulation::new(Rc::new(Profile::two_sockets()), 4, 1);
    simulation.thread(move || {
        azekura_trace::start(options()).unwrap();
        let mutex = Arc::new(SyncMutex::new(&SITE, ()));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let mutex = Arc::clone(&mutex);
                thread::spawn(move || {
                    let _operation = azekura_trace::operation(&OPERATION);
                    let _held = mutex.lock();
                    works(Work::Nanoseconds(HELD_NS));
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        *result.borrow_mut() = Some(azekura_trace::stop().unwrap());
    });
    simulation.run().unwrap();
    recorded.take().unwrap()
}

#[test]
fn a_recording_is_of_the_machines_own_time_and_the_same_each_time() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let trace = contended().trace().unwrap();
    assert_eq!((trace.session.time, trace.session.cpu), (TimeSource::Monotonic, CpuSource::ThreadClock));
    assert_eq!((trace.session.processors, trace.session.ticks_per_second), (4, 1_000_000_000));
    let waits: Vec<u64> = trace
        .threads
        .iter()
        .filter_map(|thread| {
            let at = |kind| thread.events.iter().find(|event| event.kind == kind).map(|event| event.ticks);
            Some(at(EventKind::WaitEnd)? - at(EventKind::WaitBegin)?)
        })
        .collect();
    // One thread waited while the other held the mutex, and at most for a wake-up longer.
    assert!(matches!(waits[..], [wait] if (HELD_NS * 9 / 10..HELD_NS * 2).contains(&wait)), "{waits:?}");
    let ticks = |recording: &Recording| -> Vec<Vec<u64>> {
        let trace = recording.trace().unwrap();
        trace.threads.iter().map(|thread| thread.events.iter().map(|e| e.ticks).collect()).collect()
    };
    assert_eq!(ticks(&contended()), ticks(&contended()));
    assert_eq!((trace.session.process_id, trace.threads.len()), (0, 2));
}

/// A recording depends neither on earlier recordings nor on addresses: random samples depend on the thread's
/// number.
#[test]
fn a_recording_is_the_same_whatever_ran_before() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let shown = || {
        let trace = contended().trace().unwrap();
        format!("{:?} {:?}", trace.session, trace.threads)
    };
    let first = shown();
    let _in_the_way = (vec![0_u8; 100], vec![0_u8; 1 << 20]);
    assert_eq!(first, shown());
}

#[test]
fn g10_a_stop_in_a_recording_thread_blocks_no_recording_thread() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let stopped = stop_everywhere_under(1..6, || {
        azekura_trace::start(options()).unwrap();
        let mut scene = Scene::new();
        for _ in 0..3 {
            scene.thread(|| {
                for turn in 0..3 {
                    let _operation = azekura_trace::operation(&OPERATION);
                    drop(azekura_trace::wait(&SITE, turn, WaitKind::Latch));
                    drop(azekura_trace::hold(&SITE, turn, HoldMode::Exclusive));
                    azekura_trace::released(&SITE, turn);
                }
            });
        }
        scene.check(|| {
            let recording = azekura_trace::stop().unwrap();
            match (recording.threads(), recording.lost()) {
                (3, 0) => Ok(()),
                other => Err(format!("threads, lost: {other:?}")),
            }
        });
        scene
    });
    let stopped = stopped.unwrap();
    assert!(stopped.accesses >= 50 && stopped.was_in("ring.rs"), "{stopped:?}");
}
