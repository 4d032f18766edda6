//! One memory server: a writer and a reader thread, many requests in flight.
//!
//! `submit` puts an order into one of two queues (pages that somebody waits for go before pages that leave); the writer sends
//! while fewer than `WINDOW` are unanswered; the reader finds the order by its reply's tag and receives straight into its frame.
//!
//! The reader is also the one that notices a lost server, whatever way it is lost: the stream ends, the oldest request is unanswered
//! while nothing has come for `stall`, a reply is no frame, or a page is not what it was when it left. It then closes
//! the stream, waits for the writer to be gone (so nobody reads a frame any more, KEEPER-2), and gives all orders back.

use super::{Keeper, Order, Sink, Verb};
use crate::digest::Digest;
use crate::wire::auth::{self, AuthError, AuthKey};
use crate::wire::{HEADER, Header, Kind, Open, Opened};
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Requests that may be unanswered at once.
const WINDOW: usize = 32;
/// An idle connection is asked so often whether it is there.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A request that is unanswered for so many times `stall` has failed, even if other bytes come.
const PATIENCE: u32 = 4;

/// How to speak with servers.
#[derive(Clone, Debug)]
pub(crate) struct Manner {
    pub(crate) page_bytes: u32,
    pub(crate) reserve_bytes: u64,
    pub(crate) stall: Duration,
    pub(crate) key: Option<AuthKey>,
    /// The session whose pages this one begins with; 0 for none.
    pub(crate) like: u128,
}

/// Why a server could not be won.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No connection.
    #[error("connect to memory server {server}")]
    Connect {
        /// As it was given.
        server: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The handshake failed.
    #[error("memory server {server}")]
    Auth {
        /// As it was given.
        server: String,
        /// Why.
        source: AuthError,
    },
    /// It has no room, or answers nonsense.
    #[error("memory server {server} refuses: {why}")]
    Refused {
        /// As it was given.
        server: String,
        /// What it says.
        why: String,
    },
}

#[derive(Debug, Default)]
struct Queues {
    urgent: VecDeque<Order>,
    bulk: VecDeque<Bulk>,
    pending: HashMap<u64, Pending>,
    next_tag: u64,
    /// The request that the writer is sending.
    writing: Option<u64>,
    closed: bool,
}

#[derive(Debug)]
enum Bulk {
    Put(Order),
    Free(u32),
    Ping,
}

#[derive(Debug)]
struct Pending {
    /// None: a ping.
    order: Option<Order>,
    since: Instant,
}

struct Shared {
    name: String,
    index: usize,
    stall: Duration,
    /// How a child process begins with these pages.
    manner: Manner,
    stream: TcpStream,
    queues: Mutex<Queues>,
    /// Something was queued, answered or closed.
    moved: Condvar,
    sink: Weak<dyn Sink>,
}

/// A memory server that pages go to.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    reader: Mutex<Option<JoinHandle<()>>>,
}

impl Connection {
    /// Connects, shows the key, reserves room.
    pub(crate) fn connect(
        server: &str,
        index: usize,
        manner: &Manner,
        sink: Weak<dyn Sink>,
    ) -> Result<Self, ConnectError> {
        let failed = |source| ConnectError::Connect { server: server.into(), source };
        Self::begin(dial(server, manner.stall).map_err(failed)?, server, index, manner, sink)
    }

    /// The same with the address known.
    fn connect_to(
        peer: SocketAddr,
        server: &str,
        index: usize,
        manner: &Manner,
        sink: Weak<dyn Sink>,
    ) -> Result<Self, ConnectError> {
        let failed = |source| ConnectError::Connect { server: server.into(), source };
        let stream = TcpStream::connect_timeout(&peer, manner.stall).map_err(failed)?;
        Self::begin(stream, server, index, manner, sink)
    }

