//! One client connection: it reads requests, runs them, and replies when their writes are durable.
//!
//! 1. [`Connection::serve`] reads the input and runs every complete request in it, in order. Their commits
//!    are pending together.
//! 2. [`Connection::wait`] waits until all of them are durable: usually one flush of the log, shared with
//!    other connections.
//! 3. [`Connection::send`] sends the replies, as far as the socket accepts them.
//!
//! Only steps 1 and 2 may block the thread; another thread then drives the reactor (`reactor`). Between 1
//! and 2 the connection leaves the `group` that some of its requests have joined ([`Connection::leave`]).
//!
//! - **REPLY-1** No byte of a reply is sent before the commits of its request, and all commits that the
//!   request has seen, are durable.
//! - **REPLY-2** Memory is bounded. A request is bounded by [`WireLimits`]; unsent replies by a quarter of a
//!   MiB plus one reply, which [`max_reply_bytes`](crate::ServerOptions::max_reply_bytes) bounds (in a
//!   cluster: one reply for each request of a pipeline, `cluster::pipeline`). Incomplete requests of all
//!   connections together are bounded too (`budget`): beyond the bound, connections that have sent nothing
//!   for [`SLOW_TIME`] in the middle of a request are closed, those with most bytes first. If these do not
//!   hold enough, the connection that would exceed the bound is refused and closed. A connection with unsent
//!   replies reads and runs nothing. While the unsent replies of all connections together exceed the same
//!   bound, no connection runs a request, and the connection with the most replies that have been unsent for
//!   [`SLOW_TIME`] is closed.

use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use azekura_base::blocking;

use crate::budget::{FREE_BYTES, Part};
use crate::channel::{Channel, Received};
use crate::clients::{Client, Released};
use crate::engine::Pending;
use crate::error::CommandError;
use crate::events::{Refusal, Slowest};
use crate::group::{Ended, Group};
use crate::listener::Socket;
use crate::resp::{Output, Protocol, Reply, RequestReader, WireLimits};
use crate::server::Shared;
use crate::session::{Flow, Session};

/// Bytes of unsent replies after which they are sent.
const SEND_BYTES: usize = 256 << 10;
/// Time for which the requests of one read may run before another thread serves the other connections.
/// A read buffer of fast requests takes less time.
const LONG_RUN: Duration = Duration::from_millis(20);
/// Time for which replies are unsent, or the rest of a request is missing, before the connection may be
/// closed for them.
const SLOW_TIME: Duration = Duration::from_secs(1);
/// Pause of a connection while the unsent replies of all connections exceed their bound.
const PAUSE: Duration = Duration::from_millis(10);
/// Longest time for which input is read and discarded after a request was refused. If the server closed the
/// connection with unread input, the system would reset it, and the client would lose the error reply.
const DISCARD_TIME: Duration = Duration::from_secs(10);
/// Size of one read of discarded input, and the number of these reads in one turn.
const DISCARD_BYTES: usize = 16 << 10;
const DISCARD_READS: usize = 64;

/// Known state of the socket's input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Input {
    /// The last read emptied the socket.
    #[default]
    None,
    /// Input has arrived.
    Some,
    /// Input has arrived, and possibly the end of the stream: no further event will announce the end.
    ToTheEnd,
}

/// Requests that ran together, up to their commit.
#[derive(Debug)]
struct Batch {
    began: Instant,
    /// Time at which the last request ended.
    lap: Instant,
    requests: u64,
    slowest: Slowest,
}

impl Batch {
    fn begin() -> Self {
        let now = Instant::now();
        Self { began: now, lap: now, requests: 0, slowest: Slowest::default() }
    }

