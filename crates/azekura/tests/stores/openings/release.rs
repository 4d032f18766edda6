//! The compatibility promise: this build reads the files of a release, or refuses them because of their
//! version.
//!
//! `tests/data/VERSION.lz4` has the files that the release VERSION wrote: a closed store, a store that was
//! not closed, and a backup. The ignored test makes such a file, once for each release and never again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use azekura::{Database, Durability, Error, MultimapTableDefinition, Restore, TableDefinition, Transaction};
use azekura_base::checksum::{crc32c, crc32c_append};

/// Files of a release by their paths.
type Files = BTreeMap<PathBuf, Vec<u8>>;

const RELEASES: [(&str, &[u8]); 1] = [("0.2.0", include_bytes!("../../data/0.2.0.lz4"))];

const WORDS: TableDefinition<str, u64> = TableDefinition::new("words");
const PLACES: TableDefinition<(u32, i64), (Option<String>, bool)> = TableDefinition::new("places");
const LARGE: TableDefinition<u64, [u8]> = TableDefinition::new("large");
const TAGS: MultimapTableDefinition<str, u64> = MultimapTableDefinition::new("tags");

fn word(n: u64) -> String {
    format!("word {n:05}")
}

fn large(n: u64) -> Vec<u8> {
    (0..11_000 + n * 1000).map(|i| (i / 97 + n) as u8).collect()
}

/// Runs the transactions of the release's stores, in order.
fn write(db: &Database) -> Result<(), Error> {
    db.transact(|tx| {
        let words = tx.table(&WORDS)?;
        (0..300).try_for_each(|n| words.insert(&word(n), &(n * n)))
    })?;
    db.transact(|tx| {
        (0..300).filter(|n| n % 3 == 0).try_for_each(|n| tx.table(&WORDS)?.remove(&word(n)).map(drop))
    })?;
    db.transact(|tx| {
        let places = tx.table(&PLACES)?;
        (0..60_u32).try_for_each(|n| {
            let name = (n % 4 > 0).then(|| format!("place {n}"));
            places.insert(&(n % 5, 30 - i64::from(n)), &(name, n % 2 == 0))
        })
    })?;
    db.transact(|tx| (0..2).try_for_each(|n| tx.table(&LARGE)?.insert(&n, &large(n))))?;
    db.transact(|tx| {
        let tags = tx.multimap_table(&TAGS)?;
        (0..90).try_for_each(|n| tags.insert(&word(n % 7), &n).map(drop))
    })
}

/// Returns all rows that a reader finds in the stores, as text.
fn contents(tx: &Transaction) -> Result<Vec<String>, Error> {
    let mut seen = Vec::new();
    for row in tx.table(&WORDS)?.iter() {
        seen.push(format!("{:?}", row?));
    }
    for row in tx.table(&PLACES)?.iter() {
        seen.push(format!("{:?}", row?));
    }
    for row in tx.table(&LARGE)?.iter() {
        let (key, value) = row?;
        seen.push(format!("{key} {} {}", value.len(), crc32c(&value)));
    }
    for row in tx.multimap_table(&TAGS)?.iter() {
        seen.push(format!("{:?}", row?));
    }
    Ok(seen)
}

fn of(db: &Database) -> Vec<String> {
    db.transact(contents).unwrap()
}

/// Returns the expected rows of the stores of every release.
fn expected() -> Vec<String> {
    let db = Database::in_memory().unwrap();
    write(&db).unwrap();
    of(&db)
}

fn add(files: &mut Files, directory: &Path, name: &Path) {
    for entry in fs::read_dir(directory).unwrap() {
        let (path, name) = (entry.as_ref().unwrap().path(), name.join(entry.unwrap().file_name()));
        if path.is_dir() {
            add(files, &path, &name);
        } else {
            files.insert(name, fs::read(path).unwrap());
        }
    }
}

/// Packs files: for each, the length of its path, the path, its length, and its bytes; then compresses the
/// whole.
fn packed(files: &Files) -> Vec<u8> {
    let mut out = Vec::new();
    for (path, bytes) in files {
        let path = path.to_str().unwrap();
        out.extend((path.len() as u32).to_le_bytes());
        out.extend(path.as_bytes());
        out.extend((bytes.len() as u32).to_le_bytes());
        out.extend(bytes);
    }
    lz4_flex::compress_prepend_size(&out)
}