    fn begin(
        mut stream: TcpStream,
        server: &str,
        index: usize,
        manner: &Manner,
        sink: Weak<dyn Sink>,
    ) -> Result<Self, ConnectError> {
        let failed = |source| ConnectError::Connect { server: server.into(), source };
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(manner.stall)).map_err(failed)?;
        stream.set_write_timeout(Some(manner.stall)).map_err(failed)?;
        auth::introduce(&mut stream, manner.key.as_ref())
            .map_err(|source| ConnectError::Auth { server: server.into(), source })?;
        let Manner { page_bytes, reserve_bytes, like, .. } = *manner;
        let open = Open { page_bytes, reserve_bytes, like }.encode();
        stream.write_all(&Header::with(Kind::Open, 0, 0, &open).encode()).map_err(failed)?;
        stream.write_all(&open).map_err(failed)?;
        let Opened { session, .. } = opened(&mut stream)
            .map_err(failed)?
            .map_err(|why| ConnectError::Refused { server: server.into(), why })?;
        stream.set_read_timeout(Some(Duration::from_millis(200).min(manner.stall))).map_err(failed)?;
        let shared = Arc::new(Shared {
            name: server.into(),
            index,
            stall: manner.stall,
            manner: Manner { like: session, ..manner.clone() },
            stream,
            queues: Mutex::default(),
            moved: Condvar::new(),
            sink,
        });
        let writing = Arc::clone(&shared);
        let writer = thread::Builder::new()
            .name("far-writer".into())
            .spawn(move || writing.write())
            .map_err(failed)?;
        let reading = Arc::clone(&shared);
        let reader = thread::Builder::new()
            .name("far-reader".into())
            .spawn(move || reading.read_until_lost(writer))
            .map_err(failed)?;
        Ok(Self { shared, reader: Mutex::new(Some(reader)) })
    }
}

