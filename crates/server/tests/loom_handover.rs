//! Model of MAILBOX-1 to MAILBOX-5, POOL-1 and POOL-2. Posted work is found, the thread that needs a parked
//! reactor drives it, no event is missed, every commit is answered, and no job is lost. The types exclude
//! that two threads own a reactor or a connection, because both are moved values.
//!
//! A model has no time. A driver that sleeps in its poll and is never woken is a deadlock, which loom
//! reports.
#![cfg(loom)]

use std::time::Duration;

use azekura_base::sync::atomic::Ordering::Acquire;
use azekura_base::sync::{Arc, WaitWord, thread};

#[path = "../src/reactor/mailbox.rs"]
#[allow(dead_code, reason = "the model uses only a part of the module")]
mod mailbox;
#[path = "../src/reactor/worker_pool.rs"]
#[allow(dead_code, reason = "the model uses only a part of the module")]
mod worker_pool;

use mailbox::{Arrival, Mailbox, Posted};
use worker_pool::{WorkerPool, WorkerSlot};

/// A reactor, modeled by the numbers of the connections that it has served.
type Reactor = Vec<usize>;

struct ReactorSlot {
    mailbox: Mailbox<Reactor, usize, usize>,
    /// Models the poll of the reactor.
    waker: WaitWord,
}

impl ReactorSlot {
    fn new() -> Arc<Self> {
        Arc::new(Self { mailbox: Mailbox::default(), waker: WaitWord::new(0) })
    }

    /// Returns a connection, from a thread without a reactor. Drives the reactor if it was parked.
    fn return_connection(&self, connection: usize, is_ready: bool, wanted: usize) {
        let token = Some(connection);
        match self.mailbox.post(Arrival { token, item: connection, is_ready }) {
            Posted::Quiet => {}
            Posted::Wake => self.waker.set_and_wake(1),
            Posted::Take(reactor) => self.drive(reactor, &[], wanted),
            Posted::Closed(_) => panic!("nobody closed it"),
        }
    }

