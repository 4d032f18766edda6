//! `MULTI`, `WATCH`, and interactive transactions: replies, isolation and timeouts.

use std::time::Duration;

use azekura::Database;

use crate::support::{Client, TestServer, deadlock, wait_until};

#[test]
fn a_queue_runs_as_one_and_a_refused_command_leaves_the_others() {
    let redis = TestServer::open();
    let mut client = redis.client();
    assert_eq!(client.ask("SET text abc"), "OK");
    for request in ["MULTI", "SET a 1", "INCR text", "INCR a", "MSETNX a 1 b 2", "PING", "DBSIZE", "KEYS *"] {
        let reply = client.ask(request);
        assert!(reply == "OK" || reply == "QUEUED", "{request} => {reply}");
    }
    assert_eq!(redis.client().ask("GET a"), "nil");
    assert_eq!(
        client.ask("EXEC"),
        "[OK -ERR value is not an integer or out of range :2 :0 PONG :2 [a text]]"
    );
    assert_eq!(redis.client().ask("GET a"), "2");
}

#[test]
fn a_command_that_cannot_be_queued_spoils_the_queue() {
    let redis = TestServer::open();
    let mut client = redis.client();
    for spoiler in ["NOSUCH", "GET", "AZ.BEGIN"] {
        assert_eq!(client.ask("MULTI"), "OK");
        assert_eq!(client.ask("SET a 1"), "QUEUED");
        assert!(client.ask(spoiler).starts_with("-ERR"), "{spoiler}");
        assert!(client.ask("EXEC").starts_with("-EXECABORT"), "{spoiler}");
    }
    assert_eq!(client.ask("GET a"), "nil");
    for (request, wanted) in [
        ("EXEC", "-ERR EXEC without MULTI"),
        ("DISCARD", "-ERR DISCARD without MULTI"),
        ("MULTI", "OK"),
        ("MULTI", "-ERR MULTI calls can not be nested"),
        ("WATCH a", "-ERR WATCH inside MULTI is not allowed"),
        ("SET a 1", "QUEUED"),
        ("DISCARD", "OK"),
        ("GET a", "nil"),
        ("MULTI", "OK"),
        ("EXEC", "[]"),
    ] {
        assert_eq!(client.ask(request), wanted, "{request}");
    }
}

#[test]
fn a_queue_is_bounded() {
    let redis = TestServer::with(|options| options.wire.max_request_bytes = 10_000);
    let mut client = redis.client();
    assert_eq!(client.ask("MULTI"), "OK");
    let long = format!("SET a {}", "x".repeat(4000));
    assert_eq!(client.ask(&long), "QUEUED");
    assert_eq!(client.ask(&long), "QUEUED");
    assert!(client.ask(&long).starts_with("-ERR the queued commands exceed"));
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
}

#[test]
fn exec_does_nothing_when_a_watched_key_changed() {
    let redis = TestServer::open();
    let (mut client, mut other) = (redis.client(), redis.client());
    assert_eq!(client.ask("MSET a 1 b 1"), "OK");
    for change in [
        "SET a 1",
        "INCR a",
        "DEL a",
        "SET a 2",
        "EXPIRE a 100",
        "PERSIST a",
        "RENAME b a",
        "RENAME a b",
        "MSET b 1 a 1",
        "AZ.DELRANGE - +",
        "SETRANGE a 3 x",
        "FLUSHDB",
    ] {
        assert_eq!(client.ask("WATCH a zz"), "OK");
        assert!(!other.ask(change).starts_with('-'), "{change}");
        assert_eq!(client.ask("MULTI"), "OK");
        assert_eq!(client.ask("SET result x"), "QUEUED");
        assert_eq!(client.ask("EXEC"), "nil-array", "{change}");
        assert_eq!(client.ask("EXISTS result"), ":0", "{change}");
    }
}

