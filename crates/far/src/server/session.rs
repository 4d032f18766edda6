//! The session of one client of a memory server: its pages and its requests.

use super::capacity::Share;
use super::fault_injector::InjectedAction;
use super::resume::Visitor;
use super::session_pages::{SessionPages, Stored};
use super::{ConnectionGuard, LOGIN, Shared};
use crate::digest::Digest;
use crate::wire::auth::{self, Handshake};
use crate::wire::{HEADER, Header, Kind, MAX_PAYLOAD, Open, Opened, WireError};
use std::io::{self, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Largest size of the freed buffers that are kept for reuse, in bytes: the largest size of a run.
const SPARE: usize = MAX_PAYLOAD as usize;

/// Reason for the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// The client disconnected, or the connection broke.
    Gone,
    /// The client violated the protocol, or the network damaged a frame.
    ProtocolError,
    /// The client ended the session.
    Bye,
    /// A test injected the end of the connection.
    Injected,
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

impl From<WireError> for Ended {
    fn from(_: WireError) -> Self {
        Self::ProtocolError
    }
}

/// Byte stream of a session: a TCP connection or a Unix socket.
pub(super) trait Stream: Read + Write {
    /// Sets the timeout of reads.
    fn limit_reads(&self, timeout: Option<Duration>) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn limit_reads(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(timeout)
    }
}

impl Stream for UnixStream {
    fn limit_reads(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(timeout)
    }
}

/// A stream with a deadline for the whole login. Bytes that arrive slowly do not extend the deadline.
struct Login<'a, S> {
    stream: &'a mut S,
    until: Instant,
}

impl<S: Stream> Read for Login<'_, S> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.limit_reads(Some(left))?;
        self.stream.read(to)
    }
}

impl<S: Stream> Write for Login<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

struct Session<'a, S> {
    shared: &'a Shared,
    stream: S,
    share: Share<'a>,
    page_bytes: usize,
    session_pages: SessionPages<'a>,
    /// Buffers of freed pages, reused for new pages.
    spare: Vec<Box<[u8]>>,
}

/// A new stream for a session, stored at its resume point.
#[derive(Debug)]
pub(super) struct Newcomer {
    stream: TcpStream,
    guard: ConnectionGuard,
    /// Tag of the request that resumed the session.
    tag: u64,
}

impl Visitor for Newcomer {
    fn number(&self) -> u64 {
        self.guard.number()
    }
}

/// First message of a connection.
enum First {
    Open { wanted: Open, tag: u64 },
    Resume { handshake: Handshake, proof: [u8; Handshake::PROOF], tag: u64 },
}

/// Serves one connection until it ends, then frees its pages.
pub(super) fn run(shared: &Shared, mut stream: impl Stream) {
    let session = first(shared, &mut stream).and_then(|first| match first {
        First::Open { wanted, tag } => open(shared, stream, &wanted, tag),
        First::Resume { tag, .. } => {
            refuse_first(&mut stream, tag, "this server keeps no session for a client that reconnects")?;
            Err(Ended::ProtocolError)
        }
    });
    match session {
        Ok(mut session) => drop(session.serve()),
        Err(_) => drop(shared.counters.turned_away.fetch_add(1, Relaxed)),
    }
}

/// Serves a session over its connection and, when that breaks, over the connections that replace it.
pub(super) fn run_in_turn(shared: &Shared, mut stream: TcpStream, guard: ConnectionGuard) {
    let session = first(shared, &mut stream).and_then(|first| match first {
        First::Open { wanted, tag } => {
            let session = open(shared, stream, &wanted, tag)?;
            guard.log_in();
            Ok(Some((session, guard)))
        }
        First::Resume { handshake, proof, tag } => {
            let newcomer = Newcomer { stream, guard, tag };
            leave(shared, &handshake, &proof, newcomer).map(|()| None)
        }
    });
    match session {
        Ok(Some((session, guard))) => session.serve_in_turn(guard),
        Ok(None) => {}
        Err(_) => drop(shared.counters.turned_away.fetch_add(1, Relaxed)),
    }
}

/// Passes the connection to the session for which the client has proved the name.
fn leave(shared: &Shared, handshake: &Handshake, proof: &[u8], newcomer: Newcomer) -> Result<(), Ended> {
    // A resumed session counts as logged in: a flood of new connections must not displace it.
    newcomer.guard.log_in();
    match shared.resume_table.leave(|name| handshake.proves(name, proof), newcomer) {
        Ok(old) => {
            old.into_iter().for_each(|connection| shared.end_connection(connection));
            Ok(())
        }
        Err(Newcomer { mut stream, guard: _seat, tag }) => {
            refuse_first(&mut stream, tag, "no such session: it has ended, or waited too long")?;
            Err(Ended::Gone)
        }
    }
}

