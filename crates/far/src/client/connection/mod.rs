//! The connection to one memory server: a writer and a reader thread, many requests in flight. Orders are
//! submitted in runs, and each comes back exactly once (KEEPER-2).
//!
//! | module | content |
//! |---|---|
//! | `attention` | silence of a server, without stops of this process |
//! | `handshake` | opening and resuming a session on a connection |
//! | `queues` | requests to send, and unanswered ones |
//! | `reader` | the thread that reads answers and detects a lost server |
//!
//! `submit` appends a run of orders to one of two queues (pages for which a thread waits are sent before
//! pages that are paged out). The writer sends while the number of unanswered requests is below a limit. The
//! reader finds the run by its reply's tag and receives directly into its frames. If nothing else is being
//! sent, a thread that needs a page sends the request itself: waking the writer would take as long as the
//! request.
//!
//! A broken *stream* does not mean a lost server: the reader resumes the session over another stream and
//! repeats the unanswered requests (QUEUE-2). The server is lost only if that fails.
//!
//! | the stream | action |
//! |---|---|
//! | ended, reset | another stream, tried for `stall`; a server that refuses it is lost at once |
//! | silent for `stall` | lost; without another replica (`alone`) another stream, tried for `stall` |
//! | sends an impossible answer | the server is lost |
//!
//! The reader then closes the stream, waits until the writer has ended (so no thread reads a frame any more,
//! KEEPER-2), and returns all orders.

mod attention;
mod handshake;
mod queues;
mod reader;

use super::{Order, Replica, Sink};
use crate::descriptors::{self, Hidden};
use crate::needed;
use crate::wire::{Header, Kind};
pub use handshake::ConnectError;
pub(crate) use handshake::ConnectionOptions;
use handshake::OpenedSession;
use queues::{Queues, Rest, Source};
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

struct Shared {
    name: String,
    index: usize,
    peer: SocketAddr,
    /// Options for a connection of a child process, which begins with these pages.
    options: ConnectionOptions,
    /// The session's stream now.
    stream: Mutex<Arc<Hidden<TcpStream>>>,
    /// Its descriptor, for a child process: a lock may be held there for good.
    descriptor: AtomicI32,
    queues: Mutex<Queues>,
    /// Something was queued, answered or closed.
    moved: Condvar,
    sink: Weak<dyn Sink>,
}

/// Next message of the writer.
enum Next {
    /// The rest of a request that another thread has begun to send.
    Rest(Rest),
    Request(Header, Vec<Source>),
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
        options: &ConnectionOptions,
        sink: Weak<dyn Sink>,
    ) -> Result<Self, ConnectError> {
        Self::begin(handshake::dial(server, options.stall)?, server, index, options, sink)
    }

    fn begin(
        stream: TcpStream,
        server: &str,
        index: usize,
        options: &ConnectionOptions,
        sink: Weak<dyn Sink>,
    ) -> Result<Self, ConnectError> {
        let failed = |source| ConnectError::Connect { server: server.into(), source };
        let peer = stream.peer_addr().map_err(failed)?;
        let OpenedSession { stream, session } = handshake::open(stream, server, options)?;
        let stream = Arc::new(stream);
        let shared = Arc::new(Shared {
            name: server.into(),
            index,
            peer,
            options: ConnectionOptions { like: session, ..options.clone() },
            descriptor: AtomicI32::new(stream.as_raw_fd()),
            stream: Mutex::new(Arc::clone(&stream)),
            queues: Mutex::default(),
            moved: Condvar::new(),
            sink,
        });
        let writer = shared.writer(&stream).map_err(failed)?;
        let reading = Arc::clone(&shared);
        let reader = needed::spawn("far-reader", move || reading.read_until_lost(stream, writer));
        let reader = reader.map_err(failed)?;
        Ok(Self { shared, reader: Mutex::new(Some(reader)) })
    }
}

impl Replica for Connection {
    fn submit(&self, run: Vec<Order>) -> Result<(), Vec<Order>> {
        let mut queues = self.shared.lock();
        if queues.closed {
            return Err(run);
        }
        queues.take(run);
        // A writer that sends looks for more by itself.
        let wakes = queues.writing.is_none() && !queues.at_once(|bytes| self.shared.send_some(bytes));
        drop(queues);
        if wakes {
            self.shared.moved.notify_all();
        }
        Ok(())
    }

    fn forget(&self, page: u32) {
        let mut queues = self.shared.lock();
        if !queues.closed {
            queues.forget(page);
            let wakes = queues.writing.is_none();
            drop(queues);
            if wakes {
                self.shared.moved.notify_all();
            }
        }
    }

