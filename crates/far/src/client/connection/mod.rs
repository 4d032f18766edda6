//! The connection to one memory server: a writer and a watcher thread, many requests in flight. Orders are
//! submitted in runs, and each order is returned exactly once (KEEPER-2).
//!
//! | module | content |
//! |---|---|
//! | `attention` | time of silence of a server, not counting stops of this process |
//! | `handshake` | opening and resuming a session over a connection |
//! | `queues` | requests to send, and requests without a reply |
//! | `replies` | replies: received, checked, returned |
//! | `watcher` | the thread that detects a lost server |
//!
//! `submit` appends a run of orders to one of two queues. Pages for which a thread waits are sent before
//! pages that are paged out. The writer sends while the number of requests without a reply is below a limit.
//! Replies are received directly into the frames of the run, by the thread that waits for the stream: the
//! fault thread of a region (`Replica::stream`), otherwise the watcher. If no other thread is sending, a
//! thread that submits a short request sends it itself: waking the writer would take as long as the request.
//!
//! A broken *stream* is not a lost server: the watcher resumes the session over another stream and repeats
//! the requests without a reply (QUEUE-2). The server is lost only if that fails.
//!
//! | the stream | action |
//! |---|---|
//! | ended, reset | another stream, tried for `stall`; a server that refuses it is lost at once |
//! | silent for `stall` | lost; without another replica (`alone`) another stream, tried for `stall` |
//! | sends an invalid reply | the server is lost |
//!
//! The watcher of a lost server closes the stream and waits until the writer has ended and no thread
//! receives (RECEIVE-1). After that no thread accesses a frame any more (KEEPER-2), and the watcher returns
//! all orders.

mod attention;
mod handshake;
mod queues;
mod replies;
mod watcher;

use super::{Order, Replica, Sink};
use crate::descriptors::{self, Hidden};
use crate::needed;
use crate::sys;
use crate::wire::{Header, Kind};
pub use handshake::ConnectError;
pub(crate) use handshake::ConnectionOptions;
use handshake::OpenedSession;
use queues::{Queues, Rest, Source};
use replies::Reading;
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

struct Shared {
    name: String,
    index: usize,
    peer: SocketAddr,
    /// Options for the connection of a child process, which copies the pages of this session.
    options: ConnectionOptions,
    /// The session's current stream, and the reply that is being received.
    reading: Mutex<Reading>,
    /// Notified when the watcher is to look at `reading`: its stream has ended.
    wakes: Condvar,
    /// Set when a thread other than the watcher waits for the stream.
    is_polled: AtomicBool,
    /// Descriptor of the stream while replies may arrive; -1 after its end.
    polled: AtomicI32,
    /// Descriptor of the stream. A child process uses it, because the mutex of `reading` may stay locked
    /// there.
    descriptor: AtomicI32,
    queues: Mutex<Queues>,
    /// Notified when a request was queued, a reply was received, or the connection was closed.
    moved: Condvar,
    sink: Weak<dyn Sink>,
}

/// Reason for the end of a stream.
#[derive(Debug)]
enum End {
    /// The stream ended or failed.
    Broken(String),
    /// The server does not reply.
    Silent(String),
    /// The server sent a reply that matches no request.
    ProtocolViolation(String),
}

impl End {
    fn why(self) -> String {
        let (Self::Broken(why) | Self::Silent(why) | Self::ProtocolViolation(why)) = self;
        why
    }
}

/// Next message of the writer.
enum Next {
    /// Rest of a request that another thread has begun to send.
    Rest(Rest),
    Request(Header, Vec<Source>),
}

/// A memory server that stores pages.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    watcher: Mutex<Option<JoinHandle<()>>>,
}

impl Connection {
    /// Connects, proves the key, and reserves memory.
    pub(crate) fn connect(
        server: &str,
        index: usize,
        options: &ConnectionOptions,
        sink: Weak<dyn Sink>,
    ) -> Result<Self, ConnectError> {
        Self::begin(handshake::dial(server, options.stall)?, server, index, options, sink)
    }

    fn begin(
        stream: Hidden<TcpStream>,
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
            reading: Mutex::new(Reading::new(Arc::clone(&stream))),
            wakes: Condvar::new(),
            is_polled: AtomicBool::new(false),
            polled: AtomicI32::new(stream.as_raw_fd()),
            queues: Mutex::default(),
            moved: Condvar::new(),
            sink,
        });
        let writer = shared.writer(&stream).map_err(failed)?;
        let watching = Arc::clone(&shared);
        let watcher = needed::spawn("far-watcher", move || watching.watch_until_lost(stream, writer));
        let watcher = watcher.map_err(failed)?;
        Ok(Self { shared, watcher: Mutex::new(Some(watcher)) })
    }
}

impl Replica for Connection {
    fn submit(&self, run: Vec<Order>) -> Result<(), Vec<Order>> {
        let mut queues = self.shared.lock();
        if queues.closed {
            return Err(run);
        }
        queues.take(run);
        // A writer that is sending checks the queues again afterward.
        let send = |header: &[u8], payload: &[Source]| self.shared.send_some(header, payload);
        let wakes = queues.writing.is_none() && !queues.at_once(send);
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
        queues.reserved.take().unwrap_or_else(|| Err("the connection is lost".into()))
    }

