//! One connection: a thread that reads requests, runs them, waits until what they wrote is durable, and answers.
//!
//! 1. Read what has arrived.
//! 2. Run every whole request in it, in order; their commits are under way together.
//! 3. Wait until all of them are durable: most often one flush of the log, shared with other connections.
//! 4. Send the replies; begin again.
//!
//! - **REPLY-1** No byte of a reply is sent before everything that was committed for it, or that it has seen, is durable.
//! - **REPLY-2** Memory is bounded: a request by [`WireLimits`](crate::WireLimits), the replies that wait by a quarter of a MiB and one reply, whose own bound
//!   is [`max_reply_bytes`](crate::ServerOptions::max_reply_bytes).
//!
//! A thread for each, since a request may wait for another transaction's lock: were they to share a fixed number of threads, those that wait could
//! keep the one that would let them go from running.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::clients::Client;
use crate::engine::Pending;
use crate::error::CommandError;
use crate::resp::{Protocol, Reply, RequestReader, WireLimits};
use crate::server::Shared;
use crate::session::{Flow, Session};

/// Replies are sent at the latest when so many bytes of them wait.
const SEND_BYTES: usize = 256 << 10;
/// A buffer of replies that is larger than this is given back.
const KEPT_BYTES: usize = 64 << 10;

/// Both directions of a connection.
pub(crate) trait Channel: Read + Write {}
impl<T: Read + Write> Channel for T {}

pub(crate) struct Connection<'a> {
    shared: &'a Arc<Shared>,
    client: Arc<Client>,
    channel: Box<dyn Channel + 'a>,
    reader: RequestReader,
    session: Session,
    out: Vec<u8>,
    pending: Pending,
    read_timeout: Option<Duration>,
}

impl<'a> Connection<'a> {
    pub(crate) fn new(shared: &'a Arc<Shared>, client: Arc<Client>, channel: Box<dyn Channel + 'a>) -> Self {
        let session = Session::new(Arc::clone(shared), Arc::clone(&client));
        let limits =
            if session.is_authenticated() { shared.options.wire } else { WireLimits::unauthenticated() };
        Self {
            shared,
            client,
            channel,
            reader: RequestReader::new(limits),
            session,
            out: Vec::new(),
            pending: Pending::default(),
            read_timeout: None,
        }
    }

    /// Serves until the client goes, misbehaves or is cut off. Whatever ends it, an open transaction is rolled back.
    pub(crate) fn serve(&mut self) -> io::Result<()> {
        while self.read()? > 0 {
            let flow = self.run_all();
            self.send()?;
            if flow == Flow::Ends {
                break;
            }
        }
        Ok(())
    }

    /// Waits for bytes: as long as the idle timeout or the open transaction allows.
    fn read(&mut self) -> io::Result<usize> {
        loop {
            let idle = self.shared.options.idle_timeout;
            let left = self.session.time_left();
            // Zero would mean for ever.
            let patience = left.or(idle).map(|time| time.max(Duration::from_millis(1)));
            if patience != self.read_timeout {
                self.client.stream.set_read_timeout(patience)?;
                self.read_timeout = patience;
            }
            match self.reader.fill(&mut self.channel) {
                Ok(count) => {
                    self.shared.counters.bytes_in.add(count as u64);
                    return Ok(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if left.is_none() {
                        return Err(error);
                    }
                    self.session.look_at_the_clock();
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Runs what has arrived.
    fn run_all(&mut self) -> Flow {
        loop {
            let flow = match self.reader.next() {
                Ok(None) => return Flow::Goes,
                Ok(Some(request)) => self.session.execute(request, &mut self.out, &mut self.pending),
                Err(error) => {
                    self.shared.counters.protocol_errors.inc();
                    let reply = Reply::Error(CommandError::Protocol(error.to_string()));
                    reply.encode(Protocol::Resp2, &mut self.out);
                    Flow::Ends
                }
            };
            let limits = self.shared.options.wire;
            self.reader.set_limits(if self.session.is_authenticated() {
                limits
            } else {
                WireLimits::unauthenticated()
            });
            if flow == Flow::Ends || (self.out.len() >= SEND_BYTES && self.send().is_err()) {
                return Flow::Ends;
            }
        }
    }

    /// Sends the replies that wait, once they may be (REPLY-1).
    fn send(&mut self) -> io::Result<()> {
        if let Err(error) = self.shared.engine.wait(&mut self.pending) {
            // What the replies say may not be so. One error instead of all of them, and the end.
            self.out.clear();
            Reply::Error(error).encode(Protocol::Resp2, &mut self.out);
            self.channel.write_all(&self.out)?;
            self.channel.flush()?;
            return Err(io::Error::other("the log failed"));
        }
        if self.out.is_empty() {
            return Ok(());
        }
        self.channel.write_all(&self.out)?;
        self.channel.flush()?;
        self.shared.counters.bytes_out.add(self.out.len() as u64);
        self.out.clear();
        if self.out.capacity() > KEPT_BYTES {
            self.out = Vec::new();
        }
        Ok(())
    }
}
