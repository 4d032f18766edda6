//! W1: the horizon never covers a record that is not durable, in all interleavings with idle log buffers.
#![cfg(loom)]

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use azekura_base::Lsn;
use azekura_base::sync::{Arc, thread};
use azekura_wal::durable_lsn::DurableHorizon;
use azekura_wal::log_buffer::{Batch, LogBuffer};
use azekura_wal::options::Admission;

/// The disk: one bit per durable LSN. An atomic of `std`, which orders nothing in the model.
#[derive(Default)]
struct Disk(AtomicU64);

struct Log {
    horizon: DurableHorizon,
    buffers: [LogBuffer; 2],
    disk: Disk,
}

impl Log {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            horizon: DurableHorizon::new(2, Lsn(1)),
            buffers: [LogBuffer::new(0, 1000), LogBuffer::new(1, 1000)],
            disk: Disk::default(),
        })
    }

    fn append(&self, log_buffer: usize) -> u64 {
        self.buffers[log_buffer].append(&self.horizon, b"x", Admission::All).expect("room").0.0
    }

    fn flush(&self, log_buffer: usize) {
        let mut taken = Batch::default();
        self.buffers[log_buffer].take(&self.horizon, &mut taken, Admission::All);
        if taken.records > 0 {
            for lsn in [taken.first_lsn, taken.last_lsn] {
                self.disk.0.fetch_or(1 << lsn, SeqCst);
            }
        }
        self.buffers[log_buffer].mark_durable(&self.horizon);
    }

    fn check(&self) {
        let horizon = self.horizon.compute().0;
        let disk = self.disk.0.load(SeqCst);
        for lsn in 1..=horizon {
            assert!(disk & 1 << lsn != 0, "{lsn} is not durable, the horizon is {horizon}");
        }
    }
}

#[test]
fn w1_the_horizon_covers_only_what_is_durable() {
    loom::model(|| {
        let log = Log::new();
        let other = log.clone();
        let first = thread::spawn(move || {
            other.append(0);
            other.flush(0);
            other.append(0);
        });
        let other = log.clone();
        let second = thread::spawn(move || {
            other.append(1);
            other.flush(1);
        });
        log.check();
        log.check();
        first.join().expect("no panic");
        second.join().expect("no panic");
        log.check();
        log.flush(0);
        assert_eq!(log.horizon.compute(), Lsn(3));
    });
}

#[test]
fn records_appended_during_a_flush_keep_their_log_buffer_busy() {
    loom::model(|| {
        let log = Log::new();
        log.append(0);
        let other = log.clone();
        let flusher = thread::spawn(move || other.flush(0));
        log.append(0);
        log.check();
        flusher.join().expect("no panic");
        log.check();
        assert!(log.horizon.compute() == Lsn(2) || log.horizon.pending(0..1) == Some(2));
    });
}

#[test]
fn w1_a_committer_sees_the_mark_of_every_earlier_lsn() {
    loom::model(|| {
        let log = Log::new();
        let other = log.clone();
        let idle = thread::spawn(move || {
            other.append(0); // never flushed
        });
        let lsn = log.append(1);
        log.flush(1);
        let horizon = log.horizon.compute().0;
        assert!(horizon < lsn || log.disk.0.load(SeqCst) & 1 << lsn != 0);
        log.check();
        idle.join().expect("no panic");
        log.check();
        assert!(log.horizon.pending(0..2).is_some());
    });
}
