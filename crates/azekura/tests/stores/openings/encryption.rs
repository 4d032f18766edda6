//! Tests of encryption at rest: no file of an encrypted store contains a part of a row, damage is refused,
//! and no nonce repeats.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura::{Builder, Database, Error, LogProtocol, Restore, TableDefinition};
use azekura_base::checksum::crc32c;
use azekura_base::{PageId, page::image};
use azekura_io::{FaultFs, Fs, MemFs};

const ROWS: TableDefinition<str, [u8]> = TableDefinition::new("rows");
const KEY: [u8; 32] = [7; 32];
const PAGE: usize = 4096;
/// Text that is a part of each key and each value.
const MARKER: &str = "the quick brown fox";

fn builder(fs: &FaultFs) -> Builder {
    Database::builder()
        .page_size(PAGE)
        .cache_bytes(64 * PAGE)
        .wal_segment_bytes(2 << 20)
        .wal_streams(2)
        .background(false)
        .file_system(Arc::new(fs.clone()))
}

fn encrypted(fs: &FaultFs) -> Builder {
    builder(fs).encryption_key(&KEY)
}

fn key(n: u64) -> String {
    format!("{n:05} {MARKER}")
}

/// Returns a value; every tenth value is stored in overflow pages.
fn value(n: u64) -> Vec<u8> {
    MARKER.repeat(if n.is_multiple_of(10) { 600 } else { 5 }).into_bytes()
}

fn put(db: &Database, range: std::ops::Range<u64>) {
    for n in range {
        db.transact(|tx| tx.table(&ROWS)?.insert(&key(n), &value(n))).unwrap();
    }
}

fn assert_rows(db: &Database, count: u64) {
    let rows = db.transact(|tx| tx.table(&ROWS)?.iter().collect::<Result<Vec<_>, _>>()).unwrap();
    assert_eq!(rows.len() as u64, count);
    for (n, (found_key, found)) in (0..).zip(rows) {
        assert!(found_key == key(n) && found == value(n), "row {n}");
    }
    let report = db.check(&mut |_, _| {}).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

#[test]
fn rows_survive_a_crash_and_are_read_with_the_key_only() {
    let fs = FaultFs::new();
    let db = encrypted(&fs).open("/db").unwrap();
    assert!(db.is_encrypted());
    put(&db, 0..100);
    db.checkpoint().unwrap();
    put(&db, 100..200);
    let crashed = fs.crash(1);
    drop(db);
    let missing = builder(&crashed).open("/db").unwrap_err();
    assert!(matches!(missing, Error::EncryptionKeyMissing { ref path, .. } if path == Path::new("/db")));
    assert!(missing.to_string().contains("/db") && missing.to_string().contains("--key-file"), "{missing}");
    let wrong = builder(&crashed).encryption_key(&[8; 32]).open("/db").unwrap_err();
    assert!(
        matches!(wrong, Error::WrongEncryptionKey { ref path, .. } if path == Path::new("/db")),
        "{wrong}"
    );
    let reader = encrypted(&crashed).read_only(true).open("/db").unwrap();
    assert_rows(&reader, 200);
    drop(reader);
    let db = encrypted(&crashed).open("/db").unwrap();
    assert_rows(&db, 200);
    db.close().unwrap();
    assert_rows(&encrypted(&crashed).open("/db").unwrap(), 200);
}

/// Writers, the cleaner and the checkpointer work at the same time, with direct I/O of pages and a cache that
/// is smaller than the rows.
#[test]
fn threads_and_background_jobs_work_on_an_encrypted_store() {
    const THREADS: u64 = 4;
    const ROWS_OF_THREAD: u64 = 150;
    let fs = FaultFs::with_alignment(512);
    let open = |fs: &FaultFs| encrypted(fs).direct_pages(true).background(true).open("/db").unwrap();
    let db = open(&fs);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let db = &db;
            scope.spawn(move || put(db, thread * ROWS_OF_THREAD..(thread + 1) * ROWS_OF_THREAD));
        }
    });
    assert_rows(&db, THREADS * ROWS_OF_THREAD);
    // Checked before the crash, which may undo an unsynced growth of the file.
    assert!(fs.contents(Path::new("/db/pages")).unwrap().len() > 4 * 64 * PAGE, "larger than the cache");
    let crashed = fs.crash(9);
    drop(db);
    assert_rows(&open(&crashed), THREADS * ROWS_OF_THREAD);
    assert_eq!(marked(&crashed), Vec::<PathBuf>::new());
}

