//! Tests of the hazards that the paper does not treat, one test each (unit tests of W1 and W4 are in
//! `durable_lsn`).
#![cfg(not(loom))]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use azekura_base::{DurableLog, LogFailed, Lsn};
use azekura_io::{FailKind, FaultFs, Fs, OpenOptions};
use azekura_wal::{AppendError, LogProtocol, Wal, WalOptions};

/// Waits with a generous limit, so that a broken log fails the test instead of hanging it.
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn append(wal: &Wal, w: usize, n: u64) -> Lsn {
    wal.append(log_buffer(w), &body(0, n, 40)).expect("appends")
}

#[test]
fn w1_idle_log_buffer_does_not_hold_the_horizon() {
    for (protocol, background) in protocols().into_iter().flat_map(|p| [(p, false), (p, true)]) {
        let wal = create(&FaultFs::new(), WalOptions { protocol, background, ..small(8, 4) });
        append(&wal, 5, 0);
        wal.make_durable(Lsn::MAX).expect("durable");
        for n in 1..50 {
            let lsn = append(&wal, 2, n); // 5 has logged and is idle now; the others never logged
            wal.wait_acknowledged(lsn).expect("durable");
            assert_eq!(wal.durable_lsn(), lsn, "{protocol}");
        }
    }
}

#[test]
fn w2_a_commit_flushes_the_records_of_an_open_transaction() {
    for (protocol, background) in protocols().into_iter().flat_map(|p| [(p, false), (p, true)]) {
        let fs = FaultFs::new();
        let max_delay = Duration::from_secs(3600);
        let wal = create(&fs, WalOptions { protocol, background, max_delay, ..small(2, 2) });
        append(&wal, 0, 1); // a transaction that never ends
        let commit = append(&wal, 1, 2);
        wal.wait_acknowledged(commit).expect("nobody else flushes log buffer 0");
        assert_eq!(wal.durable_lsn(), commit, "{protocol}");
        assert_eq!(read(&fs.kill(), &[open_range(1, 1)], 1).0.last_lsn, commit, "{protocol}");
    }
}

#[test]
fn w3_a_record_without_a_request_becomes_durable() {
    for (protocol, (log_buffers, streams)) in protocols().into_iter().flat_map(|p| [(p, (1, 1)), (p, (4, 2))])
    {
        let max_delay = Duration::from_millis(2);
        let options = WalOptions { protocol, background: true, max_delay, ..small(log_buffers, streams) };
        let wal = create(&FaultFs::new(), options);
        for round in 0..5 {
            let mut last = Lsn(0);
            for w in 0..log_buffers {
                last = append(&wal, w, round);
            }
            wait_until("the flusher comes by", || wal.durable_lsn() == last);
        }
    }
}

#[test]
fn a_buffer_that_is_more_than_half_full_is_written_without_a_request() {
    let max_delay = Duration::from_secs(3600);
    let options = WalOptions { background: true, max_delay, ..small(2, 2) };
    let half = options.buffer_bytes as u64 / 2;
    let wal = create(&FaultFs::new(), options);
    for round in 0..3 {
        let before = wal.stats().record_bytes;
        let mut last = Lsn(0);
        while wal.stats().record_bytes <= before + half {
            last = append(&wal, 1, round);
        }
        wait_until("the flusher", || wal.durable_lsn() == last);
    }
}

#[test]
fn w3_a_requested_flush_needs_no_further_traffic() {
    let long = Duration::from_secs(3600);
    for protocol in [LogProtocol::PWal, LogProtocol::Serial, LogProtocol::Epoch { interval: long }] {
        let options = WalOptions { protocol, background: true, max_delay: long, ..small(3, 3) };
        let wal = create(&FaultFs::new(), options);
        for n in 0..20 {
            let last = append(&wal, n as usize, n);
            let ticket = wal.ticket(last);
            if n % 2 == 0 || matches!(protocol, LogProtocol::Epoch { .. }) {
                wal.request_flush();
            }
            wait_until("the ticket", || ticket.is_durable() == Ok(true));
            assert_eq!(wal.durable_lsn(), last);
        }
    }
}

