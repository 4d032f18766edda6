//! Malformed, oversized and slow input.

use std::io::{Read, Write};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::support::{Client, TestServer, encoded, info_number, seed, wait_until};

#[test]
fn an_invalid_request_gets_an_error_and_closes_only_its_connection() {
    let redis = TestServer::with(|options| {
        options.wire.max_bulk_bytes = 1000;
        options.wire.max_arguments = 100;
        options.wire.max_request_bytes = 5000;
    });
    let mut bystander = redis.client();
    let many_small = [b"*100\r\n".as_slice(), b"$100\r\n".as_slice()].concat();
    let long_line = vec![b'a'; 70_000];
    for (bytes, wanted) in [
        (b"*abc\r\n".as_slice(), "-ERR Protocol error: invalid multibulk length"),
        (b"*101\r\n", "-ERR Protocol error: invalid multibulk length: 101 arguments"),
        (b"*1\r\n$1001\r\n", "-ERR Protocol error: invalid bulk length: 1001 bytes"),
        (b"*1\r\n$-5\r\n", "-ERR Protocol error: invalid bulk length"),
        (b"*1\r\n*1\r\n$4\r\nPING\r\n", "-ERR Protocol error: expected '$', got '*'"),
        (b"*1\r\n$4\r\nPINGPONG", "-ERR Protocol error: an argument is not followed by CR LF"),
        (b"SET a \"b\r\n", "-ERR Protocol error: unbalanced quotes"),
        (&long_line, "-ERR Protocol error: a line of more than"),
    ] {
        let mut client = redis.client();
        // A request that was accepted before the malformed one gets its reply.
        client.send(&["PING"]);
        // The server may close the connection while the client writes.
        let _ = client.send_raw(bytes);
        assert_eq!(client.reply(), "PONG");
        let reply = client.reply();
        assert!(reply.starts_with(wanted), "{reply}");
        assert!(client.try_reply().is_err(), "the connection ends");
    }
    let mut client = redis.client();
    client.send_raw(&many_small).unwrap();
    let argument = [vec![b'x'; 100], b"\r\n$100\r\n".to_vec()].concat();
    let refused = (0..100).any(|_| client.send_raw(&argument).is_err())
        || client.reply().contains("more than 5000 bytes");
    assert!(refused);
    assert_eq!(bystander.ask("PING"), "PONG");
}

#[test]
fn random_bytes_never_end_the_server() {
    let mut rng = StdRng::seed_from_u64(seed("AZEKURA_REDIS_SERVER_SEED"));
    let redis = TestServer::open();
    let valid =
        [encoded(&["SET", "a", "1"]), encoded(&["MULTI"]), encoded(&["GET", "a"]), encoded(&["EXEC"])]
            .concat();
    for _ in 0..200 {
        let mut bytes = valid.clone();
        for _ in 0..rng.random_range(1..6) {
            let at = rng.random_range(0..bytes.len());
            match rng.random_range(0..3) {
                0 => bytes[at] = rng.random(),
                1 => bytes.insert(at, b"*$\r\n:-0129"[rng.random_range(0..10)]),
                _ => bytes.truncate(at.max(1)),
            }
        }
        let mut client = redis.client();
        let _ = client.send_raw(&bytes);
        let _ = client.stream.get_ref().shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        // The connection ends, possibly by a reset.
        let _ = client.stream.read_to_end(&mut rest);
    }
    assert_eq!(redis.client().ask("PING"), "PONG");
}

#[test]
fn a_request_that_comes_byte_by_byte_is_one_request() {
    let redis = TestServer::open();
    let mut client = redis.client();
    for byte in encoded(&["SET", "a", "slow"]) {
        client.send_raw(&[byte]).unwrap();
    }
    assert_eq!(client.reply(), "OK");
    assert_eq!(client.ask("GET a"), "slow");
}

#[test]
fn a_client_that_reads_no_replies_is_closed_and_delays_no_client() {
    let redis = TestServer::with(|options| options.write_timeout = Duration::from_millis(100));
    let mut client = redis.client();
    assert_eq!(client.ask(&format!("SET a {}", "x".repeat(1 << 20))), "OK");
    let requests = encoded(&["GET", "a"]).repeat(100);
    client.send_raw(&requests).unwrap();
    let mut other = redis.client();
    while other.ask("INFO clients").contains("connected_clients:2") {
        assert_eq!(other.ask("SET b 1"), "OK");
    }
}