    fn reserve(&self, bytes: u64) -> Result<(), String> {
        let mut queues = self.shared.lock();
        queues.reserve(bytes);
        self.shared.moved.notify_all();
        let is_open = |queues: &mut Queues| queues.reserved.is_none() && !queues.closed;
        let answered = self.shared.moved.wait_while(queues, is_open);
        let mut queues = answered.unwrap_or_else(PoisonError::into_inner);
        queues.reserved.take().unwrap_or_else(|| Err("it is lost".into()))
    }

    fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }

    fn name(&self) -> &str {
        &self.shared.name
    }

    fn for_child(&self, sink: Weak<dyn Sink>) -> Result<Arc<dyn Replica>, String> {
        let Shared { name, index, peer, options, .. } = &*self.shared;
        let options = ConnectionOptions { reserve_bytes: 0, ..options.clone() };
        self.abandon();
        // By number: looking a name up takes locks that a thread of the parent may have held when it forked.
        let stream = handshake::dial_to(*peer, options.stall).map_err(|error| format!("{name}: {error}"))?;
        let made = Self::begin(stream, name, *index, &options, sink).map_err(|error| error.to_string())?;
        Ok(Arc::new(made))
    }

    fn abandon(&self) {
        // The child's copy of the parent's descriptor; a child does not drop the parent's objects. The server
        // must see that the parent disconnects. (A connection that the parent was just opening in place of a
        // broken one stays open here; the server sees its end when this process ends.)
        descriptors::close(self.shared.descriptor.load(Relaxed)); // this process has one thread
    }

    fn close(&self) {
        self.shared.leave();
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

    /// Accepts no more orders, and makes the writer report the end of the session to the server.
    fn leave(&self) {
        let mut queues = self.lock();
        (queues.closed, queues.sends_bye) = (true, true);
        drop(queues);
        self.moved.notify_all();
    }

    /// From now on the session has this stream; not if it is closed.
    fn go_on_with(&self, stream: &Arc<Hidden<TcpStream>>) {
        self.descriptor.store(stream.as_raw_fd(), Relaxed); // for a child, to which `fork` gives all
        *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(stream);
    }

    /// Starts the writer of a stream.
    fn writer(self: &Arc<Self>, stream: &Arc<Hidden<TcpStream>>) -> io::Result<JoinHandle<()>> {
        let (writing, stream) = (Arc::clone(self), Arc::clone(stream));
        needed::spawn("far-writer", move || writing.write(&stream))
    }

    /// Sends as many bytes as the session's stream accepts without waiting. The caller holds the queues'
    /// lock, and the stream is not cut, so it is the present one.
    fn send_some(&self, bytes: &[u8]) -> usize {
        // Relaxed: it was stored before the queues' lock was given up that we have.
        let descriptor = self.descriptor.load(Relaxed);
        // SAFETY: the pointer and length are those of `bytes`; the descriptor is open: `stream` owns it until
        // another stream takes its place, which the lock and `cut` exclude now.
        let sent = unsafe {
            libc::send(
                descriptor,
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        // The writer retries the same bytes and reports the error.
        usize::try_from(sent).unwrap_or(0)
    }

    /// The writer: until the stream is cut or cannot be written.
    fn write(&self, mut stream: &TcpStream) {
        while let Some(next) = self.next() {
            let done = match &next {
                Next::Rest(rest) => stream.write_all(rest.bytes()),
                Next::Request(header, sources) => {
                    let payload = sources.iter().map(|&Source(at, bytes)| {
                        // SAFETY: KEEPER-1: the run does not come back before this thread has sent it
                        // (`sent`) or has ended.
                        unsafe { std::slice::from_raw_parts(at, bytes) }
                    });
                    header.send_parts(&mut stream, payload)
                }
            };
            if done.is_err() || matches!(next, Next::Request(Header { kind: Kind::Bye, .. }, _)) {
                break;
            }
        }
        // The reader finds the reason, or that the server does not answer.
        let _ = stream.shutdown(Shutdown::Both);
        self.lock().writing = None;
        self.moved.notify_all();
    }

    /// Returns the next bytes to send; `None` if nothing more is to be sent over this stream.
    fn next(&self) -> Option<Next> {
        let mut queues = self.lock();
        let mut was_sending = true;
        loop {
            if !queues.cut
                && let Some(rest) = queues.rest()
            {
                return Some(Next::Rest(rest));
            }
            // The message that this call was sending is complete; while this thread waits below, another one
            // may begin to send.
            if std::mem::take(&mut was_sending) && queues.writing.take().is_some() && queues.awaited {
                self.moved.notify_all();
            }
            if std::mem::take(&mut queues.sends_bye) && !queues.cut {
                return Some(Next::Request(Header::bare(Kind::Bye, 0, 0), Vec::new()));
            }
            if queues.closed || queues.cut {
                return None;
            }
            if let Some((header, sources)) = queues.next() {
                return Some(Next::Request(header, sources));
            }
            queues = self.moved.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
