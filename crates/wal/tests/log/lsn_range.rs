//! Log buffers that draw LSNs in ranges: recovery finds the unused LSNs on disk, unused LSNs delay no commit,
//! and no record gets an LSN below one that it must follow.
#![cfg(not(loom))]

use crate::common::*;
use azekura_base::{DurableLog, Lsn};
use azekura_io::FaultFs;
use azekura_wal::{LogProtocol, Order, Wal, WalOptions};

const AFTER_NOTHING: Order = Order::After(Lsn(0));

/// Creates a log of two log buffers with one stream each.
fn log(fs: &FaultFs, protocol: LogProtocol, lsn_range: u32) -> std::sync::Arc<Wal> {
    create(fs, WalOptions { protocol, lsn_range, ..small(2, 2) })
}

fn append(wal: &Wal, by: usize, n: u64, order: Order) -> u64 {
    wal.append_in_order(log_buffer(by), &body(by as u32, n, 40), order).expect("appends").0
}

/// Returns the protocols with log buffers that draw ranges.
fn ranged() -> impl Iterator<Item = LogProtocol> {
    protocols().into_iter().filter(|protocol| *protocol != LogProtocol::Serial)
}

/// Makes log buffer 0 expect batches of eight records and opens its next range. Returns the first LSN of the
/// range, the only one that is used.
fn open_a_range(wal: &Wal) -> u64 {
    (0..8).for_each(|n| _ = append(wal, 0, n, AFTER_NOTHING));
    wal.flush(log_buffer(0)).expect("writes");
    append(wal, 0, 8, AFTER_NOTHING)
}

#[test]
fn one_draw_serves_as_many_records_as_the_last_batch_had() {
    for protocol in ranged() {
        let wal = log(&FaultFs::new(), protocol, 64);
        let first = open_a_range(&wal);
        let draws = wal.stats().lsn_draws;
        for n in 1..8 {
            assert_eq!(append(&wal, 0, n, AFTER_NOTHING), first + n);
        }
        assert_eq!(wal.stats().lsn_draws, draws, "{protocol}");
        append(&wal, 0, 8, AFTER_NOTHING);
        assert_eq!(wal.stats().lsn_draws, draws + 1, "{protocol}");
        assert_eq!(wal.next_lsn(), Lsn(first + 16), "as many again");
    }
}

#[test]
fn with_ranges_of_one_and_in_a_serial_log_each_record_draws() {
    for (protocol, most) in [(LogProtocol::PWal, 1), (LogProtocol::Serial, 64)] {
        let wal = log(&FaultFs::new(), protocol, most);
        open_a_range(&wal);
        let stats = wal.stats();
        assert_eq!((stats.lsn_draws, stats.records, stats.gap_lsns), (9, 9, 0), "{protocol}");
        assert_eq!(wal.next_lsn(), Lsn(10));
    }
}

#[test]
fn w7_a_record_is_above_what_it_has_to_follow_and_the_rest_of_the_range_is_a_gap() {
    for protocol in ranged() {
        let wal = log(&FaultFs::new(), protocol, 64);
        let first = open_a_range(&wal);
        assert_eq!(append(&wal, 0, 9, Order::After(Lsn(first))), first + 1, "its own record is no reason");
        let others = append(&wal, 1, 1, Order::Newest);
        assert!(others > first + 1);
        let above = append(&wal, 0, 10, Order::After(Lsn(others)));
        assert!(above > others);
        assert!(append(&wal, 0, 11, AFTER_NOTHING) > above, "a log buffer's LSNs rise");
        let newest = append(&wal, 0, 12, Order::Newest);
        assert_eq!(Lsn(newest + 1), wal.next_lsn());
        assert!(wal.stats().gap_lsns > 0);
    }
}

#[test]
fn w8_records_come_after_the_floor_of_their_buffer() {
    for protocol in ranged() {
        let wal = log(&FaultFs::new(), protocol, 64);
        open_a_range(&wal);
        let others = wal.append_commit(log_buffer(1), &body(1, 1, 40)).expect("appends");
        wal.raise_floor(log_buffer(0), others);
        let commit = wal.append_commit(log_buffer(0), &body(0, 9, 40)).expect("appends");
        assert!(commit > others, "{protocol}");
    }
}