#[test]
fn a_silent_client_is_closed_after_the_idle_timeout() {
    let redis = TestServer::with(|options| options.idle_timeout = Some(Duration::from_secs(1)));
    // On a busy machine the time may be over before the first request.
    let answered = (0..20).find_map(|_| {
        let mut client = redis.client();
        client.send_raw(&encoded(&["PING"])).ok()?;
        let reply = client.try_reply().ok()?;
        Some((client, reply))
    });
    let (mut client, reply) = answered.unwrap();
    assert_eq!(reply, "PONG");
    assert!(client.try_reply().is_err());
}

#[test]
fn a_connection_beyond_the_limit_gets_an_error_and_is_closed() {
    let redis = TestServer::with(|options| options.max_clients = 2);
    let (mut a, mut b) = (redis.client(), redis.client());
    assert_eq!(a.ask("PING"), "PONG");
    assert_eq!(b.ask("PING"), "PONG");
    let mut c = redis.client();
    assert_eq!(c.reply(), "-ERR max number of clients reached");
    assert!(c.try_reply().is_err());
    drop(b);
    // A connection is accepted again after the server has noticed the disconnection.
    loop {
        let mut d = redis.client();
        d.stream.get_mut().write_all(&encoded(&["PING"])).unwrap();
        if d.try_reply().is_ok_and(|reply| reply == "PONG") {
            break;
        }
    }
}

#[test]
fn unfinished_requests_of_all_connections_together_are_bounded() {
    const BYTES: usize = 1 << 20;
    let redis = TestServer::with(|options| options.max_unfinished_bytes = 8 * BYTES);
    let (mut observer, value) = (redis.client(), vec![b'x'; BYTES]);
    let head = format!("*2\r\n$4\r\nECHO\r\n${BYTES}\r\n");
    let mut clients: Vec<_> = (0..16).map(|_| redis.client()).collect();
    for client in &mut clients {
        let before = info_number(&mut observer, "total_net_input_bytes");
        // The server may close a refused connection before the client has sent everything.
        let _ = client.send_raw(head.as_bytes());
        let _ = client.send_raw(&value[..BYTES - 1000]);
        // Waits until the server has read everything, or has refused the request.
        client.stream.get_ref().set_nonblocking(true).unwrap();
        let is_refused = |client: &Client| match client.stream.get_ref().peek(&mut [0]) {
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
            Ok(_) => true,
        };
        while info_number(&mut observer, "total_net_input_bytes") < before + (BYTES - 1000) as u64
            && !is_refused(client)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        client.stream.get_ref().set_nonblocking(false).unwrap();
    }
    let mut refused = 0;
    for client in &mut clients {
        let _ = client.send_raw(&value[BYTES - 1000..]);
        let _ = client.send_raw(b"\r\n");
        match client.try_reply() {
            Ok(reply) if reply.starts_with("-ERR the unfinished requests") => refused += 1,
            Ok(reply) => assert!(reply.as_bytes() == value, "{} bytes", reply.len()),
            // The server closed the connection with unread input, so the reset discarded the reply.
            Err(_) => refused += 1,
        }
    }
    // Each connection holds a buffer of 1 to 2 MiB.
    assert!((8..16).contains(&refused), "{refused} of 16 refused");
    // All memory has been released. The queue of `MULTI` counts too.
    let mut client = redis.client();
    assert_eq!(client.ask_raw(&[&b"ECHO"[..], &value]).len(), BYTES);
    assert_eq!(client.ask("MULTI"), "OK");
    let (request, mut queued) = (encoded(&[&b"ECHO"[..], &value]), 0);
    while client.send_raw(&request).is_ok() && client.try_reply().is_ok_and(|reply| reply == "QUEUED") {
        queued += 1;
    }
    assert!((4..=8).contains(&queued), "{queued} queued");
}

#[test]
fn watched_keys_count_as_unfinished() {
    let redis = TestServer::with(|options| options.max_unfinished_bytes = 4 << 20);
    let mut client = redis.client();
    let key = |i: usize| format!("{i:01000}");
    let watch = |keys: std::ops::Range<usize>| {
        let words: Vec<_> = std::iter::once("WATCH".to_owned()).chain(keys.map(key)).collect();
        encoded(&words)
    };
    client.send_raw(&watch(0..1000)).unwrap();
    assert_eq!(client.reply(), "OK");
    assert_eq!(client.ask("UNWATCH"), "OK");
    client.send_raw(&watch(0..1000)).unwrap();
    assert_eq!(client.reply(), "OK");
    let _ = client.send_raw(&watch(1000..3000));
    while client.try_reply().is_ok_and(|reply| !reply.starts_with("-ERR the unfinished requests")) {}
    assert!(client.try_reply().is_err(), "the connection ends");
}