fn unpack(packed: &[u8], to: &Path) {
    let bytes = lz4_flex::decompress_size_prepended(packed).unwrap();
    let mut rest = &bytes[..];
    let mut take = || {
        let len = u32::from_le_bytes(*rest.first_chunk().unwrap()) as usize;
        let taken = &rest[4..4 + len];
        rest = &rest[4 + len..];
        (taken, rest.is_empty())
    };
    loop {
        let path = to.join(std::str::from_utf8(take().0).unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let (bytes, is_last) = take();
        fs::write(path, bytes).unwrap();
        if is_last {
            break;
        }
    }
}

#[test]
#[ignore = "run once for a release: AZEKURA_RELEASE_DATA=crates/azekura/tests/data/VERSION.lz4"]
fn make_the_files_of_a_release() {
    let to = std::env::var_os("AZEKURA_RELEASE_DATA").expect("AZEKURA_RELEASE_DATA names the file to make");
    let scratch = tempfile::tempdir().unwrap();
    let builder = Database::builder().background(false).log_buffers(2);
    let mut files = Files::new();
    let closed = scratch.path().join("closed");
    let db = builder.clone().open(&closed).unwrap();
    write(&db).unwrap();
    db.backup().to_directory(scratch.path().join("backup")).unwrap();
    db.close().unwrap();
    add(&mut files, &closed, Path::new("closed"));
    add(&mut files, &scratch.path().join("backup"), Path::new("backup"));
    // The files of a store that is not closed and has an uncommitted transaction.
    let killed = scratch.path().join("killed");
    let db = builder.open(&killed).unwrap();
    write(&db).unwrap();
    let open = db.begin().unwrap();
    open.table(&WORDS).unwrap().insert("not committed", &1).unwrap();
    let other = db.begin().unwrap();
    other.set_durability(Durability::Immediate);
    other.table(&LARGE).unwrap().insert(&9, b"").unwrap();
    other.table(&LARGE).unwrap().remove(&9).unwrap();
    other.commit().unwrap();
    add(&mut files, &killed, Path::new("killed"));
    let packed = packed(&files);
    println!("{} files, {} bytes", files.len(), packed.len());
    fs::write(to, packed).unwrap();
}

#[test]
fn the_stores_of_each_release_open_and_have_their_rows() {
    let expected = expected();
    for (release, packed) in RELEASES {
        let scratch = tempfile::tempdir().unwrap();
        unpack(packed, scratch.path());
        for name in ["closed", "killed"] {
            let path = scratch.path().join(name);
            assert_eq!(of_read_only(&path), expected, "{release}, {name}, for reading");
            let db = Database::open(&path).unwrap();
            assert_eq!(of(&db), expected, "{release}, {name}");
            let report = db.check(&mut |_, _| {}).unwrap();
            assert!(report.findings.is_empty(), "{release}, {name}: {report:?}");
            db.transact(|tx| tx.table(&WORDS)?.insert("new", &1)).unwrap();
            db.close().unwrap();
            let db = Database::open(&path).unwrap();
            assert_eq!(of(&db).len(), expected.len() + 1, "{release}, {name}");
        }
        let restored = scratch.path().join("restored");
        Restore::new().verify(true).from_directory(scratch.path().join("backup"), &restored).unwrap();
        assert_eq!(of(&Database::open(&restored).unwrap()), expected, "{release}, restored");
    }
}

fn of_read_only(path: &Path) -> Vec<String> {
    let db = Database::open_read_only(path).unwrap();
    of(&db)
}

/// Sets another format version in both slots of a CONTROL file, with right checksums.
fn set_version(control: &Path, version: u32) {
    const SLOT_BYTES: usize = 16 << 10;
    let mut bytes = fs::read(control).unwrap();
    for slot in bytes[..2 * SLOT_BYTES].chunks_mut(SLOT_BYTES) {
        slot[8..12].copy_from_slice(&version.to_le_bytes());
        let len = u32::from_le_bytes(*slot[12..].first_chunk().unwrap()) as usize;
        let crc = crc32c_append(crc32c(&slot[..16]), &slot[24..24 + len]);
        slot[16..20].copy_from_slice(&crc.to_le_bytes());
    }
    fs::write(control, bytes).unwrap();
}

#[test]
fn a_store_or_backup_of_another_format_is_refused_by_its_version() {
    let scratch = tempfile::tempdir().unwrap();
    unpack(RELEASES[0].1, scratch.path());
    for name in ["closed", "killed"] {
        let path = scratch.path().join(name);
        for version in [1, 8, 11, 1000] {
            set_version(&path.join("CONTROL"), version);
            let mut before = Files::new();
            add(&mut before, &path, Path::new(""));
            for error in [Database::open(&path), Database::open_read_only(&path)].map(Result::unwrap_err) {
                let Error::UnsupportedFormat { found, supported: 9, .. } = error else { panic!("{error}") };
                assert_eq!(found, version);
                let text = error.to_string();
                assert!(text.contains(&format!("version {version}")) && text.contains("CONTROL"), "{text}");
            }
            let mut after = Files::new();
            add(&mut after, &path, Path::new(""));
            assert!(before == after, "{name}: a refused store is not changed");
        }
        set_version(&path.join("CONTROL"), 9);
        assert_eq!(of(&Database::open(&path).unwrap()), expected());
    }
    let file = scratch.path().join("backup/backup.azk");
    let mut bytes = fs::read(&file).unwrap();
    bytes[8..12].copy_from_slice(&1_u32.to_le_bytes());
    let crc = crc32c(&bytes[..64]);
    bytes[64..68].copy_from_slice(&crc.to_le_bytes());
    fs::write(&file, bytes).unwrap();
    let error = Restore::new().from_directory(scratch.path().join("backup"), scratch.path().join("new"));
    let error = error.unwrap_err();
    assert!(matches!(error, Error::UnsupportedFormat { found: 1, supported: 4, .. }), "{error}");
}