#[test]
fn w1_a_log_buffer_with_nothing_to_log_has_no_range_that_holds_others() {
    for protocol in ranged() {
        let wal = log(&FaultFs::new(), protocol, 64);
        open_a_range(&wal);
        wal.flush(log_buffer(0)).expect("writes");
        assert_eq!(
            Lsn(wal.next_lsn().0 - 1),
            wal.durable_lsn(),
            "{protocol}: the rest is a gap, and on disk"
        );
        let flushes = wal.stats().flushes;
        let lsn = Lsn(append(&wal, 1, 1, AFTER_NOTHING));
        wal.make_durable(lsn).expect("durable");
        assert_eq!(wal.stats().flushes, flushes + 1, "{protocol}: of its own stream");
    }
}

#[test]
fn w2_a_commit_flushes_an_open_range_below_it() {
    for protocol in ranged() {
        let wal = log(&FaultFs::new(), protocol, 64);
        let first = open_a_range(&wal);
        let lsn = append(&wal, 1, 1, Order::Newest);
        wal.make_durable(Lsn(lsn)).expect("durable");
        assert!(wal.durable_lsn() >= Lsn(lsn));
        assert!(append(&wal, 0, 9, AFTER_NOTHING) > lsn, "{protocol}: not {}", first + 1);
    }
}

#[test]
fn w5_a_recovery_counts_gaps_as_present_and_finds_the_cut_behind_them() {
    for protocol in ranged() {
        let fs = FaultFs::new();
        let wal = log(&fs, protocol, 64);
        let mut lsns = Vec::new();
        for n in 0..200 {
            let by = n as usize / 5 % 2;
            let order = if n % 7 == 3 { Order::Newest } else { AFTER_NOTHING };
            lsns.push(append(&wal, by, n, order));
            if n % 31 == 30 {
                wal.flush(log_buffer(by)).expect("writes");
            }
        }
        (0..2).for_each(|by| wal.flush(log_buffer(by)).expect("writes"));
        assert!(wal.stats().gap_lsns > 40, "{protocol}: {:?}", wal.stats());
        let (found, records) = read(&fs.crash_losing_all(), &[open_range(1, 1)], 1);
        lsns.sort_unstable();
        assert_eq!(records.into_keys().collect::<Vec<_>>(), lsns, "{protocol}");
        assert_eq!(found.last_lsn.next(), wal.next_lsn(), "{protocol}: to the end of the last gap");
        assert!(found.max_lsn_seen >= found.last_lsn, "{protocol}");
        // Replays from many LSNs on, some inside gaps, and up to each of these, as a later recovery does.
        for from in (1..found.last_lsn.0).step_by(7) {
            let (part, records) = read(&fs.crash_losing_all(), &[open_range(1, 1)], from);
            assert_eq!(
                (part.last_lsn, records.len()),
                (found.last_lsn, lsns.iter().filter(|&&l| l >= from).count())
            );
        }
    }
}

#[test]
fn w5_a_range_whose_buffer_was_lost_is_missing_and_no_gap() {
    let fs = FaultFs::new();
    let wal = log(&fs, LogProtocol::PWal, 64);
    let first = open_a_range(&wal); // in log buffer 0; seven more LSNs are drawn
    let lsn = append(&wal, 1, 1, Order::Newest);
    wal.flush(log_buffer(1)).expect("writes");
    let (found, records) = read(&fs.crash_losing_all(), &[open_range(1, 1)], 1);
    assert_eq!(found.last_lsn, Lsn(first - 1));
    assert!(found.max_lsn_seen >= Lsn(lsn) && !records.contains_key(&lsn));
}

#[test]
fn a_later_recovery_ends_where_the_earlier_one_did_though_that_is_a_gap() {
    let fs = FaultFs::new();
    let wal = log(&fs, LogProtocol::PWal, 64);
    open_a_range(&wal);
    wal.flush(log_buffer(0)).expect("writes");
    let disk = fs.crash_losing_all();
    let (found, records) = read(&disk, &[open_range(1, 1)], 1);
    let last = *records.keys().next_back().expect("nine");
    assert!(found.last_lsn.0 > last, "the last LSNs are a gap");
    let ranges = [closed_range(1, 1, found.last_lsn.0), open_range(2, found.last_lsn.0 + 1)];
    let (again, same) = read(&disk, &ranges, 1);
    assert_eq!((again.last_lsn, same), (found.last_lsn, records));
}
