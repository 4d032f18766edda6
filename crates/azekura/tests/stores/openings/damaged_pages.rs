//! The error of a damaged page names the file, the page and the remedy, for each way of reading.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use azekura::{Database, Error, TableDefinition};
use azekura_base::page::image;
use azekura_io::{FaultFs, Fs, OpenOptions};

const PAGE: usize = 4096;
const VALUES: TableDefinition<u64, [u8]> = TableDefinition::new("values");

fn open(fs: &FaultFs) -> Result<Database, Error> {
    let builder = Database::builder().page_size(PAGE).cache_bytes(1 << 20).background(false);
    builder.wal_segment_bytes(2 << 20).file_system(Arc::new(fs.clone())).open("/db")
}

/// Reads all rows in a transaction, in a snapshot, and with a removal; returns the errors.
fn errors(fs: &FaultFs) -> Vec<Error> {
    let db = match open(fs) {
        Ok(db) => db,
        Err(error) => return vec![error],
    };
    let scan = db.transact(|tx| tx.table(&VALUES)?.iter().try_for_each(|row| row.map(drop)));
    let read = db.read(|snap| snap.table(&VALUES)?.iter().try_for_each(|row| row.map(drop)));
    let get = (0..40).try_for_each(|key| db.read(|snap| snap.table(&VALUES)?.get(&key)).map(drop));
    let remove = db.transact(|tx| tx.table(&VALUES)?.remove_range(..).map(drop));
    [scan, read, get, remove].into_iter().filter_map(Result::err).collect()
}

#[test]
fn the_error_of_a_damaged_page_names_its_file_and_the_remedy() {
    let fs = FaultFs::new();
    let db = open(&fs).unwrap();
    db.transact(|tx| (0..40).try_for_each(|key| tx.table(&VALUES)?.insert(&key, &[7; 300][..]))).unwrap();
    db.transact(|tx| tx.table(&VALUES)?.insert(&40, &[7; 3 * PAGE][..])).unwrap();
    db.close().unwrap();
    drop(db);
    let pages = fs.contents(Path::new("/db/pages")).unwrap();
    let mut reasons = BTreeSet::new();
    for at in (PAGE..pages.len()).step_by(PAGE) {
        // A page with a wrong checksum, zeroes, and a page that does not fit its position.
        let changes: [fn(&mut [u8]); 3] = [
            |page| page[100] ^= 1,
            |page| page.fill(0),
            |page| {
                page[24..].fill(0xee);
                image::seal(page);
            },
        ];
        for change in changes {
            let mut page = pages[at..at + PAGE].to_vec();
            if image::is_zero(&page) {
                continue;
            }
            change(&mut page);
            let copy = fs.crash_keeping_all();
            let file = copy.open(Path::new("/db/pages"), OpenOptions::new()).unwrap();
            file.write_at(at as u64, &page).unwrap();
            for error in errors(&copy) {
                let message = error.to_string();
                let Error::CorruptPage { path, page, reason } = error else { panic!("{message}") };
                assert_eq!(path, Path::new("/db/pages"), "{message}");
                assert_eq!(message.matches("/db/pages").count(), 1, "{message}");
                assert!(message.contains(&format!("page {page} of /db/pages")), "{message}");
                assert!(message.contains("restore a backup"), "{message}");
                reasons.insert(reason.split(' ').take(4).collect::<Vec<_>>().join(" "));
            }
        }
    }
    println!("{reasons:?}");
    assert!(reasons.len() >= 5, "{reasons:?}");
}
