//! Appended and durable records are replayed in order, for any numbers of log buffers and streams.
#![cfg(not(loom))]

use crate::common::*;
use azekura_base::{DurableLog, Lsn};
use azekura_io::{CountingFs, FaultFs, Fs, MemFs, OpenOptions, OsFs};
use azekura_wal::{AppendError, Begin, LogRange, ReplayError, Wal, WalError, WalOptions};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Appends `count` records of different sizes to all log buffers, with some flushes.
fn fill(wal: &Wal, tag: u32, count: u64) -> Records {
    let mut model = Records::new();
    for n in 0..count {
        let body = body(tag, n, 12 + (n as usize * 37) % 700);
        let lsn = wal.append(log_buffer(n as usize * 7 / 3), &body).expect("appends");
        model.insert(lsn.0, body);
        if n % 17 == 0 {
            wal.make_durable(lsn).expect("durable");
        }
    }
    wal.make_durable(Lsn::MAX).expect("durable");
    model
}

#[test]
fn every_count_of_log_buffers_and_streams_reads_back_the_same() {
    for (log_buffers, streams) in [(1, 1), (2, 1), (3, 2), (5, 5), (16, 4)] {
        let fs = FaultFs::with_alignment(4096);
        let wal = create(&fs, WalOptions { segment_bytes: 256 << 10, ..small(log_buffers, streams) });
        let model = fill(&wal, 1, 400);
        assert_eq!(wal.durable_lsn(), Lsn(400));
        let (found, records) = read(&fs.kill(), &[open_range(1, 1)], 1);
        assert_eq!((found.last_lsn, found.max_lsn_seen), (Lsn(400), Lsn(400)));
        assert!(records == model, "{log_buffers} log buffers, {streams} streams");
    }
}

#[test]
fn a_replay_can_start_anywhere() {
    let fs = FaultFs::new();
    let wal = create(&fs, small(4, 2));
    let model = fill(&wal, 1, 1000);
    for from in [1, 2, 499, 777, 1000, 1001, 5000] {
        let (found, records) = read(&fs, &[open_range(1, 1)], from);
        assert_eq!(found.last_lsn.0, 1000.max(from - 1), "from {from}");
        assert!(records.into_iter().eq(model.clone().split_off(&from)), "from {from}");
    }
}

#[test]
fn incarnations_with_different_counts_are_read_one_after_the_other() {
    let fs = FaultFs::new();
    let (mut ranges, mut model, mut next): (Vec<LogRange>, _, _) = (Vec::new(), Records::new(), 1);
    for (incarnation, log_buffers, streams) in [(1, 4, 4), (2, 1, 1), (5, 6, 3), (6, 2, 2)] {
        let wal = try_create(&fs, identity(incarnation, next), small(log_buffers, streams)).expect("creates");
        model.append(&mut fill(&wal, incarnation, 150));
        let last = wal.durable_lsn().0;
        drop(wal);
        ranges.push(closed_range(incarnation, next, last));
        next = last + 100;
    }
    ranges.last_mut().expect("four").last_lsn = None;
    let (found, records) = read(&fs, &ranges, 1);
    assert_eq!((found.last_lsn.0, found.max_lsn_seen.0), (next - 100, next - 100));
    assert!(records == model);
    let (_, records) = read(&fs, &ranges, 300);
    assert!(records.into_iter().eq(model.split_off(&300)), "from the middle of the second");
}

#[test]
fn an_empty_log_ends_before_its_first_lsn() {
    let (found, records) = read(&MemFs::new(), &[open_range(3, 50)], 1);
    assert_eq!((found.last_lsn, found.max_lsn_seen, records.len()), (Lsn(49), Lsn(0), 0));
    let fs = MemFs::new();
    let _wal = create(&fs, small(2, 1));
    let (found, _) = read(&fs, &[open_range(1, 1)], 1);
    assert_eq!(found.last_lsn, Lsn(0));
}

#[test]
fn ranges_out_of_order_are_refused() {
    for ranges in [
        vec![open_range(1, 1), open_range(2, 5)],
        vec![closed_range(2, 1, 4), open_range(1, 5)],
        vec![closed_range(1, 1, 9), open_range(2, 5)],
        vec![open_range(1, 0)],
    ] {
        let outcome = try_read(&MemFs::new(), &ranges, 1);
        assert!(matches!(outcome, Err(ReplayError::Ranges { .. })), "{ranges:?}");
    }
}

