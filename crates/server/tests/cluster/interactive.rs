//! `AZ.BEGIN` through any node. The transaction runs at the node of its first key, and ends there even if the
//! client or the gateway fails (hazard B5).

use std::time::Duration;

use crate::nodes::Nodes;
use crate::support::{Client, deadlock};

/// A write waits for the row lock of an interactive transaction until its client gets an error. It must not
/// be executed after that, and the error says so: the owner of the key stops before the gateway does.
///
/// The owner counts the time from the arrival of the request. On a busy machine the request or the answer may
/// arrive too late. So one of several attempts must show it.
#[test]
fn a_write_whose_client_does_not_wait_any_more_is_not_executed() {
    let nodes = Nodes::with(&["", "h", "p"], |options| {
        options.request_timeout = Duration::from_secs(2);
        options.read_timeout = Duration::from_secs(2);
    });
    let (mut holder, mut client) = (nodes.client(1), nodes.client(0));
    let is_kept = (0..5).any(|_| {
        assert_eq!(holder.ask("AZ.BEGIN"), "OK");
        assert_eq!(holder.ask("SET i held"), "OK");
        let error = client.ask("SET i old");
        let is_in_time = error.starts_with("-UNAVAIL the request was not executed: it waited for a lock");
        // A node was delayed until the time was over.
        let is_late = error.starts_with("-UNAVAIL no answer") || error.starts_with("-UNKNOWN no answer");
        assert!(is_late || is_in_time, "{error}");
        // The owner received the request later, so its time can end later.
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(holder.ask("AZ.COMMIT"), "OK");
        let stays = (0..20).all(|_| {
            std::thread::sleep(Duration::from_millis(10));
            holder.ask("GET i") == "held"
        });
        stays && !is_late
    });
    assert!(is_kept, "the write was executed after its client got an error");
}

#[test]
fn an_interactive_transaction_runs_at_the_node_of_its_first_key() {
    let nodes = Nodes::three();
    let (mut client, mut other) = (nodes.client(0), nodes.client(2));
    for (request, wanted) in [
        ("AZ.BEGIN", "OK"),
        ("SET i 1", "OK"),
        ("INCR i", ":2"),
        ("MSET k 1 j 2", "OK"),
        ("GET a", "-CROSSNODE"),
        ("MSET a 1 i 7", "-CROSSNODE"),
        ("MGET i j k", "[2 2 1]"),
        ("GETRANGE i 0", "-ERR wrong number"),
        ("APPEND j x", ":2"),
        ("INCR j", "-ERR value is not an integer"),
        ("GET j", "2x"),
        ("DBSIZE", "-CROSSNODE the range spans several nodes"),
        ("PING", "PONG"),
        ("AZ.BEGIN", "-ERR AZ.BEGIN is not allowed inside an interactive transaction"),
        ("MULTI", "-ERR MULTI is not allowed inside an interactive transaction"),
        ("AZ.CLUSTER MAP", "-ERR AZ.CLUSTER is not allowed inside an interactive transaction"),
    ] {
        let reply = client.ask(request);
        assert!(reply.starts_with(wanted), "{request}: {reply}");
    }
    assert_eq!(nodes.info(1, "open_transactions"), "1");
    // The other client waits for the row lock.
    other.send(&["GET", "i"]);
    assert_eq!(client.ask("AZ.COMMIT"), "OK");
    assert_eq!(other.reply(), "2");
    for (request, wanted) in [
        ("AZ.TXN BEGIN", "OK"),
        ("DEL i j k", ":3"),
        ("AZ.TXN ABORT", "OK"),
        ("MGET i j k", "[2 2x 1]"),
        ("AZ.COMMIT", "-ERR AZ.COMMIT without AZ.BEGIN"),
        ("AZ.ABORT", "-ERR AZ.ABORT without AZ.BEGIN"),
        // A transaction without any request runs at no node.
        ("AZ.BEGIN", "OK"),
        ("AZ.COMMIT", "OK"),
        ("AZ.BEGIN RO", "OK"),
        ("GET i", "2"),
        ("SET i 9", "-NOPERM the transaction is read-only"),
        ("GET i", "2"),
        ("AZ.TXN COMMIT", "OK"),
        // The first key now belongs to another node, the gateway itself.
        ("AZ.BEGIN", "OK"),
        ("SET a 1", "OK"),
        ("GET i", "-CROSSNODE"),
        ("AZ.COMMIT", "OK"),
        ("WATCH a", "OK"),
        ("AZ.BEGIN", "-ERR AZ.BEGIN is not allowed while keys are watched"),
        ("UNWATCH", "OK"),
    ] {
        let reply = client.ask(request);
        assert!(reply.starts_with(wanted), "{request}: {reply}");
    }
    assert_eq!(nodes.client(1).ask("MGET a i"), "[1 2]");
    for node in 0..3 {
        assert_eq!(nodes.info(node, "open_transactions"), "0");
    }
}