/// The client sends its whole request before it reads, so the server must not close the connection before.
#[test]
fn the_error_for_a_value_that_is_too_large_reaches_its_client() {
    let redis = TestServer::with(|options| options.wire.max_bulk_bytes = 1 << 20);
    let value = vec![b'x'; 8 << 20];
    for _ in 0..3 {
        let mut client = redis.client();
        client.send(&[b"SET".as_slice(), b"a", &value]);
        let reply = client.reply();
        assert!(reply.contains("invalid bulk length: 8388608 bytes, 1048576 are allowed"), "{reply}");
        assert!(client.try_reply().is_err(), "the connection ends");
    }
    let mut client = redis.client();
    while !client.ask("INFO clients").contains("connected_clients:1\r\n") {
        std::thread::yield_now();
    }
    assert_eq!(client.ask("EXISTS a"), ":0");
}

/// Clients request large values and do not read the replies.
#[test]
fn unsent_replies_of_all_clients_together_are_limited() {
    const BYTES: usize = 15 << 20;
    const LIMIT: u64 = 32 << 20;
    let redis = TestServer::with(|options| options.max_unfinished_bytes = LIMIT as usize);
    let mut client = redis.client();
    assert_eq!(client.ask_raw(&[&b"SET"[..], b"large", &vec![b'x'; BYTES]]), "OK");
    let mut slow: Vec<_> = (0..10).map(|_| redis.client()).collect();
    for client in &mut slow {
        client.send(&["GET", "large"]);
    }
    // Requests of the others run after slow clients were disconnected.
    let unsent = |client: &mut Client| {
        let info = client.ask("INFO clients");
        let line = info.lines().find_map(|line| line.strip_prefix("unsent_reply_bytes:")).unwrap();
        line.parse::<u64>().unwrap()
    };
    while !client.ask("INFO commandstats").contains("cmdstat_get:calls=10,") {
        std::thread::yield_now();
    }
    assert!(unsent(&mut client) <= LIMIT + BYTES as u64);
    let replies: Vec<_> = slow.iter_mut().map(|client| client.try_reply()).collect();
    let cut = replies.iter().filter(|reply| reply.is_err()).count();
    assert!(replies.iter().flatten().all(|reply| reply.len() == BYTES));
    // The socket of each client takes some MiB.
    assert!((3..=9).contains(&cut), "{cut} of 10 disconnected");
    drop(slow);
    while unsent(&mut client) > 0 {
        std::thread::yield_now();
    }
}

/// Clients that stop in the middle of a large request hold memory that other requests need.
#[test]
fn stalled_requests_are_closed_when_others_need_their_memory() {
    const BYTES: usize = 1 << 20;
    let redis = TestServer::with(|options| options.max_unfinished_bytes = 8 * BYTES);
    let value = vec![b'x'; BYTES];
    let mut client = redis.client();
    let mut stalled: Vec<_> = (0..3).map(|_| redis.client()).collect();
    let before = info_number(&mut client, "total_net_input_bytes");
    for client in &mut stalled {
        client.send_raw(format!("*2\r\n$4\r\nECHO\r\n${BYTES}\r\n").as_bytes()).unwrap();
        client.send_raw(&value[1..]).unwrap();
    }
    while info_number(&mut client, "total_net_input_bytes") < before + 3 * BYTES as u64 {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(1100));
    // A queue of this client, which is active, needs the memory of all of them.
    assert_eq!(client.ask("MULTI"), "OK");
    for _ in 0..6 {
        assert_eq!(client.ask_raw(&[&b"ECHO"[..], &value]), "QUEUED");
    }
    assert!(client.ask("EXEC").starts_with("[xxx"));
    let closed = stalled.iter_mut().filter_map(|client| client.try_reply().err()).count();
    assert_eq!(closed, 3);
}

/// Returns the timer of the server's socket for a client, as the kernel shows it: 2 is the timer of probes.
fn timer_of(client: &Client) -> Option<String> {
    let stream = client.stream.get_ref();
    let [server, own] =
        [stream.peer_addr(), stream.local_addr()].map(|at| format!(":{:04X}", at.unwrap().port()));
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    sockets.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let is_it = fields[1].ends_with(&server) && fields[2].ends_with(&own);
        is_it.then(|| fields[5][..2].to_owned())
    })
}

#[test]
fn silent_tcp_clients_are_probed_unless_disabled() {
    for (keepalive, timer) in [(Some(Duration::from_secs(300)), "02"), (None, "00")] {
        let redis = TestServer::with(|options| options.tcp_keepalive = keepalive);
        let mut client = redis.client();
        assert_eq!(client.ask("PING"), "PONG");
        let seconds = keepalive.map_or(0, |time| time.as_secs());
        assert_eq!(client.ask("CONFIG GET tcp-keepalive"), format!("[tcp-keepalive {seconds}]"));
        wait_until("the timer", || timer_of(&client).is_some_and(|shown| shown == timer));
    }
}
