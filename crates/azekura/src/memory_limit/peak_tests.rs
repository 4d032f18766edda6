//! Peak memory of a whole process under a limit. A child process gets the limit from its environment and runs
//! a store with default settings, or with `memory_bytes`.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use azekura_base::cgroup::{self, CgroupVersion};
use azekura_base::memory::limit_file;

use crate::{Builder, Database, Durability, Error, TableDefinition};

const VARIABLE: &str = "AZEKURA_TEST_MEMORY_LIMIT";
const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");
const VALUE_BYTES: usize = 1_000;
const THREADS: u64 = 16;
const ROWS_PER_TRANSACTION: u64 = 100;

/// Returns the limit of a child process, or `None` in the parent.
pub(super) fn limit_of_child() -> Option<u64> {
    std::env::var(VARIABLE).ok()?.parse().ok()
}

/// Peak of the process's anonymous memory, which excludes the program's file and the system's page cache.
#[derive(Default)]
struct Peak(AtomicU64);

impl Peak {
    fn look(&self) {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        let kib: u64 = line.trim().strip_suffix("kB").unwrap().trim().parse().unwrap();
        self.0.fetch_max(kib << 10, Relaxed); // Relaxed: only the number is shared
    }
}

/// Returns distinct keys in a scattered order: multiplication by an odd factor permutes the 64-bit numbers.
fn key(row: u64) -> u64 {
    row.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Writes `rows` by several threads, each in transactions of [`ROWS_PER_TRANSACTION`].
fn write(db: &Database, rows: Range<u64>, byte: u8, peak: &Peak) {
    let share = (rows.end - rows.start) / THREADS;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let first = rows.start + thread * share;
                for from in (first..first + share).step_by(ROWS_PER_TRANSACTION as usize) {
                    let written = db.transact(|tx| {
                        let table = tx.table(&ROWS)?;
                        for row in from..(from + ROWS_PER_TRANSACTION).min(first + share) {
                            table.insert(&key(row), &vec![byte; VALUE_BYTES])?;
                        }
                        peak.look();
                        Ok(())
                    });
                    written.unwrap();
                }
            });
        }
    });
}

/// Loads rows with a total size of half the limit in random order, by many threads that do not wait for
/// flushes. Then changes half of the rows while a snapshot keeps the old versions, and reads all rows.
fn work(builder: Builder, limit: u64) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let peak = Peak::default();
    let db = builder.durability(Durability::Relaxed).open(dir.path()).unwrap();
    let rows = limit / 2 / VALUE_BYTES as u64;
    write(&db, 0..rows, 1, &peak);
    let snapshot = db.snapshot().unwrap();
    write(&db, 0..rows / 2, 2, &peak);
    let old = snapshot.table(&ROWS).and_then(|table| table.get(&key(0)));
    // The old versions exceed the memory limit.
    assert!(matches!(&old, Err(Error::SnapshotTooOld { .. })), "{:?}", old.map_err(|e| e.kind()));
    drop(snapshot);
    let read = db.read(|s| {
        let mut count = 0;
        for row in s.table(&ROWS)?.iter() {
            row?;
            count += 1;
        }
        Ok(count)
    });
    assert_eq!(read.unwrap(), rows / THREADS * THREADS);
    peak.look();
    // A transaction that removes all rows would need more memory than it may use.
    for _ in 0..3 {
        let removed = db.transact(|tx| {
            let removed = tx.table(&ROWS)?.remove_range(..);
            peak.look();
            removed
        });
        assert!(matches!(removed, Err(Error::UndoMemoryExhausted { .. })), "{removed:?}");
    }
    assert!(db.check(&mut |_, _| ()).unwrap().is_clean());
    peak.look();
    db.close().unwrap();
    peak.0.into_inner()
}

