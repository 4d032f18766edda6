//! Writes that share a transaction. Each is answered as if it ran alone, and delays no unrelated client.

use std::sync::Arc;

use azekura::{Database, TableDefinition};
use azekura_io::fault::FaultFs;

use crate::support::{Client, TestServer, encoded, info_number};

/// Starts a server with one reactor, so that one thread runs writes that arrive together.
fn redis() -> TestServer {
    over(Database::in_memory().unwrap())
}

fn over(db: Database) -> TestServer {
    TestServer::over(db, |options| {
        options.reactors = 1;
        // Long enough that no transaction times out in these tests.
        options.transaction_timeout = std::time::Duration::from_secs(600);
    })
}

/// Sends all requests at once.
fn send_all<R: AsRef<str>>(client: &mut Client, requests: &[R]) {
    let words = |request: &R| encoded(&request.as_ref().split(' ').collect::<Vec<_>>());
    let bytes: Vec<u8> = requests.iter().flat_map(words).collect();
    client.send_raw(&bytes).unwrap();
}

fn ask_all(client: &mut Client, requests: &[&str]) -> Vec<String> {
    send_all(client, requests);
    requests.iter().map(|_| client.reply()).collect()
}

#[test]
fn writes_that_arrive_together_share_a_transaction() {
    let redis = redis();
    let mut client = redis.client();
    let sets: Vec<String> = (0..100).map(|i| format!("SET k{i} {i}")).collect();
    send_all(&mut client, &sets);
    (0..100).for_each(|_| assert_eq!(client.reply(), "OK"));
    assert_eq!(info_number(&mut client, "grouped_writes"), 100);
    // The server reads the requests in one or two reads, and the size of a group is bounded.
    assert!(info_number(&mut client, "write_groups") <= 10);
    for i in 0..100 {
        assert_eq!(client.ask(&format!("GET k{i}")), i.to_string());
    }
}

#[test]
fn removals_that_arrive_together_share_a_transaction() {
    let redis = redis();
    let mut client = redis.client();
    let keys = |command: &str| (0..48).map(|i| format!("{command} k{i}")).collect::<Vec<_>>();
    let sets: Vec<String> = (0..48).map(|i| format!("SET k{i} {i}")).collect();
    send_all(&mut client, &sets);
    (0..48).for_each(|_| assert_eq!(client.reply(), "OK"));
    let before = info_number(&mut client, "grouped_writes");
    send_all(&mut client, &keys("DEL"));
    (0..48).for_each(|_| assert_eq!(client.reply(), ":1"));
    assert_eq!(info_number(&mut client, "grouped_writes"), before + 48);
    assert_eq!(
        ask_all(&mut client, &["DEL k0", "UNLINK k1", "DEL k2 k3", "DBSIZE"]),
        [":0", ":0", ":0", ":0"]
    );
    assert_eq!(info_number(&mut client, "grouped_writes"), before + 50, "DEL with two keys runs alone");
}

#[test]
fn a_request_between_grouped_writes_sees_only_the_earlier_ones() {
    let redis = redis();
    let mut client = redis.client();
    let requests = [
        "SET a 1",
        "GET a",
        "SET a 2",
        "SET b 1",
        "GETDEL a",
        "SETNX a 3",
        "MGET a b",
        "INCR b",
        "MSET a 4 b 5",
        "INCR b",
        "APPEND a x",
        "WATCH a",
        "GET a",
        "MULTI",
        "SET a 6",
        "INCR b",
        "EXEC",
        "SET a 7",
        "AZ.BEGIN",
        "SET a 8",
        "AZ.ABORT",
        "GET a",
        "DBSIZE",
        "KEYS *",
        "SET c 1 PX 10",
        "PTTL c",
        "DEL c",
        "PING",
        "SET d 1",
        "ECHO d",
        "SET d 2",
        "NOSUCH",
        "GET d",
    ];
    let replies = [
        "OK",
        "1",
        "OK",
        "OK",
        "2",
        ":1",
        "[3 1]",
        ":2",
        "OK",
        ":6",
        ":2",
        "OK",
        "4x",
        "OK",
        "QUEUED",
        "QUEUED",
        "[OK :7]",
        "OK",
        "OK",
        "OK",
        "OK",
        "7",
        ":2",
        "[a b]",
        "OK",
        ":10",
        ":1",
        "PONG",
        "OK",
        "d",
        "OK",
        "-ERR unknown command 'NOSUCH', with args beginning with: ",
        "2",
    ];
    for _ in 0..20 {
        assert_eq!(ask_all(&mut client, &requests), replies);
        assert_eq!(client.ask("FLUSHALL"), "OK");
    }
}

