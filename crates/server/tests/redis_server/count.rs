//! `DBSIZE` and `INFO keyspace` return the kept numbers of keys. Counting the keys gives the same numbers.

use std::sync::Arc;
use std::time::Duration;

use azekura::Database;
use azekura_io::fault::FaultFs;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::support::{Client, TestServer, encoded, seed};

fn assert_counted(client: &mut Client, after: &str) {
    assert_eq!(client.ask("DBSIZE"), client.ask("AZ.COUNT - +"), "after {after}");
}

/// Compares `INFO keyspace` with the keys and their expiry times.
fn assert_described(client: &mut Client, after: &str) {
    let all = client.ask("AZ.RANGE - + KEYS");
    let keys: Vec<_> = all.trim_matches(['[', ']']).split(' ').filter(|key| !key.is_empty()).collect();
    let expiring = keys.iter().filter(|key| client.ask(&format!("PTTL {key}")) != ":-1").count();
    let line = match keys.len() {
        0 => String::new(),
        all => format!("db0:keys={all},expires={expiring},avg_ttl=0\r\n"),
    };
    assert_eq!(client.ask("INFO keyspace"), format!("# Keyspace\r\n{line}"), "after {after}");
}

fn draw(rng: &mut StdRng) -> String {
    let mut key = || format!("k{:02}", rng.random_range(0..30));
    let (a, b, c) = (key(), key(), key());
    match rng.random_range(0..18) {
        0 | 1 => format!("SET {a} 1"),
        2 => format!("SET {a} 1 PX {}", rng.random_range(1..60)),
        3 => format!("SET {a} 1 NX"),
        4 => format!("MSET {a} 1 {b} 2 {a} 3"),
        5 => format!("MSETNX {a} 1 {b} 2"),
        6 => format!("INCR {a}"),
        7 => format!("APPEND {a} x"),
        8 | 9 => format!("DEL {a} {b} {a}"),
        10 => format!("GETDEL {a}"),
        11 => format!("RENAME {a} {b}"),
        12 => format!("COPY {a} {b} REPLACE"),
        13 => format!("PEXPIRE {a} {}", rng.random_range(0..40)),
        14 => format!("BITOP AND {a} {b} {c}"),
        15 if a < b => format!("AZ.DELRANGE [{a} ({b}"),
        16 if rng.random_range(0..8) == 0 => "FLUSHALL".into(),
        // Refused after the first key was stored.
        17 => format!("MSET {a} 1 {} 2", "k".repeat(2000)),
        _ => format!("PERSIST {a}"),
    }
}

#[test]
fn the_number_of_keys_is_right_after_any_commands() {
    let mut rng = StdRng::seed_from_u64(seed("AZEKURA_REDIS_SERVER_SEED"));
    let redis = TestServer::with(|options| options.expiry_interval = Duration::from_millis(1));
    let (mut client, mut other, mut reader) = (redis.client(), redis.client(), redis.client());
    for turn in 0..160 {
        let commands: Vec<String> = (0..rng.random_range(1..12)).map(|_| draw(&mut rng)).collect();
        match turn % 4 {
            0 => commands.iter().for_each(|command| drop(client.ask(command))),
            1 => {
                // One pipeline, so single-key writes share a transaction.
                let words = commands.iter().map(|command| command.split(' ').collect::<Vec<_>>());
                client.send_raw(&words.flat_map(|words| encoded(&words)).collect::<Vec<_>>()).unwrap();
                commands.iter().for_each(|_| drop(client.reply()));
            }
            2 => {
                let (begin, ends) = [("MULTI", ["EXEC", "DISCARD"]), ("AZ.BEGIN", ["AZ.COMMIT", "AZ.ABORT"])]
                    [rng.random_range(0..2)];
                assert_eq!(other.ask(begin), "OK");
                for command in &commands {
                    other.ask(command);
                    if begin == "AZ.BEGIN" {
                        // A transaction sees its own changes.
                        assert_counted(&mut other, command);
                    }
                }
                other.ask(ends[rng.random_range(0..2)]);
            }
            _ => redis.pass_ms(rng.random_range(1..30)),
        }
        let context = format!("turn {turn}: {commands:?}");
        assert_counted(&mut client, &context);
        assert_described(&mut client, &context);
        assert_eq!(reader.ask("AZ.BEGIN RO"), "OK");
        client.ask(&commands[0]);
        assert_counted(&mut reader, &context);
        assert_eq!(reader.ask("AZ.COMMIT"), "OK");
    }
}

#[test]
fn the_number_of_keys_is_right_after_a_crash() {
    let mut rng = StdRng::seed_from_u64(seed("AZEKURA_REDIS_SERVER_SEED"));
    let mut disk = FaultFs::new();
    for round in 0..6 {
        let open =
            |disk: &FaultFs| Database::builder().file_system(Arc::new(disk.clone())).open("/db").unwrap();
        let redis = TestServer::over(open(&disk), |_| ());
        let mut client = redis.client();
        assert_counted(&mut client, &format!("restart {round}"));
        assert_described(&mut client, &format!("restart {round}"));
        let mut open_transaction = redis.client();
        assert_eq!(open_transaction.ask("AZ.BEGIN"), "OK");
        assert_eq!(open_transaction.ask(&format!("SET open:{round} 1")), "OK");
        // These requests are in flight at the crash, so any of them may be lost.
        let sets = |i| encoded(&["SET", &format!("k{round}:{i}"), "1", "EX", "100"]);
        client.send_raw(&(0..40).flat_map(sets).collect::<Vec<_>>()).unwrap();
        for _ in 0..rng.random_range(0..40) {
            assert_eq!(client.reply(), "OK");
        }
        let after = if round % 2 == 0 { disk.crash(rng.random()) } else { disk.crash_losing_all() };
        disk.cut_power();
        drop((client, open_transaction));
        drop(redis);
        disk = after;
    }
}

