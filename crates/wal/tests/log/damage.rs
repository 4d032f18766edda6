//! Bytes from disk never cause a panic. A torn tail ends the log; the loss of durable records is a typed
//! error.
#![cfg(not(loom))]

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::*;
use azekura_base::{DurableLog, Lsn};
use azekura_io::{CountingFs, FaultFs, File, FileLock, Fs, OpenOptions, OsFs, OverlayFs};
use azekura_wal::recovery::{LogFiles, replay_durable};
use azekura_wal::{LogRange, ReplayError, Replayed, Wal, WalOptions, newest_incarnation};
use proptest::prelude::*;

fn files(fs: &FaultFs) -> LogFiles<'_> {
    LogFiles { fs, dir: dir(), database_id: DATABASE, cipher: None }
}

/// Returns the disk of a log with 100 records, each durable, in several segments and streams. The power was
/// cut before a close.
fn crashed_log(log_buffers: usize, streams: usize) -> FaultFs {
    let fs = FaultFs::new();
    let wal = create(&fs, small(log_buffers, streams));
    for n in 0..100 {
        let lsn = wal.append(log_buffer(n as usize), &body(0, n + 1, 100)).expect("appends");
        wal.make_durable(lsn).expect("durable");
    }
    fs.cut_power();
    fs.crash(1)
}

/// Returns the outcome of a replay without the records, for messages.
fn outcome_of(fs: &FaultFs, range: LogRange) -> Result<Replayed, ReplayError<Infallible>> {
    try_read(fs, &[range], 1).map(|(found, _)| found)
}

fn segments(fs: &FaultFs) -> Vec<PathBuf> {
    fs.files().into_iter().filter(|path| path.starts_with(dir())).collect()
}

#[test]
fn a_damaged_segment_in_the_middle_is_named() {
    let fs = crashed_log(1, 1);
    let file = Path::new("/db/wal/00/0000000000000001");
    fs.corrupt(file, 5 * 4096 + 150, 4, 1).expect("is there");
    match outcome_of(&fs, open_range(1, 1)) {
        Err(ReplayError::Corrupt { file: named, offset, missing, durable, incarnation }) => {
            // There is one chunk per record, and a segment has 16 chunks, so chunk 21 holds record 22. The
            // last chunk states the horizon 99.
            assert_eq!((named.as_path(), offset), (file, 5 * 4096));
            assert_eq!((missing, durable, incarnation), (Lsn(22), Lsn(99), 1));
        }
        other => panic!("{other:?}"),
    }
    // A replay from a later segment does not need the damaged one.
    assert_eq!(read(&fs, &[open_range(1, 1)], 33).0.last_lsn, Lsn(100));
}

/// Missing chunks at the end, which no later header covers, are detected if the caller passes the LSN up to
/// which the log was durable. (CONTROL and the page file store such LSNs.)
#[test]
fn a_log_that_ends_below_what_was_durable_is_damaged_however_it_was_shortened() {
    let replay = |fs: &FaultFs, from, durable| {
        let range = [open_range(1, 1)];
        let mut each = |_, _: &[u8]| Ok::<(), Infallible>(());
        replay_durable(files(fs), &range, Lsn(from), Some(Lsn(durable)), &mut each)
    };
    type Shorten = fn(&FaultFs);
    let ways: [Shorten; 4] = [
        |fs| segments(fs).iter().for_each(|path| fs.remove_file(path).expect("is there")),
        |fs| fs.remove_file(segments(fs).last().expect("there is one")).expect("is there"),
        |fs| {
            let file =
                fs.open(segments(fs).last().expect("there is one"), OpenOptions::new()).expect("opens");
            file.set_len(4096).expect("cuts");
        },
        |fs| {
            let file =
                fs.open(segments(fs).last().expect("there is one"), OpenOptions::new()).expect("opens");
            file.write_zeroes(0, file.len().expect("length")).expect("writes");
        },
    ];
    for (way, shorten) in ways.into_iter().enumerate() {
        let fs = crashed_log(1, 1);
        assert_eq!(replay(&fs, 1, 100).expect("is whole").last_lsn, Lsn(100));
        // Removes the prepared, empty segments, so that the last segment is one with records.
        for path in segments(&fs)
            .iter()
            .rev()
            .take_while(|path| fs.contents(path).expect("is there").iter().all(|byte| *byte == 0))
        {
            fs.remove_file(path).expect("is there");
        }
        shorten(&fs);
        let outcome = replay(&fs, 1, 100);
        assert!(
            matches!(outcome, Err(ReplayError::Corrupt { durable: Lsn(100), .. })),
            "way {way}: {outcome:?}"
        );
        // A replay that begins after the missing records needs none of them.
        assert_eq!(replay(&fs, 101, 100).expect("nothing is asked for").last_lsn, Lsn(100), "way {way}");
    }
}

