//! The watcher thread: detects a broken stream or a lost server, and resumes the session over another stream
//! if possible. If no other thread waits for the stream (`is_polled`), it receives the replies, too.

use super::attention::Attention;
use super::handshake::{self, ConnectError, OpenedSession};
use super::{End, Shared};
use crate::descriptors::Hidden;
use crate::poll;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval of pings on an idle connection.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Multiple of `stall` after which a request without a reply has failed, even if other bytes arrive.
const OVERDUE_FACTOR: u32 = 4;
/// Interval between two attempts to open another stream.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Largest number of consecutive streams that break without a single reply.
const MOST_FRUITLESS_STREAMS: usize = 3;

impl Shared {
    /// Runs the watcher thread until the server is lost or the connection is closed.
    pub(super) fn watch_until_lost(
        self: Arc<Self>,
        mut stream: Arc<Hidden<TcpStream>>,
        writer: JoinHandle<()>,
    ) {
        let mut writer = Some(writer);
        let mut fruitless = 0;
        let why = loop {
            let result = self.watch(&stream);
            self.cut(&stream);
            if let Some(writer) = writer.take() {
                let _ = writer.join();
            }
            self.put_back();
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
            self.go_on_with(&stream);
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

    /// Puts the request of an incomplete reply back (RECEIVE-2). After that no thread receives over the
    /// stream, which was cut.
    fn put_back(&self) {
        let mut reading = self.reading();
        self.polled.store(-1, Relaxed); // Relaxed: as in `receive`
        if let Some((tag, pending)) = reading.stop() {
            self.lock().unanswered(tag, pending);
        }
    }

    /// Opens the session's next stream. The error is the reason of the failure.
    fn resume(&self, why: &str) -> Result<Arc<Hidden<TcpStream>>, String> {
        let until = Instant::now() + self.options.stall;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let error = match self.reconnect(left.max(Duration::from_millis(1))) {
                Ok(OpenedSession { stream, .. }) => return Ok(Arc::new(stream)),
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
        opened.stream.set_write_timeout(Some(self.options.stall)).map_err(failed)?;
        Ok(opened)
    }

    /// Watches a stream until it fails or is closed.
    fn watch(&self, stream: &TcpStream) -> StreamResult {
        let mut attention = Attention::new(self.options.stall);
        loop {
            attention.looks(Instant::now());
            let mut reading = self.reading();
            // Also if another thread waits for the stream: it may not have run since the last check.
            let any = self.receive(&mut reading);
            let end = reading.take_end();
            let checked = || {
                if !any {
                    self.still_there(&attention, reading.last, reading.got > 0)?;
                }
                self.not_overdue(&attention)
            };
            if let Some(end) = end.or_else(|| checked().err()) {
                return StreamResult { any: reading.any, end };
            }
            let interval = self.options.check_interval();
            // Relaxed: a hint; a thread that begins to wait for the stream receives the replies, too.
            if self.is_polled.load(Relaxed) {
                drop(self.wakes.wait_timeout(reading, interval).unwrap_or_else(PoisonError::into_inner));
            } else {
                drop(reading);
                // After an error the stream is read, which reports the reason.
                let _ = poll::wait(&mut [poll::readable(stream.as_raw_fd())], Some(interval));
            }
        }
    }

    /// Decides, when nothing has arrived, whether the server is silent for too long. Sends a ping on an idle
    /// connection.
    fn still_there(&self, attention: &Attention, last: Instant, in_the_middle: bool) -> Result<(), End> {
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

    fn not_overdue(&self, attention: &Attention) -> Result<(), End> {
        match self.lock().oldest().map(|since| attention.waited(since)) {
            Some(old) if old >= self.options.stall * OVERDUE_FACTOR => {
                Err(End::Silent(format!("a request is {:.1} s old", old.as_secs_f64())))
            }
            _ => Ok(()),
        }
    }
}

/// Result of watching a stream.
struct StreamResult {
    /// Set if at least one reply was received.
    any: bool,
    end: End,
}
