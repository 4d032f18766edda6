//! The reader thread: reads replies, detects a broken stream or a lost server, and resumes the session over
//! another stream if possible.

use super::Shared;
use super::attention::Attention;
use super::handshake::{self, ConnectError, OpenedSession};
use crate::client::{Order, Verb};
use crate::descriptors::Hidden;
use crate::digest::Digest;
use crate::wire::{HEADER, Header, Kind};
use std::io::{self, IoSliceMut, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval of pings on an idle connection.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Multiple of `stall` after which a request without a reply has failed, even if other bytes arrive.
const OVERDUE_FACTOR: u32 = 4;
/// Interval between two attempts to open another stream.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Largest size of the text of a refusal, in bytes.
const MOST_TEXT: u32 = 4096;
/// Largest number of consecutive streams that break without a single reply.
const MOST_FRUITLESS_STREAMS: usize = 3;

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

impl Shared {
    /// Runs the reader thread until the server is lost or the connection is closed.
    pub(super) fn read_until_lost(
        self: Arc<Self>,
        mut stream: Arc<Hidden<TcpStream>>,
        writer: JoinHandle<()>,
    ) {
        let mut writer = Some(writer);
        let mut fruitless = 0;
        let why = loop {
            let result = self.read(&stream);
            self.cut(&stream);
            if let Some(writer) = writer.take() {
                let _ = writer.join();
            }
            fruitless = if result.any { 0 } else { fruitless + 1 };
            let closed = self.lock().closed;
            let resumed = match result.end {
                end if closed || fruitless >= MOST_FRUITLESS_STREAMS => Err(end.why()),
                End::Broken(why) => self.resume(&why),
                End::Silent(why) if self.options.alone => self.resume(&why),
                end => Err(end.why()),
            };
            match resumed {
                Ok(new) => stream = new,
                Err(why) => break why,
            }
            self.lock().again();
            match self.writer(&stream) {
                Ok(new) => writer = Some(new),
                Err(error) => break format!("no thread for another stream: {error}"),
            }
            if let Some(sink) = self.sink.upgrade() {
                sink.resumed(self.index);
            }
        };
        self.end(why);
    }

    /// Closes the connection and returns all open orders.
    fn end(&self, why: String) {
        let mut queues = self.lock();
        let was_closed = std::mem::replace(&mut queues.closed, true);
        let orders = queues.give_back();
        drop(queues);
        self.moved.notify_all();
        if let Some(sink) = self.sink.upgrade()
            && !(was_closed && orders.is_empty())
        {
            sink.lost(self.index, why, orders);
        }
    }

    /// Cuts the stream: no thread sends or receives over it any more.
    fn cut(&self, stream: &TcpStream) {
        self.lock().cut = true;
        self.moved.notify_all();
        let _ = stream.shutdown(Shutdown::Both);
    }

    /// Opens the session's next stream. The error is the reason of the failure.
    fn resume(&self, why: &str) -> Result<Arc<Hidden<TcpStream>>, String> {
        let until = Instant::now() + self.options.stall;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let error = match self.reconnect(left.max(Duration::from_millis(1))) {
                Ok(OpenedSession { stream, .. }) => {
                    let stream = Arc::new(stream);
                    self.go_on_with(&stream);
                    return Ok(stream);
                }
                Err(error) => error,
            };
            let reason = std::error::Error::source(&error).map_or(String::new(), |why| format!(": {why}"));
            let closed = |queues: &mut super::Queues| !queues.closed;
            let (queues, _) = self
                .moved
                .wait_timeout_while(self.lock(), RETRY_INTERVAL, closed)
                .unwrap_or_else(PoisonError::into_inner);
            if queues.closed || !error.may_pass() || Instant::now() >= until {
                return Err(format!("{why}, and the session cannot be resumed: {error}{reason}"));
            }
        }
    }

    fn reconnect(&self, within: Duration) -> Result<OpenedSession, ConnectError> {
        let failed = |source| ConnectError::Connect { server: self.name.clone(), source };
        let stream = handshake::dial_to(self.peer, within).map_err(failed)?;
        let options = handshake::ConnectionOptions { stall: within, ..self.options.clone() };
        let opened = handshake::resume(stream, &self.name, &options, self.options.like)?;
        let OpenedSession { stream, .. } = &opened;
        stream.set_read_timeout(Some(self.options.check_interval())).map_err(failed)?;
        stream.set_write_timeout(Some(self.options.stall)).map_err(failed)?;
        Ok(opened)
    }

    /// Reads replies from a stream until it fails or is closed.
    fn read(&self, stream: &TcpStream) -> StreamResult {
        let mut any = false;
        let mut attention = Attention::new(self.options.stall);
        loop {
            match self.reply(stream, &mut attention) {
                Ok(()) => any = true,
                Err(end) => return StreamResult { any, end },
            }
        }
    }

    /// Receives one reply and returns the orders of its request.
    fn reply(&self, stream: &TcpStream, attention: &mut Attention) -> Result<(), End> {
        let mut head = [0; HEADER];
        attention.looks(Instant::now());
        self.receive(stream, attention, [&mut head[..]])?;
        let header = Header::decode(&head).map_err(|error| End::ProtocolViolation(error.to_string()))?;
        let mut queues = self.lock();
        let pending = queues.answered(header.tag);
        // The window may have been full. A writer that is sending checks the queues again afterward.
        let wakes = queues.writing.is_none() && queues.has_more();
        drop(queues);
        if wakes {
            self.moved.notify_all();
        }
        let Some(mut pending) = pending else {
            return Err(End::ProtocolViolation("it answers a request that was not sent".into()));
        };
        if let Some(bytes) = pending.reserve {
            let answer = self.reservation(stream, attention, &header, bytes);
            return match answer {
                Ok(answer) => {
                    self.lock().reserved = Some(answer);
                    self.moved.notify_all();
                    Ok(())
                }
                Err(end) => {
                    self.lock().unanswered(header.tag, pending);
                    Err(end)
                }
            };
        }
        if pending.run.is_empty() {
            return if header.kind == Kind::Pong && header.length == 0 {
                Ok(())
            } else {
                Err(End::ProtocolViolation("a ping was not answered by a pong".into()))
            };
        }
        let evaluated = self.evaluate(stream, attention, &header, &mut pending.run);
        match evaluated.and_then(|evaluated| self.sent(header.tag, attention).map(|()| evaluated)) {
            Ok(RunResult { done, why }) => {
                let refused = pending.run.split_off(done);
                if let Some(sink) = self.sink.upgrade() {
                    if !pending.run.is_empty() {
                        sink.finished(self.index, pending.run, None);
                    }
                    if !refused.is_empty() {
                        sink.finished(self.index, refused, Some(why));
                    }
                }
                Ok(())
            }
            Err(end) => {
                self.lock().unanswered(header.tag, pending);
                Err(end)
            }
        }
    }

    /// Evaluates the reply to a reservation.
    fn reservation(
        &self,
        stream: &TcpStream,
        attention: &mut Attention,
        header: &Header,
        bytes: u64,
    ) -> Result<Result<(), String>, End> {
        match header.kind {
            Kind::Reserved if header.length == 0 && header.page == bytes => Ok(Ok(())),
            Kind::Refused if header.length <= MOST_TEXT => self.text(stream, attention, header).map(Err),
            kind => Err(End::ProtocolViolation(format!("it answers a reservation with {kind:?}"))),
        }
    }

    /// Receives the text of a refusal.
    fn text(&self, stream: &TcpStream, attention: &mut Attention, header: &Header) -> Result<String, End> {
        let mut text = vec![0; header.length as usize];
        self.receive(stream, attention, [&mut text[..]])?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Waits until a request is completely sent. If a server replies earlier, the frame that the sender is
    /// reading must not be reused yet.
    fn sent(&self, tag: u64, attention: &mut Attention) -> Result<(), End> {
        let due = Instant::now();
        let mut queues = self.lock();
        while queues.writing == Some(tag) {
            attention.looks(Instant::now());
            if attention.waited(due) >= self.options.stall {
                return Err(End::ProtocolViolation("it answers before it was asked".into()));
            }
            queues.awaited = true;
            let waited = self.moved.wait_timeout(queues, self.options.check_interval());
            queues = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        queues.awaited = false;
        Ok(())
    }

    /// Receives the payload of the reply to a run, and evaluates the reply.
    fn evaluate(
        &self,
        stream: &TcpStream,
        attention: &mut Attention,
        header: &Header,
        run: &mut [Order],
    ) -> Result<RunResult, End> {
        let Order { page, verb, .. } = run[0];
        if header.page != u64::from(page) {
            return Err(End::ProtocolViolation(format!(
                "asked for page {page}, it answers for page {}",
                header.page
            )));
        }
        let all = RunResult { done: run.len(), why: String::new() };
        match (verb, header.kind) {
            (Verb::Get, Kind::Page)
                if header.length as usize == run.iter().map(|order| order.bytes).sum() =>
            {
                self.receive(stream, attention, run.iter_mut().map(Order::target))?;
                match run.iter().find(|order| Digest::of(order.source()) != order.digest) {
                    None => Ok(all),
                    Some(Order { page, .. }) => Err(End::ProtocolViolation(format!(
                        "page {page} came back with other bytes than it left with"
                    ))),
                }
            }
            (Verb::Put, Kind::Stored) if header.length == 0 && (header.more as usize) < run.len() => {
                let done = header.more as usize + 1;
                Ok(RunResult { done, why: "no room for the rest of a run".into() })
            }
            (Verb::Put, Kind::Refused) if header.length <= MOST_TEXT => {
                Ok(RunResult { done: 0, why: self.text(stream, attention, header)? })
            }
            (Verb::Get, Kind::Missing) => {
                Err(End::ProtocolViolation(format!("it no longer holds page {page}")))
            }
            (verb, kind) => {
                Err(End::ProtocolViolation(format!("it answers {verb:?} of page {page} with {kind:?}")))
            }
        }
    }

    /// Receives bytes until all parts are filled, one after the other.
    fn receive<'a>(
        &self,
        mut stream: &TcpStream,
        attention: &mut Attention,
        into: impl IntoIterator<Item = &'a mut [u8]>,
    ) -> Result<(), End> {
        let mut last = Instant::now();
        let mut any = false;
        let mut into: Vec<IoSliceMut<'_>> = into.into_iter().map(IoSliceMut::new).collect();
        let mut into = &mut into[..];
        IoSliceMut::advance_slices(&mut into, 0); // skips empty parts
        while !into.is_empty() {
            match stream.read_vectored(into) {
                Ok(0) => return Err(End::Broken("it closed the connection".into())),
                Ok(n) => {
                    IoSliceMut::advance_slices(&mut into, n);
                    any = true;
                    last = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    self.still_there(attention, last, any)?;
                }
                Err(error) => return Err(End::Broken(format!("the connection failed: {error}"))),
            }
            if !into.is_empty() {
                self.not_overdue(attention)?;
            }
        }
        Ok(())
    }

    /// Decides, after a timeout without data, whether the server is silent for too long. Sends a ping on an
    /// idle connection.
    fn still_there(&self, attention: &mut Attention, last: Instant, in_the_middle: bool) -> Result<(), End> {
        attention.looks(Instant::now());
        let mut queues = self.lock();
        if queues.closed {
            return Err(End::Silent("closed".into()));
        }
        let silent = match queues.oldest() {
            Some(since) => attention.waited(since.max(last)),
            None if in_the_middle => attention.waited(last),
            None => {
                if last.elapsed() >= HEARTBEAT && queues.ping() {
                    drop(queues);
                    self.moved.notify_all();
                }
                return Ok(());
            }
        };
        if silent >= self.options.stall {
            return Err(End::Silent(format!("it has not answered for {:.1} s", silent.as_secs_f64())));
        }
        Ok(())
    }

    fn not_overdue(&self, attention: &mut Attention) -> Result<(), End> {
        attention.looks(Instant::now());
        match self.lock().oldest().map(|since| attention.waited(since)) {
            Some(old) if old >= self.options.stall * OVERDUE_FACTOR => {
                Err(End::Silent(format!("a request is {:.1} s old", old.as_secs_f64())))
            }
            _ => Ok(()),
        }
    }
}

/// Result of a run: the number of its executed orders. The server refused the others.
struct RunResult {
    done: usize,
    why: String,
}

/// Result of reading a stream.
struct StreamResult {
    /// Set if at least one reply was received.
    any: bool,
    end: End,
}
