//! REST-1 to REST-3 and TICKET-2: a commit is acknowledged when its own worker's log and what it rests on are
//! on disk, however appends and flushes of two workers meet; and a task that awaits such a commit is woken.
#![cfg(loom)]

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Wake, Waker};

use azekura_base::Lsn;
use azekura_base::sync::atomic::fence;
use azekura_base::sync::{Arc, Mutex, thread};
use azekura_wal::CommitPoint;
use azekura_wal::durable_lsn::DurableHorizon;
use azekura_wal::lsn_range::Order;
use azekura_wal::options::Admission;
use azekura_wal::ticket::Wakers;
use azekura_wal::worker_buffer::{Batch, WorkerBuffer};

/// A log of two workers with a stream each, a bit per LSN for a disk, and one page.
struct Log {
    horizon: DurableHorizon,
    buffers: Vec<WorkerBuffer>,
    wakers: Wakers,
    /// std's, so that it orders nothing in the model.
    disk: AtomicU64,
    /// LSN of the page's last change; the latch is the mutex.
    page: Mutex<u64>,
}

impl Log {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            horizon: DurableHorizon::new(2, Lsn(1)),
            buffers: (0..2).map(|w| WorkerBuffer::tracking(w, 1000)).collect(),
            wakers: Wakers::default(),
            disk: AtomicU64::new(0),
            page: Mutex::new(0),
        })
    }

    /// Changes the page, as a mini-transaction does; the commit, and the change before it on the page.
    fn change_page(&self, worker: usize) -> (CommitPoint, u64) {
        let mut page = self.page.lock();
        let (buffer, before) = (&self.buffers[worker], *page);
        let rests_on = buffer.foreign(&self.horizon, Lsn(before));
        let done = buffer
            .append_in_order(&self.horizon, b"x", Admission::All, Order::Newest, rests_on)
            .expect("room");
        *page = done.lsn.0;
        (CommitPoint::of_worker(done.lsn, worker, done.rests_on), before)
    }

    /// The steps of `Log::lead`.
    fn flush(&self, worker: usize) {
        let (buffer, mut taken) = (&self.buffers[worker], Batch::default());
        buffer.take(&self.horizon, &mut taken, Admission::All);
        if taken.records > 0 {
            assert!(taken.records <= 2, "a batch is its first and last");
            self.disk.fetch_or(1 << taken.first_lsn | 1 << taken.last_lsn, SeqCst);
        }
        buffer.settle(&self.horizon);
        fence(SeqCst);
        let mark = self.horizon.pending(std::iter::once(worker)).unwrap_or(u64::MAX);
        self.wakers.hand_over(worker, mark);
        fence(SeqCst);
        self.wakers.wake_through(self.horizon.compute());
    }

    /// The rule of `Log::is_acknowledged`.
    fn is_acknowledged(&self, commit: CommitPoint) -> bool {
        self.horizon.covers(commit)
    }

    /// If the commit is acknowledged, it is on disk, and so is the page's change before it.
    fn check(&self, (commit, before): (CommitPoint, u64)) {
        if self.is_acknowledged(commit) {
            let disk = self.disk.load(SeqCst);
            assert!(disk & 1 << commit.lsn().0 != 0, "{commit:?} is acknowledged and not durable");
            assert!(before == 0 || disk & 1 << before != 0, "{commit:?} is acknowledged before {before}");
        }
    }
}

fn model(bound: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(f);
}

#[test]
fn a_commit_is_acknowledged_after_the_change_in_another_log_that_it_rests_on() {
    model(3, || {
        let log = Log::new();
        let other = log.clone();
        let first = thread::spawn(move || {
            let changed = other.change_page(0);
            other.flush(0);
            other.check(changed);
        });
        let changed = log.change_page(1);
        log.flush(1);
        log.check(changed);
        first.join().expect("no panic");
        log.check(changed);
    });
}

#[test]
fn threads_that_share_a_worker_rest_on_each_other_by_its_log_alone() {
    model(2, || {
        let log = Log::new();
        let _ = log.buffers[1].append(&log.horizon, b"of nobody's concern", Admission::All);
        let other = log.clone();
        let first = thread::spawn(move || other.check(other.change_page(0)));
        let changed = log.change_page(0);
        assert_eq!(changed.0.rests_on(), Lsn(0), "its own worker's");
        log.flush(0);
        assert!(log.is_acknowledged(changed.0), "it rests on nothing else");
        log.check(changed);
        first.join().expect("no panic");
    });
}

/// How often the task was woken. std's atomic, so that it orders nothing in the model.
#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_task_is_woken_whichever_of_the_two_logs_that_it_needs_is_written_last() {
    model(3, || {
        let log = Log::new();
        let _ = log.change_page(0);
        let (commit, before) = log.change_page(1);
        assert_eq!(commit.rests_on(), Lsn(before));
        let flushers: Vec<_> = (0..2)
            .map(|worker| {
                let log = log.clone();
                thread::spawn(move || log.flush(worker))
            })
            .collect();
        let woken = std::sync::Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        // The step of `Ticket::poll`.
        let is_in_own = || log.horizon.covers_own(commit);
        let is_durable =
            log.wakers.poll(commit, &mut None, &waker, is_in_own, || log.is_acknowledged(commit));
        flushers.into_iter().for_each(|flusher| flusher.join().expect("no panic"));
        assert!(log.is_acknowledged(commit));
        assert!(is_durable || woken.0.load(SeqCst) == 1, "a task sleeps though its commit is durable");
    });
}