/// Walks over all nodes read snapshots. They do not wait for a transaction that has changed rows, and return
/// none of its changes.
#[test]
fn walks_over_all_nodes_do_not_wait_for_an_open_transaction() {
    let nodes = Nodes::three();
    let (mut writer, mut reader) = (nodes.client(0), nodes.client(2));
    assert_eq!(reader.ask("SET a 1"), "OK");
    assert_eq!(reader.ask("MSET i 1 j 2"), "OK");
    for request in ["AZ.BEGIN", "SET i 7", "SET k 3", "DEL j"] {
        assert!(!writer.ask(request).starts_with('-'), "{request}");
    }
    let walks = |reader: &mut Client| {
        ["DBSIZE", "KEYS *", "SCAN 0 COUNT 1000", "AZ.RANGE - +", "AZ.COUNT - +"].map(|walk| reader.ask(walk))
    };
    assert_eq!(walks(&mut reader), [":3", "[a i j]", "[0 [a i j]]", "[a 1 i 1 j 2]", ":3"]);
    assert_eq!(writer.ask("AZ.COMMIT"), "OK");
    assert_eq!(walks(&mut reader), [":3", "[a i k]", "[0 [a i k]]", "[a 1 i 7 k 3]", ":3"]);
}

#[test]
fn a_deadlock_through_two_gateways_ends_one_of_both_transactions() {
    let nodes = Nodes::three();
    deadlock((nodes.client(0), "i"), (nodes.client(2), "j"), "k");
}

#[test]
fn an_expired_interactive_transaction_is_rolled_back_at_its_coordinator() {
    let nodes = Nodes::with_transactions_of(Duration::from_secs(1), &["", "h", "p"], |_| ());
    let (mut client, mut other) = (nodes.client(0), nodes.client(2));
    // On a slow machine the transaction may time out before its first request.
    let begins = |client: &mut Client| client.ask("AZ.BEGIN") == "OK" && client.ask("SET i 1") == "OK";
    while !begins(&mut client) {
        assert_eq!(client.ask("AZ.ABORT"), "OK");
    }
    // The other client waits for the lock, and gets it when the transaction times out.
    assert_eq!(other.ask("GET i"), "nil");
    let reply = client.ask("SET i 2");
    assert!(reply.starts_with("-RETRY") && reply.contains("open for more than 1000 ms"), "{reply}");
    assert!(client.ask("AZ.COMMIT").starts_with("-RETRY"));
    assert_eq!(client.ask("GET i"), "nil");
}

#[test]
fn a_client_or_a_gateway_that_vanishes_leaves_no_lock() {
    let mut nodes = Nodes::three();
    let mut other = nodes.client(2);
    let begin = |nodes: &Nodes| {
        let mut client = nodes.client(0);
        assert_eq!(client.ask("AZ.BEGIN"), "OK");
        assert_eq!(client.ask("SET i 1"), "OK");
        client
    };
    drop(begin(&nodes));
    assert_eq!(other.ask("GET i"), "nil");
    let client = begin(&nodes);
    nodes.stop(0);
    assert_eq!(other.ask("GET i"), "nil");
    drop(client);
}

#[test]
fn a_transaction_ends_with_a_restart_of_its_coordinator() {
    let mut nodes = Nodes::three();
    let mut client = nodes.client(0);
    for last in ["SET j 2", "AZ.COMMIT"] {
        assert_eq!(client.ask("AZ.BEGIN"), "OK");
        assert_eq!(client.ask("SET i 1"), "OK");
        nodes.stop(1);
        nodes.start(1);
        // A read is retried until the new connection to the node is established.
        assert_eq!(nodes.client(0).ask("GET i"), "nil");
        let reply = client.ask(last);
        assert!(reply.starts_with("-RETRY") && reply.contains("was restarted"), "{reply}");
        client.ask("AZ.ABORT");
        assert_eq!(client.ask("GET i"), "nil");
    }
}

/// Returns `true` if a transaction has ended because one of its leaves has moved. A move that waits for more
/// than 50 ms, for instance for a thread on a busy machine, ends all idle transactions of the node (OPEN-2),
/// with another reason.
fn is_ended_by_move(reply: &str) -> bool {
    let is_reason = reply.contains("moved to another node") || reply.contains("it delayed the split");
    reply.starts_with("-RETRY") && is_reason
}

