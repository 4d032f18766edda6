//! Upper limit of any server on this machine: a client that uses as little processor time as possible, and a
//! server that does nothing.
//!
//! `light load ADDRESS --requests 100000 --clients 50 --pipeline 1` sends `SET` with new keys, one pipeline
//! at a time on each connection, and prints the number of replies per second. It uses one thread. Each
//! connection is registered once, so a request costs one read, one write and its share of a poll.
//! (`redis-benchmark` makes two more system calls for each request.)
//!
//! `light nothing ADDRESS` replies `+OK` to all input at once: no store, no log, no device. No server with
//! the same system calls can be faster. It counts each `*` as a request, so keys and values must not contain
//! `*`. It ends when its standard input ends.

use std::io::{self, ErrorKind, Read, Write};
use std::time::Instant;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["nothing", address] => nothing(address),
        ["load", address, options @ ..] => {
            let mut load = Load { requests: 100_000, clients: 50, pipeline: 1 };
            for option in options.chunks(2) {
                match option {
                    ["--requests", count] => load.requests = count.parse()?,
                    ["--clients", count] => load.clients = count.parse()?,
                    ["--pipeline", count] => load.pipeline = count.parse()?,
                    _ => return Err(format!("no option {option:?}").into()),
                }
            }
            println!("{:.0}", load.run(address)?);
            Ok(())
        }
        _ => Err(
            "usage: light load ADDRESS [--requests N] [--clients N] [--pipeline N] | light nothing ADDRESS"
                .into(),
        ),
    }
}

struct Load {
    requests: usize,
    clients: usize,
    pipeline: usize,
}

/// A connection of the load generator, and the number of replies to receive before it sends again.
struct Client {
    socket: TcpStream,
    expected: usize,
}

impl Load {
    /// Returns the number of replies per second.
    fn run(&self, address: &str) -> Outcome<f64> {
        let mut poll = Poll::new()?;
        let mut clients = Vec::new();
        for number in 0..self.clients {
            let socket = std::net::TcpStream::connect(address)?;
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
            let mut socket = TcpStream::from_std(socket);
            poll.registry().register(&mut socket, Token(number), Interest::READABLE)?;
            clients.push(Client { socket, expected: 0 });
        }
        let mut keys = Keys(0x9e37_79b9_7f4a_7c15);
        let (mut sent, mut answered) = (0, 0);
        let begun = Instant::now();
        for client in &mut clients {
            sent += self.send(client, &mut keys, sent)?;
        }
        let (mut events, mut replies) = (Events::with_capacity(1024), [0; 16 << 10]);
        while answered < self.requests {
            poll.poll(&mut events, None)?;
            for event in &events {
                let client = &mut clients[event.token().0];
                // A read that does not fill the buffer has emptied the socket: the next event comes with the
                // next bytes.
                let count = match client.socket.read(&mut replies) {
                    Ok(0) => return Err("the server ended a connection".into()),
                    Ok(count) => count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                    Err(error) => return Err(error.into()),
                };
                let done = acknowledged(&replies[..count])?;
                (client.expected, answered) = (client.expected - done, answered + done);
                if client.expected == 0 {
                    sent += self.send(client, &mut keys, sent)?;
                }
            }
        }
        Ok(answered as f64 / begun.elapsed().as_secs_f64())
    }

    /// Sends a pipeline of the remaining requests. Returns their number.
    fn send(&self, client: &mut Client, keys: &mut Keys, sent: usize) -> Outcome<usize> {
        client.expected = self.pipeline.min(self.requests - sent);
        let mut bytes = Vec::with_capacity(64 * client.expected);
        for _ in 0..client.expected {
            write!(bytes, "*3\r\n$3\r\nSET\r\n$16\r\nkey:{:012}\r\n$3\r\nxxx\r\n", keys.next())?;
        }
        let count = if bytes.is_empty() { 0 } else { client.socket.write(&bytes)? };
        if count < bytes.len() {
            return Err("pipelines are too long for the socket's buffer".into());
        }
        Ok(client.expected)
    }
}

/// Counts the replies in these bytes, all of which must be `+OK`. Only line ends are counted, because a reply
/// may be split over two reads.
fn acknowledged(replies: &[u8]) -> Outcome<usize> {
    if replies.iter().any(|byte| !b"+OK\r\n".contains(byte)) {
        return Err(format!("answered: {}", String::from_utf8_lossy(replies)).into());
    }
    Ok(replies.iter().filter(|&&byte| byte == b'\n').count())
}

/// A sequence of random numbers below a million (xorshift).
struct Keys(u64);

impl Keys {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % 1_000_000
    }
}

/// Replies to all input with `+OK`.
fn nothing(address: &str) -> Outcome<()> {
    const LISTENER: Token = Token(usize::MAX);
    let (mut poll, mut listener) = (Poll::new()?, TcpListener::bind(address.parse()?)?);
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    println!("serving on {}", listener.local_addr()?);
    std::thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let mut clients: Vec<TcpStream> = Vec::new();
    let (mut events, mut requests) = (Events::with_capacity(1024), [0; 16 << 10]);
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut socket, _)) = listener.accept() {
                    socket.set_nodelay(true)?;
                    poll.registry().register(&mut socket, Token(clients.len()), Interest::READABLE)?;
                    clients.push(socket);
                }
                continue;
            }
            let socket = &mut clients[event.token().0];
            while let Ok(count @ 1..) = socket.read(&mut requests) {
                let arrived = requests[..count].iter().filter(|&&byte| byte == b'*').count();
                // A client that accepts no replies has disconnected.
                let _ = socket.write(&b"+OK\r\n".repeat(arrived));
                if count < requests.len() {
                    break;
                }
            }
        }
    }
}
