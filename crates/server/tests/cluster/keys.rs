//! Requests for one key, for several keys, and for ranges of keys.

use std::sync::atomic::Ordering::Relaxed;

use crate::nodes::Nodes;
use crate::support::{BEGAN_MS, wait_until};

const KEYS: [&str; 7] = ["a", "g", "h", "o", "p", "z", "zz"];

#[test]
fn any_node_takes_any_keys_request() {
    let nodes = Nodes::three();
    let mut clients: Vec<_> = (0..nodes.len()).map(|node| nodes.client(node)).collect();
    for (turn, key) in KEYS.iter().enumerate() {
        let (one, two) = (turn % 3, (turn + 1) % 3);
        assert_eq!(clients[one].ask(&format!("GET {key}")), "nil");
        assert_eq!(clients[one].ask(&format!("SET {key} {turn}")), "OK");
        assert_eq!(clients[two].ask(&format!("GET {key}")), turn.to_string());
        assert_eq!(clients[two].ask(&format!("INCR {key}")), format!(":{}", turn + 1));
        assert_eq!(clients[one].ask(&format!("SET {key} x NX")), "nil");
        assert_eq!(clients[(turn + 2) % 3].ask(&format!("GETDEL {key}")), (turn + 1).to_string());
    }
    assert_eq!(clients[0].ask("SET z x"), "OK");
    assert_eq!(clients[0].ask("INCR z"), "-ERR value is not an integer or out of range");
    assert_eq!(clients[1].ask("HELLO 3").split(' ').next(), Some("[server"));
    assert_eq!(clients[1].ask("GET nothing"), "nil");
    for node in 0..3 {
        assert_ne!(nodes.info(node, "sent_on"), "0", "node {node} had keys of others asked");
        assert_ne!(nodes.info(node, "worked"), "0", "node {node} was asked by others");
    }
}

#[test]
fn keys_end_at_their_owner_and_their_ends_move_with_them() {
    let nodes = Nodes::three();
    let mut client = nodes.client(0);
    assert_eq!(client.ask("SET zebra striped PX 5000"), "OK");
    assert_eq!(client.ask("PTTL zebra"), ":5000");
    assert_eq!(client.ask("AZ.CLUSTER MOVE zebra 1"), "OK");
    assert_eq!(nodes.owner("zebra"), 1);
    nodes.now_ms.store(BEGAN_MS + 4000, Relaxed);
    assert_eq!(client.ask("PTTL zebra"), ":1000");
    nodes.now_ms.store(BEGAN_MS + 5000, Relaxed);
    assert_eq!(client.ask("GET zebra"), "nil");
    assert_eq!(client.ask("DBSIZE"), ":0");
}

#[test]
fn transactions_run_at_one_node_and_others_are_refused_whole() {
    let nodes = Nodes::three();
    let mut client = nodes.client(1);
    assert_eq!(client.ask("MSET a 1 b 2 c 3"), "OK");
    assert_eq!(client.ask("MSET x 1 a 9"), refused());
    assert_eq!(client.ask("MSETNX x 1 b 9"), refused());
    assert_eq!(client.ask("RENAME a x"), refused());
    assert_eq!(client.ask("MGET c a b"), "[3 1 2]");
    assert_eq!(client.ask("RENAME a aa"), "OK");
    // These requests run key by key at several nodes.
    assert_eq!(client.ask("SET x 7"), "OK");
    assert_eq!(client.ask("MGET x nothing aa i"), "[7 nil 1 nil]");
    assert_eq!(client.ask("EXISTS x x aa i"), ":3");
    assert_eq!(client.ask("DEL x aa i"), ":2");

    for request in ["MULTI", "INCR b", "PING", "INCR c", "GET b"] {
        client.ask(request);
    }
    assert_eq!(client.ask("EXEC"), "[:3 PONG :4 3]");
    for request in ["MULTI", "SET b 0", "SET x 0"] {
        client.ask(request);
    }
    assert_eq!(client.ask("EXEC"), refused());
    assert_eq!(client.ask("MGET b x"), "[3 nil]");
    // After the move of a leaf, the same keys are at one node.
    assert_eq!(client.ask("AZ.CLUSTER MOVE x 0"), "OK");
    for request in ["MULTI", "SET b 0", "INCR b", "SET x 0", "INCR y", "LPUSH x"] {
        client.ask(request);
    }
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
    for request in ["MULTI", "SET b word", "INCR b", "SET x 0"] {
        client.ask(request);
    }
    assert_eq!(client.ask("EXEC"), "[OK -ERR value is not an integer or out of range OK]");
    assert_eq!(client.ask("MSET x 1 a 9"), "OK");
    assert_eq!(client.ask("MULTI"), "OK");
    assert_eq!(client.ask("DBSIZE"), "QUEUED");
    assert!(client.ask("EXEC").contains("DBSIZE in MULTI is not offered"));
}

