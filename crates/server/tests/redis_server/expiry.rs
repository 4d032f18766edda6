//! Expiry of keys, with a clock that the test advances.

use std::time::{Duration, Instant};

use crate::support::{BEGAN_MS, TestServer, info_number};

/// Starts a server in which expired keys stay until the test removes them.
fn server_without_removal() -> TestServer {
    TestServer::with(|options| options.expiry_interval = Duration::from_secs(3600))
}

#[test]
fn an_expired_key_is_absent_for_every_command() {
    let redis = server_without_removal();
    let mut client = redis.client();
    for i in 0..30 {
        assert_eq!(client.ask(&format!("SET k{i:02} 5 PX 100")), "OK");
    }
    redis.pass_ms(99);
    assert_eq!(client.ask("PTTL k00"), ":1");
    redis.pass_ms(1);
    for (request, wanted) in [
        ("GET k00", "nil"),
        ("EXISTS k00 k01", ":0"),
        ("TTL k00", ":-2"),
        ("TYPE k00", "none"),
        ("STRLEN k00", ":0"),
        ("MGET k00 k01", "[nil nil]"),
        ("DEL k00 k01", ":0"),
        ("GETDEL k02", "nil"),
        ("GETSET k03 1", "nil"),
        ("INCR k04", ":1"),
        ("APPEND k05 x", ":1"),
        ("SET k06 1 XX", "nil"),
        ("SET k06 1 NX", "OK"),
        ("SETNX k07 1", ":1"),
        ("MSETNX k08 1", ":1"),
        ("EXPIRE k09 5", ":0"),
        ("PERSIST k09", ":0"),
        ("RENAME k09 x", "-ERR no such key"),
        ("COPY k09 x", ":0"),
        ("AZ.CAS k09 5 6", ":0"),
        ("AZ.COUNT [k09 [k10", ":0"),
        ("AZ.RANGE [k09 [k10", "[]"),
        ("KEYS k1*", "[]"),
        ("SCAN 0 MATCH k1* COUNT 100", "[0 []]"),
        ("DBSIZE", ":6"),
        ("TTL k04", ":-1"),
    ] {
        assert_eq!(client.ask(request), wanted, "{request}");
    }
}

#[test]
fn expiry_times_are_set_kept_changed_and_removed() {
    let redis = server_without_removal();
    let mut client = redis.client();
    let at = |ms: u64| ((BEGAN_MS + ms) / 1000).to_string();
    for (request, wanted) in [
        ("SET a 1 EX 10".to_owned(), ":".to_owned()),
        ("TTL a".into(), ":10".into()),
        ("PTTL a".into(), ":10000".into()),
        ("EXPIRETIME a".into(), format!(":{}", at(10_000))),
        ("PEXPIRETIME a".into(), format!(":{}", BEGAN_MS + 10_000)),
        ("SET a 2 KEEPTTL".into(), "OK".into()),
        ("TTL a".into(), ":10".into()),
        ("APPEND a 0".into(), ":2".into()),
        ("INCR a".into(), ":21".into()),
        ("SETRANGE a 0 3".into(), ":2".into()),
        ("TTL a".into(), ":10".into()),
        ("COPY a b".into(), ":1".into()),
        ("TTL b".into(), ":10".into()),
        ("RENAME b c".into(), "OK".into()),
        ("TTL c".into(), ":10".into()),
        ("SET a 1".into(), "OK".into()),
        ("TTL a".into(), ":-1".into()),
        ("EXPIRE a 100 XX".into(), ":0".into()),
        ("EXPIRE a 100 GT".into(), ":0".into()),
        ("EXPIRE a 100 LT".into(), ":1".into()),
        ("EXPIRE a 200 NX".into(), ":0".into()),
        ("EXPIRE a 200 GT".into(), ":1".into()),
        (
            "EXPIRE a 200 NX XX".into(),
            "-ERR NX and XX, GT or LT options at the same time are not compatible".into(),
        ),
        (format!("EXPIREAT a {}", at(50_000)), ":1".into()),
        ("TTL a".into(), ":50".into()),
        (format!("PEXPIREAT a {}", BEGAN_MS + 500), ":1".into()),
        ("PTTL a".into(), ":500".into()),
        ("EXPIRETIME a".into(), format!(":{}", at(1000))), // rounded, as in Redis
        ("GETEX a PERSIST".into(), "1".into()),
        ("TTL a".into(), ":-1".into()),
        ("GETEX a EX 7".into(), "1".into()),
        ("TTL a".into(), ":7".into()),
        ("PERSIST a".into(), ":1".into()),
        ("PERSIST a".into(), ":0".into()),
        ("SETEX a 8 x".into(), "OK".into()),
        ("PSETEX b 9000 x".into(), "OK".into()),
        ("PTTL b".into(), ":9000".into()),
        ("EXPIRE a -1".into(), ":1".into()),
        ("EXISTS a".into(), ":0".into()),
    ] {
        let got = client.ask(&request);
        assert!(got == wanted || wanted == ":" && got == "OK", "{request} => {got}, not {wanted}");
    }
}