/// Performs the handshake and reads the first frame.
fn first(shared: &Shared, stream: &mut impl Stream) -> Result<First, Ended> {
    let stream = &mut Login { stream, until: Instant::now() + LOGIN };
    let handshake = auth::admit(stream, shared.setting.key.as_ref()).map_err(|_| Ended::ProtocolError)?;
    let header = read_header(stream)?;
    if !matches!(header.kind, Kind::Open | Kind::Resume) || header.length > 64 {
        return Err(Ended::ProtocolError);
    }
    let mut payload = vec![0; header.length as usize];
    stream.read_exact(&mut payload)?;
    header.check(&payload)?;
    let tag = header.tag;
    if header.kind == Kind::Open {
        return Ok(First::Open { wanted: Open::decode(&payload)?, tag });
    }
    let proof = payload.try_into().map_err(|_| Ended::ProtocolError)?;
    Ok(First::Resume { handshake, proof, tag })
}

fn refuse_first(stream: &mut impl Stream, tag: u64, why: &str) -> io::Result<()> {
    Header::with(Kind::Refused, tag, 0, why.as_bytes()).send(stream, why.as_bytes())
}

/// Opens a session if there is enough memory, and sends the reply.
fn open<'a, S: Stream>(
    shared: &'a Shared,
    mut stream: S,
    wanted: &Open,
    tag: u64,
) -> Result<Session<'a, S>, Ended> {
    let (share, session_pages) = match begin(shared, wanted) {
        Ok(begun) => begun,
        Err(why) => {
            refuse_first(&mut stream, tag, &why)?;
            return Err(Ended::Gone);
        }
    };
    let page_bytes = wanted.page_bytes as usize;
    let mut session = Session { shared, stream, share, page_bytes, session_pages, spare: Vec::new() };
    session.greet(tag)?;
    shared.counters.sessions_ever.fetch_add(1, Relaxed);
    Ok(session)
}

/// Reserves memory for a session, or returns the reason for refusing it.
fn begin<'a>(shared: &'a Shared, wanted: &Open) -> Result<(Share<'a>, SessionPages<'a>), String> {
    let session_pages = shared.directory.open(wanted.like).map_err(|error| error.to_string())?;
    if let Some(other) = session_pages.bytes_of_a_page().filter(|&bytes| bytes != wanted.page_bytes as usize)
    {
        return Err(format!(
            "pages of {} bytes requested, but the parent's session has pages of {other}",
            wanted.page_bytes
        ));
    }
    // A session that only waits for its client to reconnect is ended for a new session (RESUME-3).
    while shared.resume_table.count() >= shared.setting.max_sessions {
        if !shared.resume_table.make_way() {
            return Err(format!("the limit of {} sessions is reached", shared.setting.max_sessions));
        }
    }
    let quota = shared.setting.quota_bytes;
    let mut share = with_capacity(shared, || shared.capacity.reserve(wanted.reserve_bytes, quota))
        .map_err(|left| refusal(wanted.reserve_bytes, left))?;
    // A page that two sessions share counts for both: either session may replace it, and then needs memory
    // for a copy.
    let begins_with = session_pages.len() as u64 * u64::from(wanted.page_bytes);
    with_capacity(shared, || share.take(begins_with)).map_err(|left| {
        format!("{begins_with} bytes of another session wanted, {left} are available here")
    })?;
    shared.counters.pages.fetch_add(session_pages.len() as u64, Relaxed);
    Ok((share, session_pages))
}

fn refusal(wanted: u64, left: u64) -> String {
    format!(
        "{wanted} bytes wanted, {left} are available here; use another server, or one with more --capacity"
    )
}

/// Requests memory. On failure, ends waiting sessions one by one and retries (RESUME-3).
fn with_capacity<R>(shared: &Shared, mut ask: impl FnMut() -> Result<R, u64>) -> Result<R, u64> {
    loop {
        match ask() {
            Err(_) if shared.resume_table.make_way() => {}
            answer => return answer,
        }
    }
}

impl Session<'_, TcpStream> {
    /// Serves until the client ends the session or does not reconnect in time.
    fn serve_in_turn(mut self, guard: ConnectionGuard) {
        let resume_point = self.shared.resume_table.open(self.session_pages.name(), guard.number());
        let mut guard = Some(guard);
        loop {
            let ended = self.serve();
            let _ = self.stream.shutdown(Shutdown::Both);
            drop(guard.take());
            if !matches!(ended, Ended::Gone | Ended::ProtocolError) {
                break;
            }
            let Some(newcomer) = resume_point.wait(self.shared.setting.linger) else { break };
            (self.stream, guard) = (newcomer.stream, Some(newcomer.guard));
            // If this stream is already broken, another stream may arrive.
            if self.greet(newcomer.tag).is_ok() {
                self.shared.counters.resumed.fetch_add(1, Relaxed);
            }
        }
        // The memory is freed before the resume point is removed, so a client that waits for the memory gets
        // it.
        drop(self);
        drop(resume_point);
    }
}