fn refused() -> String {
    "-CROSSNODE the keys are at several nodes, but a transaction runs at one node; move their leaves to one \
     node (AZ.CLUSTER MOVE)"
        .into()
}

#[test]
fn ranges_are_walked_over_all_nodes_in_order_both_ways() {
    // A leaf has at most five rows, so that a walk crosses many leaves.
    let nodes = Nodes::with(&["", "h", "p"], |options| options.leaf_rows = 5);
    let mut client = nodes.client(2);
    let keys: Vec<String> =
        (b'a'..=b'z').flat_map(|c| [char::from(c).to_string(), format!("{}5", char::from(c))]).collect();
    for key in &keys {
        assert_eq!(client.ask(&format!("SET {key} v{key}")), "OK");
    }
    // A leaf is split after the replies to the requests that have filled it.
    wait_until("a leaf is split", || nodes.info(0, "splits") != "0");
    let all = |keys: &mut dyn Iterator<Item = &String>| {
        format!("[{}]", keys.cloned().collect::<Vec<_>>().join(" "))
    };
    assert_eq!(client.ask("AZ.RANGE - + KEYS"), all(&mut keys.iter()));
    assert_eq!(client.ask("AZ.RANGE - + KEYS REV"), all(&mut keys.iter().rev()));
    assert_eq!(client.ask("AZ.RANGE [g (i"), "[g vg g5 vg5 h vh h5 vh5]");
    assert_eq!(client.ask("AZ.RANGE (g [p REV KEYS LIMIT 3"), "[p o5 o]");
    assert_eq!(client.ask("AZ.RANGE [x [w"), "[]");
    assert_eq!(client.ask("AZ.COUNT (a +"), ":51");
    assert_eq!(client.ask("DBSIZE"), ":52");
    assert_eq!(client.ask("KEYS ?5"), all(&mut keys.iter().filter(|key| key.ends_with('5'))));

    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    loop {
        let reply = client.ask(&format!("SCAN {cursor} COUNT 3"));
        let (next, some) = reply[1..reply.len() - 1].split_once(' ').unwrap();
        found.extend(some.trim_matches(['[', ']']).split_whitespace().map(str::to_owned));
        cursor = next.to_owned();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found, keys);
    assert_eq!(client.ask("AZ.DELRANGE [c [v5 LIMIT 30"), ":30");
    assert_eq!(client.ask("AZ.COUNT [c [v5"), ":10");
    assert_eq!(client.ask("FLUSHALL"), "OK");
    assert_eq!(client.ask("DBSIZE"), ":0");
}

#[test]
fn a_transaction_that_fills_many_leaves_is_followed_by_all_splits() {
    let nodes = Nodes::with(&["", "p"], |options| options.leaf_rows = 5);
    let mut clients = [nodes.client(0), nodes.client(1)];
    for (client, first) in clients.iter_mut().zip(["k", "c"]) {
        let pairs = (0..200).map(|number| format!("{first}{number:03} x")).collect::<Vec<_>>().join(" ");
        assert_eq!(client.ask(&format!("MSET {pairs}")), "OK");
    }
    wait_until("node 0 has 80 leaves", || clients[0].ask("AZ.CLUSTER MAP").matches(" :0 ").count() >= 80);
    assert_eq!(clients[1].ask("DBSIZE"), ":400");
}

#[test]
fn leaves_are_split_after_short_requests_have_written_long_values() {
    let nodes = Nodes::with(&["", "p"], |options| options.leaf_bytes = 10_000);
    for (client, first) in [(0, "k"), (1, "c")] {
        let mut client = nodes.client(client);
        for number in 0..8 {
            assert_eq!(client.ask(&format!("SETRANGE {first}{number} 4000 x")), ":4001");
        }
        for number in 8..16 {
            assert_eq!(client.ask(&format!("COPY {first}0 {first}{number}")), ":1");
        }
        assert_eq!(client.ask(&format!("RENAME {first}1 {first}99")), "OK");
    }
    let mut client = nodes.client(0);
    wait_until("node 0 has 8 leaves", || client.ask("AZ.CLUSTER MAP").matches(" :0 ").count() >= 8);
    assert_eq!(client.ask("DBSIZE"), ":32");
}

