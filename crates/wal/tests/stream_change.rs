//! The number of streams in use changes while the log is written: LSNs stay dense, nothing durable is lost
//! when the power goes at any I/O (also inside a change), what is admitted always has a place, and no record
//! is left asleep.
#![cfg(not(loom))]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use azekura_base::{DurableLog, Lsn};
use azekura_io::device::DeviceModel;
use azekura_io::{DeviceFs, FaultFs, MemFs};
use azekura_wal::{AppendError, StreamCount, Wal, WalOptions};
use common::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Appends, commits, trims and changes as the seed says, until done or until the power is cut. Returns what
/// was drawn, and the last LSN that was acknowledged.
fn run(wal: &Wal, seed: u64) -> (Records, u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut drawn, mut acknowledged) = (Records::new(), 0);
    for n in 0..100 {
        let body = body(seed as u32, n, random.random_range(12..600));
        match wal.append(worker(random.random_range(0..8)), &body) {
            Ok(lsn) => drop(drawn.insert(lsn.0, body)),
            Err(AppendError::Failed(_) | AppendError::Full { .. }) => return (drawn, acknowledged),
            Err(other) => panic!("{other}"),
        }
        if random.random_bool(0.2) {
            if wal.use_streams(random.random_range(1..6)).is_err() {
                return (drawn, acknowledged);
            }
            // A change writes whatever was there.
            if random.random_bool(0.5) {
                acknowledged = wal.durable_lsn().0;
            }
        }
        if random.random_bool(0.2) {
            let lsn = wal.next_lsn().0 - 1;
            match wal.make_durable(Lsn(lsn)) {
                Ok(()) => acknowledged = lsn,
                Err(_) => return (drawn, acknowledged),
            }
        }
        if random.random_bool(0.1) {
            // One stream alone, so that the others hold the older records.
            if wal.flush(worker(random.random_range(0..8))).is_err() {
                return (drawn, acknowledged);
            }
        }
    }
    if wal.close().is_ok() {
        acknowledged = drawn.keys().next_back().copied().unwrap_or(0);
    }
    (drawn, acknowledged)
}

/// Runs until the power goes at I/O `cut`, recovers, and checks. Returns whether it was cut at all.
fn crash_and_recover(workers: usize, seed: u64, cut: u64) -> bool {
    let what = format!("seed {seed}, {workers} workers, cut at {cut}");
    let fs = FaultFs::new();
    fs.cut_power_at(cut);
    let streams = StreamCount::UpTo(workers.min(5));
    let first_segment_bytes = workers.is_multiple_of(2).then_some(64 << 10);
    let options = WalOptions { streams, first_segment_bytes, ..small(workers, 1) };
    let (drawn, acknowledged) = match try_create(&fs, identity(1, 1), options) {
        Ok(wal) => run(&wal, seed),
        Err(_) => (Records::new(), 0),
    };
    let was_cut = fs.power_is_off();
    let fs = fs.crash(seed ^ cut);
    let (found, records) = read(&fs, &[open_range(1, 1)], 1);
    assert!(
        found.last_lsn.0 >= acknowledged,
        "{what}: {acknowledged} acknowledged, cut at {}",
        found.last_lsn
    );
    let expected: Records = drawn.into_iter().take_while(|(lsn, _)| *lsn <= found.last_lsn.0).collect();
    assert!(records == expected, "{what}: not the records that were appended");
    was_cut
}

#[test]
fn the_power_may_go_at_any_io_of_a_log_whose_streams_change() {
    for (workers, seed) in [(2, 1), (5, 2), (7, 3)] {
        let mut cut = 1;
        while crash_and_recover(workers, seed, cut) {
            cut += 1;
        }
        assert!(cut > 50, "{cut} I/Os only");
    }
}

#[test]
fn many_histories_with_changing_streams_are_recovered_whole() {
    for seed in 100..400 {
        crash_and_recover(2 + seed as usize % 6, seed, 1 + seed * 7 % 150);
    }
}

#[test]
fn w11_a_full_disk_does_not_lose_what_was_admitted_before_a_change() {
    for full_from in 1..60 {
        let fs = FaultFs::new();
        let options = WalOptions { streams: StreamCount::UpTo(3), ..small(4, 1) };
        let wal = create(&fs, options);
        fs.full_from(fs.io_count() + full_from);
        let (drawn, _) = run(&wal, full_from);
        assert!(
            wal.failure().is_none() || drawn.len() == 100,
            "a full disk poisons nothing: {:?}",
            wal.failure()
        );
        drop(wal);
        let (_, records) = read(&fs, &[open_range(1, 1)], 1);
        assert_eq!(records, drawn, "full from {full_from}: everything with an LSN had a place");
    }
}