/// Runs the test `name` in a child process with the variable, and returns the peak that the child prints.
fn peak_of_child(name: &str, variable: &str, limit: u64) -> u64 {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(variable, limit.to_string())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{output}{}", String::from_utf8_lossy(&child.stderr));
    output.split("peak ").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_store_stays_within_the_memory_that_was_set() {
    const NAME: &str = "memory_limit::peak_tests::a_store_stays_within_the_memory_that_was_set";
    const BYTES: &str = "AZEKURA_TEST_MEMORY_BYTES";
    if let Ok(limit) = std::env::var(BYTES) {
        let limit = limit.parse().unwrap();
        println!("peak {}", work(Database::builder().memory_bytes(limit), limit));
        return;
    }
    for limit in [24 << 20, 32 << 20, 96 << 20] {
        let peak = peak_of_child(NAME, BYTES, limit);
        assert!(peak > limit / 4 && peak <= limit / 20 * 21, "{} KiB of {}", peak >> 10, limit >> 10);
    }
}

#[test]
fn a_process_at_its_defaults_stays_within_three_quarters_of_its_memory() {
    const NAME: &str =
        "memory_limit::peak_tests::a_process_at_its_defaults_stays_within_three_quarters_of_its_memory";
    if let Some(limit) = limit_of_child() {
        println!("peak {}", work(Database::builder().undo_bytes(limit / 8), limit));
        return;
    }
    let limit = 64 << 20;
    let peak = peak_of_child(NAME, VARIABLE, limit);
    assert!(peak > limit / 8 && peak <= limit * 3 / 4, "{} MiB of {}", peak >> 20, limit >> 20);
}

/// Name of the variable with the path of a file. A process that writes its number to this file moves into a
/// control group.
const GROUP_VARIABLE: &str = "AZEKURA_TEST_MEMORY_GROUP";

/// A control group with a memory limit; dropping it removes the group.
struct Group {
    dir: PathBuf,
    version: CgroupVersion,
}

impl Group {
    /// Creates a group below the first mount that has a memory controller.
    fn create(limit: u64) -> Self {
        let mount = |(dir, version): (PathBuf, CgroupVersion)| {
            let controllers = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
            let has_memory = match version {
                CgroupVersion::One => dir.join(limit_file(version)).exists(),
                CgroupVersion::Two => controllers.split_whitespace().any(|name| name == "memory"),
            };
            has_memory.then_some((dir, version))
        };
        let (mount, version) =
            cgroup::mounts("memory").into_iter().find_map(mount).expect("a memory controller");
        if version == CgroupVersion::Two {
            fs::write(mount.join("cgroup.subtree_control"), "+memory").expect("root, outside a container");
        }
        let dir = mount.join(format!("azekura-test-{}-{limit}", std::process::id()));
        fs::create_dir(&dir).expect("root");
        let group = Self { dir, version };
        fs::write(group.dir.join(limit_file(version)), limit.to_string()).unwrap();
        group
    }

    /// Returns a number in one of the group's files, which have lines of a name and a number.
    fn number(&self, file: &str, name: &str) -> u64 {
        let text = fs::read_to_string(self.dir.join(file)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.expect(name).trim().parse().unwrap()
    }

    /// Returns the anonymous memory of the group's processes. The rest is the system's page cache, which uses
    /// memory up to the limit and releases it on demand.
    fn anonymous(&self) -> u64 {
        self.number("memory.stat", if self.version == CgroupVersion::One { "rss" } else { "anon" })
    }

    /// Returns the number of processes that the kernel has killed at the limit.
    fn killed(&self) -> u64 {
        let file = if self.version == CgroupVersion::One { "memory.oom_control" } else { "memory.events" };
        self.number(file, "oom_kill")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.dir); // ignored: a second failure would hide the first one
    }
}

/// Inserts rows of 400 bytes in random order; their total size is twice the memory of this process.
fn grow_beyond_memory() {
    let limit = super::memory_limit().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let db = Database::builder().durability(Durability::Relaxed).open(dir.path()).unwrap();
    let rows = 2 * limit / 400;
    for from in (0..rows).step_by(50) {
        let written = db.transact(|tx| {
            let table = tx.table(&ROWS)?;
            (from..from + 50).try_for_each(|row| table.insert(&key(row), &[1; 400][..]))
        });
        written.unwrap();
    }
    let some = db.transact(|tx| tx.table(&ROWS)?.get(&key(rows / 2))).unwrap();
    assert_eq!(some.map(|value| value.len()), Some(400));
    db.close().unwrap();
}

#[test]
#[ignore = "makes control groups, so it needs root; takes minutes"]
fn a_store_at_its_defaults_grows_beyond_the_memory_of_its_control_group() {
    const NAME: &str =
        "memory_limit::peak_tests::a_store_at_its_defaults_grows_beyond_the_memory_of_its_control_group";
    if let Ok(procs) = std::env::var(GROUP_VARIABLE) {
        fs::write(procs, "0").unwrap();
        grow_beyond_memory();
        return;
    }
    for limit in [64 << 20, 256 << 20] {
        let group = Group::create(limit);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--include-ignored"])
            .env(GROUP_VARIABLE, group.dir.join("cgroup.procs"))
            .spawn()
            .unwrap();
        let mut most = 0;
        let status = loop {
            most = most.max(group.anonymous());
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        println!("{} MiB of anonymous memory under a limit of {} MiB", most >> 20, limit >> 20);
        assert!(status.success() && group.killed() == 0, "{status}: {} killed", group.killed());
        assert!(most > limit / 16 && most <= limit * 3 / 4, "{most} bytes of {limit}");
    }
}