#[test]
fn w3_a_ticket_in_a_quiet_system_resolves_at_the_end_of_its_epoch() {
    let protocol = LogProtocol::Epoch { interval: Duration::from_millis(3) };
    let wal = create(&FaultFs::new(), WalOptions { protocol, background: true, ..small(3, 3) });
    for n in 0..10 {
        let ticket = wal.ticket(append(&wal, n as usize, n));
        wait_until("the epoch's end", || ticket.is_durable() == Ok(true));
    }
}

#[test]
fn w4_the_horizon_waits_for_the_slowest_log() {
    // The first flush of stream 0 fails, so its record is never durable. The record of stream 1 alone would
    // be.
    let fs = FaultFs::new();
    let wal = create(&fs, small(2, 2));
    let first = append(&wal, 0, 1);
    let second = append(&wal, 1, 2);
    fs.fail_at(1, FailKind::Io);
    let waiting = wal.make_durable(second);
    assert!(waiting.is_err() && wal.durable_lsn() < first, "{}", wal.durable_lsn());
}

#[test]
fn w5_records_above_the_cut_are_never_replayed() {
    let fs = FaultFs::new();
    let wal = create(&fs, small(2, 2));
    let acknowledged = append(&wal, 0, 1);
    wal.make_durable(acknowledged).expect("durable");
    // A missing LSN: 2 is in stream 0 and lost, 3 is in stream 1 and on disk.
    append(&wal, 0, 2);
    append(&wal, 1, 3);
    let stream = fs.clone();
    fs.cut_power_at(2);
    let _ = wal.make_durable(Lsn(3)); // writes one of the two streams
    let crashed = stream.crash(1);
    let (found, records) = read(&crashed, &[open_range(1, 1)], 1);
    assert!(found.last_lsn < Lsn(3) && found.max_lsn_seen >= found.last_lsn);
    // The next incarnation starts above all LSNs found, and its records are not mixed with the cut-off ones.
    let first = found.max_lsn_seen.0 + 1;
    let cut = closed_range(1, 1, found.last_lsn.0);
    let wal = try_create(&crashed, identity(2, first), small(2, 2)).expect("creates");
    for n in 0..10 {
        append(&wal, n as usize, 100 + n);
    }
    wal.make_durable(Lsn::MAX).expect("durable");
    for _ in 0..2 {
        let (again, both) = read(&crashed.kill(), &[cut, open_range(2, first)], 1);
        assert_eq!(again.last_lsn.0, first + 9);
        assert_eq!(both.len(), records.len() + 10);
        assert!(records.iter().all(|(lsn, body)| both[lsn] == *body));
        assert!((0..10).all(|n| both[&(first + n)] == body(0, 100 + n, 40)));
    }
}

#[test]
fn w6_stale_chunks_of_a_recycled_segment_never_pass() {
    let fs = FaultFs::new();
    let wal = create(&fs, small(1, 1));
    let mut last = Lsn(0);
    while wal.stats().segments_recycled < 4 {
        last = append(&wal, 0, last.0);
        wal.make_durable(last).expect("durable");
        wal.trim(last).expect("trims");
    }
    // The current segment is a recycled one, full of chunks that were valid at the same offsets.
    let (found, _) = read(&fs.kill(), &[open_range(1, 1)], last.0);
    assert_eq!((found.last_lsn, found.records, found.max_lsn_seen), (last, 1, last));
    // The same holds at the start of an incarnation that begins with recycled segments.
    let next = try_create(&fs, identity(2, last.0 + 1), small(1, 1)).expect("creates");
    assert!(next.stats().segments_recycled > 0);
    let (found, _) = read(&fs.kill(), &[open_range(2, last.0 + 1)], last.0 + 1);
    assert_eq!((found.last_lsn, found.records), (last, 0));
}

#[test]
fn w6_a_torn_chunk_ends_its_stream() {
    for seed in 0..40 {
        let fs = FaultFs::new();
        let wal = create(&fs, small(1, 1));
        append(&wal, 0, 1);
        wal.make_durable(Lsn(1)).expect("durable");
        for n in 2..50 {
            append(&wal, 0, n);
        }
        fs.cut_power_at(1);
        assert!(wal.make_durable(Lsn(49)).is_err());
        let (found, records) = read(&fs.crash(seed), &[open_range(1, 1)], 1);
        assert!(
            found.last_lsn == Lsn(1) || found.last_lsn == Lsn(49),
            "a chunk is whole or nothing: {found:?}"
        );
        assert!(records.iter().all(|(&lsn, b)| *b == body(0, lsn, 40)));
    }
}