#[test]
fn a_key_is_refused_where_it_has_no_effect() {
    let fs = FaultFs::new();
    drop(builder(&fs).open("/db").unwrap());
    let refused = encrypted(&fs).open("/db").unwrap_err();
    assert!(matches!(refused, Error::NotEncrypted { ref path } if path == Path::new("/db")), "{refused}");
    let serial = encrypted(&fs).log_protocol(LogProtocol::Serial).open("/other").unwrap_err();
    assert!(serial.to_string().contains("P-WAL"), "{serial}");
    let far = encrypted(&fs).far_cache(["127.0.0.1:1"], 1 << 20).open("/other").unwrap_err();
    assert!(far.to_string().contains("far cache"), "{far}");
    assert!(fs.files().iter().all(|path| path.starts_with("/db")), "a refused call leaves no files");
    assert!(!encrypted(&fs).open_in_memory().unwrap().is_encrypted());
}

#[test]
fn a_creation_that_lost_its_pages_is_completed_with_the_key() {
    let fs = FaultFs::new();
    drop(encrypted(&fs).open("/db").unwrap());
    fs.remove_file(Path::new("/db/pages")).unwrap();
    assert!(matches!(builder(&fs).open("/db"), Err(Error::EncryptionKeyMissing { .. })));
    let db = encrypted(&fs).open("/db").unwrap();
    put(&db, 0..3);
    assert_rows(&db, 3);
}

#[test]
fn after_a_change_only_the_new_key_opens_the_store() {
    let fs = FaultFs::new();
    let db = encrypted(&fs).archive("/archive").open("/db").unwrap();
    put(&db, 0..30);
    let pages = fs.contents(Path::new("/db/pages")).unwrap();
    db.change_encryption_key(&[9; 32]).unwrap();
    assert!(pages == fs.contents(Path::new("/db/pages")).unwrap(), "no page is written");
    // Each slot of the control file is tested alone.
    for spoilt in 0..2 {
        let one = fs.crash_keeping_all();
        one.corrupt(Path::new("/db/CONTROL"), spoilt * (16 << 10) + 24, 40, 1).unwrap();
        assert!(matches!(encrypted(&one).open("/db"), Err(Error::WrongEncryptionKey { .. })));
    }
    put(&db, 30..50);
    db.compaction().into_directory("/small").unwrap();
    db.backup().file_system(Arc::new(fs.clone())).to_directory("/backup").unwrap();
    let time = db.archive_log().unwrap();
    drop(db);
    let new_key = || builder(&fs).encryption_key(&[9; 32]);
    for store in ["/db", "/small"] {
        assert!(matches!(encrypted(&fs).open(store), Err(Error::WrongEncryptionKey { .. })), "{store}");
        assert_rows(&new_key().open(store).unwrap(), 50);
    }
    let restore = Restore::new().file_system(Arc::new(fs.clone())).archive("/archive").to_time(time);
    restore.builder(new_key()).from_directory("/backup", "/copy").unwrap();
    assert_rows(&new_key().open("/copy").unwrap(), 50);
    let plain = FaultFs::new();
    let db = builder(&plain).open("/db").unwrap();
    assert!(matches!(db.change_encryption_key(&KEY), Err(Error::NotEncrypted { .. })));
}

/// The bases of a backup and the files of the archive have the data key under other keys of the caller. The
/// first change is made without the archive, so that one file of it has commits before and after the change.
#[test]
fn a_restore_needs_only_the_key_of_its_backup() {
    let fs = FaultFs::new();
    let disk: Arc<dyn Fs> = Arc::new(fs.clone());
    let with = |n: u8| builder(&fs).encryption_key(&[n; 32]);
    let change = |db: Database, new: u8| {
        db.change_encryption_key(&[new; 32]).unwrap();
        db.close().unwrap();
    };
    let db = with(1).archive("/archive").open("/db").unwrap();
    put(&db, 0..20);
    db.backup().file_system(Arc::clone(&disk)).to_directory("/backup 1").unwrap();
    put(&db, 20..30);
    db.close().unwrap();
    change(with(1).open("/db").unwrap(), 2);
    let db = with(2).archive("/archive").open("/db").unwrap();
    put(&db, 30..40);
    db.backup().file_system(Arc::clone(&disk)).since("/backup 1").to_directory("/backup 2").unwrap();
    put(&db, 40..50);
    change(db, 3);
    let db = with(3).archive("/archive").open("/db").unwrap();
    db.backup().file_system(Arc::clone(&disk)).since("/backup 2").to_directory("/backup 3").unwrap();
    put(&db, 50..60);
    db.close().unwrap();
    for n in 1..=3 {
        let restore = || Restore::new().file_system(Arc::clone(&disk)).base("/backup 1").base("/backup 2");
        let (from, to, other) = (format!("/backup {n}"), format!("/copy {n}"), n % 3 + 1);
        let wrong = restore().builder(with(other)).from_directory(&from, &to).unwrap_err();
        assert!(matches!(wrong, Error::WrongEncryptionKey { .. }), "{wrong}");
        restore().builder(with(n)).archive("/archive").from_directory(&from, &to).unwrap();
        assert_rows(&with(n).open(&to).unwrap(), 60);
    }
}

