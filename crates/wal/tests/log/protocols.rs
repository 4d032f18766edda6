//! Tests for every log protocol: a replay finds all acknowledged records, LSNs are dense, and each protocol's
//! own guarantees hold.
#![cfg(not(loom))]

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::common::*;
use azekura_base::{DurableLog, Lsn};
use azekura_io::FaultFs;
use azekura_wal::{LogProtocol, Ticket, Wal, WalOptions};

/// Appends by `threads` threads, which wait for some of the records. Checks that a replay returns all
/// records.
fn everything_comes_back(options: WalOptions, threads: u32) {
    let fs = FaultFs::new();
    let wal = create(&fs, options.clone());
    let model: Records = std::thread::scope(|s| {
        let wal = &wal;
        let clients: Vec<_> = (0..threads).map(|c| s.spawn(move || client(wal, c))).collect();
        clients.into_iter().flat_map(|c| c.join().expect("no panic")).collect()
    });
    assert_eq!(wal.stats().records, model.len() as u64);
    wal.close().expect("closes");
    let (found, records) = read(&fs.kill(), &[open_range(1, 1)], 1);
    assert_eq!(found.last_lsn.0, model.len() as u64, "{options:?}");
    assert!(records == model, "{options:?}");
}

fn client(wal: &Arc<Wal>, c: u32) -> Records {
    let mut model = Records::new();
    for n in 0..300 {
        let body = body(c, n, 12 + (n as usize * 29) % 700);
        let lsn = wal.append(wal.log_buffer(), &body).expect("appends");
        model.insert(lsn.0, body);
        match n % 10 {
            3 => wal.wait_acknowledged(lsn).expect("acknowledged"),
            6 => wal.ticket(lsn).wait().expect("acknowledged"),
            8 => wal.make_durable(lsn).expect("durable"),
            _ => continue,
        }
        assert!(wal.durable_lsn() >= lsn);
    }
    model
}

#[test]
fn appended_records_are_read_back_from_every_log() {
    for protocol in protocols() {
        for background in [false, true] {
            let options = WalOptions { protocol, background, segment_bytes: 256 << 10, ..small(3, 2) };
            everything_comes_back(options, 6);
        }
    }
}

#[test]
fn a_bound_for_lsns_is_not_above_the_next_one_and_rises_with_what_is_durable() {
    for protocol in protocols() {
        let fs = FaultFs::new();
        let wal = create(&fs, WalOptions { protocol, background: false, ..small(2, 2) });
        assert_eq!(wal.lsn_bound(), wal.next_lsn(), "{protocol}: nothing was drawn");
        let first = wal.append(wal.log_buffer(), b"one").expect("appends");
        let second = wal.append(wal.log_buffer(), b"two").expect("appends");
        assert!(wal.lsn_bound() <= first, "{protocol}: neither is durable");
        wal.make_durable(second).expect("durable");
        assert_eq!(wal.lsn_bound(), second.next(), "{protocol}");
        assert_eq!(wal.append(wal.log_buffer(), b"three").expect("appends"), second.next(), "{protocol}");
    }
}

#[test]
fn a_serial_log_has_one_buffer_and_one_file_with_all_settings() {
    let fs = FaultFs::new();
    let wal = create(&fs, WalOptions { protocol: LogProtocol::Serial, ..small(4, 3) });
    let stats = wal.stats();
    assert_eq!((stats.protocol, stats.log_buffers, stats.streams), (LogProtocol::Serial, 1, 1));
}

#[test]
fn a_commit_is_acknowledged_when_its_epoch_is_over_and_not_before() {
    let protocol = LogProtocol::Epoch { interval: Duration::from_secs(3600) };
    let wal = create(&FaultFs::new(), WalOptions { protocol, background: true, ..small(2, 2) });
    let lsn = wal.append(log_buffer(0), b"commit").expect("appends");
    let ticket = wal.ticket(lsn);
    wal.make_durable(lsn).expect("durable");
    assert_eq!(wal.durable_lsn(), lsn);
    assert_eq!(ticket.is_durable(), Ok(false), "its epoch goes on");
    wal.request_flush(); // ends the epoch
    ticket.wait().expect("acknowledged");
    assert_eq!(wal.stats().epochs, 1);
}

