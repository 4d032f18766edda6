//! PLACE-1 to PLACE-5, CREW-1 and CREW-2: whatever is posted is found, a reactor that was left is driven by
//! whoever needs it, no event is slept over, no commit is left without an answer, and no job is lost. That a
//! reactor or a connection is with two threads at once cannot be written down: both are values that are
//! moved.
//!
//! A model has no time: a driver that sleeps in its poll and is not woken is a deadlock, and so is found.
#![cfg(loom)]

use std::time::Duration;

use azekura_base::sync::atomic::Ordering::Acquire;
use azekura_base::sync::{Arc, WaitWord, thread};

#[path = "../src/reactor/crew.rs"]
#[allow(dead_code, reason = "what the model needs of it")]
mod crew;
#[path = "../src/reactor/place.rs"]
#[allow(dead_code, reason = "what the model needs of it")]
mod place;

use crew::{Bunk, Crew};
use place::{Arrival, Place, Posted};

/// Connections that it has served.
type Reactor = Vec<usize>;

struct Seat {
    place: Place<Reactor, usize, usize>,
    /// What the poll of the reactor sleeps on.
    waker: WaitWord,
}

impl Seat {
    fn new() -> Arc<Self> {
        Arc::new(Self { place: Place::default(), waker: WaitWord::new(0) })
    }

    /// Gives a connection back, as a thread does that has no reactor; drives the reactor if it was left.
    fn give_back(&self, connection: usize, is_ready: bool, wanted: usize) {
        let token = Some(connection);
        match self.place.post(Arrival { token, item: connection, is_ready }) {
            Posted::Quiet => {}
            Posted::Wake => self.waker.set_and_wake(1),
            Posted::Take(reactor) => self.drive(reactor, &[], wanted),
            Posted::Closed(_) => panic!("nobody closed it"),
        }
    }

    /// Drives until `wanted` connections have been served; an event has come for those in `missed`.
    fn drive(&self, mut reactor: Reactor, missed: &[usize], wanted: usize) {
        self.collect(&mut reactor, missed);
        while reactor.len() < wanted {
            self.waker.wait(0, None);
            // The event of the waker is taken up before what was posted.
            self.waker.word().swap(0, Acquire);
            self.collect(&mut reactor, &[]);
        }
        reactor.sort_unstable();
        assert_eq!(reactor, (1..=wanted).collect::<Vec<_>>(), "each connection once");
    }

    /// Drives until `connection` is found.
    fn drive_until(&self, mut reactor: Reactor, connection: usize) {
        self.collect(&mut reactor, &[]);
        while !reactor.contains(&connection) {
            self.waker.wait(0, None);
            self.waker.word().swap(0, Acquire);
            self.collect(&mut reactor, &[]);
        }
    }

