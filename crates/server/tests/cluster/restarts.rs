//! Nodes of a cluster that stop and restart.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use azekura_server::{Server, ServerOptions};

use crate::nodes::Nodes;
use crate::support::wait_until;

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
fn keys_of_a_stopped_node_are_refused_and_return_with_it() {
    let mut nodes = Nodes::with(&["", "h", "p"], |options| {
        options.request_timeout = Duration::from_millis(300);
        options.read_timeout = Duration::from_millis(100);
    });
    let mut client = nodes.client(0);
    // On a busy machine a request may take longer than its time limit.
    let until = |nodes: &Nodes, node: usize, request: &str, wanted: &str| {
        let mut client = nodes.client(node);
        wait_until(request, || client.ask(request) == wanted);
    };
    until(&nodes, 0, "SET i 1", "OK");
    until(&nodes, 0, "SET z 1", "OK");
    nodes.stop(2);
    let away = |reply: &str| reply.starts_with("-UNAVAIL") || reply.starts_with("-UNKNOWN");
    let reply = client.ask("GET z");
    assert!(away(&reply), "{reply}");
    let reply = client.ask("SET z 2");
    assert!(away(&reply), "{reply}");
    until(&nodes, 0, "GET i", "1"); // others go on
    nodes.start(2);
    until(&nodes, 0, "GET z", "1");
    until(&nodes, 0, "SET z 3", "OK");
    until(&nodes, 2, "GET a", "nil");
}

/// The time limits are an hour, so a reply within the test did not wait for them.
#[test]
fn requests_for_keys_of_a_dead_node_are_refused_at_once_and_others_succeed() {
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
fn health_names_a_node_that_cannot_be_reached() {
    let mut nodes = Nodes::three();
    let page = nodes.page(0, "/healthz");
    assert!(page.starts_with("HTTP/1.1 200 OK"), "{page}");
    nodes.stop(2);
    wait_until("node 2 is named", || {
        let page = nodes.page(0, "/healthz");
        page.starts_with("HTTP/1.1 503") && page.contains("node 2 cannot be reached")
    });
    assert!(nodes.page(0, "/livez").starts_with("HTTP/1.1 200 OK"));
    nodes.start(2);
    assert!(nodes.page(0, "/healthz").starts_with("HTTP/1.1 200 OK"));
}

/// A node's clock jumps an hour ahead while the node runs, and is still wrong at the next start.
#[test]
fn a_node_with_a_clock_far_off_is_refused_by_name_and_no_key_expires_by_that_clock() {
    const HOUR_MS: u64 = 3_600_000;
    let mut nodes = Nodes::with(&["", "h", "p"], |options| {
        options.heartbeat_interval = Some(Duration::from_millis(50));
    });
    nodes.stop(2);
    let clock = nodes.separate_clock(2);
    nodes.start(2);
    let mut client = nodes.client(0);
    assert_eq!(client.ask("SET a 1 EX 600"), "OK");
    clock.fetch_add(HOUR_MS, SeqCst);
    let is_named = |nodes: &Nodes| {
        let status = nodes.client(0).ask("AZ.CLUSTER STATUS");
        status.contains("its clock is 3600000 ms ahead of this node's, 2000 are allowed")
    };
    wait_until("a heartbeat shows it", || is_named(&nodes));
    let refused = client.ask("AZ.CLUSTER MOVE a 2");
    assert!(refused.starts_with('-') && refused.contains("clock"), "{refused}");
    assert!(client.ask("SET z 1").starts_with("-UNAVAIL node 2 cannot be reached"));
    assert_eq!(client.ask("GET a"), "1");
    nodes.stop(2);
    nodes.launch(2);
    wait_until("the handshake shows it", || is_named(&nodes));
    assert!(client.ask("AZ.CLUSTER MOVE a 2").starts_with('-'));
    assert_eq!(client.ask("GET a"), "1");

    clock.fetch_sub(HOUR_MS, SeqCst);
    // A busy machine may delay heartbeats for more than four heartbeat intervals.
    wait_until("the node is accepted again", || client.ask("AZ.CLUSTER MOVE a 2") == "OK");
    wait_until("it has the key", || client.ask("GET a") == "1");
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
    // These requests need no key of the dead node.
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
    // The node refuses requests when another node has reported the mismatch. Until then it has no keys.
    wait_until("node 1 knows the mismatch", || {
        let reply = nodes.client(1).ask("GET i");
        assert!(reply.starts_with('-'), "{reply}");
        reply.contains("has recorded another store for PE 1") && reply.contains("--accept-loss")
    });
    nodes.stop(0);
    nodes.launch(0);
    wait_until("node 0 knows the mismatch", || {
        let reply = nodes.client(0).ask("GET i");
        assert!(reply.starts_with('-'), "{reply}");
        reply.starts_with("-UNAVAIL") && reply.contains("--accept-loss")
    });

    nodes.stop(1);
    nodes.change(|options| {
        options.is_loss_accepted = true;
        options.request_timeout = Duration::from_secs(30);
    });
    nodes.start(1);
    assert_eq!(nodes.client(1).ask("GET i"), "nil");
    assert_eq!(nodes.client(1).ask("GET a"), "1");
    assert_eq!(nodes.client(1).ask("SET i 2"), "OK");
    // The nodes have recorded the acceptance, so the option is not needed again.
    nodes.stop(1);
    nodes.change(|options| options.is_loss_accepted = false);
    nodes.start(1);
    assert_eq!(nodes.client(2).ask("GET i"), "2");
}

#[test]
fn a_restored_store_is_served_when_the_others_have_confirmed_it_or_the_operator_accepts_it() {
    let mut nodes = Nodes::three();
    assert_eq!(nodes.client(0).ask("SET i 1"), "OK");
    nodes.change(|options| {
        options.request_timeout = Duration::from_millis(300);
        options.read_timeout = Duration::from_millis(100);
    });
    nodes.stop(2);
    nodes.restore(1);
    nodes.launch(1);
    for request in ["GET i", "SET i 2", "INCR j", "DEL i"] {
        let is_refused = |reply: &str| reply.starts_with("-UNAVAIL") && reply.contains("PE 2 must confirm");
        // Node 0 may not have answered yet.
        let mut client = nodes.client(1);
        wait_until(request, || {
            let reply = client.ask(request);
            assert!(reply.starts_with('-'), "{request}: {reply}");
            is_refused(&reply)
        });
    }
    let page = nodes.page(1, "/healthz");
    assert!(page.starts_with("HTTP/1.1 503"), "{page}");
    nodes.launch(2);
    wait_until("node 1 is confirmed", || nodes.client(0).ask("GET i") == "1");
    // From now on the node starts while another one is down, until its store is restored again.
    nodes.stop(2);
    nodes.stop(1);
    nodes.launch(1);
    // On a busy machine a request may take longer than its time limit.
    wait_until("node 1 serves its keys", || {
        let reply = nodes.client(1).ask("GET i");
        assert!(reply == "1" || reply.starts_with("-UNAVAIL"), "{reply}");
        reply == "1"
    });
    nodes.restore(1);
    nodes.launch(1);
    assert!(nodes.client(1).ask("GET i").starts_with("-UNAVAIL"));
    nodes.stop(1);
    nodes.change(|options| options.is_copy_accepted = true);
    nodes.launch(1);
    wait_until("node 1 is accepted", || nodes.client(1).ask("GET i") == "1");
}