#[test]
fn epochs_end_by_themselves_and_rest_when_nothing_is_logged() {
    let protocol = LogProtocol::Epoch { interval: Duration::from_millis(1) };
    let wal = create(&FaultFs::new(), WalOptions { protocol, background: true, ..small(3, 2) });
    for n in 0..20 {
        let lsn = wal.append(log_buffer(n), b"commit").expect("appends");
        wal.wait_acknowledged(lsn).expect("acknowledged");
    }
    let ended = wal.stats().epochs;
    assert!((1..=20).contains(&ended), "{ended}");
    wal.wait_acknowledged(Lsn::MAX).expect("nothing to wait for");
    assert_eq!(wal.stats().epochs, ended);
}

#[test]
fn a_closing_log_releases_all_waiters() {
    for protocol in protocols() {
        let wal = create(&FaultFs::new(), WalOptions { protocol, background: true, ..small(2, 2) });
        std::thread::scope(|s| {
            for c in 0..4 {
                let wal = &wal;
                s.spawn(move || {
                    // Until the log is closed by the other thread.
                    while let Ok(lsn) = wal.append(log_buffer(c), b"x") {
                        if wal.wait_acknowledged(lsn).is_err() {
                            break;
                        }
                    }
                });
            }
            while wal.durable_lsn() < Lsn(20) {
                std::thread::yield_now();
            }
            wal.close().expect("closes");
        });
    }
}

#[test]
fn a_lone_committer_leads_its_flush_without_a_thread_switch() {
    assert_one_write_each_and_nobody_woken(|wal, n| {
        wal.append(log_buffer(0), &body(0, n, 40)).expect("appends");
        let commit = wal.append(log_buffer(0), &body(0, n, 12)).expect("appends");
        wal.wait_acknowledged(commit).expect("acknowledged");
    });
}

/// Does `work` two hundred times and checks that each makes one write. The log has no other reason to write:
/// `max_delay` is an hour.
fn assert_one_write_each_and_nobody_woken(work: impl Fn(&Arc<Wal>, u64)) {
    for background in [false, true] {
        let max_delay = Duration::from_secs(3600);
        let options = WalOptions { background, max_delay, segment_bytes: 4 << 20, ..small(2, 1) };
        let wal = create(&FaultFs::new(), options);
        let before = wal.stats();
        (0..200).for_each(|n| work(&wal, n));
        let after = wal.stats();
        let costs = (after.chunks - before.chunks, after.threads_woken - before.threads_woken);
        assert_eq!(costs, (200, 0), "writes, and threads woken");
    }
}

#[test]
fn commits_with_quiet_tickets_are_one_write_of_their_waiter() {
    assert_one_write_each_and_nobody_woken(|wal, n| {
        let tickets: Vec<_> = (0..10)
            .map(|i| wal.append(log_buffer(0), &body(i, n, 12)).expect("appends"))
            .map(|lsn| Wal::quiet_ticket_through(Arc::clone(wal), lsn))
            .collect();
        let is_none_durable = tickets.iter().all(|ticket| ticket.is_durable() == Ok(false));
        assert!(is_none_durable, "nobody had a reason to write");
        let newest = tickets.into_iter().reduce(Ticket::max).expect("there are ten");
        newest.wait().expect("acknowledged");
    });
}

#[test]
fn a_quiet_ticket_that_is_awaited_has_itself_flushed() {
    for protocol in protocols() {
        let long = Duration::from_secs(3600);
        let wal = create(
            &FaultFs::new(),
            WalOptions { protocol, background: true, max_delay: long, ..small(2, 2) },
        );
        for n in 0..50 {
            let lsn = wal.append(log_buffer(n), b"commit").expect("appends");
            let mut ticket = std::pin::pin!(Wal::quiet_ticket_through(Arc::clone(&wal), lsn));
            let mut context = Context::from_waker(Waker::noop());
            // The first poll requests the flush; there is no other request.
            while ticket.as_mut().poll(&mut context).is_pending() {
                std::thread::yield_now();
            }
            assert!(wal.acknowledged_lsn() >= lsn);
        }
    }
}
