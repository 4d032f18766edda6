//! Addresses for clients and the sockets behind them: TCP, or a Unix socket for the programs of this machine.
//!
//! A Unix socket is a file of mode 0600, and the server accepts clients of its own user and of root only. It
//! needs no password. A file that a killed server has left is replaced; a socket at which a server listens,
//! and any other file, is refused.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{AddrParseError, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rustix::fs::{Mode, fchmod};
use rustix::net::sockopt::{self, socket_peercred};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, recv, send, sendmsg,
};

use crate::error::ServerError;

/// Number of connections that may wait to be accepted; the system bounds it (`net.core.somaxconn`). Beyond it
/// Linux ignores the client, which repeats its first request after 200 ms at the earliest.
const BACKLOG: i32 = 4096;

/// Address at which a server listens for clients.
///
/// Parsed from `HOST:PORT` with a numeric host, or from `unix:PATH`.
///
/// ```
/// use azekura_server::ListenAddress;
///
/// let address: ListenAddress = "unix:/run/azekura.sock".parse()?;
/// assert_eq!(address, ListenAddress::Unix("/run/azekura.sock".into()));
/// assert_eq!("127.0.0.1:6379".parse::<ListenAddress>()?.tcp().unwrap().port(), 6379);
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListenAddress {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A Unix socket, by its path.
    Unix(PathBuf),
}

/// Prefix of a Unix socket's path.
const UNIX: &str = "unix:";

