//! Connection setup: connects to a memory server, proves the key, and opens or resumes a session.

use crate::descriptors::{Hidden, with_room};
use crate::wire::auth::{self, AuthError, AuthKey, Handshake};
use crate::wire::{HEADER, Header, Kind, Open, Opened};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Options of connections to servers.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionOptions {
    pub(crate) page_bytes: u32,
    pub(crate) reserve_bytes: u64,
    pub(crate) stall: Duration,
    pub(crate) key: Option<AuthKey>,
    /// Session from which the new session copies its initial pages; 0 for none.
    pub(crate) like: u128,
    /// Each page has only one replica: a silent server gets a second connection attempt before it counts as
    /// lost.
    pub(crate) alone: bool,
}

impl ConnectionOptions {
    /// Returns the interval at which a waiting thread checks the server: several times per `stall`
    /// (`attention`).
    pub(super) fn check_interval(&self) -> Duration {
        (self.stall / 4).clamp(Duration::from_millis(1), Duration::from_millis(200))
    }
}

/// A connection to a memory server failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The connection could not be opened.
    #[error("cannot connect to memory server {server}")]
    Connect {
        /// Address of the server.
        server: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The handshake failed.
    #[error("the handshake with memory server {server} failed")]
    Auth {
        /// Address of the server.
        server: String,
        /// Reason for the failure.
        source: AuthError,
    },
    /// The server has no memory left, or its reply is malformed.
    #[error("memory server {server} refused: {why}")]
    Refused {
        /// Address of the server.
        server: String,
        /// Reason that it reported.
        why: String,
    },
}

impl ConnectError {
    /// Returns `true` if the server does not answer: it has ended, is stopped, or the network failed. An
    /// address that cannot be an address is a mistake, not a lost server.
    pub(crate) fn is_unanswered(&self) -> bool {
        match self {
            Self::Connect { source, .. } => source.kind() != io::ErrorKind::InvalidInput,
            Self::Auth { source, .. } => matches!(source, AuthError::Io(_)),
            Self::Refused { .. } => false,
        }
    }

    /// Returns `true` if another attempt may succeed soon, because the network failed and not the server.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Connect { source, .. } => source.kind() != io::ErrorKind::ConnectionRefused,
            Self::Auth { source, .. } => matches!(source, AuthError::Io(_)),
            Self::Refused { .. } => false,
        }
    }
}

/// An open session: its stream and its identifier.
#[derive(Debug)]
pub(super) struct OpenedSession {
    pub(super) stream: Hidden<TcpStream>,
    pub(super) session: u128,
}

/// Connects to the first address of this host name that accepts a connection.
pub(super) fn dial(server: &str, stall: Duration) -> Result<TcpStream, ConnectError> {
    let failed = |source| ConnectError::Connect { server: server.into(), source };
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
    for address in with_room(|| server.to_socket_addrs()).map_err(failed)? {
        match dial_to(address, stall) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

/// Connects to a known address.
pub(super) fn dial_to(address: SocketAddr, within: Duration) -> io::Result<TcpStream> {
    let stream = with_room(|| TcpStream::connect_timeout(&address, within))?;
    // On the loopback interface, a socket can connect to itself if its port has no listener.
    if stream.local_addr()? == address {
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "no server listens there"));
    }
    Ok(stream)
}

/// Opens a new session over this stream.
pub(super) fn open(
    stream: TcpStream,
    server: &str,
    options: &ConnectionOptions,
) -> Result<OpenedSession, ConnectError> {
    let ConnectionOptions { page_bytes, reserve_bytes, like, .. } = *options;
    let open = Open { page_bytes, reserve_bytes, like }.encode();
    begin(stream, server, options, |_| (Kind::Open, open.to_vec()))
}

/// Resumes a session over a new stream after the session's stream was lost.
pub(super) fn resume(
    stream: TcpStream,
    server: &str,
    options: &ConnectionOptions,
    session: u128,
) -> Result<OpenedSession, ConnectError> {
    let opened =
        begin(stream, server, options, |handshake| (Kind::Resume, handshake.proof(session).to_vec()))?;
    if opened.session != session {
        let why = "it resumes another session".into();
        return Err(ConnectError::Refused { server: server.into(), why });
    }
    Ok(opened)
}

fn begin(
    mut stream: TcpStream,
    server: &str,
    options: &ConnectionOptions,
    first: impl FnOnce(&Handshake) -> (Kind, Vec<u8>),
) -> Result<OpenedSession, ConnectError> {
    let failed = |source| ConnectError::Connect { server: server.into(), source };
    stream.set_nodelay(true).map_err(failed)?;
    stream.set_read_timeout(Some(options.stall)).map_err(failed)?;
    stream.set_write_timeout(Some(options.stall)).map_err(failed)?;
    let handshake = auth::introduce(&mut stream, options.key.as_ref())
        .map_err(|source| ConnectError::Auth { server: server.into(), source })?;
    let (kind, payload) = first(&handshake);
    stream.write_all(&Header::with(kind, 0, 0, &payload).encode()).map_err(failed)?;
    stream.write_all(&payload).map_err(failed)?;
    let Opened { session, .. } = opened(&mut stream)
        .map_err(failed)?
        .map_err(|why| ConnectError::Refused { server: server.into(), why })?;
    Ok(OpenedSession { stream: Hidden::new(stream), session })
}

/// Reads the reply to the first frame. The inner error is the server's message.
fn opened(stream: &mut TcpStream) -> io::Result<Result<Opened, String>> {
    let mut head = [0; HEADER];
    stream.read_exact(&mut head)?;
    let header = match Header::decode(&head) {
        Ok(header) if header.length <= 4096 => header,
        Ok(header) => return Ok(Err(format!("a first answer of {} bytes", header.length))),
        Err(error) => return Ok(Err(error.to_string())),
    };
    let mut payload = vec![0; header.length as usize];
    stream.read_exact(&mut payload)?;
    Ok(match (header.check(&payload), header.kind) {
        (Err(error), _) => Err(error.to_string()),
        (Ok(()), Kind::Opened) => Opened::decode(&payload).map_err(|error| error.to_string()),
        (Ok(()), Kind::Refused) => Err(String::from_utf8_lossy(&payload).into_owned()),
        (Ok(()), kind) => Err(format!("a first answer of kind {kind:?}")),
    })
}
