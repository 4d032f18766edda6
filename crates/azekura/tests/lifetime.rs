//! Tests of a store's lifetime: handles, transactions, tickets, other openers, and forked processes. Also the
//! costs of an open store that is idle.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

#[path = "lifetime/closing.rs"]
mod closing;
#[path = "lifetime/costs.rs"]
mod costs;
mod held;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use azekura::{Builder, Database, Error, ErrorKind, TableDefinition};
use costs::Costs;
use tempfile::TempDir;

const ROWS: TableDefinition<u64, u64> = TableDefinition::new("rows");

/// Number of allocations, and their bytes.
static ALLOCATED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The system's allocator with counters.
struct Counted;

fn note_allocated(layout: Layout) {
    ALLOCATED[0].fetch_add(1, SeqCst);
    ALLOCATED[1].fetch_add(layout.size() as u64, SeqCst);
}

// SAFETY: each method calls the method of `System` with the same arguments.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note_allocated(layout);
        // SAFETY: the caller guarantees the requirements.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note_allocated(layout);
        // SAFETY: the caller guarantees the requirements.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees the requirements.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTED: Counted = Counted;

fn small() -> Builder {
    Database::builder().cache_bytes(1 << 20).wal_segment_bytes(2 << 20).wal_streams(1)
}

fn put(db: &Database, key: u64) -> Result<(), Error> {
    db.transact(|tx| tx.table(&ROWS)?.insert(&key, &key))
}

#[test]
fn closing_ends_the_store_for_all_its_handles_and_unlocks_the_directory() {
    let dir = TempDir::new().unwrap();
    let db = small().open(dir.path()).unwrap();
    let other = db.clone();
    put(&other, 1).unwrap();
    let ((), ticket) = db.transact_async(|tx| tx.table(&ROWS)?.insert(&2, &2)).unwrap();

    db.close().unwrap();
    for handle in [&db, &other] {
        let error = put(handle, 3).unwrap_err();
        assert!(matches!(error, Error::Closed) && error.kind() == ErrorKind::Closed, "{error}");
        assert!(matches!(handle.begin(), Err(Error::Closed)));
        assert!(matches!(handle.table_names(), Err(Error::Closed)));
        assert!(matches!(handle.check(&mut |_, _| ()), Err(Error::Closed)));
        assert!(matches!(handle.checkpoint(), Err(Error::Closed)));
        handle.close().expect("closing again is fine");
    }
    // The other handle and the ticket still exist, but the directory is unlocked.
    let again = small().open(dir.path()).unwrap();
    assert_eq!(again.transact(|tx| tx.table(&ROWS)?.get(&2)).unwrap(), Some(2));
    ticket.wait().expect("closing made it durable");
    drop((db, other));
    put(&again, 4).expect("the end of the former handles is not its end");
    again.close().unwrap();
}

#[test]
fn a_store_with_open_transactions_refuses_to_close_and_stays_usable() {
    let db = small().open_in_memory().unwrap();
    let (first, second) = (db.begin().unwrap(), db.begin().unwrap());
    first.table(&ROWS).unwrap().insert(&1, &1).unwrap();
    assert!(matches!(db.close(), Err(Error::StillInUse { transactions: 2 })));
    first.commit().unwrap();
    let error = std::thread::scope(|s| s.spawn(|| db.close()).join().unwrap()).unwrap_err();
    assert!(matches!(error, Error::StillInUse { transactions: 1 }), "{error}");
    put(&db, 2).expect("still open");
    drop(second);
    db.close().unwrap();
}

#[test]
fn a_transaction_keeps_the_store_open_after_the_last_handle() {
    let dir = TempDir::new().unwrap();
    let db = small().open(dir.path()).unwrap();
    let tx = db.begin().unwrap();
    tx.table(&ROWS).unwrap().insert(&1, &1).unwrap();
    drop(db);
    assert!(matches!(small().open(dir.path()), Err(Error::InUse { .. })));
    tx.table(&ROWS).unwrap().insert(&2, &2).unwrap();
    tx.commit().unwrap();
    let again = small().open(dir.path()).expect("the transaction was the last owner");
    assert_eq!(again.transact(|tx| tx.table(&ROWS)?.get(&2)).unwrap(), Some(2));
}