#[test]
fn a_leaf_moves_though_open_transactions_have_touched_it_and_these_are_rolled_back() {
    let nodes = Nodes::three();
    let (mut client, mut reader, mut untouched) = (nodes.client(0), nodes.client(1), nodes.client(2));
    assert_eq!(client.ask("MSET i 1 j 1"), "OK");
    assert_eq!(untouched.ask("AZ.CLUSTER SPLIT j"), "OK");
    // These transactions do not wait for each other: `reader` reads a key that does not exist.
    for (client, request) in [(&mut client, "INCR i"), (&mut reader, "GET ia"), (&mut untouched, "INCR j")] {
        assert_eq!(client.ask("AZ.BEGIN"), "OK");
        assert!(!client.ask(request).starts_with('-'));
    }
    assert_eq!(nodes.client(2).ask("AZ.CLUSTER MOVE i 2"), "OK");
    // The key's leaf has moved to another node since the transaction used it. So the reply is `RETRY`, not
    // the `CROSSNODE` that a new transaction would get.
    let reply = client.ask("GET i");
    assert!(is_ended_by_move(&reply), "{reply}");
    assert!(client.ask("AZ.COMMIT").starts_with("-RETRY"));
    assert!(reader.ask("AZ.COMMIT").starts_with("-RETRY"));
    // The leaf of this transaction did not move. The transaction can only have ended because it held up the
    // move of the other leaf.
    let done = untouched.ask("AZ.COMMIT");
    assert!(done == "OK" || done.contains("delayed the split"), "{done}");
    assert_eq!(client.ask("GET i"), "1");
    assert_eq!(nodes.owner("i"), 2);
}

/// A walk is part of the transaction: it locks the keys that it returns and the leaves that it covers.
#[test]
fn walks_are_part_of_the_transaction_as_far_as_its_node_has_the_range() {
    let nodes = Nodes::three();
    let (mut client, mut other) = (nodes.client(0), nodes.client(2));
    for key in ["a", "i", "j", "k", "q"] {
        assert_eq!(other.ask(&format!("SET {key} 1")), "OK");
    }
    // The coordinator has three leaves with rows, and an empty leaf.
    for middle in ["j", "k", "l"] {
        assert_eq!(other.ask(&format!("AZ.CLUSTER SPLIT {middle}")), "OK");
    }
    for (request, wanted) in [
        ("AZ.BEGIN", "OK"),
        ("AZ.RANGE [h (p", "[i 1 j 1 k 1]"),
        ("AZ.RANGE [h (p REV KEYS", "[k j i]"),
        ("AZ.RANGE [h + LIMIT 3 KEYS", "[i j k]"),
        ("AZ.COUNT [h (p", ":3"),
        ("SET jj 1", "OK"),
        ("AZ.COUNT [h (p", ":4"),
        ("KEYS j*", "[j jj]"),
        // The range extends to another node, so nothing of it is executed.
        ("AZ.COUNT [h +", "-CROSSNODE the range spans"),
        ("AZ.RANGE [h + KEYS", "-CROSSNODE the range spans"),
        ("AZ.RANGE - (p REV", "-CROSSNODE the range spans"),
        ("AZ.DELRANGE [h +", "-CROSSNODE the range spans"),
        ("FLUSHDB", "-CROSSNODE the range spans"),
        ("AZ.COUNT [h (p", ":4"),
        ("AZ.DELRANGE [j (k", ":2"),
        ("AZ.RANGE [h (p KEYS", "[i k]"),
        ("AZ.RANGE [h", "-ERR wrong number"),
    ] {
        let reply = client.ask(request);
        assert!(reply.starts_with(wanted), "{request}: {reply}");
    }
    // A key that would be inserted into a range that the transaction has read waits for the end of the
    // transaction, also in an empty leaf.
    other.send(&["SET", "n", "1"]);
    assert_eq!(client.ask("AZ.COUNT [h (p"), ":2");
    assert_eq!(client.ask("AZ.COMMIT"), "OK");
    assert_eq!(other.reply(), "OK");
    assert_eq!(other.ask("AZ.RANGE - + KEYS"), "[a i k n q]");
}