fn dial(server: &str, stall: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name stands for no address");
    for address in server.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, stall) {
            // On this machine, a port where nobody listens can connect to itself.
            Ok(stream) if stream.local_addr()? == address => {
                last = io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens there");
            }
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The answer to `Open`; the inner error is the server's own words.
fn opened(stream: &mut TcpStream) -> io::Result<Result<Opened, String>> {
    let mut head = [0; HEADER];
    stream.read_exact(&mut head)?;
    let header = match Header::decode(&head) {
        Ok(header) if header.length <= 4096 => header,
        Ok(header) => return Ok(Err(format!("a first answer of {} bytes", header.length))),
        Err(error) => return Ok(Err(error.to_string())),
    };
    let mut payload = vec![0; header.length as usize];
    stream.read_exact(&mut payload)?;
    Ok(match (header.check(&payload), header.kind) {
        (Err(error), _) => Err(error.to_string()),
        (Ok(()), Kind::Opened) => Opened::decode(&payload).map_err(|error| error.to_string()),
        (Ok(()), Kind::Refused) => Err(String::from_utf8_lossy(&payload).into_owned()),
        (Ok(()), kind) => Err(format!("a first answer of kind {kind:?}")),
    })
}

impl Keeper for Connection {
    fn submit(&self, order: Order) -> Result<(), Order> {
        let mut queues = self.shared.lock();
        if queues.closed {
            return Err(order);
        }
        match order.verb {
            Verb::Get => queues.urgent.push_back(order),
            Verb::Put => queues.bulk.push_back(Bulk::Put(order)),
        }
        drop(queues);
        self.shared.moved.notify_all();
        Ok(())
    }

    fn forget(&self, page: u32) {
        let mut queues = self.shared.lock();
        if !queues.closed {
            queues.bulk.push_back(Bulk::Free(page));
            drop(queues);
            self.shared.moved.notify_all();
        }
    }

    fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }

    fn name(&self) -> &str {
        &self.shared.name
    }

    fn for_child(&self, sink: Weak<dyn Sink>) -> Result<Arc<dyn Keeper>, String> {
        // By number: looking a name up takes locks that a thread of the parent may have held when it forked.
        let peer = self.shared.stream.peer_addr().map_err(|error| error.to_string())?;
        let manner = Manner { reserve_bytes: 0, ..self.shared.manner.clone() };
        self.abandon();
        let connection = Self::connect_to(peer, &self.shared.name, self.shared.index, &manner, sink)
            .map_err(|error| error.to_string())?;
        Ok(Arc::new(connection))
    }

    fn abandon(&self) {
        // SAFETY: our copy of the parent's, whose objects are not dropped in a child. The server is to see when the parent goes.
        unsafe {
            libc::close(self.shared.stream.as_raw_fd());
        }
    }

    fn close(&self) {
        self.shared.shut();
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(reader) = reader
            && reader.thread().id() != thread::current().id()
        {
            let _ = reader.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shut(&self) {
        self.lock().closed = true;
        self.moved.notify_all();
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// The writer: until the connection is closed or cannot be written.
    fn write(&self) {
        while let Some((header, at)) = self.next() {
            let payload = at.map_or(&[][..], |Source(at, bytes)| {
                // SAFETY: KEEPER-1: the order does not come back before this thread has sent it (`sent`) or has ended.
                unsafe { std::slice::from_raw_parts(at, bytes) }
            });
            if send(&self.stream, &header, payload).is_err() {
                // The reader finds out why, or that nobody answers.
                let _ = self.stream.shutdown(Shutdown::Both);
                break;
            }
        }
        self.lock().writing = None;
        self.moved.notify_all();
    }

    /// Waits until the writer is done with a request: a server that answers before it can have been asked must not make us reuse a frame that
    /// is being read.
    fn sent(&self, tag: u64) -> Result<(), String> {
        let (queues, waited) = self
            .moved
            .wait_timeout_while(self.lock(), self.stall, |queues| queues.writing == Some(tag))
            .unwrap_or_else(PoisonError::into_inner);
        drop(queues);
        if waited.timed_out() { Err("it answers before it was asked".into()) } else { Ok(()) }
    }

    /// What to send next; it counts as unanswered from here on.
    fn next(&self) -> Option<(Header, Option<Source>)> {
        let mut queues = self.lock();
        if queues.writing.take().is_some() {
            self.moved.notify_all();
        }
        loop {
            if queues.closed {
                return None;
            }
            let tag = queues.next_tag;
            if queues.pending.len() < WINDOW {
                let next = match queues.urgent.pop_front() {
                    Some(order) => Some((Header::bare(Kind::Get, tag, order.page.into()), None, Some(order))),
                    None => queues.bulk.pop_front().map(|bulk| bulk.frame(tag)),
                };
                if let Some((header, source, order)) = next {
                    queues.next_tag += 1;
                    queues.writing = Some(tag);
                    if header.kind != Kind::Free {
                        queues.pending.insert(tag, Pending { order, since: Instant::now() });
                    }
                    return Some((header, source));
                }
            }
            queues = self.moved.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The reader.
    fn read_until_lost(&self, writer: JoinHandle<()>) {
        let why = loop {
            if let Err(why) = self.reply() {
                break why;
            }
        };
        let was_closed = self.lock().closed;
        self.shut();
        let _ = writer.join();
        let mut queues = self.lock();
        let mut orders: Vec<Order> =
            queues.pending.drain().filter_map(|(_, pending)| pending.order).collect();
        orders.extend(queues.urgent.drain(..));
        orders.extend(queues.bulk.drain(..).filter_map(|bulk| match bulk {
            Bulk::Put(order) => Some(order),
            Bulk::Free(_) | Bulk::Ping => None,
        }));
        drop(queues);
        if let Some(sink) = self.sink.upgrade()
            && !(was_closed && orders.is_empty())
        {
            sink.lost(self.index, why, orders);
        }
    }

    /// One reply; the error says why the server is lost.
    fn reply(&self) -> Result<(), String> {
        let mut head = [0; HEADER];
        self.receive(&mut head)?;
        let header = Header::decode(&head).map_err(|error| error.to_string())?;
        let pending = self.lock().pending.remove(&header.tag);
        let Some(mut pending) = pending else { return Err("it answers what was not asked".into()) };
        self.moved.notify_all();
        let Some(order) = &mut pending.order else {
            return if header.kind == Kind::Pong && header.length == 0 {
                Ok(())
            } else {
                Err("a ping was not answered by a pong".into())
            };
        };
        let outcome = self.judge(&header, order).and_then(|refused| self.sent(header.tag).map(|()| refused));
        match (outcome, pending.order.take()) {
            (Ok(refused), Some(order)) => {
                if let Some(sink) = self.sink.upgrade() {
                    sink.finished(self.index, order, refused);
                }
                Ok(())
            }
            (Err(why), order) => {
                self.lock().pending.insert(header.tag, Pending { order, since: pending.since });
                Err(why)
            }
            (Ok(_), None) => Ok(()),
        }
    }

    /// What the reply says about its order, its payload received.
    fn judge(&self, header: &Header, order: &mut Order) -> Result<Option<String>, String> {
        let page = order.page;
        if header.page != u64::from(page) {
            return Err(format!("asked for page {page}, it answers for page {}", header.page));
        }
        match (order.verb, header.kind) {
            (Verb::Get, Kind::Page) if header.length as usize == order.bytes => {
                self.receive(order.target())?;
                if Digest::of(order.source()) != order.digest {
                    return Err(format!("page {page} came back with other bytes than it left with"));
                }
                Ok(None)
            }
            (Verb::Put, Kind::Stored) if header.length == 0 => Ok(None),
            (Verb::Put, Kind::Refused) if header.length <= 4096 => {
                let mut why = vec![0; header.length as usize];
                self.receive(&mut why)?;
                Ok(Some(String::from_utf8_lossy(&why).into_owned()))
            }
            (Verb::Get, Kind::Missing) => Err(format!("it no longer holds page {page}")),
            (verb, kind) => Err(format!("it answers {verb:?} of page {page} with {kind:?}")),
        }
    }

    /// Fills `into`, or says why the server is lost.
    fn receive(&self, into: &mut [u8]) -> Result<(), String> {
        let mut last = Instant::now();
        let mut filled = 0;
        while filled < into.len() {
            match (&self.stream).read(&mut into[filled..]) {
                Ok(0) => return Err("it closed the connection".into()),
                Ok(n) => {
                    filled += n;
                    last = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    self.still_there(last, filled > 0)?;
                }
                Err(error) => return Err(format!("the connection failed: {error}")),
            }
            if filled < into.len() {
                self.not_overdue()?;
            }
        }
        Ok(())
    }

    /// Nothing came for a while: is that as it should be?
    fn still_there(&self, last: Instant, in_the_middle: bool) -> Result<(), String> {
        let mut queues = self.lock();
        if queues.closed {
            return Err("closed".into());
        }
        let oldest = queues.pending.values().map(|pending| pending.since).min();
        let silent = match oldest {
            Some(since) => since.max(last).elapsed(),
            None if in_the_middle => last.elapsed(),
            None => {
                if last.elapsed() >= HEARTBEAT && queues.bulk.is_empty() {
                    queues.bulk.push_back(Bulk::Ping);
                    drop(queues);
                    self.moved.notify_all();
                }
                return Ok(());
            }
        };
        if silent >= self.stall {
            return Err(format!("it has not answered for {:.1} s", silent.as_secs_f64()));
        }
        Ok(())
    }

    fn not_overdue(&self) -> Result<(), String> {
        let oldest = self.lock().pending.values().map(|pending| pending.since).min();
        match oldest {
            Some(since) if since.elapsed() >= self.stall * PATIENCE => {
                Err(format!("a request is {:.1} s old", since.elapsed().as_secs_f64()))
            }
            _ => Ok(()),
        }
    }
}

struct Source(*const u8, usize);

impl Bulk {
    fn frame(self, tag: u64) -> (Header, Option<Source>, Option<Order>) {
        match self {
            Self::Put(order) => {
                #[expect(clippy::cast_possible_truncation, reason = "pages are at most MAX_PAYLOAD")]
                let length = order.bytes as u32;
                let header =
                    Header { kind: Kind::Put, length, tag, page: order.page.into(), digest: order.digest };
                (header, Some(Source(order.at, order.bytes)), Some(order))
            }
            Self::Free(page) => (Header::bare(Kind::Free, tag, page.into()), None, None),
            Self::Ping => (Header::bare(Kind::Ping, tag, 0), None, None),
        }
    }
}

fn send(mut stream: &TcpStream, header: &Header, payload: &[u8]) -> io::Result<()> {
    let head = header.encode();
    let mut sent = 0;
    while sent < HEADER {
        match stream.write_vectored(&[IoSlice::new(&head[sent..]), IoSlice::new(payload)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => sent += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    stream.write_all(&payload[sent - HEADER..])
}
