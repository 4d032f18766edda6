//! Nodes that go and come back.

use std::time::Duration;

use azekura_server::{Server, ServerOptions};

use crate::nodes::Nodes;

#[test]
fn a_store_of_a_node_is_served_as_such_only() {
    let nodes = Nodes::three();
    let db = nodes.database(1);
    drop(nodes);
    let mut options = ServerOptions::default();
    options.listen = "127.0.0.1:0".parse().unwrap();
    let refused = Server::start(db, options).expect_err("it is a node's").to_string();
    assert!(refused.contains("store of node 1 of cluster 00000000000000c1"), "{refused}");
}

#[test]
fn a_node_that_is_away_is_told_of_and_its_keys_are_back_with_it() {
    let mut nodes = Nodes::with(&["", "h", "p"], |options| {
        options.request_timeout = Duration::from_millis(300);
        options.read_timeout = Duration::from_millis(100);
    });
    let mut client = nodes.client(0);
    // The first connections may still be on their way.
    let until = |nodes: &Nodes, request: &str, wanted: &str| {
        let mut client = nodes.client(0);
        (0..200).any(|_| client.ask(request) == wanted)
    };
    assert!(until(&nodes, "SET i 1", "OK"));
    assert!(until(&nodes, "SET z 1", "OK"));
    nodes.stop(2);
    let away = |reply: &str| reply.starts_with("-UNAVAIL") || reply.starts_with("-UNKNOWN");
    let reply = client.ask("GET z");
    assert!(away(&reply), "{reply}");
    let reply = client.ask("SET z 2");
    assert!(away(&reply), "{reply}");
    assert!(until(&nodes, "GET i", "1"), "others go on");
    nodes.start(2);
    assert!(until(&nodes, "DEL z", ":1"));
    assert_eq!(nodes.client(2).ask("GET a"), "nil");
}