/// GROUP-3: a refused write does not affect the other members of its group.
#[test]
fn a_refused_write_does_not_affect_the_others_of_its_group() {
    let redis = TestServer::with(|options| options.wire.max_bulk_bytes = 100);
    let mut client = redis.client();
    let long = "x".repeat(100);
    let half_long = format!("APPEND long {long}");
    let requests = [
        "SET x abc",
        "SET long y",
        "INCR x",
        "SET x 1",
        &half_long,
        "INCR x",
        "SET x 2 NX",
        "SETEX x 0 1",
        "GETSET x 9",
        "SET y 1 XX",
    ];
    let replies = ask_all(&mut client, &requests);
    let errors = [2, 4, 7].map(|at| replies[at].starts_with("-ERR"));
    assert_eq!(errors, [true, replies[4].starts_with("-ERR"), true], "{replies:?}");
    assert_eq!(
        (&*replies[5], &*replies[6], &*replies[8], &*replies[9]),
        (":2", "nil", "2", "nil"),
        "{replies:?}"
    );
    assert_eq!(client.ask("MGET x y"), "[9 nil]");
}

/// GROUP-1: while a write waits for a lock, earlier writes of its connection and all other connections
/// continue.
#[test]
fn a_write_that_has_to_wait_for_a_lock_keeps_no_other_waiting() {
    let redis = redis();
    for round in 0..20 {
        let mut holder = redis.client();
        assert_eq!(holder.ask("AZ.BEGIN"), "OK");
        assert_eq!(holder.ask("SET k held"), "OK");
        let mut waiter = redis.client();
        send_all(&mut waiter, &["SET a 1", "SET b 1", "SET k mine", "SET c 1"]);
        let mut others: Vec<Client> = (0..10).map(|_| redis.client()).collect();
        for (i, other) in others.iter_mut().enumerate() {
            send_all(other, &[format!("SET o{i} {round}"), format!("GET o{i}")]);
        }
        for other in &mut others {
            assert_eq!((other.reply().as_str(), other.reply()), ("OK", round.to_string()));
        }
        // The writes before the waiting one have committed.
        let mut reader = redis.client();
        while reader.ask("MGET a b") != "[1 1]" {}
        assert_eq!(reader.ask("GET c"), "nil", "and that after it is not");
        assert_eq!(holder.ask("AZ.COMMIT"), "OK");
        (0..4).for_each(|_| assert_eq!(waiter.reply(), "OK", "round {round}"));
        assert_eq!(reader.ask("GET k"), "mine");
        assert_eq!(reader.ask("FLUSHALL"), "OK");
    }
}

/// GROUP-3: a member that is undone after half of its work leaves no trace. The row in `redis.expiry` is
/// stored after the record, and waits for the transaction that has read the table.
#[test]
fn a_write_removed_from_a_group_leaves_no_changes() {
    let redis = redis();
    let ends = TableDefinition::<(u64, Vec<u8>), ()>::new("redis.expiry");
    let (mut client, mut reader) = (redis.client(), redis.client());
    for round in 0..10 {
        let holder = redis.db.begin().unwrap();
        assert_eq!(holder.table(&ends).unwrap().range(..).count(), 0);
        send_all(&mut client, &["SET a 1", "SET k v NX PX 100", "SET b 1"]);
        while reader.ask("GET a") != "1" {}
        holder.commit().unwrap();
        (0..3).for_each(|_| assert_eq!(client.reply(), "OK", "round {round}"));
        assert_eq!(ask_all(&mut client, &["PTTL k", "DEL a k b"]), [":100", ":3"]);
    }
}

