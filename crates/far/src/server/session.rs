//! One client of a memory server: its pages, its requests.

use super::book::{Book, Stored};
use super::mischief::{Act, Mischief};
use super::room::Share;
use super::{Counters, HANDSHAKE, Shared};
use crate::digest::Digest;
use crate::wire::{HEADER, Header, Kind, Open, Opened, WireError, auth};
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Why a session ended.
#[derive(Debug)]
enum Ended {
    /// The client has gone, or the connection broke.
    Gone,
    /// The client said what cannot be said.
    Nonsense,
    /// A test wanted it.
    Mischief,
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

impl From<WireError> for Ended {
    fn from(_: WireError) -> Self {
        Self::Nonsense
    }
}

/// What a session is spoken over.
pub(super) trait Stream: Read + Write {
    /// Reads fail after so long.
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

struct Session<'a, S> {
    stream: S,
    share: Share<'a>,
    page_bytes: usize,
    book: Book<'a>,
    /// Memory of pages that were forgotten, for those that come.
    spare: Vec<Box<[u8]>>,
    counters: &'a Counters,
    mischief: Option<&'a dyn Mischief>,
}

/// Serves one connection until it ends. Its pages are given back then.
pub(super) fn run(shared: &Shared, mut stream: impl Stream) {
    let _ = stream.limit_reads(Some(HANDSHAKE));
    if auth::admit(&mut stream, shared.setting.key.as_ref()).is_err() {
        shared.counters.turned_away.fetch_add(1, Relaxed);
        return;
    }
    let Ok(session) = open(shared, stream) else {
        shared.counters.turned_away.fetch_add(1, Relaxed);
        return;
    };
    shared.counters.sessions_ever.fetch_add(1, Relaxed);
    session.serve();
}

/// The first frame must ask for a session, and there must be room.
fn open<S: Stream>(shared: &Shared, mut stream: S) -> Result<Session<'_, S>, Ended> {
    let header = read_header(&mut stream)?;
    if header.kind != Kind::Open || header.length > 64 {
        return Err(Ended::Nonsense);
    }
    let mut payload = vec![0; header.length as usize];
    stream.read_exact(&mut payload)?;
    header.check(&payload)?;
    let wanted = Open::decode(&payload)?;
    let (share, book) = match begin(shared, &wanted) {
        Ok(begun) => begun,
        Err(why) => {
            send(&mut stream, &Header::with(Kind::Refused, header.tag, 0, why.as_bytes()), why.as_bytes())?;
            return Err(Ended::Gone);
        }
    };
    let opened = Opened { quota_bytes: share.quota(), session: book.name() }.encode();
    send(&mut stream, &Header::with(Kind::Opened, header.tag, 0, &opened), &opened)?;
    stream.limit_reads(None)?;
    Ok(Session {
        stream,
        share,
        page_bytes: wanted.page_bytes as usize,
        book,
        spare: Vec::new(),
        counters: &shared.counters,
        mischief: shared.setting.mischief.as_deref(),
    })
}

/// Room and pages of a session that wants this, or why it cannot have them.
fn begin<'a>(shared: &'a Shared, wanted: &Open) -> Result<(Share<'a>, Book<'a>), String> {
    let book = shared.shelf.open(wanted.like).map_err(|error| error.to_string())?;
    if let Some(other) = book.bytes_of_a_page().filter(|&bytes| bytes != wanted.page_bytes as usize) {
        return Err(format!("pages of {} bytes wanted, those to begin with have {other}", wanted.page_bytes));
    }
    let mut share = shared
        .room
        .reserve(wanted.reserve_bytes, shared.setting.quota_bytes)
        .map_err(|left| format!("{} bytes wanted, {left} can be had here", wanted.reserve_bytes))?;
    // Each page that two sessions have in common counts for both: either may write it, and then finds the room.
    let begins_with = book.len() as u64 * u64::from(wanted.page_bytes);
    share
        .take(begins_with)
        .map_err(|left| format!("{begins_with} bytes of another session wanted, {left} can be had here"))?;
    shared.counters.pages.fetch_add(book.len() as u64, Relaxed);
    Ok((share, book))
}