    fn collect(&self, reactor: &mut Reactor, missed: &[usize]) {
        let mut found = Vec::new();
        self.place.collect(missed, &mut found);
        reactor.extend(found.iter().map(|arrival| arrival.item));
    }
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

#[test]
fn a_reactor_that_was_left_is_driven_by_who_needs_it_or_is_its_threads_again() {
    model(|| {
        let seat = Seat::new();
        let other = seat.clone();
        // Its thread has connection 1 in hand; connection 2 is new, or comes back.
        let poster = thread::spawn(move || other.give_back(2, true, 2));
        match seat.place.leave(Vec::new()) {
            Err(mut reactor) => {
                reactor.push(1);
                seat.drive(reactor, &[], 2);
            }
            Ok(()) => match seat.place.take_back() {
                Some(mut reactor) => {
                    reactor.push(1);
                    seat.drive(reactor, &[], 2);
                }
                // The poster drives it, and waits for ours.
                None => seat.give_back(1, true, 2),
            },
        }
        poster.join().expect("no panic");
    });
}

#[test]
fn who_left_a_reactor_may_wait_for_what_is_posted_to_it() {
    model(|| {
        let seat = Seat::new();
        let (other, lock) = (seat.clone(), Arc::new(WaitWord::new(0)));
        let freed = lock.clone();
        let poster = thread::spawn(move || {
            // Connection 2 lets go what connection 1, in the hands of the other thread, waits for.
            match other.place.post(Arrival { token: Some(2), item: 2, is_ready: true }) {
                Posted::Take(_) => freed.set_and_wake(1),
                Posted::Wake => other.waker.set_and_wake(1),
                Posted::Quiet | Posted::Closed(_) => panic!("its driver sleeps, or it is left"),
            }
        });
        match seat.place.leave(Vec::new()) {
            Err(reactor) => seat.drive_until(reactor, 2),
            Ok(()) => lock.wait(0, None),
        }
        poster.join().expect("no panic");
    });
}

#[test]
fn an_event_for_a_connection_that_is_away_is_not_slept_over() {
    model(|| {
        let seat = Seat::new();
        let other = seat.clone();
        // Nothing is known to be done for it, so its return alone wakes nobody.
        let returner = thread::spawn(move || other.give_back(1, false, 1));
        seat.drive(Vec::new(), &[1], 1);
        returner.join().expect("no panic");
    });
}

#[test]
fn one_wake_up_for_several_that_need_the_driver_is_enough() {
    model(|| {
        let seat = Seat::new();
        let posters = [1, 2].map(|connection| {
            let other = seat.clone();
            thread::spawn(move || other.give_back(connection, true, 2))
        });
        seat.drive(Vec::new(), &[], 2);
        for poster in posters {
            poster.join().expect("no panic");
        }
    });
}

#[test]
fn a_job_is_done_once_though_the_thread_it_is_given_to_may_be_tired_of_waiting() {
    model(|| {
        let crew = Arc::new(Crew::default());
        let other = crew.clone();
        let thread = thread::spawn(move || {
            let bunk = Bunk::with(1);
            let first = other.rest(&bunk, None);
            assert_eq!(first, Some(1), "what it was started for");
            // No patience at all: it ends at once unless it is given something.
            other.rest(&bunk, Some(Duration::ZERO))
        });
        let refused = crew.give(2).err();
        let done = thread.join().expect("no panic");
        assert_eq!(done.is_some(), refused.is_none(), "done {done:?}, refused {refused:?}");
        assert_eq!(done.or(refused), Some(2));
    });
}

#[test]
fn a_thread_that_rests_is_woken_by_its_job_or_by_the_end() {
    model(|| {
        let crew = Arc::new(Crew::default());
        let other = crew.clone();
        let thread = thread::spawn(move || {
            let bunk = Bunk::with(1);
            let mut done = 0;
            while let Some(job) = other.rest(&bunk, None) {
                done += job;
            }
            done
        });
        let refused = crew.give(10).is_err();
        crew.end();
        let done = thread.join().expect("no panic");
        assert_eq!(done, if refused { 1 } else { 11 });
    });
}

#[test]
fn a_reactor_that_is_given_away_meets_the_connection_that_stayed_behind() {
    model(|| {
        let seat = Seat::new();
        let crew = Arc::new(Crew::default());
        let (for_spare, other) = (seat.clone(), crew.clone());
        let spare = thread::spawn(move || {
            let bunk = Bunk::with(None);
            while let Some(job) = other.rest(&bunk, None) {
                if let Some(reactor) = job {
                    for_spare.drive(reactor, &[1], 2);
                }
            }
        });
        // Connection 2 is in its slot, 1 stays with this thread, which blocks.
        match crew.give(Some(vec![2])) {
            Ok(()) => seat.give_back(1, false, 2),
            Err(reactor) => {
                // No spare thread yet: it keeps the reactor.
                let mut reactor = reactor.expect("it was one");
                reactor.push(1);
                seat.drive(reactor, &[], 2);
            }
        }
        crew.end();
        spare.join().expect("no panic");
    });
}

/// Queues a commit, and waits for commits if nobody else does. Which ones it waited for.
fn commit(place: &Place<Reactor, usize, usize>, connection: usize) -> Vec<usize> {
    let (mut batch, mut answered) = (vec![connection], Vec::new());
    if place.queue_commits(&mut batch) {
        assert!(batch.is_empty(), "they are the committer's now");
        return answered;
    }
    while !batch.is_empty() {
        answered.append(&mut batch);
        place.next_commits(&mut batch);
    }
    answered
}

#[test]
fn every_commit_is_answered_once_by_one_committer_at_a_time() {
    model(|| {
        let place = Arc::new(Place::default());
        let threads = [1, 2].map(|connection| {
            let place = place.clone();
            thread::spawn(move || commit(&place, connection))
        });
        let mut answered = commit(&place, 3);
        for thread in threads {
            answered.extend(thread.join().expect("no panic"));
        }
        answered.sort_unstable();
        assert_eq!(answered, [1, 2, 3]);
        assert!(!place.queue_commits(&mut vec![4]), "the committer has gone");
    });
}
