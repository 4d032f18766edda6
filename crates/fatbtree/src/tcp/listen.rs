//! The listener for other nodes. A handshake authenticates each connection, then the node receives frames on
//! it.
//!
//! - **LISTEN-1** The number of unauthenticated connections is bounded, each has a time limit, and nothing
//!   that they send is stored. A new one replaces an old one, so a flood of silent connections excludes no
//!   node ([`unauthenticated`](super::unauthenticated)).
//! - **LISTEN-2** A member has one connection. A newer connection ends the older one, which may have failed
//!   without notice.
//! - **LISTEN-3** Memory for a frame grows with the bytes that have arrived, never with the length in its
//!   header.
//! - **LISTEN-4** A refused frame ends its connection and changes nothing.

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
use crate::tcp::handshake::{self, HandshakeError, Identity};
use crate::tcp::inbound::InboundConnections;
use crate::tcp::links::{CALL_TIMEOUT, Links, set_socket_options, tell};
use crate::tcp::unauthenticated::Unauthenticated;

/// Pause after a failed accept, for instance if no descriptor is free.
const PAUSE: Duration = Duration::from_millis(20);
/// Size in bytes beyond which a frame buffer is freed after use.
const KEPT_BYTES: usize = 1 << 20;

/// Counters of inbound connections, and the last refusals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerStatus {
    /// Connections that passed the handshake.
    pub admitted: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Connections of members that were closed because of invalid frames.
    pub ended: u64,
    /// Addresses and reasons of the last connections that were refused or closed.
    pub last_refusals: VecDeque<String>,
}

/// Maximum of remembered refusals.
const KEPT_REFUSALS: usize = 8;

impl ListenerStatus {
    fn note(&mut self, refusal: String) {
        self.last_refusals.push_back(refusal);
        if self.last_refusals.len() > KEPT_REFUSALS {
            self.last_refusals.pop_front();
        }
    }
}

pub(super) struct NodeListener {
    /// Identity of this node, without its store and its list of members.
    pub(super) me: Identity,
    pub(super) key: AuthKey,
    pub(super) links: Rc<Links>,
    pub(super) node: Rc<Node>,
    pub(super) status: RefCell<ListenerStatus>,
    pub(super) inbound: Rc<InboundConnections>,
    /// Limits the log events that unauthenticated peers can cause.
    pub(super) refusals: RateLimit,
}

impl NodeListener {
    /// Accepts connections, and never returns.
    pub(super) async fn listen(self: Rc<Self>, listener: TcpListener) {
        let unauthenticated = Rc::new(Unauthenticated::default());
        loop {
            match listener.accept().await {
                Ok((stream, address)) => {
                    let (listener, unauthenticated) = (Rc::clone(&self), Rc::clone(&unauthenticated));
                    let (number, must_close) = unauthenticated.admit(address.ip());
                    tokio::task::spawn_local(async move {
                        let shown = tokio::select! {
                            shown = listener.authenticate(stream) => shown,
                            _ = must_close => Err(HandshakeError::TooMany),
                        };
                        unauthenticated.leave(number);
                        match shown {
                            Ok((stream, pe)) => listener.serve(stream, pe, address).await,
                            Err(error) => listener.refuse(address, &tell(&error)),
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
        let mut status = self.status.borrow_mut();
        status.refused += 1;
        status.note(format!("{address}: {why}"));
    }

    async fn authenticate(&self, mut stream: TcpStream) -> Result<(TcpStream, PeId), HandshakeError> {
        set_socket_options(&stream)?;
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
        let (number, must_close) = self.inbound.admit(pe);
        self.links.came(pe);
        self.status.borrow_mut().admitted += 1;
        let mut stream = BufReader::with_capacity(64 << 10, stream);
        let suspensions = self.node.suspensions();
        let take = |bytes: &[u8]| match self.node.suspensions() == suspensions {
            true => self.node.receive_from(pe, bytes),
            false => Err(FrameError::Suspended),
        };
        let ended = tokio::select! {
            ended = receive_all(&mut stream, take) => ended,
            _ = must_close => Ok(()),
        };
        if let Err(FrameError::Suspended) = ended {
            tracing::info!(node = pe.0, %address, "connection closed: this process was suspended (BEAT-5)");
        } else if let Err(error) = ended {
            let reason = tell(&error);
            tracing::warn!(node = pe.0, %address, reason, "connection of a node ended: bad frame");
            let mut status = self.status.borrow_mut();
            status.ended += 1;
            status.note(format!("{pe} at {address}: {reason}"));
        }
        self.inbound.left(pe, number);
    }
}

/// Passes every frame of a stream to `take`, without its length, until the stream ends or a frame is refused.
///
/// # Errors
///
/// [`FrameError`]: the last frame was not valid. A stream that ends between two frames is no error.
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
            // A connection that fails between two frames has lost none of them.
            Err(_) => return Ok(()),
        }
        stream.read_exact(&mut head[1..]).await.map_err(FrameError::Read)?;
        let bytes = frame::length(head)?;
        body.clear();
        // LISTEN-3: the buffer grows with the bytes that arrive.
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