#[test]
fn a_ticket_does_not_keep_the_directory_locked() {
    let dir = TempDir::new().unwrap();
    let db = small().open(dir.path()).unwrap();
    let ((), ticket) = db.transact_async(|tx| tx.table(&ROWS)?.insert(&1, &1)).unwrap();
    drop(db);
    drop(small().open(dir.path()).unwrap());
    assert!(ticket.is_durable().unwrap());
    ticket.wait().unwrap();
}

#[test]
fn transactions_that_begin_while_a_store_closes_run_whole_or_are_refused() {
    for _ in 0..20 {
        let db = small().open_in_memory().unwrap();
        std::thread::scope(|s| {
            let writers: Vec<_> = (0..4)
                .map(|key| {
                    let db = &db;
                    s.spawn(move || {
                        loop {
                            match put(db, key) {
                                Ok(()) => {}
                                Err(Error::Closed) => return,
                                Err(error) => panic!("{error}"),
                            }
                        }
                    })
                })
                .collect();
            while let Err(error) = db.close() {
                assert!(matches!(error, Error::StillInUse { .. }), "{error}");
            }
            writers.into_iter().for_each(|writer| writer.join().unwrap());
        });
    }
}

#[test]
fn removing_the_lock_file_lets_no_second_writer_in() {
    let dir = TempDir::new().unwrap();
    let db = small().open(dir.path()).unwrap();
    std::fs::remove_file(dir.path().join("LOCK")).unwrap();
    let error = small().open(dir.path()).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    put(&db, 1).unwrap();
    drop(db);
    small().open(dir.path()).unwrap();
}

#[test]
fn a_refused_directory_is_unchanged() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("letter.txt"), "not a store").unwrap();
    let names = || {
        let entries = std::fs::read_dir(dir.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
    };
    let error = small().open(dir.path()).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains("letter.txt"), "{error}");
    assert!(matches!(small().create(false).open(dir.path()), Err(Error::NotFound { .. })));
    assert_eq!(names(), ["letter.txt"]);
    let absent = dir.path().join("absent");
    assert!(matches!(small().cache_bytes(4096).open(&absent), Err(Error::Invalid(_))));
    assert!(matches!(small().wal_segment_bytes(u64::MAX).open(&absent), Err(Error::Invalid(_))));
    assert!(!absent.exists());
}

#[test]
fn the_least_cache_follows_from_the_pages_of_the_store() {
    let dir = TempDir::new().unwrap();
    drop(small().page_size(65536).cache_bytes(2 << 20).open(dir.path()).unwrap());
    let error = small().open(dir.path()).unwrap_err();
    let says = error.to_string();
    assert!(matches!(error, Error::Invalid(_)) && says.contains("65536"), "{says}");
    drop(small().cache_bytes(24 * 65536).open(dir.path()).expect("enough for its pages"));

    let dir = TempDir::new().unwrap();
    drop(small().page_size(4096).open(dir.path()).unwrap());
    drop(small().cache_bytes(24 * 4096).open(dir.path()).expect("enough, though not for pages of 8 KiB"));
}

/// Runs `child` in a forked process; returns `true` if `child` returned `true` within a minute.
#[allow(unsafe_code, reason = "fork has no safe form")]
fn in_forked_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only makes calls that fail before they take a lock, drops objects, and ends by
    // `_exit`.
    unsafe {
        match libc::fork() {
            -1 => panic!("no fork"),
            0 => {
                libc::alarm(60); // a child that hangs is killed
                let is_well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
                libc::_exit(i32::from(!is_well))
            }
            child => {
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                status == 0
            }
        }
    }
}