#[test]
fn the_error_of_the_applying_function_ends_the_replay() {
    let fs = MemFs::new();
    fill(&create(&fs, small(1, 1)), 1, 10);
    let mut seen = 0;
    let outcome =
        azekura_wal::recovery::replay(&fs, dir(), DATABASE, &[open_range(1, 1)], Lsn(1), &mut |lsn, _| {
            seen += 1;
            if lsn == Lsn(4) { Err("no") } else { Ok(()) }
        });
    assert!(matches!(outcome, Err(ReplayError::Apply { lsn: Lsn(4), source: "no" })));
    assert_eq!(seen, 4);
}

#[test]
fn a_body_of_half_a_buffer_fits_and_a_larger_one_is_refused_without_an_lsn() {
    let fs = MemFs::new();
    let wal = create(&fs, small(2, 1));
    for n in 0..20 {
        wal.append(log_buffer(0), &body(1, n, 2048)).expect("fits");
        wal.append(log_buffer(1), &[]).expect("an empty body is a body");
    }
    let refused = wal.append(log_buffer(0), &[0; 2049]);
    assert!(matches!(refused, Err(AppendError::TooLarge { bytes: 2049, max: 2048 })));
    assert_eq!(wal.next_lsn(), Lsn(41));
    wal.make_durable(Lsn(40)).expect("durable");
    let (found, records) = read(&fs, &[open_range(1, 1)], 1);
    assert_eq!((found.last_lsn, records[&39].len(), records[&40].len()), (Lsn(40), 2048, 0));
}

#[test]
fn an_lsn_that_was_not_drawn_waits_for_what_was() {
    let wal = create(&MemFs::new(), small(1, 1));
    wal.make_durable(Lsn(1_000_000)).expect("nothing to wait for");
    wal.append(log_buffer(0), b"x").expect("appends");
    wal.make_durable(Lsn::MAX).expect("durable");
    assert_eq!((wal.durable_lsn(), wal.next_lsn()), (Lsn(1), Lsn(2)));
}

#[test]
fn a_closed_log_has_flushed_everything_and_refuses_records() {
    for background in [false, true] {
        let fs = MemFs::new();
        let wal = create(&fs, WalOptions { background, ..small(3, 2) });
        for n in 0..30 {
            wal.append(log_buffer(n), b"relaxed").expect("appends");
        }
        wal.close().expect("closes");
        wal.close().expect("closes again");
        assert!(matches!(wal.append(log_buffer(0), b"late"), Err(AppendError::Failed(_))));
        wal.make_durable(Lsn(30)).expect("is durable");
        assert_eq!(read(&fs, &[open_range(1, 1)], 1).0.last_lsn, Lsn(30));
    }
}

#[test]
fn a_dropped_log_has_flushed_everything() {
    let fs = MemFs::new();
    let wal = create(&fs, WalOptions { background: true, ..small(2, 2) });
    let lsn = wal.append(log_buffer(1), b"relaxed").expect("appends");
    drop(wal.ticket(lsn));
    drop(wal);
    assert_eq!(read(&fs, &[open_range(1, 1)], 1).0.last_lsn, lsn);
}

#[test]
fn trimmed_segments_are_recycled_and_later_ones_stay() {
    let fs = FaultFs::new();
    let wal = create(&fs, small(2, 2));
    let mut model = Records::new();
    let mut files = 0;
    for round in 0..20 {
        model.append(&mut fill(&wal, round, 200));
        let below = wal.durable_lsn().0 - 50;
        wal.trim(Lsn(below)).expect("trims");
        let (_, records) = read(&fs.kill(), &[open_range(1, 1)], below);
        assert!(records.into_iter().eq(model.clone().split_off(&below)), "round {round}");
        if round == 9 {
            files = fs.files().len();
        }
    }
    assert!(fs.files().len() <= files + 1, "the number of files does not grow");
    let stats = wal.stats();
    assert!(stats.segments_recycled > 10 && stats.segments_trimmed >= stats.segments_recycled, "{stats:?}");
    assert!(wal.retained_bytes() < wal.log_bytes_since_start() / 4);
}