impl ListenAddress {
    /// Returns the address of a TCP port.
    #[must_use]
    pub const fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// Returns `true` if other machines can reach the address.
    pub(crate) fn is_public(&self) -> bool {
        self.tcp().is_some_and(|address| !address.ip().is_loopback())
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl FromStr for ListenAddress {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        match text.strip_prefix(UNIX) {
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// A connected socket that never blocks. Reads and writes are direct system calls: the functions of the C
/// library are cancellation points, and the code for cancellation makes each call slower.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    /// Addresses of the client and of the server, as `CLIENT LIST` shows them.
    pub(crate) peer: String,
    pub(crate) local: String,
}

impl Socket {
    /// Makes the system probe the client after `idle` without traffic, and end the connection after
    /// [`PROBES`] probes without an answer, with pauses of a third of `idle`. Has no effect on a Unix socket.
    pub(crate) fn keep_alive(&self, idle: Duration) {
        /// Number of probes, as in Redis.
        const PROBES: u32 = 3;
        /// Largest time in seconds that the system accepts.
        const MOST_SECONDS: u64 = 32_767;
        let seconds = idle.as_secs().clamp(1, MOST_SECONDS);
        let interval = Duration::from_secs((seconds / u64::from(PROBES)).max(1));
        // Without the probes the connection works too. The system may not offer the options.
        let _ = sockopt::set_socket_keepalive(&self.fd, true)
            .and_then(|()| sockopt::set_tcp_keepidle(&self.fd, Duration::from_secs(seconds)))
            .and_then(|()| sockopt::set_tcp_keepintvl(&self.fd, interval))
            .and_then(|()| sockopt::set_tcp_keepcnt(&self.fd, PROBES));
    }

    pub(crate) fn shutdown(&self, how: Shutdown) {
        let how = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        // The client may have closed the connection already.
        let _ = rustix::net::shutdown(&self.fd, how);
    }
}

impl TryFrom<TcpStream> for Socket {
    type Error = io::Error;

    fn try_from(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        // Sends small replies without delay.
        let _ = stream.set_nodelay(true);
        let text = |address: io::Result<SocketAddr>| address.map_or_else(|_| "?:0".into(), |a| a.to_string());
        Ok(Self { peer: text(stream.peer_addr()), local: text(stream.local_addr()), fd: stream.into() })
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Read for &Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let (count, _) = recv(&self.fd, bytes, RecvFlags::empty())?;
        Ok(count)
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(&self.fd, bytes, SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match parts {
            [part] => self.write(part),
            _ => Ok(sendmsg(&self.fd, parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Result of [`Listener::accept`].
#[derive(Debug)]
pub(crate) enum Accepted {
    Client(Socket),
    /// The client is neither of the server's user nor of root.
    OtherUser(Socket),
}

/// A listening socket, which never blocks. Dropping it removes the file of a Unix socket.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixSocketFile),
}

/// A Unix socket that listens, and its file.
#[derive(Debug)]
pub(crate) struct UnixSocketFile {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket file, to recognize it: a later server may have replaced the file.
    file: Option<(u64, u64)>,
}

impl Listener {
    pub(crate) fn bind(address: &ListenAddress) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Listen { address: address.clone(), source };
        match address {
            ListenAddress::Tcp(tcp) => listen(*tcp).map(Self::Tcp),
            ListenAddress::Unix(path) => UnixSocketFile::bind(path).map(Self::Unix).map_err(failed),
        }
    }

    /// Returns the address, with the port that the system has chosen.
    pub(crate) fn address(&self) -> io::Result<ListenAddress> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(ListenAddress::Tcp),
            Self::Unix(socket) => Ok(ListenAddress::Unix(socket.path.clone())),
        }
    }

    /// Accepts a connection, if one is waiting.
    pub(crate) fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => listener.accept()?.0.try_into().map(Accepted::Client),
            Self::Unix(socket) => socket.accept(),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(socket) => socket.fd.as_fd(),
        }
    }
}

impl UnixSocketFile {
    fn bind(path: &Path) -> io::Result<Self> {
        remove_unused(path)?;
        let path = std::path::absolute(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Linux creates the file with the mode of the socket, so the file never has wider permissions.
        fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        bind(&fd, &SocketAddrUnix::new(&path)?)?;
        let file = identity(&path);
        let socket = Self { fd, path, file };
        rustix::net::listen(&socket.fd, BACKLOG)?;
        Ok(socket)
    }

    fn accept(&self) -> io::Result<Accepted> {
        let fd = accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        let client = socket_peercred(&fd)?;
        // The form in which Redis shows the address of a Unix socket.
        let name = format!("{}:0", self.path.display());
        let socket = Socket { fd, peer: name.clone(), local: name };
        let is_own = client.uid.is_root() || client.uid == rustix::process::geteuid();
        Ok(if is_own { Accepted::Client(socket) } else { Accepted::OtherUser(socket) })
    }
}

impl Drop for UnixSocketFile {
    fn drop(&mut self) {
        if self.file.is_some() && self.file == identity(&self.path) {
            // The file may be removed already.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let file = std::fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// Removes a Unix socket at which no server listens.
///
/// # Errors
///
/// [`ErrorKind::AlreadyExists`] for another file; [`ErrorKind::AddrInUse`] if a server listens there.
fn remove_unused(path: &Path) -> io::Result<()> {
    let file = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !file.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "the path is that of a file that is no socket"));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Ok(_) => Err(io::Error::new(ErrorKind::AddrInUse, "a server listens there")),
        Err(error) => Err(error),
    }
}

pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener, ServerError> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        // The standard library listens with a backlog of 128.
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(listener)
    });
    listener.map_err(|source| ServerError::Listen { address: address.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_tcp_client_is_probed() {
        let address = ListenAddress::Tcp("127.0.0.1:0".parse().expect("an address"));
        let listener = Listener::bind(&address).expect("a free port");
        let address = listener.address().expect("it listens").tcp().expect("a port");
        let _client = TcpStream::connect(address).expect("it listens");
        let socket = loop {
            if let Ok(Accepted::Client(socket)) = listener.accept() {
                break socket;
            }
            std::thread::yield_now();
        };
        for (idle_s, kept_s, interval_s) in [(300, 300, 100), (0, 1, 1), (1 << 40, 32_767, 10_922)] {
            socket.keep_alive(Duration::from_secs(idle_s));
            assert!(sockopt::socket_keepalive(&socket).expect("a socket"));
            assert_eq!(sockopt::tcp_keepidle(&socket), Ok(Duration::from_secs(kept_s)));
            assert_eq!(sockopt::tcp_keepintvl(&socket), Ok(Duration::from_secs(interval_s)));
        }
    }

    #[test]
    fn a_thousand_clients_can_connect_before_one_is_accepted() {
        let somaxconn = std::fs::read_to_string("/proc/sys/net/core/somaxconn").expect("Linux has it");
        let most: usize = somaxconn.trim().parse().expect("a number");
        // Other tests of this process need descriptors too.
        let most = crate::descriptors::most_clients(4096, 1).div_ceil(2).min(most).min(1000);
        let address = ListenAddress::Tcp("127.0.0.1:0".parse().expect("an address"));
        let listener = Listener::bind(&address).expect("a free port");
        let address = listener.address().expect("it listens").tcp().expect("a port");
        let timeout = std::time::Duration::from_secs(60);
        let connect = |_| TcpStream::connect_timeout(&address, timeout).expect("the queue has space");
        let clients: Vec<_> = (0..most).map(connect).collect();
        let limit = std::time::Instant::now() + timeout;
        for _ in &clients {
            // On a busy machine the kernel may queue a connection after its client has returned.
            while !matches!(listener.accept(), Ok(Accepted::Client(_))) {
                assert!(std::time::Instant::now() < limit, "a connection is lost");
                std::thread::yield_now();
            }
        }
    }
}
