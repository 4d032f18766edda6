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

/// A client would give up before the time that a request may take here.
#[test]
fn requests_for_keys_of_a_dead_node_are_refused_at_once_and_others_go_on() {
    let mut nodes = Nodes::with(&["", "h", "p"], |options| {
        options.request_timeout = Duration::from_secs(3600);
        options.read_timeout = Duration::from_secs(3600);
    });
    nodes.stop(2);
    for node in [0, 1] {
        let mut client = nodes.client(node);
        for round in 0..100 {
            let reply = client.ask("SET z 1");
            assert!(reply.starts_with("-UNAVAIL node 2 cannot be reached"), "{reply}");
            assert!(reply.ends_with("; nothing was changed"), "{reply}");
            assert!(client.ask("GET z").starts_with("-UNAVAIL node 2 cannot be reached"));
            assert_eq!(client.ask(&format!("SET a{round} 1")), "OK");
            assert_eq!(client.ask(&format!("SET i{round} 1")), "OK");
        }
    }
}

#[test]
fn a_request_that_removes_keys_of_a_dead_node_too_removes_none() {
    let mut nodes = Nodes::three();
    let mut client = nodes.client(0);
    assert_eq!(client.ask("SET a 1"), "OK");
    assert_eq!(client.ask("SET i 1"), "OK");
    assert_eq!(client.ask("SET z 1"), "OK");
    nodes.stop(2);
    for request in
        ["DEL a i z", "UNLINK a z", "FLUSHALL", "FLUSHDB", "AZ.DELRANGE - +", "AZ.DELRANGE - + LIMIT 3"]
    {
        let reply = client.ask(request);
        assert!(
            reply.starts_with("-UNAVAIL") && reply.ends_with("; nothing was changed"),
            "{request}: {reply}"
        );
        assert_eq!(client.ask("MGET a i"), "[1 1]", "{request}");
    }
    // The dead node is not needed for these.
    assert_eq!(client.ask("AZ.DELRANGE - + LIMIT 1"), ":1");
    assert_eq!(client.ask("AZ.DELRANGE - [i"), ":1");
    nodes.start(2);
    assert_eq!(client.ask("DEL a i z"), ":1");
}

#[test]
fn an_empty_store_in_place_of_a_lost_one_is_refused_by_name_until_its_loss_is_accepted() {
    let mut nodes = Nodes::three();
    assert_eq!(nodes.client(0).ask("SET i 1"), "OK");
    assert_eq!(nodes.client(1).ask("SET a 1"), "OK");
    nodes.change(|options| {
        options.request_timeout = Duration::from_millis(500);
        options.read_timeout = Duration::from_millis(100);
    });
    nodes.lose(1);
    nodes.launch(1);
    // By the node itself, as soon as it has been told; until then it has no keys.
    let refused = (0..600).any(|_| {
        let reply = nodes.client(1).ask("GET i");
        assert!(reply.starts_with('-'), "{reply}");
        reply.contains("knows another store of PE 1") && reply.contains("--accept-loss")
    });
    assert!(refused, "{}", nodes.client(1).ask("GET i"));
    nodes.stop(0);
    nodes.launch(0);
    let refused = (0..600).any(|_| {
        let reply = nodes.client(0).ask("GET i");
        assert!(reply.starts_with('-'), "{reply}");
        reply.starts_with("-UNAVAIL") && reply.contains("--accept-loss")
    });
    assert!(refused, "{}", nodes.client(0).ask("GET i"));

    nodes.stop(1);
    nodes.change(|options| {
        options.is_loss_accepted = true;
        options.request_timeout = Duration::from_secs(30);
    });
    nodes.start(1);
    assert_eq!(nodes.client(1).ask("GET i"), "nil");
    assert_eq!(nodes.client(1).ask("GET a"), "1");
    assert_eq!(nodes.client(1).ask("SET i 2"), "OK");
    // For good: no need to say so again.
    nodes.stop(1);
    nodes.change(|options| options.is_loss_accepted = false);
    nodes.start(1);
    assert_eq!(nodes.client(2).ask("GET i"), "2");
}
