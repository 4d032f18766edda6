//! Passwords, and limits for clients that are not logged in.

use azekura::Database;
use azekura_server::{Password, Server, ServerError, ServerOptions};

use crate::support::{Client, TestServer};

fn locked() -> TestServer {
    TestServer::with(|options| options.password = Some(Password::new(b"secret\n").unwrap()))
}

#[test]
fn no_command_runs_before_the_password() {
    let redis = locked();
    let mut client = redis.client();
    for request in [
        "GET a",
        "SET a 1",
        "PING",
        "INFO",
        "MULTI",
        "AZ.BEGIN",
        "CONFIG GET *",
        "COMMAND",
        "NOSUCH",
        "HELLO 3",
    ] {
        assert!(client.ask(request).starts_with("-NOAUTH"), "{request}");
    }
    assert!(client.ask("AUTH wrong").starts_with("-WRONGPASS"));
    assert!(client.ask("AUTH admin secret").starts_with("-WRONGPASS"));
    assert_eq!(client.ask("AUTH secret"), "OK");
    assert_eq!(client.ask("SET a 1"), "OK");
    assert_eq!(client.ask("RESET"), "RESET");
    assert!(client.ask("GET a").starts_with("-NOAUTH"));
    // A refused request does not log in.
    assert!(client.ask("HELLO 3 AUTH default secret FOO").starts_with("-ERR Syntax error in HELLO"));
    assert!(client.ask("GET a").starts_with("-NOAUTH"));
    assert!(client.ask("HELLO 3 AUTH default secret SETNAME me").starts_with("[server azekura"));
    assert_eq!(client.ask("GET a"), "1");
    assert_eq!(redis.client().ask("QUIT"), "OK");
}

#[test]
fn a_connection_that_shows_no_password_in_time_is_closed_and_others_stay() {
    let redis = TestServer::with(|options| {
        options.password = Some(Password::new(b"secret").unwrap());
        options.login_timeout = std::time::Duration::from_millis(300);
    });
    // On a busy machine the time may be over before the first request.
    let in_time = |request: &str| {
        let answered = (0..20).find_map(|_| {
            let mut client = redis.client();
            client.send_raw(format!("{request}\r\n").as_bytes()).ok()?;
            let reply = client.try_reply().ok()?;
            Some((client, reply))
        });
        answered.unwrap()
    };
    let (mut member, reply) = in_time("AUTH secret");
    assert_eq!(reply, "OK");
    let mut silent = redis.client();
    let (mut talking, reply) = in_time("PING");
    assert!(reply.starts_with("-NOAUTH"), "{reply}");
    assert!(silent.try_reply().is_err());
    assert!(talking.try_reply().is_err());
    assert_eq!(member.ask("PING"), "PONG");
    // After `RESET` the client counts as not logged in.
    assert_eq!(member.ask("RESET"), "RESET");
    assert!(member.try_reply().is_err());
}

#[test]
fn wrong_passwords_are_limited_per_connection() {
    let redis = locked();
    let mut client = redis.client();
    for _ in 0..10 {
        assert!(client.ask("AUTH guess").starts_with("-WRONGPASS"));
    }
    assert!(client.try_reply().is_err());
}

#[test]
fn before_the_password_only_little_is_read() {
    let redis = locked();
    let mut client = redis.client();
    client.send_raw(b"*2\r\n$4\r\nAUTH\r\n$100000\r\n").unwrap();
    assert!(client.reply().contains("invalid bulk length: 100000 bytes"));
    let mut client: Client = redis.client();
    client.send_raw(b"*1000\r\n").unwrap();
    assert!(client.reply().contains("1000 arguments"));
}

#[test]
fn a_public_address_without_a_password_is_refused() {
    let mut options = ServerOptions::default();
    options.listen = "0.0.0.0:0".parse().unwrap();
    let refused = Server::start(Database::in_memory().unwrap(), options).unwrap_err();
    assert!(matches!(refused, ServerError::PublicWithoutPassword(_)), "{refused}");
    assert!(refused.to_string().contains("--auth"));
}

/// A web page can make a browser send an HTTP request to a local port, with commands in its body.
#[test]
fn an_http_request_ends_its_connection_before_the_body() {
    let redis = TestServer::open();
    let mut client = redis.client();
    assert_eq!(client.ask("SET a 1"), "OK");
    for head in ["POST / HTTP/1.1\r\n", "PUT / HTTP/1.1\r\nhost: localhost:6379\r\n"] {
        let mut browser = redis.client();
        browser.send_raw(format!("{head}\r\nFLUSHALL\r\n").as_bytes()).unwrap();
        let mut replies = Vec::new();
        while let Ok(reply) = browser.try_reply() {
            replies.push(reply);
        }
        assert!(replies.iter().all(|reply| reply.starts_with("-ERR")), "{replies:?}");
    }
    assert_eq!(client.ask("GET a"), "1");
}
