//! W3: a flusher never sleeps over a request, nor without limit over a record.
#![cfg(loom)]

use std::time::Duration;

use azekura_base::Lsn;
use azekura_base::sync::{Arc, thread};
use azekura_wal::durable_lsn::DurableHorizon;
use azekura_wal::log_buffer::{Batch, LogBuffer};
use azekura_wal::notifier::Notifier;
use azekura_wal::options::Admission;

struct Log {
    horizon: DurableHorizon,
    buffer: LogBuffer,
    notifier: Notifier,
}

impl Log {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            horizon: DurableHorizon::new(1, Lsn(1)),
            buffer: LogBuffer::new(0, 1000),
            notifier: Notifier::new(),
        })
    }

    fn flush(&self) {
        let mut taken = Batch::default();
        self.buffer.take(&self.horizon, &mut taken, Admission::All);
        self.buffer.settle(&self.horizon);
    }
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

#[test]
fn every_requested_record_is_flushed_though_the_flusher_may_sleep_without_end() {
    model(|| {
        let log = Log::new();
        let other = log.clone();
        // A model has no time: a rest with a limit that nobody ends is a deadlock, and so is found.
        let flusher = thread::spawn(move || {
            while other.horizon.compute() < Lsn(2) {
                if other.notifier.take_request() {
                    other.flush();
                } else {
                    other.notifier.rest(Some(Duration::from_secs(1)), || false);
                }
            }
        });
        for _ in 0..2 {
            log.buffer.append(&log.horizon, b"x", Admission::All).expect("room");
            log.notifier.request();
        }
        flusher.join().expect("no panic");
    });
}

#[test]
fn two_requesters_share_one_flusher() {
    model(|| {
        let log = Log::new();
        let request = |log: Arc<Log>| {
            move || {
                log.buffer.append(&log.horizon, b"x", Admission::All).expect("room");
                log.notifier.request();
            }
        };
        let first = thread::spawn(request(log.clone()));
        let second = thread::spawn(request(log.clone()));
        while log.horizon.compute() < Lsn(2) {
            if log.notifier.take_request() {
                log.flush();
            } else {
                log.notifier.rest(Some(Duration::from_secs(1)), || false);
            }
        }
        first.join().expect("no panic");
        second.join().expect("no panic");
    });
}

#[test]
fn w3_the_first_record_of_an_idle_worker_ends_a_sleep_without_limit() {
    loom::model(|| {
        let log = Log::new();
        let other = log.clone();
        let flusher = thread::spawn(move || {
            while other.horizon.is_idle(0) {
                other.notifier.rest(None, || !other.horizon.is_idle(0));
            }
        });
        let (_, was_idle) = log.buffer.append(&log.horizon, b"x", Admission::All).expect("room");
        assert!(was_idle);
        log.notifier.wake_from_sleep();
        flusher.join().expect("no panic");
    });
}
