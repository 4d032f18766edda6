//! A node leaves the cluster while clients run requests. No write is lost, and the node cannot return.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use crate::nodes::Nodes;

#[test]
fn a_node_leaves_while_clients_write_and_nothing_is_lost() {
    let mut nodes = Nodes::with(&["", "h", "p"], |options| options.leaf_rows = 4);
    let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let counted: u64 = thread::scope(|scope| {
        let clients: Vec<_> = [0, 2]
            .into_iter()
            .map(|node| {
                let (nodes, is_over, done) = (&nodes, &is_over, &done);
                scope.spawn(move || {
                    let (mut client, mut counted) = (nodes.client(node), 0);
                    while !is_over.load(Relaxed) {
                        for letter in 'a'..='z' {
                            let reply = client.ask(&format!("INCR {letter}"));
                            assert!(reply.starts_with(':'), "{reply}");
                            counted += 1;
                            done.fetch_add(1, Relaxed);
                        }
                    }
                    counted
                })
            })
            .collect();
        while done.load(Relaxed) < 100 {
            thread::yield_now();
        }
        let stale = nodes.client(1).ask("AZ.CLUSTER LEAVE VERSION 7");
        assert!(stale.starts_with("-ERR wrong version: this node goes by version 1"), "{stale}");
        // On a busy machine the transfer of a leaf may exceed its time limit. The node then remains a member,
        // and `LEAVE` is repeated.
        let mut client = nodes.client(1);
        let is_left = (0..20).any(|_| client.ask("AZ.CLUSTER LEAVE") == "OK");
        assert!(is_left, "{}", client.ask("AZ.CLUSTER LEAVE"));
        let until = done.load(Relaxed) + 100;
        while done.load(Relaxed) < until {
            thread::yield_now();
        }
        is_over.store(true, Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(nodes.info(1, "leaves"), "0");
    let refused = nodes.client(1).ask("GET a");
    let left = "-ERR node 1 has left the cluster and has no keys; send requests to another node";
    assert!(refused.starts_with(left), "{refused}");
    nodes.stop(1);
    for node in [0, 2] {
        let mut client = nodes.client(node);
        let sum: u64 = ('a'..='z').map(|key| client.ask(&format!("GET {key}")).parse::<u64>().unwrap()).sum();
        assert_eq!(sum, counted, "by node {node}");
        assert_eq!(nodes.info(node, "left"), "1");
        assert_eq!(nodes.info(node, "failure"), "");
        let refused = client.ask("AZ.CLUSTER MOVE a 1");
        assert!(refused.contains("not a member of the cluster"), "{refused}");
    }
    // The node restarts with its store. Both this node and the other nodes have recorded that it has left.
    nodes.launch(1);
    let reply = nodes.client(1).ask("SET k 1");
    assert!(reply.starts_with(left), "{reply}");
    assert!(nodes.client(0).ask("INCR k").starts_with(':'));
    // A second node leaves; the last node cannot leave.
    let mut client = nodes.client(2);
    assert!((0..20).any(|_| client.ask("AZ.CLUSTER LEAVE") == "OK"), "{}", client.ask("AZ.CLUSTER LEAVE"));
    nodes.stop(2);
    let refused = nodes.client(0).ask("AZ.CLUSTER LEAVE");
    assert!(refused.contains("last node"), "{refused}");
    let mut client = nodes.client(0);
    let sum: u64 = ('a'..='z').map(|key| client.ask(&format!("GET {key}")).parse::<u64>().unwrap()).sum();
    assert_eq!(sum, counted + 1);
}
