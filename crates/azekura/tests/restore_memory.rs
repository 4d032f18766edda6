//! Memory of copies of a large value: a backup, a verified restore and a compaction. They run in a process of
//! its own, because the peak of its memory is measured.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use azekura::{Builder, Database, Restore, TableDefinition};

const FILES: TableDefinition<str, [u8]> = TableDefinition::new("files");
const CHILD: &str = "AZEKURA_TEST_RESTORE_DIRECTORY";
const VALUE_BYTES: usize = 96 << 20;
/// Caches, buffers, pieces of the value, and the program.
const MOST_BYTES: usize = VALUE_BYTES / 2;

fn small() -> Builder {
    Database::builder().cache_bytes(2 << 20)
}

/// Copies the store in each way and prints the largest memory of this process.
fn child(dir: &Path) {
    let db = small().open(dir.join("store")).unwrap();
    db.backup().to_directory(dir.join("backup")).unwrap();
    db.compact_into(dir.join("compacted")).unwrap();
    db.close().unwrap();
    let restore = Restore::new().builder(small()).verify(true);
    restore.from_directory(dir.join("backup"), dir.join("restored")).unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    println!("peak {}", line.trim().strip_suffix("kB").unwrap().trim());
}

#[test]
fn no_copy_has_a_large_value_in_memory() {
    if let Ok(dir) = std::env::var(CHILD) {
        return child(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let db = small().open(dir.path().join("store")).unwrap();
    let mut value = std::io::Read::take(std::io::repeat(7), VALUE_BYTES as u64);
    db.transact(|tx| tx.table(&FILES)?.insert_from("movie", &mut value)).unwrap();
    db.close().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "no_copy_has_a_large_value_in_memory", "--nocapture"])
        .env(CHILD, dir.path())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{output}{}", String::from_utf8_lossy(&child.stderr));
    let peak = output.lines().find_map(|line| line.split_once("peak ")).unwrap().1;
    let peak = peak.trim().parse::<usize>().unwrap() << 10;
    assert!(peak < MOST_BYTES, "{} MiB", peak >> 20);
}
