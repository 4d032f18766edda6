//! A minimal HTTP server for scrapers and health checks: one `GET` per connection.
//!
//! One thread serves all connections concurrently, so that a silent connection delays no other. There are at
//! most [`MAX_CONNECTIONS`], each for [`REQUEST_TIMEOUT`]. A further connection replaces the oldest.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longest request head, in bytes.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Time limit of a request and its response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum of concurrent connections.
const MAX_CONNECTIONS: usize = 64;
/// Pause after a failed accept, for instance if no descriptor is free.
const PAUSE: Duration = Duration::from_millis(10);

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) status: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
}

impl Page {
    pub(crate) fn plain(status: &'static str, body: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }

    fn encoded(&self) -> Vec<u8> {
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.status,
            self.content_type,
            self.body.len()
        );
        [head.as_bytes(), self.body.as_bytes()].concat()
    }
}

/// A connection: the partial request, then the partial response.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    deadline: Instant,
    head: Vec<u8>,
    answer: Option<Vec<u8>>,
    sent: usize,
}

impl Connection {
    fn wanted(&self) -> PollFlags {
        if self.answer.is_some() { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Reads and writes without blocking. Returns `true` if the connection continues.
    fn step(&mut self, page: &mut impl FnMut(&str) -> Option<Page>) -> io::Result<bool> {
        if self.answer.is_none() {
            let mut piece = [0; 1024];
            let count = match self.stream.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                count => count?,
            };
            self.head.extend_from_slice(&piece[..count]);
            self.answer = match asked(&self.head, count == 0) {
                Asked::More => return Ok(true),
                Asked::Path(path) => Some(page(&path).unwrap_or_else(no_page).encoded()),
                Asked::Wrong => Some(Page::plain("400 Bad Request", "only GET, in few lines\n").encoded()),
            };
        }
        let answer = self.answer.as_deref().unwrap_or_default();
        match self.stream.write(&answer[self.sent..]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            count => self.sent += count?,
        }
        Ok(self.sent < answer.len())
    }
}

fn no_page() -> Page {
    Page::plain("404 Not Found", "there are /metrics, /healthz and /livez\n")
}

/// Serves connections of `listener`, a non-blocking socket, with the responses of `page`, until `stopped` is
/// closed.
pub(crate) fn serve_all(
    listener: &TcpListener,
    stopped: &UnixStream,
    mut page: impl FnMut(&str) -> Option<Page>,
) {
    let mut connections: VecDeque<Connection> = VecDeque::new();
    loop {
        let (is_stopped, has_new, ready) = wait(listener, stopped, &connections);
        if is_stopped {
            return;
        }
        let (now, mut ready) = (Instant::now(), ready.into_iter());
        connections.retain_mut(|connection| {
            let is_ready = ready.next().unwrap_or_default();
            let goes_on = !is_ready || connection.step(&mut page).unwrap_or_default();
            goes_on && connection.deadline > now
        });
        if has_new && let Ok((stream, _)) = listener.accept() {
            if connections.len() >= MAX_CONNECTIONS {
                connections.pop_front();
            }
            if stream.set_nonblocking(true).is_ok() {
                let (deadline, head) = (now + REQUEST_TIMEOUT, Vec::new());
                connections.push_back(Connection { stream, deadline, head, answer: None, sent: 0 });
            }
        } else if has_new {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Waits for an event. Returns the stop flag, the flag of a new connection, and the connections with an
/// event.
fn wait(
    listener: &TcpListener,
    stopped: &UnixStream,
    connections: &VecDeque<Connection>,
) -> (bool, bool, Vec<bool>) {
    let own = [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
    let of_connections =
        connections.iter().map(|connection| PollFd::new(&connection.stream, connection.wanted()));
    let mut all: Vec<_> = own.into_iter().chain(of_connections).collect();
    // The oldest connection has the first deadline.
    let left = connections.front().map(|oldest| oldest.deadline.saturating_duration_since(Instant::now()));
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    if poll(&mut all, left.as_ref()).is_err() {
        return (false, false, Vec::new()); // interrupted by a signal
    }
    let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
    (is_ready(&all[1]), is_ready(&all[0]), all[2..].iter().map(is_ready).collect())
}

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// The request is incomplete.
    More,
    Path(String),
    /// The request is not supported.
    Wrong,
}

/// Parses the received part of a request.
fn asked(head: &[u8], is_end: bool) -> Asked {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => match (request.method, request.path) {
            (Some("GET"), Some(path)) => Asked::Path(path.split('?').next().unwrap_or_default().to_owned()),
            _ => Asked::Wrong,
        },
        Ok(httparse::Status::Partial) if !is_end && head.len() < MAX_HEAD_BYTES => Asked::More,
        _ => Asked::Wrong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_short_gets_are_answered() {
        let metrics = Asked::Path("/metrics".into());
        assert_eq!(asked(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n", false), metrics);
        assert_eq!(asked(b"POST /metrics HTTP/1.1\r\n\r\n", false), Asked::Wrong);
        assert_eq!(asked(b"GET /met", false), Asked::More);
        assert_eq!(asked(b"GET /met", true), Asked::Wrong);
        assert_eq!(asked(b"\0\xff", false), Asked::Wrong);
        let long = [b"GET / HTTP/1.1\r\na: ".as_slice(), &[b'b'; 20_000]].concat();
        assert_eq!(asked(&long, false), Asked::Wrong);
    }

    /// Silent connections do not delay others, and a connection beyond the maximum replaces the oldest.
    #[test]
    fn silent_connections_delay_no_client_and_beyond_the_limit_the_oldest_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("it listens");
        let (stopping, stopped) = UnixStream::pair().expect("a pair");
        let server = std::thread::spawn(move || {
            serve_all(&listener, &stopped, |path| Some(Page::plain("200 OK", path)));
        });
        let connect = || {
            let stream = TcpStream::connect(address).expect("it listens");
            stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a test that hangs fails instead");
            stream
        };
        let mut read = Vec::new();
        for _ in 0..3 {
            // More connections than the maximum, so the oldest are replaced.
            let silent: Vec<_> = (0..MAX_CONNECTIONS + 10).map(|_| connect()).collect();
            // On a busy machine the time limit of a connection may be over before its request.
            let has_answer = (0..20).any(|_| {
                let mut connection = connect();
                read.clear();
                let sent = connection.write_all(b"GET /healthz HTTP/1.1\r\n\r\n");
                sent.and_then(|()| connection.read_to_end(&mut read)).is_ok_and(|bytes| bytes > 0)
            });
            assert!(has_answer, "no answer");
            assert!(read.ends_with(b"\r\n\r\n/healthz"), "{}", String::from_utf8_lossy(&read));
            // The oldest connections were closed without a response.
            read.clear();
            assert!((&silent[0]).read_to_end(&mut read).is_err() || read.is_empty());
        }
        drop(stopping);
        server.join().expect("it stops");
    }
}
