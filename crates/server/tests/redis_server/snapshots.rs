//! Commands that read ranges, and read-only transactions, use snapshots: they wait for no writer, and no
//! writer waits for them.

use crate::support::{Client, TestServer};

fn ask_all(client: &mut Client, requests: &[(&str, &str)]) {
    for (request, wanted) in requests {
        assert_eq!(client.ask(request), *wanted, "{request}");
    }
}

#[test]
fn the_locks_of_a_writer_block_no_range_read() {
    let redis = TestServer::open();
    let (mut writer, mut reader) = (redis.client(), redis.client());
    assert_eq!(writer.ask("MSET a 1 b 2 c 3"), "OK");
    let waits = redis.db.stats().locks.waits;
    ask_all(&mut writer, &[("AZ.BEGIN", "OK"), ("SET a 9", "OK"), ("DEL b", ":1"), ("SET d 4", "OK")]);
    // Each of these commands would wait for the writer if it locked the rows that it reads.
    let as_before = [
        ("SCAN 0", "[0 [a b c]]"),
        ("KEYS *", "[a b c]"),
        ("DBSIZE", ":3"),
        ("AZ.COUNT - +", ":3"),
        ("AZ.RANGE - +", "[a 1 b 2 c 3]"),
        ("AZ.RANGE - + REV LIMIT 1", "[c 3]"),
        ("AZ.BEGIN RO", "OK"),
        ("GET a", "1"),
        ("MGET b d", "[2 nil]"),
        ("SCAN 0", "[0 [a b c]]"),
        ("DBSIZE", ":3"),
        ("SET a 1", "-NOPERM the transaction is read-only"),
        ("AZ.CAS a 1 2", "-NOPERM the transaction is read-only"),
        ("FLUSHALL", "-NOPERM the transaction is read-only"),
    ];
    ask_all(&mut reader, &as_before);
    assert_eq!(writer.ask("AZ.COMMIT"), "OK");
    ask_all(&mut reader, &[("GET a", "1"), ("KEYS *", "[a b c]"), ("AZ.COMMIT", "OK")]);
    ask_all(&mut reader, &[("GET a", "9"), ("KEYS *", "[a c d]"), ("DBSIZE", ":3")]);
    assert_eq!(redis.db.stats().locks.waits, waits);
}

#[test]
fn a_read_only_transaction_makes_no_writer_wait() {
    let redis = TestServer::open();
    let (mut writer, mut reader) = (redis.client(), redis.client());
    assert_eq!(writer.ask("MSET a 1 b 2"), "OK");
    let waits = redis.db.stats().locks.waits;
    ask_all(&mut reader, &[("AZ.BEGIN RO", "OK"), ("GET a", "1"), ("SCAN 0", "[0 [a b]]")]);
    ask_all(&mut writer, &[("SET a 2", "OK"), ("DEL b", ":1"), ("SET c 3", "OK"), ("FLUSHALL", "OK")]);
    ask_all(&mut writer, &[("DBSIZE", ":0"), ("SET z 1", "OK")]);
    ask_all(&mut reader, &[("GET a", "1"), ("GET b", "2"), ("EXISTS c z", ":0"), ("DBSIZE", ":2")]);
    ask_all(&mut reader, &[("AZ.ABORT", "OK"), ("KEYS *", "[z]")]);
    assert_eq!(redis.db.stats().locks.waits, waits);
}

#[test]
fn several_connections_read_one_snapshot() {
    let redis = TestServer::open();
    let (mut owner, mut a, mut b) = (redis.client(), redis.client(), redis.client());
    assert_eq!(owner.ask("SET x 1"), "OK");
    let reply = owner.ask("AZ.SNAPSHOT");
    let number = reply.strip_prefix(':').unwrap().to_owned();
    assert_eq!(owner.ask("SET x 2"), "OK");
    for client in [&mut a, &mut b] {
        assert_eq!(client.ask(&format!("AZ.BEGIN RO AT {number}")), "OK");
        ask_all(
            client,
            &[
                ("GET x", "1"),
                ("AZ.SNAPSHOT", "-ERR AZ.SNAPSHOT is not allowed inside an interactive transaction"),
            ],
        );
    }
    let gone = format!(
        "-ERR there is no snapshot {number}: it was closed, or the connection that opened it has ended"
    );
    assert_eq!(a.ask("AZ.COMMIT"), "OK");
    assert_eq!(a.ask(&format!("AZ.SNAPSHOT CLOSE {number}")), gone, "it is another connection's");
    assert_eq!(owner.ask(&format!("AZ.SNAPSHOT CLOSE {number}")), "OK");
    assert_eq!(a.ask(&format!("AZ.BEGIN RO AT {number}")), gone);
    ask_all(&mut b, &[("GET x", "1"), ("AZ.COMMIT", "OK"), ("GET x", "2")]);
    for wrong in [
        "AZ.SNAPSHOT NONE",
        "AZ.SNAPSHOT CLOSE",
        "AZ.SNAPSHOT CLOSE x",
        "AZ.BEGIN AT 1",
        "AZ.BEGIN RO AT",
        "AZ.BEGIN RO AT -1",
    ] {
        assert!(owner.ask(wrong).starts_with("-ERR "), "{wrong}");
    }
    // When a connection ends, its snapshots are closed.
    for _ in 0..16 {
        assert!(owner.ask("AZ.SNAPSHOT OPEN").starts_with(':'));
    }
    assert_eq!(
        owner.ask("AZ.SNAPSHOT"),
        "-ERR a connection can have 16 open snapshots; AZ.SNAPSHOT CLOSE one"
    );
    assert_eq!(redis.db.stats().snapshots.open, 16);
    assert_eq!(owner.ask("RESET"), "RESET");
    assert_eq!(redis.db.stats().snapshots.open, 0);
    assert!(owner.ask("AZ.SNAPSHOT").starts_with(':'));
    assert_eq!(owner.ask("QUIT"), "OK");
    drop((owner, a, b));
    let TestServer { server, db, .. } = redis;
    server.stop().unwrap();
    db.close().unwrap();
}