#[test]
fn each_step_of_a_scan_may_be_sent_to_another_node() {
    let nodes = Nodes::three();
    // The keys have a long common prefix, so each node assigns prefixes for its cursors.
    let keys: Vec<String> = (0..1500).map(|number| format!("item:session:{number:06}")).collect();
    let mut clients: Vec<_> = (0..nodes.len()).map(|node| nodes.client(node)).collect();
    for keys in keys.chunks(100) {
        let pairs = keys.iter().map(|key| format!("{key} x")).collect::<Vec<_>>().join(" ");
        assert_eq!(clients[1].ask(&format!("MSET {pairs}")), "OK");
    }
    for first in 0..3 {
        let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
        for step in first.. {
            let reply = clients[step % 3].ask(&format!("SCAN {cursor} COUNT 10"));
            let (next, some) = reply[1..reply.len() - 1].split_once(' ').unwrap();
            assert!(some.starts_with('['), "step {step}: {reply}");
            found.extend(some.trim_matches(['[', ']']).split_whitespace().map(str::to_owned));
            cursor = next.to_owned();
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(found, keys);
    }
    // No node has assigned this number, and the node of that number is none of the cluster.
    for cursor in [(1_u64 << 40) + (1 << 33), 1 << 62] {
        assert_eq!(clients[1].ask(&format!("SCAN {cursor}")), "-ERR invalid cursor");
    }
}

#[test]
fn cluster_commands_of_redis_clients_are_harmless() {
    let nodes = Nodes::three();
    let mut client = nodes.client(0);
    for request in ["CLUSTER INFO", "CLUSTER SLOTS"] {
        assert!(client.ask(request).starts_with("-ERR This instance has cluster support disabled"));
    }
    assert_eq!(nodes.info(0, "nodes"), "3");
    let map = client.ask("AZ.CLUSTER MAP");
    assert_eq!(map, "[[ h :0 :1 :1] [h p :1 :1 :1] [p nil :2 :1 :1]]");
    assert!(client.ask("AZ.CLUSTER STATUS").contains("links"));
    assert!(client.ask("AZ.CLUSTER MEMBERS").starts_with("[[:0 127.0.0.1:"));
    assert_eq!(client.ask("AZ.CLUSTER RELOAD"), "OK");
    assert!(client.ask("AZ.CLUSTER MOVE a 9").contains("PE 9 is this node or not a member"));
    assert!(client.ask("AZ.CLUSTER DANCE").starts_with("-ERR unknown subcommand"));
    assert_eq!(client.ask("AZ.CLUSTER SPLIT k"), "OK");
    assert!(client.ask("AZ.CLUSTER SPLIT k").contains("begins with this key"));
    let split = client.ask(&format!("AZ.CLUSTER SPLIT {}", "k".repeat(5000)));
    assert!(split.starts_with("-ERR the key has 5000 bytes"), "{split}");
    assert_eq!(client.ask("AZ.CLUSTER MAP FROM k LIMIT 1"), "[[k p :1 :2 :2]]");
}

#[test]
fn the_subcommands_of_a_command_are_listed_by_any_node() {
    let nodes = Nodes::three();
    let mut client = nodes.client(0);
    for name in ["OBJECT", "MEMORY", "CLIENT"] {
        let wanted = format!("[{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
        let request = format!("{name} HELP");
        let help = client.ask(&request);
        assert!(help.starts_with(&wanted) && help.ends_with(" HELP]"), "{help}");
        assert_eq!(client.ask("MULTI"), "OK");
        assert_eq!(client.ask(&request), "QUEUED");
        assert_eq!(client.ask("EXEC"), format!("[{help}]"));
        assert_eq!(client.ask("AZ.BEGIN"), "OK");
        assert_eq!(client.ask("SET i 1"), "OK");
        assert_eq!(client.ask(&request), help);
        assert_eq!(client.ask("AZ.COMMIT"), "OK");
    }
}