#[test]
fn a_forked_child_cannot_use_the_store_and_the_parent_can() {
    let dir = TempDir::new().unwrap();
    let db = small().open(dir.path()).unwrap();
    put(&db, 1).unwrap();
    let tx = db.begin().unwrap();
    tx.table(&ROWS).unwrap().insert(&2, &2).unwrap();
    let ((), ticket) = db.transact_async(|tx| tx.table(&ROWS)?.insert(&3, &3)).unwrap();
    let (mut tx, mut ticket, mut db) = (Some(tx), Some(ticket), Some(db));

    let is_forked = |result: Result<(), Error>| matches!(result, Err(Error::Forked { .. }));
    let refused = in_forked_child(|| {
        let (tx, ticket, db) = (tx.take().unwrap(), ticket.take().unwrap(), db.take().unwrap());
        let calls = [
            put(&db, 9),
            db.checkpoint(),
            db.close(),
            db.table_names().map(drop),
            db.check(&mut |_, _| ()).map(drop),
            tx.table(&ROWS).and_then(|rows| rows.insert(&9, &9)),
            tx.commit(),
            ticket.clone().wait(),
            ticket.is_durable().map(drop),
        ];
        drop((ticket, db)); // would hang if it waited for the parent's threads
        calls.into_iter().all(is_forked)
    });
    assert!(refused, "each call is refused, and nothing hangs");
    let aborted = in_forked_child(|| {
        let (tx, kept) = (tx.take().unwrap(), db.take().unwrap());
        let is_refused = is_forked(tx.abort());
        drop(kept);
        is_refused
    });
    assert!(aborted);

    let (tx, db) = (tx.unwrap(), db.unwrap());
    assert!(matches!(small().open(dir.path()), Err(Error::InUse { .. })), "the lock is still the parent's");
    tx.table(&ROWS).unwrap().insert(&4, &4).unwrap();
    tx.commit().unwrap();
    ticket.unwrap().wait().unwrap();
    put(&db, 5).unwrap();
    assert!(db.check(&mut |_, _| ()).unwrap().is_clean());
    db.close().unwrap();
    let again = small().open(dir.path()).unwrap();
    let rows =
        again.transact(|tx| tx.table(&ROWS)?.iter().map(|row| Ok(row?.0)).collect::<Result<Vec<_>, _>>());
    assert_eq!(rows.unwrap(), [1, 2, 3, 4, 5]);
}

#[test]
fn a_forked_child_changes_no_file_of_its_parents_sorter() {
    let dir = TempDir::new().unwrap();
    let db = small().open(dir.path()).unwrap();
    let row = |n: u32| (n.reverse_bits().to_be_bytes(), [7; 1_000]);
    let mut sorter = db.row_sorter(1);
    (0..2_000).for_each(|n| sorter.push(&row(n).0, &row(n).1).unwrap());
    assert!(sorter.runs() > 0);
    let mut sorter = Some(sorter);
    let is_forked = |result: Result<(), Error>| matches!(result, Err(Error::Forked { .. }));
    assert!(in_forked_child(|| {
        let mut sorter = sorter.take().unwrap();
        is_forked(sorter.push(b"key", b"value")) && is_forked(sorter.into_sorted().map(drop))
    }));
    let sorted = sorter.unwrap().into_sorted().unwrap();
    let keys: Vec<_> = sorted.map(|row| row.unwrap().0).collect();
    assert!(keys.len() == 2_000 && keys.is_sorted());
}

#[test]
fn a_store_in_memory_with_an_archive_is_refused() {
    let error = small().archive("archive").open_in_memory().unwrap_err();
    assert!(matches!(&error, Error::Invalid(reason) if reason.contains("log archive")), "{error}");
}

#[test]
fn a_forked_child_can_open_stores_of_its_own() {
    let (mine, theirs) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let db = small().open(mine.path()).unwrap();
    let path = theirs.path();
    assert!(in_forked_child(|| {
        let own = small().background(false).open(path).unwrap();
        put(&own, 7).is_ok() && own.close().is_ok()
    }));
    put(&db, 1).unwrap();
    let theirs = small().open(path).unwrap();
    assert_eq!(theirs.transact(|tx| tx.table(&ROWS)?.get(&7)).unwrap(), Some(7));
}

