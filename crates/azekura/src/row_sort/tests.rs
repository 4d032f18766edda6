//! Tests of sorting against a map: in memory, with files, and with failing files.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use azekura_io::{FaultFs, Fs, OpenOptions};

use super::*;
use crate::Database;

fn open(fs: &FaultFs) -> Database {
    let builder = Database::builder().page_size(4096).cache_bytes(1 << 20).background(false);
    builder.file_system(Arc::new(fs.clone())).open("db").expect("opens")
}

fn runs_left(fs: &FaultFs) -> usize {
    fs.list_dir(&Path::new("db").join(DIR)).map_or(0, |names| names.len())
}

/// Returns a row with a key of one of several lengths; some keys occur several times.
fn row(n: u64) -> (Vec<u8>, Vec<u8>) {
    let key = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48;
    let mut bytes = key.to_be_bytes()[6..].to_vec();
    bytes.resize(2 + (key % 12) as usize, b'k');
    (bytes, format!("value {n}").into_bytes())
}

#[test]
fn rows_come_in_the_order_of_their_keys_and_the_last_of_equal_keys_stays() {
    let fs = FaultFs::new();
    let db = open(&fs);
    // One run, several runs, and more runs than one merge reads.
    for (rows, least_runs, most_runs) in [(2_000, 0, 0), (20_000, 1, 10), (600_000, 1, FAN_IN)] {
        let mut sorter = db.row_sorter(1);
        let mut expected = BTreeMap::new();
        for (key, value) in (0..rows).map(row) {
            sorter.push(&key, &value).expect("pushed");
            expected.insert(key, value);
        }
        assert!((least_runs..=most_runs).contains(&sorter.runs()), "{} runs of {rows} rows", sorter.runs());
        assert_eq!(sorter.pushed(), rows);
        let sorted = sorter.into_sorted().expect("sorted").collect::<Result<Vec<_>, _>>().expect("read");
        assert!(sorted.into_iter().eq(expected), "{rows} rows");
        assert_eq!(runs_left(&fs), 0);
    }
}

#[test]
fn runs_of_a_killed_process_are_removed_when_the_store_is_opened() {
    let fs = FaultFs::new();
    let db = open(&fs);
    let mut sorter = db.row_sorter(1);
    (0..20_000).map(row).for_each(|(key, value)| sorter.push(&key, &value).expect("pushed"));
    let killed = fs.kill();
    assert!(runs_left(&killed) > 0);
    drop(open(&killed));
    assert_eq!(runs_left(&killed), 0);
}

/// The directory for runs may be a link to a place for temporary files.
#[test]
fn files_that_are_no_runs_stay_in_the_directory_for_runs() {
    let fs = FaultFs::new();
    let db = open(&fs);
    let mut sorter = db.row_sorter(1);
    (0..20_000).map(row).for_each(|(key, value)| sorter.push(&key, &value).expect("pushed"));
    let killed = fs.kill();
    let dir = Path::new("db").join(DIR);
    for name in ["run-", "run-7.txt", "notes"] {
        killed.open(&dir.join(name), OpenOptions::new().create(true)).expect("creates");
    }
    drop(open(&killed));
    assert_eq!(killed.list_dir(&dir).expect("is there"), ["notes", "run-", "run-7.txt"]);
}

#[test]
fn a_damaged_run_is_a_typed_error_and_no_row() {
    let fs = FaultFs::new();
    let db = open(&fs);
    let mut sorter = db.row_sorter(1);
    (0..20_000).map(row).for_each(|(key, value)| sorter.push(&key, &value).expect("pushed"));
    let dir = Path::new("db").join(DIR);
    for name in fs.list_dir(&dir).expect("listed") {
        let file = fs.open(&dir.join(name), azekura_io::OpenOptions::new()).expect("opens");
        let mut byte = [0];
        file.read_at(5_000, &mut byte).expect("read");
        file.write_at(5_000, &[byte[0] ^ 1]).expect("written");
    }
    let read = sorter.into_sorted().and_then(|mut rows| rows.try_for_each(|row| row.map(drop)));
    assert!(matches!(read, Err(Error::Corrupt { .. })), "{read:?}");
}

#[test]
fn a_row_that_no_table_takes_is_refused_and_the_others_stay() {
    let db = open(&FaultFs::new());
    let mut sorter = db.row_sorter(1);
    sorter.push(b"a", b"1").expect("pushed");
    assert!(matches!(sorter.push(&[b'k'; 4096], b"2"), Err(Error::Invalid(_))));
    assert_eq!(sorter.into_sorted().expect("sorted").count(), 1);
}