impl<S: Stream> Session<'_, S> {
    /// Until the client goes.
    fn serve(mut self) {
        while self.request().is_ok() {}
        // Relaxed: a count.
        self.counters.pages.fetch_sub(self.book.len() as u64, Relaxed);
    }

    fn request(&mut self) -> Result<(), Ended> {
        let header = read_header(&mut self.stream)?;
        match header.kind {
            Kind::Put => self.put(&header),
            _ if header.length != 0 => Err(Ended::Nonsense),
            Kind::Get => self.get(&header),
            Kind::Free => {
                self.forget(header.page);
                Ok(())
            }
            Kind::Ping => self.answer(Kind::Pong, &header),
            _ => Err(Ended::Nonsense),
        }
    }

    fn act(&mut self, is_put: bool, page: u64) -> Result<Act, Ended> {
        match self.mischief.map_or(Act::Serve, |mischief| mischief.act(is_put, page)) {
            Act::Die => Err(Ended::Mischief),
            Act::Stall => {
                // Takes what comes and says nothing, until the connection is closed.
                let _ = io::copy(&mut self.stream, &mut io::sink());
                Err(Ended::Mischief)
            }
            act => Ok(act),
        }
    }

    fn answer(&mut self, kind: Kind, request: &Header) -> Result<(), Ended> {
        Ok(send(&mut self.stream, &Header::bare(kind, request.tag, request.page), &[])?)
    }

    fn put(&mut self, header: &Header) -> Result<(), Ended> {
        if header.length as usize != self.page_bytes {
            return Err(Ended::Nonsense);
        }
        let mut bytes = self.spare.pop().unwrap_or_else(|| vec![0; self.page_bytes].into());
        self.stream.read_exact(&mut bytes)?;
        header.check(&bytes)?;
        let act = self.act(true, header.page)?;
        if act == Act::Deny {
            return self.refuse(header, "not today");
        }
        if !self.book.has(header.page)
            && let Err(left) = self.share.take(self.page_bytes as u64)
        {
            self.spare.push(bytes);
            return self
                .refuse(header, &format!("no room: a page has {} bytes, {left} are left", self.page_bytes));
        }
        match self.book.put(header.page, Stored { bytes, digest: header.digest }) {
            Some(old) => self.spare.extend(Book::alone(old)),
            None => drop(self.counters.pages.fetch_add(1, Relaxed)),
        }
        self.counters.puts.fetch_add(1, Relaxed);
        self.answer(Kind::Stored, header)
    }

    fn refuse(&mut self, header: &Header, why: &str) -> Result<(), Ended> {
        self.counters.refused.fetch_add(1, Relaxed);
        let refused =
            Header { page: header.page, ..Header::with(Kind::Refused, header.tag, 0, why.as_bytes()) };
        Ok(send(&mut self.stream, &refused, why.as_bytes())?)
    }

    fn get(&mut self, header: &Header) -> Result<(), Ended> {
        let act = self.act(false, header.page)?;
        let page = self.book.get(header.page).filter(|_| act != Act::Deny);
        let Some(page) = page else { return self.answer(Kind::Missing, header) };
        self.counters.gets.fetch_add(1, Relaxed);
        let reply = Header {
            kind: Kind::Page,
            #[expect(clippy::cast_possible_truncation, reason = "a page is at most MAX_PAYLOAD")]
            length: page.bytes.len() as u32,
            tag: header.tag,
            page: header.page,
            digest: page.digest,
        };
        if act == Act::Serve {
            return Ok(send(&mut self.stream, &reply, &page.bytes)?);
        }
        let (reply, bytes) = spoil(act, reply, page.bytes.to_vec());
        Ok(send(&mut self.stream, &reply, &bytes)?)
    }

    fn forget(&mut self, page: u64) {
        if let Some(old) = self.book.forget(page) {
            self.share.give_back(self.page_bytes as u64);
            self.counters.pages.fetch_sub(1, Relaxed);
            // A few are kept, the rest is memory that somebody else may want.
            if self.spare.len() < 4 {
                self.spare.extend(Book::alone(old));
            }
        }
    }
}

/// A page as a server gives it that lies or is broken.
fn spoil(act: Act, reply: Header, mut bytes: Vec<u8>) -> (Header, Vec<u8>) {
    let middle = bytes.len() / 2;
    match act {
        Act::Zeros => bytes.fill(0),
        Act::Babble => return (Header { length: 0, ..reply }, vec![b'?'; bytes.len()]),
        _ => bytes[middle] ^= 4,
    }
    let digest = if act == Act::Damage { reply.digest } else { Digest::of(&bytes) };
    (Header { digest, ..reply }, bytes)
}

fn read_header(stream: &mut impl Stream) -> Result<Header, Ended> {
    let mut bytes = [0; HEADER];
    stream.read_exact(&mut bytes)?;
    Ok(Header::decode(&bytes)?)
}

/// A frame in one call of the system, or as few as the stream takes.
fn send(stream: &mut impl Stream, header: &Header, payload: &[u8]) -> io::Result<()> {
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