#[test]
fn the_number_of_keys_is_right_after_writes_of_many_clients() {
    let redis = TestServer::open();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let mut client = redis.client();
            scope.spawn(move || {
                for i in 0..50 {
                    let write = |j| encoded(&["SET", &format!("{thread}:{i}:{j}"), "1"]);
                    let mut requests: Vec<u8> = (0..8).flat_map(write).collect();
                    requests.extend(encoded(&["DEL", &format!("{}:{i}:0", (thread + 1) % 4), "shared"]));
                    requests.extend(encoded(&["SET", "shared", "1"]));
                    client.send_raw(&requests).unwrap();
                    (0..10).for_each(|_| assert!(!client.reply().starts_with('-')));
                }
            });
        }
    });
    assert_counted(&mut redis.client(), "all");
}

#[test]
fn the_number_of_keys_is_kept_and_not_counted() {
    let redis = TestServer::open();
    let mut client = redis.client();
    for first in (0..20_000).step_by(1000) {
        let sets = |i| encoded(&["SET", &format!("key:{i:06}"), "x"]);
        client.send_raw(&(first..first + 1000).flat_map(sets).collect::<Vec<_>>()).unwrap();
        (0..1000).for_each(|_| assert_eq!(client.reply(), "OK"));
    }
    let leaves = |client: &mut Client, request: &str| {
        let before = redis.db.stats().scanned_leaves;
        assert_eq!(client.ask(request), ":20000");
        redis.db.stats().scanned_leaves - before
    };
    let (kept, counted) = (leaves(&mut client, "DBSIZE"), leaves(&mut client, "AZ.COUNT - +"));
    assert!(kept <= 4 && counted > 50, "{kept} leaves read for DBSIZE, {counted} for AZ.COUNT");
    let before = redis.db.stats().scanned_leaves;
    assert!(client.ask("INFO").ends_with("\r\n\r\n# Keyspace\r\ndb0:keys=20000,expires=0,avg_ttl=0\r\n"));
    assert!(redis.db.stats().scanned_leaves - before <= 4);
}

#[test]
fn the_numbers_of_keys_follow_each_change_of_an_expiry() {
    let redis = TestServer::with(|options| options.expiry_interval = Duration::from_secs(60));
    let mut client = redis.client();
    assert_eq!(client.ask("INFO keyspace"), "# Keyspace\r\n");
    for (command, keys, expires) in [
        ("SET a 1", 1, 0),
        ("EXPIRE a 50", 1, 1),
        ("EXPIRE a 60", 1, 1),
        ("SET b 1 PX 10", 2, 2),
        ("PERSIST a", 2, 1),
        ("SETEX a 5 1", 2, 2),
        ("SET a 1", 2, 1),
        ("SET a 1 EX 9", 2, 2),
        ("SET a 2 KEEPTTL", 2, 2),
        ("RENAME a c", 2, 2),
        ("COPY c d", 3, 3),
        ("GETEX d PERSIST", 3, 2),
        ("DEL c", 2, 1),
        ("EXPIRE d -1", 1, 1),
    ] {
        assert!(!client.ask(command).starts_with('-'), "{command}");
        let context = format!("# Keyspace\r\ndb0:keys={keys},expires={expires},avg_ttl=0\r\n");
        assert_eq!(client.ask("INFO keyspace"), context, "after {command}");
    }
    redis.pass_ms(10); // b has expired, and its record is still stored
    assert_eq!(client.ask("INFO keyspace"), "# Keyspace\r\n");
    assert_eq!(client.ask("SET b 1"), "OK");
    assert_eq!(client.ask("INFO keyspace"), "# Keyspace\r\ndb0:keys=1,expires=0,avg_ttl=0\r\n");
    assert_eq!(client.ask("FLUSHALL"), "OK");
    assert_eq!(client.ask("INFO keyspace"), "# Keyspace\r\n");
}

#[test]
fn a_store_without_numbers_of_keys_is_counted_at_the_start() {
    let former = azekura::TableDefinition::<u32, i64>::new("redis.count");
    for leaves_former in [false, true] {
        let db = Database::in_memory().unwrap();
        let redis = TestServer::over(db.clone(), |_| ());
        for i in 0..10 {
            assert_eq!(redis.client().ask(&format!("SET {i} x")), "OK");
        }
        assert_eq!(redis.client().ask("EXPIRE 1 1000"), ":1");
        redis.server.stop().unwrap();
        db.transact(|tx| match leaves_former {
            // An earlier version has changed the keys since.
            true => tx.table(&former)?.insert(&0, &10),
            false => tx.drop_table("redis.counts").map(|was_there| assert!(was_there)),
        })
        .unwrap();
        let redis = TestServer::over(db.clone(), |_| ());
        let mut client = redis.client();
        assert_eq!(client.ask("DBSIZE"), ":10");
        assert_described(&mut client, "the start");
        assert_eq!(client.ask("DEL 1 2 x"), ":2");
        assert_eq!(client.ask("DBSIZE"), ":8");
        assert!(!db.transact(|tx| tx.table_exists("redis.count")).unwrap());
    }
}
