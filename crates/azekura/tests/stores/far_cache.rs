//! Tests of the second tier of the page cache. A store with memory servers returns the same results as a
//! store without them, whatever happens to the servers, and no page is older than its last write.

#![allow(clippy::unwrap_used, reason = "a failed step in a helper ends the test")]

use azekura::{Builder, Database, Error, FarTierStats, TableDefinition};
use azekura_far::Server;
use azekura_far::server::fault_injector::{FaultInjector, InjectedAction};
use azekura_io::FaultFs;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");
/// Number of rows, which need about ten times the capacity of the cache.
const KEYS: u64 = 3_000;
const FAR: u64 = 4 << 20;

type Plain = BTreeMap<u64, Vec<u8>>;

fn server() -> Server {
    Server::builder().capacity(64 << 20).listen("127.0.0.1:0").unwrap()
}

fn names(servers: &[&Server]) -> Vec<String> {
    servers.iter().map(|server| server.address().to_string()).collect()
}

fn setting(fs: &FaultFs) -> Builder {
    let fs = Arc::new(fs.clone());
    Database::builder()
        .file_system(fs)
        .page_size(4096)
        .cache_bytes(32 * 4096)
        .background(false)
        .log_buffers(1)
}

/// A fault injector that serves a number of requests, and then answers each request with `act`.
#[derive(Debug)]
struct After {
    left: AtomicI64,
    act: InjectedAction,
}

impl FaultInjector for After {
    fn act(&self, _is_put: bool, _page: u64) -> InjectedAction {
        if self.left.fetch_sub(1, Relaxed) > 0 { InjectedAction::Serve } else { self.act }
    }
}

/// Runs random reads and changes, and compares the reads with a map.
fn work(db: &Database, plain: &mut Plain, rng: &mut StdRng, rounds: usize) {
    for round in 0..rounds {
        let changes: Plain = (0..3)
            .map(|_| (rng.random_range(0..KEYS), vec![rng.random::<u8>(); rng.random_range(20..200)]))
            .collect();
        let reads: Vec<u64> = (0..6).map(|_| rng.random_range(0..KEYS)).collect();
        db.transact(|tx| {
            let rows = tx.table(&ROWS)?;
            for key in &reads {
                assert_eq!(rows.get(key)?.as_ref(), plain.get(key), "round {round}, key {key}");
            }
            changes.iter().try_for_each(|(key, value)| rows.insert(key, value))
        })
        .unwrap();
        plain.extend(changes);
        if round % 16 == 0 {
            db.checkpoint().unwrap(); // changed pages are then clean and can be evicted
        }
    }
}

/// Runs `work` until `done` returns `true` for the statistics of the far tier. The servers' threads determine
/// how long this takes.
fn work_until(db: &Database, plain: &mut Plain, rng: &mut StdRng, done: impl Fn(&FarTierStats) -> bool) {
    let since = Instant::now();
    loop {
        work(db, plain, rng, 100);
        let far = db.stats().far.unwrap();
        if done(&far) {
            return;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "not within a minute: {far:?}");
    }
}

/// Inserts a row for each key.
fn fill(db: &Database, plain: &mut Plain) {
    plain.extend((0..KEYS).map(|key| (key, vec![key as u8; 100])));
    for rows in plain.iter().collect::<Vec<_>>().chunks(100) {
        db.transact(|tx| rows.iter().try_for_each(|(key, value)| tx.table(&ROWS)?.insert(key, value)))
            .unwrap();
    }
}