/// The first attempt of `EXEC` has changed the watched key, and disconnected a client, when it is rolled back
/// because a lock is not free.
#[test]
fn exec_runs_again_after_a_conflict_if_no_other_client_changed_a_watched_key() {
    let db = Database::builder().lock_timeout(Duration::from_millis(20)).open_in_memory().unwrap();
    let redis = TestServer::over(db, |_| ());
    let (mut client, mut holder, mut third) = (redis.client(), redis.client(), redis.client());
    assert_eq!(client.ask("MSET watched 1 locked 1"), "OK");
    let kill = third.ask("CLIENT ID").replace(':', "CLIENT KILL ID ");
    for request in ["AZ.BEGIN", "SET locked 2"] {
        assert_eq!(holder.ask(request), "OK");
    }
    for request in ["WATCH watched", "MULTI", "SET watched 3", &kill, "SET locked 3"] {
        assert!(matches!(client.ask(request).as_str(), "OK" | "QUEUED"), "{request}");
    }
    client.send(&["EXEC"]);
    wait_until("the first attempt of EXEC is rolled back", || redis.db.stats().locks.timeouts > 0);
    assert_eq!(holder.ask("AZ.COMMIT"), "OK");
    assert_eq!(client.reply(), "[OK :1 OK]");
    assert_eq!(client.ask("MGET watched locked"), "[3 3]");
}

#[test]
fn exec_runs_if_no_watched_key_changed() {
    let redis = TestServer::open();
    let (mut client, mut other) = (redis.client(), redis.client());
    assert_eq!(client.ask("SET a 1"), "OK");
    for (before, change, between) in [
        ("WATCH a", "SET b 1", "PING"),
        ("WATCH a", "GET a", "PING"),
        ("WATCH a", "DEL zz", "PING"),
        ("WATCH a", "SET a 1 NX", "PING"),
        ("WATCH a", "PERSIST a", "PING"),
        ("WATCH a", "SET a 5", "UNWATCH"),
        ("WATCH a", "SET a 5", "RESET"),
    ] {
        assert_eq!(client.ask(before), "OK");
        other.ask(change);
        client.ask(between);
        assert_eq!(client.ask("MULTI"), "OK");
        assert_eq!(client.ask("GET a"), "QUEUED");
        assert!(client.ask("EXEC").starts_with('['), "{change} {between}");
    }
    // `EXEC`, even a failed one, and `DISCARD` unwatch all keys.
    assert_eq!(client.ask("WATCH a"), "OK");
    other.ask("SET a 6");
    assert_eq!(client.ask("MULTI"), "OK");
    assert_eq!(client.ask("EXEC"), "nil-array");
    assert_eq!(client.ask("MULTI"), "OK");
    assert_eq!(client.ask("EXEC"), "[]");
    assert!(client.ask("INFO clients").contains("watching_keys:0"));
}

#[test]
fn a_key_that_is_too_long_to_exist_can_be_watched() {
    let redis = TestServer::open();
    let mut client = redis.client();
    let long = vec![b'k'; redis.db.max_key_bytes() + 1];
    assert_eq!(client.ask_raw(&[b"WATCH".as_slice(), &long]), "OK");
    assert!(client.ask("INFO clients").contains("watching_keys:1"));
    assert_eq!((client.ask("MULTI"), client.ask("SET a 1")), ("OK".into(), "QUEUED".into()));
    assert_eq!(client.ask("EXEC"), "[OK]");
}

#[test]
fn an_expired_watched_key_counts_as_changed() {
    let redis = TestServer::with(|options| options.expiry_interval = Duration::from_secs(3600));
    let mut client = redis.client();
    assert_eq!(client.ask("SET a 1 PX 10"), "OK");
    assert_eq!(client.ask("WATCH a"), "OK");
    redis.pass_ms(10);
    assert_eq!(client.ask("MULTI"), "OK");
    assert_eq!(client.ask("EXEC"), "nil-array");
    // The key had expired before `WATCH`, so it has not changed since.
    assert_eq!(client.ask("WATCH a"), "OK");
    redis.pass_ms(10);
    assert_eq!(client.ask("MULTI"), "OK");
    assert_eq!(client.ask("EXEC"), "[]");
}