#[test]
fn the_number_of_log_streams_is_chosen_at_creation_and_kept() {
    let dir = TempDir::new().unwrap();
    let streams = |builder: Builder| {
        let db = builder.open(dir.path()).unwrap();
        put(&db, 1).unwrap();
        let streams = db.stats().log.streams;
        db.close().unwrap();
        streams
    };
    let unset = || Database::builder().cache_bytes(1 << 20).log_buffers(8);
    assert_eq!(streams(unset().wal_streams(3)), 3);
    assert_eq!(streams(unset()), 3, "CONTROL keeps the number");
    assert_eq!(streams(unset().log_buffers(2)), 2, "at most one stream per log buffer");
    assert_eq!(streams(unset().wal_streams(5)), 5, "a set number replaces the kept one");
    assert_eq!(streams(unset()), 5);
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Runs an ignored test of this file in its own process, so that no other test disturbs it.
fn in_own_process(test: &str) {
    let test = ["--exact", test, "--ignored", "--test-threads=1", "--nocapture"];
    let done = std::process::Command::new(std::env::current_exe().unwrap()).args(test).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(String::from_utf8_lossy(&done.stdout).contains("1 passed"), "there is no such test: {test:?}");
}

#[test]
fn idle_stores_have_no_threads_and_cost_nothing() {
    in_own_process("idle_stores");
}

#[test]
#[ignore = "counts the threads of its process: run by another test"]
fn idle_stores() {
    const STORES: usize = 100;
    const SECONDS: u64 = 3;
    let dir = TempDir::new().unwrap();
    let (bare, files) = (Costs::now().threads, open_files());
    let mut stores: Vec<_> =
        (0..STORES).map(|n| Database::builder().open(dir.path().join(n.to_string())).unwrap()).collect();
    stores.push(Database::in_memory().unwrap());
    for store in &stores {
        put(store, 1).unwrap();
        drop(store.snapshot().unwrap());
        // The last commit has a ticket that no caller waits for.
        drop(store.transact_async(|tx| tx.table(&ROWS)?.insert(&2, &2)).unwrap());
    }
    // A thread with work may look idle, if the system does not run it. Stores that do some work at all times
    // are not idle in any attempt.
    let is_idle = |before: &Costs| {
        std::thread::sleep(std::time::Duration::from_secs(SECONDS));
        Costs::now() == *before
    };
    let before = (0..10).find_map(|_| Some(Costs::at_rest()).filter(is_idle)).expect("the stores are idle");
    assert!(before.threads - bare < 10, "{before:?} of {STORES} stores");
    let per_store = (open_files() - files).div_ceil(STORES);
    assert!(per_store <= 6, "{per_store} files of one store, with its directory");
    // The stores continue to work.
    for store in &stores {
        put(store, 3).unwrap();
        store.close().unwrap();
    }
    drop(stores);
    Costs::wait_for_threads(bare, "all threads end");
    assert_eq!(open_files(), files, "everything is given back");
}

#[test]
fn stores_work_with_one_thread_of_each_kind() {
    in_own_process("few_threads");
}

#[test]
#[ignore = "limits the threads of its process: run by another test"]
fn few_threads() {
    const STORES: u64 = 4;
    const ROUNDS: u64 = 150;
    azekura_base::background::limit_threads(1);
    let value = [7_u8; 4000];
    let rows = TableDefinition::<u64, [u8]>::new("values");
    let dir = TempDir::new().unwrap();
    // Every kind of job runs, and the rows need more pages than the cache holds: misses wait for the cleaner,
    // which waits for the log.
    let stores: Vec<_> = (0..STORES)
        .map(|n| {
            small()
                .recovery_time(std::time::Duration::from_millis(2))
                .open(dir.path().join(n.to_string()))
                .unwrap()
        })
        .collect();
    std::thread::scope(|s| {
        for store in &stores {
            s.spawn(|| {
                let write = |n: u64| {
                    store.transact_async(|tx| {
                        (0..8).try_for_each(|i| tx.table(&rows)?.insert(&(n * 8 + i), &value[..]))
                    })
                };
                let tickets: Vec<_> = (0..ROUNDS).map(|n| write(n).unwrap().1).collect();
                tickets.into_iter().for_each(|ticket| ticket.wait().unwrap());
                let count = store.transact(|tx| Ok(tx.table(&rows)?.iter().count())).unwrap();
                assert_eq!(count as u64, 8 * ROUNDS);
            });
        }
    });
    assert!(stores.iter().all(|store| store.stats().cache.evictions > 0), "all pages fit");
    stores.iter().for_each(|store| store.close().unwrap());
}

/// Returns the resident anonymous memory of this process in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns the number of calls of this process that read a file.
fn read_calls() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap();
    io.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap()
}

