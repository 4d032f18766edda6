//! Connections with TLS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use azekura::Database;
use azekura_server::{Server, ServerError, ServerOptions, TlsFiles};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::support::{Client, TestServer};

/// Writes a self-signed certificate for `localhost` and its key to files.
fn files(dir: &tempfile::TempDir) -> (TlsFiles, rcgen::CertifiedKey<rcgen::KeyPair>) {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = TlsFiles { certificates: dir.path().join("cert.pem"), key: dir.path().join("key.pem") };
    std::fs::write(&files.certificates, certified.cert.pem()).unwrap();
    std::fs::write(&files.key, certified.signing_key.serialize_pem()).unwrap();
    (files, certified)
}

fn connect(redis: &TestServer, roots: RootCertStore) -> StreamOwned<ClientConnection, TcpStream> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(connection, TcpStream::connect(redis.server.address().tcp().unwrap()).unwrap())
}

#[test]
fn requests_and_replies_of_any_size_are_encrypted() {
    let dir = tempfile::tempdir().unwrap();
    let (files, certified) = files(&dir);
    let redis = TestServer::with(|options| options.tls = Some(files));
    let mut roots = RootCertStore::empty();
    roots.add(certified.cert.der().clone()).unwrap();
    let mut stream = connect(&redis, roots);
    let value = "x".repeat(300_000);
    for _ in 0..2 {
        stream.write_all(&crate::support::encoded(&["SET", "a", &value])).unwrap();
        stream.write_all(b"GET a\r\n").unwrap();
        let mut reply = vec![0; 5 + 9 + value.len() + 2];
        stream.read_exact(&mut reply).unwrap();
        assert!(reply.starts_with(b"+OK\r\n$300000\r\nxxx"));
    }
    // A client that does not trust the certificate, and a client without TLS, get no reply.
    let mut stranger = connect(&redis, RootCertStore::empty());
    let asked = stranger.write_all(b"PING\r\n").and_then(|()| stranger.read_exact(&mut [0; 7]));
    assert!(asked.is_err());
    let mut clear: Client = redis.client();
    clear.send_raw(b"PING\r\n").unwrap();
    let mut rest = Vec::new();
    let _ = clear.stream.read_to_end(&mut rest);
    assert!(!rest.starts_with(b"+PONG"));
}

#[test]
fn a_client_without_a_complete_handshake_is_disconnected_and_others_stay() {
    let dir = tempfile::tempdir().unwrap();
    let (files, certified) = files(&dir);
    let redis = TestServer::with(|options| {
        options.tls = Some(files);
        options.login_timeout = std::time::Duration::from_secs(1);
    });
    let mut roots = RootCertStore::empty();
    roots.add(certified.cert.der().clone()).unwrap();
    // On a busy machine the time may be over before the handshake is complete.
    let shaken = (0..20).find_map(|_| {
        let mut stream = connect(&redis, roots.clone());
        stream.write_all(b"PING\r\n").and_then(|()| stream.read_exact(&mut [0; 7])).ok()?;
        Some(stream)
    });
    let mut shaken = shaken.unwrap();
    let mut silent = redis.client();
    let mut slow = redis.client();
    slow.send_raw(&[22, 3, 1]).unwrap(); // the beginning of a handshake
    for stranger in [&mut silent, &mut slow] {
        let ended = stranger.stream.read_to_end(&mut Vec::new());
        assert!(!ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "it is closed");
    }
    shaken.write_all(b"PING\r\n").unwrap();
    shaken.read_exact(&mut [0; 7]).unwrap();
}

#[test]
fn files_that_hold_no_certificate_or_key_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let (files, _) = files(&dir);
    let start = |tls: TlsFiles| {
        let mut options = ServerOptions::default();
        options.listen = "127.0.0.1:0".parse().unwrap();
        options.tls = Some(tls);
        Server::start(Database::in_memory().unwrap(), options).unwrap_err()
    };
    let missing = TlsFiles { key: dir.path().join("missing.pem"), ..files.clone() };
    let swapped = TlsFiles { certificates: files.key.clone(), key: files.certificates.clone() };
    for (tls, named) in [(missing, "missing.pem"), (swapped, "key.pem")] {
        let error = start(tls);
        assert!(matches!(&error, ServerError::Tls { .. }) && error.to_string().contains(named), "{error}");
    }
}