#[test]
fn a_number_of_streams_that_is_fixed_stays() {
    let wal = create(&MemFs::new(), small(4, 2));
    assert!(!wal.use_streams(1).expect("no failure"));
    assert_eq!(wal.stats().streams_in_use, 2);
    let wal = create(&MemFs::new(), WalOptions { streams: StreamCount::UpTo(3), ..small(4, 1) });
    assert!(wal.use_streams(99).expect("no failure"));
    assert_eq!((wal.stats().streams_in_use, wal.stats().stream_changes), (3, 1));
    assert!(!wal.use_streams(3).expect("no failure"));
}

/// Threads append and wait, also for records that nobody asks for (W3), while another changes the number all
/// the time.
#[test]
fn w2_w3_committers_and_resting_records_get_through_all_changes() {
    let fs = DeviceFs::new(Arc::new(MemFs::new()), DeviceModel::plp());
    let options = WalOptions {
        streams: StreamCount::UpTo(4),
        background: true,
        max_delay: Duration::from_millis(2),
        ..small(6, 1)
    };
    let wal = create(&fs, options);
    const LEAST: u64 = 300;
    const CHANGES: u64 = 5;
    let appended = AtomicU64::new(0);
    std::thread::scope(|s| {
        let committers: Vec<_> = (0..4)
            .map(|at| {
                let (wal, appended) = (&wal, &appended);
                s.spawn(move || {
                    // However slow the changer is, it has its changes.
                    let goes_on = |n: &u64| *n < LEAST || wal.stats().stream_changes < CHANGES;
                    for n in (0..).take_while(goes_on) {
                        let lsn = wal.append(worker(at), &body(at as u32, n, 40)).expect("appends");
                        appended.fetch_add(1, Relaxed);
                        match n % 3 {
                            0 => wal.wait_acknowledged(lsn).expect("commits"),
                            1 => wal.ticket(lsn).wait().expect("commits"),
                            _ => {}
                        }
                    }
                    // Nobody asks for this one.
                    let resting = wal.append(worker(at), b"resting").expect("appends");
                    appended.fetch_add(1, Relaxed);
                    while wal.durable_lsn() < resting {
                        std::thread::yield_now();
                    }
                })
            })
            .collect();
        let mut count = 0;
        while committers.iter().any(|thread| !thread.is_finished()) {
            count += 1;
            wal.use_streams(1 + count * 3 % 4).expect("no failure");
            std::thread::yield_now();
        }
    });
    assert!(wal.stats().stream_changes >= CHANGES);
    wal.close().expect("closes");
    let (_, records) = read(&fs, &[open_range(1, 1)], 1);
    assert_eq!(records.len() as u64, appended.into_inner());
}

#[test]
fn a_log_left_to_itself_runs_on_whatever_it_tries() {
    let fs = DeviceFs::new(Arc::new(MemFs::new()), DeviceModel::plp());
    let options = WalOptions { streams: StreamCount::Auto, background: true, direct: true, ..small(6, 1) };
    let wal = create(&fs, options);
    assert!(wal.stats().streams > 1, "the least to try");
    std::thread::scope(|s| {
        for at in 0..4 {
            let wal = &wal;
            s.spawn(move || {
                for n in 0..3000 {
                    let lsn = wal.append(worker(at), &body(at as u32, n, 60)).expect("appends");
                    if n % 50 == 0 {
                        wal.wait_acknowledged(lsn).expect("commits");
                    }
                }
            });
        }
    });
    wal.close().expect("closes");
    let (_, records) = read(&fs, &[open_range(1, 1)], 1);
    assert_eq!(records.len(), 4 * 3000);
}

/// Appenders that never wait meet every moment of a change: what one stream has told to be complete must stay
/// so (ASSIGN-2).
#[test]
fn no_record_gets_into_a_stream_below_what_it_has_told_to_be_complete() {
    let fs = DeviceFs::new(Arc::new(MemFs::new()), DeviceModel::plp());
    let options = WalOptions {
        streams: StreamCount::UpTo(4),
        background: true,
        segment_bytes: 512 << 10,
        first_segment_bytes: Some(64 << 10),
        ..small(6, 1)
    };
    let wal = create(&fs, options);
    const EACH: u64 = 4000;
    std::thread::scope(|s| {
        let appenders: Vec<_> = (0..6)
            .map(|at| {
                let wal = &wal;
                s.spawn(move || {
                    for n in 0..EACH {
                        wal.append(worker(at), &body(at as u32, n, 40)).expect("appends");
                    }
                })
            })
            .collect();
        let mut count = 0;
        while appenders.iter().any(|thread| !thread.is_finished()) {
            count += 1;
            wal.use_streams(1 + count * 3 % 4).expect("no failure");
        }
    });
    wal.close().expect("closes");
    let (_, records) = read(&fs, &[open_range(1, 1)], 1);
    assert_eq!(records.len() as u64, 6 * EACH);
}