/// SEGMENT-4: neither makes nor removes files.
#[test]
fn a_log_that_grows_and_is_trimmed_in_turns_reuses_its_files() {
    let fs = FaultFs::new();
    let wal = create(&fs, small(1, 1));
    let mut seen = Vec::new();
    for round in 0..12 {
        // Fills some segments, then trims all but the last of them at once.
        fill(&wal, round, 1500);
        wal.trim(wal.durable_lsn()).expect("trims");
        let stats = wal.stats();
        seen.push((stats.segments_prepared - stats.segments_recycled, fs.files()));
    }
    let made = |round: usize| seen[round].0;
    assert!(made(0) > 5, "a round takes many segments: {}", made(0));
    assert_eq!(made(11), made(3), "none was made since: {:?}", seen.iter().map(|s| s.0).collect::<Vec<_>>());
    assert!(seen[3..].iter().all(|(_, files)| files.len() == seen[3].1.len()), "nor removed");
    // A log that needs fewer segments removes the others, trim by trim.
    for round in 0..60 {
        fill(&wal, 100 + round, 50);
        wal.trim(wal.durable_lsn()).expect("trims");
    }
    assert!(fs.files().len() < seen[11].1.len() / 2 + 3, "{} of {}", fs.files().len(), seen[11].1.len());
}

#[test]
fn an_unused_segment_above_the_full_size_is_removed_instead_of_recycled() {
    let fs = FaultFs::new();
    fill(&create(&fs, small(1, 1)), 1, 20);
    let unused = fs.files().pop().expect("a prepared segment");
    fs.open(&unused, OpenOptions::new()).expect("opens").set_len(1 << 20).expect("extends");
    let wal = try_create(&fs, identity(2, 21), small(1, 1)).expect("creates");
    fill(&wal, 2, 400);
    wal.trim(wal.durable_lsn()).expect("trims");
    assert!(!fs.files().contains(&unused));
    let too_long =
        |path: &PathBuf| fs.open(path, OpenOptions::new()).expect("opens").len().expect("length") > 64 << 10;
    assert_eq!(fs.files().iter().filter(|path| too_long(path)).count(), 0);
}

#[test]
fn trim_removes_old_incarnations_of_streams_that_no_longer_exist() {
    let fs = FaultFs::new();
    fill(&create(&fs, small(6, 6)), 1, 600);
    let wal = try_create(&fs, identity(2, 1000), small(2, 1)).expect("creates");
    let model = fill(&wal, 2, 50);
    let retained = wal.retained_bytes();
    assert_eq!(
        wal.trim(Lsn(1)).expect("trims"),
        2 * 5,
        "prepared (one as the reserve) and never used, in directories that nobody writes"
    );
    assert_eq!(wal.retained_bytes(), retained);
    assert!(wal.trim(Lsn(1000)).expect("trims") >= 6);
    assert!(wal.retained_bytes() <= wal.log_bytes_since_start());
    let left = fs.files().iter().filter(|path| !path.starts_with("/db/wal/00")).count();
    assert_eq!(left, 0, "directories 01 to 05 are empty");
    let (_, records) = read(&fs.kill(), &[closed_range(1, 1, 600), open_range(2, 1000)], 1000);
    assert!(records == model);
}

#[test]
fn prepared_segments_of_the_last_run_are_used_by_the_next() {
    let fs = FaultFs::new();
    fill(&create(&fs, small(1, 1)), 1, 20);
    let files = fs.files().len();
    let wal = try_create(&fs, identity(2, 21), small(1, 1)).expect("creates");
    assert_eq!(wal.stats().segments_recycled, 2, "one of them the reserve");
    assert_eq!(fs.files().len(), files + 1);
    let model = fill(&wal, 2, 400);
    let (_, records) = read(&fs, &[closed_range(1, 1, 20), open_range(2, 21)], 21);
    assert!(records == model);
}

