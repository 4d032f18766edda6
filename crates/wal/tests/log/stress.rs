//! Many threads, tickets of all kinds, no faults: a replay finds the record of every resolved ticket.
#![cfg(not(loom))]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use crate::common::*;
use azekura_base::{DurableLog, Lsn};
use azekura_io::FaultFs;
use azekura_wal::{Wal, WalOptions};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Appends `count` records and waits for them in a way that depends on `c`. Some records come after the
/// newest record of any client.
fn client(wal: &Arc<Wal>, c: u32, count: u64, newest: &AtomicU64) -> Records {
    let mut model = Records::new();
    let mut in_flight = std::collections::VecDeque::new();
    for n in 0..count {
        let body = body(c, n, 12 + (n as usize * 13 + c as usize) % 300);
        if n % 5 == 2 {
            wal.raise_floor(wal.log_buffer(), Lsn(newest.load(SeqCst)));
        }
        let commit = wal.append_commit(wal.log_buffer(), &body).expect("appends");
        let lsn = commit;
        newest.store(lsn.0, SeqCst);
        model.insert(lsn.0, body);
        match c % 5 {
            0 if n % 2 == 0 => wal.make_durable(lsn).expect("durable"),
            0 => wal.wait_acknowledged(commit).expect("acknowledged"),
            1 => block_on(wal.ticket(commit)).expect("durable"),
            2 => {
                in_flight.push_back(wal.ticket(commit));
                if in_flight.len() > 32 {
                    let ticket = in_flight.pop_front().expect("not empty");
                    let lsn = ticket.lsn();
                    ticket.wait().expect("durable");
                    assert!(wal.durable_lsn() >= lsn);
                }
            }
            3 => {
                // In a batch of eight, only the last ticket is waited for, or polled, without an earlier
                // flush request.
                let ticket = Wal::quiet_ticket_through(Arc::clone(wal), commit);
                match n % 16 {
                    7 => ticket.wait().expect("durable"),
                    15 => block_on(ticket).expect("durable"),
                    _ => drop(ticket),
                }
            }
            _ => {
                let mut ticket = pin!(wal.ticket(commit));
                let _ = ticket.as_mut().poll(&mut Context::from_waker(Waker::noop())); // then dropped
            }
        }
    }
    in_flight.into_iter().for_each(|ticket| ticket.wait().expect("durable"));
    model
}

fn stress(options: WalOptions, threads: u32, count: u64) {
    let fs = FaultFs::new();
    let (wal, newest) = (create(&fs, options.clone()), AtomicU64::new(0));
    let mut model: Records = std::thread::scope(|s| {
        let (wal, newest) = (&wal, &newest);
        let clients: Vec<_> = (0..threads).map(|c| s.spawn(move || client(wal, c, count, newest))).collect();
        clients.into_iter().flat_map(|c| c.join().expect("no panic")).collect()
    });
    let stats = wal.stats();
    assert_eq!((stats.records, stats.pending_futures), (model.len() as u64, 0), "{options:?}");
    let durable = wal.durable_lsn().0;
    let (found, mut records) = read(&fs.crash(u64::from(threads)), &[open_range(1, 1)], 1);
    assert!(found.last_lsn.0 >= durable);
    records.split_off(&(durable + 1));
    model.split_off(&(durable + 1));
    assert!(records == model);
    wal.close().expect("closes");
    let (found, _) = read(&fs.kill(), &[open_range(1, 1)], 1);
    assert_eq!((found.records, found.last_lsn.next()), (u64::from(threads) * count, wal.next_lsn()));
}

#[test]
fn every_ticket_that_resolved_is_found_by_the_replay() {
    for (log_buffers, streams, background) in
        [(1, 1, true), (2, 1, true), (4, 2, true), (4, 4, true), (1, 1, false), (4, 2, false)]
    {
        let first_segment_bytes = usize::is_multiple_of(log_buffers, 2).then_some(64 << 10);
        let options = WalOptions {
            background,
            segment_bytes: 512 << 10,
            first_segment_bytes,
            ..small(log_buffers, streams)
        };
        stress(options, 8, 1000);
    }
}

#[test]
fn more_threads_than_log_buffers_share_their_buffers() {
    stress(WalOptions { background: true, segment_bytes: 512 << 10, ..small(2, 1) }, 40, 200);
}

#[test]
fn an_append_to_a_full_buffer_waits_for_the_flusher() {
    let fs = FaultFs::new();
    let wal = create(&fs, WalOptions { background: true, ..small(1, 1) });
    for n in 0..3000 {
        wal.append(log_buffer(0), &body(0, n, 900)).expect("appends");
    }
    wal.make_durable(Lsn::MAX).expect("durable");
    assert!(wal.stats().flushes >= 3000 * 900 / 4096);
    assert_eq!(read(&fs.kill(), &[open_range(1, 1)], 1).0.last_lsn, Lsn(3000));
}

#[test]
fn the_last_ticket_may_go_inside_a_waker() {
    /// Holds the ticket's log, and drops it when woken, in the flusher's own thread.
    struct LastHandle(std::sync::Mutex<Option<Arc<Wal>>>, Thread);
    impl Wake for LastHandle {
        fn wake(self: Arc<Self>) {
            self.0.lock().expect("no panic").take();
            self.1.unpark();
        }
    }
    for _ in 0..20 {
        let fs = FaultFs::new();
        let wal = create(&fs, WalOptions { background: true, ..small(1, 1) });
        let lsn = wal.append(log_buffer(0), b"last").expect("appends");
        let mut ticket = Box::pin(wal.ticket(lsn));
        let last = Arc::new(LastHandle(std::sync::Mutex::new(Some(wal)), std::thread::current()));
        let waker = Waker::from(Arc::clone(&last));
        let mut context = Context::from_waker(&waker);
        while ticket.as_mut().poll(&mut context).is_pending() {
            std::thread::park();
        }
        drop(ticket);
        assert_eq!(read(&fs.kill(), &[open_range(1, 1)], 1).0.last_lsn, lsn);
    }
}
