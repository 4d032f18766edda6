//! Fuzz entry: a store with changed bytes in CONTROL. The opening returns the store's content or a typed
//! error. If the checksums are corrected after the change, any content is allowed, but no panic.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use azekura::{Builder, Database, Error, TableDefinition};
use azekura_base::checksum::{crc32c, crc32c_append};
use azekura_io::MemFs;

/// All files of a store.
pub(crate) type Files = Vec<(PathBuf, Vec<u8>)>;

const DIR: &str = "/db";
const TABLE: TableDefinition<u64, [u8]> = TableDefinition::new("rows");
const ROWS: u64 = 60;
const SLOT_BYTES: usize = 16 << 10;
const HEAD_BYTES: usize = 24;

/// Runs one fuzz input. Bits of the first byte select the store (bit 0: closed, or killed), whether checksums
/// are corrected (bit 1), and whether CONTROL is truncated (bit 2). Patches follow: slot and offset (2
/// bytes), length, bytes.
pub(crate) fn control_file(data: &[u8]) {
    let (&mode, patches) = data.split_first().unwrap_or((&0, &[]));
    let mut files = stores()[usize::from(mode & 1)].clone();
    let (_, control) = files.iter_mut().find(|(path, _)| path.ends_with("CONTROL")).expect("is there");
    patch(control, patches);
    let is_resealed = mode & 2 != 0;
    if is_resealed {
        control.chunks_mut(SLOT_BYTES).for_each(reseal);
    }
    if mode & 4 != 0 {
        control.truncate(usize::from(mode >> 3) * 1024);
    }
    match open(&MemFs::with_files(&files).expect("fits")).and_then(|db| content(&db)) {
        Ok(rows) => assert!(is_resealed || rows == expected(), "{} rows of {ROWS}", rows.len()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Returns inputs with a small change of each byte of both slots, with right and wrong checksums, in one
/// store or the other.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let at = |mode: u8, offset: usize, byte: u8| {
        let [low, high] = (offset as u16).to_le_bytes();
        vec![mode, low, high, 1, byte]
    };
    let places = (0..HEAD_BYTES + 24).flat_map(|at| [at, SLOT_BYTES + at]);
    let patches = places.flat_map(|place| {
        [0, 2].map(|mode| at(mode | (place as u8 / 2 % 2), place, [0, 1, 0xff][place % 3]))
    });
    patches.chain([vec![4], vec![4 | 16 << 3], vec![4 | 31 << 3], vec![0], vec![1]]).collect()
}

fn patch(control: &mut [u8], mut patches: &[u8]) {
    while let [low, high, len, rest @ ..] = patches {
        let at = usize::from(u16::from_le_bytes([*low, *high])) % control.len();
        let (new, behind) = rest.split_at(rest.len().min(usize::from(*len)).min(control.len() - at));
        control[at..at + new.len()].copy_from_slice(new);
        patches = behind;
    }
}

fn reseal(slot: &mut [u8]) {
    let len = slot[12..].first_chunk().map_or(0, |len| u32::from_le_bytes(*len) as usize);
    let Some(body) = slot[HEAD_BYTES..].get(..len) else { return };
    let crc = crc32c_append(crc32c(&slot[..16]), body).to_le_bytes();
    slot[16..20].copy_from_slice(&crc);
}

fn open(fs: &MemFs) -> Result<Database, Error> {
    let builder: Builder = Database::builder()
        .page_size(4096)
        .cache_bytes(64 * 4096)
        .log_buffers(2)
        .wal_streams(1)
        .wal_segment_bytes(2 << 20)
        .background(false)
        .file_system(Arc::new(fs.clone()));
    builder.open(DIR)
}

fn value(row: u64) -> Vec<u8> {
    vec![row as u8; row as usize * 3]
}

fn expected() -> Vec<(u64, Vec<u8>)> {
    (0..ROWS).map(|row| (row, value(row))).collect()
}

/// Returns the rows of the table; no rows if the table does not exist.
fn content(db: &Database) -> Result<Vec<(u64, Vec<u8>)>, Error> {
    let _ = db.check(&mut |_, _| {})?;
    db.transact(|tx| tx.table(&TABLE)?.iter().collect())
}

/// Returns the files of a store that was closed, and of one that was killed.
fn stores() -> &'static [Files; 2] {
    static STORES: OnceLock<[Files; 2]> = OnceLock::new();
    STORES.get_or_init(|| {
        [true, false].map(|is_closed| {
            let fs = MemFs::new();
            let mut db = open(&fs).expect("creates");
            for row in 0..ROWS {
                if row == ROWS / 2 {
                    drop(db);
                    db = open(&fs).expect("opens again"); // a second incarnation of the log
                }
                db.transact(|tx| tx.table(&TABLE)?.insert(&row, &value(row))).expect("commits");
            }
            if is_closed {
                db.close().expect("closes");
                return fs.files(Path::new(DIR)).expect("is there");
            }
            let unclosed = fs.files(Path::new(DIR)).expect("is there");
            drop(db);
            unclosed
        })
    })
}