#[test]
fn an_interactive_transaction_is_alone_until_it_commits() {
    let redis = TestServer::open();
    let (mut client, mut other) = (redis.client(), redis.client());
    for (request, wanted) in [
        ("AZ.BEGIN", "OK"),
        ("SET a 1", "OK"),
        ("INCR a", ":2"),
        ("MSET b 1 c 2", "OK"),
        ("SCAN 0", "[0 [a b c]]"),
        ("DBSIZE", ":3"),
        ("AZ.BEGIN", "-ERR AZ.BEGIN is not allowed inside an interactive transaction"),
        ("MULTI", "-ERR MULTI is not allowed inside an interactive transaction"),
    ] {
        assert_eq!(client.ask(request), wanted, "{request}");
    }
    // The other client waits for the row lock.
    other.send(&["GET", "a"]);
    assert_eq!(client.ask("AZ.COMMIT"), "OK");
    assert_eq!(other.reply(), "2");
    for (request, wanted) in [
        ("AZ.TXN BEGIN", "OK"),
        ("DEL a b c", ":3"),
        ("AZ.TXN ABORT", "OK"),
        ("DBSIZE", ":3"),
        ("AZ.COMMIT", "-ERR AZ.COMMIT without AZ.BEGIN"),
        ("AZ.ABORT", "-ERR AZ.ABORT without AZ.BEGIN"),
        ("AZ.BEGIN RO", "OK"),
        ("GET a", "2"),
        ("SET a 9", "-NOPERM the transaction is read-only"),
        ("FLUSHDB", "-NOPERM the transaction is read-only"),
        ("GET a", "2"),
        ("AZ.TXN COMMIT", "OK"),
        ("AZ.TXN STOP", "-ERR unknown subcommand 'STOP' of 'az.txn'"),
        ("GET a", "2"),
    ] {
        assert_eq!(client.ask(request), wanted, "{request}");
    }
}

#[test]
fn a_refused_command_leaves_the_interactive_transaction_unchanged() {
    let redis = TestServer::open();
    let mut client = redis.client();
    let long = "k".repeat(redis.db.max_key_bytes() + 1);
    for (request, wanted) in [
        ("AZ.BEGIN".to_owned(), "OK"),
        ("SET a 1".into(), "OK"),
        (format!("MSET b 1 {long} 2"), "-ERR the key"),
        ("EXISTS a b".into(), ":1"),
        ("AZ.COMMIT".into(), "OK"),
        ("EXISTS a b".into(), ":1"),
    ] {
        assert!(client.ask(&request).starts_with(wanted), "{request}");
    }
}

#[test]
fn a_deadlock_ends_one_transaction_whose_later_commands_do_not_run_alone() {
    let redis = TestServer::open();
    deadlock((redis.client(), "x"), (redis.client(), "y"), "stray");
}

#[test]
fn an_interactive_transaction_that_stays_open_too_long_is_rolled_back() {
    let redis = TestServer::with(|options| options.transaction_timeout = Duration::from_secs(1));
    let (mut client, mut other) = (redis.client(), redis.client());
    // On a busy machine the transaction may time out before its first request.
    let begins = |client: &mut Client| client.ask("AZ.BEGIN") == "OK" && client.ask("SET a 1") == "OK";
    while !begins(&mut client) {
        assert_eq!(client.ask("AZ.ABORT"), "OK");
    }
    // The other client waits for the lock, and gets it when the transaction times out.
    assert_eq!(other.ask("GET a"), "nil");
    assert!(client.ask("SET b 1").starts_with("-RETRY the transaction was open for more than 1000 ms"));
    assert_eq!(client.ask("AZ.ABORT"), "OK");
    assert_eq!(client.ask("DBSIZE"), ":0");
}

#[test]
fn a_client_that_vanishes_leaves_no_lock_and_no_watch() {
    let redis = TestServer::open();
    let mut client = redis.client();
    assert_eq!(client.ask("WATCH a"), "OK");
    assert_eq!(client.ask("AZ.BEGIN"), "-ERR AZ.BEGIN is not allowed while keys are watched; UNWATCH first");
    assert_eq!(client.ask("UNWATCH"), "OK");
    assert_eq!(client.ask("AZ.BEGIN"), "OK");
    assert_eq!(client.ask("SET a 1"), "OK");
    drop(client);
    let mut other = redis.client();
    assert_eq!(other.ask("GET a"), "nil");
    assert!(other.ask("INFO clients").contains("watching_keys:0"));
}