#[test]
fn w10_the_first_write_error_fails_the_log_permanently() {
    for (protocol, background) in protocols().into_iter().flat_map(|p| [(p, false), (p, true)]) {
        let fs = FaultFs::new();
        // Epochs that do not end during the test, so that the failing write is the requested one.
        let protocol = match protocol {
            LogProtocol::Epoch { .. } => LogProtocol::Epoch { interval: Duration::from_secs(3600) },
            other => other,
        };
        // Nothing is written without a request.
        let max_delay = Duration::from_secs(3600);
        let wal = create(&fs, WalOptions { protocol, background, max_delay, ..small(2, 1) });
        let durable = append(&wal, 0, 1);
        wal.make_durable(durable).expect("durable");
        wait_for_prepared_segments(&wal, 3);
        let lost = append(&wal, 1, 2);
        fs.fail_at(1, FailKind::Io);
        let error = wal.make_durable(lost).expect_err("the write failed");
        assert!(error.reason.contains("/db/wal/00/") && error.reason.contains("offset 4096"), "{error}");
        fs.heal();
        let writes = fs.io_count();
        assert_eq!(wal.make_durable(lost), Err(error.clone()), "no retry");
        assert!(matches!(wal.append(log_buffer(0), b"more"), Err(AppendError::Failed(e)) if e == error));
        assert_eq!(wal.ticket(lost).wait(), Err(error.clone()));
        assert_eq!(wal.ticket(lost).is_durable(), Err(error.clone()));
        assert_eq!(wal.make_durable(durable), Ok(()), "what was durable stays so");
        assert_eq!(wal.close(), Err(error));
        assert_eq!(fs.io_count(), writes, "not one more write");
    }
}

/// Waits until enough segments are prepared. After that, a log with background jobs does I/O only for
/// records.
fn wait_for_prepared_segments(wal: &Wal, count: u64) {
    while wal.stats().segments_prepared < count {
        std::thread::yield_now();
    }
}

#[test]
fn w10_every_waiter_gets_the_failure() {
    protocols().into_iter().for_each(every_waiter_gets_the_failure);
}

fn every_waiter_gets_the_failure(protocol: LogProtocol) {
    let mut failures = 0;
    for first_failing_io in 36..44 {
        let fs = FaultFs::new();
        let wal = create(&fs, WalOptions { protocol, background: true, ..small(4, 2) });
        fs.fail_from(first_failing_io, FailKind::Io);
        let heard: Vec<Option<LogFailed>> = std::thread::scope(|s| {
            let clients: Vec<_> = (0..8)
                .map(|c| {
                    s.spawn({
                        let wal = &wal;
                        move || client_until_failure(wal, c)
                    })
                })
                .collect();
            clients.into_iter().map(|c| c.join().expect("no panic")).collect()
        });
        // If the device fails while segments are made and no record is in flight, no record is lost and the
        // log has not failed.
        let failure = wal.failure();
        assert!(heard.iter().flatten().all(|reason| Some(reason) == failure.as_ref()), "one reason for all");
        assert!(failure.is_none() || heard.iter().any(Option::is_some), "a failed write was waited for");
        failures += u32::from(failure.is_some());
    }
    assert!(failures > 0, "{protocol}: no write failed");
}

/// Appends and waits until the log fails; `None` if it stays full instead.
fn client_until_failure(wal: &Arc<Wal>, client: usize) -> Option<LogFailed> {
    let mut full = 0;
    for n in 0.. {
        let waited = match wal.append(log_buffer(client), &body(client as u32, n, 100)) {
            Ok(lsn) if client.is_multiple_of(2) => wal.wait_acknowledged(lsn),
            Ok(lsn) => wal.ticket(lsn).wait(),
            Err(AppendError::Failed(failed)) => Err(failed),
            Err(AppendError::Full { .. }) if full == 100 => return None,
            Err(AppendError::Full { .. }) => {
                full += 1; // a segment could not be made
                continue;
            }
            Err(other) => panic!("{other}"),
        };
        if let Err(failed) = waited {
            return Some(failed);
        }
        full = 0;
    }
    None
}

