//! A server on a Unix socket: the socket file, the users that may connect, and the file of a killed server.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use azekura::Database;
use azekura_server::{ListenAddress, Server, ServerError, ServerOptions};
use rustix::process::geteuid;
use rustix::thread::{Uid, set_thread_uid};
use tempfile::TempDir;

fn start(path: &Path) -> Result<Server, ServerError> {
    let mut options = ServerOptions::default();
    options.listen = ListenAddress::Unix(path.into());
    Server::start(Database::in_memory().unwrap(), options)
}

/// Sends a line, and returns the first line of the reply; empty if the server closes the connection.
fn ask(path: &Path, line: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    // The server may close the connection before it has read the line.
    let _ = stream.write_all(format!("{line}\r\n").as_bytes());
    let mut reply = String::new();
    let read = BufReader::new(stream).read_line(&mut reply);
    assert!(read.is_ok() || read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    reply
}

#[test]
fn clients_of_a_unix_socket_are_served_and_its_file_goes_with_the_server() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("redis.sock");
    let server = start(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(server.address().to_string(), format!("unix:{}", path.display()));

    let client = redis::Client::open(format!("redis+unix://{}", path.display())).unwrap();
    let mut connection = client.get_connection().unwrap();
    let value = vec![7; 100_000];
    redis::cmd("SET").arg("greeting").arg(&value).exec(&mut connection).unwrap();
    assert_eq!(redis::cmd("GET").arg("greeting").query::<Vec<u8>>(&mut connection).unwrap(), value);
    let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut connection).unwrap();
    let address = format!(" addr={0}:0 laddr={0}:0 ", path.display());
    assert!(list.contains(&address), "{list}");
    let unix: Vec<String> = redis::cmd("CONFIG").arg("GET").arg("unixsocket").query(&mut connection).unwrap();
    assert_eq!(unix, ["unixsocket", path.to_str().unwrap()]);

    server.stop().unwrap();
    assert!(!path.exists());
}

#[test]
fn the_socket_of_a_killed_server_is_replaced_and_nothing_else_is() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("redis.sock");
    // Dropping the listener leaves the file, as a killed process does.
    drop(UnixListener::bind(&path).unwrap());
    let server = start(&path).unwrap();
    assert_eq!(ask(&path, "PING"), "+PONG\r\n");

    let listen_error = |path: &Path| match start(path).unwrap_err() {
        ServerError::Listen { address, source } => (address, source.kind()),
        other => panic!("{other}"),
    };
    assert_eq!(listen_error(&path), (ListenAddress::Unix(path.clone()), ErrorKind::AddrInUse));
    let file = dir.path().join("file");
    fs::write(&file, "kept").unwrap();
    assert_eq!(listen_error(&file).1, ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&file).unwrap(), b"kept");
    assert_eq!(listen_error(&dir.path().join("none/redis.sock")).1, ErrorKind::NotFound);

    // A server does not remove the file of a later one.
    fs::remove_file(&path).unwrap();
    let later = start(&path).unwrap();
    server.stop().unwrap();
    assert_eq!(ask(&path, "PING"), "+PONG\r\n");
    later.stop().unwrap();
    assert!(!path.exists());
}

#[test]
fn another_user_is_refused_although_the_file_admits_it() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("redis.sock");
    let server = start(&path).unwrap();
    if geteuid().is_root() {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let path = path.clone();
        let other = std::thread::spawn(move || {
            // In Linux, each thread has its own user id.
            set_thread_uid(Uid::from_raw(65_534)).unwrap();
            ask(&path, "PING")
        });
        let refused = other.join().unwrap();
        assert!(refused.starts_with("-NOPERM "), "{refused}");
    }
    assert_eq!(ask(&path, "PING"), "+PONG\r\n");
    server.stop().unwrap();
}
