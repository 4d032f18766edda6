//! Tests of the caller's key: key sources, the change of the key with faults at each I/O, and a damaged key
//! record.

use std::path::Path;
use std::sync::{Arc, Mutex};

use azekura::{Builder, Database, EncryptionKey, Error, ErrorKind, Restore, TableDefinition};
use azekura_base::checksum::{crc32c, crc32c_append};
use azekura_io::{FailKind, FaultFs, Fs, OpenOptions};

const ROWS: TableDefinition<u32, [u8]> = TableDefinition::new("rows");
const PAGE: usize = 4096;
const SLOT: usize = 16 * 1024;
/// Size of a slot's head in CONTROL.
const HEAD: usize = 24;
/// Size of a wrapped data key.
const WRAPPED: usize = 80;

fn plain(fs: &FaultFs) -> Builder {
    Database::builder()
        .page_size(PAGE)
        .cache_bytes(64 * PAGE)
        .wal_segment_bytes(2 << 20)
        .wal_streams(1)
        .background(false)
        .file_system(Arc::new(fs.clone()))
}

fn with(fs: &FaultFs, key: u8) -> Builder {
    plain(fs).encryption_key(&[key; 32])
}

fn put(db: &Database, rows: std::ops::Range<u32>) {
    for n in rows {
        db.transact(|tx| tx.table(&ROWS)?.insert(&n, &vec![7; 300])).unwrap();
    }
}