    /// Records a finished request, and returns its time; `command`: its index in the command table.
    fn note(&mut self, command: usize) -> Duration {
        let now = Instant::now();
        let time = now.duration_since(std::mem::replace(&mut self.lap, now));
        self.requests += 1;
        if self.requests == 1 || time > self.slowest.time {
            self.slowest = Slowest { time, command };
        }
        time
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    /// Poll token, after registration at a reactor.
    pub(crate) token: Option<usize>,
    shared: Arc<Shared>,
    client: Arc<Client>,
    channel: Channel,
    reader: RequestReader,
    session: Session,
    out: Output,
    pending: Pending,
    /// The replies in `out` depend on the result of the thread's open group.
    is_member: bool,
    /// The next request must wait until the thread's open group is closed.
    needs_group_end: bool,
    input: Input,
    /// Requests run since the last [`take_request_count`](Self::take_request_count).
    ran: u64,
    /// Requests that have run since replies were last ready to send; for the log of slow requests.
    batch: Option<Batch>,
    /// The reader may contain complete requests.
    has_requests: bool,
    /// The connection reads nothing more, and ends after the replies are sent.
    ends: bool,
    /// A logged-in client sent a request that was refused unread: its rest is discarded before the end.
    discards_rest: bool,
    /// Time until which input is discarded, once the replies are sent.
    discards_until: Option<Instant>,
    is_over: bool,
    last_input_at: Instant,
    /// Start of the time limit for handshake and login; `None` after both.
    unauthenticated_since: Option<Instant>,
    /// This connection's part of the memory for incomplete requests.
    unfinished: Part,
    /// This connection's part of the memory for unsent replies.
    unsent: Part,
    /// Time until which no request runs, because other connections have too many unsent replies.
    paused_until: Option<Instant>,
    /// Start of the period in which the client accepted no bytes.
    send_blocked_since: Option<Instant>,
    /// Removes the connection from the list of clients. Dropped last: once the list is empty, no connection
    /// uses the store.
    _released: Released,
}

impl Connection {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        client: Arc<Client>,
        released: Released,
        channel: Channel,
    ) -> Self {
        let session = Session::new(Arc::clone(shared), Arc::clone(&client));
        let is_in = session.is_authenticated();
        let unauthenticated_since = (!is_in || channel.is_handshaking()).then(Instant::now);
        let limits = if is_in { shared.options.wire } else { WireLimits::unauthenticated() };
        Self {
            token: None,
            shared: Arc::clone(shared),
            client,
            channel,
            reader: RequestReader::new(limits),
            session,
            out: Output::default(),
            pending: Pending::default(),
            is_member: false,
            needs_group_end: false,
            input: Input::Some,
            ran: 0,
            batch: None,
            has_requests: false,
            ends: false,
            discards_rest: false,
            discards_until: None,
            is_over: false,
            last_input_at: Instant::now(),
            unauthenticated_since,
            unfinished: Part::default(),
            unsent: Part::default(),
            paused_until: None,
            send_blocked_since: None,
            _released: released,
        }
    }

    /// Returns the unique number of the connection.
    pub(crate) fn id(&self) -> u64 {
        self.client.id
    }

    /// Returns the number of requests run since the last call.
    pub(crate) const fn take_request_count(&mut self) -> u64 {
        std::mem::replace(&mut self.ran, 0)
    }

    /// Returns the socket, for the poll of a reactor.
    pub(crate) fn socket(&self) -> &Socket {
        &self.client.socket
    }

    /// Records input; `is_last`: the end of the stream may follow it.
    pub(crate) fn note_input(&mut self, is_last: bool) {
        if is_last {
            self.input = Input::ToTheEnd;
        } else if self.input == Input::None {
            self.input = Input::Some;
        }
    }

