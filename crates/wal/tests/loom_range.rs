//! RANGE-1 to RANGE-3 and RANGE-6, in all interleavings. Each LSN up to the horizon is a record or in a gap
//! on disk. Page LSNs increase. A transaction that acquires a lock comes after the commit that released the
//! lock. Records that a flush does not take are above the LSN that the flush covers.
#![cfg(loom)]

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use azekura_base::Lsn;
use azekura_base::sync::{Arc, Mutex, thread};
use azekura_wal::durable_lsn::DurableHorizon;
use azekura_wal::log_buffer::{Batch, LogBuffer};
use azekura_wal::lsn_gap::LsnGapCursor;
use azekura_wal::lsn_range::Order;
use azekura_wal::options::Admission;

/// A log of two log buffers that both draw two LSNs at once, with a disk of one bit per LSN, a page, and a
/// lock.
struct Log {
    horizon: DurableHorizon,
    buffers: [LogBuffer; 2],
    /// An atomic of `std`, which orders nothing in the model.
    disk: AtomicU64,
    /// LSN of the page's last change; the mutex is the page latch.
    page: Mutex<u64>,
    /// LSN of the commit that released the lock last; the mutex is the lock.
    lock: Mutex<u64>,
}

/// Number of LSNs that each log buffer uses before the model begins, so that it expects batches of two.
const BEFORE: u64 = 2;

impl Log {
    fn new() -> Arc<Self> {
        let buffers = [0, 1].map(|log_buffer| LogBuffer::new(log_buffer, 1000).with_ranges(2));
        let horizon = DurableHorizon::new(2, Lsn(1));
        let log =
            Self { horizon, buffers, disk: AtomicU64::new(0), page: Mutex::new(0), lock: Mutex::new(0) };
        for log_buffer in 0..2 {
            (0..BEFORE).for_each(|_| _ = log.append(log_buffer, Order::Newest));
            log.flush(log_buffer);
        }
        assert_eq!(log.horizon.compute(), Lsn(2 * BEFORE));
        Arc::new(log)
    }

    fn append(&self, log_buffer: usize, order: Order) -> u64 {
        let buffer = &self.buffers[log_buffer];
        buffer.append_in_order(&self.horizon, b"x", Admission::All, order).expect("room").lsn.0
    }

    /// Appends a record, in the open range if possible.
    fn append_next(&self, log_buffer: usize) -> u64 {
        self.append(log_buffer, Order::After(Lsn(0)))
    }

    /// Writes the buffered records and gaps. Returns the last LSN that the flush took, or 0, and the LSN
    /// below which the flush covers everything.
    fn flush(&self, log_buffer: usize) -> (u64, u64) {
        let mut taken = Batch::default();
        let covers = self.buffers[log_buffer].take(&self.horizon, &mut taken, Admission::All);
        if taken.records > 0 {
            assert!(taken.records <= 2, "a batch is its first and last");
            let gaps = LsnGapCursor::new(taken.first_lsn, taken.gaps.bytes());
            let gap: u64 = gaps.flat_map(|gap| gap.first..=gap.last).map(|lsn| 1 << lsn).sum();
            self.disk.fetch_or(1 << taken.first_lsn | 1 << taken.last_lsn | gap, SeqCst);
        }
        self.buffers[log_buffer].mark_durable(&self.horizon);
        (taken.last_lsn, covers)
    }

    fn check(&self) {
        let horizon = self.horizon.compute().0;
        let disk = self.disk.load(SeqCst);
        for lsn in 1..=horizon {
            assert!(disk & 1 << lsn != 0, "{lsn} is not on disk, the horizon is {horizon}");
        }
    }

    /// Changes the page, and checks that its LSN increases.
    fn change_page(&self, log_buffer: usize) {
        let mut page = self.page.lock();
        let lsn = self.append(log_buffer, Order::After(Lsn(*page)));
        assert!(lsn > *page, "the page goes back from {page} to {lsn}", page = *page);
        *page = lsn;
    }

    /// Acquires the lock, commits, and releases the lock.
    fn commit(&self, log_buffer: usize) {
        let mut lock = self.lock.lock();
        self.buffers[log_buffer].raise_floor(Lsn(*lock));
        let lsn = self.append_next(log_buffer);
        assert!(lsn > *lock, "the commit {lsn} is below {lock}, on which it depends", lock = *lock);
        *lock = lsn;
    }
}

#[test]
fn every_lsn_below_the_horizon_is_on_disk_as_a_record_or_a_gap() {
    loom::model(|| {
        let log = Log::new();
        let other = log.clone();
        let ranged = thread::spawn(move || {
            other.append_next(0);
            other.flush(0);
        });
        let other = log.clone();
        let newest = thread::spawn(move || {
            other.append(1, Order::Newest);
            other.flush(1);
        });
        log.check();
        ranged.join().expect("no panic");
        newest.join().expect("no panic");
        log.check();
        assert_eq!(
            log.horizon.compute(),
            Lsn(2 * BEFORE + 3),
            "two of one log buffer, one gap, and one of the other"
        );
    });
}

#[test]
fn a_range_that_was_opened_before_a_flush_is_not_used_after_it() {
    loom::model(|| {
        let log = Log::new();
        log.append_next(0);
        let other = log.clone();
        let flusher = thread::spawn(move || other.flush(0));
        let lsn = log.append_next(0);
        log.check();
        let (last, covers) = flusher.join().expect("no panic");
        assert!(
            lsn <= last || lsn >= covers,
            "{lsn} is neither in what was taken, up to {last}, nor above {covers}"
        );
        log.check();
        log.flush(0);
        log.check();
        assert!(log.horizon.compute() >= Lsn(lsn));
    });
}

#[test]
fn w7_a_page_that_log_buffers_with_ranges_change_in_turn_never_goes_back() {
    loom::model(|| {
        let log = Log::new();
        log.append_next(0); // leaves its range open
        let other = log.clone();
        let changer = thread::spawn(move || {
            other.change_page(1);
            other.change_page(1);
        });
        log.change_page(0);
        changer.join().expect("no panic");
        log.change_page(0);
    });
}

#[test]
fn w8_a_commit_follows_the_commit_that_released_its_lock() {
    loom::model(|| {
        let log = Log::new();
        let other = log.clone();
        let committer = thread::spawn(move || {
            other.commit(1);
            other.flush(1);
        });
        log.commit(0); // leaves its range open
        log.commit(0);
        committer.join().expect("no panic");
        log.flush(0);
        log.check();
    });
}
