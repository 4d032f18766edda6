//! The adapter for servers passes the conformance tests that the runner relies on. The server is this
//! project's Redis server, in this process.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use azekura_auth::AuthKey;
use azekura_fatbtree::{Member, Membership, PeId};
use azekura_lab::adapter::resp::RespEngine;
use azekura_lab::{Engine, Plan, Progress, compare, conformance};
use azekura_server::{ClusterOptions, Server, ServerOptions};
use azekura_workload::Workload;

fn server() -> Server {
    let mut options = ServerOptions::default();
    options.listen = "127.0.0.1:0".parse().unwrap();
    Server::start(azekura::Database::in_memory().unwrap(), options).unwrap()
}

/// Starts a cluster of three nodes that share the keys of the conformance tests.
fn cluster() -> Vec<Server> {
    let shares = ["", "\0\0\0\0\0\0\0\x20", "\0\0\0\0\0\0\0\x50"];
    let listeners = shares.map(|_| Arc::new(TcpListener::bind("127.0.0.1:0").unwrap()));
    let member = |(pe, from): (u16, &str)| Member {
        pe: PeId(pe),
        address: listeners[usize::from(pe)].local_addr().unwrap(),
        clients: None,
        from: Some(from.to_owned()),
        left: false,
    };
    let members = (0..).zip(shares).map(member).collect();
    let members = Arc::new(Membership::new(7, "cluster.key".into(), members).unwrap());
    let node = |(pe, listener): (u16, &Arc<TcpListener>)| {
        let key = AuthKey::new(b"a key that these nodes share").unwrap();
        let mut cluster = ClusterOptions::new(Arc::clone(&members) as _, PeId(pe), key);
        cluster.listener = Some(Arc::clone(listener));
        // On a busy machine, new nodes may need a long time until they know each other.
        cluster.node.request_timeout = std::time::Duration::from_secs(30);
        // A node that the machine does not run for some seconds is not down.
        cluster.node.heartbeat_interval = None;
        let mut options = ServerOptions::default();
        options.listen = "127.0.0.1:0".parse().unwrap();
        options.cluster = Some(cluster);
        Server::start(azekura::Database::in_memory().unwrap(), options).unwrap()
    };
    (0..).zip(&listeners).map(node).collect()
}

#[test]
fn sessions_use_all_nodes_of_a_cluster_and_lose_nothing() {
    let (nodes, dir) = (cluster(), tempfile::tempdir().unwrap());
    let gateways: Vec<_> = nodes.iter().map(|node| node.address().tcp().unwrap()).collect();
    let checks: [fn(&dyn Engine, &Path); 3] = [
        conformance::keeps_what_was_committed,
        conformance::finds_what_is_there,
        conformance::loses_no_update,
    ];
    for (number, check) in checks.into_iter().enumerate() {
        let inner = dir.path().join(number.to_string());
        std::fs::create_dir(&inner).unwrap();
        let engine = RespEngine::connect_by(&gateways, "").unwrap();
        assert_eq!(engine.name(), "azekura-cluster-3-by-3");
        check(&engine, &inner);
    }
    let workload = |name: &str| name.parse::<Workload>().unwrap().with_records(300);
    let plan = Plan {
        workloads: ["ycsb-a", "ycsb-e", "ycsb-f"].map(workload).into(),
        threads: vec![3],
        measured: Duration::from_millis(15),
        ..Plan::in_dir(dir.path())
    };
    let engines: [Box<dyn Engine>; 1] = [Box::new(RespEngine::connect_by(&gateways, "").unwrap())];
    let outcome = compare(&engines, &plan, &Progress::hidden(), &mut |_| {}).unwrap();
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.reports.len(), 3);
}

fn over_a_door(check: impl FnOnce(&dyn Engine, &Path)) {
    let (server, dir) = (server(), tempfile::tempdir().unwrap());
    check(&RespEngine::connect(server.address().tcp().unwrap(), "").unwrap(), dir.path());
}

#[test]
fn committed_records_are_there_in_order_and_over_a_reopening() {
    over_a_door(conformance::keeps_what_was_committed);
}

#[test]
fn reads_find_what_is_there_and_only_that() {
    over_a_door(conformance::finds_what_is_there);
}

#[test]
fn failed_work_leaves_nothing() {
    over_a_door(conformance::failed_work_leaves_nothing);
}

#[test]
fn concurrent_increments_are_all_counted() {
    over_a_door(conformance::loses_no_update);
}

#[test]
fn the_mixes_run_and_leave_the_server_empty() {
    let (server, dir) = (server(), tempfile::tempdir().unwrap());
    let workload = |name: &str| name.parse::<Workload>().unwrap().with_records(1_000);
    let plan = Plan {
        workloads: ["ycsb-a", "ycsb-d", "ycsb-e", "ycsb-f"].map(workload).into(),
        threads: vec![3],
        measured: Duration::from_millis(15),
        ..Plan::in_dir(dir.path())
    };
    let engines: [Box<dyn Engine>; 1] =
        [Box::new(RespEngine::connect(server.address().tcp().unwrap(), "").unwrap())];
    let outcome = compare(&engines, &plan, &Progress::hidden(), &mut |_| {}).unwrap();
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.reports.len(), 4);
    drop(engines);
    let other = RespEngine::connect(server.address().tcp().unwrap(), "").unwrap();
    drop(conformance::open(&other, &tempdir_in(dir.path())));
}

fn tempdir_in(dir: &Path) -> std::path::PathBuf {
    let inner = dir.join("other");
    std::fs::create_dir(&inner).unwrap();
    inner
}

#[test]
fn a_server_with_keys_is_refused() {
    use std::io::{Read, Write};
    let server = server();
    let mut client = std::net::TcpStream::connect(server.address().tcp().unwrap()).unwrap();
    client.write_all(b"SET precious 1\r\n").unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let engine = RespEngine::connect(server.address().tcp().unwrap(), "").unwrap();
    let settings = azekura_lab::EngineSettings {
        cache_bytes: Some(1 << 20),
        expected_bytes: 0,
        sessions: 1,
        bypass_page_cache: false,
    };
    let Err(refused) = engine.open(dir.path(), &settings) else { panic!("it opens") };
    assert!(format!("{refused:?}").contains("holds 1 keys"), "{refused:?}");
    drop(engine);
    client.write_all(b"GET precious\r\n").unwrap();
    let mut reply = [0; 7];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"$1\r\n1\r\n");
}
