//! A server for one test, and a client that returns replies as text.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use azekura::Database;
use azekura_server::{Clock, Server, ServerOptions};

/// Initial time of the clock of a test.
pub(crate) const BEGAN_MS: u64 = 1_700_000_000_000;

/// A server over a store in memory, with a clock that only the test advances.
pub(crate) struct TestServer {
    pub(crate) server: Server,
    pub(crate) db: Database,
    now_ms: Arc<AtomicU64>,
}

impl TestServer {
    pub(crate) fn open() -> Self {
        Self::with(|_| ())
    }

    pub(crate) fn with(change: impl FnOnce(&mut ServerOptions)) -> Self {
        Self::over(Database::in_memory().unwrap(), change)
    }

    pub(crate) fn over(db: Database, change: impl FnOnce(&mut ServerOptions)) -> Self {
        let now_ms = Arc::new(AtomicU64::new(BEGAN_MS));
        let mut options = ServerOptions::default();
        options.listen = "127.0.0.1:0".parse().unwrap();
        options.clock = Clock::Manual(Arc::clone(&now_ms));
        options.adapts_reactors = false; // all reactors are in use, to test their interaction
        // A busy machine may stop a thread of a test for seconds between two requests.
        options.transaction_timeout = Duration::from_secs(600);
        options.login_timeout = Duration::from_secs(600);
        change(&mut options);
        Self { server: Server::start(db.clone(), options).unwrap(), db, now_ms }
    }

    pub(crate) fn pass_ms(&self, ms: u64) {
        self.now_ms.fetch_add(ms, Relaxed);
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(TcpStream::connect(self.server.address().tcp().unwrap()).unwrap())
    }
}

/// A client that parses replies itself. It shows text unchanged, numbers as `:1`, nil as `nil`, errors as
/// `-CODE …`, and arrays as `[a b]`.
pub(crate) struct Client {
    pub(crate) stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn new(stream: TcpStream) -> Self {
        // Time limit, so that a hanging test fails.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn send<A: AsRef<[u8]>>(&mut self, arguments: &[A]) {
        let bytes = encoded(arguments);
        self.stream.get_mut().write_all(&bytes).unwrap();
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Returns the next reply, as text.
    pub(crate) fn reply(&mut self) -> String {
        self.try_reply().unwrap()
    }

    pub(crate) fn try_reply(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.strip_suffix("\r\n").unwrap();
        let (kind, rest) = line.split_at(1);
        Ok(match kind {
            "+" => rest.to_owned(),
            "-" | ":" => line.to_owned(),
            "_" => "nil".to_owned(),
            "$" if rest == "-1" => "nil".to_owned(),
            "*" if rest == "-1" => "nil-array".to_owned(),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                String::from_utf8_lossy(&bytes).into_owned()
            }
            "=" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.stream.read_exact(&mut bytes)?;
                let text = String::from_utf8(bytes).unwrap();
                text.strip_prefix("txt:").unwrap().strip_suffix("\r\n").unwrap().to_owned()
            }
            "*" | "~" | "%" => {
                let count = rest.parse::<usize>().unwrap() * if kind == "%" { 2 } else { 1 };
                let items: std::io::Result<Vec<String>> = (0..count).map(|_| self.try_reply()).collect();
                format!("[{}]", items?.join(" "))
            }
            _ => panic!("no reply: {line:?}"),
        })
    }

    /// Sends the words of a request and returns the reply.
    pub(crate) fn ask(&mut self, words: &str) -> String {
        self.send(&words.split(' ').collect::<Vec<_>>());
        self.reply()
    }

    /// Sends a request with arbitrary bytes as arguments and returns the reply.
    pub(crate) fn ask_raw<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> String {
        self.send(arguments);
        self.reply()
    }
}

pub(crate) fn encoded<A: AsRef<[u8]>>(arguments: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend_from_slice(format!("${}\r\n", argument.as_ref().len()).as_bytes());
        bytes.extend_from_slice(argument.as_ref());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Waits up to two minutes until `is_so` returns `true`.
pub(crate) fn wait_until(event: &str, mut is_so: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < limit, "not within two minutes: {event}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the server's response to a request on its HTTP port, including the head. The server closes a
/// connection without a request after two seconds. A busy machine may delay the request for longer, so it is
/// repeated until there is a response.
pub(crate) fn http_response(address: SocketAddr, request: &str) -> String {
    let mut text = String::new();
    wait_until("a response on the HTTP port", || {
        text.clear();
        let mut stream = TcpStream::connect(address).unwrap();
        let sent = stream.write_all(request.as_bytes());
        sent.and_then(|()| stream.read_to_string(&mut text)).is_ok() && !text.is_empty()
    });
    text
}

/// Returns a number from the reply to `INFO stats`.
pub(crate) fn info_number(client: &mut Client, name: &str) -> u64 {
    let info = client.ask("INFO stats");
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.parse().unwrap()
}

/// Returns the seed of a random test: from the environment, or a new one. Prints it.
pub(crate) fn seed(variable: &str) -> u64 {
    let seed = std::env::var(variable).ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    println!("{variable}={seed}");
    seed
}

/// Runs two interactive transactions that lock one key each and then request the other's key. One of them is
/// rolled back, and its later command on the key `later` does not run alone. The other one commits.
pub(crate) fn deadlock((mut a, of_a): (Client, &str), (mut b, of_b): (Client, &str), later: &str) {
    for (client, key) in [(&mut a, of_a), (&mut b, of_b)] {
        assert_eq!(client.ask("AZ.BEGIN"), "OK");
        assert_eq!(client.ask(&format!("SET {key} 1")), "OK");
    }
    a.send(&["SET", of_b, "2"]);
    b.send(&["SET", of_a, "2"]);
    let ends = |client: &mut Client| {
        (client.reply(), client.ask(&format!("SET {later} 1")), client.ask("AZ.COMMIT"))
    };
    let replies = std::thread::scope(|scope| {
        // The rollback of one transaction lets the other one continue.
        let b = scope.spawn(|| ends(&mut b));
        [ends(&mut a), b.join().unwrap()]
    });
    let lost: Vec<_> = replies.iter().filter(|(first, ..)| first.starts_with("-RETRY")).collect();
    let won = replies.iter().filter(|all| **all == ("OK".into(), "OK".into(), "OK".into())).count();
    assert_eq!((lost.len(), won), (1, 1), "{replies:?}");
    assert!(lost[0].1.starts_with("-RETRY") && lost[0].2.starts_with("-RETRY"), "{replies:?}");
}
