//! Connections of other nodes: each is shown in by the handshake, and then only frames come.
//!
//! - **LISTEN-1** Of strangers, connections that have not shown the key, there is a bounded number, each for
//!   a bounded time, and nothing of theirs is kept. A new one takes the place of an old one, so a flood of
//!   silent connections keeps no node out ([`strangers`](super::strangers)).
//! - **LISTEN-2** A member has one connection: a newer one ends the older, which may have lost its other end
//!   without a sign.
//! - **LISTEN-3** Memory for a frame grows with what has arrived of it, never with what its head says.
//! - **LISTEN-4** A frame that is refused ends its connection and changes nothing.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use azekura_auth::AuthKey;
use azekura_base::rate_limit::RateLimit;
use tokio::io::{AsyncRead, AsyncReadExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::error::FrameError;
use crate::frame;
use crate::id::PeId;
use crate::node::Node;
use crate::tcp::guests::Guests;
use crate::tcp::handshake::{self, HandshakeError, Identity};
use crate::tcp::links::{CALL_TIMEOUT, Links, care, tell};
use crate::tcp::strangers::Strangers;

/// Pause after a failure to accept: no more files, for instance.
const PAUSE: Duration = Duration::from_millis(20);
/// A buffer for frames that is larger than this is given back.
const KEPT_BYTES: usize = 1 << 20;

/// Incoming connections and refusals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Doorkeeping {
    /// Connections of members that were shown in.
    pub admitted: u64,
    /// Connections that were not.
    pub refused: u64,
    /// Connections of members that ended because of what came over them.
    pub ended: u64,
    /// From where the last ones were that were refused or ended, and why.
    pub last_refusals: VecDeque<String>,
}

/// Refusals that are remembered.
const KEPT_REFUSALS: usize = 8;

impl Doorkeeping {
    fn note(&mut self, refusal: String) {
        self.last_refusals.push_back(refusal);
        if self.last_refusals.len() > KEPT_REFUSALS {
            self.last_refusals.pop_front();
        }
    }
}

pub(super) struct Door {
    /// Identity of this node, without its store and its list.
    pub(super) me: Identity,
    pub(super) key: AuthKey,
    pub(super) links: Rc<Links>,
    pub(super) node: Rc<Node>,
    pub(super) book: RefCell<Doorkeeping>,
    pub(super) guests: Rc<Guests>,
    /// Of events that strangers can cause.
    pub(super) refusals: RateLimit,
}

impl Door {
    /// Takes connections, for ever.
    pub(super) async fn listen(self: Rc<Self>, listener: TcpListener) {
        let strangers = Rc::new(Strangers::default());
        loop {
            match listener.accept().await {
                Ok((stream, address)) => {
                    let (door, strangers) = (Rc::clone(&self), Rc::clone(&strangers));
                    let (number, must_go) = strangers.admit(address.ip());
                    tokio::task::spawn_local(async move {
                        let shown = tokio::select! {
                            shown = door.show_in(stream) => shown,
                            _ = must_go => Err(HandshakeError::TooMany),
                        };
                        strangers.leave(number);
                        match shown {
                            Ok((stream, pe)) => door.serve(stream, pe, address).await,
                            Err(error) => door.refuse(address, &tell(&error)),
                        }
                    });
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    fn refuse(&self, address: SocketAddr, why: &str) {
        if let Some(suppressed) = self.refusals.admit() {
            tracing::warn!(%address, reason = why, suppressed, "connection to the node port refused");
        }
        let mut book = self.book.borrow_mut();
        book.refused += 1;
        book.note(format!("{address}: {why}"));
    }

    async fn show_in(&self, mut stream: TcpStream) -> Result<(TcpStream, PeId), HandshakeError> {
        care(&stream)?;
        let (store, list) = (self.node.credentials(), self.node.list());
        let me = Identity { store, list, clock_ms: self.node.clock_ms(), ..self.me };
        let is_member = |pe| self.links.is_member(pe);
        let admits = async |pe, shown| self.node.admits(pe, shown).await;
        let shaking = handshake::answer(&mut stream, me, &self.key, is_member, admits);
        let pe = tokio::time::timeout(CALL_TIMEOUT, shaking).await;
        let pe = pe.unwrap_or_else(|_| Err(HandshakeError::Io(std::io::ErrorKind::TimedOut.into())))?;
        Ok((stream, pe))
    }

    async fn serve(&self, stream: TcpStream, pe: PeId, address: SocketAddr) {
        let (number, must_go) = self.guests.admit(pe);
        self.links.came(pe);
        self.book.borrow_mut().admitted += 1;
        let mut stream = BufReader::with_capacity(64 << 10, stream);
        let ended = tokio::select! {
            ended = receive_all(&mut stream, |bytes| self.node.receive_from(pe, bytes)) => ended,
            _ = must_go => Ok(()),
        };
        if let Err(error) = ended {
            let reason = tell(&error);
            tracing::warn!(node = pe.0, %address, reason, "connection of a node ended: bad frame");
            let mut book = self.book.borrow_mut();
            book.ended += 1;
            book.note(format!("{pe} at {address}: {reason}"));
        }
        self.guests.left(pe, number);
    }
}

/// Gives every frame of a stream to `take`, without its length, until the stream ends or one is refused.
///
/// # Errors
///
/// [`FrameError`]: what was wrong with the last one. A stream that ends between two frames ends well.
pub async fn receive_all(
    stream: &mut (impl AsyncRead + Unpin),
    mut take: impl FnMut(&[u8]) -> Result<(), FrameError>,
) -> Result<(), FrameError> {
    let mut body = Vec::new();
    loop {
        let mut head = [0; 4];
        match stream.read(&mut head[..1]).await {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // A connection that breaks between two frames has lost none of them.
            Err(_) => return Ok(()),
        }
        stream.read_exact(&mut head[1..]).await.map_err(FrameError::Read)?;
        let bytes = frame::length(head)?;
        body.clear();
        // LISTEN-3: it reserves a little at a time.
        let read = (&mut *stream).take(bytes as u64).read_to_end(&mut body).await;
        if read.map_err(FrameError::Read)? < bytes {
            return Err(FrameError::Read(std::io::ErrorKind::UnexpectedEof.into()));
        }
        take(&body)?;
        if body.capacity() > KEPT_BYTES {
            body = Vec::new();
        }
    }
}
