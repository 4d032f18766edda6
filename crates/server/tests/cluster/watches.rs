//! `WATCH` through any node: `EXEC` runs the queue exactly if the watched keys are unchanged.

use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use crate::nodes::Nodes;
use crate::support::Client;

/// Runs the requests between `MULTI` and `EXEC`; returns the reply to `EXEC`.
fn transaction(client: &mut Client, requests: &[&str]) -> String {
    assert_eq!(client.ask("MULTI"), "OK");
    for request in requests {
        assert_eq!(client.ask(request), "QUEUED");
    }
    client.ask("EXEC")
}

#[test]
fn a_change_through_another_node_makes_exec_answer_nil() {
    let nodes = Nodes::three();
    let (mut client, mut other) = (nodes.client(0), nodes.client(2));
    assert_eq!(client.ask("MSET i 1 j 1"), "OK");
    let mut watched = |change: &str| {
        assert_eq!(client.ask("WATCH i j"), "OK");
        if !change.is_empty() {
            other.ask(change);
        }
        let done = transaction(&mut client, &["INCR j", "GET i"]);
        // No key is watched after `EXEC`, whatever its result.
        assert!(transaction(&mut client, &["GET j"]).starts_with('['));
        done
    };
    assert_eq!(watched(""), "[:2 1]");
    assert_eq!(watched("SET i 2"), "nil-array");
    assert_eq!(watched("SET k 2"), "[:3 2]");
    assert_eq!(watched("DEL i"), "nil-array");
    assert_eq!(watched("SET i 2 PX 5000"), "nil-array");
    assert_eq!(watched("PERSIST i"), "nil-array");
    assert_eq!(watched("GET i"), "[:4 2]");
    // A write of the same value does not count as a change.
    assert_eq!(watched("SETRANGE i 0 2"), "[:5 2]");
    // An expired key has changed, although no client wrote it.
    assert_eq!(nodes.client(1).ask("PEXPIRE i 1000"), ":1");
    assert_eq!(client.ask("WATCH i"), "OK");
    nodes.now_ms.fetch_add(2000, Relaxed);
    assert_eq!(transaction(&mut client, &["GET j"]), "nil-array");
    // A key that was added after `WATCH` has changed.
    assert_eq!(client.ask("WATCH i"), "OK");
    assert_eq!(nodes.client(2).ask("SET i new"), "OK");
    assert_eq!(transaction(&mut client, &["GET j"]), "nil-array");
    assert_eq!(client.ask("WATCH i"), "OK");
    assert_eq!(nodes.client(2).ask("SET i newer"), "OK");
    assert_eq!(client.ask("UNWATCH"), "OK");
    assert_eq!(transaction(&mut client, &["GET i"]), "[newer]");
}

#[test]
fn exec_answers_nil_if_a_watched_key_was_read_while_it_had_another_value() {
    let nodes = Nodes::three();
    let mut other = nodes.client(1);
    for gateway in 0..3 {
        let mut client = nodes.client(gateway);
        let mut back_and_forth = |request: &str| {
            assert_eq!(other.ask("MSET i 1 j 1"), "OK");
            assert_eq!(client.ask("WATCH i"), "OK");
            assert_eq!(other.ask("SET i 2"), "OK");
            let reply = client.ask(request);
            assert_eq!(other.ask("SET i 1"), "OK");
            (reply, transaction(&mut client, &["INCR j"]))
        };
        let done = |reply: &str, exec: &str| (reply.to_owned(), exec.to_owned());
        assert_eq!(back_and_forth("GET i"), done("2", "nil-array"));
        assert_eq!(back_and_forth("MGET j i"), done("[1 2]", "nil-array"));
        assert_eq!(back_and_forth("INCR i"), done(":3", "nil-array"));
        assert_eq!(back_and_forth("GET j"), done("1", "[:2]"), "i was not read");
        // The client has read what it watches.
        assert_eq!(client.ask("WATCH i"), "OK");
        assert_eq!(client.ask("MGET i j"), "[1 2]");
        assert!(client.ask("LPUSH i 1").starts_with("-ERR unknown command"));
        assert!(client.ask("GETRANGE i x 2").starts_with("-ERR value is not an integer"));
        assert_eq!(transaction(&mut client, &["INCR j"]), "[:3]");
    }
}