/// GROUP-1: a group that waited for a lock would deadlock with a transaction that locks the same keys in
/// another order.
#[test]
fn a_group_is_in_no_deadlock() {
    let redis = redis();
    for round in 0..50 {
        let (mut holder, mut writer) = (redis.client(), redis.client());
        assert_eq!(holder.ask("AZ.BEGIN"), "OK");
        assert_eq!(holder.ask("SET k held"), "OK");
        send_all(&mut writer, &["SET a 1", "SET b 1", "SET k 1"]);
        assert_eq!(ask_all(&mut holder, &["SET b 2", "SET a 2", "AZ.COMMIT"]), ["OK"; 3], "round {round}");
        (0..3).for_each(|_| assert_eq!(writer.reply(), "OK", "round {round}"));
        assert_eq!(writer.ask("GET k"), "1");
    }
    assert_eq!(redis.db.stats().locks.deadlocks, 0);
}

#[test]
fn a_watched_key_that_changes_in_a_group_is_noticed() {
    let redis = redis();
    let (mut watcher, mut writer) = (redis.client(), redis.client());
    for round in 0..20 {
        assert_eq!(ask_all(&mut watcher, &["WATCH w", "MULTI", "SET mine 1"]), ["OK", "OK", "QUEUED"]);
        let key = if round % 2 == 0 { "w" } else { "v" };
        let set = format!("SET {key} {round}");
        assert_eq!(ask_all(&mut writer, &["SET a 1", &set, "SET b 1"]), ["OK"; 3]);
        assert_eq!(watcher.ask("EXEC"), if key == "w" { "nil-array" } else { "[OK]" }, "round {round}");
    }
}

/// KEY-1, KEY-2: each key of a group has its own expiry.
#[test]
fn keys_stored_together_have_separate_expiry_times() {
    let redis = redis();
    let mut client = redis.client();
    for _ in 0..10 {
        let requests = [
            "SET a 1 PX 50",
            "SET b 1",
            "SETEX c 1 1",
            "SET a 2 PX 70",
            "SET c 2",
            "SET d 1 PX 60",
            "SET d 2 KEEPTTL",
            "PSETEX b 80 3",
        ];
        assert_eq!(ask_all(&mut client, &requests), ["OK"; 8]);
        assert_eq!(
            ask_all(&mut client, &["PTTL a", "PTTL b", "PTTL c", "PTTL d"]),
            [":70", ":80", ":-1", ":60"]
        );
        redis.pass_ms(60);
        assert_eq!(
            ask_all(&mut client, &["SETNX d 5", "SETNX a 5", "GET d", "PTTL d"]),
            [":1", ":0", "5", ":-1"]
        );
        redis.pass_ms(100);
        while client.ask("DBSIZE") != ":2" {}
        assert_eq!(ask_all(&mut client, &["MGET a b c d", "FLUSHALL"]), ["[nil nil 2 5]", "OK"]);
    }
}

/// GROUP-4: an acknowledged write survives a power loss, whatever reply other members of its group received.
#[test]
fn acknowledged_writes_survive_power_loss() {
    for cut_at in (1..120).step_by(7) {
        let disk = FaultFs::new();
        let open =
            |disk: &FaultFs| Database::builder().file_system(Arc::new(disk.clone())).open("/db").unwrap();
        let mut answered = Vec::new();
        {
            let redis = over(open(&disk));
            let mut clients: Vec<Client> = (0..4).map(|_| redis.client()).collect();
            assert_eq!(clients[0].ask("SET first 1"), "OK");
            disk.cut_power_at(cut_at);
            'until_the_cut: for round in 0..1000 {
                for (i, client) in clients.iter_mut().enumerate() {
                    let bytes = encoded(&["APPEND", &format!("k{i}"), "x"]).repeat(3);
                    if client.send_raw(&bytes).is_err() {
                        break 'until_the_cut;
                    }
                }
                for (i, client) in clients.iter_mut().enumerate() {
                    for part in 1..=3 {
                        match client.try_reply() {
                            Ok(reply) if reply.starts_with(':') => answered.push((i, 3 * round + part)),
                            _ => break 'until_the_cut,
                        }
                    }
                }
            }
        }
        assert!(disk.power_is_off(), "cut at {cut_at}: {answered:?}");
        for seed in 0..4 {
            let redis = over(open(&disk.crash(seed)));
            let mut client = redis.client();
            assert_eq!(client.ask("GET first"), "1");
            for &(i, length) in answered.iter().rev().take(12) {
                let found = client.ask(&format!("STRLEN k{i}"))[1..].parse::<usize>().unwrap();
                assert!(found >= length, "cut at {cut_at}: k{i} had {length}, and has {found}");
            }
        }
    }
}
