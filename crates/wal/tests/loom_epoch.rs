//! Epochs: no commit is acknowledged before its whole epoch is durable in every stream. The commits of an
//! epoch are acknowledged together. No thread sleeps after its epoch is published.
#![cfg(loom)]

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use azekura_base::Lsn;
use azekura_base::sync::{Arc, thread};
use azekura_wal::durable_lsn::DurableHorizon;
use azekura_wal::epoch::EpochClock;
use azekura_wal::log_buffer::{Batch, LogBuffer};
use azekura_wal::options::Admission;

/// Two streams of one log buffer each. The disk is an atomic of `std`, which orders nothing in the model.
struct Log {
    horizon: DurableHorizon,
    buffers: [LogBuffer; 2],
    epochs: EpochClock,
    disk: AtomicU64,
}

impl Log {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            horizon: DurableHorizon::new(2, Lsn(1)),
            buffers: [LogBuffer::new(0, 1000), LogBuffer::new(1, 1000)],
            epochs: EpochClock::new(Lsn(1)),
            disk: AtomicU64::new(0),
        })
    }

    fn append(&self, log_buffer: usize) -> Lsn {
        self.buffers[log_buffer].append(&self.horizon, b"x", Admission::All).expect("room").0
    }

    fn flush(&self, log_buffer: usize) {
        let mut taken = Batch::default();
        self.buffers[log_buffer].take(&self.horizon, &mut taken, Admission::All);
        if taken.records > 0 {
            self.disk.fetch_or(1 << taken.first_lsn | 1 << taken.last_lsn, SeqCst);
        }
        self.buffers[log_buffer].mark_durable(&self.horizon);
        // The steps of `Log::acknowledge`.
        loom::sync::atomic::fence(SeqCst);
        self.epochs.publish(&self.horizon);
    }

    /// Checks that everything up to the published LSN is on disk. Returns that LSN.
    fn check(&self) -> u64 {
        let published = self.epochs.published().0;
        let disk = self.disk.load(SeqCst);
        (1..=published).for_each(|lsn| assert!(disk & 1 << lsn != 0, "{lsn} of {published} is not durable"));
        published
    }

    fn wait(&self, lsn: Lsn) {
        while self.epochs.published() < lsn {
            self.epochs.wait(lsn, || false);
        }
        self.check();
    }
}

fn model(bound: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(f);
}

#[test]
fn a_published_epoch_is_durable_in_every_stream() {
    model(3, || {
        let log = Log::new();
        let other = log.clone();
        let second = thread::spawn(move || {
            other.append(1);
            other.flush(1);
        });
        log.append(0);
        log.epochs.end(&log.horizon);
        log.flush(0);
        let published = log.check();
        second.join().expect("no panic");
        log.check();
        let boundary = log.epochs.boundary().0;
        assert!(published == 0 || published == boundary - 1, "EPOCH-1: {published} is no boundary");
        // Both flushes that the epoch needs have ended, or the second record was drawn after the epoch's end.
        assert_eq!(log.epochs.published().0, boundary - 1, "EPOCH-2: nobody is left to publish it");
    });
}

#[test]
fn a_committer_is_woken_by_whichever_stream_ends_its_epoch() {
    model(2, || {
        let log = Log::new();
        log.append(0);
        let lsn = log.append(1);
        log.epochs.end(&log.horizon);
        let flushers: Vec<_> = (0..2)
            .map(|stream| {
                let log = log.clone();
                thread::spawn(move || log.flush(stream))
            })
            .collect();
        log.wait(lsn);
        flushers.into_iter().for_each(|t| t.join().expect("no panic"));
    });
}

#[test]
fn an_epoch_does_not_end_before_the_last_one_is_published() {
    model(3, || {
        let log = Log::new();
        log.append(0);
        let other = log.clone();
        let ender = thread::spawn(move || {
            other.epochs.end(&other.horizon);
            let first = other.epochs.boundary();
            other.append(1);
            other.epochs.end(&other.horizon);
            // A new boundary means that the old one was published.
            assert!(other.epochs.boundary() == first || other.epochs.published().0 + 1 >= first.0);
        });
        log.flush(0);
        log.check();
        ender.join().expect("no panic");
        log.flush(0);
        log.flush(1);
        log.epochs.end(&log.horizon);
        log.epochs.publish(&log.horizon);
        assert_eq!(log.check(), 2);
    });
}

#[test]
fn a_failure_wakes_the_waiters_for_an_epoch() {
    model(3, || {
        let log = Log::new();
        let lsn = log.append(0);
        let failed = Arc::new(loom::sync::atomic::AtomicBool::new(false));
        let (other, has_failed) = (log.clone(), failed.clone());
        let waiter = thread::spawn(move || {
            while !has_failed.load(SeqCst) {
                other.epochs.wait(lsn, || has_failed.load(SeqCst));
            }
        });
        failed.store(true, SeqCst);
        // The steps of `Log::fail`.
        loom::sync::atomic::fence(SeqCst);
        log.epochs.wake_everyone();
        waiter.join().expect("no panic");
    });
}