#[test]
fn small_stores_take_little_memory() {
    in_own_process("memory_of_small_stores");
}

#[test]
#[ignore = "counts the memory of its process: run by another test"]
fn memory_of_small_stores() {
    const STORES: u64 = 100;
    const STORES_OF_A_SUITE: u64 = 500;
    let dir = TempDir::new().unwrap();
    let bare = Costs::now().threads;
    let of_each = |before: u64| resident_kib().saturating_sub(before) / STORES;
    let before = resident_kib();
    let empty: Vec<_> = (0..STORES).map(|_| Database::in_memory().unwrap()).collect();
    let in_memory = of_each(before);
    let before = resident_kib();
    let stores: Vec<_> =
        (0..STORES).map(|n| Database::builder().open(dir.path().join(n.to_string())).unwrap()).collect();
    let opened = of_each(before);
    stores.iter().for_each(|store| put(store, 1).unwrap());
    let with_a_row = of_each(before);
    // A thousandth store has the least default cache.
    let before = resident_kib();
    let late = Database::builder().cache_bytes(24 << 16);
    let late: Vec<_> =
        (0..STORES).map(|n| late.clone().open(dir.path().join(format!("late{n}"))).unwrap()).collect();
    late.iter().for_each(|store| put(store, 1).unwrap());
    let late_with_a_row = of_each(before);
    // With the least cache and a row, 24 KiB are three pages. A store takes 57 to 59 KiB, which depends on
    // the threads that have run.
    println!("KiB of each: {in_memory}, opened {opened}, with a row {with_a_row}, late {late_with_a_row}");
    // The arrays of the large caches of the first twenty stores use at least one page of the system each.
    assert!(in_memory < 190 && opened < 60 && with_a_row < 125, "{in_memory}, {opened}, {with_a_row} KiB");
    assert!(late_with_a_row < 70, "{late_with_a_row} KiB");
    drop((empty, stores, late));
    // One store in memory, after others were created. All arrays of the cache are counted, although most of
    // them are mapped but not touched.
    let allocated = || [0, 1].map(|n: usize| ALLOCATED[n].load(SeqCst));
    let before = allocated();
    let store = Database::in_memory().unwrap();
    let after = allocated();
    let (calls, bytes) = (after[0] - before[0], after[1] - before[1]);
    assert!(calls < 550 && bytes < 600_000, "a store in memory: {calls} allocations, {bytes} bytes");
    drop(store);
    // A test suite creates a store for each test.
    Costs::wait_for_threads(bare, "the threads of the first stores end");
    let (before, reads) = (resident_kib(), read_calls());
    for n in 0..STORES_OF_A_SUITE {
        let store = Database::in_memory().unwrap();
        put(&store, n).unwrap();
    }
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 8 << 10, "{STORES_OF_A_SUITE} stores leave {grown} KiB");
    // The number of processors is read once per process, not for each store.
    let reads = read_calls() - reads;
    assert!(reads < 100, "{reads} calls that read files, of {STORES_OF_A_SUITE} stores in memory");
    Costs::wait_for_threads(bare, "the threads of the suite's stores end");
}

