//! The log on a machine. Claims of `azekura_wal::log`: an append to one log buffer never waits for an append
//! to another. A thread that reads the horizon never waits, whichever thread stops forever (hazard G10). A
//! thread that waits for durability waits for the threads that have drawn LSNs. A serial log has one buffer,
//! and all threads wait for its latch. Also tests schedules of appends, flushes and the horizon (HORIZON-1,
//! BUFFER-2).
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use azekura_base::sync::atomic::{AtomicU64, Ordering::SeqCst};
use azekura_base::{DurableLog, Lsn};
use azekura_io::MemFs;
use azekura_sim::LineAllocator;
use azekura_sim::explore::{Scene, at_random, exhaust, stop_everywhere_under};
use azekura_wal::durable_lsn::DurableHorizon;
use azekura_wal::epoch::EpochClock;
use azekura_wal::log_buffer::{Batch, LogBuffer};
use azekura_wal::options::Admission;
use azekura_wal::{LogBufferId, LogIdentity, LogProtocol, Wal, WalOptions};
use std::path::Path;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: LineAllocator = LineAllocator;

const WORKERS: usize = 3;
const RECORDS: u64 = 4;

fn log(protocol: LogProtocol) -> Arc<Wal> {
    let identity = LogIdentity { database_id: 1, incarnation: 1, first_lsn: Lsn(1) };
    let options = WalOptions {
        protocol,
        log_buffers: WORKERS,
        streams: WORKERS,
        segment_bytes: 64 << 10,
        buffer_bytes: 4 << 10,
        background: false,
        ..WalOptions::default()
    };
    Wal::create(Arc::new(MemFs::new()), Path::new("/wal"), identity, options).unwrap()
}

/// Appends to this worker's log buffer, and reads all LSNs and counters that can be read without waiting.
fn append(log: &Arc<Wal>, worker: usize) {
    let mut last = Lsn(0);
    for _ in 0..RECORDS {
        let lsn = log.append(LogBufferId::from_index(worker), b"a record").unwrap();
        assert!(lsn > last && lsn < log.next_lsn());
        assert!(log.durable_lsn() < lsn && log.acknowledged_lsn() < lsn, "nobody has flushed");
        assert!(!log.ticket(lsn).is_durable().unwrap());
        last = lsn;
    }
}

/// Threads append, each to the log buffer of worker `worker_of(thread)`, and then call `then`.
fn appending(protocol: LogProtocol, worker_of: fn(usize) -> usize, then: fn(&Wal)) -> Scene {
    let log = log(protocol);
    let mut scene = Scene::new();
    for thread in 0..WORKERS {
        let log = Arc::clone(&log);
        scene.thread(move || {
            append(&log, worker_of(thread));
            then(&log);
        });
    }
    scene.check(move || match (log.next_lsn().0, log.stats().records) {
        (13, 12) => Ok(()),
        other => Err(format!("next LSN and records {other:?}")),
    });
    scene
}

#[test]
fn g10_a_stop_in_an_append_blocks_no_other_log_buffer_and_no_horizon_read() {
    let scene = || appending(LogProtocol::PWal, |thread| thread, |_| ());
    let stopped = stop_everywhere_under(1..10, scene).unwrap();
    assert!(stopped.accesses >= 30, "{stopped:?}");
    assert!(stopped.was_in("durable_lsn.rs") && stopped.was_in("log_buffer.rs"), "{stopped:?}");
}

#[test]
fn g10_a_stop_in_an_append_blocks_its_log_buffer_and_durability_waits() {
    let one_worker = || appending(LogProtocol::PWal, |_| 0, |_| ());
    let durability =
        || appending(LogProtocol::PWal, |thread| thread, |log| log.make_durable(Lsn::MAX).unwrap());
    let one_buffer = || appending(LogProtocol::Serial, |thread| thread, |_| ());
    for scene in [&one_worker as &dyn Fn() -> Scene, &durability, &one_buffer] {
        let why = stop_everywhere_under(0..0, scene).unwrap_err();
        assert!(why.contains("no thread can continue") || why.contains("steps were not enough"), "{why}");
    }
}

/// The parts that appenders and flushers share. The disk is one bit per LSN.
struct Parts {
    horizon: DurableHorizon,
    epochs: EpochClock,
    buffers: [LogBuffer; 2],
    disk: AtomicU64,
}

