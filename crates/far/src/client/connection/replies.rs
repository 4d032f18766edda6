//! Replies of a server: received without blocking, by the thread that waits for the stream.
//!
//! A server replies to requests in the order in which they were sent (QUEUE-1). So if the oldest request
//! without a reply is a get, one system call receives the header of the reply and the bytes of the pages,
//! directly into the frames of the run.
//!
//! - **RECEIVE-1** One thread at a time receives: it holds the lock of `Reading`, and keeps it until it has
//!   returned the orders. It may acquire the lock of the queues and, through the sink, that of the pager.
//! - **RECEIVE-2** A reply that is not complete belongs to `Reading`. The watcher puts its request back
//!   (`unanswered`) before it repeats or returns the requests without a reply (QUEUE-2, KEEPER-2).

use super::queues::{Pending, Source, sources};
use super::{End, Shared};
use crate::client::{Order, Verb};
use crate::descriptors::Hidden;
use crate::digest::Digest;
use crate::sys;
use crate::wire::{HEADER, Header, Kind};
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

/// Largest size of the text of a refusal, in bytes.
const MOST_TEXT: u32 = 4096;
/// Largest number of parts of one call that receives.
const MOST_PARTS: usize = 1024;

/// State of the stream from which replies are received.
pub(super) struct Reading {
    stream: Arc<Hidden<TcpStream>>,
    head: [u8; HEADER],
    /// Number of bytes of the present reply that were received, with its header.
    pub(super) got: usize,
    /// The present reply, from when its header is complete.
    reply: Option<Reply>,
    /// Time at which bytes were received last.
    pub(super) last: Instant,
    /// Set when at least one reply was received.
    pub(super) any: bool,
    /// Reason for which nothing more is received.
    end: Option<End>,
}

struct Reply {
    header: Header,
    /// The request that it answers.
    pending: Pending,
    /// Text of a refusal; otherwise empty.
    text: Vec<u8>,
}

impl Reading {
    pub(super) fn new(stream: Arc<Hidden<TcpStream>>) -> Self {
        let (head, last) = ([0; HEADER], Instant::now());
        Self { stream, head, got: 0, reply: None, last, any: false, end: None }
    }

    /// Receives nothing more. Returns the request of a reply that is not complete, with its tag.
    pub(super) fn stop(&mut self) -> Option<(u64, Pending)> {
        self.end = Some(End::Broken("it has ended".into()));
        self.reply.take().map(|reply| (reply.header.tag, reply.pending))
    }

    /// Returns the reason of the stream's end, once.
    pub(super) fn take_end(&mut self) -> Option<End> {
        let end = self.end.take()?;
        self.end = Some(End::Broken("it has ended".into()));
        Some(end)
    }

    /// Receives as many bytes as the stream has, into the present reply and these frames. Returns their
    /// number.
    fn receive_into(&mut self, frames: &[Source]) -> Result<usize, End> {
        let head = Source(self.head.as_mut_ptr(), HEADER);
        let own = match &mut self.reply {
            Some(Reply { text, pending, .. }) if text.is_empty() => sources(&pending.run),
            Some(Reply { text, .. }) => vec![Source(text.as_mut_ptr(), text.len())],
            None => frames.to_vec(),
        };
        let mut parts = Vec::with_capacity(1 + own.len());
        let mut skipped = self.got;
        for Source(at, bytes) in std::iter::once(head).chain(own) {
            let here = skipped.min(bytes);
            skipped -= here;
            if here < bytes && parts.len() < MOST_PARTS {
                let at = at.wrapping_add(here).cast_mut();
                parts.push(libc::iovec { iov_base: at.cast(), iov_len: bytes - here });
            }
        }
        // SAFETY: all zeros is a valid message without parts.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len() as _);
        let arguments = [
            self.stream.as_raw_fd() as usize,
            (&raw mut message) as usize,
            libc::MSG_DONTWAIT as usize,
            0,
            0,
            0,
        ];
        // SAFETY: the parts are the header and the text of `self`, which is borrowed mutably, and frames of
        // orders that are not returned before this thread has released the lock (RECEIVE-1, KEEPER-1).
        let got = unsafe { sys::call(libc::SYS_recvmsg, arguments) };
        match usize::try_from(got) {
            Ok(0) => Err(End::Broken("it closed the connection".into())),
            Ok(got) => Ok(got),
            Err(_) => match io::Error::last_os_error() {
                error if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    Ok(0)
                }
                error => Err(End::Broken(format!("the connection failed: {error}"))),
            },
        }
    }
}

impl Shared {
    pub(super) fn reading(&self) -> MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives at most one reply, as far as it has arrived, and returns the orders of its request. Returns
    /// `true` if bytes have arrived.
    pub(super) fn receive(&self, reading: &mut Reading) -> bool {
        if reading.end.is_some() {
            return false;
        }
        self.receive_some(reading).unwrap_or_else(|end| {
            reading.end = Some(end);
            self.polled.store(-1, Relaxed); // Relaxed: a number; the watcher reads the end under the lock
            self.wakes.notify_all();
            true
        })
    }