#[test]
fn an_incarnation_that_is_not_new_is_refused() {
    let fs = MemFs::new();
    fill(&try_create(&fs, identity(4, 1), small(1, 1)).expect("creates"), 1, 3);
    for incarnation in [3, 4] {
        let refused = try_create(&fs, identity(incarnation, 10), small(1, 1));
        assert!(matches!(refused, Err(WalError::IncarnationNotNew { found: 4, .. })));
    }
    assert!(try_create(&fs, identity(5, 10), small(1, 1)).is_ok());
}

#[test]
fn another_databases_segments_are_neither_read_nor_touched() {
    let fs = FaultFs::new();
    let foreign = azekura_wal::LogIdentity { database_id: 99, ..identity(7, 500) };
    fill(&try_create(&fs, foreign, small(1, 1)).expect("creates"), 1, 30);
    let before = fs.contents("/db/wal/00/0000000000000000".as_ref()).expect("is there");
    let wal = try_create(&fs, identity(1, 1), small(1, 1)).expect("creates");
    let model = fill(&wal, 2, 30);
    wal.trim(Lsn::MAX).expect("trims");
    assert!(fs.contents("/db/wal/00/0000000000000000".as_ref()) == Some(before));
    let (found, records) = read(&fs, &[open_range(1, 1)], 1);
    assert_eq!(found.max_lsn_seen, Lsn(30));
    assert!(records == model);
}

#[test]
fn small_records_of_one_log_buffer_cost_two_bytes_of_frame() {
    let wal = create(&MemFs::new(), small(1, 1));
    for _ in 0..100 {
        wal.append(log_buffer(0), &[1; 48]).expect("appends");
    }
    wal.make_durable(Lsn::MAX).expect("durable");
    let stats = wal.stats();
    assert_eq!((stats.records, stats.record_bytes), (100, 100 * 50));
    assert!(stats.flushes <= 2 && stats.chunks == stats.flushes, "{stats:?}");
}

#[test]
fn a_real_directory_with_the_default_number_of_streams_works_alike() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let dir = scratch.path().join("wal");
    let options = WalOptions {
        log_buffers: 3,
        streams: 0,
        segment_bytes: 256 << 10,
        buffer_bytes: 64 << 10,
        ..WalOptions::default()
    };
    let wal = Wal::create(Arc::new(OsFs::new()), &dir, identity(1, 1), options).expect("creates");
    assert_eq!(wal.stats().streams, azekura_wal::default_stream_count().min(3));
    let model = fill(&wal, 1, 2000);
    wal.close().expect("closes");
    let mut records = Records::new();
    let found = azekura_wal::recovery::replay(
        &OsFs::new(),
        &dir,
        DATABASE,
        &[open_range(1, 1)],
        Lsn(1),
        &mut |lsn, body| {
            records.insert(lsn.0, body.to_vec());
            Ok::<(), std::convert::Infallible>(())
        },
    );
    assert_eq!(found.expect("replays").last_lsn, Lsn(2000));
    assert!(records == model);
}

#[test]
fn only_the_last_segment_of_an_incarnation_is_read_to_be_trimmed() {
    let fs = FaultFs::new();
    fill(&create(&fs, small(1, 1)), 1, 1000);
    let segments = fs.files().len() as u64;
    assert!(segments > 6);
    let wal = try_create(&fs, identity(2, 2000), small(1, 1)).expect("creates");
    let reads = fs.read_count();
    assert!(wal.trim(Lsn(500)).expect("trims") > 1);
    assert!(fs.read_count() - reads <= 2, "{} reads", fs.read_count() - reads);
    let (_, records) = read(&fs, &[closed_range(1, 1, 1000), open_range(2, 2000)], 500);
    assert_eq!(records.len(), 501);
}

/// Writes one record per chunk, and 16 chunks per segment.
fn sixteen_to_a_segment(fs: &FaultFs) -> Arc<Wal> {
    let wal = create(fs, small(1, 1));
    for n in 1..=50 {
        let lsn = wal.append(log_buffer(0), &body(0, n, 20)).expect("appends");
        wal.make_durable(lsn).expect("durable");
    }
    wal
}

