//! GATE-1 to GATE-4: an owner that excludes a key never meets a thread that serves the key, and no wake-up is
//! lost. A model has no time, so an owner that is not woken is a deadlock, which loom reports.
#![cfg(loom)]

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll, Wake, Waker};

use azekura_base::sync::atomic::AtomicU64;
use azekura_base::sync::atomic::Ordering::{Acquire, Relaxed};
use azekura_base::sync::{Arc, WaitWord, thread};
use azekura_latch::gate::Gate;

/// For each of two keys, whether the gate admits it.
type Keys = [bool; 2];

struct Model {
    gate: Gate<Keys>,
    /// Owner of key 0. Threads inside the gate must not see it change.
    owner: AtomicU64,
    steps: AtomicU64,
}

struct Parker(WaitWord);

impl Wake for Parker {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.set_and_wake(1);
    }
}

fn block_on(task: impl Future<Output = ()>) {
    let parker = std::sync::Arc::new(Parker(WaitWord::new(0)));
    let waker = Waker::from(std::sync::Arc::clone(&parker));
    let mut task = pin!(task);
    while task.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Pending {
        parker.0.wait(0, None);
        // The event is consumed before the next poll.
        parker.0.word().swap(0, Acquire);
    }
}

impl Model {
    fn step(&self) {
        // Relaxed: only a point at which threads can switch.
        self.steps.fetch_add(1, Relaxed);
    }

    /// Serves key 0 if the gate admits it; returns `true` if it did.
    fn serve(&self, stripe: usize) -> bool {
        let Some(entry) = self.gate.enter(stripe, |keys| keys[0]) else { return false };
        self.look();
        if entry.admits(|keys| keys[0]) {
            self.look();
        }
        drop(entry);
        true
    }

    fn look(&self) {
        // Relaxed: the gate's mutex provides the ordering (GATE-2).
        self.step();
        assert_eq!(self.owner.load(Relaxed), 0, "GATE-2: served at a node that is no owner");
        self.step();
        assert_eq!(self.owner.load(Relaxed), 0, "GATE-2: served at a node that is no owner");
    }

    /// Transfers key 0 to the other owner.
    fn give_away(&self) {
        let drained = self.gate.exclude([false, true]);
        block_on(async {
            drained.await;
            // Relaxed: the gate's mutex provides the ordering.
            self.owner.store(1, Relaxed);
            self.step();
        });
    }
}

fn model(name: &str, at_least: usize, run: impl Fn(Arc<Model>) + Sync + Send + 'static) {
    let schedules = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&schedules);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(4);
    builder.check(move || {
        counted.fetch_add(1, SeqCst);
        let gate = Gate::new(2, [true, true]);
        run(Arc::new(Model { gate, owner: AtomicU64::new(0), steps: AtomicU64::new(0) }));
    });
    let schedules = schedules.load(SeqCst);
    println!("{name}: {schedules} schedules");
    assert!(schedules >= at_least, "{name}: only {schedules} schedules");
}

#[test]
fn a_key_moves_while_two_threads_serve_it() {
    model("two threads", 500, |model| {
        let others: Vec<_> = (0..2)
            .map(|stripe| {
                let model = Arc::clone(&model);
                thread::spawn(move || model.serve(stripe))
            })
            .collect();
        model.give_away();
        for other in others {
            other.join().expect("it ends");
        }
        assert!(!model.serve(0) && !model.serve(1), "GATE-1");
        assert!(model.gate.enter(0, |keys| keys[1]).is_some(), "the other key is served again");
    });
}

#[test]
fn a_stripe_of_two_threads_is_empty_when_both_have_left() {
    model("one stripe", 500, |model| {
        let others: Vec<_> = (0..2)
            .map(|_| {
                let model = Arc::clone(&model);
                thread::spawn(move || model.serve(1))
            })
            .collect();
        model.give_away();
        for other in others {
            other.join().expect("it ends");
        }
        assert!(!model.serve(1), "GATE-1");
    });
}

#[test]
fn two_exclusions_at_once_both_end() {
    model("two owners", 200, |model| {
        let other = {
            let model = Arc::clone(&model);
            thread::spawn(move || model.give_away())
        };
        let entry = model.gate.enter(0, |keys| keys[1]);
        drop(entry);
        block_on(model.gate.exclude([false, false]));
        other.join().expect("it ends");
    });
}