    fn stream(&self) -> Option<RawFd> {
        let Shared { is_polled, polled, .. } = &*self.shared;
        // Relaxed for both: a hint for the watcher, and a number. A descriptor that was just closed is ready
        // or not, and then `receive` finds nothing.
        is_polled.store(true, Relaxed);
        Some(polled.load(Relaxed)).filter(|&stream| stream >= 0)
    }

    fn receive(&self) {
        self.shared.receive(&mut self.shared.reading());
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
        // By address: a name lookup takes locks that another thread of the parent may have held during
        // `fork`.
        let stream = handshake::dial_to(*peer, options.stall).map_err(|error| format!("{name}: {error}"))?;
        let made = Self::begin(stream, name, *index, &options, sink).map_err(|error| error.to_string())?;
        Ok(Arc::new(made))
    }

    fn abandon(&self) {
        // Closes the child's copy of the parent's descriptor, because a child does not drop the parent's
        // objects. Otherwise the server would not notice when the parent disconnects. If the parent was just
        // replacing a broken connection, the new descriptor stays open here until this process ends.
        descriptors::close(self.shared.descriptor.load(Relaxed)); // Relaxed: this process has one thread
    }

    fn close(&self) {
        self.shared.leave();
        let watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(watcher) = watcher
            && watcher.thread().id() != thread::current().id()
        {
            let _ = watcher.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rejects further orders, and makes the writer report the end of the session to the server.
    fn leave(&self) {
        let mut queues = self.lock();
        (queues.closed, queues.sends_bye) = (true, true);
        drop(queues);
        self.moved.notify_all();
    }

    /// Replaces the session's stream, and queues the requests in an unknown state again.
    fn go_on_with(&self, stream: &Arc<Hidden<TcpStream>>) {
        let mut reading = self.reading();
        self.descriptor.store(stream.as_raw_fd(), Relaxed); // Relaxed: a child has one thread
        *reading = Reading::new(Arc::clone(stream));
        self.lock().again();
        self.polled.store(stream.as_raw_fd(), Relaxed); // Relaxed: as in `receive`
    }

    /// Starts the writer thread of a stream.
    fn writer(self: &Arc<Self>, stream: &Arc<Hidden<TcpStream>>) -> io::Result<JoinHandle<()>> {
        let (writing, stream) = (Arc::clone(self), Arc::clone(stream));
        needed::spawn("far-writer", move || writing.write(&stream))
    }

    /// Sends as many bytes of a request as the session's stream accepts without blocking. The caller holds
    /// the lock of the queues, and the stream is not cut, so the descriptor is the one of the current stream.
    fn send_some(&self, header: &[u8], payload: &[Source]) -> usize {
        let part =
            |at: *const u8, bytes: usize| libc::iovec { iov_base: at.cast_mut().cast(), iov_len: bytes };
        let mut parts = vec![part(header.as_ptr(), header.len())];
        parts.extend(payload.iter().map(|&Source(at, bytes)| part(at, bytes)));
        // SAFETY: all zeros is a valid message without parts.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        // Relaxed: the descriptor was stored before another thread released the lock of the queues, which
        // this thread holds.
        let descriptor = self.descriptor.load(Relaxed) as usize;
        let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
        let arguments = [descriptor, (&raw const message) as usize, flags, 0, 0, 0];
        // SAFETY: the parts are those of the caller, and of a run that is not returned before it is sent
        // (KEEPER-1). The descriptor is open: `stream` owns it until the stream is replaced, which the lock
        // and `cut` exclude now.
        let sent = unsafe { sys::call(libc::SYS_sendmsg, arguments) };
        // The writer retries the same bytes and reports the error.
        usize::try_from(sent).unwrap_or(0)
    }

    /// Runs the writer thread until the stream is cut or a write fails.
    fn write(&self, mut stream: &TcpStream) {
        while let Some(next) = self.next() {
            let done = match &next {
                Next::Rest(rest) => rest.pieces().try_for_each(|Source(at, bytes)| {
                    // SAFETY: a piece of the rest, or of its run, as below.
                    stream.write_all(unsafe { std::slice::from_raw_parts(at, bytes) })
                }),
                Next::Request(header, sources) => {
                    let payload = sources.iter().map(|&Source(at, bytes)| {
                        // SAFETY: KEEPER-1: the run is not returned before this thread has sent it (`sent`)
                        // or has ended.
                        unsafe { std::slice::from_raw_parts(at, bytes) }
                    });
                    header.send_parts(&mut stream, payload)
                }
            };
            if done.is_err() || matches!(next, Next::Request(Header { kind: Kind::Bye, .. }, _)) {
                break;
            }
        }
        // The watcher determines the reason.
        let _ = stream.shutdown(Shutdown::Both);
        self.lock().writing = None;
        self.moved.notify_all();
        // The watcher reads the stream again before it waits.
        drop(self.reading());
        self.wakes.notify_all();
    }

    /// Waits for the next bytes to send. Returns `None` when nothing more is to be sent over this stream.
    fn next(&self) -> Option<Next> {
        let mut queues = self.lock();
        let mut was_sending = true;
        loop {
            if !queues.cut
                && let Some(rest) = queues.rest()
            {
                return Some(Next::Rest(rest));
            }
            // The previous message of this call is complete. While this thread waits below, another thread
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