fn assert_rows(db: &Database, count: usize) {
    assert_eq!(db.transact(|tx| Ok(tx.table(&ROWS)?.iter().count())).unwrap(), count);
    let report = db.check(&mut |_, _| {}).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// A key service with the keys "key 1" to "key 9", which notes the ids that it is asked for.
#[derive(Clone, Default)]
struct Service(Arc<Mutex<Vec<String>>>);

impl Service {
    fn builder(&self, fs: &FaultFs, new: &str) -> Builder {
        let asked = Arc::clone(&self.0);
        plain(fs).encryption_key_source(new, move |id| {
            asked.lock().unwrap().push(id.to_owned());
            let number = id.strip_prefix("key ").and_then(|number| number.parse().ok());
            number.map(|number: u8| [number; 32]).ok_or_else(|| format!("the service has no key {id:?}"))
        })
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn key(number: u8) -> EncryptionKey {
    EncryptionKey::with_id(format!("key {number}"), &[number; 32])
}

#[test]
fn a_key_source_is_asked_for_the_id_in_the_store() {
    let (fs, service) = (FaultFs::new(), Service::default());
    let disk: Arc<dyn Fs> = Arc::new(fs.clone());
    let restore = || Restore::new().file_system(Arc::clone(&disk));
    let db = service.builder(&fs, "key 1").archive("/archive").open("/db").unwrap();
    assert_eq!(db.encryption_key_id().as_deref(), Some("key 1"));
    put(&db, 0..50);
    db.backup().file_system(Arc::clone(&disk)).to_directory("/full").unwrap();
    db.change_encryption_key(key(2)).unwrap();
    assert_eq!(db.encryption_key_id().as_deref(), Some("key 2"));
    // The changed catalog makes the backup read the base, which has the data key under the old key.
    let other: TableDefinition<u32, u32> = TableDefinition::new("other");
    db.transact(|tx| tx.table(&other)?.insert(&1, &1)).unwrap();
    db.backup().file_system(Arc::clone(&disk)).since("/full").to_directory("/newer").unwrap();
    let size = |path: &str| fs.contents(Path::new(path)).unwrap().len();
    assert!(size("/newer/backup.azk") < size("/full/backup.azk") / 2, "unchanged rows are not copied");
    put(&db, 50..60);
    db.compaction().into_directory("/small").unwrap();
    drop(db);
    service.asked();

    // The id of the builder counts for a new store only.
    let db = service.builder(&fs, "key 9").archive("/archive").open("/db").unwrap();
    assert_rows(&db, 60);
    assert_eq!(service.asked(), ["key 2"]);
    drop(db);
    assert_rows(&service.builder(&fs, "").open("/small").unwrap(), 60);
    assert_eq!(service.asked(), ["key 2"], "a compacted store has the id of its source");
    assert_rows(&with(&fs, 2).open("/db").unwrap(), 60);
    let builder = service.builder(&fs, "key 3");
    let from_newer = restore().builder(builder.clone()).base("/full").archive("/archive");
    from_newer.from_directory("/newer", "/copy").unwrap();
    assert_eq!(service.asked(), ["key 2", "key 3", "key 3"]);
    restore().builder(with(&fs, 2)).base("/full").from_directory("/newer", "/named").unwrap();
    let named = with(&fs, 2).open("/named").unwrap();
    assert_eq!(named.encryption_key_id().as_deref(), Some("key 2"), "the id is that of the backup");
    restore().builder(builder).verify_directory("/full").unwrap();
    assert_eq!(service.asked(), ["key 1"]);
    assert_rows(&with(&fs, 3).open("/copy").unwrap(), 60);

    for (refused, wanted) in [
        (plain(&fs).open("/db").unwrap_err(), "give the key \"key 2\""),
        (with(&fs, 1).open("/db").unwrap_err(), "give the key \"key 2\""),
        (restore().builder(with(&fs, 2)).verify_directory("/full").unwrap_err(), "give the key \"key 1\""),
    ] {
        assert!(refused.to_string().contains(wanted), "{refused}");
        assert_eq!(refused.kind(), ErrorKind::Invalid);
    }
}

#[test]
fn an_error_of_the_key_source_changes_nothing() {
    let (fs, service) = (FaultFs::new(), Service::default());
    let refused = service.builder(&fs, "lost").open("/db").unwrap_err();
    let message = refused.full_message();
    assert!(message.contains("the key \"lost\" of /db") && message.contains("has no key"), "{message}");
    assert!(matches!(refused, Error::EncryptionKeyUnavailable { ref id, .. } if id == "lost"));
    drop(service.builder(&fs, "key 1").open("/db").unwrap());
    let failing = || plain(&fs).encryption_key_source("", |_| Err::<[u8; 32], _>("no network"));
    let refused = failing().open("/db").unwrap_err();
    assert!(refused.full_message().ends_with("no network"), "{refused}");
    drop(plain(&fs).open("/plain").unwrap());
    let refused = failing().open("/plain").unwrap_err();
    assert!(matches!(refused, Error::NotEncrypted { .. }), "{refused}");
    let long = EncryptionKey::with_id("x".repeat(513), &[1; 32]);
    let refused = plain(&fs).encryption_key(long.clone()).open("/long").unwrap_err();
    assert!(refused.to_string().contains("512"), "{refused}");
    let db = with(&fs, 1).open("/db").unwrap();
    assert!(matches!(db.change_encryption_key(long), Err(Error::Invalid(_))));
    db.change_encryption_key(EncryptionKey::with_id("x".repeat(512), &[2; 32])).unwrap();
    drop(db);
    assert!(!fs.exists(Path::new("/long")));
    drop(with(&fs, 2).open("/db").unwrap());
}

/// Returns the key with which the store opens: 1 or 2. The other one is refused.
fn opening_key(fs: &FaultFs) -> u8 {
    let opens = |key: u8| match with(&fs.crash_keeping_all(), key).open("/db") {
        Ok(db) => {
            assert_rows(&db, 40);
            true
        }
        Err(Error::WrongEncryptionKey { .. }) => false,
        Err(other) => panic!("{other}"),
    };
    match (opens(1), opens(2)) {
        (true, false) => 1,
        (false, true) => 2,
        both => panic!("opens with the old and the new key: {both:?}"),
    }
}

#[test]
fn a_change_of_the_key_survives_a_fault_at_each_io() {
    let disk = FaultFs::new();
    let db = with(&disk, 1).open("/db").unwrap();
    put(&db, 0..40);
    let before = disk.crash_keeping_all();
    drop(db);
    let opened = |fs: &FaultFs| with(fs, 1).open("/db").unwrap();
    let count = {
        let fs = before.crash_keeping_all();
        let db = opened(&fs);
        let first = fs.io_count();
        db.change_encryption_key(&[2; 32]).unwrap();
        fs.io_count() - first
    };
    assert_eq!(count, 2, "one write for each slot of CONTROL");
    for n in 1..=count {
        let mut seen = [false; 2];
        for seed in 0..40 {
            let fs = before.crash_keeping_all();
            let db = opened(&fs);
            fs.cut_power_at(n);
            assert!(db.change_encryption_key(&[2; 32]).is_err());
            let crashed = fs.crash(seed);
            let key = opening_key(&crashed);
            assert!(n == 1 || key == 2, "the first slot was written");
            seen[usize::from(key) - 1] = true;
            // The next change makes both slots new.
            let db = with(&crashed, key).open("/db").unwrap();
            db.change_encryption_key(&[2; 32]).unwrap();
            drop(db);
            assert_both_slots_have_the_new_key(&crashed);
        }
        assert_eq!(seen, [n == 1, true], "I/O {n}");
        let fs = before.crash_keeping_all();
        let db = opened(&fs);
        fs.fail_at(n, FailKind::Io);
        assert!(matches!(db.change_encryption_key(&[2; 32]), Err(Error::Io { .. })));
        opening_key(&fs.crash(n));
        put(&db, 0..1); // the store still works
        db.change_encryption_key(&[2; 32]).unwrap();
        assert_both_slots_have_the_new_key(&fs.crash_losing_all());
    }
}

fn assert_both_slots_have_the_new_key(fs: &FaultFs) {
    for damaged in 0..2 {
        let one = fs.crash_keeping_all();
        one.corrupt(Path::new("/db/CONTROL"), (damaged * SLOT + HEAD) as u64, 40, 1).unwrap();
        assert_eq!(opening_key(&one), 2);
    }
}

/// The power fails at each I/O of a compaction with a new key: the old store stays as it is, and the new one
/// is complete or refused.
#[test]
fn a_compaction_with_a_new_key_survives_a_power_cut_at_each_io() {
    let disk = FaultFs::new();
    let db = with(&disk, 1).open("/db").unwrap();
    put(&db, 0..40);
    db.close().unwrap();
    drop(db);
    let (mut complete, mut unfinished) = (0, 0);
    for n in 1.. {
        let fs = disk.crash_keeping_all();
        let db = with(&fs, 1).open("/db").unwrap();
        fs.cut_power_at(n);
        let outcome = db.compaction().encryption_key(&[2; 32]).into_directory("/new");
        if outcome.is_ok() {
            break;
        }
        let crashed = fs.crash(n);
        assert_eq!(opening_key(&crashed), 1);
        assert!(with(&crashed, 1).create(false).open("/new").is_err(), "I/O {n}: the old key");
        match with(&crashed, 2).create(false).open("/new") {
            Ok(db) => {
                assert_rows(&db, 40);
                complete += 1;
            }
            Err(Error::RestoreUnfinished { .. } | Error::NotFound { .. }) => unfinished += 1,
            Err(other) => panic!("I/O {n}: {other}"),
        }
    }
    assert!(unfinished > 10, "{unfinished} unfinished, {complete} complete");
}

/// The archive's file has no records at the change of the key. The power then fails while the archive grows.
#[test]
fn a_change_of_the_key_keeps_an_archive_without_records() {
    for n in 1.. {
        let mut is_complete = false;
        for seed in 0..8 {
            let fs = FaultFs::new();
            let db = with(&fs, 1).archive("/archive").open("/db").unwrap();
            db.backup().file_system(Arc::new(fs.clone())).to_directory("/full").unwrap();
            db.change_encryption_key(&[2; 32]).unwrap();
            fs.cut_power_at(n);
            let insert = |n| db.transact(|tx| tx.table(&ROWS)?.insert(&n, &vec![7; 300]));
            is_complete = (0..5).all(|n| insert(n).is_ok());
            let crashed = fs.crash(seed);
            drop(db);
            let db = with(&crashed, 2).archive("/archive").open("/db").unwrap();
            let rows = db.transact(|tx| Ok(tx.table(&ROWS)?.iter().count())).unwrap();
            db.archive_log().unwrap();
            db.close().unwrap();
            let restore = Restore::new().file_system(Arc::new(crashed.clone())).builder(with(&crashed, 1));
            let restored = restore.archive("/archive").from_directory("/full", "/copy");
            restored.unwrap_or_else(|error| panic!("I/O {n}, crash {seed}: {error}"));
            assert_rows(&with(&crashed, 1).open("/copy").unwrap(), rows);
        }
        if is_complete {
            break;
        }
    }
}

/// Changes the key record in each slot of CONTROL, with right checksums.
fn change_record(fs: &FaultFs, change: impl Fn(&mut [u8])) {
    let path = Path::new("/db/CONTROL");
    let mut bytes = fs.contents(path).unwrap();
    for slot in bytes[..2 * SLOT].chunks_exact_mut(SLOT).filter(|slot| slot[..7] == *b"AZEKURA") {
        let length = u32::from_le_bytes(slot[12..16].try_into().unwrap()) as usize;
        let end = HEAD + length;
        change(&mut slot[end - WRAPPED - "key 1".len()..end]);
        let crc = crc32c_append(crc32c(&slot[..16]), &slot[HEAD..end]);
        slot[16..20].copy_from_slice(&crc.to_le_bytes());
    }
    fs.open(path, OpenOptions::new()).unwrap().write_at(0, &bytes).unwrap();
}

#[test]
fn a_damaged_key_record_is_refused_with_the_path() {
    let disk = FaultFs::new();
    let db = plain(&disk).encryption_key(key(1)).open("/db").unwrap();
    put(&db, 0..40);
    db.close().unwrap();
    drop(db);
    for at in 0..WRAPPED {
        let fs = disk.crash_keeping_all();
        change_record(&fs, |record| record[at] ^= 1);
        let refused = with(&fs, 1).open("/db").unwrap_err();
        assert!(matches!(refused, Error::WrongEncryptionKey { .. }), "byte {at}: {refused}");
        assert!(refused.to_string().contains("/db"), "{refused}");
    }
    let fs = disk.crash_keeping_all();
    change_record(&fs, |record| record[WRAPPED] = 0xff); // no UTF-8
    let refused = with(&fs, 1).open("/db").unwrap_err();
    assert!(matches!(refused, Error::Corrupt { .. }), "{refused}");
    assert!(refused.to_string().contains("/db") && refused.to_string().contains("backup"), "{refused}");
    // The id only selects the key.
    let fs = disk.crash_keeping_all();
    change_record(&fs, |record| record[WRAPPED + 4] = b'2');
    assert_rows(&with(&fs, 1).open("/db").unwrap(), 40);
}

#[test]
fn a_key_is_in_no_debug_output() {
    let builder = Database::builder().encryption_key(EncryptionKey::with_id("id", &[0xab; 32]));
    let source = Database::builder().encryption_key_source("id", |_| Ok::<_, Error>([0xab; 32]));
    for text in [format!("{builder:?}"), format!("{source:?}"), format!("{:?}", key(0xab))] {
        let is_bytes = |bytes: &str| text.contains(bytes);
        assert!(!is_bytes("171, 171") && !is_bytes("abab") && !is_bytes("ab, ab"), "{text}");
    }
}