#[test]
fn a_replay_finds_a_record_at_the_very_end_or_start_of_a_segment() {
    let fs = FaultFs::new();
    let _wal = sixteen_to_a_segment(&fs);
    for from in 1..=50 {
        let (_, records) = read(&fs, &[open_range(1, 1)], from);
        assert!(records.into_keys().eq(from..=50), "from {from}");
    }
}

#[test]
fn trim_keeps_the_given_record() {
    for below in [15, 16, 17, 32, 33] {
        let fs = FaultFs::new();
        let wal = sixteen_to_a_segment(&fs);
        assert_eq!(wal.trim(Lsn(below)).expect("trims"), (below - 1) / 16);
        for n in 0..40 {
            // Released segments are recycled and overwritten.
            wal.append(log_buffer(0), &body(1, n, 20)).expect("appends");
            wal.make_durable(Lsn::MAX).expect("durable");
        }
        let (_, records) = read(&fs, &[open_range(1, 1)], below);
        assert!(records.into_keys().eq(below..=90), "below {below}");
    }
}

/// Returns the bytes and the number of all files.
fn size(fs: &MemFs) -> (u64, usize) {
    let files = fs.files(dir()).unwrap_or_default();
    (files.iter().map(|(_, bytes)| bytes.len() as u64).sum(), files.len())
}

#[test]
fn a_log_makes_no_file_before_its_first_record_and_grows_with_what_is_written() {
    const FULL: u64 = 2 << 20;
    const FIRST: u64 = 256 << 10;
    for background in [false, true] {
        let fs = MemFs::new();
        let counting = CountingFs::new(Arc::new(fs.clone()));
        let (begun, fails) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(true)));
        let note = {
            let (fs, begun, fails) = (fs.clone(), Arc::clone(&begun), Arc::clone(&fails));
            move || {
                if fails.swap(false, Relaxed) {
                    return Err(std::io::ErrorKind::StorageFull.into());
                }
                begun.fetch_add(1, Relaxed);
                let is_zero = |(_, bytes): &(PathBuf, Vec<u8>)| bytes.iter().all(|&byte| byte == 0);
                assert!(fs.files(dir()).expect("lists").iter().all(is_zero), "before the first chunk");
                Ok(())
            }
        };
        let options = WalOptions {
            segment_bytes: FULL,
            buffer_bytes: 256 << 10,
            first_segment_bytes: Some(FIRST),
            begin: Some(Begin::new(note)),
            background,
            ..small(4, 1)
        };
        let wal = Wal::create(Arc::new(counting.clone()), dir(), identity(1, 1), options).expect("creates");
        wal.request_flush();
        wal.trim(Lsn(1)).expect("trims");
        assert_eq!((counting.counts().changes(), counting.counts().opened, size(&fs)), (0, 0, (0, 0)));
        let refused = wal.append(log_buffer(0), b"first");
        assert!(matches!(refused, Err(AppendError::Begin { .. })), "{refused:?}");
        let first = wal.append(log_buffer(0), b"first").expect("appends");
        wal.wait_acknowledged(first).expect("commits");
        assert_eq!((begun.load(Relaxed), first), (1, Lsn(1)));
        // SEGMENT-6: one file, until a part of it is used.
        assert_eq!((size(&fs), counting.counts().open_files), ((FIRST, 1), 1));
        // Other log buffers append too. One record needs larger buffers.
        let mut model = Records::from([(1, b"first".to_vec())]);
        for n in 1..3000_u64 {
            let bytes = if n == 2000 { 100 << 10 } else { 3000 };
            let at = if n < 1000 { 0 } else { n as usize % 4 };
            let lsn = wal.append(log_buffer(at), &body(at as u32, n, bytes)).expect("appends");
            model.insert(lsn.0, body(at as u32, n, bytes));
            if n % 3 == 0 {
                wal.wait_acknowledged(lsn).expect("commits");
            }
            if n % 100 == 0 {
                let written = wal.log_bytes_since_start();
                let most = 4 * written + if n < 1000 { 4 * FIRST } else { 8 * FULL };
                assert!(size(&fs).0 <= most, "{:?} for {written} bytes", size(&fs));
            }
        }
        let largest = fs.files(dir()).expect("lists").iter().map(|(_, bytes)| bytes.len()).max();
        assert_eq!(largest, Some(FULL as usize), "a log that is written a lot has large segments");
        wal.close().expect("closes");
        let (_, records) = read(&fs, &[open_range(1, 1)], 1);
        assert!(records == model);
    }
}

