//! How a connection to a memory server begins, and begins again: dialled, the key shown, a session asked for.

use crate::descriptors::Hidden;
use crate::wire::auth::{self, AuthError, AuthKey, Meeting};
use crate::wire::{HEADER, Header, Kind, Open, Opened};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How to speak with servers.
#[derive(Clone, Debug)]
pub(crate) struct Manner {
    pub(crate) page_bytes: u32,
    pub(crate) reserve_bytes: u64,
    pub(crate) stall: Duration,
    pub(crate) key: Option<AuthKey>,
    /// The session whose pages this one begins with; 0 for none.
    pub(crate) like: u128,
    /// Nobody else has what a server has: one that is silent is worth another connection before it is given
    /// up.
    pub(crate) alone: bool,
}

impl Manner {
    /// Who waits for a server looks so often whether it still waits with reason: several times in `stall`
    /// (`attention`).
    pub(super) fn glance(&self) -> Duration {
        (self.stall / 4).clamp(Duration::from_millis(1), Duration::from_millis(200))
    }
}

/// Why a server could not be won.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No connection.
    #[error("connect to memory server {server}")]
    Connect {
        /// As it was given.
        server: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The handshake failed.
    #[error("memory server {server}")]
    Auth {
        /// As it was given.
        server: String,
        /// Why.
        source: AuthError,
    },
    /// It has no room, or answers nonsense.
    #[error("memory server {server} refuses: {why}")]
    Refused {
        /// As it was given.
        server: String,
        /// What it says.
        why: String,
    },
}

impl ConnectError {
    /// Whether it may be otherwise in a moment: the network failed, not the server.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Connect { source, .. } => source.kind() != io::ErrorKind::ConnectionRefused,
            Self::Auth { source, .. } => matches!(source, AuthError::Io(_)),
            Self::Refused { .. } => false,
        }
    }
}

/// A session's stream, and the session's name.
#[derive(Debug)]
pub(super) struct Met {
    pub(super) stream: Hidden<TcpStream>,
    pub(super) session: u128,
}

/// Connects to the first address of this name that can be had.
pub(super) fn dial(server: &str, stall: Duration) -> Result<TcpStream, ConnectError> {
    let failed = |source| ConnectError::Connect { server: server.into(), source };
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name stands for no address");
    for address in server.to_socket_addrs().map_err(failed)? {
        match dial_to(address, stall) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

/// The same with the address known.
pub(super) fn dial_to(address: SocketAddr, within: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, within)?;
    // On this machine, a port where nobody listens can connect to itself.
    if stream.local_addr()? == address {
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens there"));
    }
    Ok(stream)
}

/// A session of its own, over this stream.
pub(super) fn open(stream: TcpStream, server: &str, manner: &Manner) -> Result<Met, ConnectError> {
    let Manner { page_bytes, reserve_bytes, like, .. } = *manner;
    let open = Open { page_bytes, reserve_bytes, like }.encode();
    begin(stream, server, manner, |_| (Kind::Open, open.to_vec()))
}

/// The session of this name again, whose stream was lost.
pub(super) fn resume(
    stream: TcpStream,
    server: &str,
    manner: &Manner,
    session: u128,
) -> Result<Met, ConnectError> {
    let met = begin(stream, server, manner, |meeting| (Kind::Resume, meeting.proof(session).to_vec()))?;
    if met.session != session {
        let why = "it goes on with another session".into();
        return Err(ConnectError::Refused { server: server.into(), why });
    }
    Ok(met)
}

fn begin(
    mut stream: TcpStream,
    server: &str,
    manner: &Manner,
    first: impl FnOnce(&Meeting) -> (Kind, Vec<u8>),
) -> Result<Met, ConnectError> {
    let failed = |source| ConnectError::Connect { server: server.into(), source };
    stream.set_nodelay(true).map_err(failed)?;
    stream.set_read_timeout(Some(manner.stall)).map_err(failed)?;
    stream.set_write_timeout(Some(manner.stall)).map_err(failed)?;
    let meeting = auth::introduce(&mut stream, manner.key.as_ref())
        .map_err(|source| ConnectError::Auth { server: server.into(), source })?;
    let (kind, payload) = first(&meeting);
    stream.write_all(&Header::with(kind, 0, 0, &payload).encode()).map_err(failed)?;
    stream.write_all(&payload).map_err(failed)?;
    let Opened { session, .. } = opened(&mut stream)
        .map_err(failed)?
        .map_err(|why| ConnectError::Refused { server: server.into(), why })?;
    stream.set_read_timeout(Some(manner.glance())).map_err(failed)?;
    Ok(Met { stream: Hidden::new(stream), session })
}

/// The answer to the first frame; the inner error is the server's own words.
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
