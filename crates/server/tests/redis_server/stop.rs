//! Shutdown, `CLIENT KILL`, and the port for metrics.

use std::net::TcpStream;
use std::time::Duration;

use azekura::Database;
use azekura_server::{Server, ServerOptions};

use crate::support::{Client, TestServer, encoded, http_response};

#[test]
fn a_shutdown_answers_received_requests_and_closes_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = ServerOptions::default();
    options.listen = "127.0.0.1:0".parse().unwrap();
    let server = Server::start(Database::open(dir.path()).unwrap(), options).unwrap();
    let address = server.address().tcp().unwrap();
    let mut open = Client::new(TcpStream::connect(address).unwrap());
    assert_eq!(open.ask("AZ.BEGIN"), "OK");
    assert_eq!(open.ask("SET uncommitted 1"), "OK");
    let mut client = Client::new(TcpStream::connect(address).unwrap());
    assert_eq!(client.ask("PING"), "PONG");
    let requests: Vec<u8> = (0..1000).flat_map(|i| encoded(&["SET", &format!("k{i}"), "x"])).collect();
    client.send_raw(&requests).unwrap();
    server.stop().unwrap();
    // Every request that was read is answered before the connection ends.
    let mut answered = 0;
    while let Ok(reply) = client.try_reply() {
        assert_eq!(reply, "OK");
        answered += 1;
    }
    assert!(TcpStream::connect(address).is_err());
    // The store is closed, so it opens again. It has all acknowledged writes and no uncommitted ones.
    let db = Database::open(dir.path()).unwrap();
    let keys = azekura::TableDefinition::<[u8], [u8]>::new("redis.keys");
    let rows = db.transact(|tx| Ok(tx.table(&keys)?.iter().count())).unwrap();
    assert!(rows >= answered, "{rows} rows, {answered} answers");
    assert_eq!(db.transact(|tx| tx.table(&keys)?.get(b"uncommitted")).unwrap(), None);
}

#[test]
fn a_connection_can_be_killed_by_another() {
    let redis = TestServer::open();
    let (mut a, mut b) = (redis.client(), redis.client());
    let id = a.ask("CLIENT ID").trim_start_matches(':').to_owned();
    assert_eq!(b.ask("CLIENT KILL ID 999"), ":0");
    assert_eq!(b.ask(&format!("CLIENT KILL ID {id}")), ":1");
    assert!(a.try_reply().is_err());
    let own = b.stream.get_ref().local_addr().unwrap();
    assert_eq!(b.ask(&format!("CLIENT KILL {own}")), "OK");
    assert!(b.try_reply().is_err());
}

#[test]
fn metrics_and_health_are_on_a_port_of_their_own() {
    let redis = TestServer::with(|options| options.metrics = Some("127.0.0.1:0".parse().unwrap()));
    assert_eq!(redis.client().ask("SET a 1"), "OK");
    assert!(redis.client().ask("INCRBY a x").starts_with("-ERR"));
    let page = |request: &str| http_response(redis.server.metrics_address().unwrap(), request);
    let metrics = page("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(metrics.starts_with("HTTP/1.1 200 OK"), "{metrics}");
    for line in [
        "azekura_commands_total{command=\"set\"} 1",
        "azekura_commands_failed_total{command=\"incrby\"} 1",
        "azekura_log_flushes_total ",
        "# EOF",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    assert!(page("GET /healthz HTTP/1.0\r\n\r\n").ends_with("ok\n"));
    assert!(page("GET /livez HTTP/1.0\r\n\r\n").ends_with("ok\n"));
    assert!(page("GET /else HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(page("DELETE /metrics HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 400"));
}

/// A program may set the longest time for "never".
#[test]
fn unbounded_times_are_accepted() {
    let redis = TestServer::with(|options| {
        options.login_timeout = Duration::MAX;
        options.write_timeout = Duration::MAX;
        options.transaction_timeout = Duration::MAX;
        options.drain_timeout = Duration::MAX;
        options.expiry_interval = Duration::MAX;
        options.idle_timeout = Some(Duration::MAX);
    });
    let mut client = redis.client();
    for request in ["AZ.BEGIN", "SET a 1", "AZ.COMMIT"] {
        assert_eq!(client.ask(request), "OK", "{request}");
    }
    drop(client);
    redis.server.stop().unwrap();
}