impl<S> Drop for Session<'_, S> {
    fn drop(&mut self) {
        // Relaxed: a counter.
        self.shared.counters.pages.fetch_sub(self.session_pages.len() as u64, Relaxed);
    }
}

impl<S: Stream> Session<'_, S> {
    /// Reports to the client that the session is served over this stream.
    fn greet(&mut self, tag: u64) -> io::Result<()> {
        let opened = Opened { quota_bytes: self.share.quota(), session: self.session_pages.name() }.encode();
        Header::with(Kind::Opened, tag, 0, &opened).send(&mut self.stream, &opened)?;
        self.stream.limit_reads(None)
    }

    /// Serves requests until the client disconnects or the stream breaks.
    fn serve(&mut self) -> Ended {
        loop {
            if let Err(ended) = self.request() {
                return ended;
            }
        }
    }

    fn request(&mut self) -> Result<(), Ended> {
        let header = read_header(&mut self.stream)?;
        match header.kind {
            Kind::Put => self.put(&header),
            _ if header.length != 0 => Err(Ended::ProtocolError),
            Kind::Get => self.get(&header),
            _ if header.more != 0 => Err(Ended::ProtocolError),
            Kind::Free => {
                self.forget(header.page);
                Ok(())
            }
            Kind::Ping => self.answer(Kind::Pong, &header),
            Kind::Reserve => self.reserve(&header),
            Kind::Bye => Err(Ended::Bye),
            _ => Err(Ended::ProtocolError),
        }
    }

    fn act(&mut self, is_put: bool, page: u64) -> Result<InjectedAction, Ended> {
        match self
            .shared
            .setting
            .fault_injector
            .as_ref()
            .map_or(InjectedAction::Serve, |fault_injector| fault_injector.act(is_put, page))
        {
            InjectedAction::Die => Err(Ended::Injected),
            InjectedAction::Stall => {
                // Reads without replying until the connection is closed.
                let _ = io::copy(&mut self.stream, &mut io::sink());
                Err(Ended::Injected)
            }
            act => Ok(act),
        }
    }

    fn answer(&mut self, kind: Kind, request: &Header) -> Result<(), Ended> {
        Ok(Header::bare(kind, request.tag, request.page).send(&mut self.stream, &[])?)
    }

    fn put(&mut self, header: &Header) -> Result<(), Ended> {
        let pages = self.pages_of(header)?;
        if u64::from(header.length) != (pages.end - pages.start) * self.page_bytes as u64 {
            return Err(Ended::ProtocolError);
        }
        let run = self.receive(header)?;
        let acts = pages.clone().map(|page| self.act(true, page)).collect::<Result<Vec<_>, _>>()?;
        if acts.contains(&InjectedAction::Deny) {
            return self.refuse(header, "not today");
        }
        let mut stored = 0;
        for (page, new) in pages.zip(run) {
            if let Err(left) = self.store(page, new) {
                if stored == 0 {
                    let why = format!("no room: a page has {} bytes, {left} are left", self.page_bytes);
                    return self.refuse(header, &why);
                }
                break;
            }
            stored += 1;
        }
        let answer = Header { more: stored - 1, ..Header::bare(Kind::Stored, header.tag, header.page) };
        Ok(answer.send(&mut self.stream, &[])?)
    }

    /// Returns the pages of a request. The error is that they are too many for a run.
    fn pages_of(&self, header: &Header) -> Result<Range<u64>, Ended> {
        let pages = u64::from(header.more) + 1;
        let end = header.page.checked_add(pages).ok_or(Ended::ProtocolError)?;
        let fits = pages * self.page_bytes as u64 <= u64::from(MAX_PAYLOAD);
        if fits { Ok(header.page..end) } else { Err(Ended::ProtocolError) }
    }

    /// Receives the bytes of a run and checks them against the digest in the header.
    fn receive(&mut self, header: &Header) -> Result<Vec<Stored>, Ended> {
        let blank = |spare: Option<Box<[u8]>>| spare.unwrap_or_else(|| vec![0; self.page_bytes].into());
        let mut run: Vec<Box<[u8]>> = (0..=header.more).map(|_| blank(self.spare.pop())).collect();
        let mut into: Vec<IoSliceMut<'_>> = run.iter_mut().map(|page| IoSliceMut::new(page)).collect();
        let mut into = &mut into[..];
        while !into.is_empty() {
            match self.stream.read_vectored(into) {
                Ok(0) => return Err(Ended::Gone),
                Ok(n) => IoSliceMut::advance_slices(&mut into, n),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        let stored = |bytes: Box<[u8]>| Stored { digest: Digest::of(&bytes), bytes };
        let run: Vec<Stored> = run.into_iter().map(stored).collect();
        header.check_run(run.iter().map(|page| page.digest))?;
        Ok(run)
    }

    fn reserve(&mut self, header: &Header) -> Result<(), Ended> {
        match with_capacity(self.shared, || self.share.reserve(header.page)) {
            Ok(()) => self.answer(Kind::Reserved, header),
            Err(most) => self.refuse(header, &refusal(header.page, most)),
        }
    }

    /// Stores a page. The error is the number of bytes that are left.
    fn store(&mut self, page: u64, new: Stored) -> Result<(), u64> {
        if !self.session_pages.has(page)
            && let Err(left) = with_capacity(self.shared, || self.share.take(self.page_bytes as u64))
        {
            self.keep_spare(Some(new.bytes));
            return Err(left);
        }
        match self.session_pages.put(page, new) {
            Some(old) => self.keep_spare(SessionPages::alone(old)),
            None => drop(self.shared.counters.pages.fetch_add(1, Relaxed)),
        }
        self.shared.counters.puts.fetch_add(1, Relaxed);
        Ok(())
    }

    fn refuse(&mut self, header: &Header, why: &str) -> Result<(), Ended> {
        self.shared.counters.refused.fetch_add(1, Relaxed);
        let refused =
            Header { page: header.page, ..Header::with(Kind::Refused, header.tag, 0, why.as_bytes()) };
        Ok(refused.send(&mut self.stream, why.as_bytes())?)
    }

    fn get(&mut self, header: &Header) -> Result<(), Ended> {
        let pages = self.pages_of(header)?;
        let mut wrong = None;
        for page in pages.clone() {
            match self.act(false, page)? {
                InjectedAction::Serve => {}
                act => wrong = Some(act),
            }
        }
        let run: Option<Vec<_>> = pages.map(|page| self.session_pages.get(page)).collect();
        let Some(run) = run.filter(|_| wrong != Some(InjectedAction::Deny)) else {
            return self.answer(Kind::Missing, header);
        };
        self.shared.counters.gets.fetch_add(run.len() as u64, Relaxed);
        let reply = Header {
            kind: Kind::Page,
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the length of a run is at most MAX_PAYLOAD"
            )]
            length: run.iter().map(|page| page.bytes.len()).sum::<usize>() as u32,
            digest: Digest::of_run(run.iter().map(|page| page.digest)),
            ..*header
        };
        let Some(act) = wrong else {
            return Ok(reply.send_parts(&mut self.stream, run.iter().map(|page| &page.bytes[..]))?);
        };
        let bytes = run.iter().flat_map(|page| page.bytes.iter().copied()).collect();
        let (reply, bytes) = spoil(act, reply, self.page_bytes, bytes);
        Ok(reply.send(&mut self.stream, &bytes)?)
    }

    fn forget(&mut self, page: u64) {
        if let Some(old) = self.session_pages.forget(page) {
            self.share.give_back(self.page_bytes as u64);
            self.shared.counters.pages.fetch_sub(1, Relaxed);
            self.keep_spare(SessionPages::alone(old));
        }
    }

    /// Keeps a freed buffer for reuse, or frees it if enough buffers are kept.
    fn keep_spare(&mut self, page: Option<Box<[u8]>>) {
        if self.spare.len() * self.page_bytes < SPARE {
            self.spare.extend(page);
        }
    }
}

/// Returns the reply of a faulty server: a run with wrong bytes.
fn spoil(act: InjectedAction, reply: Header, page_bytes: usize, mut bytes: Vec<u8>) -> (Header, Vec<u8>) {
    let middle = bytes.len() / 2;
    match act {
        InjectedAction::Zeros => bytes.fill(0),
        InjectedAction::Babble => return (Header { length: 0, ..reply }, vec![b'?'; bytes.len()]),
        _ => bytes[middle] ^= 4,
    }
    let digest = if act == InjectedAction::Damage {
        reply.digest
    } else {
        Digest::of_run(bytes.chunks(page_bytes).map(Digest::of))
    };
    (Header { digest, ..reply }, bytes)
}

fn read_header(stream: &mut impl Read) -> Result<Header, Ended> {
    let mut bytes = [0; HEADER];
    stream.read_exact(&mut bytes)?;
    Ok(Header::decode(&bytes)?)
}