/// Returns the files that contain the marker, or any eight bytes of it.
fn marked(fs: &FaultFs) -> Vec<PathBuf> {
    let parts: Vec<&[u8]> = MARKER.as_bytes().windows(8).collect();
    let has_part = |bytes: &[u8]| bytes.windows(8).any(|eight| parts.contains(&eight));
    fs.files().into_iter().filter(|path| fs.contents(path).is_some_and(|bytes| has_part(&bytes))).collect()
}

/// Loads, crashes, recovers, backs up, archives, compacts and restores. Returns the files that at any time
/// contained a part of a row, and all files.
fn traces(with_key: bool) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let fs = FaultFs::new();
    let open = |fs: &FaultFs| if with_key { encrypted(fs) } else { builder(fs) };
    let db = open(&fs).archive("/archive").open("/db").unwrap();
    let mut sorter = db.row_sorter(1 << 16);
    (0..2000).rev().for_each(|n| sorter.push(key(n).as_bytes(), &value(n)).unwrap());
    assert!(sorter.runs() > 0);
    let mut found = marked(&fs);
    let mut all = fs.files();
    let mut look = |fs: &FaultFs| {
        found.extend(marked(fs));
        all.extend(fs.files());
    };
    assert_eq!(sorter.into_sorted().unwrap().map(Result::unwrap).count(), 2000);
    let loaded: TableDefinition<str, [u8]> = TableDefinition::new("loaded");
    let rows = (0..300).rev().map(|n| (key(n), value(n)));
    db.transact(|tx| tx.table(&loaded)?.bulk_load_unsorted(rows.clone(), 1 << 20).map(drop)).unwrap();
    put(&db, 0..40);
    look(&fs);
    db.checkpoint().unwrap();
    put(&db, 40..200);
    look(&fs);
    let crashed = fs.crash(3);
    drop(db);
    let db = open(&crashed).archive("/archive").open("/db").unwrap();
    look(&crashed);
    assert_rows(&db, 200);
    db.checkpoint().unwrap();
    let disk: Arc<dyn Fs> = Arc::new(crashed.clone());
    db.backup().file_system(Arc::clone(&disk)).to_directory("/full").unwrap();
    put(&db, 200..220);
    db.backup().file_system(Arc::clone(&disk)).since("/full").to_directory("/incremental").unwrap();
    db.archive_log().unwrap();
    put(&db, 220..230);
    let time = db.archive_log().unwrap();
    look(&crashed);
    db.compaction().into_directory("/small").unwrap();
    drop(db);
    look(&crashed);
    let restore = || Restore::new().file_system(Arc::clone(&disk)).builder(open(&crashed)).verify(true);
    restore().base("/full").from_directory("/incremental", "/copy").unwrap();
    restore().archive("/archive").to_time(time).from_directory("/full", "/later").unwrap();
    look(&crashed);
    assert_rows(&open(&crashed).open("/copy").unwrap(), 220);
    assert_rows(&open(&crashed).open("/later").unwrap(), 230);
    assert_rows(&open(&crashed).open("/small").unwrap(), 230);
    look(&crashed);
    (found, all)
}

/// Returns the directories of files.
fn directories(paths: &[PathBuf]) -> BTreeSet<&Path> {
    paths.iter().filter_map(|path| path.parent()).collect()
}

