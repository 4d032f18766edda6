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

/// A caller that ignores the error of a failed merge does not get the rows of the other runs as all rows.
#[test]
fn a_sorter_whose_merge_has_failed_returns_no_rows() {
    let fs = FaultFs::new();
    let db = open(&fs);
    let mut sorter = db.row_sorter(1);
    fs.fail_read_at(1); // The first read is that of the first merge.
    let value = vec![7; 60_000];
    let failed = (0..1_000_u64).find_map(|n| sorter.push(&n.to_be_bytes(), &value).err());
    assert!(matches!(failed, Some(Error::Io { .. })), "{failed:?}");
    let pushed = sorter.push(b"key", b"value");
    assert!(matches!(pushed, Err(Error::Invalid(_))), "{pushed:?}");
    let sorted = sorter.into_sorted().map(Iterator::count);
    assert!(matches!(sorted, Err(Error::Invalid(_))), "{sorted:?}");
}

/// Rows of one length, so that all full blocks have the same size.
fn fill(sorter: &mut RowSorter, value: u8) {
    (0..20_000_u64).for_each(|n| sorter.push(&n.to_be_bytes(), &[value; 20]).expect("pushed"));
}

#[test]
fn a_block_of_another_run_or_another_place_is_refused() {
    let dir = Path::new("db").join(DIR);
    for from in [0, 1] {
        let fs = FaultFs::new();
        let db = open(&fs);
        let names = || fs.list_dir(&dir).expect("listed");
        let (mut sorter, mut other) = (db.row_sorter(1), db.row_sorter(1));
        fill(&mut sorter, 1);
        let runs = names();
        fill(&mut other, 2);
        let foreign = names().into_iter().find(|name| !runs.contains(name)).expect("another run");
        let run = runs[0].as_str();
        let source = if from == 0 { foreign.as_str() } else { run };
        let file = |name: &str| fs.open(&dir.join(name), OpenOptions::new()).expect("opens");
        let mut len = [0; 4];
        file(run).read_at(0, &mut len).expect("read");
        let bytes = u64::from(u32::from_le_bytes(len)) + 8;
        let mut block = vec![0; bytes as usize];
        // The first block of a run replaces the second block of another run, or of the same run.
        file(source).read_at(0, &mut block).expect("read");
        file(run).write_at(bytes, &block).expect("written");
        let read = sorter.into_sorted().and_then(|mut rows| rows.try_for_each(|row| row.map(drop)));
        assert!(matches!(read, Err(Error::Corrupt { .. })), "{read:?}");
    }
}

/// The directory for runs may be a link to that of a store of another process.
#[test]
fn runs_of_another_process_are_not_overwritten() {
    let fs = FaultFs::new();
    let db = open(&fs);
    let dir = Path::new("db").join(DIR);
    fs.create_dir_all(&dir).expect("creates");
    let others: Vec<_> = (0..5_000).map(|n| dir.join(format!("run-{n}"))).collect();
    for path in &others {
        let file = fs.open(path, OpenOptions::new().create(true)).expect("creates");
        file.write_at(0, b"other").expect("writes");
    }
    let mut sorter = db.row_sorter(1);
    fill(&mut sorter, 1);
    assert_eq!(sorter.into_sorted().expect("sorted").count(), 20_000);
    assert!(others.iter().all(|path| fs.contents(path).is_some_and(|bytes| bytes == b"other")));
}

#[test]
fn a_row_that_no_table_takes_is_refused_and_the_others_stay() {
    let db = open(&FaultFs::new());
    let mut sorter = db.row_sorter(1);
    sorter.push(b"a", b"1").expect("pushed");
    assert!(matches!(sorter.push(&[b'k'; 4096], b"2"), Err(Error::Invalid(_))));
    assert_eq!(sorter.into_sorted().expect("sorted").count(), 1);
}