#[test]
fn an_own_write_counts_as_a_change_only_if_it_changes_a_watched_key() {
    let nodes = Nodes::three();
    for gateway in 0..3 {
        let mut client = nodes.client(gateway);
        let mut own = |requests: &[&str]| {
            client.ask("DEL k l");
            assert_eq!(client.ask("MSET i 1 j 1"), "OK");
            assert_eq!(client.ask("WATCH i l"), "OK");
            let replies: Vec<_> = requests.iter().map(|request| client.ask(request)).collect();
            (replies.join(" "), transaction(&mut client, &["GET j"]))
        };
        let runs = |replies: &str| (replies.to_owned(), "[1]".to_owned());
        let fails = |replies: &str| (replies.to_owned(), "nil-array".to_owned());
        assert_eq!(own(&["SETNX i 2", "DEL l", "PERSIST i"]), runs(":0 :0 :0"));
        assert_eq!(own(&["MSETNX i 2 l 2", "SET l 2 XX", "GETEX i"]), runs(":0 nil 1"));
        assert_eq!(own(&["COPY i k", "GET k"]), runs(":1 1"), "the watched key is only read");
        assert_eq!(own(&["INCR i"]), fails(":2"));
        assert_eq!(own(&["INCR i", "DECR i"]), fails(":2 :1"), "the client has read 2");
        assert_eq!(own(&["SETNX l 1"]), fails(":1"));
        assert_eq!(own(&["GETDEL i"]), fails("1"));
        let (refused, exec) = own(&["INCRBY i x"]);
        assert!(refused.starts_with("-ERR value is not an integer"), "{refused}");
        assert_eq!(exec, "[1]");
        let (refused, exec) = own(&["DEL a i"]);
        assert!(refused.starts_with("-CROSSNODE"), "{refused}");
        assert_eq!(exec, "[1]");
    }
}

#[test]
fn watched_keys_may_move_and_their_node_may_restart() {
    let mut nodes = Nodes::three();
    let mut client = nodes.client(0);
    assert_eq!(client.ask("SET i 1"), "OK");
    assert_eq!(client.ask("WATCH i"), "OK");
    assert_eq!(client.ask("AZ.CLUSTER MOVE i 2"), "OK");
    assert_eq!(transaction(&mut client, &["INCR i"]), "[:2]");
    assert_eq!(client.ask("WATCH i"), "OK");
    nodes.stop(2);
    nodes.start(2);
    assert_eq!(transaction(&mut client, &["GET i"]), "[2]");
    // Watched keys are part of the transaction, so all of them must be at one node.
    assert_eq!(client.ask("WATCH a i"), "OK");
    assert!(transaction(&mut client, &["INCR i"]).starts_with("-CROSSNODE"));
    assert_eq!(client.ask("WATCH i"), "OK");
    assert_eq!(transaction(&mut client, &["PING"]), "[PONG]");
    assert_eq!(client.ask("GET i"), "2");
}

#[test]
fn no_increment_by_watch_and_multi_is_lost() {
    const EACH: usize = 40;
    let nodes = Nodes::three();
    assert_eq!(nodes.client(0).ask("MSET i 0 k 0"), "OK");
    thread::scope(|scope| {
        for gateway in 0..3 {
            let nodes = &nodes;
            scope.spawn(move || {
                let mut client = nodes.client(gateway);
                for _ in 0..EACH {
                    loop {
                        assert_eq!(client.ask("WATCH i"), "OK");
                        let next = client.ask("GET i").parse::<usize>().unwrap() + 1;
                        let done = transaction(&mut client, &[&format!("SET i {next}"), "INCR k"]);
                        if done != "nil-array" {
                            assert!(done.starts_with("[OK :"), "{done}");
                            break;
                        }
                    }
                }
            });
        }
    });
    assert_eq!(nodes.client(2).ask("MGET i k"), format!("[{0} {0}]", 3 * EACH));
}

#[test]
fn any_key_of_any_node_can_come_at_random() {
    let nodes = Nodes::with(&["", "h", "p"], |options| options.leaf_rows = 4);
    let mut client = nodes.client(1);
    assert_eq!(client.ask("RANDOMKEY"), "nil");
    let keys: Vec<_> = (0..12).map(|number| format!("{}{number}", char::from(b'a' + number * 2))).collect();
    for key in &keys {
        assert_eq!(client.ask(&format!("SET {key} 1")), "OK");
    }
    let mut missing: std::collections::BTreeSet<_> = keys.iter().cloned().collect();
    // Each of the twelve keys is equally likely, so 2000 replies almost certainly contain all of them.
    for _ in 0..2000 {
        let key = client.ask("RANDOMKEY");
        assert!(keys.contains(&key), "{key}");
        missing.remove(&key);
        if missing.is_empty() {
            return;
        }
    }
    panic!("never came: {missing:?}");
}

#[test]
fn a_watched_key_that_is_too_long_to_exist_is_unchanged() {
    let nodes = Nodes::three();
    let (mut client, key) = (nodes.client(0), "i".repeat(10_000));
    assert_eq!(client.ask(&format!("WATCH {key}")), "OK");
    assert_eq!(transaction(&mut client, &["SET j 1"]), "[OK]");
    for (request, wanted) in [("GETDEL K", "nil"), ("EXPIRE K 1", ":0"), ("DEL K", ":0")] {
        assert_eq!(client.ask(&request.replace('K', &key)), wanted, "{request}");
    }
}