#[test]
fn a_transaction_that_begins_with_a_scan_runs_at_the_node_of_its_first_key() {
    let nodes = Nodes::three();
    let mut client = nodes.client(0);
    for (request, wanted) in [
        ("AZ.BEGIN RO", "OK"),
        ("AZ.RANGE [p +", "[]"),
        ("AZ.DELRANGE [p +", "-NOPERM"),
        ("GET i", "-CROSSNODE"),
        ("GET q", "nil"),
        ("AZ.COMMIT", "OK"),
        ("AZ.BEGIN", "OK"),
        // A walk backward from the end of all keys.
        ("AZ.RANGE - + REV LIMIT 1", "-CROSSNODE the range spans"),
        ("SET z 1", "OK"),
        ("AZ.RANGE - + REV LIMIT 1", "[z 1]"),
        ("SCAN 0 COUNT 1", "-CROSSNODE"),
        ("AZ.COMMIT", "OK"),
        ("GET z", "1"),
    ] {
        let reply = client.ask(request);
        assert!(reply.starts_with(wanted), "{request}: {reply}");
    }
    assert_eq!(nodes.info(2, "open_transactions"), "0");
    // The transaction's leaves are the leaves that it has walked over, including empty leaves.
    assert_eq!(client.ask("AZ.CLUSTER SPLIT j"), "OK");
    assert_eq!(client.ask("AZ.BEGIN"), "OK");
    assert_eq!(client.ask("AZ.RANGE [h (p"), "[]");
    assert_eq!(nodes.client(2).ask("AZ.CLUSTER MOVE j 2"), "OK");
    let reply = client.ask("AZ.RANGE [h (p");
    assert!(is_ended_by_move(&reply), "{reply}");
}

#[test]
fn a_move_of_any_key_of_a_transaction_ends_the_transaction() {
    let nodes = Nodes::three();
    let mut client = nodes.client(0);
    assert_eq!(client.ask("AZ.CLUSTER SPLIT k"), "OK");
    assert_eq!(client.ask("AZ.BEGIN"), "OK");
    assert_eq!(client.ask("MSET i 1 k 1"), "OK");
    assert_eq!(nodes.client(2).ask("AZ.CLUSTER MOVE k 2"), "OK");
    // The leaf of `i`, which has the transaction's first key, stayed at the coordinator.
    let reply = client.ask("GET i");
    assert!(is_ended_by_move(&reply), "{reply}");
    assert_eq!(client.ask("AZ.ABORT"), "OK");
    assert_eq!(client.ask("MGET i k"), "[nil nil]");
}

#[test]
fn a_leaf_is_split_though_an_open_transaction_has_its_rows() {
    let nodes = Nodes::three();
    let mut client = nodes.client(0);
    // The split needs no lock of a row, so the transaction stays open. A split that waits for more than
    // 50 ms, for instance for a thread on a busy machine, ends it (OPEN-2).
    let is_kept = ('a'..='m').any(|letter| {
        assert_eq!(client.ask("AZ.BEGIN"), "OK");
        assert_eq!(client.ask("MSET i 1 j 1"), "OK");
        assert_eq!(nodes.client(1).ask(&format!("AZ.CLUSTER SPLIT i{letter}")), "OK");
        let reply = client.ask("GET i");
        if reply == "1" {
            return true;
        }
        assert!(reply.starts_with("-RETRY") && reply.contains("it delayed the split"), "{reply}");
        assert_eq!(client.ask("AZ.ABORT"), "OK");
        false
    });
    assert!(is_kept, "each split has ended the transaction");
    // A request waits for the row lock and holds the leaf, so the split has to wait for the request.
    let waits = || nodes.database(1).stats().locks.waits;
    let (mut other, before) = (nodes.client(2), waits());
    other.send(&["INCR", "i"]);
    while waits() == before {}
    assert_eq!(nodes.client(1).ask("AZ.CLUSTER SPLIT hh"), "OK");
    assert_eq!(other.reply(), ":1");
    let reply = client.ask("AZ.COMMIT");
    assert!(reply.starts_with("-RETRY") && reply.contains("delayed the split"), "{reply}");
    assert_eq!(client.ask("MGET i j"), "[1 nil]");
}

/// Number of waiting clients: more than the threads of a node.
const WAITING: usize = 100;

#[test]
fn a_hundred_waiters_for_an_open_transaction_block_no_client_and_not_its_end() {
    // On a slow machine the clients wait for long.
    let nodes = Nodes::with(&["", "h", "p"], |options| options.request_timeout = Duration::from_secs(300));
    let mut client = nodes.client(0);
    assert_eq!(client.ask("AZ.BEGIN"), "OK");
    assert_eq!(client.ask("SET i 1"), "OK");
    let mut waiting: Vec<_> = (0..WAITING).map(|number| nodes.client(number % 3)).collect();
    waiting.iter_mut().for_each(|client| client.send(&["INCR", "i"]));
    for turn in 0..9 {
        assert_eq!(nodes.client(turn % 3).ask("INCR j"), format!(":{}", turn + 1));
    }
    assert_eq!(client.ask("INCR i"), ":2");
    assert_eq!(client.ask("AZ.COMMIT"), "OK");
    let mut counts: Vec<_> = waiting.iter_mut().map(Client::reply).collect();
    counts.sort_by_key(|count| count.trim_start_matches(':').parse::<usize>().unwrap());
    assert_eq!(counts, (3..3 + WAITING).map(|count| format!(":{count}")).collect::<Vec<_>>());
}
