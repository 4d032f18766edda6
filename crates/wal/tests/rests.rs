//! What counts above the first missing LSN (REST-4, REST-7): records that rest on nothing missing, and only
//! if all of them are still there.
#![cfg(not(loom))]

mod common;

use std::path::Path;

use azekura_base::{DurableLog, Lsn};
use azekura_io::FaultFs;
use azekura_wal::{LogProtocol, LogRange, Order, ReplayError, Tail, Wal, WalOptions};
use common::*;

/// A log of three workers with a stream each, which has one durable record.
fn log(fs: &FaultFs) -> std::sync::Arc<Wal> {
    let wal = create(fs, WalOptions { protocol: LogProtocol::Rfa, ..small(3, 3) });
    wal.append(worker(0), &body(0, 1, 40)).expect("appends");
    wal.make_durable(Lsn(1)).expect("durable");
    wal
}

/// Record 2 is in a buffer; worker 1 commits records 3 to 8, each in a chunk of its own.
fn with_a_hole(fs: &FaultFs) -> std::sync::Arc<Wal> {
    let wal = log(fs);
    wal.append(worker(0), &body(0, 2, 40)).expect("appends");
    for n in 3..9 {
        let commit = wal.append_commit(worker(1), &body(0, n, 40)).expect("appends");
        assert_eq!((commit.lsn(), commit.rests_on()), (Lsn(n), Lsn(0)));
        wal.wait_acknowledged(commit).expect("acknowledged");
    }
    assert_eq!(wal.durable_lsn(), Lsn(1));
    assert_eq!(wal.stats().acknowledged_above_a_hole, 6);
    wal
}

fn closed(tail: Option<u64>) -> LogRange {
    let tails = tail.map(|last| Tail { worker: 1, last_lsn: Lsn(last) });
    LogRange { tails: tails.into_iter().collect(), ..closed_range(1, 1, 1) }
}

fn lsns(records: &Records) -> Vec<u64> {
    records.keys().copied().collect()
}

#[test]
fn what_rests_on_nothing_missing_counts_and_counts_again() {
    let fs = FaultFs::new();
    let _wal = with_a_hole(&fs);
    let disk = fs.crash_losing_all();
    let (found, records) = read(&disk, &[open_range(1, 1)], 1);
    assert_eq!((found.last_lsn, &*found.tails), (Lsn(1), &closed(Some(8)).tails[..]));
    assert_eq!(lsns(&records), [1, 3, 4, 5, 6, 7, 8]);
    for (tail, expected) in [(Some(8), &[1, 3, 4, 5, 6, 7, 8][..]), (Some(5), &[1, 3, 4, 5]), (None, &[1])] {
        let (found, records) = read(&disk, &[closed(tail), open_range(2, 9)], 1);
        assert_eq!(lsns(&records), expected, "an earlier recovery had found {tail:?}");
        assert_eq!((found.last_lsn, found.tails.len()), (Lsn(8), 0), "of the last range");
        assert_eq!(closed(tail).end(), Some(Lsn(tail.unwrap_or(1))));
    }
}

#[test]
fn a_record_that_rests_on_a_missing_one_ends_its_workers_row() {
    let fs = FaultFs::new();
    let wal = log(&fs);
    let missing = wal.append(worker(0), &body(0, 2, 40)).expect("appends");
    wal.append(worker(1), &body(0, 3, 40)).expect("appends");
    let rests_on = wal.foreign(worker(1), missing);
    assert_eq!(rests_on, missing);
    wal.append_in_order(worker(1), &body(0, 4, 40), Order::Newest, rests_on).expect("appends");
    wal.append(worker(1), &body(0, 5, 40)).expect("appends");
    wal.append(worker(2), &body(0, 6, 40)).expect("appends");
    (1..3).for_each(|w| wal.flush(worker(w)).expect("writes"));
    let (found, records) = read(&fs.crash_losing_all(), &[open_range(1, 1)], 1);
    assert_eq!(lsns(&records), [1, 3, 6]);
    let tail = |worker, last| Tail { worker, last_lsn: Lsn(last) };
    assert_eq!(found.tails, [tail(1, 3), tail(2, 6)]);
    wal.flush(worker(0)).expect("writes");
    let (found, records) = read(&fs.crash_losing_all(), &[open_range(1, 1)], 1);
    assert_eq!((lsns(&records).len(), found.last_lsn, found.tails.len()), (6, Lsn(6), 0), "no hole is left");
}

#[test]
fn a_chunk_lost_before_one_that_is_there_is_damage_though_no_horizon_had_reached_it() {
    let stream = Path::new("/db/wal/01/0000000000000000");
    for chunk in 0..5 {
        let fs = FaultFs::new();
        let _wal = with_a_hole(&fs);
        let disk = fs.crash_losing_all();
        disk.corrupt(stream, chunk * 4096 + 140, 4, 1).expect("is there");
        match try_read(&disk, &[open_range(1, 1)], 1) {
            Err(ReplayError::Corrupt { file, offset, .. }) => {
                assert_eq!((file.as_path(), offset), (stream, chunk * 4096));
            }
            other => panic!("chunk {chunk}: {other:?}"),
        }
    }
}

#[test]
fn a_recovery_that_does_not_find_what_an_earlier_one_found_says_so() {
    let stream = Path::new("/db/wal/01/0000000000000000");
    let fs = FaultFs::new();
    let _wal = with_a_hole(&fs);
    let disk = fs.crash_losing_all();
    disk.corrupt(stream, 5 * 4096 + 140, 4, 1).expect("is there");
    let (found, _) = read(&disk, &[open_range(1, 1)], 1);
    assert_eq!(found.tails, closed(Some(7)).tails, "the newest chunk may be torn");
    match try_read(&disk, &[closed(Some(8)), open_range(2, 9)], 1) {
        Err(ReplayError::Corrupt { incarnation, missing, durable, .. }) => {
            assert_eq!((incarnation, missing, durable), (1, Lsn(8), Lsn(8)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_log_that_does_not_tell_what_records_rest_on_is_cut_at_the_hole() {
    let fs = FaultFs::new();
    let wal = create(&fs, small(3, 3));
    for n in 1..4 {
        wal.append(worker(n as usize), &body(0, n, 40)).expect("appends");
    }
    (1..3).for_each(|w| wal.flush(worker(w)).expect("writes"));
    let (found, records) = read(&fs.crash_losing_all(), &[open_range(1, 1)], 1);
    assert_eq!((lsns(&records).len(), found.last_lsn, found.tails.len()), (2, Lsn(2), 0));
}
