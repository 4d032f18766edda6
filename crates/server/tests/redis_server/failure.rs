//! A disk that fails while the server runs.

use std::sync::Arc;

use azekura::Database;
use azekura_io::fault::{FailKind, FaultFs};

use crate::support::{TestServer, encoded, http_response, wait_until};

#[test]
fn a_write_with_unknown_durability_is_never_answered_with_ok() {
    let disk = FaultFs::new();
    let db = Database::builder().file_system(Arc::new(disk.clone())).open("/db").unwrap();
    let redis = TestServer::over(db, |options| options.metrics = Some("127.0.0.1:0".parse().unwrap()));
    let mut client = redis.client();
    assert_eq!(client.ask("SET a 1"), "OK");
    disk.fail_from(0, FailKind::Io);
    // The whole pipeline gets one error and the connection ends: the writes may have reached the disk.
    client.send_raw(&encoded(&["SET", "a", "2"]).repeat(5)).unwrap();
    let reply = client.reply();
    assert!(reply.starts_with("-UNKNOWN"), "{reply}");
    assert!(client.try_reply().is_err(), "the connection ends");
    // After the failure, writes are refused, reads of durable data work, and the health page reports the
    // error.
    assert!(redis.client().ask("SET b 1").starts_with("-UNAVAIL"));
    assert_eq!(redis.client().ask("GET nokey"), "nil");
    let text = page(&redis, "/healthz");
    assert!(text.starts_with("HTTP/1.1 503"), "{text}");
}

/// Returns the answer of the server's HTTP port.
fn page(redis: &TestServer, path: &str) -> String {
    http_response(redis.server.metrics_address().unwrap(), &format!("GET {path} HTTP/1.0\r\n\r\n"))
}

/// The state ends although no client writes: a load balancer may send no request to an unhealthy server.
#[test]
fn a_full_disk_is_reported_until_it_has_space_again() {
    let disk = FaultFs::new();
    // The checkpointer of a store in the background would release log files.
    let db = Database::builder().background(false).file_system(Arc::new(disk.clone())).open("/db").unwrap();
    let redis = TestServer::over(db, |options| options.metrics = Some("127.0.0.1:0".parse().unwrap()));
    let mut client = redis.client();
    disk.full_from(1);
    // The new value takes the place of the old one, so only the log needs space.
    let value = "v".repeat(1000);
    let refused = (0..20_000).map(|_| client.ask(&format!("SET a {value}"))).find(|reply| reply != "OK");
    assert!(refused.is_some_and(|reply| reply.starts_with("-UNAVAIL the disk has no space")));
    let text = page(&redis, "/healthz");
    assert!(text.starts_with("HTTP/1.1 503") && text.contains("no space"), "{text}");
    assert!(page(&redis, "/livez").starts_with("HTTP/1.1 200"));
    assert!(page(&redis, "/metrics").contains("azekura_degraded 1"));
    assert!(client.ask("INFO persistence").contains("degraded:the disk has no space"));
    disk.heal();
    wait_until("the disk has space", || page(&redis, "/healthz").starts_with("HTTP/1.1 200"));
    assert!(page(&redis, "/metrics").contains("azekura_degraded 0"));
    assert_eq!(client.ask("SET a 1"), "OK");
}