#[test]
fn a_log_of_a_later_incarnation_than_the_caller_knows_is_refused() {
    let fs = crashed_log(1, 1);
    let wal = try_create(&fs, identity(3, 200), small(1, 1)).expect("creates");
    wal.make_durable(wal.append(log_buffer(0), &body(0, 1, 100)).expect("appends")).expect("durable");
    let mut each = |_, _: &[u8]| Ok::<(), Infallible>(());
    let range = [open_range(2, 150)];
    let stale = replay_durable(files(&fs), &range, Lsn(150), Some(Lsn(100)), &mut each);
    assert!(matches!(stale, Err(ReplayError::StaleRanges { found: 3, newest: 2, .. })), "{stale:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_segment_that_is_extended_by_a_hole_of_1_tib_is_replayed_soon() {
    let scratch = tempfile::tempdir().expect("makes a directory");
    let (dir, os) = (scratch.path().join("wal"), Arc::new(OsFs::new()));
    let wal = Wal::create(Arc::clone(&os) as _, &dir, identity(1, 1), small(1, 1)).expect("creates");
    for n in 0..100 {
        wal.append(log_buffer(0), &body(0, n + 1, 100)).expect("appends");
    }
    wal.make_durable(Lsn::MAX).expect("durable");
    drop(wal);
    for name in os.list_dir(&dir.join("00")).expect("lists") {
        let file = os.open(&dir.join("00").join(name), OpenOptions::new()).expect("opens");
        file.set_len(1 << 40).expect("extends");
    }
    let counting = CountingFs::new(os);
    let overlay = OverlayFs::new(Arc::new(counting.clone()));
    for fs in [&counting as &dyn Fs, &overlay] {
        let files = LogFiles { fs, dir: &dir, database_id: DATABASE, cipher: None };
        let mut each = |_, _: &[u8]| Ok::<(), Infallible>(());
        let found = replay_durable(files, &[open_range(1, 1)], Lsn(1), Some(Lsn(100)), &mut each);
        assert_eq!(found.expect("replays").records, 100);
    }
    assert!(counting.counts().bytes_read < 4 << 30, "{:?}", counting.counts());
}

#[test]
fn a_missing_segment_in_the_middle_is_noticed() {
    for streams in [1, 2] {
        let fs = crashed_log(2, streams);
        fs.remove_file("/db/wal/00/0000000000000001".as_ref()).expect("is there");
        let outcome = outcome_of(&fs, open_range(1, 1));
        assert!(matches!(outcome, Err(ReplayError::Corrupt { durable: Lsn(99), .. })), "{outcome:?}");
    }
}

#[test]
fn a_damaged_start_of_a_segment_is_noticed_even_in_the_last_one() {
    let fs = crashed_log(1, 1);
    let last = "/db/wal/00/0000000000000006";
    fs.corrupt(last.as_ref(), 0, 128, 9).expect("is there");
    let outcome = outcome_of(&fs, open_range(1, 1));
    assert!(
        matches!(outcome, Err(ReplayError::Corrupt { missing: Lsn(97), durable: Lsn(99), .. })),
        "{outcome:?}"
    );
}

#[test]
fn a_lost_stream_is_noticed() {
    let fs = crashed_log(2, 2);
    for path in segments(&fs).iter().filter(|path| path.starts_with("/db/wal/01")) {
        fs.remove_file(path).expect("is there");
    }
    let outcome = outcome_of(&fs, open_range(1, 1));
    assert!(
        matches!(outcome, Err(ReplayError::Corrupt { missing: Lsn(2), durable: Lsn(98 | 99), .. })),
        "{outcome:?}"
    );
}

#[test]
fn the_very_last_chunk_may_be_torn_without_a_witness() {
    let fs = crashed_log(1, 1);
    fs.corrupt("/db/wal/00/0000000000000006".as_ref(), 3 * 4096 + 200, 8, 2).expect("is there");
    assert_eq!(read(&fs, &[open_range(1, 1)], 1).0.last_lsn, Lsn(99));
}

#[test]
fn a_closed_log_detects_damage_of_its_last_chunk() {
    for streams in [1, 2] {
        let fs = FaultFs::new();
        let wal = create(&fs, small(2, streams));
        let lsn = wal.append(log_buffer(1), &body(0, 1, 500)).expect("appends");
        wal.append(log_buffer(0), &body(0, 2, 500)).expect("appends");
        wal.close().expect("closes");
        assert_eq!(read(&fs, &[open_range(1, 1)], 1).0.last_lsn, Lsn(2));
        let file = format!("/db/wal/{:02}/0000000000000000", streams - 1);
        fs.corrupt(file.as_ref(), 300, 4, 3).expect("is there");
        let outcome = outcome_of(&fs, open_range(1, 1));
        assert!(matches!(outcome, Err(ReplayError::Corrupt { durable: Lsn(2), .. })), "{lsn}: {outcome:?}");
    }
}

#[test]
fn a_range_whose_end_is_known_must_be_whole() {
    let fs = crashed_log(1, 1);
    assert_eq!(read(&fs, &[closed_range(1, 1, 100)], 1).0.last_lsn, Lsn(100));
    let (found, _) = read(&fs, &[closed_range(1, 1, 60)], 1);
    assert_eq!((found.last_lsn, found.max_lsn_seen), (Lsn(60), Lsn(100)), "the rest is void, but seen");
    let outcome = outcome_of(&fs, closed_range(1, 1, 101));
    assert!(
        matches!(outcome, Err(ReplayError::Corrupt { missing: Lsn(101), durable: Lsn(101), .. })),
        "{outcome:?}"
    );
}

#[test]
fn a_device_that_cannot_be_read_is_not_an_end() {
    let fs = crashed_log(2, 2);
    let reads_before = fs.read_count();
    read(&fs, &[open_range(1, 1)], 1);
    let reads = fs.read_count() - reads_before;
    for n in 1..=reads {
        fs.fail_read_at(n);
        let outcome = outcome_of(&fs, open_range(1, 1));
        assert!(matches!(outcome, Err(ReplayError::Io { .. })), "read {n} of {reads}: {outcome:?}");
        fs.heal();
    }
}

/// A file system that cannot look up names, such as a network file system without its server.
#[derive(Debug)]
struct Blind;

fn blind<T>() -> io::Result<T> {
    Err(io::Error::other("cannot look up a name"))
}

impl Fs for Blind {
    fn open(&self, _: &Path, _: OpenOptions) -> io::Result<Arc<dyn File>> {
        blind()
    }

    fn create_dir_all(&self, _: &Path) -> io::Result<()> {
        blind()
    }

    fn list_dir(&self, _: &Path) -> io::Result<Vec<String>> {
        blind()
    }

    fn exists(&self, _: &Path) -> bool {
        false
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        blind()
    }

    fn remove_file(&self, _: &Path) -> io::Result<()> {
        blind()
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        blind()
    }

    fn lock_exclusive(&self, _: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        blind()
    }

    fn lock_shared(&self, _: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        blind()
    }
}

#[test]
fn a_log_that_cannot_be_looked_up_is_not_an_empty_log() {
    let outcome = try_read(&Blind, &[open_range(1, 1)], 1);
    assert!(matches!(outcome, Err(ReplayError::Io { .. })), "{outcome:?}");
    let newest = newest_incarnation(&Blind, dir(), DATABASE);
    assert!(newest.is_err(), "{newest:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any damage of the bytes gives an error or a true prefix of the log, without a panic.
    #[test]
    fn mutated_bytes_give_an_error_or_a_true_prefix(
        log_buffers in 1usize..4,
        wounds in prop::collection::vec(
            (any::<prop::sample::Index>(), 0u64..65536, 1u64..5000, any::<u64>()), 1..4,
        ),
    ) {
        let fs = FaultFs::new();
        let wal = create(&fs, small(log_buffers, 1 + log_buffers / 2));
        for n in 0..60 {
            wal.append(log_buffer(n as usize), &body(0, n + 1, 100)).expect("appends");
            if n % 5 == 0 {
                wal.make_durable(Lsn::MAX).expect("durable");
            }
        }
        drop(wal);
        let fs = fs.kill();
        let files = segments(&fs);
        for (which, offset, len, seed) in wounds {
            let path = which.get(&files);
            let len = len.min(65536 - offset);
            fs.corrupt(path, offset, len, seed).expect("is there");
        }
        match try_read(&fs, &[open_range(1, 1)], 1) {
            Ok((found, records)) => {
                prop_assert_eq!(found.last_lsn.0, records.len() as u64);
                for (lsn, got) in records {
                    prop_assert_eq!(got, body(0, lsn, 100));
                }
            }
            Err(ReplayError::Corrupt { .. }) => {}
            Err(other) => prop_assert!(false, "{}", other),
        }
        // A new incarnation beside the damaged one, and a trim, must work as well.
        let options = WalOptions { segment_bytes: 32 << 10, ..small(2, 1) };
        let wal = try_create(&fs, identity(2, 1000), options).expect("creates");
        wal.trim(Lsn(1000)).expect("trims");
    }

    /// Random bytes, with a valid header for them, are parsed or refused.
    #[test]
    fn any_payload_behind_a_valid_header_is_parsed_or_refused(
        payload in prop::collection::vec(any::<u8>(), 0..300),
        blocks in 0u32..4,
    ) {
        use azekura_wal::chunk::{Header, Place, parse_payload};
        let header = Header {
            place: Place { database_id: 1, stream: 0, segment: 0, offset: 0 },
            incarnation: 1, number: 0, payload_bytes: payload.len() as u32, payload_crc: 0, blocks,
            first_lsn: 1, last_lsn: 3, complete_below: 4, durable_lsn: 0, max_before: 0,
        };
        if let Some(parsed) = parse_payload(&header, &payload) {
            prop_assert_eq!(parsed.len(), blocks as usize);
        }
    }
}