    /// Returns `true` if replies wait until the client reads.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.out.is_empty() || self.channel.has_unsent()
    }

    /// Returns `true` if the connection has ended and can be dropped.
    pub(crate) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns `true` if the connection has work that waits for no event.
    pub(crate) fn is_ready(&self) -> bool {
        let ends = self.ends && self.discards_until.is_none();
        let has_work = self.has_requests || self.input != Input::None;
        self.is_over || (!self.has_unsent() && (ends || (has_work && self.paused_until.is_none())))
    }

    /// Returns `true` if commits of the connection may not be durable yet: [`wait`](Self::wait) comes before
    /// [`send`](Self::send).
    pub(crate) const fn must_wait(&self) -> bool {
        self.pending.is_some()
    }

    /// Returns `true` if requests of this connection are in the open group of the serving thread.
    pub(crate) const fn is_member(&self) -> bool {
        self.is_member
    }

    /// Returns `true` if the thread's open group must be closed before the connection is served further.
    pub(crate) const fn needs_group_end(&self) -> bool {
        self.needs_group_end
    }

    /// Records the result of the closed group: its commit ticket, or the error that replaces the replies.
    pub(crate) fn leave(&mut self, ended: &Ended) {
        if !std::mem::take(&mut self.is_member) {
            return;
        }
        match ended {
            Ok(ticket) => ticket.iter().for_each(|ticket| self.pending.add(ticket.clone())),
            Err(error) => self.fail(error.clone()),
        }
    }

    /// Replaces all replies by one error and ends the connection, because the replies may be wrong.
    fn fail(&mut self, error: CommandError) {
        self.out.clear();
        Reply::Error(error).encode(Protocol::Resp2, &mut self.out);
        self.ends = true;
        self.session.close();
    }

    /// Returns the time of the next timeout: reply, login, transaction or idle time.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let options = &self.shared.options;
        let stuck = self.send_blocked_since.map(|since| since + options.write_timeout);
        // The idle time does not count while a transaction is open, which has its own timeout, or while
        // replies are unsent.
        let silent =
            options.idle_timeout.filter(|_| !self.has_unsent()).map(|time| self.last_input_at + time);
        let session = self.session.deadline().or(silent);
        let all = [stuck, self.login_deadline(), session, self.discards_until, self.paused_until];
        all.into_iter().flatten().min()
    }

    fn login_deadline(&self) -> Option<Instant> {
        self.unauthenticated_since.map(|since| since + self.shared.options.login_timeout)
    }

    /// Reads and runs the requests that have arrived, up to one that requires the group to be closed first
    /// ([`needs_group_end`](Self::needs_group_end)). May block in the store.
    pub(crate) fn serve(&mut self, group: &mut Group) {
        self.check_deadlines();
        if self.discards_until.is_some() {
            return self.discard();
        }
        self.flush();
        if self.is_over || self.has_unsent() || self.paused_until.is_some() {
            return;
        }
        if !self.has_requests {
            self.read();
        }
        self.serve_on(group);
    }

    /// Runs the requests that remained because the group had to be closed first.
    pub(crate) fn serve_on(&mut self, group: &mut Group) {
        self.run_all(group);
        // Requests of the pipeline run after the end of the group. Until then some requests are unanswered.
        if self.is_over || (self.ends && !self.session.has_pipelined()) {
            self.session.close();
        }
    }

    fn check_deadlines(&mut self) {
        let Some(deadline) = self.deadline() else { return };
        let now = Instant::now();
        if deadline > now || self.paused_until.take_if(|until| *until <= now).is_some() {
            return;
        }
        if self.discards_until.is_some_and(|until| until <= now) {
            self.is_over = true;
        } else if self.login_deadline().is_some_and(|deadline| deadline <= now) {
            let is_shaking = self.channel.is_handshaking();
            self.refuse(if is_shaking { Refusal::NoHandshakeInTime } else { Refusal::NoPasswordInTime });
            self.is_over = true;
        } else if self.session.deadline().is_some_and(|deadline| deadline <= now) {
            self.session.check_deadlines();
            self.last_input_at = now;
        } else if self.send_blocked_since.is_some() || self.input == Input::None {
            // The write timeout has passed without progress, or the idle timeout without input.
            if self.send_blocked_since.is_some() {
                self.refuse(Refusal::RepliesNotTaken);
            }
            self.is_over = true;
        }
    }

    /// Reads once. After a read that did not fill the buffer, the socket is empty, unless the end of the
    /// stream may follow.
    fn read(&mut self) {
        if self.input == Input::None || self.ends {
            return;
        }
        let received = self.channel.receive(&self.client.socket, &mut self.reader);
        if self.session.is_authenticated() && !self.channel.is_handshaking() {
            self.unauthenticated_since = None; // only the handshake was missing
        }
        match received {
            Ok(Received::Bytes(count)) => {
                self.shared.counters.bytes_in.add(count as u64);
                self.has_requests = true;
                self.session.look_ahead(&mut self.reader);
                if self.shared.options.idle_timeout.is_some() {
                    self.last_input_at = Instant::now();
                }
                let is_clear = matches!(self.channel, Channel::Clear);
                if self.input == Input::Some && is_clear && !self.reader.is_full() {
                    self.input = Input::None;
                }
                self.account();
            }
            Ok(Received::Nothing) => self.input = Input::None,
            Ok(Received::End) => self.is_over = true,
            Err(error) => {
                if error.kind() == ErrorKind::InvalidData {
                    self.refuse(Refusal::Tls);
                }
                self.is_over = true;
            }
        }
    }

    fn refuse(&self, refusal: Refusal) {
        self.shared.events.refused(&self.client.socket.peer, refusal);
    }

    /// Counts the memory of incomplete requests. If all connections together exceed the bound, ends stalled
    /// ones, or this one.
    fn account(&mut self) {
        let most = self.shared.options.max_unfinished_bytes;
        let bytes = self.reader.held_bytes() + self.session.held_bytes();
        let was_free = self.unfinished.is_free();
        let is_within = self.unfinished.set(&self.shared.unfinished, bytes, most) || self.make_space(most);
        if !(was_free && self.unfinished.is_free()) {
            let waits = !self.has_requests && !self.unfinished.is_free();
            self.client.note_incomplete(if waits { bytes } else { 0 });
        }
        if !is_within {
            self.refuse(Refusal::TooMuchUnfinished);
            self.session.flush_pipeline(&mut self.out);
            Reply::Error(CommandError::TooMuchUnfinished(most)).encode(Protocol::Resp2, &mut self.out);
            self.reader = RequestReader::new(self.shared.options.wire);
            self.has_requests = false;
            self.ends = true;
            self.discards_rest = self.session.is_authenticated();
            self.unfinished.set(&self.shared.unfinished, 0, most);
        }
    }

    /// Ends stalled connections until all connections together hold at most `most` bytes of incomplete
    /// requests. Returns `false` if that is not possible.
    fn make_space(&self, most: usize) -> bool {
        self.client.note_incomplete(0); // this connection has just sent something
        let excess = self.shared.unfinished.held().saturating_sub(most);
        self.shared.clients.cut_stalled(excess, SLOW_TIME, |stalled| {
            self.shared.events.refused(&stalled.socket.peer, Refusal::Stalled);
        })
    }

    /// Counts the memory of unsent replies.
    fn account_unsent(&mut self) {
        let bytes = self.out.len();
        if bytes > FREE_BYTES || !self.unsent.is_free() {
            self.unsent.set(&self.shared.unsent, bytes, usize::MAX);
            self.client.note_unsent(if self.unsent.is_free() { 0 } else { bytes });
        }
    }

    /// Returns `true` if no request may run now, because too many replies of other connections are unsent.
    /// Closes a slow connection.
    fn must_pause(&mut self) -> bool {
        let most = self.shared.options.max_unfinished_bytes;
        if self.shared.unsent.held() <= most {
            return false;
        }
        if let Some(client) = self.shared.clients.cut_slowest(most, SLOW_TIME, PAUSE) {
            self.shared.events.refused(&client.socket.peer, Refusal::TooMuchUnsent);
        }
        self.paused_until = Some(Instant::now() + PAUSE);
        true
    }

    /// Runs the complete requests.
    fn run_all(&mut self, group: &mut Group) {
        self.needs_group_end = false;
        if self.has_requests && !self.ends && self.out.is_empty() && self.must_pause() {
            return;
        }
        let batch = self.batch.get_or_insert_with(Batch::begin);
        self.client.note_active(batch.began);
        let long_at = batch.lap + LONG_RUN;
        while self.has_requests && !self.ends && self.out.len() < SEND_BYTES {
            if group.is_full() {
                self.needs_group_end = true;
                break;
            }
            let members = group.members();
            let flow = match self.reader.next() {
                Ok(None) => {
                    self.has_requests = false;
                    break;
                }
                Ok(Some(request)) => {
                    let flow = self.session.execute(request, &mut self.out, &mut self.pending, group);
                    if flow != Flow::Retry {
                        // Relaxed: written by this thread.
                        let command = self.client.last_command.load(Relaxed);
                        let time_ns = u64::try_from(batch.note(command).as_nanos()).unwrap_or(u64::MAX);
                        self.shared.counters.call_time_ns.add(command, time_ns);
                        if batch.lap >= long_at {
                            blocking::announce();
                        }
                    }
                    flow
                }
                Err(error) => {
                    self.shared.counters.protocol_errors.inc();
                    let refusal = if error.is_limit() { Refusal::TooLarge } else { Refusal::Protocol };
                    self.shared.events.refused(&self.client.socket.peer, refusal);
                    self.discards_rest = self.session.is_authenticated();
                    self.session.reply(Err(CommandError::Protocol(error.to_string())), &mut self.out);
                    Flow::Close
                }
            };
            if flow == Flow::Retry {
                self.reader.take_back();
                self.needs_group_end = true;
                break;
            }
            self.ran += 1;
            self.is_member |= group.members() > members;
            self.ends |= flow == Flow::Close;
            if self.shared.options.password.is_some() {
                let is_in = self.session.is_authenticated();
                let limits = if is_in { self.shared.options.wire } else { WireLimits::unauthenticated() };
                self.reader.set_limits(limits);
                self.unauthenticated_since =
                    if is_in { None } else { self.unauthenticated_since.or_else(|| Some(Instant::now())) };
            }
        }
        if self.session.has_pipelined() && group.is_open() {
            (self.needs_group_end, self.has_requests) = (true, true); // HERE-1
            return;
        }
        self.session.flush_pipeline(&mut self.out);
        self.account_unsent();
        if self.discards_rest {
            self.reader = RequestReader::new(self.shared.options.wire);
            self.has_requests = false;
            self.unfinished.set(&self.shared.unfinished, 0, 0);
        }
        self.batch.take_if(|batch| batch.requests == 0); // only a part of a request has arrived
        if !self.has_requests && !self.ends {
            self.reader.shrink();
            self.account();
        }
    }

    /// Blocks until the commits of the requests are durable.
    pub(crate) fn wait(&mut self) {
        if let Err(error) = self.shared.engine.wait(&mut self.pending) {
            self.fail(error);
        }
    }

    /// Ends the connection without further replies: a step panicked, so no reply is known to be true
    /// (REPLY-1).
    pub(crate) fn abandon(&mut self) {
        self.shared.events.panicked(&self.client);
        self.out.clear();
        self.pending = Pending::default();
        self.is_member = false;
        self.is_over = true;
    }

    /// Sends the replies, as far as the client accepts them now.
    pub(crate) fn send(&mut self) {
        debug_assert!(!self.must_wait() && !self.is_member, "REPLY-1");
        if let Some(batch) = self.batch.take()
            && batch.requests > 0
        {
            let total = batch.began.elapsed();
            if total >= self.shared.options.slow_request {
                self.shared.events.slow(&self.client, batch.requests, batch.slowest, total);
            }
        }
        self.flush();
    }

    fn flush(&mut self) {
        if self.is_over || (self.out.is_empty() && !self.has_unsent() && !self.ends) {
            return;
        }
        while self.has_unsent() {
            let sent = match self.channel.send(&self.client.socket, &self.out) {
                Ok(0) if self.has_unsent() => {
                    // The timeout counts from the last accepted byte, so an earlier start is kept.
                    self.send_blocked_since.get_or_insert_with(Instant::now);
                    return self.account_unsent();
                }
                Ok(count) => count,
                Err(_) => {
                    self.is_over = true;
                    return;
                }
            };
            self.out.advance(sent);
            self.shared.counters.bytes_out.add(sent as u64);
            if sent > 0 && self.send_blocked_since.is_some() {
                self.send_blocked_since = Some(Instant::now());
            }
        }
        self.account_unsent();
        if self.send_blocked_since.take().is_some() {
            self.last_input_at = Instant::now();
        }
        if self.ends && !self.session.has_pipelined() {
            self.end();
        }
    }

    /// Ends the connection after its replies are sent, or begins to discard the rest of a refused request.
    fn end(&mut self) {
        if !self.discards_rest {
            self.is_over = true;
        } else if self.discards_until.is_none() {
            self.channel.close_notify(&self.client.socket);
            self.client.socket.shutdown(Shutdown::Write);
            self.discards_until = Some(Instant::now() + DISCARD_TIME);
            self.input = Input::Some; // unread input causes no further event
        }
    }

    /// Reads and discards input, up to the end of the stream.
    fn discard(&mut self) {
        let mut bytes = [0; DISCARD_BYTES];
        for _ in 0..DISCARD_READS {
            match (&self.client.socket).read(&mut bytes) {
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.input = Input::None,
                Ok(0) | Err(_) => return self.is_over = true,
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.events.panicked(&self.client);
        }
        self.channel.close_notify(&self.client.socket);
        self.unfinished.set(&self.shared.unfinished, 0, 0);
        self.unsent.set(&self.shared.unsent, 0, 0);
        // The list of clients may hold the socket too, so dropping this reference would not close it.
        self.client.cut();
    }
}
