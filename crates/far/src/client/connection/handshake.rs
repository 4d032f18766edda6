//! Connection setup: connects to a memory server, proves the key, and opens or resumes a session.

use crate::descriptors::{Hidden, with_room};
use crate::poll;
use crate::wire::auth::{self, AuthError, AuthKey, Handshake};
use crate::wire::{HEADER, Header, Kind, Open, Opened};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

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
pub(super) fn dial(server: &str, stall: Duration) -> Result<Hidden<TcpStream>, ConnectError> {
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

/// Connects to a known address. The socket is hidden before it waits for the server: the program could close
/// a descriptor with a low number, or expect this number for a file of its own.
pub(super) fn dial_to(address: SocketAddr, within: Duration) -> io::Result<Hidden<TcpStream>> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = with_room(|| Ok(net::socket_with(family, SocketType::STREAM, flags, None)?))?;
    let stream = Hidden::new(TcpStream::from(socket));
    match net::connect(&*stream, &address) {
        Err(Errno::INPROGRESS) => await_connection(&stream, within)?,
        done => done?,
    }
    stream.set_nonblocking(false)?;
    // On the loopback interface, a socket can connect to itself if its port has no listener.
    if stream.local_addr()? == address {
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "no server listens there"));
    }
    Ok(stream)
}

/// Waits until a socket is connected.
fn await_connection(stream: &TcpStream, within: Duration) -> io::Result<()> {
    let until = Instant::now() + within;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut polled = [libc::pollfd { events: libc::POLLOUT, ..poll::readable(stream.as_raw_fd()) }];
        if left.is_zero() || !poll::wait(&mut polled, Some(left))? {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "connection timed out"));
        }
        if polled[0].revents != 0 {
            return stream.take_error()?.map_or(Ok(()), Err);
        }
    }
}

/// Opens a new session over this stream.
pub(super) fn open(
    stream: Hidden<TcpStream>,
    server: &str,
    options: &ConnectionOptions,
) -> Result<OpenedSession, ConnectError> {
    let ConnectionOptions { page_bytes, reserve_bytes, like, .. } = *options;
    let open = Open { page_bytes, reserve_bytes, like }.encode();
    begin(stream, server, options, |_| (Kind::Open, open.to_vec()))
}

/// Resumes a session over a new stream after the session's stream was lost.
pub(super) fn resume(
    stream: Hidden<TcpStream>,
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
    stream: Hidden<TcpStream>,
    server: &str,
    options: &ConnectionOptions,
    first: impl FnOnce(&Handshake) -> (Kind, Vec<u8>),
) -> Result<OpenedSession, ConnectError> {
    let failed = |source| ConnectError::Connect { server: server.into(), source };
    stream.set_nodelay(true).map_err(failed)?;
    stream.set_read_timeout(Some(options.stall)).map_err(failed)?;
    stream.set_write_timeout(Some(options.stall)).map_err(failed)?;
    let mut bytes: &TcpStream = &stream;
    let handshake = auth::introduce(&mut bytes, options.key.as_ref())
        .map_err(|source| ConnectError::Auth { server: server.into(), source })?;
    let (kind, payload) = first(&handshake);
    bytes.write_all(&Header::with(kind, 0, 0, &payload).encode()).map_err(failed)?;
    bytes.write_all(&payload).map_err(failed)?;
    let Opened { session, .. } =
        opened(bytes).map_err(failed)?.map_err(|why| ConnectError::Refused { server: server.into(), why })?;
    Ok(OpenedSession { stream, session })
}

/// Reads the reply to the first frame. The inner error is the server's message.
fn opened(mut stream: &TcpStream) -> io::Result<Result<Opened, String>> {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::descriptors;
    use std::os::fd::FromRawFd;

    /// A listener without room for another connection does not answer.
    #[test]
    fn a_socket_is_hidden_while_it_waits_for_the_server() {
        let family = AddressFamily::INET;
        let socket = net::socket(family, SocketType::STREAM, None).unwrap();
        net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        net::listen(&socket, 0).unwrap();
        let listener = std::net::TcpListener::from(socket);
        let address = listener.local_addr().unwrap();
        let _in_the_queue = TcpStream::connect(address).unwrap();
        let hidden = || descriptors::hidden().into_iter().filter(|&fd| fd >= 0).collect::<Vec<_>>();
        let before = hidden();
        let is_new = |fd: &i32| !before.contains(fd) && peer_is_unknown(*fd);
        let waits = std::thread::scope(|scope| {
            let dialing = scope.spawn(|| dial_to(address, Duration::from_millis(500)));
            let mut waits = false;
            while !dialing.is_finished() {
                waits |= hidden().iter().any(is_new);
            }
            assert_eq!(dialing.join().unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
            waits
        });
        assert!(waits);
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let connected = dial_to(closed, Duration::from_secs(1));
        assert_eq!(connected.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    /// Returns `true` for a socket that is not connected.
    fn peer_is_unknown(fd: i32) -> bool {
        // SAFETY: the descriptor is not closed by this value.
        let stream = std::mem::ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd) });
        stream.peer_addr().is_err()
    }
}
