//! Requests for keys of the node that receives them. They run on the thread of their connection, in groups,
//! and need no task of the node's thread.

use crate::nodes::Nodes;
use crate::support::{Client, encoded};

fn pipeline<T: AsRef<str>>(client: &mut Client, requests: &[T]) -> Vec<String> {
    let words = |request: &T| encoded(&request.as_ref().split(' ').collect::<Vec<_>>());
    let bytes: Vec<u8> = requests.iter().flat_map(words).collect();
    client.send_raw(&bytes).unwrap();
    requests.iter().map(|_| client.reply()).collect()
}

fn count(nodes: &Nodes, node: usize, name: &str) -> u64 {
    nodes.info(node, name).parse().unwrap()
}

fn grouped(client: &mut Client) -> u64 {
    let info = client.ask("INFO");
    let line = info.lines().find_map(|line| line.strip_prefix("grouped_writes:")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn requests_for_keys_of_this_node_need_no_other_thread() {
    let nodes = Nodes::three();
    let mut client = nodes.client(0);
    let (waits, worked) = (count(&nodes, 0, "waits"), count(&nodes, 0, "worked"));
    let (served, members) = (count(&nodes, 0, "served_here"), grouped(&mut client));
    let requests = [
        ("SET a 1", "OK"),
        ("GET a", "1"),
        ("INCR a", ":2"),
        ("APPEND b xy", ":2"),
        ("STRLEN b", ":2"),
        ("MSET c 3 d 4", "OK"),
        ("MGET a b c d e", "[2 xy 3 4 nil]"),
        ("EXISTS a b e", ":2"),
        ("EXPIRE a 100", ":1"),
        ("TTL a", ":100"),
        ("RENAME c e", "OK"),
        ("DEL d", ":1"),
        ("DEL a e", ":2"),
        ("GET", "-ERR wrong number of arguments for 'get' command"),
        ("INCR b", "-ERR value is not an integer or out of range"),
    ];
    for (request, expected) in requests {
        assert_eq!(client.ask(request), expected, "{request}");
    }
    let sets: Vec<_> = (0..200).map(|number| format!("SET a{number} {number}")).collect();
    assert!(pipeline(&mut client, &sets).iter().all(|reply| reply == "OK"));
    let gets: Vec<_> = (0..200).map(|number| format!("GET a{number}")).collect();
    let replies = pipeline(&mut client, &gets);
    assert!(replies.iter().enumerate().all(|(number, reply)| *reply == number.to_string()), "{replies:?}");
    assert_eq!(count(&nodes, 0, "waits"), waits, "no request waited for the node's thread");
    assert_eq!(count(&nodes, 0, "worked"), worked, "no task of the node's thread was at a leaf");
    // Writes of one key join groups: SET, INCR, APPEND, DEL d, INCR b, and 200 SETs.
    assert_eq!(grouped(&mut client) - members, 205);
    assert_eq!(count(&nodes, 0, "served_here") - served, 9 + 200);
    // Requests for keys of other nodes go through the node's thread, also together with keys of this node.
    assert_eq!(client.ask("SET z 9"), "OK");
    assert_eq!(client.ask("MGET a1 z"), "[1 9]");
    assert_eq!(count(&nodes, 0, "waits") - waits, 2);
}

/// A connection waits once for all requests for other nodes' keys. Requests for own keys do not wait for
/// those, but only for earlier requests with the same key.
#[test]
fn own_keys_in_a_pipeline_do_not_wait_for_those_of_other_nodes() {
    let nodes = Nodes::three();
    let mut client = nodes.client(0);
    let members = grouped(&mut client);
    let waits = count(&nodes, 0, "waits");
    let requests: Vec<_> =
        (0..20).flat_map(|number| [format!("SET a{number} x"), format!("SET z{number} y")]).collect();
    assert!(pipeline(&mut client, &requests).iter().all(|reply| reply == "OK"));
    assert_eq!(grouped(&mut client) - members, 20);
    let together = count(&nodes, 0, "waits") - waits;
    assert!(together < 20, "{together}");
    // MSET is refused because its keys are at several nodes. Later requests run after it.
    let replies =
        pipeline(&mut client, &["SET z 1", "MSET a 1 z 2", "GET a", "SET a 5", "GET a", "GET z", "PING"]);
    assert_eq!(replies[0], "OK");
    assert!(replies[1].starts_with("-CROSSNODE"), "{replies:?}");
    assert_eq!(replies[2..], ["nil", "OK", "5", "1", "PONG"]);
    // A protocol error is reported after all replies, and a closing request takes effect after them too.
    client.send_raw(b"SET a 6\r\nSET z 2\r\nSET a7 7\r\n*x\r\n").unwrap();
    assert_eq!([client.reply(), client.reply(), client.reply()], ["OK"; 3]);
    assert!(client.reply().starts_with("-ERR Protocol error"));
    let mut client = nodes.client(0);
    assert_eq!(pipeline(&mut client, &["SET a 7", "SET z 3", "INCR a", "QUIT"]), ["OK", "OK", ":8", "OK"]);
    assert_eq!(nodes.client(1).ask("MGET a z a7"), "[8 3 7]");
}

/// The node splits and merges leaves by the reported growth, although its thread executes none of the writes.
#[test]
fn leaves_grow_by_writes_of_other_threads_and_are_split_and_merged() {
    let nodes = Nodes::with(&[""], |options| options.leaf_rows = 16);
    let mut client = nodes.client(0);
    let worked = count(&nodes, 0, "worked");
    let leaves = |nodes: &Nodes| count(nodes, 0, "leaves");
    for number in 0..400 {
        assert_eq!(client.ask(&format!("SET key{number:03} x")), "OK");
    }
    assert_eq!(count(&nodes, 0, "worked"), worked);
    while leaves(&nodes) < 400 / 32 {
        // The reports reach the node's thread with a delay. Each write here reports one row.
        client.ask("SET more x");
        client.ask("DEL more");
    }
    let before = leaves(&nodes);
    for number in 0..400 {
        assert_eq!(client.ask(&format!("DEL key{number:03}")), ":1");
    }
    while leaves(&nodes) >= before {
        client.ask("SET more x");
        client.ask("DEL more");
    }
    assert!(count(&nodes, 0, "merges") > 0);
}

/// Commands on all keys read one snapshot on the connection's thread if its node owns all keys.
#[test]
fn walks_over_the_keys_of_a_node_that_has_all_need_no_other_thread() {
    let nodes = Nodes::with(&["", "m"], |options| options.leaf_rows = 4);
    let mut client = nodes.client(0);
    for number in 10..40 {
        assert_eq!(client.ask(&format!("SET a{number} {number}")), "OK");
    }
    let ask = |client: &mut Client| {
        ["DBSIZE", "AZ.COUNT - +", "KEYS a1*", "AZ.RANGE a10 a12", "SCAN 0 COUNT 100 MATCH a2*"]
            .map(|request| client.ask(request))
    };
    // Before the move, these commands read snapshots of both nodes.
    let expected = ask(&mut client);
    assert_eq!(expected[..2], [":30", ":30"]);
    assert_eq!(client.ask("AZ.CLUSTER MOVE m 0"), "OK");
    while count(&nodes, 0, "leaves") < 2 || nodes.owner("m") != 0 {}
    assert_eq!(client.ask("SET z 1"), "OK");
    assert_eq!(client.ask("DEL z"), ":1");
    let served = count(&nodes, 0, "served_here");
    let worked = count(&nodes, 0, "worked");
    assert_eq!(ask(&mut client), expected);
    assert_eq!(count(&nodes, 0, "served_here") - served, 5);
    assert_eq!(count(&nodes, 0, "worked"), worked);
}

/// A request for a key that an interactive transaction of this node has locked waits for the lock at the
/// node.
#[test]
fn a_request_that_waits_for_a_lock_goes_through_the_node() {
    let nodes = Nodes::with(&[""], |_| ());
    let (mut holder, mut other) = (nodes.client(0), nodes.client(0));
    assert_eq!(other.ask("SET a 1"), "OK");
    assert_eq!(holder.ask("AZ.BEGIN"), "OK");
    assert_eq!(holder.ask("INCR a"), ":2");
    let waits = count(&nodes, 0, "waits");
    other.send(&["INCR", "a"]);
    while count(&nodes, 0, "waits") == waits {}
    assert_eq!(nodes.client(0).ask("SET b 1"), "OK", "others are served meanwhile");
    assert_eq!(holder.ask("AZ.COMMIT"), "OK");
    assert_eq!(other.reply(), ":3");
}
