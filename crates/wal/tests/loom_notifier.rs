//! W3: a flusher never rests or ends while a request is open, and never ends while a record is buffered
//! (NOTIFY-1). There is one flusher at a time (NOTIFY-2).
#![cfg(loom)]

use std::time::Duration;

use azekura_base::Lsn;
use azekura_base::sync::{Arc, Mutex, thread};
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
        self.buffer.mark_durable(&self.horizon);
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
        // A model has no time: a rest that no request ends is a deadlock, which the model reports.
        let flusher = thread::spawn(move || {
            while other.horizon.compute() < Lsn(2) {
                if other.notifier.take_request() {
                    other.flush();
                } else {
                    other.notifier.rest(Duration::from_secs(1), || false);
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
                log.notifier.rest(Duration::from_secs(1), || false);
            }
        }
        first.join().expect("no panic");
        second.join().expect("no panic");
    });
}

/// The flusher's jobs, each in its own thread.
type Jobs = std::sync::Arc<Mutex<Vec<thread::JoinHandle<()>>>>;

/// Returns a log with a notifier that starts `flush` in a job.
fn with_jobs(flush: fn(&Log)) -> (std::sync::Arc<Log>, Jobs) {
    let log = Log {
        horizon: DurableHorizon::new(1, Lsn(1)),
        buffer: LogBuffer::new(0, 1000),
        notifier: Notifier::new(),
    };
    let (log, jobs) = (std::sync::Arc::new(log), Jobs::default());
    let (of_job, started) = (std::sync::Arc::downgrade(&log), jobs.clone());
    log.notifier.starts(move || {
        let log = of_job.upgrade().expect("the requester has it");
        started.lock().push(thread::spawn(move || flush(&log)));
    });
    (log, jobs)
}

fn join(jobs: &Jobs) {
    loop {
        let Some(job) = jobs.lock().pop() else { return };
        job.join().expect("no panic");
    }
}

#[test]
fn each_request_is_served_by_one_job_at_a_time_which_ends_without_work() {
    model(|| {
        fn serve(log: &Log) {
            loop {
                if log.notifier.take_request() {
                    log.flush();
                } else if log.notifier.sleep(|| false) {
                    return;
                }
            }
        }
        let (log, jobs) = with_jobs(serve);
        let other = log.clone();
        let second = thread::spawn(move || {
            other.buffer.append(&other.horizon, b"x", Admission::All).expect("room");
            other.notifier.request();
        });
        log.buffer.append(&log.horizon, b"x", Admission::All).expect("room");
        log.notifier.request();
        second.join().expect("no panic");
        join(&jobs);
        assert_eq!(log.horizon.compute(), Lsn(2));
    });
}

#[test]
fn w3_the_first_record_of_an_idle_log_buffer_starts_the_flusher() {
    loom::model(|| {
        fn serve(log: &Log) {
            loop {
                if !log.horizon.is_idle(0) {
                    log.flush();
                } else if log.notifier.sleep(|| !log.horizon.is_idle(0)) {
                    return;
                }
            }
        }
        let (log, jobs) = with_jobs(serve);
        for _ in 0..2 {
            let (_, was_idle) = log.buffer.append(&log.horizon, b"x", Admission::All).expect("room");
            if was_idle {
                log.notifier.wake_from_sleep();
            }
        }
        join(&jobs);
        assert_eq!(log.horizon.compute(), Lsn(2));
    });
}