fn compare(db: &Database, plain: &Plain) {
    let rows = db.transact(|tx| tx.table(&ROWS)?.iter().collect::<Result<Plain, Error>>()).unwrap();
    assert!(rows == *plain, "the whole");
    let report = db.check(&mut |_, _| ()).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn evicted_pages_come_back_unchanged_from_memory_servers() {
    let (a, b) = (server(), server());
    let fs = FaultFs::new();
    let (mut rng, mut plain) = (StdRng::seed_from_u64(1), Plain::new());
    let db = setting(&fs).far_cache(names(&[&a, &b]), FAR).open("/store").unwrap();
    fill(&db, &mut plain);
    work_until(&db, &mut plain, &mut rng, |far| {
        far.hits > 500 && a.stats().gets > 100 && b.stats().gets > 100
    });
    compare(&db, &plain);
}

#[test]
fn a_page_is_never_older_than_it_was_written_after_a_crash_with_its_old_image_still_far() {
    for seed in 0..8 {
        println!("seed {seed}");
        let (mut rng, mut plain) = (StdRng::seed_from_u64(seed), Plain::new());
        let server = server();
        let mut fs = FaultFs::new();
        for life in 0..3 {
            let db = setting(&fs).far_cache(names(&[&server]), FAR).open("/store").unwrap();
            if life == 0 {
                fill(&db, &mut plain);
            }
            work_until(&db, &mut plain, &mut rng, |far| far.hits > 20);
            compare(&db, &plain);
            // Power loss: the acknowledged changes are in the log, pages on disk may be old, and the server
            // has newer and older images.
            fs.cut_power();
            fs = fs.crash(seed);
            drop(db);
        }
        let db = setting(&fs).open("/store").unwrap();
        compare(&db, &plain);
    }
}

#[test]
fn threads_that_change_evict_and_read_the_same_pages_never_see_an_older_one() {
    let server = server();
    let fs = FaultFs::new();
    let db = setting(&fs).background(true).far_cache(names(&[&server]), FAR).open("/store").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let db = &db;
            scope.spawn(move || {
                // Each thread has its own rows, on pages that it shares with the others.
                let mut rng = StdRng::seed_from_u64(thread);
                let mut mine = Plain::new();
                for round in 0..600 {
                    let key = rng.random_range(0..KEYS / 4) * 4 + thread;
                    let value = vec![round as u8; 150];
                    let before = db
                        .transact(|tx| {
                            let rows = tx.table(&ROWS)?;
                            let before = rows.get(&key)?;
                            rows.insert(&key, &value)?;
                            Ok::<_, Error>(before)
                        })
                        .unwrap();
                    assert_eq!(before, mine.insert(key, value), "thread {thread}, round {round}, key {key}");
                }
            });
        }
    });
    let report = db.check(&mut |_, _| ()).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_server_that_dies_stalls_or_lies_costs_misses_and_no_error() {
    for (seed, act) in (0..).zip([
        InjectedAction::Die,
        InjectedAction::Stall,
        InjectedAction::Lie,
        InjectedAction::Damage,
        InjectedAction::Zeros,
        InjectedAction::Deny,
        InjectedAction::Babble,
    ]) {
        println!("seed {seed}, {act:?}");
        let (mut rng, mut plain) = (StdRng::seed_from_u64(seed), Plain::new());
        let fault_injector = Arc::new(After { left: AtomicI64::new(100), act });
        let bad = Server::builder()
            .capacity(64 << 20)
            .fault_injector(fault_injector)
            .listen("127.0.0.1:0")
            .unwrap();
        let good = server();
        let fs = FaultFs::new();
        let db = setting(&fs).far_cache(names(&[&bad, &good]), FAR).open("/store").unwrap();
        fill(&db, &mut plain);
        work_until(&db, &mut plain, &mut rng, |far| {
            far.last_loss.is_some() && far.hits > 100 && good.stats().gets > 50
        });
        compare(&db, &plain);
    }
}

#[test]
fn a_store_opens_and_works_when_no_server_can_be_reached() {
    let fs = FaultFs::new();
    let (mut rng, mut plain) = (StdRng::seed_from_u64(9), Plain::new());
    // No server of another test gets this port.
    let db = setting(&fs).far_cache(["127.0.0.1:1"], FAR).open("/store").unwrap();
    work(&db, &mut plain, &mut rng, 200);
    work_until(&db, &mut plain, &mut rng, |far| far.last_loss.is_some());
    compare(&db, &plain);
    let far = db.stats().far.unwrap();
    assert_eq!((far.servers_up, far.hits), (0, 0));
    assert!(far.last_loss.unwrap().contains("cannot connect to memory server"));
}

#[test]
fn impossible_settings_are_refused_by_name() {
    let refused = |servers: &[&str], bytes| {
        let opened = Database::builder().far_cache(servers.iter().copied(), bytes).open_in_memory();
        opened.map(drop).unwrap_err().to_string()
    };
    assert!(refused(&[], FAR).contains("the cache has 0 memory servers; use 1 to 64"));
    assert!(refused(&["127.0.0.1:1"], 100).contains("does not fit 1 memory servers"));
}