impl Parts {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            horizon: DurableHorizon::new(2, Lsn(1)),
            epochs: EpochClock::new(Lsn(1)),
            buffers: [LogBuffer::new(0, 1000), LogBuffer::new(1, 1000)],
            disk: AtomicU64::new(0),
        })
    }

    fn append(&self, worker: usize) {
        self.buffers[worker].append(&self.horizon, b"x", Admission::All).unwrap();
    }

    fn flush(&self, worker: usize) {
        let mut taken = Batch::default();
        self.buffers[worker].take(&self.horizon, &mut taken, Admission::All);
        if taken.records > 0 {
            // One record or two. An LSN between them may belong to the other worker.
            assert!(taken.records <= 2);
            self.disk.fetch_or(1 << taken.first_lsn | 1 << taken.last_lsn, SeqCst);
        }
        self.buffers[worker].mark_durable(&self.horizon);
    }

    /// Checks that a flush has written every LSN that the horizon covers.
    fn check(&self) {
        let horizon = self.horizon.compute().0;
        let disk = self.disk.load(SeqCst);
        for lsn in 1..=horizon {
            assert!(disk & 1 << lsn != 0, "{lsn} is not durable, the horizon is {horizon}");
        }
    }

    fn turn_epoch(&self) {
        self.epochs.end(&self.horizon);
        let published = self.epochs.publish(&self.horizon);
        assert!(published < self.epochs.boundary() && published <= self.horizon.compute());
    }
}

#[test]
fn g10_a_stop_in_an_epoch_end_blocks_no_other_epoch_end() {
    let scene = || {
        let parts = Parts::new();
        let mut scene = Scene::new();
        for worker in [0, 1] {
            parts.append(worker);
            parts.flush(worker);
        }
        for _ in 0..3 {
            let parts = Arc::clone(&parts);
            scene.thread(move || (0..3).for_each(|_| parts.turn_epoch()));
        }
        scene.check(move || match parts.epochs.published() {
            Lsn(2) => Ok(()),
            other => Err(format!("{other} is published of 2")),
        });
        scene
    };
    let stopped = stop_everywhere_under(1..10, scene).unwrap();
    assert!(stopped.accesses >= 10 && stopped.was_in("epoch.rs"), "{stopped:?}");
}

/// Two workers append and flush, while a third thread reads the horizon.
fn flushing() -> Scene {
    let parts = Parts::new();
    let mut scene = Scene::new();
    for worker in [0, 1] {
        let parts = Arc::clone(&parts);
        scene.thread(move || {
            for _ in 0..2 {
                parts.append(worker);
                parts.flush(worker);
            }
        });
    }
    let theirs = Arc::clone(&parts);
    scene.thread(move || (0..4).for_each(|_| theirs.check()));
    scene.check(move || match parts.horizon.compute() {
        Lsn(4) => Ok(()),
        other => Err(format!("{other} is durable of 4")),
    });
    scene
}

#[test]
fn w1_the_horizon_covers_only_what_was_flushed_in_every_schedule_of_two_interruptions_and_in_random_ones() {
    let runs = exhaust(2, flushing).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(runs > 1000, "{runs}");
    at_random(500, 1, flushing).unwrap_or_else(|failure| panic!("{failure}"));
}

/// The whole log: each thread commits twice. A commit returns only when the horizon covers it, and every LSN
/// is drawn once.
fn committing(protocol: LogProtocol) -> Scene {
    let log = log(protocol);
    let mut scene = Scene::new();
    for thread in 0..WORKERS {
        let log = Arc::clone(&log);
        scene.thread(move || {
            for _ in 0..2 {
                let lsn = log.append(LogBufferId::from_index(thread), b"a commit").unwrap();
                log.wait_acknowledged(lsn).unwrap();
                assert!(log.acknowledged_lsn() >= lsn && log.durable_lsn() >= lsn, "{lsn} was acknowledged");
            }
        });
    }
    scene.check(move || match (log.durable_lsn(), log.stats().records) {
        (Lsn(6), 6) => Ok(()),
        other => Err(format!("durable and records {other:?}")),
    });
    scene
}

#[test]
fn acknowledged_commits_are_durable_in_random_schedules_of_three_committers() {
    let epoch = LogProtocol::Epoch { interval: LogProtocol::SILO_EPOCH };
    for protocol in [LogProtocol::PWal, LogProtocol::Serial, epoch] {
        at_random(100, 1, || committing(protocol)).unwrap_or_else(|failure| panic!("{protocol}: {failure}"));
    }
}
