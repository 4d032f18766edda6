//! TICKET-1: a task that awaits a commit is woken when the commit is durable, regardless of which flush ends
//! last.
#![cfg(loom)]

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Wake, Waker};

use azekura_base::Lsn;
use azekura_base::sync::atomic::fence;
use azekura_base::sync::{Arc, thread};
use azekura_wal::durable_lsn::DurableHorizon;
use azekura_wal::log_buffer::{Batch, LogBuffer};
use azekura_wal::options::Admission;
use azekura_wal::ticket::Wakers;

/// Number of wake-ups of the task. An atomic of `std`, which orders nothing in the model.
#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

struct Log {
    horizon: DurableHorizon,
    buffers: Vec<LogBuffer>,
    wakers: Wakers,
}

impl Log {
    /// Returns a log with one record in each log buffer.
    fn new(log_buffers: usize) -> Arc<Self> {
        let log = Self {
            horizon: DurableHorizon::new(log_buffers, Lsn(1)),
            buffers: (0..log_buffers).map(|w| LogBuffer::new(w, 1000)).collect(),
            wakers: Wakers::default(),
        };
        for buffer in &log.buffers {
            buffer.append(&log.horizon, b"x", Admission::All).expect("room");
        }
        Arc::new(log)
    }

    /// Flushes a log buffer, with the steps of `Log::lead`.
    fn flush(&self, log_buffer: usize) {
        self.buffers[log_buffer].take(&self.horizon, &mut Batch::default(), Admission::All);
        self.buffers[log_buffer].mark_durable(&self.horizon);
        fence(SeqCst);
        self.wakers.wake_through(self.horizon.compute());
    }

    /// Polls as `Ticket::poll` does, with the rule of `Log::is_acknowledged`. Returns `true` if the record is
    /// durable.
    fn poll(&self, lsn: Lsn, id: &mut Option<u64>, waker: &Waker) -> bool {
        self.wakers.poll(lsn, id, waker, || self.horizon.has_reached(lsn))
    }

    /// Polls with a check that is too weak for a sleeper: the horizon as last computed.
    fn poll_known(&self, lsn: Lsn, id: &mut Option<u64>, waker: &Waker) -> bool {
        self.wakers.poll(lsn, id, waker, || self.horizon.reached() >= lsn)
    }
}

type Poll = fn(&Log, Lsn, &mut Option<u64>, &Waker) -> bool;

fn the_last_flush_wakes(log_buffers: usize, poll: Poll) {
    let log = Log::new(log_buffers);
    let flushers: Vec<_> = (0..log_buffers)
        .map(|log_buffer| {
            let log = log.clone();
            thread::spawn(move || log.flush(log_buffer))
        })
        .collect();
    let woken = std::sync::Arc::new(Woken::default());
    let lsn = Lsn(log_buffers as u64); // the last LSN drawn, which needs every flush
    let is_durable = poll(&log, lsn, &mut None, &Waker::from(woken.clone()));
    flushers.into_iter().for_each(|flusher| flusher.join().expect("no panic"));
    assert!(log.horizon.has_reached(lsn));
    assert!(is_durable || woken.0.load(SeqCst) == 1, "a task sleeps though its commit is durable");
}

#[test]
fn a_task_that_registers_while_its_record_is_flushed_is_woken_or_sees_it() {
    loom::model(|| the_last_flush_wakes(1, Log::poll));
}

/// The negative control: the model detects a check that is too weak (TICKET-1).
#[test]
#[should_panic(expected = "a task sleeps though its commit is durable")]
fn a_look_at_the_horizon_as_last_computed_would_lose_the_wake_up() {
    loom::model(|| the_last_flush_wakes(1, Log::poll_known));
}

#[test]
fn a_task_whose_record_needs_two_flushes_is_woken_by_the_later_one() {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(3);
    bounded.check(|| the_last_flush_wakes(2, Log::poll));
}

#[test]
fn a_task_that_was_forgotten_is_not_woken() {
    loom::model(|| {
        let log = Log::new(1);
        let woken = std::sync::Arc::new(Woken::default());
        let mut id = None;
        let is_durable = log.poll(Lsn(1), &mut id, &Waker::from(woken.clone()));
        assert!(!is_durable);
        log.wakers.forget(Lsn(1), id.expect("registered"));
        let other = log.clone();
        thread::spawn(move || other.flush(0)).join().expect("no panic");
        assert_eq!(woken.0.load(SeqCst), 0);
    });
}