#[test]
fn scans_allocate_nothing_for_a_row() {
    in_own_process("allocations_of_rows");
}

#[test]
#[ignore = "counts the allocations of its process: run by another test"]
fn allocations_of_rows() {
    const MANY: u64 = 20_000;
    let db = Database::builder().background(false).cache_bytes(16 << 20).open_in_memory().unwrap();
    db.transact(|tx| (0..MANY).try_for_each(|key| tx.table(&ROWS)?.insert(&key, &key))).unwrap();
    let scans: [(&str, &dyn Fn(&mut u64) -> Result<(), Error>); 6] = [
        ("for_each", &|sum| db.transact(|tx| tx.table(&ROWS)?.for_each(.., |row| add(row, sum)))),
        ("for_each_back", &|sum| db.transact(|tx| tx.table(&ROWS)?.for_each_back(.., |row| add(row, sum)))),
        ("iter", &|sum| {
            db.transact(|tx| tx.table(&ROWS)?.iter().try_for_each(|row| row.map(|(_, value)| *sum += value)))
        }),
        ("for_each of a snapshot", &|sum| db.read(|s| s.table(&ROWS)?.for_each(.., |row| add(row, sum)))),
        ("for_each_back of a snapshot", &|sum| {
            db.read(|s| s.table(&ROWS)?.for_each_back(.., |row| add(row, sum)))
        }),
        ("iter of a snapshot", &|sum| {
            db.read(|s| s.table(&ROWS)?.iter().try_for_each(|row| row.map(|(_, value)| *sum += value)))
        }),
    ];
    for (name, scan) in scans {
        let (mut sum, before) = (0, ALLOCATED[0].load(SeqCst));
        scan(&mut sum).unwrap();
        let calls = ALLOCATED[0].load(SeqCst) - before;
        assert_eq!(sum, MANY * (MANY - 1) / 2, "{name}");
        assert!(calls < MANY / 20, "{name}: {calls} allocations for {MANY} rows");
    }
}

fn add(row: azekura::RowRef<'_, u64, u64>, sum: &mut u64) -> Result<ControlFlow<()>, Error> {
    *sum += row.value()?;
    Ok(ControlFlow::Continue(()))
}

#[test]
fn the_default_caches_of_many_stores_take_a_quarter_of_the_memory() {
    const STORES: u64 = 100;
    let info = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
    let total = total.unwrap().parse::<u64>().unwrap() << 10;
    let stores: Vec<_> = (0..STORES).map(|_| Database::builder().open_in_memory().unwrap()).collect();
    let caches = stores.iter().map(|store| store.stats().cache);
    let bytes: u64 = caches.map(|cache| cache.frames as u64 * cache.page_size as u64).sum();
    assert!(bytes <= total / 4 + STORES * (24 << 16), "{bytes} of {total} bytes");
    stores.iter().zip(0..).for_each(|(store, n)| put(store, n).unwrap());
}

#[test]
fn a_cache_without_memory_is_an_error_that_names_its_size() {
    in_own_process("cache_without_memory");
}

#[test]
#[ignore = "limits the memory of its process: run by another test"]
#[allow(unsafe_code, reason = "setrlimit has no safe form here")]
fn cache_without_memory() {
    const CACHE: usize = 4 << 30;
    let limit = libc::rlimit { rlim_cur: 2 << 30, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the call reads the limit, and this process runs no other test.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
    let error = Database::builder().cache_bytes(CACHE).open_in_memory().unwrap_err();
    assert!(matches!(&error, Error::Invalid(says) if says.contains(&CACHE.to_string())), "{error}");
    put(&Database::builder().cache_bytes(64 << 20).open_in_memory().unwrap(), 1).unwrap();
}
