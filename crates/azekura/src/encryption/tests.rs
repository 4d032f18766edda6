//! Tests of the data key: a unit of a file belongs to the store that wrote it.

use std::path::Path;
use std::sync::Arc;

use azekura_base::Cipher;
use azekura_base::cipher::{Kind, associated};
use azekura_base::page::image;
use azekura_io::FaultFs;

use crate::{Builder, Database, Error, TableDefinition};

const PAGE: usize = 4096;
const ROWS: TableDefinition<str, [u8]> = TableDefinition::new("rows");
/// Size of a log chunk's header.
const CHUNK_HEADER_BYTES: usize = 128;

fn builder(fs: &FaultFs, key: u8) -> Builder {
    Database::builder()
        .page_size(PAGE)
        .cache_bytes(64 * PAGE)
        .wal_segment_bytes(2 << 20)
        .wal_streams(2)
        .background(false)
        .file_system(Arc::new(fs.clone()))
        .encryption_key(&[key; 32])
}

fn put(db: &Database, rows: std::ops::Range<u32>) {
    for n in rows {
        db.transact(|tx| tx.table(&ROWS)?.insert(&format!("{n:05}"), &vec![7; 500])).expect("inserted");
    }
}

/// Returns the encrypted units of the store in `dir`, each with its associated data: pages, copies of pages
/// in the double-write area, and log chunks. The second number is the number of log chunks.
fn units(fs: &FaultFs, dir: &str) -> (Vec<(Vec<u8>, Vec<u8>)>, usize) {
    let (mut units, mut chunks) = (Vec::new(), 0);
    for path in fs.files().iter().filter(|path| path.starts_with(dir)) {
        let bytes = fs.contents(path).expect("a file");
        if path.ends_with("pages") || path.ends_with("dw") {
            for page in bytes[PAGE..].chunks_exact(PAGE) {
                if image::is_intact(page, image::id(page)) {
                    let place = associated::<21>(Kind::Page, &page[4..24]);
                    units.push((place.to_vec(), page[24..].to_vec()));
                }
            }
        }
        if path.starts_with(Path::new(dir).join("wal")) {
            for at in (0..bytes.len()).step_by(4096).filter(|&at| bytes[at + 8..].starts_with(b"AzWL")) {
                let (head, payload) = bytes[at..].split_at(CHUNK_HEADER_BYTES);
                let length = u32::from_le_bytes(*head[56..].first_chunk().expect("four bytes")) as usize;
                let place = associated::<121>(Kind::Chunk, &head[8..]);
                units.push((place.to_vec(), payload[..length].to_vec()));
                chunks += 1;
            }
        }
    }
    (units, chunks)
}

fn opened(cipher: &dyn Cipher, units: &[(Vec<u8>, Vec<u8>)]) -> usize {
    units.iter().filter(|(place, unit)| cipher.open(place, &mut unit.clone()).is_ok()).count()
}

#[test]
fn a_compaction_with_a_new_key_leaves_nothing_under_the_old_data_key() {
    let fs = FaultFs::new();
    let old = builder(&fs, 1).open("/old").expect("opens");
    put(&old, 0..200);
    old.checkpoint().expect("written");
    put(&old, 200..210);
    old.compaction().encryption_key(&[2; 32]).into_directory("/new").expect("copied");
    let refused = builder(&fs, 1).open("/new");
    assert!(matches!(refused, Err(Error::WrongEncryptionKey { .. })), "{refused:?}");
    let new = builder(&fs, 2).open("/new").expect("opens");
    put(&new, 210..250);
    let ((of_old, old_chunks), (of_new, new_chunks)) = (units(&fs, "/old"), units(&fs, "/new"));
    assert!(of_old.len() > 50 && of_new.len() > 50 && old_chunks > 0 && new_chunks > 0);
    for (db, own, other) in [(&old, &of_old, &of_new), (&new, &of_new, &of_old)] {
        let cipher = db.shared().cipher().expect("is encrypted");
        assert_eq!((opened(&*cipher, own), opened(&*cipher, other)), (own.len(), 0));
    }
}