/// Appends, durably, until the log is full; returns the last LSN.
fn append_until_full(wal: &Wal) -> (Lsn, std::io::Error) {
    for n in 0..100_000 {
        match wal.append(log_buffer(n as usize), &body(0, n, 1000)) {
            Ok(lsn) if n % 3 == 0 => wal.make_durable(lsn).expect("what got an LSN has a place on disk"),
            Ok(_) => {}
            Err(AppendError::Full { needed, source, .. }) => {
                assert_eq!(needed, 64 << 10);
                return (Lsn(wal.next_lsn().0 - 1), source);
            }
            Err(other) => panic!("{other}"),
        }
    }
    panic!("never full");
}

#[test]
fn w11_a_full_disk_refuses_before_an_lsn_is_drawn_and_heals() {
    let shapes = [(false, 1, 1), (false, 3, 1), (false, 4, 2), (true, 3, 1)];
    for (protocol, (background, log_buffers, streams)) in
        protocols().into_iter().flat_map(|p| shapes.map(|shape| (p, shape)))
    {
        let fs = FaultFs::new();
        let wal = create(&fs, WalOptions { protocol, background, ..small(log_buffers, streams) });
        let streams = wal.stats().streams;
        let ready = if background { 3 } else { 2 * streams as u64 }; // the number that the log prepares
        wait_until("segments are ready", || wal.stats().segments_prepared >= ready);
        // Existing blocks can be written, new ones not.
        fs.full_from(1);
        let (last, source) = append_until_full(&wal);
        assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
        wal.make_durable(last).expect("what got an LSN has a place on disk");
        assert_eq!(wal.durable_lsn(), last);
        assert!(matches!(wal.append(log_buffer(0), &[0; 1000]), Err(AppendError::Full { .. }) | Ok(_)));
        // Trimming makes room: spare segments need no new blocks.
        wal.make_durable(Lsn::MAX).expect("durable");
        let below = wal.durable_lsn();
        assert!(
            wal.trim(below).expect("trims") > 0,
            "{background} {log_buffers} {streams} {below} {:?}",
            wal.stats()
        );
        let (last, _) = append_until_full(&wal);
        assert!(last > below);
        // The device has room again.
        fs.heal();
        for n in 0..500 {
            let lsn = wal.append(log_buffer(n), &[0; 1000]).expect("there is room");
            wal.make_durable(lsn).expect("durable");
        }
        let end = wal.durable_lsn();
        assert_eq!(read(&fs.kill(), &[open_range(1, 1)], below.0).0.last_lsn, end);
    }
}

#[test]
fn w11_a_full_disk_during_flushes_loses_no_record_with_an_lsn() {
    for seed in 0..6 {
        let fs = FaultFs::new();
        let protocol = protocols()[seed as usize % 3];
        let wal = create(&fs, WalOptions { protocol, background: true, ..small(4, 2) });
        fs.full_from(1);
        let last = std::thread::scope(|s| {
            let clients: Vec<_> = (0..4).map(|_| s.spawn(|| append_until_full(&wal).0)).collect();
            clients.into_iter().map(|c| c.join().expect("no panic")).max().expect("four")
        });
        wal.make_durable(Lsn::MAX).expect("everything has a place");
        let (found, _) = read(&fs.crash(seed), &[open_range(1, 1)], 1);
        assert!(found.last_lsn >= last && found.last_lsn.0 == wal.next_lsn().0 - 1);
    }
}

#[test]
fn two_processes_never_see_half_a_segment_name() {
    // The log ignores other files in its directory.
    let fs = FaultFs::new();
    fs.create_dir_all("/db/wal/00".as_ref()).expect("creates");
    for name in ["notes.txt", "00/0000000000000000.tmp", "00/12", "000"] {
        fs.open(&dir().join(name), OpenOptions::new().create(true)).expect("creates");
    }
    let wal = create(&fs, small(1, 1));
    let lsn = append(&wal, 0, 1);
    wal.make_durable(lsn).expect("durable");
    wal.trim(Lsn::MAX).expect("trims");
    assert_eq!(read(&fs, &[open_range(1, 1)], 1).0.last_lsn, lsn);
    assert!(fs.exists(&dir().join("00/0000000000000000.tmp")));
    drop(Arc::clone(&wal));
}