    fn receive_some(&self, reading: &mut Reading) -> Result<bool, End> {
        let frames = if reading.reply.is_none() { self.lock().expected() } else { Vec::new() };
        let got = reading.receive_into(&frames)?;
        if got == 0 {
            return Ok(false);
        }
        reading.got += got;
        reading.last = Instant::now();
        if reading.reply.is_none() {
            if reading.got < HEADER {
                return Ok(true);
            }
            self.begin_reply(reading)?;
        }
        let Some(Reply { header, pending, .. }) = &reading.reply else { return Ok(true) };
        if reading.got < HEADER + header.length as usize {
            return Ok(true);
        }
        check_bytes(header, pending)?;
        self.sent(header.tag)?;
        reading.got = 0;
        reading.any = true;
        if let Some(reply) = reading.reply.take() {
            self.complete(reply);
        }
        Ok(true)
    }

    /// Finds the request that a reply answers, and checks that the reply fits it.
    fn begin_reply(&self, reading: &mut Reading) -> Result<(), End> {
        let header =
            Header::decode(&reading.head).map_err(|error| End::ProtocolViolation(error.to_string()))?;
        let mut queues = self.lock();
        let pending = queues.answered(header.tag);
        // The window may have been full. A writer that is sending checks the queues again afterward.
        let wakes = queues.writing.is_none() && queues.has_more();
        drop(queues);
        if wakes {
            self.moved.notify_all();
        }
        let Some(pending) = pending else {
            return Err(End::ProtocolViolation(
                "it replied to a request that was not sent, or replied too early".into(),
            ));
        };
        let is_refused = header.kind == Kind::Refused && header.length <= MOST_TEXT;
        let text = if is_refused { vec![0; header.length as usize] } else { Vec::new() };
        let Reply { header, pending, .. } = reading.reply.insert(Reply { header, pending, text });
        check_header(header, pending)
    }

    /// Waits until a request is completely sent. If a server replies earlier, the frame that the sender is
    /// reading must not be reused yet.
    fn sent(&self, tag: u64) -> Result<(), End> {
        let mut queues = self.lock();
        let mut waited = self.options.stall;
        while queues.writing == Some(tag) {
            // Counted by time limits that have passed: the time of a process that is stopped does not count.
            if waited.is_zero() {
                return Err(End::ProtocolViolation(
                    "it replied to a request before it had received all of it".into(),
                ));
            }
            queues.awaited = true;
            let interval = self.options.check_interval();
            let (after, passed) =
                self.moved.wait_timeout(queues, interval).unwrap_or_else(PoisonError::into_inner);
            queues = after;
            if passed.timed_out() {
                waited = waited.saturating_sub(interval);
            }
        }
        queues.awaited = false;
        Ok(())
    }

    /// Returns the orders of a request that was answered.
    fn complete(&self, Reply { header, pending, text }: Reply) {
        let why = |text: Vec<u8>| String::from_utf8_lossy(&text).into_owned();
        if pending.reserve.is_some() {
            let refused = header.kind == Kind::Refused;
            self.lock().reserved = Some(if refused { Err(why(text)) } else { Ok(()) });
            self.moved.notify_all();
            return;
        }
        let mut run = pending.run;
        let (done, why) = match header.kind {
            Kind::Refused => (0, why(text)),
            Kind::Stored => (header.more as usize + 1, "no room for the rest of a run".into()),
            _ => (run.len(), String::new()),
        };
        let refused = run.split_off(done.min(run.len()));
        if let Some(sink) = self.sink.upgrade() {
            if !run.is_empty() {
                sink.finished(self.index, run, None);
            }
            if !refused.is_empty() {
                sink.finished(self.index, refused, Some(why));
            }
        }
    }
}

/// Checks the header of a reply against the request.
fn check_header(header: &Header, pending: &Pending) -> Result<(), End> {
    let violation = |why: String| Err(End::ProtocolViolation(why));
    let is_refusal = header.kind == Kind::Refused && header.length <= MOST_TEXT;
    if let Some(bytes) = pending.reserve {
        return match header.kind {
            Kind::Reserved if header.length == 0 && header.page == bytes => Ok(()),
            _ if is_refusal => Ok(()),
            kind => violation(format!("it replied {kind:?} to a reservation")),
        };
    }
    let run = &pending.run;
    let Some(&Order { page, verb, .. }) = run.first() else {
        return if header.kind == Kind::Pong && header.length == 0 {
            Ok(())
        } else {
            violation("a ping was not answered by a pong".into())
        };
    };
    if header.page != u64::from(page) {
        return violation(format!("it replied with page {} to a request for page {page}", header.page));
    }
    let bytes: usize = run.iter().map(|order| order.bytes).sum();
    match (verb, header.kind) {
        (Verb::Get, Kind::Page) if header.length as usize == bytes => Ok(()),
        (Verb::Put, Kind::Stored) if header.length == 0 && (header.more as usize) < run.len() => Ok(()),
        (Verb::Put, Kind::Refused) if is_refusal => Ok(()),
        (Verb::Get, Kind::Missing) => violation(format!("it no longer holds page {page}")),
        (verb, kind) => violation(format!("it replied {kind:?} to {verb:?} of page {page}")),
    }
}

/// Checks the bytes of the pages that a reply contains (KEEPER-3).
fn check_bytes(header: &Header, pending: &Pending) -> Result<(), End> {
    if header.kind != Kind::Page {
        return Ok(());
    }
    match pending.run.iter().find(|order| Digest::of(order.source()) != order.digest) {
        None => Ok(()),
        Some(Order { page, .. }) => Err(End::ProtocolViolation(format!(
            "the bytes of page {page} differ from those that were stored"
        ))),
    }
}