    /// Drives until `wanted` connections have been served. Events have arrived for the connections in
    /// `missed`.
    fn drive(&self, mut reactor: Reactor, missed: &[usize], wanted: usize) {
        self.collect(&mut reactor, missed);
        while reactor.len() < wanted {
            self.waker.wait(0, None);
            // The waker's event is consumed before the posted work.
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
        self.mailbox.collect(missed, &mut found);
        reactor.extend(found.iter().map(|arrival| arrival.item));
    }
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

#[test]
fn an_offered_reactor_is_taken_by_another_thread_or_reclaimed() {
    model(|| {
        let slot = ReactorSlot::new();
        let other = slot.clone();
        // This thread serves connection 1. Connection 2 is new, or returns.
        let poster = thread::spawn(move || other.return_connection(2, true, 2));
        match slot.mailbox.park(Vec::new()) {
            Err(mut reactor) => {
                reactor.push(1);
                slot.drive(reactor, &[], 2);
            }
            Ok(()) => match slot.mailbox.reclaim() {
                Some(mut reactor) => {
                    reactor.push(1);
                    slot.drive(reactor, &[], 2);
                }
                // The poster drives the reactor, and waits for connection 1.
                None => slot.return_connection(1, true, 2),
            },
        }
        poster.join().expect("no panic");
    });
}

#[test]
fn a_thread_may_wait_for_messages_of_its_parked_reactor() {
    model(|| {
        let slot = ReactorSlot::new();
        let (other, lock) = (slot.clone(), Arc::new(WaitWord::new(0)));
        let freed = lock.clone();
        let poster = thread::spawn(move || {
            // Connection 2 releases the lock that connection 1, served by the other thread, waits for.
            match other.mailbox.post(Arrival { token: Some(2), item: 2, is_ready: true }) {
                Posted::Take(_) => freed.set_and_wake(1),
                Posted::Wake => other.waker.set_and_wake(1),
                Posted::Quiet | Posted::Closed(_) => panic!("its driver sleeps, or it is left"),
            }
        });
        match slot.mailbox.park(Vec::new()) {
            Err(reactor) => slot.drive_until(reactor, 2),
            Ok(()) => lock.wait(0, None),
        }
        poster.join().expect("no panic");
    });
}

#[test]
fn an_event_for_a_checked_out_connection_is_not_lost() {
    model(|| {
        let slot = ReactorSlot::new();
        let other = slot.clone();
        // The connection has no known work, so its return alone wakes no thread.
        let returner = thread::spawn(move || other.return_connection(1, false, 1));
        slot.drive(Vec::new(), &[1], 1);
        returner.join().expect("no panic");
    });
}

#[test]
fn one_wake_up_for_several_that_need_the_driver_is_enough() {
    model(|| {
        let slot = ReactorSlot::new();
        let posters = [1, 2].map(|connection| {
            let other = slot.clone();
            thread::spawn(move || other.return_connection(connection, true, 2))
        });
        slot.drive(Vec::new(), &[], 2);
        for poster in posters {
            poster.join().expect("no panic");
        }
    });
}

#[test]
fn a_job_given_to_a_thread_at_its_idle_limit_runs_once() {
    model(|| {
        let workers = Arc::new(WorkerPool::default());
        let other = workers.clone();
        let thread = thread::spawn(move || {
            let worker = WorkerSlot::with_job(1);
            let first = other.next_job(&worker, None);
            assert_eq!(first, Some(1), "what it was started for");
            // The thread waits for no time: it ends at once unless it has a job.
            other.next_job(&worker, Some(Duration::ZERO))
        });
        let refused = workers.submit(2).err();
        let done = thread.join().expect("no panic");
        assert_eq!(done.is_some(), refused.is_none(), "done {done:?}, refused {refused:?}");
        assert_eq!(done.or(refused), Some(2));
    });
}

#[test]
fn a_thread_that_rests_is_woken_by_its_job_or_by_the_end() {
    model(|| {
        let workers = Arc::new(WorkerPool::default());
        let other = workers.clone();
        let thread = thread::spawn(move || {
            let worker = WorkerSlot::with_job(1);
            let mut done = 0;
            while let Some(job) = other.next_job(&worker, None) {
                done += job;
            }
            done
        });
        let refused = workers.submit(10).is_err();
        workers.end();
        let done = thread.join().expect("no panic");
        assert_eq!(done, if refused { 1 } else { 11 });
    });
}

#[test]
fn an_offered_reactor_receives_the_connection_of_its_last_thread() {
    model(|| {
        let slot = ReactorSlot::new();
        let workers = Arc::new(WorkerPool::default());
        let (for_spare, other) = (slot.clone(), workers.clone());
        let spare = thread::spawn(move || {
            let worker = WorkerSlot::with_job(None);
            while let Some(job) = other.next_job(&worker, None) {
                if let Some(reactor) = job {
                    for_spare.drive(reactor, &[1], 2);
                }
            }
        });
        // Connection 2 is in its slot. This thread serves connection 1 and blocks.
        match workers.submit(Some(vec![2])) {
            Ok(()) => slot.return_connection(1, false, 2),
            Err(reactor) => {
                // No spare thread exists yet: this thread keeps the reactor.
                let mut reactor = reactor.expect("it was one");
                reactor.push(1);
                slot.drive(reactor, &[], 2);
            }
        }
        workers.end();
        spare.join().expect("no panic");
    });
}

/// Queues a commit, and acts as the committer if there is none. Returns the commits for which it waited.
fn commit(mailbox: &Mailbox<Reactor, usize, usize>, connection: usize) -> Vec<usize> {
    let (mut batch, mut answered) = (vec![connection], Vec::new());
    if mailbox.queue_commits(&mut batch) {
        assert!(batch.is_empty(), "they are the committer's now");
        return answered;
    }
    while !batch.is_empty() {
        answered.append(&mut batch);
        mailbox.next_commits(&mut batch);
    }
    answered
}

#[test]
fn every_commit_is_answered_once_by_one_committer_at_a_time() {
    model(|| {
        let mailbox = Arc::new(Mailbox::default());
        let threads = [1, 2].map(|connection| {
            let mailbox = mailbox.clone();
            thread::spawn(move || commit(&mailbox, connection))
        });
        let mut answered = commit(&mailbox, 3);
        for thread in threads {
            answered.extend(thread.join().expect("no panic"));
        }
        answered.sort_unstable();
        assert_eq!(answered, [1, 2, 3]);
        assert!(!mailbox.queue_commits(&mut vec![4]), "the committer has gone");
    });
}