#[test]
fn no_file_of_an_encrypted_store_has_a_part_of_a_row() {
    let (found, all) = traces(true);
    assert_eq!(found, Vec::<PathBuf>::new());
    let (plain, plain_all) = traces(false);
    assert_eq!(directories(&all), directories(&plain_all));
    let plain: Vec<String> = plain.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    for part in
        ["/db/pages", "/db/dw", "/db/wal", "/db/sort", "/full", "/incremental", "/archive", "/copy", "/small"]
    {
        assert!(
            plain.iter().any(|path| path.starts_with(part)),
            "the marker is not found in {part}: {plain:?}"
        );
    }
}

/// Returns a closed store with at least one page of rows.
fn closed(rows: u64) -> FaultFs {
    let fs = FaultFs::new();
    let db = encrypted(&fs).open("/db").unwrap();
    put(&db, 0..rows);
    db.close().unwrap();
    drop(db);
    fs
}

fn write(fs: &FaultFs, path: &str, offset: usize, bytes: &[u8]) {
    let file = fs.open(Path::new(path), azekura_io::OpenOptions::new()).unwrap();
    file.write_at(offset as u64, bytes).unwrap();
}

fn read_all(fs: &FaultFs) -> Result<usize, Error> {
    let db = encrypted(fs).open("/db")?;
    db.transact(|tx| {
        let mut rows = 0;
        for (n, row) in (0..).zip(tx.table(&ROWS)?.iter()) {
            let (found_key, found) = row?;
            assert!(found_key == key(n) && found == value(n), "wrong row {n}");
            rows += 1;
        }
        Ok(rows)
    })
}

