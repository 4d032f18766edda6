//! A disk that fails while the server runs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use azekura::Database;
use azekura_io::fault::{FailKind, FaultFs};

use crate::support::{TestServer, encoded};

#[test]
fn a_write_that_is_not_known_to_last_is_never_answered_with_ok() {
    let disk = FaultFs::new();
    let db = Database::builder().file_system(Arc::new(disk.clone())).open("/db").unwrap();
    let redis = TestServer::over(db, |options| options.metrics = Some("127.0.0.1:0".parse().unwrap()));
    let mut client = redis.client();
    assert_eq!(client.ask("SET a 1"), "OK");
    disk.fail_from(0, FailKind::Io);
    // The whole pipeline gets one error and the connection ends, or each request gets an error if the log is
    // already known to have failed.
    client.send_raw(&encoded(&["SET", "a", "2"]).repeat(5)).unwrap();
    let reply = client.reply();
    assert!(reply.starts_with("-UNAVAIL"), "{reply}");
    for reply in (1..5).map_while(|_| client.try_reply().ok()) {
        assert!(reply.starts_with("-UNAVAIL"), "{reply}");
    }
    // After the failure, writes are refused, reads of durable data work, and the health page reports the
    // error.
    assert!(redis.client().ask("SET b 1").starts_with("-UNAVAIL"));
    assert_eq!(redis.client().ask("GET nokey"), "nil");
    let mut health = TcpStream::connect(redis.server.metrics_address().unwrap()).unwrap();
    health.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    health.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 503"), "{text}");
}