#[test]
fn expired_keys_are_removed_with_their_rows_and_no_others() {
    let redis = TestServer::with(|options| options.expiry_interval = Duration::from_millis(1));
    let mut client = redis.client();
    for i in 0..700 {
        assert_eq!(client.ask(&format!("SET gone:{i} x PX {}", 100 + i % 7)), "OK");
        assert_eq!(client.ask(&format!("SET later:{i} x PX 100000")), "OK");
    }
    // The expiry of these keys was replaced, moved or removed. Their old rows must not remove them.
    assert_eq!(client.ask("SET gone:0 x PX 100000"), "OK");
    assert_eq!(client.ask("PERSIST gone:1"), ":1");
    assert_eq!(client.ask("RENAME gone:2 kept"), "OK");
    assert_eq!(client.ask("PEXPIRE kept 100000"), ":1");
    assert_eq!(client.ask("SET gone:3 x"), "OK");
    // These expiries are replaced or removed, so their rows must be removed at once.
    assert_eq!(client.ask("SET later:0 x"), "OK");
    assert_eq!(client.ask("DEL later:1"), ":1");
    assert_eq!(client.ask("RENAME later:2 later:3"), "OK");
    redis.pass_ms(1000);
    let removed = |client: &mut crate::support::Client| {
        let info = client.ask("INFO stats");
        let line = info.lines().find_map(|line| line.strip_prefix("expired_keys:")).unwrap();
        line.parse::<usize>().unwrap()
    };
    while removed(&mut client) < 696 {
        std::thread::yield_now();
    }
    assert_eq!(client.ask("DBSIZE"), ":702");
    assert_eq!(removed(&mut client), 696);
    // KEY-1: there is one row for each key that expires.
    let rows = redis
        .db
        .transact(|tx| {
            let rows = azekura::TableDefinition::raw("redis.expiry");
            Ok(tx.table(&rows)?.iter().count())
        })
        .unwrap();
    assert_eq!(rows, 699);
}

/// The removal of expired keys waits for no transaction, and so holds no lock for which a client waits.
#[test]
fn an_open_transaction_with_a_key_that_expires_delays_no_other_client() {
    let redis = TestServer::with(|options| {
        options.expiry_interval = Duration::from_millis(1);
        options.transaction_timeout = Duration::from_secs(600);
    });
    let (mut open, mut other) = (redis.client(), redis.client());
    for key in ["a", "b", "c", "d"] {
        assert_eq!(other.ask(&format!("SET {key} 1 PX 100")), "OK");
    }
    for (request, wanted) in [("AZ.BEGIN", "OK"), ("GET c", "1"), ("SET later 1 PX 5000", "OK")] {
        assert_eq!(open.ask(request), wanted, "{request}");
    }
    redis.pass_ms(1000);
    // A removal also locks the gap to the next key, so a row before a locked one stays, too.
    let limit = Instant::now() + Duration::from_secs(60);
    while info_number(&mut other, "expired_keys") < 2 {
        assert!(Instant::now() < limit, "the removal waits for the transaction");
        std::thread::yield_now();
    }
    for (request, wanted) in [("SET a 2", "OK"), ("GET c", "nil"), ("SET sooner 1 PX 100", "OK")] {
        assert_eq!(other.ask(request), wanted, "{request}");
    }
    assert_eq!(open.ask("GET c"), "1");
    assert_eq!(open.ask("AZ.COMMIT"), "OK");
    while info_number(&mut other, "expired_keys") < 4 {
        assert!(Instant::now() < limit, "the removal skips a key that is not locked");
        std::thread::yield_now();
    }
    assert_eq!(other.ask("KEYS *"), "[a later sooner]");
}

/// The transaction judges expiry by its beginning, but a client that sets a time means the time from now.
#[test]
fn a_relative_time_in_a_transaction_counts_from_its_command() {
    let redis = server_without_removal();
    let mut client = redis.client();
    for request in ["SET old 1 PX 1000", "SET kept 1", "AZ.BEGIN"] {
        assert_eq!(client.ask(request), "OK");
    }
    redis.pass_ms(8000);
    for (request, wanted) in [
        ("GET old", "1"), // no key expires during a transaction
        ("PTTL old", ":0"),
        ("SET a 1 EX 10", "OK"),
        ("PTTL a", ":10000"),
        ("PEXPIRE kept 10000", ":1"),
        ("SETEX c 10 1", "OK"),
        ("GETEX old PX 10000", "1"),
        ("PTTL old", ":10000"),
        ("AZ.COMMIT", "OK"),
    ] {
        assert_eq!(client.ask(request), wanted, "{request}");
    }
    redis.pass_ms(9999);
    assert_eq!(client.ask("EXISTS a kept c old"), ":4");
    redis.pass_ms(1);
    assert_eq!(client.ask("EXISTS a kept c old"), ":0");
}

#[test]
fn a_snapshot_has_the_same_keys_at_any_time() {
    let redis = TestServer::open();
    let (mut owner, mut reader) = (redis.client(), redis.client());
    assert_eq!(owner.ask("SET a 1 PX 1000"), "OK");
    let number = owner.ask("AZ.SNAPSHOT");
    let begin = format!("AZ.BEGIN RO AT {}", number.strip_prefix(':').unwrap());
    for pass_ms in [0, 999, 1, 60_000] {
        redis.pass_ms(pass_ms);
        assert_eq!(reader.ask(&begin), "OK");
        for (request, wanted) in [("GET a", "1"), ("PTTL a", ":1000"), ("DBSIZE", ":1"), ("AZ.COMMIT", "OK")]
        {
            assert_eq!(reader.ask(request), wanted, "{request}");
        }
    }
    assert_eq!(reader.ask("GET a"), "nil");
}