#[test]
fn a_page_with_a_changed_bit_and_a_right_checksum_is_refused() {
    let fs = closed(40);
    let pages = fs.contents(Path::new("/db/pages")).unwrap();
    assert_eq!(read_all(&fs.crash_keeping_all()).unwrap(), 40);
    let mut refused = 0;
    for at in (PAGE..pages.len() - PAGE).step_by(PAGE) {
        let page = &pages[at..at + PAGE];
        if image::is_zero(page) {
            continue;
        }
        // Bytes of the header without the page number and the page LSN, which other checks cover; of the
        // rows; and of tag, nonce, key number and zeroes.
        for byte in [4, 5, 6, 7, 24, 700, 2000, PAGE - 48, PAGE - 30, PAGE - 10, PAGE - 8, PAGE - 1] {
            let mut changed = page.to_vec();
            changed[byte] ^= 0x10;
            image::seal(&mut changed);
            let fs = fs.crash_keeping_all();
            write(&fs, "/db/pages", at, &changed);
            match read_all(&fs) {
                Ok(rows) => assert_eq!(rows, 40, "page at {at}, byte {byte}: not read"),
                Err(Error::CorruptPage { reason, .. }) => {
                    assert!(reason.contains("cannot be decrypted"), "{reason}");
                    refused += 1;
                }
                Err(other) => panic!("page at {at}, byte {byte}: {other}"),
            }
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn a_page_in_the_place_of_another_one_is_refused() {
    let fs = closed(200);
    let pages = fs.contents(Path::new("/db/pages")).unwrap();
    let leaves: Vec<usize> = (2 * PAGE..pages.len() - PAGE)
        .step_by(PAGE)
        .filter(|&at| pages[at + 4] == 3 && image::lsn(&pages[at..]).0 > 0)
        .collect();
    assert!(leaves.len() > 4, "{leaves:?}");
    let mut refused = 0;
    for pair in leaves.windows(2) {
        let mut moved = pages[pair[0]..pair[0] + PAGE].to_vec();
        // The attacker gives the page the page number and the page LSN of its new position.
        moved[8..24].copy_from_slice(&pages[pair[1] + 8..pair[1] + 24]);
        image::seal(&mut moved);
        assert!(image::is_intact(&moved, PageId((pair[1] / PAGE) as u64 - 1)));
        let fs = fs.crash_keeping_all();
        write(&fs, "/db/pages", pair[1], &moved);
        match read_all(&fs) {
            Ok(rows) => assert_eq!(rows, 200),
            Err(error) => {
                assert!(matches!(error, Error::CorruptPage { .. }), "{error}");
                assert!(error.to_string().contains("cannot be decrypted"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 4, "{refused}");
}

#[test]
fn a_log_chunk_with_a_changed_bit_and_right_checksums_is_refused() {
    let fs = FaultFs::new();
    let db = encrypted(&fs).open("/db").unwrap();
    put(&db, 0..20);
    let crashed = fs.crash_keeping_all();
    drop(db);
    assert_eq!(read_all(&crashed.crash_keeping_all()).unwrap(), 20);
    let segments: Vec<PathBuf> =
        crashed.files().into_iter().filter(|path| path.starts_with("/db/wal")).collect();
    let mut chunks = 0;
    for path in &segments {
        let bytes = crashed.contents(path).unwrap();
        for at in (0..bytes.len()).step_by(4096).filter(|&at| bytes[at + 8..].starts_with(b"AzWL")) {
            let length = u32::from_le_bytes(bytes[at + 56..][..4].try_into().unwrap()) as usize;
            assert!(length >= 48, "each chunk has a trailer");
            // Bytes of `complete_below` in the header, and of the payload: the first, a middle one, and one
            // in the trailer.
            for byte in [80, 128, 128 + length / 2, 128 + length - 1] {
                let mut chunk = bytes[at..at + 128 + length].to_vec();
                chunk[byte] ^= 1;
                let crc = crc32c(&chunk[128..]);
                chunk[4..8].copy_from_slice(&crc.to_le_bytes());
                let crc = crc32c(&chunk[4..128]);
                chunk[..4].copy_from_slice(&crc.to_le_bytes());
                let fs = crashed.crash_keeping_all();
                write(&fs, path.to_str().unwrap(), at, &chunk);
                let error = read_all(&fs).unwrap_err();
                assert!(matches!(error, Error::Corrupt { .. }), "{error}");
                assert!(error.to_string().contains("cannot be decrypted"), "{error}");
                chunks += 1;
            }
        }
    }
    assert!(chunks > 40, "{chunks}");
}

/// All nonces found so far, each with a checksum of its encrypted unit.
#[derive(Default)]
struct Nonces {
    seen: BTreeMap<Vec<u8>, u32>,
}

impl Nonces {
    fn unit(&mut self, unit: &[u8], what: &str) {
        let nonce = unit[unit.len() - 32..unit.len() - 8].to_vec();
        let crc = crc32c(unit);
        let before = self.seen.insert(nonce, crc);
        assert!(before.is_none_or(|before| before == crc), "a nonce was used twice: {what}");
    }

    /// Records the nonces of all pages, slots of the double-write area, and log chunks.
    fn look(&mut self, fs: &FaultFs) {
        for path in fs.files() {
            let Some(bytes) = fs.contents(&path) else { continue };
            let is_log = path.to_string_lossy().contains("/wal/");
            let is_pages = path.ends_with("pages") || path.ends_with("dw");
            for block in bytes.chunks_exact(PAGE) {
                if is_pages && image::is_intact(block, image::id(block)) {
                    self.unit(&block[24..], &path.to_string_lossy());
                }
            }
            for at in (0..bytes.len()).step_by(4096).filter(|&at| is_log && bytes[at..].len() >= 128) {
                let length = u32::from_le_bytes(bytes[at + 56..][..4].try_into().unwrap()) as usize;
                let Some(payload) = bytes.get(at + 128..at + 128 + length) else { continue };
                let is_chunk = bytes[at + 8..].starts_with(b"AzWL");
                if is_chunk && crc32c(payload).to_le_bytes() == bytes[at + 4..at + 8] {
                    self.unit(payload, &path.to_string_lossy());
                }
            }
        }
    }
}

#[test]
fn no_nonce_repeats_over_crashes_copies_and_restores() {
    let mut nonces = Nonces::default();
    let mut disk = FaultFs::new();
    for life in 0..12_u64 {
        // Two stores continue from the same files, like a store and its copy.
        for copy in 0..2 {
            let twin = disk.crash_keeping_all();
            let db = encrypted(&twin).open("/db").unwrap();
            put(&db, 0..10);
            nonces.look(&twin);
            db.checkpoint().unwrap();
            put(&db, 5..15);
            nonces.look(&twin);
            let crashed = twin.crash(2 * life + copy);
            drop(db);
            if copy == 1 {
                disk = crashed;
            }
        }
    }
    let db = encrypted(&disk).open("/db").unwrap();
    let backups: Arc<dyn Fs> = Arc::new(disk.clone());
    db.backup().file_system(Arc::clone(&backups)).to_directory("/backup").unwrap();
    drop(db);
    for copy in ["/one", "/other"] {
        let restore = Restore::new().file_system(Arc::clone(&backups)).builder(encrypted(&disk));
        restore.from_directory("/backup", copy).unwrap();
        nonces.look(&disk);
    }
    let wrapped = |store: &str| disk.contents(&Path::new(store).join("CONTROL")).unwrap();
    assert!(wrapped("/one") != wrapped("/other"));
    assert!(nonces.seen.len() > 500, "{}", nonces.seen.len());
}

#[test]
fn backups_and_archives_need_the_key_and_refuse_changed_bytes() {
    let fs = FaultFs::new();
    let disk: Arc<dyn Fs> = Arc::new(fs.clone());
    let db = encrypted(&fs).archive("/archive").open("/db").unwrap();
    put(&db, 0..50);
    db.backup().file_system(Arc::clone(&disk)).to_directory("/backup").unwrap();
    put(&db, 50..60);
    db.archive_log().unwrap();
    drop(db);
    let restore = |builder: Builder| Restore::new().file_system(Arc::clone(&disk)).builder(builder);
    let refused = restore(builder(&fs)).from_directory("/backup", "/copy").unwrap_err();
    assert!(matches!(refused, Error::EncryptionKeyMissing { .. }), "{refused}");
    assert!(refused.to_string().contains("backup.azk"), "{refused}");
    let refused = restore(builder(&fs).encryption_key(&[1; 32])).verify_directory("/backup").unwrap_err();
    assert!(matches!(refused, Error::WrongEncryptionKey { .. }), "{refused}");
    assert!(fs.files().iter().all(|path| !path.starts_with("/copy")), "a refused restore leaves no files");
    let report = restore(encrypted(&fs)).verify_directory("/backup").unwrap();
    assert_eq!(report.rows, 50);
    let bytes = fs.contents(Path::new("/backup/backup.azk")).unwrap();
    for at in (0..bytes.len()).step_by(97) {
        let changed = fs.crash_keeping_all();
        changed.flip_bit(Path::new("/backup/backup.azk"), at as u64, 3).unwrap();
        let restore = Restore::new().file_system(Arc::new(changed.clone())).builder(encrypted(&changed));
        assert!(restore.verify_directory("/backup").is_err(), "byte {at}");
    }
    restore(encrypted(&fs)).archive("/archive").from_directory("/backup", "/later").unwrap();
    assert_rows(&encrypted(&fs).open("/later").unwrap(), 60);
}

#[test]
fn a_plain_backup_is_restored_into_an_encrypted_store() {
    let fs = FaultFs::new();
    let disk: Arc<dyn Fs> = Arc::new(fs.clone());
    let db = builder(&fs).open("/db").unwrap();
    put(&db, 0..50);
    let longest = TableDefinition::<[u8], [u8]>::new("longest keys");
    let rows = || (0..40_usize).map(|n| (vec![n as u8; PAGE / 4], vec![7; n * 40]));
    db.transact(|tx| {
        let table = tx.table(&longest)?;
        rows().try_for_each(|(key, value)| table.insert(&key, &value))
    })
    .unwrap();
    db.backup().file_system(Arc::clone(&disk)).to_directory("/backup").unwrap();
    drop(db);
    Restore::new().file_system(disk).builder(encrypted(&fs)).from_directory("/backup", "/copy").unwrap();
    let db = encrypted(&fs).open("/copy").unwrap();
    assert!(db.is_encrypted());
    assert_rows(&db, 50);
    let found = db.transact(|tx| tx.table(&longest)?.iter().collect::<Result<Vec<_>, _>>()).unwrap();
    assert!(found == rows().collect::<Vec<_>>());
    assert!(marked(&fs).iter().all(|path| !path.starts_with("/copy")));
}

/// Stores with and without encryption have different versions, and keys of the same length.
#[test]
fn an_encrypted_store_has_a_format_version_of_its_own() {
    for (with_key, version) in [(false, 9_u32), (true, 10)] {
        let fs = FaultFs::new();
        drop(if with_key { encrypted(&fs) } else { builder(&fs) }.open("/db").unwrap());
        let control = fs.contents(Path::new("/db/CONTROL")).unwrap();
        assert_eq!(control[16 * 1024 + 8..][..4], version.to_le_bytes());
    }
    let memory = MemFs::new();
    let open =
        || Database::builder().page_size(PAGE).encryption_key(&KEY).file_system(Arc::new(memory.clone()));
    let db = open().open("/db").unwrap();
    assert_eq!(db.max_key_bytes(), PAGE / 4, "the limit of a store without encryption");
}