/// The owner of the log would record the incarnation twice, and a restart refuses such a log.
#[test]
fn a_log_begins_once_although_a_read_of_an_old_segment_failed() {
    let old = FaultFs::new();
    let wal = create(&old, small(2, 2));
    fill(&wal, 1, 50);
    drop(wal);
    for read in 1..10 {
        let fs = old.kill();
        let begun = Arc::new(AtomicU64::new(0));
        let note = {
            let begun = Arc::clone(&begun);
            move || {
                begun.fetch_add(1, Relaxed);
                Ok(())
            }
        };
        // The log has one stream less than before; the beginning reads the directory of that stream.
        let options = WalOptions { begin: Some(Begin::new(note)), ..small(1, 1) };
        let wal = try_create(&fs, identity(2, 1_000), options).expect("creates");
        fs.fail_read_at(read);
        let first = wal.append(log_buffer(0), b"first");
        assert!(matches!(first, Ok(_) | Err(AppendError::Begin { .. })), "{first:?}");
        wal.append(log_buffer(0), b"second").expect("appends");
        assert_eq!(begun.load(Relaxed), 1, "read {read}");
    }
}

/// Without background jobs, the log is synced only by `make_durable`. A kill loses no written record. A power
/// loss keeps a random part of the unsynced writes, possibly later chunks without earlier ones.
#[test]
fn a_log_that_is_synced_at_intervals_loses_nothing_by_a_kill_and_nothing_durable_by_a_power_loss() {
    let mut lost = 0;
    for seed in 0..30 {
        for (log_buffers, streams) in [(1, 1), (4, 2), (5, 5)] {
            let fs = FaultFs::with_alignment(4096);
            let interval = Some(std::time::Duration::from_secs(3600));
            let wal = create(&fs, WalOptions { sync_interval: interval, ..small(log_buffers, streams) });
            let mut model = Records::new();
            for n in 0..400 {
                let body = body(1, n, 12 + (n as usize * 37) % 700);
                let lsn = wal.append(log_buffer(n as usize * 7 / 3), &body).expect("appends");
                model.insert(lsn.0, body);
                if n % 150 == 149 {
                    wal.make_durable(lsn).expect("durable");
                } else if n % 5 == 0 {
                    wal.wait_acknowledged(lsn).expect("written");
                }
            }
            let (acknowledged, durable) = (wal.acknowledged_lsn(), wal.durable_lsn());
            assert!(durable >= Lsn(300) && durable < acknowledged, "{durable:?} {acknowledged:?}");
            for (disk, least) in [(fs.kill(), acknowledged), (fs.crash(seed), durable)] {
                let (found, records) = read(&disk, &[open_range(1, 1)], 1);
                assert!(found.last_lsn >= least, "seed {seed}: {:?} of {least:?}", found.last_lsn);
                let mut whole = model.clone();
                whole.split_off(&(found.last_lsn.0 + 1));
                assert!(records == whole, "seed {seed}, {log_buffers} log buffers, {streams} streams");
                lost += u64::from(found.last_lsn < acknowledged);
            }
            wal.close().expect("closes");
            let (found, records) = read(&fs.crash_losing_all(), &[open_range(1, 1)], 1);
            assert!(found.last_lsn == Lsn(400) && records == model);
        }
    }
    assert!(lost > 30, "{lost} of 90 power losses lost something");
}

#[test]
fn a_log_with_threads_is_synced_an_interval_after_the_last_write() {
    let fs = FaultFs::with_alignment(4096);
    let interval = Some(std::time::Duration::from_millis(1));
    let wal = create(&fs, WalOptions { sync_interval: interval, background: true, ..small(2, 1) });
    let lsn = wal.append(log_buffer(0), b"a").expect("appends");
    wal.wait_acknowledged(lsn).expect("written");
    while wal.durable_lsn() < lsn {
        std::thread::yield_now();
    }
    let (found, _) = read(&fs.crash_losing_all(), &[open_range(1, 1)], 1);
    assert_eq!(found.last_lsn, lsn);
}
